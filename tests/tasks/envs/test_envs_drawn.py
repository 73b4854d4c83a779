"""Modules that draw values when they are imported, so that an environment may be another one in each process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from rekindle import PPO, EnvSpec, Store
from rekindle.studies.engine.json_views import task_view
from rekindle.tasks.envs.gym.selftest import self_test
from rekindle.tasks.runtime.fingerprint import InexactWarning
from rekindle.tasks.task import Task
from support_path import SUPPORT

SMALL = {"num_steps": 10, "num_envs": 2, "num_minibatches": 2, "epoch_steps": 40, "update_epochs": 1}
OTHERS = "drawn_envs:drawn/Scaled-v0: equal seeds and actions lead to other episodes than {}; unless its code"


@pytest.fixture(autouse=True)
def drawn_envs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SUPPORT)


def make(source: str, **given: Any) -> Task:
    return PPO(EnvSpec("drawn_envs:drawn/Scaled-v0", kwargs={"source": source}), **given).init(**SMALL)


def trained(source: str, epochs: int, **given: Any) -> Task:
    task = make(source, **given)
    task.fit(epochs)
    return task


def test_a_draw_from_global_generators_on_import_is_the_same_in_all_processes() -> None:
    sys.modules.pop("drawn_envs", None)
    here, there = trained("global", 1), trained("global", 1, env_processes=2)
    assert (there.digest, there.inexact) == (here.digest, [])


def test_an_environment_that_differs_between_processes_is_labelled_in_those_that_step_it() -> None:
    here, there = trained("entropy", 1), trained("entropy", 1, env_processes=2)
    assert here.inexact == []
    [label] = there.inexact
    assert label.startswith(OTHERS.format("in the process that trains"))
    assert there.state_dict()["learner"]["envs"]["inexact"] == [label]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/tasks.db"


def draw_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Change what the module has drawn, as another process would have it."""
    monkeypatch.setitem(sys.modules["drawn_envs"].SCALES, "entropy", 2.0)
    self_test.cache_clear()


def test_an_environment_that_differs_where_a_task_resumes_is_labelled(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained("entropy", 1, storage=Store(url))
    assert trained("entropy", 2, storage=Store(url)).inexact == []
    draw_again(monkeypatch)
    with pytest.warns(InexactWarning, match="replaying the running episode"):
        resumed = trained("entropy", 3, storage=Store(url))
    assert resumed.inexact[0].startswith(OTHERS.format("where it was trained before"))
    assert any(resumed.inexact[0] in text for text in task_view(Store(url), resumed.uid).inexact)
