"""Together or alone, by how long steps take."""

from __future__ import annotations

from puna.backends.cpu.pace import STEPS, Pace


def steady(pace: Pace) -> None:
    for _ in range(5):
        assert not pace.is_alone("decode")
        pace.note("decode", False, 1.0)


def test_steady_steps_stay_together() -> None:
    """Nothing changes as long as steps take about as long as before."""
    pace = Pace()
    steady(pace)
    pace.note("decode", False, 2.0)
    assert not pace.is_alone("decode")


def test_a_late_step_makes_a_trial() -> None:
    """After a step that is far too late one is run alone; if that is quicker, more are, then all try again."""
    pace = Pace()
    steady(pace)
    pace.note("decode", False, 10.0)
    assert pace.is_alone("decode")
    pace.note("decode", True, 2.0)
    for _ in range(STEPS):
        assert pace.is_alone("decode")
        pace.note("decode", True, 2.0)
    assert not pace.is_alone("decode")


def test_steps_that_became_longer_for_good() -> None:
    """Where going on alone takes as long, the late step is the new measure."""
    pace = Pace()
    steady(pace)
    pace.note("decode", False, 10.0)
    pace.note("decode", True, 18.0)
    assert not pace.is_alone("decode")
    pace.note("decode", False, 11.0)
    assert not pace.is_alone("decode")


def test_kinds_are_measured_by_themselves() -> None:
    """A prompt's step is no measure for a decode step."""
    pace = Pace()
    steady(pace)
    pace.note("prefill", False, 100.0)
    assert not pace.is_alone("prefill")
    assert not pace.is_alone("decode")
