"""How fast a model runs here, how fast it could run, and where the time goes; how well it predicts a text.

For the last see `perplexity`, `divergence`, `verify` and `imatrix`.
"""

from __future__ import annotations

from puna.measure.cost import Cost, record_cost, step_cost
from puna.measure.machine import busy_note, processor, threads_of
from puna.measure.peaks import Peaks, measure_peaks
from puna.measure.profile import Profile, profile_step, refuse_other_backends
from puna.measure.speed import Case, Result, measure

__all__ = [
    "Case",
    "Cost",
    "Peaks",
    "Profile",
    "Result",
    "busy_note",
    "measure",
    "measure_peaks",
    "processor",
    "profile_step",
    "record_cost",
    "refuse_other_backends",
    "step_cost",
    "threads_of",
]
