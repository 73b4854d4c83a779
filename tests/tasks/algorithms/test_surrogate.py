"""The surrogate: a known function of hyperparameters and epochs, with state that must not be lost."""

from __future__ import annotations

import math

import pytest
from rekindle import Cohort
from rekindle.tasks.algorithms.surrogate import Surrogate
from rekindle.tasks.checkpoint.state import difference
from rekindle.tasks.task import Task

BEST = {"lr": 1e-3, "gamma": 0.99, "width": 64}


def made(seed: int = 0, **values: object) -> Task:
    return Surrogate("CartPole-v1", seed=seed).init(**values)


def test_its_return_is_the_function_that_it_says() -> None:
    task = made(**BEST)
    assert task.evaluate() == 0.0
    task.fit(9)
    assert task.evaluate() == pytest.approx(100 * (1 - math.exp(-1)))
    assert task.metrics["episode_return"] == task.evaluate()
    other = made(**{**BEST, "lr": 1e-2, "width": 16})
    other.fit(9)
    assert other.evaluate() == pytest.approx(math.exp(-1 - 0.25) * task.evaluate())


def test_nothing_is_better_than_the_best() -> None:
    returns = {}
    for name, others in {"lr": (1e-4, 3e-3), "gamma": (0.97, 0.999), "width": (32, 128)}.items():
        for value in others:
            task = made(**{**BEST, name: value})
            task.fit(3)
            returns[name, value] = task.evaluate()
    best = made(**BEST)
    best.fit(3)
    assert max(returns.values()) < best.evaluate()
    assert min(returns.values()) > 0


def test_resuming_equals_not_stopping() -> None:
    whole, first, second = (made(3, noise=5.0) for _ in range(3))
    whole.fit(7)
    first.fit(4)
    second.load_state_dict(first.state_dict())
    second.fit(7)
    assert difference(second.state_dict(), whole.state_dict()) == []
    assert second.evaluate() == whole.evaluate()


def test_a_forgotten_state_of_the_walk_is_detected() -> None:
    whole, forgetful = made(3, noise=5.0), made(3, noise=5.0)
    whole.fit(7)
    forgetful.fit(4)
    assert forgetful.ref is not None
    forgetful.ref.learner.walks[0] = 0.0  # type: ignore[attr-defined]
    forgetful.fit(7)
    assert forgetful.evaluate() != whole.evaluate()
    assert forgetful.digest != whole.digest


def test_a_member_of_a_cohort_is_the_task_alone() -> None:
    together = [made(seed, noise=2.0, lr=10.0 ** -(2 + seed)) for seed in range(3)]
    Cohort(together).fit(5)
    for seed, task in enumerate(together):
        alone = made(seed, noise=2.0, lr=10.0 ** -(2 + seed))
        alone.fit(5)
        assert task.digest == alone.digest
    assert len({task.evaluate() for task in together}) == 3


def test_seeds_differ_by_the_noise_alone() -> None:
    quiet, noisy = ([made(seed, **BEST, noise=noise) for seed in range(2)] for noise in (0.0, 1.0))
    for task in [*quiet, *noisy]:
        task.fit(2)
    assert quiet[0].evaluate() == quiet[1].evaluate()
    assert noisy[0].evaluate() != noisy[1].evaluate()
