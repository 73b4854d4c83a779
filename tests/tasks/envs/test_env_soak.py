"""Random environments with faults: no wrong label, no raw error, no difference where none is labelled."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
from hypothesis import given
from rekindle import Cohort, EnvSpec
from rekindle.spaces import unflatten
from rekindle.tasks.errors import TaskError
from rekindle.tasks.registry import load
from rekindle.tasks.runtime.fingerprint import InexactWarning
from rekindle.tasks.task import Task
from soaking import KNOWN, SETTINGS, Training, trainings
from support_path import SUPPORT


def is_named(action: Callable[[], object]) -> bool:
    """Do something; return whether it raised an error that names the environment.

    All other errors are raised.
    """
    try:
        action()
    except (TaskError, ConnectionError, SystemExit) as error:
        if not any(words in str(error) for words in KNOWN):
            raise
        return True
    return False


@pytest.mark.slow
@SETTINGS
@given(chosen=trainings())
def test_random_environments_are_exact_or_labelled_or_refused_by_name(chosen: Training) -> None:
    chosen.env["kwargs"]["faults"].pop("leak", None)  # commands end what is left behind

    def make(seed: int = 0) -> Task:
        task: Task = load(chosen.algorithm)(EnvSpec.from_json(chosen.env), seed=seed)
        return task.init(**unflatten(chosen.values))

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.syspath_prepend(SUPPORT)
        warnings.simplefilter("ignore", InexactWarning)
        for told in ("own code raised", "could not be closed"):
            warnings.filterwarnings("ignore", f".*{told}")
        tasks: list[Task] = []
        if is_named(lambda: tasks.extend([make(), make(), make(), make(), make(1)])):
            return
        whole, first, resumed, *together = tasks
        if is_named(lambda: whole.fit(2)) or is_named(lambda: first.fit(1)):
            return
        resumed.load_state_dict(first.state_dict())
        if is_named(lambda: resumed.fit(2)) or is_named(lambda: Cohort(together).fit(2)):
            return
        if not (whole.inexact or resumed.inexact or together[0].inexact):
            assert resumed.digest == whole.digest, "resumed"
            assert together[0].digest == whole.digest, "in a cohort"
