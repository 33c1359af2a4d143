"""`puna embed`: texts as vectors, or the scores that a classifier gives them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from puna.cli import options, report
from puna.cli.parser import Parser, one_of, whole
from puna.cli.perplexity import amend
from puna.cli.text import from_file, printable, unescape
from puna.errors import RequestError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from puna.engine import Model
    from puna.tokenizer import Tokenizer

__all__ = ["build", "paired", "run"]

POOLINGS = ("auto", "none", "mean", "cls", "last", "rank")
FORMATS = ("array", "json", "json+", "raw")
TOKENS = 2048
SHOWN, ENDS = 16, 3  # values that are shown of a text's vector, and at each end of a token's
NAME = 6  # characters of a text over a column


def build(prog: str) -> Parser:
    """The command's options."""
    parser = Parser(prog, "Show what a model makes of texts: a vector each, or a score by a classifier.")
    options.add_name(parser)
    options.add_prompt(parser, escaped="-p, -f and the separators")
    group = parser.add_argument_group("embedding")
    group.add_argument(
        "--pooling",
        type=one_of(*POOLINGS),
        default="auto",
        metavar="{" + ",".join(POOLINGS) + "}",
        help="what is made of a text's tokens: a vector each, their mean, the first, the last, or scores (default: "
        "auto, the model's own, or none)",
    )
    group.add_argument(
        "--embd-normalize",
        type=whole(-1),
        default=2,
        metavar="N",
        help="-1 leaves vectors as they are, 0 scales them to the range of int16, others to 1 by that p-norm; scores "
        "stay as they are (default 2: euclidean)",
    )
    group.add_argument(
        "--embd-output-format",
        type=one_of(*FORMATS),
        metavar="{" + ",".join(FORMATS) + "}",
        help="array is [[...], ...], json OpenAI's form, json+ that with cosine similarities, raw a vector a line "
        "(default: for people)",
    )
    group.add_argument(
        "--embd-separator", default="\\n", metavar="TEXT", help=r"what parts the texts (default \n)"
    )
    group.add_argument(
        "--cls-separator",
        default="\\t",
        metavar="TEXT",
        help=r"what parts a query and a document that are scored together (default \t)",
    )
    group.add_argument(
        "--verbose-prompt", action="store_true", help="show token ids and pieces on standard error"
    )
    options.add_model(parser)
    amend(
        parser,
        "-b",
        TOKENS,
        f"most tokens computed at once, and of a text whose tokens all see each other (default {TOKENS})",
    )
    return parser


def run(prog: str, argv: Sequence[str]) -> int:
    """Run the command. Raises PunaError."""
    arguments = build(prog).parse(argv)
    options.check_model(arguments)
    given = options.prompt_of(arguments)
    separator, cut = unescape(arguments.embd_separator), unescape(arguments.cls_separator)
    if not separator or not cut:
        raise RequestError("a separator is empty", where="--embd-separator, --cls-separator", fix="give one")
    texts = (from_file("-").removesuffix("\n") if given is None else given).split(separator)
    model = options.load(arguments)
    report.opening(options.model_name(arguments), model)
    if model.config.pooling == "rank":
        texts = [paired(model.tokenizer, text.split(cut)) for text in texts]
    ids = [model.tokenize(text) for text in texts]
    for text in ids if arguments.verbose_prompt else ():
        report.tokens(model, text)
    begin = time.perf_counter()
    vectors = model.embed(ids, arguments.embd_normalize)
    seconds, count = time.perf_counter() - begin, sum(map(len, ids))
    for line in lines_of(arguments, model, texts, vectors):
        print(line)
    report.say(f"{report.counted(len(ids), 'text')}, {report.counted(count)}{report.rate(count, seconds)}")
    return 0


def paired(tokenizer: Tokenizer, parts: Sequence[str]) -> str:
    """A query and a document as a classifier knows them: in the model's template, or with its marks between."""
    template = tokenizer.chat_templates.get("rerank")
    if template and len(parts) > 1:
        return template.replace("{query}", parts[0]).replace("{document}", parts[1])
    added = [("eos", tokenizer.add_eos), ("sep", tokenizer.add_sep)]
    marks = [tokenizer.meaning[name] for name, is_added in added if is_added and name in tokenizer.meaning]
    return "".join(map(tokenizer.token_text, marks)).join(parts)


def lines_of(
    arguments: argparse.Namespace, model: Model, texts: Sequence[str], vectors: NDArray[np.float32]
) -> Iterator[str]:
    """The output in the format that is asked for."""
    form = "{:.0f}" if arguments.embd_normalize == 0 else "{:.7f}"
    if arguments.embd_output_format:
        return WRITERS[arguments.embd_output_format](vectors, form)
    return HUMAN.get(model.config.pooling or "", whole_lines)(arguments, model, texts, vectors)


def joined(vector: NDArray[np.float32], form: str, between: str = ",") -> str:
    return between.join(map(form.format, vector.tolist()))


def raw_lines(vectors: NDArray[np.float32], form: str) -> Iterator[str]:
    yield from (joined(vector, form, " ") for vector in vectors)


def array_lines(vectors: NDArray[np.float32], form: str) -> Iterator[str]:
    yield "[" + ",".join(f"[{joined(vector, form)}]" for vector in vectors) + "]"


def json_lines(vectors: NDArray[np.float32], form: str, similar: bool = False) -> Iterator[str]:
    yield '{"object": "list", "data": ['
    for n, vector in enumerate(vectors):
        more = "," if n + 1 < len(vectors) else ""
        yield f'{{"object": "embedding", "index": {n}, "embedding": [{joined(vector, form)}]}}{more}'
    if similar and len(vectors) > 1:
        rows = ", ".join(f"[{joined(row, '{:.2f}', ', ')}]" for row in cosines(vectors))
        yield f'], "cosineSimilarity": [{rows}]}}'
    else:
        yield "]}"


WRITERS: Mapping[str, Callable[[Any, str], Iterator[str]]] = {
    "array": array_lines,
    "json": json_lines,
    "json+": lambda vectors, form: json_lines(vectors, form, similar=True),
    "raw": raw_lines,
}


def cosines(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """The cosine of the angle between each two of the vectors [n, width]: [n, n]; 0 for one of length 0."""
    from puna.embedding import normalized

    units = normalized(vectors, 2)
    products: NDArray[np.float32] = units @ units.T
    return products


def whole_lines(
    arguments: argparse.Namespace, model: Model, texts: Sequence[str], vectors: NDArray[np.float32]
) -> Iterator[str]:
    """A vector a text, or of several the first values; and how alike they are."""
    form = "{:6.0f}" if arguments.embd_normalize == 0 else "{:9.6f}"
    for n, vector in enumerate(vectors):
        yield f"embedding {n}: {joined(vector[:SHOWN] if len(vectors) > 1 else vector, form, ' ')}"
    if len(vectors) > 1:
        yield "\ncosine similarity matrix:\n"
        yield " ".join(f"{printable(text[:NAME]):>{NAME}}" for text in texts)
        for text, row in zip(texts, cosines(vectors), strict=True):
            yield f"{joined(row, '{:6.2f}', ' ')} {printable(text[: 2 * NAME])}"


def token_lines(
    arguments: argparse.Namespace, model: Model, texts: Sequence[str], vectors: NDArray[np.float32]
) -> Iterator[str]:
    """Both ends of each token's vector."""
    form = "{:6.0f}" if arguments.embd_normalize == 0 else "{:9.6f}"
    for n, vector in enumerate(vectors):
        yield f"embedding {n}: {joined(vector[:ENDS], form, ' ')}  ...  {joined(vector[-ENDS:], form, ' ')}"


def score_lines(
    arguments: argparse.Namespace, model: Model, texts: Sequence[str], vectors: NDArray[np.float32]
) -> Iterator[str]:
    """A score a line, with what it stands for where there are several."""
    labels = model.metadata.get(f"{model.config.architecture}.classifier.output_labels", ())
    for n, scores in enumerate(vectors):
        for i, score in enumerate(scores):
            label = labels[i] if i < len(labels) and isinstance(labels[i], str) else str(i)
            yield f"rerank score {n}: {score:8.3f}" + f" [{printable(label)}]" * (len(scores) > 1)


HUMAN: Mapping[str, Callable[..., Iterator[str]]] = {"none": token_lines, "rank": score_lines}
