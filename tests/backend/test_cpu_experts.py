"""Products with experts' matrices: the bits that each token gets from its experts' matrices one by one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from test_cpu_rig import Guarded, activations, as_they_are, compiler, linear, pack_matrix, random_rows, run

from puna.backends.cpu.compiler import Spec
from puna.backends.cpu.kernels.experts import by_expert, by_slot, by_slot_direct, list_bytes
from puna.backends.cpu.kernels.linear import many_scratch
from puna.backends.cpu.panels import Panel
from puna.quants import by_name

K, EXPERTS = 256, 5
KINDS = ["Q4_K", "Q6_K", "Q8_0", "Q4_1"]


class Mixture:
    """Experts of `rows` rows, tokens, and which experts each token chose."""

    def __init__(self, kind: str, rows: int, tokens: int, used: int, shared: bool) -> None:
        rng = np.random.default_rng(rows + tokens)
        self.kind, self.rows, self.used, self.shared = kind, rows, used, shared
        self.raw = [random_rows(kind, rows, K, rng) for _ in range(EXPERTS)]
        count = tokens if shared else tokens * used
        self.x = activations(rng.standard_normal((count, K)))[0]
        # Expert 0 is everybody's, the last nobody's.
        others = [rng.permutation(np.arange(1, EXPERTS - 1))[: used - 1] for _ in range(tokens)]
        self.ids = np.array([[0, *other] for other in others], np.int32)

    def expected(self) -> np.ndarray:
        """Each choice by itself, f32 [slots, rows]."""
        packed = [pack_matrix(self.kind, raw, K) for raw in self.raw]
        slots = enumerate(self.ids.reshape(-1))
        rows = self.x if not self.shared else self.x[np.arange(self.ids.size) // self.used]
        return np.concatenate(
            [linear(self.kind, packed[e], self.rows, rows[s : s + 1], by="few") for s, e in slots]
        )

    def solve(self, by: str, cuts: tuple[int, ...] = ()) -> np.ndarray:
        """All choices by one of the kernels, the work cut at some units."""
        panel, quant, slots = Panel(self.kind), by_name(self.kind), self.ids.size
        panels = -(-self.rows // 16)
        if by == "by_slot_direct":
            weights, size = as_they_are(np.stack(self.raw)), quant.row_bytes(K)
            expert = self.rows * size
        else:
            weights, size = Guarded(EXPERTS * panel.matrix_bytes(self.rows, K)), panel.nbytes(K)
            weights.array[:] = np.concatenate([pack_matrix(self.kind, raw, K).array for raw in self.raw])
            expert = panel.matrix_bytes(self.rows, K)
        out, stride = Guarded(slots * (self.rows + 3) * 4), (self.rows + 3) * 4
        args = [weights.address, self.x.ctypes.data, out.address, self.ids.ctypes.data, self.rows, K]
        args += [size, expert, self.x.shape[1], stride, slots, list_bytes(slots)]
        how = {"form": self.kind, "sharing": self.used if self.shared else 1}
        width, tile = compiler().target.tile
        units, scratch = slots * panels, 0
        if by == "by_expert":
            spec = Spec.of(by_expert, **how, width=width, tile=tile)
            units, scratch = EXPERTS * -(-panels // width), list_bytes(slots) + many_scratch(panel, K, width)
        else:
            spec = Spec.of({"by_slot": by_slot, "by_slot_direct": by_slot_direct}[by], **how)
        ends = [0, *cuts, units]
        for begin, end in pairwise(ends):
            run(spec, args, begin, end, scratch)
        result = out.view(np.float32, slots, self.rows + 3)
        assert out.is_intact
        assert (result[:, self.rows :].view(np.uint32) == 0xA5A5A5A5).all(), "writes between results"
        return result[:, : self.rows].copy()


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("tokens", "used"), [(1, 1), (1, 3), (3, 2), (9, 1), (40, 3)])
@pytest.mark.parametrize("by", ["by_slot", "by_slot_direct", "by_expert"])
def test_each_choice_by_itself(by: str, tokens: int, used: int, shared: bool) -> None:
    """However the work is shared out, a choice has the bits of the plain product."""
    mixture = Mixture("Q4_K", 39, tokens, used, shared)
    want = mixture.expected()
    np.testing.assert_array_equal(mixture.solve(by).view(np.uint32), want.view(np.uint32))
    np.testing.assert_array_equal(mixture.solve(by, (1, 3)).view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("kind", KINDS)
def test_types(kind: str) -> None:
    """Types with and without offsets, small steps and zero points; rows that fill panels and units, and that do not."""
    for rows in (16, 48, 50):
        mixture = Mixture(kind, rows, 13, 2, True)
        want = mixture.expected().view(np.uint32)
        for by in ("by_slot", "by_slot_direct", "by_expert"):
            np.testing.assert_array_equal(mixture.solve(by).view(np.uint32), want)
