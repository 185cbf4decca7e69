"""What many measurements say: medians, whatever disturbs them, and ties broken by order."""

import numpy as np
import pytest

from tilewright.autotune.measure import TIE, Timing, fastest, is_decided, settled


def test_outliers_and_slow_rounds_change_no_median(rng):
    times = np.array([[1.0], [1.1], [2.0]]) * (1 + 0.001 * rng.standard_normal((3, 31)))
    disturbed = times.copy()
    disturbed[:, 3:8] *= 1.7  # all slow at a time
    disturbed[1, 20] *= 40  # one alone
    disturbed[2, 21:23] *= 0.1
    for before, after in zip(settled(times), settled(disturbed), strict=True):
        assert after.seconds == pytest.approx(before.seconds, rel=2e-3)
        assert 0 < after.error < 2e-3 * after.seconds


def test_equal_measurements_have_no_error():
    (timing,) = settled(np.full((1, 5), 3.0))
    assert timing == Timing(3.0, 0.0)


def test_the_first_within_the_band_wins():
    def order(*seconds):
        return fastest([Timing(s, 0.0) for s in seconds])

    assert order(1.0, 0.98, 0.99) == 0
    assert order(1.0, 0.96, 0.95) == 1
    assert order(1.0, 0.90, 0.95) == 1
    assert order(1.0, 1.0 / (TIE + 0.001), 1.0) == 1
    assert order(5.0) == 0


def test_more_rounds_are_wanted_only_near_the_edge_of_the_band():
    near, far = Timing(1.03, 0.002), Timing(1.2, 0.002)
    assert not is_decided([near, Timing(1.0, 0.002)])
    assert is_decided([far, Timing(1.0, 0.002)])
    # what comes after the winner may be as near as it likes
    assert is_decided([Timing(1.0, 0.002), near])
    assert not is_decided([Timing(1.2, 0.1), Timing(1.0, 0.1)])


def test_what_is_not_certain_is_no_reason_to_choose():
    sure, unsure = Timing(0.9, 0.001), Timing(0.9, 0.05)
    assert fastest([Timing(1.0, 0.001), sure]) == 1
    assert fastest([Timing(1.0, 0.001), unsure]) == 0
    assert fastest([Timing(1.0, 0.06), sure]) == 0
