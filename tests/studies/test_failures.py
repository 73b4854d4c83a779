"""Classification of failures, and the decisions about them."""

from __future__ import annotations

import errno
import json
import pickle
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import optuna
import pytest
import torch
from rekindle.spaces import Space, log_real
from rekindle.studies import errors
from rekindle.studies.errors import BadConfig
from rekindle.studies.failures import (
    FAILED,
    LENGTH,
    RETRY_RULES,
    Killed,
    OutOfTime,
    classify,
    decide,
    describe,
    event_data,
    one_line,
)
from rekindle.studies.storage.failure_history import FailureHistory
from rekindle.studies.storage.store import Store
from rekindle.tasks.checkpoint.storage import Write
from rekindle.tasks.deployment.video import film
from rekindle.tasks.envs import EnvSpec, goals_of, make_envs
from rekindle.tasks.errors import BadResume, DamagedState, Diverged, Hung, ProgramFailed, StateMismatch, Stopped


def raised(work: Callable[[], Any]) -> BaseException:
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is classified
        return error
    raise AssertionError("nothing was raised")


class Crashing(gym.Env[Any, Any]):
    """Crashes in its first step, in a way of its own."""

    observation_space = gym.spaces.Box(0, 1, (1,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, how: str = "ValueError") -> None:
        self.how = how

    def reset(self, **_: Any) -> Any:
        return self.observation_space.low, {}

    def step(self, action: Any) -> Any:
        raise {
            "ValueError": ValueError("the simulator is upset"),
            "EOFError": EOFError(),
            "OSError": BrokenPipeError(),
            "MemoryError": MemoryError(),
            "nan": FloatingPointError("nan"),
        }[self.how]


class Drawn(Crashing):
    """Crashes only if it is drawn."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def step(self, action: Any) -> Any:
        return super().step(action) if self.render_mode else (self.observation_space.low, 0.0, True, False, {})

    def render(self) -> Any:
        return np.zeros((16, 16, 3), np.uint8)


gym.register("Crashing-v0", entry_point=Crashing)
gym.register("Drawn-v0", entry_point=Drawn)


def crash(how: str) -> BaseException:
    def run() -> None:
        envs = make_envs(EnvSpec("Crashing-v0", {"how": how}), [1], 1)
        try:
            envs.step(np.zeros((1, 1), np.int64))
        finally:
            envs.close()

    return raised(run)


def crash_in_a_reward() -> BaseException:
    goals = goals_of(EnvSpec("goal_envs:Upset-v0"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("goal_envs.Upset.upset", True)
        return raised(lambda: goals.reward(np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32)))


def crash_in_a_film() -> BaseException:
    def act(*_: Any) -> Any:
        return 0, None

    return raised(lambda: film(EnvSpec("Drawn-v0"), 0, act, Path("unused.mp4")))


def of_kind(error: type[BaseException], *arguments: Any) -> Callable[[], BaseException]:
    return lambda: error(*arguments)


def broke(cause: BaseException) -> BaseException:
    error = BadResume("the task broke")
    error.__cause__ = cause
    return error


CASES: list[tuple[str, Callable[[], BaseException]]] = [
    ("preempted", of_kind(Stopped, "asked to")),
    ("preempted", of_kind(KeyboardInterrupt)),
    ("preempted", of_kind(SystemExit, 143)),
    ("preempted", of_kind(optuna.TrialPruned)),
    ("memory", of_kind(MemoryError)),
    ("memory", of_kind(torch.OutOfMemoryError, "CUDA out of memory")),
    ("memory", lambda: raised(lambda: torch.empty(2**55))),
    ("memory", of_kind(OSError, errno.ENOMEM, "Cannot allocate memory")),
    ("memory", of_kind(RuntimeError, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED")),
    ("diverged", of_kind(Diverged, "a loss became NaN")),
    ("diverged", of_kind(FloatingPointError)),
    ("environment", lambda: crash("ValueError")),
    ("environment", lambda: crash("EOFError")),
    ("environment", lambda: crash("OSError")),
    ("environment", crash_in_a_reward),
    ("environment", crash_in_a_film),
    ("memory", lambda: crash("MemoryError")),
    ("stale", of_kind(errors.LeaseLost, ["uid"])),
    ("stale", of_kind(errors.TaskBusy, "uid", "h:b:1:1", "h", 1, 5.0)),
    ("input", lambda: raised(lambda: Space(lr=log_real(1e-5, 1e-1)).validate({"lr": 7}))),
    ("input", lambda: raised(lambda: make_envs(EnvSpec("NoSuchThing-v0"), [1], 1))),
    ("input", of_kind(StateMismatch, "of another shape")),
    ("input", of_kind(errors.StudyMismatch, "another space")),
    ("input", of_kind(errors.UnknownStudy, "there is none")),
    ("input", of_kind(errors.SchemaMismatch, "of a later version")),
    ("input", of_kind(BadConfig, "no trials")),
    ("input", of_kind(ModuleNotFoundError, "no such module")),
    ("storage", of_kind(errors.StoreUnreachable, "no answer")),
    ("storage", of_kind(errors.StoreFull, "no room")),
    ("storage", of_kind(errors.StoreLocked, "busy")),
    ("damaged", of_kind(errors.DamagedCheckpoint, "a bit")),
    ("damaged", of_kind(DamagedState, "a bit")),
    ("killed", of_kind(Killed, "5 processes")),
    ("hung", of_kind(Hung, "no step")),
    ("time", of_kind(OutOfTime, "2 h")),
    ("unknown", of_kind(RuntimeError, "something else")),
    ("diverged", lambda: broke(Diverged("a loss became NaN"))),
    ("environment", lambda: broke(crash("ValueError"))),
]


@pytest.mark.parametrize(("failure_kind", "make"), CASES, ids=[f"{i}-{name}" for i, (name, _) in enumerate(CASES)])
def test_failures_are_told_apart(failure_kind: str, make: Callable[[], BaseException]) -> None:
    assert classify(make()) == failure_kind


def test_every_kind_has_a_policy_and_a_case() -> None:
    assert {failure_kind for failure_kind, _ in CASES} == RETRY_RULES.keys()
    assert all(policy.why for policy in RETRY_RULES.values())


def test_deterministic_failures_are_not_retried() -> None:
    for error in (Diverged("NaN"), ValueError("lr"), errors.DamagedCheckpoint("a bit")):
        decision = decide(error)
        assert (decision.retry, decision.release) == (False, False)


def test_interruptions_and_lost_leases_release_without_a_retry() -> None:
    for error in (Stopped("asked to"), errors.LeaseLost(["uid"])):
        decision = decide(error, tried=100)
        assert (decision.retry, decision.release) == (False, True)


def test_memory_is_tried_again_alone_a_few_times_with_growing_pauses() -> None:
    decisions = [decide(MemoryError(), tried) for tried in range(4)]
    assert [decision.retry for decision in decisions] == [True, True, True, False]
    assert [decision.pause for decision in decisions] == [5, 10, 20, 0]
    assert [decision.alone for decision in decisions] == [True, True, True, False]


def test_a_database_that_is_away_is_waited_for_as_long_as_it_takes() -> None:
    decision = decide(errors.StoreUnreachable("no answer"), tried=10_000)
    assert decision.retry
    assert decision.pause == RETRY_RULES["storage"].longest


def test_a_killed_trial_is_retried_in_a_cohort_first_and_then_alone() -> None:
    decisions = [decide(Killed("5 processes"), tried) for tried in range(5)]
    assert [decision.retry for decision in decisions] == [True, True, True, True, False]
    assert [decision.alone for decision in decisions] == [False, True, True, True, False]


def test_how_often_a_trial_was_tried_again_is_counted_over_all_workers_since_its_last_epoch(store: Store) -> None:
    lease = store.open("uid", {})

    def tried(failure_kind: str) -> int:
        return store.histories(["uid"]).get("uid", FailureHistory()).failed[failure_kind]

    for times in range(2):
        assert tried("environment") == times
        error = crash("ValueError")
        event = event_data(error, decide(error, times), 0)
        assert event["retry"]
        assert "the simulator is upset" in event["report"]
        store.save([Write(lease, 0, events=[(FAILED, event)])])
    assert tried("memory") == 0
    assert not decide(crash("ValueError"), tried("environment")).retry
    store.save([Write(lease, 1, b"1")])
    assert tried("environment") == 0
    strange = [(FAILED, {}), (FAILED, {"retry": True, "epochs": 1, "kind": 7, "pause": "x"})]
    store.save([Write(lease, 1, events=strange)])
    assert store.histories(["uid"])["uid"].failed.total() == 0


def test_a_report_says_the_kind_and_the_place_and_no_password() -> None:
    text = describe(broke(crash("ValueError")))
    assert text.startswith("[environment] Traceback")
    assert "the simulator is upset" in text
    assert Path(__file__).name in text
    assert "hunter2" not in describe(RuntimeError("cannot reach postgresql://me:hunter2@host/db"))


def test_a_gigantic_report_keeps_its_beginning_and_its_end() -> None:
    text = describe(RuntimeError("x" * 1_000_000 + "the end"))
    assert len(text) < LENGTH + 10
    assert text.startswith("[unknown] RuntimeError: xxx")
    assert text.strip().endswith("the end")


def test_the_report_of_a_divergence_does_not_depend_on_the_company() -> None:
    assert describe(broke(Diverged("the loss became nan"))) == "Diverged: the loss became nan"


def test_policies_are_plain_data() -> None:
    assert json.loads(json.dumps(asdict(decide(MemoryError()))))["kind"] == "memory"
    assert pickle.loads(pickle.dumps(dict(RETRY_RULES))) == RETRY_RULES


def test_the_failure_of_a_program_is_its_message_and_in_one_line_its_last_one() -> None:
    error = ProgramFailed("train.py ended with status 1; its last lines:\nTraceback:\n  line 3\nKeyError: 'lr'")
    assert describe(error) == f"ProgramFailed: {error}"
    assert one_line(describe(error)) == "ProgramFailed: train.py ended with status 1: KeyError: 'lr'"
    assert one_line("[input] Traceback:\n  line 3\nKeyError: 'lr'\n") == "KeyError: 'lr'"
