"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864), with every scaling in one place.

Pair i of a head is rotated by position * frequency[i]; the result is stretched by `magnitude`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Rope", "Yarn", "temperature"]

Layout = Literal["interleaved", "halves"]


@dataclass(frozen=True)
class Yarn:
    """YaRN (Peng et al. 2023, arXiv:2309.00071): slow pairs are interpolated, fast ones kept.

    context: positions the model was first trained on.
    beta_fast, beta_slow: rotations over that context above which a pair is kept, below which interpolated.
    log_multiplier: weight of the attention temperature that the model already carries elsewhere.
    keeps: how much of its own frequency a pair that is not interpolated keeps.
    """

    context: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    log_multiplier: float = 0.0
    keeps: float = 1.0

    def kept(self, dims: int, base: float) -> NDArray[np.float64]:
        """How much of each pair's own frequency is kept, 0 to 1; shape [dims / 2]."""
        import numpy as np

        def pair(rotations: float) -> float:
            return dims * math.log(self.context / (rotations * 2 * math.pi)) / (2 * math.log(base))

        low = max(0.0, math.floor(pair(self.beta_fast)))
        high = min(dims - 1.0, math.ceil(pair(self.beta_slow)))
        ramp = (np.arange(dims // 2) - low) / max(0.001, high - low)
        kept: NDArray[np.float64] = self.keeps * (1.0 - np.clip(ramp, 0.0, 1.0))
        return kept

    def magnitude(self, factor: float) -> float:
        return temperature(factor) / temperature(factor, self.log_multiplier)


def temperature(factor: float, weight: float = 1.0) -> float:
    """What YaRN multiplies queries and keys by, for a context extended by `factor`."""
    return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0


@dataclass(frozen=True)
class Rope:
    """How the first `dims` values of a head are rotated.

    layout: which values make a pair: neighbours ("interleaved"), or i and i + dims / 2 ("halves").
    factor: context extension; positions are divided by it, for all pairs or as `yarn` says.
    stretch: multiplies the rotated values.
    shift: added to positions.  back: it turns the other way, which undoes one that does not stretch.
    """

    dims: int
    base: float
    layout: Layout
    factor: float = 1.0
    stretch: float = 1.0
    yarn: Yarn | None = None
    shift: int = 0
    back: bool = False

    def frequencies(self, factors: NDArray[np.float32] | None = None) -> NDArray[np.float64]:
        """Radians a position for each pair, shape [dims / 2]; `factors` (same shape) divide them."""
        import numpy as np

        own: NDArray[np.float64] = self.base ** (-2.0 * np.arange(self.dims // 2) / self.dims)
        own = -own if self.back else own
        if factors is not None:
            own = own / factors
        if self.yarn is None:
            return own / self.factor
        kept = self.yarn.kept(self.dims, self.base)
        return own / self.factor * (1.0 - kept) + own * kept

    @property
    def magnitude(self) -> float:
        """Length of a rotated pair over its length before."""
        return self.stretch * (self.yarn.magnitude(self.factor) if self.yarn else 1.0)
