"""Tasks that train together get the results that they have alone, whatever happens to the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import optuna
import pytest
import tiny
from drifting import Drift
from own_envs import Brittle
from rekindle.spaces import unflatten
from rekindle.studies.storage.store import Store
from rekindle.tasks import PPO, BadResume, Cohort, EpochEvent
from rekindle.tasks.algorithms import on_policy_learner
from rekindle.tasks.checkpoint.state import difference
from rekindle.tasks.errors import Diverged, StateMismatch
from rekindle.tasks.runtime.threads import one_thread

SMALL: dict[str, Any] = unflatten(tiny.ROLLOUTS)
RATES = [1e-3, 3e-3, 1e-2, 1e-4]


def make(seed: int, storage: Store | None = None, env: Any = "CartPole-v1", **changes: Any) -> PPO:
    values = {**SMALL, "optimizer": {"lr": RATES[seed % 4]}, **changes}
    return PPO(env, seed=seed, storage=storage).init(**values)


def alone(seed: int, epochs: int, **changes: Any) -> PPO:
    task = make(seed, **changes)
    task.fit(epochs)
    return task


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path / 'studies.db'}") as store:
        yield store


def assert_as_alone(tasks: list[PPO], epochs: int, **changes: Any) -> None:
    for task in tasks:
        other = alone(task.seed, epochs, **changes)
        assert difference(task.state_dict(), other.state_dict()) == []
        assert task.history == other.history
        assert task.epochs == epochs


@pytest.mark.parametrize("size", [1, 2, 5])
def test_members_end_as_they_do_alone(size: int) -> None:
    tasks = [make(seed) for seed in range(size)]
    Cohort(tasks).fit(2)
    assert_as_alone(tasks, 2)


def test_the_order_and_the_company_do_not_matter() -> None:
    tasks = [make(seed) for seed in (3, 0, 2)]
    Cohort(tasks).fit(1)
    Cohort([tasks[1], make(7), tasks[0]]).fit(2)
    Cohort(tasks[::-1]).fit(3)
    assert_as_alone(tasks, 3)


@pytest.mark.slow
def test_members_at_different_epochs_end_together() -> None:
    tasks = [make(seed) for seed in range(4)]
    for task, epochs in zip(tasks, (0, 2, 1, 3), strict=True):
        task.fit(epochs)
    Cohort(tasks).fit(3)
    assert_as_alone(tasks, 3)


def test_members_that_are_behind_catch_up_first() -> None:
    heard: list[tuple[int, int]] = []
    tasks = [make(0), make(1), make(2)]
    tasks[1].fit(2)
    Cohort(tasks).fit(4, lambda event: heard.append((event.epoch, event.task.seed)))
    assert sorted(heard[:4]) == [(1, 0), (1, 2), (2, 0), (2, 2)]
    assert sorted(heard[4:]) == [(3, 0), (3, 1), (3, 2), (4, 0), (4, 1), (4, 2)]


def test_members_that_are_done_are_not_trained() -> None:
    done = alone(0, 5)
    digest = done.digest
    other = make(1)
    Cohort([done, other]).fit(2)
    assert done.digest == digest
    assert_as_alone([other], 2)


def test_a_member_can_be_taken_out_and_trained_alone() -> None:
    tasks = [make(seed) for seed in range(3)]
    Cohort(tasks).fit(1)
    tasks[1].fit(2)
    assert_as_alone([tasks[1]], 2)
    Cohort(tasks).fit(2)
    assert_as_alone(tasks, 2)


def test_a_member_answers_questions_while_it_is_in_a_cohort() -> None:
    tasks = [make(seed) for seed in range(3)]
    Cohort(tasks).fit(1)
    other = alone(1, 1)
    assert tasks[1].evaluate(3) == other.evaluate(3)
    assert all(a.equal(b) for a, b in zip(tasks[1].parameters(), other.parameters(), strict=True))
    assert tasks[1].digest == other.digest
    assert tasks[1].report() == other.report()


def test_a_member_in_the_middle_of_an_epoch_ends_with_the_others() -> None:
    tasks = [make(seed) for seed in range(3)]
    Cohort(tasks[:2]).fit(1)
    assert tasks[0].ref is not None
    with one_thread():  # as all training is
        tasks[0].ref.learner.run_epoch(stop=lambda: True)  # one iteration of the two of an epoch
    assert [task.env_steps for task in tasks] == [144, 144, 0]
    Cohort(tasks).fit(3)
    assert_as_alone(tasks, 3)


# Who may train together


def test_a_cohort_has_members() -> None:
    with pytest.raises(ValueError, match="at least one task"):
        Cohort([])


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"num_steps": 32}, "num_steps"),
        ({"model": {"width": 32, "layers": 1}}, "model.width"),
        ({"optimizer": {"name": "sgd"}}, "optimizer.name"),
        ({"lr_schedule": {"name": "linear"}}, "lr_schedule.name"),
        ({"max_grad_norm": None}, "max_grad_norm"),
        ({"target_kl": None}, "target_kl"),
        ({"env": "CartPole-v0"}, "env"),
        ({"normalize_obs": True}, "normalize_obs"),
    ],
)
def test_members_of_other_structure_are_refused_by_the_difference(changes: dict[str, Any], name: str) -> None:
    one, other = make(0), make(1, **changes)
    with pytest.raises(ValueError, match="must have the same structure") as caught:
        Cohort([one, other])
    message = str(caught.value)
    assert f" {name}" in message
    assert str(one) in message
    assert str(other) in message


def test_members_that_differ_in_numbers_only_may_train_together() -> None:
    changes = [{"gamma": 0.9}, {"ent_coef": 0.1, "optimizer": {"lr": 1e-2}}, {"max_grad_norm": 3.0}]
    tasks = [make(seed, **change) for seed, change in enumerate(changes)]
    Cohort(tasks).fit(2)
    for task, change in zip(tasks, changes, strict=True):
        assert_as_alone([task], 2, **change)


def test_the_same_task_cannot_be_a_member_twice() -> None:
    task = make(0)
    for other in (task, make(0)):
        with pytest.raises(ValueError, match="two have the same uid"):
            Cohort([task, other])


def test_members_on_different_devices_are_refused() -> None:
    other = PPO("CartPole-v1", seed=1, device="cpu:0").init(**SMALL)
    with pytest.raises(ValueError, match="differ in device"):
        Cohort([make(0), other])


# Faults


DIVERGING = {"optimizer": {"name": "sgd", "lr": 100.0}, "max_grad_norm": None}
STEADY = {"optimizer": {"name": "sgd", "lr": 1e-3}, "max_grad_norm": None}


def test_a_member_that_diverges_is_left_behind_and_the_others_go_on(store: Store) -> None:
    tasks = [make(0, store, **STEADY), make(1, store, **DIVERGING), make(2, store, **STEADY)]
    Cohort(tasks).fit(5)
    assert isinstance(tasks[1].bad, Diverged)
    assert "seed 1" in str(tasks[1].bad)
    assert_as_alone([tasks[0], tasks[2]], 5, **STEADY)
    other = make(1, **DIVERGING)
    with pytest.raises(Diverged) as caught:
        other.fit(5)
    assert str(caught.value) == str(tasks[1].bad)
    assert other.history == tasks[1].history
    for task in (tasks[0], tasks[2]):
        assert store.metrics(task.uid) == task.history
    with pytest.raises(BadResume, match="broke with Diverged"):
        Cohort(tasks).fit(6)
    Cohort([tasks[0], tasks[2]]).fit(6)
    assert_as_alone([tasks[0], tasks[2]], 6, **STEADY)


def test_when_all_members_diverge_training_ends() -> None:
    tasks = [make(seed, **DIVERGING) for seed in range(2)]
    Cohort(tasks).fit(10**6)
    assert all(isinstance(task.bad, Diverged) for task in tasks)


def test_an_exception_in_a_step_breaks_every_member(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [make(seed, store) for seed in range(2)]
    Cohort(tasks).fit(1)

    def fail() -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(on_policy_learner, "tick", fail)
    with pytest.raises(MemoryError):
        Cohort(tasks).fit(2)
    monkeypatch.undo()
    for task in tasks:
        with pytest.raises(BadResume, match="MemoryError: no room"):
            task.fit(2)
    again = [make(seed, store) for seed in range(2)]
    assert all(task.resumed and task.epochs == 1 for task in again)
    Cohort(again).fit(2)
    assert_as_alone(again, 2)


def test_after_an_error_of_an_environment_the_others_continue_as_the_docstring_says(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One episode of member 1 fails. All break, since they step together; built anew, the others reach the end."""
    env, seeds = {"id": "own_envs:Brittle-v0", "kwargs": {"when": "seeds"}}, list[int]()
    reset = Brittle.reset

    def note(self: Brittle, **options: Any) -> Any:
        seeds.append(options["seed"])
        return reset(self, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Brittle, "reset", note)
        task = make(1, env=env)
        task.fit(2)
        before = {*seeds}
        task.fit(4)
    doomed = {*seeds} - before
    assert doomed
    step = Brittle.step

    def fail(self: Brittle, action: Any) -> Any:
        if self.seed in doomed:
            raise OSError("no such map")
        return step(self, action)

    monkeypatch.setattr(Brittle, "step", fail)
    tasks = [make(seed, store, env) for seed in range(3)]
    Cohort(tasks).fit(2)
    with pytest.raises(OSError, match="no such map"):
        Cohort(tasks).fit(4)
    assert all(isinstance(task.bad, OSError) for task in tasks)
    for index in range(3):
        tasks[index] = make(index, store, env)  # resumes what is saved
        assert tasks[index].epochs >= 2
        with suppress(OSError):
            tasks[index].fit(4)
    living = [task for task in tasks if task.bad is None]
    assert [task.seed for task in living] == [0, 2]
    Cohort(living).fit(5)
    assert_as_alone(living, 5, env=env)


def test_a_pruned_member_stops_the_cohort_between_two_steps(store: Store) -> None:
    tasks = [make(seed, store) for seed in range(3)]

    def prune(event: EpochEvent) -> None:
        if (event.task.seed, event.epoch) == (1, 2):
            raise optuna.TrialPruned

    with pytest.raises(optuna.TrialPruned):
        Cohort(tasks).fit(4, prune)
    assert all(task.bad is None and task.epochs == 2 for task in tasks)
    for task in tasks:
        saved = store.load(task.uid)
        assert saved is not None
        assert (saved.epochs, saved.metrics) == (2, task.history)
    Cohort([tasks[0], tasks[2]]).fit(3)
    assert_as_alone([tasks[0], tasks[2]], 3)


def test_members_are_stored_as_if_alone_and_carry_on_in_other_company(store: Store, tmp_path: Path) -> None:
    tasks = [make(seed, store) for seed in range(3)]
    Cohort(tasks).fit(2)
    for task in tasks:
        task.finish()
    resumed = [make(seed, store) for seed in (2, 0)]
    assert all(task.resumed for task in resumed)
    Cohort([*resumed, make(9, store)]).fit(3)
    assert_as_alone(resumed, 3)


def test_members_may_have_different_storages_or_none(tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path / 'a.db'}") as a, Store(f"sqlite:///{tmp_path / 'b.db'}") as b:
        tasks = [make(0, a), make(1, b), make(2)]
        Cohort(tasks).fit(1)
        assert a.metrics(tasks[0].uid) == tasks[0].history
        assert b.metrics(tasks[1].uid) == tasks[1].history
        assert len(a.tasks()) == len(b.tasks()) == 1


@pytest.mark.parametrize("pushed", [(0, 1), (1, 0)])
def test_members_have_the_same_hyperparameters(pushed: tuple[int, int]) -> None:
    tasks = [Drift(seed=seed).init(pushed=value) for seed, value in enumerate(pushed)]
    with pytest.raises(ValueError, match=r"must have the same structure, but .* differ in push; train them in cohorts"):
        Cohort(tasks)
    assert tasks[0].identity.structure == tasks[1].identity.structure  # a population may change `pushed`
    tasks = [Drift(seed=seed).init(pushed=1, push=1.0 + seed) for seed in (0, 1)]
    Cohort(tasks).fit(1)
    assert [task.evaluate() for task in tasks] == [6.0, 10.0]  # four steps of 0.5 + push


def test_events_are_kept_until_they_are_stored(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    task, save, failures = make(0, store), store.save, [OSError("no space left on device")]
    task.fit(1)
    task.stored.events.append(("inexact", {"inexact": ["a reason"]}))

    def save_if_there_is_room(writes: Any) -> None:
        if failures:
            raise failures.pop()
        save(writes)

    monkeypatch.setattr(store, "save", save_if_there_is_room)
    with pytest.raises(OSError, match="no space"):
        task.finish()
    task.finish()
    assert [event.data for event in store.events(task.uid) if event.kind == "inexact"] == [{"inexact": ["a reason"]}]
    assert task.events == []


def test_a_state_whose_sums_have_another_form_is_refused() -> None:
    task = Drift().init()
    task.member_ref().learner.run_epoch(stop=lambda: True)
    state, digest = task.state_dict(), task.digest
    for tally in ({"x": [0.5, 1]}, {"count": 1, "x": "a"}, {"count": 1, "x": {}}):
        with pytest.raises(StateMismatch, match="DriftLearner: the state of tally has another form"):
            task.load_state_dict({**state, "learner": {**state["learner"], "tally": tally}})
    assert (task.bad, task.digest) == (None, digest)
