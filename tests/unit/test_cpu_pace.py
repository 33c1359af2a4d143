"""Together or alone, by how long steps take."""

from __future__ import annotations

import pytest

from puna.backends.cpu.pace import KINDS, MOST, NEAR, STEPS, Pace

DECODE, PROMPT = (1, "decode"), (500, "prefill")


def steady(pace: Pace) -> None:
    for _ in range(5):
        assert not pace.is_alone(DECODE)
        pace.note(DECODE, False, 1.0)


def spent(pace: Pace, steps: int, together: float, alone: float, share: float = 1.0) -> float:
    """Seconds that steps take which take so long, by who runs them, while the caller has a share of its core."""
    total = 0.0
    for _ in range(steps):
        is_alone = pace.is_alone(DECODE)
        seconds = alone if is_alone else together
        pace.note(DECODE, is_alone, seconds, share * seconds)
        total += seconds
    return total


def test_steady_steps_stay_together() -> None:
    """Nothing changes as long as steps take about as long as before."""
    pace = Pace()
    steady(pace)
    pace.note(DECODE, False, 2.0)
    assert not pace.is_alone(DECODE)


def test_a_late_step_makes_a_trial() -> None:
    """After a step that is far too late one is run alone; if that is quicker, more are, then all try again."""
    pace = Pace()
    steady(pace)
    pace.note(DECODE, False, 10.0)
    assert pace.is_alone(DECODE)
    pace.note(DECODE, True, 2.0)
    for _ in range(STEPS):
        assert pace.is_alone(DECODE)
        pace.note(DECODE, True, 2.0)
    assert not pace.is_alone(DECODE)


def test_steps_that_became_longer_for_good() -> None:
    """Where going on alone takes as long, the late step is the new measure."""
    pace = Pace()
    steady(pace)
    pace.note(DECODE, False, 10.0)
    pace.note(DECODE, True, 18.0)
    assert not pace.is_alone(DECODE)
    pace.note(DECODE, False, 11.0)
    assert not pace.is_alone(DECODE)


def test_kinds_are_measured_by_themselves() -> None:
    """A prompt's step is no measure for a decode step."""
    pace = Pace()
    steady(pace)
    pace.note(PROMPT, False, 100.0)
    assert not pace.is_alone(PROMPT)
    assert not pace.is_alone(DECODE)


def test_a_machine_that_is_busy_from_the_start() -> None:
    """Steps that were never fast go alone as soon as the caller is seen kept from its core, and back when it is not."""
    pace = Pace()
    assert spent(pace, 1000, together=1.15, alone=0.1, share=0.15) < 1000 * 0.1 * 1.1
    assert spent(pace, MOST + STEPS, together=0.01, alone=0.1) < (MOST + 1) * 0.1 + STEPS * 0.01
    assert not pace.is_alone(DECODE)


def test_trials_in_vain_become_rare() -> None:
    """On a busy machine where going alone takes much longer, trials cost little of the time."""
    assert spent(Pace(), 2000, together=1.0, alone=30.0, share=0.3) < 2000 * 1.1


def test_a_caller_that_has_its_core_stays() -> None:
    """No trial is made while the caller has its core, however coarse the clock that says so."""
    pace = Pace()
    for n in range(200):
        assert not pace.is_alone(DECODE)
        pace.note(DECODE, False, 0.002, 0.016 if n % 8 == 7 else 0.0)


def test_new_kinds_go_as_those_near_them() -> None:
    """While a kind goes alone, so do new ones that have not many times as many rows, and no longer than that."""
    pace = Pace()
    spent(pace, 4, together=1.0, alone=0.1, share=0.1)
    assert pace.is_alone((NEAR, "prefill"))
    assert not pace.is_alone(PROMPT)
    for rows in range(2, 2 + MOST):
        pace.note((rows % NEAR, "prefill"), pace.is_alone((rows % NEAR, "prefill")), 0.1)
    assert not pace.is_alone(DECODE)


@pytest.mark.parametrize("alone", [False, True])
def test_a_kind_may_be_forgotten_at_any_time(alone: bool) -> None:
    """More kinds than are kept may come between a late step and the next of its kind."""
    pace = Pace()
    steady(pace)
    pace.note(DECODE, False, 10.0)
    for rows in range(2, 2 * KINDS):
        pace.note((rows, "decode"), False, 0.01)
    pace.note(DECODE, alone, 1.0)
    assert not pace.is_alone(DECODE)
    assert len(pace.kinds) <= KINDS
