"""`puna tokenize`: a text as token ids and pieces, and ids as text."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from puna.cli import options, report
from puna.cli.parser import Parser
from puna.cli.text import from_file, unescape
from puna.errors import RequestError

if TYPE_CHECKING:
    from puna.tokenizer import Tokenizer

__all__ = ["build", "run"]


def build(prog: str) -> Parser:
    """The command's options."""
    parser = Parser(prog, "Show a text as a model's token ids and pieces, or ids as text.")
    options.add_name(parser)
    parser.usage = f"{prog} MODEL [TEXT] [options]"
    parser.add_argument(
        "text", nargs="?", metavar="TEXT", help="the text; without it, standard input is read"
    )
    options.add_prompt(parser, escaped="TEXT, -p and -f")
    parser.add_argument("--ids", action="store_true", help="print the ids alone, as [1, 2, 3]")
    parser.add_argument("--no-bos", action="store_true", help="add no token that marks the begin or the end")
    parser.add_argument("--no-parse-special", action="store_true", help="take special tokens as plain text")
    parser.add_argument("--decode", metavar="IDS", help="print the text of ids, such as 1,2,3; - reads them")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(prog: str, argv: Sequence[str]) -> int:
    """Run the command. Raises PunaError."""
    arguments = build(prog).parse(argv)
    if arguments.model is not None and arguments.text is None:
        arguments.name, arguments.text = None, arguments.name  # with -m, the first word is the text
    options.check_model(arguments)
    text = None if arguments.decode is not None else text_of(arguments)
    with options.open_file(arguments) as file:
        from puna.vocabulary import Vocabulary

        vocabulary = Vocabulary(file)
        tokenizer = vocabulary.tokenizer
    if text is None:
        print_decoded(vocabulary.detokenize(ids_of(arguments.decode)), arguments.json)
        return 0
    ids = vocabulary.tokenize(
        text, add_special=not arguments.no_bos, parse_special=not arguments.no_parse_special
    )
    if arguments.ids:
        print(ids)
    elif arguments.json:
        print(json.dumps([{"id": token, "piece": piece(tokenizer, token)} for token in ids]))
    else:
        print("\n".join([*report.token_lines(vocabulary, ids), report.counted(len(ids))]))
    return 0


def text_of(arguments: argparse.Namespace) -> str:
    """The text by its place, by -p or -f, or from standard input, which is taken whole."""
    given = [text for text in (arguments.text, arguments.prompt, arguments.file) if text is not None]
    if len(given) > 1:
        raise RequestError("the text is given twice", fix="give it once, or by -p or -f")
    if not given or given == ["-"]:
        return from_file("-")
    text: str = given[0] if arguments.file is None else from_file(arguments.file)
    return unescape(text) if arguments.escape else text


def ids_of(text: str) -> list[int]:
    """Ids as `1,2,3`, `[1, 2, 3]` or `1 2 3`. Raises RequestError."""
    words = re.split(r"[\s,]+", (from_file("-") if text == "-" else text).strip().strip("[]").strip())
    for word in words:
        if word and not re.fullmatch(r"\d{1,10}", word, re.ASCII):
            raise RequestError(f"{word!r} is no token id", where="--decode", fix="give ids such as 1,2,3")
    return [int(word) for word in words if word]


def print_decoded(text: str, as_json: bool) -> None:
    print(json.dumps(text) if as_json else text)


def piece(tokenizer: Tokenizer, token: int) -> Any:
    """A token's text, or its bytes where they are no text of their own."""
    raw = tokenizer.piece(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)
