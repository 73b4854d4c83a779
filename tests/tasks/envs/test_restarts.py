"""Episodes that raise: the environment is made anew, and the training goes on with the same bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from faulty_envs import Accident
from rekindle import PPO, EnvSpec, Store
from rekindle.tasks.envs import EnvSpecError, make_envs
from rekindle.tasks.envs.gym import restarts
from rekindle.tasks.errors import EnvironmentFailed
from rekindle.tasks.identity import TaskIdentity
from rekindle.tasks.probing import probe
from rekindle.tasks.task import Task
from support_path import SUPPORT

SMALL = {"num_steps": 30, "num_envs": 2, "num_minibatches": 2, "epoch_steps": 600, "update_epochs": 1}
pytestmark = pytest.mark.filterwarnings("ignore:.*on_error")


@pytest.fixture(autouse=True)
def faulty_envs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SUPPORT)
    monkeypatch.setattr(restarts, "_TOLD", set())


def make(name: str, **more: Any) -> Task:
    return PPO(EnvSpec(f"faulty_envs:faults/{name}-v0", on_error="restart"), **more).init(**SMALL)


@pytest.mark.parametrize("name", ["Breaks", pytest.param("Unready", marks=pytest.mark.slow)])
def test_an_episode_that_raises_ends_and_resumes_with_the_same_bits(name: str, tmp_path: Path) -> None:
    whole, store = make(name), Store(f"sqlite:///{tmp_path}/tasks.db")
    with pytest.warns(UserWarning, match=r"its (step|reset) raised RuntimeError"):
        whole.fit(2)
    assert 0 < whole.metrics["info.raised"] < 0.1
    make(name, storage=store).fit(1)
    resumed = make(name, storage=store)
    resumed.fit(2)
    assert resumed.resumed
    assert (resumed.digest, resumed.inexact, whole.inexact) == (whole.digest, [], [])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Breaks", "Unready"])
def test_episodes_that_raise_end_alike_in_processes(name: str) -> None:
    whole, processes = make(name), make(name, env_processes=2)
    whole.fit(2)
    processes.fit(2)
    assert processes.digest == whole.digest


def test_an_environment_that_raises_without_a_declaration_fails() -> None:
    task = PPO("faulty_envs:faults/Breaks-v0").init(**SMALL)
    with pytest.raises(RuntimeError, match="the solver found no solution"):
        task.fit(3)


def test_a_training_with_too_many_errors_fails() -> None:
    with pytest.raises(EnvironmentFailed, match=r"at most 5% of a training's episodes may raise, and 3 beside"):
        make("Broken").fit(3)


def test_a_probe_counts_the_episodes_that_raise_as_json() -> None:
    results = probe(PPO, TaskIdentity.of(PPO, make("Broken").env, 0, {}), 400)
    assert 5 < json.loads(json.dumps(results))["raised"] < len(results["lengths"])
    assert results["failures"] == []


def test_an_error_that_does_not_come_again_makes_a_training_inexact() -> None:
    task = make("Accident")
    envs = make_envs(task.env, [0], 1)  # the self-test comes first
    envs.close()
    Accident.left[0] = 500
    task.fit(1)
    [text] = task.inexact
    assert "ended differently" in text
    assert task.metrics["info.raised"] == pytest.approx(0.01)


def test_other_answers_to_errors_are_refused() -> None:
    with pytest.raises(EnvSpecError, match="on_error must be 'restart'"):
        EnvSpec("CartPole-v1", on_error="ignore")
    with pytest.raises(EnvSpecError, match="on_error must be 'restart'"):
        EnvSpec("pettingzoo/mpe2:simple_spread_v3", on_error="restart")
