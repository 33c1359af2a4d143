"""`puna imatrix`: how much each column of a model's weights is used, for quantisers to weigh errors by."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from puna.cli import options, report
from puna.cli.copies import checked_output, named
from puna.cli.parser import Parser, whole
from puna.cli.perplexity import WINDOW, Pace, add_windows, amend, running, sources_of, text_of
from puna.cli.text import printable
from puna.errors import RequestError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from puna.measure.imatrix import Collector
    from puna.measure.windows import Windows

    Losses = Iterator[NDArray[np.float64]]

__all__ = ["build", "run"]

BACKEND = "reference"


def build(prog: str) -> Parser:
    """The command's options."""
    parser = Parser(
        prog,
        "Write an importance matrix: how much each column of a model's weights is used on a text. Quantisers, "
        "llama-quantize too, keep what is used more precise. Computed in float32; its perplexity is shown as it goes.",
    )
    options.add_name(parser)
    group = add_windows(parser)
    group.add_argument(
        "-o",
        "--output",
        "--output-file",
        default="imatrix.gguf",
        type=named,
        metavar="FILE",
        help="what to write (default imatrix.gguf)",
    )
    group.add_argument(
        "--process-output",
        action="store_true",
        help="have the matrix in it that makes the logits: output.weight, or token_embd.weight where a model ties them",
    )
    group.add_argument(
        "--parse-special", action="store_true", help="take special tokens in the text for what they are"
    )
    group.add_argument(
        "-ofreq",
        "--output-frequency",
        type=whole(1),
        default=10,
        metavar="N",
        help="write what there is after every N windows (default 10)",
    )
    options.add_model(parser)
    amend(parser, "-c", WINDOW, f"tokens of a window (default {WINDOW})")
    amend(
        parser, "--backend", BACKEND, f"what computes; {BACKEND} alone shows what weights are multiplied with"
    )
    return parser


def run(prog: str, argv: Sequence[str]) -> int:
    """Run the command. Raises PunaError."""
    arguments = build(prog).parse(argv)
    options.check_model(arguments)
    if arguments.backend != BACKEND:
        what = f"importance matrices come from the {BACKEND} backend, and this is {arguments.backend}"
        raise RequestError(what, where="--backend", fix="leave it out")
    text = text_of(arguments)
    from puna.measure.imatrix import Collector, collect
    from puna.measure.windows import check_sizes, cut, text_ids

    check_sizes(arguments.ctx_size)
    checked_output(arguments.output, sources_of(arguments))
    model = options.load(arguments, gives="logits")
    report.opening(options.model_name(arguments), model)
    windows = cut(model, text_ids(model, text, arguments.parse_special), arguments.ctx_size, arguments.chunks)
    pace, collector = Pace(windows), Collector(arguments.process_output)
    held = Held(Path(arguments.output))
    try:
        running(pace, kept(arguments, held, collector, windows, collect(model, windows, collector)))
    except KeyboardInterrupt:
        report.say(f"interrupted; {held.told()}")
        raise
    for name, counts in collector.counts.items():
        if idle := int((counts == 0).sum()):
            report.say(f"note: {printable(name)}: {idle} of {len(counts)} experts were never chosen")
    report.say(f"{report.counted(len(collector.counts), 'tensor')} in {printable(arguments.output)}")
    pace.end()
    return 0


@dataclass
class Held:
    """What of the windows is in the file by now."""

    path: Path
    windows: int = 0

    def told(self) -> str:
        if self.windows:
            return f"{printable(str(self.path))} holds {report.counted(self.windows, 'window')}"
        return f"{printable(str(self.path))} is as it was" if self.path.exists() else "nothing was written"


def kept(
    arguments: argparse.Namespace, held: Held, collector: Collector, windows: Windows, losses: Losses
) -> Losses:
    """The losses as they come; the matrix is written every now and then, and at the end."""
    from puna.gguf.imatrix import Imatrix, write_imatrix

    for done, part in enumerate(losses, 1):
        yield part
        if done % arguments.output_frequency == 0 or done == len(windows.starts):
            imatrix = Imatrix(collector.entries(), [arguments.file], done, windows.length)
            write_imatrix(held.path, imatrix)
            held.windows = done
