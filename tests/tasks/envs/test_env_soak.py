"""Random environments with faults: no wrong label, no raw error, no difference where none is labelled."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from rekindle import A2C, DQN, PPO, SAC, Cohort, EnvSpec
from rekindle.tasks.errors import TaskError
from rekindle.tasks.runtime.fingerprint import InexactWarning
from rekindle.tasks.task import Task
from support_path import SUPPORT

ROLLOUTS = {"num_steps": 8, "num_envs": 2, "epoch_steps": 64, "model.width": 8}
REPLAYS = {**ROLLOUTS, "learning_starts": 16, "batch_size": 8, "buffer_size": 64}
del REPLAYS["num_steps"]
ALGORITHMS: dict[str, tuple[type[Task], dict[str, Any], list[Any]]] = {
    "ppo": (PPO, {**ROLLOUTS, "num_minibatches": 2}, ["box", "dose", "choice", "choices", "bits", {"a": "dose"}]),
    "a2c": (A2C, ROLLOUTS, ["box", "dose", "choice", {"a": "choice", "b": ["box", "bits"]}]),
    "dqn": (DQN, REPLAYS, ["choice"]),
    "sac": (SAC, REPLAYS, ["box", "table", "dose", {"a": "choice", "b": "box"}]),
}
LEAVES = ["box", "table", "dose", "choice", "choices", "bits", "board", "flags", "image"]
SPACES = st.recursive(
    st.sampled_from(LEAVES),
    lambda parts: st.lists(parts, min_size=1, max_size=2) | st.dictionaries(st.sampled_from("abc"), parts, min_size=1),
    max_leaves=4,
)
FAULTS = (
    *("global generator", "unseeded generator", "entropy", "memory", "shared counter", "in place", "settings"),
    *("exception", "end of data", "nan", "rewards", "wrong shape", "wrong key", "out of range"),
)
KNOWN = ("the simulator is gone", "faults/Soak-v0")  # an error of its own code, or one that names the environment


def is_named(action: Callable[[], object]) -> bool:
    """Do something; return whether it raised an error that names the environment.

    All other errors are raised.
    """
    try:
        action()
    except (TaskError, ConnectionError) as error:
        if not any(words in str(error) for words in KNOWN):
            raise
        return True
    return False


@pytest.mark.slow
@settings(
    max_examples=40, deadline=None, derandomize=True, phases=[Phase.generate], suppress_health_check=[*HealthCheck]
)
@given(
    see=SPACES,
    chosen=st.sampled_from(sorted(ALGORITHMS)).flatmap(
        lambda name: st.tuples(st.just(name), st.sampled_from(ALGORITHMS[name][2]))
    ),
    length=st.integers(1, 40),
    faults=st.dictionaries(st.sampled_from(FAULTS), st.sampled_from([0, 3, 60, 600]), max_size=2),
)
def test_random_environments_are_exact_or_labelled_or_refused_by_name(
    see: Any, chosen: tuple[str, Any], length: int, faults: dict[str, int]
) -> None:
    (algorithm, values, _), do = ALGORITHMS[chosen[0]], chosen[1]
    spec = EnvSpec("faulty_envs:faults/Soak-v0", {"see": see, "do": do, "length": length, "faults": faults})

    def make(seed: int = 0) -> Task:
        nested: dict[str, Any] = {}
        for name, value in values.items():
            group, dot, inner = name.rpartition(".")
            (nested.setdefault(group, {}) if dot else nested)[inner] = value
        return algorithm(spec, seed=seed).init(**nested)

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.syspath_prepend(SUPPORT)
        warnings.simplefilter("ignore", InexactWarning)
        warnings.filterwarnings("ignore", ".*the environment's own code raised")
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
