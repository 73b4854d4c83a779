"""Supervisors in this process: which workers they replace, and when a study needs none any more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import slow_envs
from rekindle.studies.engine.runner import start_study
from rekindle.studies.engine.snapshots import Snapshot
from rekindle.studies.errors import StoreError
from rekindle.studies.failures import KILLED, RETRY_RULES
from rekindle.studies.options.entries import parse_budget
from rekindle.studies.steering.steering import Steering
from rekindle.studies.storage.store import Store
from rekindle.studies.workers.supervisor import Interrupted, Supervisor, WorkerProcess, WorkersFailed
from rekindle.studies.workers.training import Training
from rekindle.studies.workers.worker import Worker
from studying import bits, surrogate, tiny, undisturbed

WaitUntil = Callable[..., None]


class Hook:
    """A display that calls a function with each snapshot, before the supervisor reacts to it."""

    workers = 0

    def __init__(self, show: Callable[[Snapshot], None]):
        self.show, self.said = show, list[str]()

    def say(self, text: str) -> None:
        self.said.append(text)


def supervise(url: str, store: Store, show: Callable[[Supervisor, Snapshot], None]) -> tuple[Supervisor, list[str]]:
    """Supervise study s by one worker to its end, and call ``show`` at each look."""
    hook = Hook(lambda snapshot: show(supervisor, snapshot))
    supervisor = Supervisor(store, "s", 1, lambda: WorkerProcess(url, "s", 1), hook)
    supervisor.run()
    return supervisor, hook.said


def test_workers_that_a_stop_has_ended_are_replaced_if_the_study_was_resumed(
    sqlite_url: str, wait_until: WaitUntil
) -> None:
    config = surrogate(4)
    with Store(sqlite_url) as store:
        start_study(store, "s", config)
        steering, idle = Steering(store, "s"), 0

        def show(supervisor: Supervisor, snapshot: Snapshot) -> None:
            nonlocal idle
            if not store.commands("s"):
                steering.stop()
                wait_until(lambda: supervisor.workers[0].status == 0)
                steering.resume()
            idle = idle + 1 if supervisor.workers[0].status == 0 else 0
            assert snapshot.complete or idle < 9, "nobody trains the study"

        _, said = supervise(sqlite_url, store, show)
        assert bits(store) == undisturbed(config)
        assert said == []


def test_workers_that_saw_a_study_complete_are_replaced_if_it_was_extended(
    sqlite_url: str, wait_until: WaitUntil
) -> None:
    longer = surrogate(6)
    with Store(sqlite_url) as store:
        start_study(store, "s", surrogate(4))
        idle = 0

        def show(supervisor: Supervisor, snapshot: Snapshot) -> None:
            nonlocal idle
            if not store.commands("s"):
                wait_until(lambda: supervisor.workers[0].status == 0)
                assert {trial.state for trial in store.trials("s")} == {"complete", "pruned"}
                Steering(store, "s").extend(6)
            idle = idle + 1 if supervisor.workers[0].status == 0 else 0
            assert snapshot.complete or idle < 9, "nobody trains the study"

        supervise(sqlite_url, store, show)
        result, expected = bits(store), undisturbed(longer)
        assert [trial[0] for trial in result["trials"]] == [trial[0] for trial in expected["trials"]]
        assert {trial[4] for trial in result["trials"]} == {"complete", "pruned"}


def test_a_worker_that_is_killed_while_it_evaluates_what_spent_the_budget_is_replaced(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(1, (1, 2, 2), env="slow_envs:Slow-v0", options={"budget": parse_budget("1epochs")})
    with Store(sqlite_url) as store:
        start_study(store, "s", config)
        with monkeypatch.context() as patch:

            def die(training: Training, *arguments: object) -> None:
                raise KeyboardInterrupt

            patch.setattr(Training, "results_of", die)
            with pytest.raises(KeyboardInterrupt):
                Worker(store, "s").run()
        assert ([row.state for row in store.segments("s")], store.commands("s")) == (["ready"], [])
        monkeypatch.setenv(slow_envs.VARIABLE, str(tmp_path))
        first: list[object] = []

        def show(supervisor: Supervisor, snapshot: Snapshot) -> None:
            if snapshot.hold is not None and not first:
                first.append(supervisor.workers[0])
                supervisor.workers[0].kill()

        supervisor, said = supervise(sqlite_url, store, show)
        assert supervisor.workers[0].status == 0
        assert [row.state for row in store.segments("s")] == ["done"]
        if supervisor.workers != first:  # it was killed before it had ended
            assert f"was killed by {signal.SIGKILL.name}; another one replaces it" in said[0]


class Exits:
    """A worker whose environment ends the process."""

    name = "4711"

    def __init__(self, status: int, last: str = "the simulator has no license"):
        self.last_words = [last]
        self.status = subprocess.run([sys.executable, "-c", f"import os; os._exit({status})"], check=False).returncode

    def stop(self, hurried: bool = False) -> None:
        """It has ended."""

    kill = stop

    def wait(self, seconds: float) -> object:
        return True


@pytest.mark.parametrize(("status", "reason"), [(200, "one ended with: the simulator"), (128 + 40, "by signal 40")])
def test_any_exit_status_of_a_worker_is_told(sqlite_url: str, status: int, reason: str) -> None:
    with Store(sqlite_url) as store:
        start_study(store, "s", surrogate(2))
        with pytest.raises(WorkersFailed, match=reason):
            Supervisor(store, "s", 1, lambda: Exits(status), Hook(lambda snapshot: None)).run()


def test_the_explained_error_of_a_worker_is_that_of_the_study(sqlite_url: str) -> None:
    with Store(sqlite_url) as store:
        start_study(store, "s", surrogate(2))
        line = "rekindle: error: study 's' trains with another file"
        with pytest.raises(WorkersFailed, match=r"^study 's' trains with another file$"):
            Supervisor(store, "s", 1, lambda: Exits(2, line), Hook(lambda snapshot: None)).run()


def test_a_stop_while_the_database_is_away_does_not_say_that_all_is_saved(sqlite_url: str) -> None:
    def show(snapshot: Snapshot) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise StoreError("the wait was interrupted")

    with Store(sqlite_url) as store:
        start_study(store, "s", surrogate(2))
        with pytest.raises(Interrupted, match="since the last save is trained again"):
            Supervisor(store, "s", 1, lambda: Exits(0), Hook(show)).run()


def test_a_signal_to_all_processes_is_one_request_to_stop(sqlite_url: str) -> None:
    """A scheduler signals workers and supervisor one after the other, and some twice; the supervisor signals, too."""
    config = tiny(2, (9, 81, 3))
    with Store(sqlite_url) as store:
        start_study(store, "s", config)

        def show(supervisor: Supervisor, snapshot: Snapshot) -> None:
            if snapshot.epochs and supervisor.received is None:
                for pid in (supervisor.workers[0].pid or 0, os.getpid(), os.getpid()):
                    os.kill(pid, signal.SIGTERM)

        hook = Hook(lambda snapshot: show(supervisor, snapshot))
        supervisor = Supervisor(store, "s", 1, lambda: WorkerProcess(sqlite_url, "s", 1), hook)
        with pytest.raises(Interrupted, match=r"^stopped by SIGTERM; everything is saved; run the same command"):
            supervisor.run()
        assert (hook.said, supervisor.requests) == ([], 1)
        supervise(sqlite_url, store, lambda supervisor, snapshot: None)
        assert bits(store) == undisturbed(config)


def test_a_worker_that_a_signal_ended_at_its_start_is_not_replaced_if_all_are_stopped(sqlite_url: str) -> None:
    """The signal reaches the worker before its handlers, and the supervisor a moment later."""
    with Store(sqlite_url) as store:
        start_study(store, "s", surrogate(2))
        hook = Hook(lambda snapshot: None)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
        with pytest.raises(Interrupted, match="everything is saved"):
            Supervisor(store, "s", 1, lambda: Exits(128 + signal.SIGTERM), hook).run()
        assert hook.said == []


@pytest.mark.parametrize("paused", [False, True])
def test_impatience_counts_against_no_trial(sqlite_url: str, paused: bool, wait_until: WaitUntil) -> None:
    """Ask twice, and three times where a worker cannot even see that it is asked."""
    with Store(sqlite_url) as store:
        start_study(store, "s", surrogate(1, epochs=(3,), scheduler="none", fixed={"seconds": 600.0}))
        for _ in range(RETRY_RULES[KILLED].times or 0):

            def show(supervisor: Supervisor, snapshot: Snapshot) -> None:
                if store.holders() and supervisor.received is None:
                    worker = psutil.Process(supervisor.workers[0].pid)
                    wait_until(lambda: worker.num_threads() > 1)
                    if paused:
                        worker.suspend()
                    for delay in (0.0, 0.2, 0.4) if paused else (0.0, 0.2):
                        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)).start()
                    wait_until(lambda: supervisor.received is not None)

            with pytest.raises(Interrupted, match="stopped by SIGINT; a step was cut off, and what was trained since"):
                supervise(sqlite_url, store, show)
            assert store.holders() == {}
        [trial] = store.trials("s")
        assert trial.state == "running"
        assert store.histories([trial.uid]) == {}
