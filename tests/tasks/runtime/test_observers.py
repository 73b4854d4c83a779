"""Observers by frequency and priority, and early stopping that survives interruptions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from rekindle import PPO, Cohort, Store
from rekindle.tasks.runtime.observers import EpochEvent, NoImprovement, Observers

SMALL: dict[str, Any] = {"num_steps": 16, "num_envs": 4, "epoch_steps": 64, "model": {"width": 16}}


def make(seed: int = 1, **more: Any) -> PPO:
    return PPO("CartPole-v1", seed=seed, **more).init(**SMALL)


def rows(*values: float | None) -> list[tuple[int, dict[str, float]]]:
    return [(epoch, {} if value is None else {"score": value}) for epoch, value in enumerate(values, 1)]


@pytest.mark.parametrize(
    ("values", "enough"),
    [
        ([], False),
        ([None, None, None, None, None], False),
        ([1, 2, 3, 4, 5], False),
        ([5, 4, 3], False),
        ([5, 4, 3, 2], True),
        ([5, 5, 5, 5], True),
        ([1, 5, 4, 6, 5, 5], False),
        ([1, 5, 4, 6, 5, 5, 5], True),
        ([5, None, None, None], True),
        ([None, 5, None, None], False),
        ([math.nan, 1, 2, math.nan], False),
        ([-1e9, -1e9, -1e9, -1e9], True),
    ],
)
def test_enough_is_when_nothing_was_better_for_so_many_epochs(values: list[float | None], enough: bool) -> None:
    assert NoImprovement("score", epochs=3)(rows(*values)) is enough


def test_minimized_metrics_and_small_improvements() -> None:
    falling = rows(9, 8, 7, 6)
    assert NoImprovement("score", epochs=3)(falling)
    assert not NoImprovement("score", epochs=3, minimize=True)(falling)
    creeping = rows(1.0, 1.1, 1.2, 1.3)
    assert not NoImprovement("score", epochs=3)(creeping)
    assert NoImprovement("score", epochs=3, min_delta=0.5)(creeping)
    assert not NoImprovement("score", epochs=3, min_delta=0.25)(creeping)  # 1.3 is more than 1.0 and a quarter


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs must be an integer of at least 1, but got 0"),
        ({"epochs": True}, "but got True"),
        ({"epochs": 3, "min_delta": -1.0}, "min_delta must be a number of at least 0"),
        ({"epochs": 3, "min_delta": math.nan}, "min_delta must be a number of at least 0, but got nan"),
    ],
)
def test_invalid_values_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NoImprovement("score", **options)


def test_a_training_ends_early_and_asking_again_changes_nothing() -> None:
    until = NoImprovement("entropy", epochs=3)  # which falls as the policy learns
    task = make()
    task.fit(50, until=until)
    ended = task.epochs
    assert 4 <= ended < 50
    assert until(task.history)
    assert not until(task.history[:-1])
    digest = task.digest
    task.fit(50, until=until)
    assert (task.epochs, task.digest) == (ended, digest)
    plain = make()
    plain.fit(ended)
    assert plain.digest == digest
    task.fit(ended + 1)  # who asks for more without it gets more
    assert task.epochs == ended + 1


def test_it_ends_at_the_same_epoch_wherever_it_was_stopped(tmp_path: Path) -> None:
    until = NoImprovement("entropy", epochs=3)
    whole = make()
    whole.fit(50, until=until)
    with Store(f"sqlite:///{tmp_path}/store.db") as store:
        for epochs in (1, 2, whole.epochs - 1):
            task = make(storage=store)
            task.fit(epochs, until=until)
            assert task.epochs == epochs
            task.finish()
        task = make(storage=store)
        task.fit(50, until=until)
        assert (task.epochs, task.digest, task.history) == (whole.epochs, whole.digest, whole.history)
        task.finish()
        again = make(storage=store)
        assert (again.epochs, again.digest) == (whole.epochs, whole.digest)  # what it came to is stored
        again.finish()


@pytest.mark.slow
def test_members_of_a_cohort_end_each_by_itself() -> None:
    def until(history: Any) -> bool:
        return len(history) > 0 and history[-1][0] >= 2 + int(history[0][1]["entropy"] * 1e6) % 5

    alone = [make(seed) for seed in range(6)]
    for task in alone:
        task.fit(5, until=until)
    together = [make(seed) for seed in range(6)]
    Cohort(together).fit(5, until=until)
    assert len({task.epochs for task in alone}) > 1
    assert [task.epochs for task in together] == [task.epochs for task in alone]
    assert [task.digest for task in together] == [task.digest for task in alone]
    assert [task.history for task in together] == [task.history for task in alone]


def test_listeners_are_called_as_often_and_in_the_order_that_they_ask_for() -> None:
    heard: list[tuple[str, int]] = []

    def listener(name: str) -> Any:
        return lambda event: heard.append((name, event.epoch))

    observers = Observers().on(listener("last"), priority=-1).on(listener("first"), priority=5, every=2)
    observers.on(listener("second")).on(listener("third"))
    make().fit(2, context=observers)
    assert heard == [("second", 1), ("third", 1), ("last", 1), ("first", 2), ("second", 2), ("third", 2), ("last", 2)]


@pytest.mark.parametrize("every", [0, -1, 1.5, True])
def test_a_frequency_is_a_number_of_epochs(every: Any) -> None:
    with pytest.raises(ValueError, match="every must be a number of epochs of at least 1"):
        Observers().on(print, every=every)


def test_a_listener_may_still_ask_to_stop() -> None:
    def stop(event: EpochEvent) -> None:
        if event.epoch == 2:
            raise KeyboardInterrupt

    task = make()
    with pytest.raises(KeyboardInterrupt):
        task.fit(5, context=Observers().on(stop))
    assert task.bad is None
    assert task.epochs == 2
