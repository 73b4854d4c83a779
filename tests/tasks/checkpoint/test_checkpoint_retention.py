"""Kept checkpoints: latest, best, all or none; no state depends on the choice."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
from rekindle.spaces import unflatten
from rekindle.studies.storage.store import Store
from rekindle.tasks import DQN, PPO, SAC, Cohort, StateMismatch, TaskError
from rekindle.tasks.algorithms.ppo import PPOLearner
from rekindle.tasks.checkpoint.retention import Keep, keep_of
from rekindle.tasks.checkpoint.state import difference, unpack
from rekindle.tasks.errors import Stopped

SMALL: dict[str, Any] = unflatten({**tiny.ROLLOUTS, "epoch_steps": 48, "optimizer.lr": 0.01})

OFF: dict[str, Any] = {"learning_starts": 64, "buffer_size": 500, "batch_size": 16, "epoch_steps": 150}
OFF |= {"model": {"width": 16}, "num_steps": 10, "num_updates": 1, "num_envs": 1}
MEMORY = {"model": {"width": 16, "memory": "gru", "sequence_length": 4, "burn_in": 2}}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path / 'studies.db'}") as store:
        yield store


def make(storage: Store | None = None, mode: Any = None, seed: int = 1) -> PPO:
    return PPO("CartPole-v1", seed=seed, storage=storage, snapshots=mode).init(**SMALL)


def kept(store: Store, task: PPO) -> list[int]:
    return [row.epochs for row in store.checkpoints(task.uid)]


@pytest.mark.parametrize(
    ("mode", "keep"),
    [
        ("latest", Keep()),
        ("best", Keep(best=1, every=1)),
        ("best:5", Keep(best=1, every=5)),
        ("every:5", Keep(spaced=5)),
        ("all", Keep(latest=None, dense=True)),
        ("initial", Keep(initial=True)),
        ("latest,no-replay", Keep(replay=False)),
        ("every:5:3", Keep(spaced=5, spaced_latest=3)),
        ("best:2, every:5,initial,4", Keep(latest=4, best=1, every=2, spaced=5, initial=True, dense=True)),
        ("no", None),
        (3, Keep(latest=3, dense=True)),
        ("3", Keep(latest=3, dense=True)),
        (Keep(latest=1, best=4), Keep(latest=1, best=4)),
    ],
)
def test_a_mode_says_what_is_kept(mode: Any, keep: Keep | None) -> None:
    assert keep_of(mode) == keep


@pytest.mark.parametrize(
    "mode",
    [
        "bset",
        "",
        0,
        -1,
        True,
        "best:0",
        "every:0",
        "every",
        "latest:2",
        "1.5",
        ":",
        "3,4",
        "best,best:5",
        "no,3",
        "every:5:0",
        "every:5:3:1",
        "all,3",
    ],
)
def test_a_mode_that_means_nothing_is_refused_before_any_training(mode: Any) -> None:
    with pytest.raises(ValueError, match=r"snapshots must be latest, best, .*a number of epochs to keep"):
        PPO("CartPole-v1", snapshots=mode)


@pytest.mark.parametrize("wrong", [{"latest": 0}, {"spaced_latest": 0}, {"best": -1}, {"every": -1}, {"spaced": -1}])
def test_a_number_of_checkpoints_that_means_nothing_is_refused(wrong: dict[str, int]) -> None:
    ((name, number),) = wrong.items()
    with pytest.raises(ValueError, match=f"Keep: {name} must be at least [01].* but got {number}"):
        Keep(**wrong)


def test_a_misspelled_mode_gets_a_hint() -> None:
    with pytest.raises(ValueError, match="got 'bset'; did you mean best"):
        keep_of("bset")


def test_the_best_is_told_from_measured_epochs_only_and_the_earlier_of_equals() -> None:
    keep = Keep(best=1, every=2)
    rows = [(1, {}), (2, {"return": 5.0}), (3, {}), (4, {"return": 5.0}), (5, {"return": float("nan")})]
    assert [keep.is_among_best(rows[:n]) for n in range(6)] == [False, False, True, False, False, False]
    assert keep.ranked(dict(rows)) == [2, 4]


@pytest.mark.parametrize(
    ("mode", "epochs"),
    [("latest", [5, 6]), (1, [6]), (4, [3, 4, 5, 6]), ("all", [1, 2, 3, 4, 5, 6]), ("every:2:2,1,initial", [0, 4, 6])],
)
def test_the_given_number_of_latest_checkpoints_is_kept(
    store: Store, mode: Any, epochs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    share = 1e9 if mode == "latest" else 1e-9  # at every epoch's end, whether there is time for it or not
    monkeypatch.setattr("rekindle.tasks.cohort.SAVING_SHARE", share)
    task = make(store, mode)
    task.fit(6)
    assert kept(store, task) == epochs


@pytest.mark.parametrize("mode", ["best", "every:2", "initial,1", "all"])
def test_no_signal_within_an_epoch_changes_what_is_kept(
    store: Store, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands for an epoch is the state at its end, whatever was written amid the next one."""
    iterate, iterations = PPOLearner.iterate, 0

    def preempted(learner: PPOLearner) -> Any:
        nonlocal iterations
        iterations += 1
        if iterations % 3 == 1:  # amid every other epoch of two iterations, also the first one
            signal.raise_signal(signal.SIGTERM)
        return iterate(learner)

    def trained(storage: Store) -> PPO:
        return PPO("CartPole-v1", seed=1, storage=storage, snapshots=mode).init(**{**SMALL, "epoch_steps": 96})

    monkeypatch.setattr("rekindle.tasks.cohort.SAVING_SHARE", 1e9)  # at every epoch's end
    with Store(f"sqlite:///{tmp_path / 'whole.db'}") as whole:
        (calm := trained(whole)).fit(4)
        expected = [(row.epochs, row.digest) for row in whole.checkpoints(calm.uid)]
        best = calm.best().digest if mode == "best" else None
    monkeypatch.setattr(PPOLearner, "iterate", preempted)
    stops = 0
    while (task := trained(store)).epochs < 4:
        try:
            task.fit(4)
        except Stopped:
            stops += 1
            assert store.checkpoints(task.uid)[-1].within_epoch
    assert stops == 3
    assert [(row.epochs, row.digest) for row in store.checkpoints(task.uid)] == expected
    if best is not None:
        assert task.best().digest == best


@pytest.mark.parametrize("share", [1e-9, 1e9])  # of the time goes into checkpoints, so that they are rare, or all made
def test_checkpoints_evenly_apart_stay_beside_the_latest(
    store: Store, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rekindle.tasks.cohort.SAVING_SHARE", share)
    together = [make(store, "every:3", seed=seed) for seed in (1, 2)]
    Cohort(together).fit(8)
    for task in together:
        assert [epoch for epoch in kept(store, task) if epoch < 7] == [3, 6]
        assert kept(store, task)[-1] == 8
    alone = make(seed=2)
    alone.fit(6)
    saved = store.load(together[1].uid, 6)
    assert saved is not None
    assert saved.digest == alone.digest


def test_those_evenly_apart_are_no_reason_to_keep_the_beginning() -> None:
    assert [epoch for epoch in range(9) if Keep(spaced=4).is_spaced(epoch)] == [4, 8]
    assert not any(Keep().is_spaced(epoch) for epoch in range(9))
    assert Keep(latest=1, spaced=4).dropped(range(10), {}) == {0, 1, 2, 3, 5, 6, 7}


def test_the_untrained_agent_is_kept_once(store: Store) -> None:
    task, digest = make(store, "initial"), make().digest
    task.fit(1)
    task.finish()
    again = make(store, "initial")
    again.fit(4)
    first = store.checkpoints(task.uid)[0]
    assert (first.epochs, first.digest) == (0, digest)
    assert kept(store, task)[-1] == 4
    assert store.load(task.uid, 0) is not None
    whole = make()
    whole.fit(4)
    assert again.digest == whole.digest


@pytest.mark.parametrize(
    ("task_class", "env", "values"),
    [(DQN, "CartPole-v1", {"replay": {"name": "prioritized"}}), (SAC, "Pendulum-v1", MEMORY)],
)
def test_a_checkpoint_without_its_replay_memory_fills_it_again_and_says_so(
    store: Store, task_class: Any, env: str, values: dict[str, Any]
) -> None:
    def made(storage: Store | None, mode: str | None) -> Any:
        return task_class(env, storage=storage, snapshots=mode).init(**{**OFF, **values})

    task, whole = made(store, "no-replay"), made(None, None)
    for training in (task, whole):
        training.fit(2)
    assert task.digest == whole.digest  # what is stored changes no training
    saved = store.load(task.uid)
    assert saved is not None
    assert not {"replay", "priorities", "sequences"} & unpack(saved.manifest, saved.fetch)["learner"].keys()
    task.finish()
    resumed = made(store, "no-replay")
    assert "the replay buffer, which the checkpoint leaves out, is filled again" in resumed.inexact
    assert resumed.evaluate(2) == whole.evaluate(2)
    updates, steps = task.metrics["updates"], task.env_steps
    state = resumed.state_dict()
    assert state["learner"]["progress"]["full_at"] == steps + OFF["learning_starts"]
    resumed.fit(3)
    assert updates < resumed.metrics["updates"] < updates * 1.5  # none while it is filled
    again = made(None, None)
    again.load_state_dict(state)
    again.fit(3)
    assert again.digest == resumed.digest  # from there on all is exact
    learner = resumed.learner(resumed.env, [0, 1], [resumed.hyperparameters] * 2)
    learner.load_member(0, state["learner"])
    with pytest.raises(StateMismatch, match="must agree on whether their checkpoints have replay buffers"):
        learner.load_member(1, {k: part for k, part in state["learner"].items() if k not in resumed.learner.refillable})


def test_the_best_checkpoint_stays_beside_the_latest_and_can_be_used(store: Store) -> None:
    task = make(store, "best")
    task.fit(8)
    returns = {epoch: row["return"] for epoch, row in task.history}
    best = max(returns, key=lambda epoch: (returns[epoch], -epoch))
    assert best in kept(store, task)
    assert kept(store, task)[-1] == 8
    then = task.best()
    assert (then.epochs, then.uid, then.stored.storage) == (best, task.uid, None)
    assert then.evaluate() == returns[best]
    alone = make()
    alone.fit(best)
    assert difference(then.state_dict(), alone.state_dict()) == []


@pytest.mark.slow
def test_the_best_is_found_again_by_another_process(store: Store) -> None:
    task = make(store, "best")
    task.fit(8)
    best = task.best().epochs
    task.finish()
    again = make(store)
    assert again.resumed
    assert again.best().epochs == best


def test_no_state_depends_on_what_is_kept(store: Store) -> None:
    alone, best = make(), make(store, "best:2")
    alone.fit(5)
    best.fit(5)
    assert alone.digest == best.digest
    assert [epoch for epoch, row in best.history if "return" in row] == [2, 4]
    assert [{k: v for k, v in row.items() if k != "return"} for _, row in best.history] == [
        row for _, row in alone.history
    ]


@pytest.mark.slow
def test_members_of_a_cohort_keep_each_its_own(store: Store) -> None:
    modes = ["best", None, "no", 1]
    tasks = [make(store, mode, seed) for seed, mode in enumerate(modes)]
    Cohort(tasks).fit(6)
    assert [("return" in row) for task in tasks for _, row in task.history[:1]] == [True, False, False, False]
    assert kept(store, tasks[2]) == []
    assert kept(store, tasks[3]) == [6]
    alone = make(store, "best", seed=7)
    alone.fit(6)
    together = make(None, "best", seed=0)
    together.fit(6)
    assert together.digest == tasks[0].digest
    returns = dict(tasks[0].history)
    first = max(returns, key=lambda epoch: (returns[epoch]["return"], -epoch))
    assert first in kept(store, tasks[0])


def test_nothing_is_stored_and_a_task_that_stopped_starts_anew(store: Store) -> None:
    task = make(store, "no")
    task.fit(2)
    task.finish()
    assert kept(store, task) == []
    assert [epoch for epoch, _ in store.metrics(task.uid)] == [1, 2]
    again = make(store, "no")
    assert (again.resumed, again.epochs) == (False, 0)
    again.fit(2)
    assert again.digest == task.digest


def test_a_checkpoint_that_is_there_is_used_also_by_a_task_that_stores_none(store: Store) -> None:
    first = make(store)
    first.fit(1)
    first.finish()
    second = make(store, "no")
    assert (second.resumed, second.epochs) == (True, 1)
    second.fit(2)
    second.finish()
    assert kept(store, second) == [1]


def test_a_task_that_was_never_evaluated_has_no_best(store: Store) -> None:
    task = make(store)
    task.fit(1)
    for instance in (task, make()):
        with pytest.raises(TaskError, match=r"must have a checkpoint with the metric 'return' .*snapshots=\"best\""):
            instance.best()
