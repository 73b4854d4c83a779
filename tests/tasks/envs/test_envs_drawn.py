"""Modules and classes that draw values once, so that an environment may be another one in each process."""

from __future__ import annotations

import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import rekindle
from rekindle import PPO, EnvSpec, Store
from rekindle.studies.engine.task_views import task_view
from rekindle.tasks.envs.base import failures
from rekindle.tasks.envs.factory import spaces_of
from rekindle.tasks.envs.gym.chance import firsts, suspects
from rekindle.tasks.envs.processes.agreement import compared
from rekindle.tasks.envs.selftest.attempts import self_test
from rekindle.tasks.runtime.fingerprint import InexactWarning
from rekindle.tasks.task import Task
from support_path import SUPPORT

SMALL = {"num_steps": 10, "num_envs": 2, "num_minibatches": 2, "epoch_steps": 40, "update_epochs": 1}
OTHERS = "drawn_envs:drawn/Scaled-v0: equal seeds and actions lead to other episodes than {}; unless its code"


@pytest.fixture(autouse=True)
def drawn_envs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find the module, and forget what was found out about it."""
    monkeypatch.syspath_prepend(SUPPORT)
    forget()
    suspects.clear()
    firsts.clear()


def forget() -> None:
    """Forget the results of self-tests."""
    for function in (self_test, spaces_of, compared):
        function.cache_clear()


def make(source: str, **given: Any) -> Task:
    return PPO(EnvSpec("drawn_envs:drawn/Scaled-v0", kwargs={"source": source}), **given).init(**SMALL)


def trained(source: str, epochs: int, **given: Any) -> Task:
    task = make(source, **given)
    task.fit(epochs)
    return task


@pytest.fixture
def not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("drawn_envs", "kept_envs"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    for name in ("Scaled", "Kept", "Clinging", "Dated"):
        monkeypatch.delitem(gym.registry, f"drawn/{name}-v0", raising=False)


@pytest.mark.usefixtures("not_imported")
def test_a_draw_from_global_generators_on_import_is_the_same_in_all_processes() -> None:
    here, there = trained("global", 1), trained("global", 1, env_processes=2)
    assert (there.digest, there.inexact, here.inexact) == (here.digest, [], [])


@pytest.mark.usefixtures("not_imported")
def test_an_environment_whose_import_reads_what_differs_between_processes_is_labelled() -> None:
    here, there = trained("entropy", 1), trained("entropy", 1, env_processes=2)
    for task, place in ((here, "in another process"), (there, "in the process that trains")):
        [label] = task.inexact
        assert label.startswith(OTHERS.format(place))
        assert task.state_dict()["learner"]["envs"]["inexact"] == [label]


@pytest.mark.usefixtures("not_imported")
@pytest.mark.parametrize("imported", [False, True])
@pytest.mark.parametrize(
    ("source", "at", "exact"),
    [
        ("entropy", "constructor", False),
        ("entropy", "reset", False),
        ("entropy", "each", True),
        ("process", "constructor", False),
        ("process", "every reset", False),
        ("counter", "reset", False),
        ("global", "constructor", True),
        ("global", "reset", True),
    ],
)
def test_a_value_that_a_class_draws_once_is_labelled_unless_all_processes_draw_alike(
    source: str, at: str, exact: bool, imported: bool
) -> None:
    if imported:
        import_module("kept_envs")
    task = PPO(EnvSpec("kept_envs:drawn/Kept-v0", kwargs={"source": source, "at": at})).init(**SMALL)
    task.fit(1)
    expected = OTHERS.replace("drawn_envs:drawn/Scaled", "kept_envs:drawn/Kept").format("in another process")
    assert [label.startswith(expected) for label in task.inexact] == [True] * (not exact)
    assert ("kept_envs" in suspects) == (not exact)


@pytest.mark.usefixtures("not_imported")
def test_a_clock_that_a_module_imports_by_name_is_ahead_in_the_self_test() -> None:
    restore = self_test(EnvSpec("kept_envs:drawn/Dated-v0"))
    assert (restore.exact, restore.reason.partition(":")[0]) == (False, "it depends on the time")


@pytest.mark.usefixtures("not_imported")
def test_another_process_is_told_what_never_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    minute = failures.CLOSING  # of a process that is told nothing
    monkeypatch.setattr(failures, "CLOSING", 0.3)
    spec, began = EnvSpec("kept_envs:drawn/Clinging-v0", kwargs={"source": "entropy", "at": "reset"}), time.monotonic()
    with pytest.warns(UserWarning, match=r"its close\(\) must return, but did not in 0.3 s"):
        task = PPO(spec).init(**SMALL)
    task.fit(1)
    assert "in another process" in task.inexact[0]
    assert time.monotonic() - began < minute


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/tasks.db"


def draw_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Change what the module has drawn, as another process would have it."""
    monkeypatch.setitem(sys.modules["drawn_envs"].SCALES, "entropy", 2.0)
    forget()


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


def test_a_trial_that_plays_other_episodes_than_the_first_is_labelled(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = EnvSpec("drawn_envs:drawn/Scaled-v0", kwargs={"source": "entropy"})
    options: dict[str, Any] = {"storage": url, "study": "s", "epochs": 1, "fixed": SMALL, "eval_episodes": 2}
    rekindle.tune(PPO, env, trials=1, progress=False, **options)
    assert Store(url).labels("s")["inexact"] == {}
    draw_again(monkeypatch)
    rekindle.tune(PPO, env, trials=2, progress=False, **options)
    [(label, count)] = Store(url).labels("s")["inexact"].items()
    assert (label.startswith(OTHERS.format("where the study's first trial was trained")), count) == (True, 1)
