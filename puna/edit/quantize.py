"""A model in another type: what becomes of each tensor, then tensor by tensor through memory."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from puna.edit.choice import Choice, Options, Role, choose, may_change, role_of
from puna.edit.facts import Facts, facts_of
from puna.edit.files import Row, Silent, copied, data_rows, metadata_of, whole_rows
from puna.edit.importance import Weights
from puna.edit.mixes import Mix
from puna.errors import PunaError, RequestError
from puna.gguf import GGUFFile, TensorInfo, Value, ValueType, write
from puna.gguf.cursor import quoted
from puna.gguf.output import free_target
from puna.gguf.tensors import tensor_bytes
from puna.progress import Progress
from puna.quants import QuantType, dequantize, quantize

__all__ = ["Plan", "Step", "check_plan", "check_quantizer", "make_plan", "run_plan"]

T = TypeVar("T")
Raw = NDArray[np.uint8]
Floats = NDArray[np.float32]
QUANTIZATION_VERSION = 2  # GGML_QNT_VERSION
ENDS = (Role.EMBEDDING, Role.OUTPUT)
AHEAD = 2  # pieces in work for each thread
NOT_WEIGHTS = ("Q8_1", "Q8_K")  # what GGML has for activations alone; Puna takes weights in them


@dataclass(frozen=True)
class Step:
    """What becomes of a tensor. weights: of its columns, float32 [matrices, k], if there are any."""

    choice: Choice
    weights: Floats | None

    @property
    def tensor(self) -> TensorInfo:
        return self.choice.tensor

    @property
    def quant(self) -> QuantType:
        return self.choice.quant

    @property
    def is_changed(self) -> bool:
        return self.quant is not self.tensor.quant

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor that is written."""
        return tensor_bytes(self.quant, self.tensor.shape)


@dataclass(frozen=True)
class Plan:
    """steps: in the order of the new file.  notes: what is other than one may expect, a line each."""

    mix: Mix
    steps: tuple[Step, ...]
    notes: tuple[str, ...]
    weights: Weights | None

    @property
    def elements(self) -> int:
        return sum(math.prod(step.tensor.shape) for step in self.steps)

    @property
    def old_bytes(self) -> int:
        """Bytes of all tensors as they are."""
        return sum(step.tensor.nbytes for step in self.steps)

    @property
    def new_bytes(self) -> int:
        """Bytes of all tensors that are written."""
        return sum(step.nbytes for step in self.steps)


def make_plan(
    file: GGUFFile, mix: Mix, options: Options | None = None, weights: Weights | None = None
) -> Plan:
    """What `run_plan` will do, to the byte. Raises RequestError where the weights are another model's."""
    options = options or Options()
    facts, steps = facts_of(file.metadata, file.tensors, weights is not None), []
    for choice in choose(file.tensors.values(), mix, facts, options):
        columns = weights.of(choice.tensor) if weights and choice.quant is not choice.tensor.quant else None
        steps.append(Step(choice, columns))
    return Plan(mix, tuple(steps), tuple(notes(file, steps, options, facts, weights)), weights)


def check_plan(file: GGUFFile, plan: Plan, *, requantize: bool = False) -> None:
    """Raise RequestError now, not in the middle, for what cannot be done.

    requantize: tensors that are quantised already may be quantised again.
    """
    for step in plan.steps:
        if step.is_changed:
            check_source(file, step.tensor, requantize)
            check_importance(file, step, plan.mix)
    for quant in dict.fromkeys(step.quant for step in plan.steps if step.is_changed):
        check_quantizer(quant, plan.mix.name)


def check_quantizer(quant: QuantType, where: str) -> None:
    """Raise RequestError where Puna reads a type but cannot make it."""
    try:
        quantize(quant, np.zeros(quant.block, np.float32))
    except RequestError as error:
        raise RequestError(error.what, where=where, fix=error.fix) from None


def check_source(file: GGUFFile, tensor: TensorInfo, requantize: bool) -> None:
    """Quantising twice loses twice."""
    if not tensor.quant.is_float and not requantize:
        what = f"tensor {quoted(tensor.name)} is quantised already, in {tensor.quant.name}"
        fix = "start from an F32, F16 or BF16 file, or give --allow-requantize and lose quality"
        raise RequestError(what, where=str(file.path), fix=fix)


def check_importance(file: GGUFFile, step: Step, mix: Mix) -> None:
    """Two bits need to know which weights matter: Q2_K_S is Q2_K without the help of larger types."""
    needs = mix.name == "Q2_K_S" and step.quant.name == "Q2_K" and role_of(step.tensor.name) not in ENDS
    if needs and step.weights is None:
        what = f"{mix.name} needs the importance of tensor {quoted(step.tensor.name)}"
        raise RequestError(what, where=str(file.path), fix="give --imatrix FILE, or make Q2_K")


def notes(
    file: GGUFFile, steps: list[Step], options: Options, facts: Facts, weights: Weights | None
) -> Iterator[str]:
    """Fallbacks, options without an effect, types for Puna alone, and tensors whose importance is unknown."""
    fallbacks: dict[tuple[QuantType, QuantType, int], list[str]] = {}
    for choice in (step.choice for step in steps if step.choice.quant is not step.choice.wanted):
        case = (choice.quant, choice.wanted, choice.tensor.shape[-1])
        fallbacks.setdefault(case, []).append(choice.tensor.name)
    for (quant, wanted, length), names in fallbacks.items():
        rows = f"rows of {length} values are no multiple of {wanted.block}"
        yield f"{some(names)} {'gets' if len(names) == 1 else 'get'} {quant.name}, not {wanted.name}: {rows}"
    yield from idle_patterns(steps, options, facts)
    yield from idle_output(steps, options, facts)
    for name in NOT_WEIGHTS:
        if found := [step.tensor.name for step in steps if step.is_changed and step.quant.name == name]:
            yield f"{some(found)} {'gets' if len(found) == 1 else 'get'} {name}: llama.cpp crashes on such a file"
    quantized = (step for step in steps if step.is_changed and not step.quant.is_float)
    missing = [step.tensor.name for step in quantized if step.weights is None]
    if weights and missing:
        yield f"{weights.path} has no importance of {some(missing)}"


def idle_patterns(steps: list[Step], options: Options, facts: Facts) -> Iterator[str]:
    """Patterns that decide nothing, and why."""
    left = [step.tensor for step in steps]
    special = {Role.EMBEDDING: options.embedding, Role.OUTPUT: options.output}
    for pattern, _ in options.tensor_types:
        found = [step.tensor for step in steps if pattern.search(step.tensor.name)]
        able = [tensor for tensor in found if may_change(tensor, facts, options)]
        decided = [tensor for tensor in able if tensor in left and not special.get(role_of(tensor.name))]
        left = [tensor for tensor in left if tensor not in found]
        if not found:
            yield f"--tensor-type {pattern.pattern}: no tensor has such a name"
        elif not able:
            stay = some([tensor.name for tensor in found])
            yield f"--tensor-type {pattern.pattern}: {stay} cannot be quantised, and {stays(found)}"
        elif not decided:
            yield f"--tensor-type {pattern.pattern}: other options decide about all tensors with such a name"


def stays(found: list[TensorInfo]) -> str:
    return "stays as it is" if len(found) == 1 else "stay as they are"


def idle_output(steps: list[Step], options: Options, facts: Facts) -> Iterator[str]:
    """What is asked for output.weight where token_embd.weight is the output too."""
    if not facts.is_tied:
        return
    tied = "this model has no output.weight: token_embd.weight is the output too"
    if options.leave_output:
        yield f"--leave-output-tensor changes nothing: {tied}"
    embeddings = (step.choice for step in steps if role_of(step.tensor.name) is Role.EMBEDDING)
    if options.output and not any(choice.wanted is options.output for choice in embeddings):
        yield f"--output-tensor-type changes nothing: {tied}, and has its type by TYPE or another option"


def some(names: list[str]) -> str:
    """`a`, or `3 tensors, such as a,`."""
    return names[0] if len(names) == 1 else f"{len(names)} tensors, such as {names[0]},"


def run_plan(
    file: GGUFFile,
    target: str | Path,
    plan: Plan,
    *,
    requantize: bool = False,
    threads: int = 1,
    progress: Progress | None = None,
) -> None:
    """Write the model, all of it or nothing, with a few pieces of a tensor in memory beside the mapped file.

    Raises RequestError as `check_plan` does, where a value does not fit its new type, and where the file cannot
    be written.
    """
    check_plan(file, plan, requantize=requantize)
    free_target(target, (*file.paths, *([plan.weights.path] if plan.weights else [])))
    progress = progress or Silent()
    progress.start(f"quantising to {plan.mix.name}", plan.old_bytes)
    try:
        with ThreadPoolExecutor(threads) as pool:
            try:
                rows = [row(file, step, pool, threads, progress) for step in plan.steps]
                write(target, new_metadata(file, plan), rows, byteorder=file.byteorder)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    finally:
        progress.done()


def new_metadata(file: GGUFFile, plan: Plan) -> dict[str, Value]:
    """The model's, with what it is now at the end, as llama-quantize has it."""
    news = {
        "general.quantization_version": Value(ValueType.UINT32, QUANTIZATION_VERSION),
        "general.file_type": Value(ValueType.UINT32, plan.mix.file_type),
        **(plan.weights.keys() if plan.weights else {}),
    }
    return {**{key: value for key, value in metadata_of(file).items() if key not in news}, **news}


def row(file: GGUFFile, step: Step, pool: ThreadPoolExecutor, threads: int, progress: Progress) -> Row:
    """A tensor to write, in its new type."""
    if not step.is_changed:
        return copied(file, step.tensor, progress)
    pieces = partial(converted, file, step, pool, threads, progress)
    return step.tensor.name, step.quant, step.tensor.shape, pieces


def converted(
    file: GGUFFile, step: Step, pool: ThreadPoolExecutor, threads: int, progress: Progress
) -> Iterator[Raw]:
    """The tensor's blocks, some rows of a matrix at a time, in order."""
    rows, tensor = data_rows(file, step.tensor), step.tensor  # [matrices * rows, bytes of a row]
    matrices = 1 if step.weights is None else len(step.weights)
    count = len(rows) // matrices
    jobs = [
        partial(blocks, file, step, rows[matrix * count : (matrix + 1) * count][part], matrix)
        for matrix in range(matrices)
        for part in whole_rows(tensor, count)
    ]
    with closing(in_turn(pool, jobs, AHEAD * threads)) as results:
        for raw, read in results:
            yield raw
            progress.advance(read)
    file.drop(tensor.name)


def blocks(file: GGUFFile, step: Step, raw: Raw, matrix: int) -> tuple[Raw, int]:
    """Rows in their new type, and the bytes they had. Raises RequestError with the tensor's name."""
    weights = None if step.weights is None else step.weights[matrix]
    try:
        values = dequantize(step.tensor.quant, raw)
        return quantize(step.quant, values, weights), raw.size
    except PunaError as error:
        where = f"{file.path}: tensor {quoted(step.tensor.name)}"
        raise RequestError(error.what, where=where, fix=error.fix) from None


def in_turn(
    pool: ThreadPoolExecutor, jobs: Iterable[Callable[[], T]], ahead: int
) -> Generator[T, None, None]:
    """Results of the jobs in order, at most `ahead` of them begun and not taken."""
    begun: deque[Future[T]] = deque()
    for job in jobs:
        begun.append(pool.submit(job))
        if len(begun) >= ahead:
            yield begun.popleft().result()
    while begun:
        yield begun.popleft().result()
