"""The speed of a study, and the time that is left."""

from __future__ import annotations

from typing import Any

import pytest
from rekindle.studies.engine.snapshots import Snapshot, Speed


def snapshot(when: float, epochs: int, running: int = 2) -> Snapshot:
    none: Any = None
    return Snapshot(none, False, {"running": running}, [], [], epochs, 100, 10 * epochs, 0, None, when=when)


def test_the_speed_of_slow_epochs_is_that_of_the_last_four() -> None:
    speed = Speed()
    for second in range(600):
        speed.add(last := snapshot(float(second), second // 60))
    assert speed.epochs() == pytest.approx(4 / (599 - 359))  # since the moment before the fourth last
    assert speed.steps() == pytest.approx(10 * speed.epochs())
    assert speed.left(last) == pytest.approx(91 / speed.epochs())
    assert speed.left(snapshot(600.0, 9, running=0)) is None
    assert len(speed.points) < 12  # of 600


def test_the_speed_of_fast_epochs_is_that_of_the_last_seconds() -> None:
    speed = Speed()
    for tenth in range(200):
        speed.add(snapshot(tenth / 10, tenth if tenth < 100 else 100 + 5 * (tenth - 100)))
    assert speed.epochs() == pytest.approx(50)
    assert speed.points[0][0] == pytest.approx(19.9 - 8, abs=0.11)
