"""`puna perplexity`: how well a model predicts a text, and how far it is from another one."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from puna.cli import options, report
from puna.cli.copies import checked_output, named, parts_of, writing
from puna.cli.parser import Parser, whole
from puna.cli.text import from_file, printable
from puna.errors import RequestError
from puna.units import human

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from puna.engine import Model
    from puna.measure.divergence import Divergence
    from puna.measure.perplexity import Mean
    from puna.measure.saved_logits import SavedLogits
    from puna.measure.windows import Windows

__all__ = ["WINDOW", "Pace", "add_windows", "amend", "build", "run", "running", "sources_of", "text_of"]

WINDOW = 512  # llama-perplexity's default
PERCENTILES = (99.9, 99.0, 95.0, 90.0, 50.0, 10.0, 5.0, 1.0, 0.1)
QUARTILES = (99.9, 99.0, 95.0, 90.0, 75.0, 50.0, 25.0, 10.0, 5.0, 1.0, 0.1)


def build(prog: str) -> Parser:
    """The command's options."""
    parser = Parser(
        prog,
        "Measure how well a model predicts a text: its perplexity, as llama-perplexity computes it. "
        "Or, with --kl-divergence, how far its predictions are from those of another model that were saved before.",
    )
    options.add_name(parser)
    group = add_windows(parser)
    group.add_argument(
        "--ppl-stride",
        type=whole(0),
        default=0,
        metavar="N",
        help="begin a window every N tokens, and judge the last N of each; 0 for windows one after another, whose "
        "second half is judged (default 0)",
    )
    group = parser.add_argument_group("divergence")
    group.add_argument(
        "--save-all-logits",
        dest="save",
        type=named,
        metavar="FILE",
        help="write all logits to a file; with --kl-divergence, the same as --kl-divergence-base",
    )
    group.add_argument(
        "--kl-divergence-base",
        dest="base",
        type=named,
        metavar="FILE",
        help="with --kl-divergence, the file to compare with; without, all logits are written to it, if it is new",
    )
    group.add_argument("--kl-divergence", action="store_true", help="compare with the logits in the file")
    options.add_model(parser)
    amend(parser, "-c", None, f"tokens of a window (default {WINDOW}, or the base's)")
    return parser


def add_windows(parser: Parser) -> argparse._ArgumentGroup:
    """The text that is cut into windows."""
    group = parser.add_argument_group("text")
    group.add_argument("-f", "--file", metavar="FILE", help="a file with the text; - reads standard input")
    group.add_argument(
        "--chunks", type=whole(-1), default=-1, metavar="N", help="most windows; -1 for all (default -1)"
    )
    return group


def amend(parser: Parser, flag: str, default: object, text: str) -> None:
    """Give a shared option another default here, and have its help say so."""
    action = parser._option_string_actions[flag]
    action.default, action.help = default, text


def run(prog: str, argv: Sequence[str]) -> int:
    """Run the command. Raises PunaError."""
    arguments = build(prog).parse(argv)
    options.check_model(arguments)
    if arguments.kl_divergence:
        return compare(arguments)
    text, length = text_of(arguments), WINDOW if arguments.ctx_size is None else arguments.ctx_size
    save = save_path(arguments)
    from puna.measure import windows
    from puna.measure.perplexity import losses, perplexity_of
    from puna.measure.saved_logits import file_bytes, saving

    windows.check_sizes(length, arguments.ppl_stride)
    arguments.ctx_size = length + arguments.ppl_stride // 2
    model = options.load(arguments, gives="logits")
    report.opening(options.model_name(arguments), model)
    parts = windows.cut(model, windows.text_ids(model, text), length, arguments.chunks, arguments.ppl_stride)
    pace = Pace(parts)
    if save:
        size = human(file_bytes(parts.length, model.n_vocab, len(parts.starts)))
        report.say(f"the logits go to {printable(str(save))}: {size}")
    with ExitStack() as opened:
        if save:
            opened.enter_context(writing(save))
        writer = opened.enter_context(saving(save, parts, model.n_vocab)) if save else None
        estimate = perplexity_of(running(pace, losses(model, parts, writer)))
    print(f"Final estimate: PPL = {estimate.value:.4f} +/- {estimate.error:.5f}")
    pace.end()
    return 0


def save_path(arguments: argparse.Namespace) -> Path | None:
    """Where the logits go, if they are to be kept. Raises RequestError where they cannot, or would replace a base."""
    if arguments.save and arguments.base:
        raise RequestError("two files are named", where="--save-all-logits", fix="name one")
    if not (arguments.save or arguments.base):
        return None
    if arguments.ppl_stride:
        raise RequestError(
            "strided windows are not saved", where="--save-all-logits", fix="leave --ppl-stride out"
        )
    if arguments.base and Path(arguments.base).exists():
        fix = "add --kl-divergence to compare with it, or write it anew with --save-all-logits"
        raise RequestError("this file is there already", where=arguments.base, fix=fix)
    path = Path(arguments.save or arguments.base)
    checked_output(path, sources_of(arguments))
    return path


def sources_of(arguments: argparse.Namespace) -> list[Path]:
    """The files that are read: the model, fetched if it is a name, and the text. Raises PunaError."""
    from puna import store
    from puna.settings import Settings

    with report.Bars() as progress:
        model = store.resolve(options.model_name(arguments), Settings.from_environment(), progress=progress)
    texts = [] if arguments.file in (None, "-") else [Path(arguments.file)]
    return [*parts_of(model), *texts, *map(Path, arguments.arch_file or ())]


def text_of(arguments: argparse.Namespace) -> str:
    """The text that -f gives. Raises RequestError for none, or an empty one."""
    if arguments.file is None:
        raise RequestError("no text is given", fix="name a file with -f")
    text = from_file(arguments.file).removesuffix("\n")
    if not text.strip():
        raise RequestError("the text is empty", where=arguments.file, fix="give another")
    return text


class Pace:
    """How long windows take, said on standard error: after the first one, and at the end."""

    def __init__(self, parts: Windows) -> None:
        self.tokens, self.windows, self.done = parts.length, len(parts.starts), 0
        report.say(f"{report.counted(self.windows, 'window')} of {self.tokens} tokens")
        self.begin = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.begin

    def step(self) -> None:
        """A window is done."""
        self.done += 1
        if self.done == 1 and self.windows > 1:
            all_of_them = self.seconds * self.windows
            report.say(f"{self.seconds:.2f} s a window, about {all_of_them / 60:.1f} minutes for all")

    def end(self) -> None:
        tokens = self.tokens * self.done
        report.say(f"{report.counted(tokens)}{report.rate(tokens, self.seconds)}")


def running(pace: Pace, losses: Iterator[NDArray[np.float64]]) -> NDArray[np.float64]:
    """All losses; what the perplexity is so far is shown after each window."""
    import numpy as np

    from puna.measure.perplexity import perplexity_of

    found: list[NDArray[np.float64]] = []
    try:
        for part in losses:
            pace.step()
            found.append(part)
            so_far = perplexity_of(np.concatenate(found)).value
            print(f"[{len(found)}]{so_far:.4f},", end="", flush=True)
    finally:
        if found:
            print()
    return np.concatenate(found)


def compare(arguments: argparse.Namespace) -> int:
    """--kl-divergence."""
    from puna.measure.divergence import base_windows, divergences, joined
    from puna.measure.saved_logits import SavedLogits

    if arguments.base and arguments.save:
        raise RequestError("two files are named", where="--save-all-logits", fix="leave it out")
    arguments.base = arguments.base or arguments.save
    if not arguments.base:
        raise RequestError(
            "no base is named", where="--kl-divergence", fix="name its file with --kl-divergence-base"
        )
    if arguments.ppl_stride:
        raise RequestError("the windows are those of the base", where="--ppl-stride", fix="leave it out")
    with SavedLogits(arguments.base) as base:
        if arguments.ctx_size not in (None, base.n_ctx):
            what = f"the base has windows of {base.n_ctx} tokens, not {arguments.ctx_size}"
            raise RequestError(what, where="-c", fix="leave it out")
        arguments.ctx_size = base.n_ctx
        text = text_of(arguments) if arguments.file is not None else None
        model = options.load(arguments, gives="logits")
        report.opening(options.model_name(arguments), model)
        pace = Pace(base_windows(model, base, arguments.chunks))
        found: list[Divergence] = []
        if text is not None:
            check_text(model, text, base)
        print("chunk             PPL               ln(PPL(Q)/PPL(base))          KL Divergence", end="")
        print("              Δp RMS            Same top p")
        for part in divergences(model, base, arguments.chunks):
            pace.step()
            found.append(part)
            print(row(len(found), joined(found)), flush=True)
    print("\n".join(["", *statistics(joined(found))]))
    pace.end()
    return 0


def check_text(model: Model, text: str, base: SavedLogits) -> None:
    """Raise RequestError unless the text has the base's ids."""
    from puna.measure.windows import text_ids

    ids = text_ids(model, text)[: len(base.ids)]
    if len(ids) < len(base.ids) or (ids != base.ids).any():
        what = "the base is of another text, or of a model with another vocabulary"
        raise RequestError(what, where=base.where, fix="leave -f out, or save the base's logits of this text")


def pair(mean: Mean, form: str) -> str:
    """A mean and its error."""
    return f"{mean.value:{form}} ± {mean.error:{form}}"


def row(number: int, d: Divergence) -> str:
    """The table's line after some windows."""
    cells = (
        pair(d.perplexity, "9.4f"),
        pair(d.log_ratio, "10.5f"),
        pair(d.mean_kld, "10.5f"),
        pair(d.rms_p_diff.times(100), "6.3f") + " %",
        pair(d.top_agreement.times(100), "6.3f") + " %",
    )
    return f"{number:4d}    " + "    ".join(cells)


def statistics(d: Divergence) -> list[str]:
    """All that llama-perplexity says of a comparison, in its words."""
    return [
        "====== Perplexity statistics ======",
        f"Mean PPL(Q)                   : {pair(d.perplexity, '10.6f')}",
        f"Mean PPL(base)                : {pair(d.base_perplexity, '10.6f')}",
        f"Cor(ln(PPL(Q)), ln(PPL(base))): {100 * d.correlation:6.2f}%",
        f"Mean ln(PPL(Q)/PPL(base))     : {pair(d.log_ratio, '10.6f')}",
        f"Mean PPL(Q)/PPL(base)         : {pair(d.log_ratio.exp(), '10.6f')}",
        f"Mean PPL(Q)-PPL(base)         : {pair(d.difference, '10.6f')}",
        "",
        "====== KL divergence statistics ======",
        f"Mean    KLD: {pair(d.mean_kld, '10.6f')}",
        *spread("KLD", d.kld, PERCENTILES, "10.6f"),
        "",
        "====== Token probability statistics ======",
        f"Mean    Δp: {pair(d.mean_p_diff.times(100), '6.3f')} %",
        *spread("Δp", 100 * d.p_diff, QUARTILES, "6.3f", "%"),
        f"RMS Δp    : {pair(d.rms_p_diff.times(100), '6.3f')} %",
        f"Same top p: {pair(d.top_agreement.times(100), '6.3f')} %",
    ]


def spread(
    name: str, values: NDArray[np.float64], percentiles: Sequence[float], form: str, unit: str = ""
) -> list[str]:
    """The largest, percentiles and the smallest."""
    import numpy as np

    named = {100.0: "Maximum", 50.0: "Median ", 0.0: "Minimum"}
    lines = []
    for share in (100.0, *percentiles, 0.0):
        label = named.get(share, f"{share:4.1f}%  ")
        lines.append(f"{label} {name}: {np.percentile(values, share):{form}}{unit}")
    return lines
