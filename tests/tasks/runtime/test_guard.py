"""The bad-resume guard: an error inside breaks the task, a request to stop does not."""

from __future__ import annotations

import subprocess
import sys

import optuna
import pytest
from rekindle.tasks.errors import BadResume, Diverged, StateMismatch, Stopped, TaskError
from rekindle.tasks.runtime.guard import BadResumeGuard, is_control_flow


class Thing:
    """What the guard needs of a task, and nothing else."""

    def __init__(self, between_steps: bool = True) -> None:
        self.bad: BaseException | None = None
        self.between_steps = between_steps
        self.failures = 0

    def fail(self, error: BaseException) -> None:
        self.bad = error
        self.failures += 1

    def __str__(self) -> str:
        return "thing 7"


CONTROL_FLOW = [KeyboardInterrupt(), SystemExit(1), GeneratorExit(), Stopped("asked to"), optuna.TrialPruned()]
FAULTS = [RuntimeError("x"), ValueError(), MemoryError(), Diverged("x"), StopIteration(), AssertionError()]


def enter(error: BaseException | None, *things: Thing) -> None:
    with BadResumeGuard(*things):
        if error is not None:
            raise error


def test_without_an_exception_nothing_happens() -> None:
    thing = Thing()
    enter(None, thing)
    enter(None, thing)
    assert thing.bad is None


@pytest.mark.parametrize("error", FAULTS, ids=repr)
def test_a_fault_marks_the_task_bad_and_passes_on(error: Exception) -> None:
    thing = Thing()
    with pytest.raises(type(error)) as caught:
        enter(error, thing)
    assert caught.value is error
    assert thing.bad is error


@pytest.mark.parametrize("error", [*CONTROL_FLOW, StateMismatch("x")], ids=repr)
def test_control_flow_and_refusals_between_two_steps_leave_the_task_clean(error: BaseException) -> None:
    thing = Thing(between_steps=True)
    with pytest.raises(type(error)):
        enter(error, thing)
    assert thing.bad is None
    enter(None, thing)


@pytest.mark.parametrize("error", CONTROL_FLOW, ids=repr)
def test_control_flow_within_a_step_does_not(error: BaseException) -> None:
    thing = Thing(between_steps=False)
    with pytest.raises(type(error)):
        enter(error, thing)
    assert thing.bad is error


def test_a_bad_task_is_refused_with_its_first_cause_and_the_remedy() -> None:
    thing = Thing()
    with pytest.raises(ZeroDivisionError):
        enter(ZeroDivisionError("first"), thing)
    for _ in range(2):
        with pytest.raises(BadResume, match=r"thing 7 broke with ZeroDivisionError: first.*Build a new task") as caught:
            enter(RuntimeError("never raised"), thing)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert thing.failures == 1


def test_the_first_cause_stays_through_nested_guards() -> None:
    thing = Thing()

    def fail_twice() -> None:
        with BadResumeGuard(thing):
            try:
                enter(RuntimeError("first"), thing)
            finally:
                raise ValueError("second")

    with pytest.raises(ValueError, match="second"):
        fail_twice()
    assert str(thing.bad) == "first"
    assert thing.failures == 1


def test_all_tasks_of_a_guard_break_together_unless_one_may_go_on() -> None:
    within, between = Thing(between_steps=False), Thing(between_steps=True)
    with pytest.raises(KeyboardInterrupt):
        enter(KeyboardInterrupt(), within, between)
    assert isinstance(within.bad, KeyboardInterrupt)
    assert between.bad is None
    with pytest.raises(BadResume, match="thing 7"):
        enter(None, between, within)
    assert between.bad is None


def test_exceptions_other_than_optunas_control_flow_are_faults() -> None:
    assert is_control_flow(optuna.TrialPruned())
    assert is_control_flow(optuna.exceptions.TrialPruned())
    assert not is_control_flow(optuna.exceptions.StorageInternalError())


def test_the_guard_neither_needs_nor_imports_optuna() -> None:
    code = """
import sys
from rekindle.tasks.runtime.guard import is_control_flow
assert is_control_flow(KeyboardInterrupt()) and not is_control_flow(ValueError())
assert "optuna" not in sys.modules and "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_guards_errors_are_errors_of_tasks() -> None:
    assert issubclass(BadResume, TaskError)
    assert issubclass(Stopped, TaskError)
