"""What each type of `puna quantize` costs a model: bytes, and how far its predictions are from those of F32 weights.

    python bench/quant_divergence.py MODEL -f TEXT [--write docs/quants.md]

The model is dequantised to F32 first, and its predictions for windows of the text are kept; then each mix is made from
the F32 file, and its predictions are compared with those.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from compare import publish

import puna
from puna.edit.mixes import MIXES, find_mix
from puna.edit.quantize import make_plan, run_plan
from puna.errors import RequestError
from puna.gguf import GGUFFile
from puna.measure.divergence import divergence
from puna.measure.perplexity import perplexity
from puna.measure.saved_logits import SavedLogits
from puna.measure.windows import text_ids

__all__ = ["main", "quantised", "rows"]

MARK = "quant divergence"
OF_EXPERTS = {"MXFP4_MOE"}  # mixes that give a dense model nothing of their own


def quantised(source: Path, folder: Path, name: str) -> tuple[Path, int]:
    """A copy of another mix, and the bytes of its tensors."""
    target = folder / f"{name}.gguf"
    with GGUFFile.open(source) as file:
        plan = make_plan(file, find_mix(name))
        run_plan(file, target, plan, requantize=True, threads=2)
    return target, plan.new_bytes


def rows(model: Path, text: str, n_ctx: int, chunks: int) -> Iterator[str]:
    """The table's lines, as they are measured."""
    yield "| type | MiB | perplexity | divergence | same likeliest |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain, size = quantised(model, folder, "F32")
        loaded, saved = puna.load(plain, n_ctx=n_ctx), folder / "logits"
        whole = perplexity(loaded, text_ids(loaded, text), n_ctx, chunks=chunks, save=saved)
        yield f"| F32 | {size / 2**20:.0f} | {whole.value:.2f} | - | - |"
        for mix in (mix for mix in MIXES if mix != "F32" and mix not in OF_EXPERTS):
            try:
                path, size = quantised(plain, folder, mix)
            except RequestError as error:  # it wants an importance matrix
                sys.stderr.write(f"{error}\n")
                continue
            found = divergence(puna.load(path, n_ctx=n_ctx), SavedLogits(saved))
            mean, same = found.kld.mean(), 100 * found.same_top.mean()
            yield f"| {mix} | {size / 2**20:.0f} | {found.perplexity.value:.2f} | {mean:.4f} | {same:.1f}% |"
            path.unlink()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="what quantisation costs a model")
    parser.add_argument("model", type=Path, metavar="MODEL", help="a GGUF file")
    parser.add_argument("-f", "--file", type=Path, required=True, metavar="TEXT", help="a file of text")
    parser.add_argument("-c", "--ctx-size", type=int, default=512, metavar="N")
    parser.add_argument("--chunks", type=int, default=4, metavar="N")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into this page")
    args = parser.parse_args(argv)
    lines = []
    for line in rows(args.model, args.file.read_text(encoding="utf-8"), args.ctx_size, args.chunks):
        sys.stderr.write(line + "\n")
        lines.append(line)
    text = f"{args.chunks} windows of {args.ctx_size} tokens of {args.file.name}"
    about = f"{args.model.stem}, {text}; Puna {puna.__version__}."
    publish("\n".join([*lines, "", about]), args.write, MARK)
    return 0


if __name__ == "__main__":
    sys.exit(main())
