"""Environments that break rules: what crosses the border is copied, checked once, and labelled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rekindle import PPO, Cohort, EnvSpec, Store
from rekindle.tasks.runtime.fingerprint import InexactWarning
from rekindle.tasks.task import Task
from support_path import SUPPORT

SMALL = {"num_steps": 10, "num_envs": 2, "num_minibatches": 2, "epoch_steps": 100, "update_epochs": 1}


@pytest.fixture(autouse=True)
def faulty_envs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SUPPORT)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/tasks.db"


def make(name: str, seed: int = 0, **given: Any) -> Task:
    return PPO(EnvSpec(f"faulty_envs:faults/{name}-v0", **given.pop("env", {})), seed=seed, **given).init(**SMALL)


def trained(name: str, epochs: int = 2, **given: Any) -> Task:
    task = make(name, **given)
    task.fit(epochs)
    return task


WIND = {"parameters": {"wind": {"uniform": [0, 1]}}}
COPIED = [("Mirror", {}), ("Halver", {}), ("Keeper", {}), ("Flips", WIND)]


@pytest.mark.parametrize(("name", "env"), COPIED)
def test_in_place_changes_by_an_environment_stay_in_it(name: str, env: Any, url: str) -> None:
    whole = trained(name, env=env)
    make(name, env=env, storage=Store(url)).fit(1)
    resumed = trained(name, env=env, storage=Store(url))
    assert resumed.resumed
    assert (resumed.digest, whole.inexact) == (whole.digest, [])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "env"), COPIED)
def test_in_place_changes_are_the_same_in_cohorts_and_processes(name: str, env: Any) -> None:
    whole, other = make(name, env=env), make(name, 1, env=env)
    Cohort([other, whole]).fit(2)
    assert trained(name, env=env, env_processes=2).digest == whole.digest == trained(name, env=env).digest


def test_a_task_whose_episodes_do_not_replay_restarts_them_and_says_so(url: str) -> None:
    first = make("Late", storage=Store(url))
    first.fit(4)  # 200 steps of both environments
    assert first.inexact == []
    again = make("Late", storage=Store(url))
    with pytest.warns(InexactWarning, match=r"replaying the running episode.*They begin anew, so it is not bit-exact"):
        again.fit(5)
    [reason] = again.inexact
    assert "running episodes began anew" in reason
    assert reason in again.summary()
    assert again.report()["inexact"] == [reason]
    again.release()
    third = make("Late", storage=Store(url))
    assert third.inexact == [reason]  # the label is part of the state
    with Store(url) as store:
        events = {event.kind: event.data for event in store.events(third.uid)}
    assert events["inexact"] == {"epochs": 4, "inexact": [reason]}
    assert json.loads(json.dumps(third.report()))["inexact"] == [reason]


def test_a_warning_turned_into_an_error_refuses_to_restart_episodes(url: str) -> None:
    make("Late", storage=Store(url)).fit(4)
    with pytest.raises(InexactWarning):  # warnings are errors here
        make("Late", storage=Store(url)).fit(5)
    with pytest.warns(InexactWarning):
        make("Late", storage=Store(url)).fit(5)


def test_an_environment_that_cannot_be_restored_is_labelled_with_reason_and_cure() -> None:
    task = trained("Forgets", 1)
    [reason] = task.inexact
    assert "two new environments with the same seed and actions differ in the observation at step 0" in reason
    assert "restarts at each epoch, and not bit for bit" in reason
    assert reason.endswith(
        "draw all chance from self.np_random, after super().reset(seed=seed), and keep all state in self"
    )
    assert task.report()["inexact"] == [reason]
    assert f"not bit-exact: {reason}" in task.summary()
    task.finish()
    assert task.inexact == [reason]  # also without a learner
