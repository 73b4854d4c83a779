"""Changes of hyperparameters while a member trains."""

from __future__ import annotations

from typing import Any

import pytest
from rekindle.spaces import categorical, integer, log_real, near_one, normal, ordinal, real
from rekindle.studies.schedulers.explore import explore, perturbed
from simulating import params, population


@pytest.mark.parametrize(
    ("dimension", "value", "up", "down"),
    [
        (log_real(1e-5, 1e-1), 1e-3, 1.2e-3, 0.8e-3),
        (log_real(1e-5, 1e-1), 0.09, 0.1, 0.072),
        (near_one(0.9, 0.9999), 0.99, 0.988, 0.992),
        (real(0.0, 1.0), 0.5, 0.6, 0.4),
        (real(0.0, 1.0), 0.0, 0.1, 0.0),
        (real(0.0, 1.0, step=0.25), 0.5, 0.75, 0.25),
        (integer(0, 100), 50, 60, 40),
        (integer(1, 4), 2, 3, 1),
        (integer(1, 1000, log=True), 100, 120, 80),
        (integer(1, 1000, log=True), 1, 2, 1),
        (ordinal(32, 64, 128), 64, 128, 32),
        (ordinal(32, 64, 128), 128, 64, 64),
        (normal(3.0, 2.0), 1.0, 1.2, 0.8),
        (categorical("a", "b"), "a", "a", "a"),
    ],
)
def test_a_value_moves_on_its_own_scale_and_stays_in_range(dimension: Any, value: Any, up: Any, down: Any) -> None:
    assert perturbed(dimension, value, up=True) == pytest.approx(up)
    assert perturbed(dimension, value, up=False) == pytest.approx(down)


def test_explore_is_a_function_of_generation_and_member_and_changes_what_is_named() -> None:
    config = population(perturb=["optimizer.lr", "gamma"])
    before = params(config)
    after = explore(config, before, 1, 0)
    assert after == explore(config, before, 1, 0)
    assert {name for name in after if after[name] != before[name]} == {"optimizer.lr", "gamma"}
    assert after["optimizer.lr"] in (pytest.approx(1.2e-3), pytest.approx(0.8e-3))
    others = {explore(config, before, g, m)["optimizer.lr"] for g in range(4) for m in range(4)}
    assert len(others) == 2
    fresh = population(perturb=["optimizer.lr"], explore="resample")
    assert len({explore(fresh, before, g, m)["optimizer.lr"] for g in range(4) for m in range(4)}) == 16


def test_values_that_do_not_go_together_are_drawn_again_or_left_alone() -> None:
    config = population(perturb=["optimizer.lr"])
    before = params(config)

    def only_up(values: Any) -> None:
        if values["optimizer.lr"] < before["optimizer.lr"]:
            raise ValueError("down")

    assert {explore(config, before, g, 0, only_up)["optimizer.lr"] for g in range(8)} == {1.2e-3}

    def never(values: Any) -> None:
        raise ValueError("no")

    assert explore(config, before, 0, 0, never) == before
