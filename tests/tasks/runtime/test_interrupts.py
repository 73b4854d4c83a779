"""SIGTERM and SIGINT as requests that are polled between steps, with real signals in real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import nursery
import pytest
from rekindle.tasks import PPO
from rekindle.tasks.errors import Stopped
from rekindle.tasks.runtime import interrupts as interrupts_module
from rekindle.tasks.runtime.interrupts import ECHO, Interrupts, StepInterrupted

SIGNALS = [signal.SIGTERM, signal.SIGINT]

STEPS = """
import signal
from rekindle.tasks.errors import Stopped
from rekindle.tasks.runtime.interrupts import Interrupts

half_done = False
try:
    with Interrupts() as interrupts:
        print("ready", flush=True)
        for step in range(10**9):
            half_done = True
            sum(range(2000))
            half_done = False
            interrupts.raise_if_pending()
except (KeyboardInterrupt, Stopped) as error:
    print(type(error).__name__, half_done, signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)
"""

STUCK = """
from rekindle.tasks.runtime.interrupts import Interrupts
with Interrupts() as interrupts:
    print("ready", flush=True)
    try:
        while True:
            if interrupts.pending is not None:
                print("pending", flush=True)
                while True:
                    pass
    except KeyboardInterrupt:
        print("out", flush=True)
        interrupts.pending = None
"""


@contextmanager
def running(code: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize(("number", "name"), [(signal.SIGTERM, "Stopped"), (signal.SIGINT, "KeyboardInterrupt")])
def test_a_signal_stops_between_two_steps(number: signal.Signals, name: str) -> None:
    with running(STEPS) as process:
        process.send_signal(number)
        output, _ = process.communicate(timeout=300)
    assert output == f"{name} False True\n"


@pytest.mark.parametrize("number", SIGNALS)
def test_a_second_signal_acts_at_once(number: signal.Signals) -> None:
    with running(STUCK) as process:
        assert process.stdout is not None
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "pending\n"
        time.sleep(ECHO[number])
        process.send_signal(number)
        assert process.stdout.readline() == "out\n"
        assert process.wait(timeout=300) == 0


@pytest.fixture
def handlers() -> Iterator[list[int]]:
    """The test's own handlers, whose calls are listed; put back afterwards."""
    calls: list[int] = []
    before = {number: signal.signal(number, lambda n, _: calls.append(n)) for number in SIGNALS}
    yield calls
    for number, handler in before.items():
        signal.signal(number, handler)


def signalled(number: signal.Signals, then: Callable[[Interrupts], object]) -> None:
    """A signal inside of Interrupts, and something after it."""
    with Interrupts() as interrupts:
        os.kill(os.getpid(), number)
        then(interrupts)


def test_the_handlers_from_before_come_back(handlers: list[int]) -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(Stopped, match="SIGTERM; the state is saved"):
        signalled(signal.SIGTERM, Interrupts.raise_if_pending)
    assert [signal.getsignal(number) for number in SIGNALS] == before
    assert handlers == []
    os.kill(os.getpid(), signal.SIGTERM)
    assert handlers == [signal.SIGTERM]


@pytest.mark.parametrize("number", SIGNALS)
def test_an_echo_of_a_signal_is_the_same_request(
    number: signal.Signals, handlers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`timeout` signals its process, then the process's group."""
    with Interrupts() as interrupts:
        for _ in range(2):
            os.kill(os.getpid(), number)
        assert interrupts.pending == number
        monkeypatch.setattr(interrupts_module, "ECHO", dict.fromkeys(SIGNALS, 0.0))
        with pytest.raises(StepInterrupted):
            os.kill(os.getpid(), number)
        interrupts.pending = None
    assert handlers == []


@pytest.mark.parametrize("number", SIGNALS)
def test_a_fork_within_a_step_ends_at_the_first_signal(number: signal.Signals) -> None:
    ready, told = os.pipe()
    with Interrupts() as interrupts:
        fork = os.fork()
        if fork == 0:
            os.write(told, b"1")
            time.sleep(60)
            os._exit(0)
        os.read(ready, 1)
        os.kill(fork, number)
        assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == -number
        assert interrupts.pending is None


def test_nothing_is_raised_while_nothing_is_pending() -> None:
    with Interrupts() as interrupts:
        interrupts.raise_if_pending()
        assert interrupts.pending is None


@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, Stopped), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_that_nobody_asked_about_is_not_lost(
    number: signal.Signals, error: type[BaseException], handlers: list[int]
) -> None:
    with pytest.raises(error):
        signalled(number, lambda _: None)
    assert handlers == []


def test_an_error_inside_is_not_hidden_by_a_signal(handlers: list[int]) -> None:
    with pytest.raises(ZeroDivisionError):
        signalled(signal.SIGTERM, lambda _: 1 / 0)


def test_nested_ones_give_back_the_outer(handlers: list[int]) -> None:
    with Interrupts() as outer:
        with Interrupts() as inner:
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        assert inner.pending is None
        assert outer.pending == signal.SIGTERM
        outer.pending = None


def test_other_threads_are_left_alone(handlers: list[int]) -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    seen: list[object] = []

    def enter() -> None:
        with Interrupts() as interrupts:
            seen.extend(signal.getsignal(number) for number in SIGNALS)
            interrupts.raise_if_pending()

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == before


FIT = """
import sys
from rekindle.studies.storage.store import Store
from rekindle.tasks import PPO
from rekindle.tasks.errors import Stopped

store = Store("sqlite:///" + sys.argv[1])
task = PPO("CartPole-v1", seed=1, storage=store).init(num_steps=32, num_envs=4, num_minibatches=2, epoch_steps=256)
said = []
try:
    task.fit(int(sys.argv[2]), lambda event: said or said.append(print("ready", flush=True)))
except Stopped:
    assert task.bad is None
print(task.resumed, task.epochs, task.digest)
task.finish()
"""


def fit(path: Path, epochs: int, number: signal.Signals | None = None) -> list[str]:
    """Output of a training in a process of its own, to which a signal is sent after its first epoch."""
    arguments = [sys.executable, "-c", FIT, str(path), str(epochs)]
    with nursery.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if number is not None:
            process.send_signal(number)
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return output.split()


def test_a_training_that_was_stopped_ends_as_the_one_that_was_not(tmp_path: Path) -> None:
    _, epochs, _ = fit(tmp_path / "one.db", 1_000_000, signal.SIGTERM)
    goal = int(epochs) + 2
    whole = PPO("CartPole-v1", seed=1).init(num_steps=32, num_envs=4, num_minibatches=2, epoch_steps=256)
    whole.fit(goal)
    assert fit(tmp_path / "one.db", goal) == ["True", str(goal), whole.digest]
