"""`puna pull`: fetch a model by name."""

from __future__ import annotations

from collections.abc import Sequence

from puna import store
from puna.cli.parser import Parser
from puna.cli.report import Bars
from puna.settings import Settings

__all__ = ["build", "run"]


def build(prog: str) -> Parser:
    """The command's options."""
    about = "Fetch a model, unless it is here already, and print its path."
    check = (
        "Of what is here, a model that puna list names is compared with its digest, one of the hub (hf:) "
        "by its size; puna run looks at sizes alone."
    )
    parser = Parser(prog, f"{about} {check}")
    parser.usage = f"{prog} NAME"
    parser.add_argument(
        "name",
        metavar="NAME",
        help="a name that puna list shows, hf:owner/repo[:quant], or hf:owner/repo/file.gguf",
    )
    return parser


def run(prog: str, argv: Sequence[str]) -> int:
    """Run the command. Raises PunaError."""
    arguments = build(prog).parse(argv)
    with Bars() as progress:
        path = store.pull(arguments.name, Settings.from_environment(), progress)
    print(path)
    return 0
