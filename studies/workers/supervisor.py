"""The parent of a study's workers: has them started, replaces those that are killed, shows how it goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, Protocol

from ..engine.watch import Snapshot, Watch
from ..errors import StoreError
from ..storage.store import Store
from . import URL_VARIABLE

GIVE_UP = 6  # deaths in a row, for each worker, without an epoch or a failed trial in between
LOOK_EVERY = 0.25  # seconds
PATIENCE = 60.0  # seconds that a worker has to save and stop before it is killed


class WorkersFailed(StoreError):
    """Workers die as often as they are started."""


class WorkerHandle(Protocol):
    """A worker, as its parent sees it, wherever it runs."""

    @property
    def name(self) -> str:
        """What people know it by."""

    @property
    def status(self) -> int | None:
        """None while it runs, 0 if the study is complete; after a signal 128 + its number, or minus it if it killed."""

    @property
    def last_words(self) -> Sequence[str]:
        """The last lines that it said."""

    def stop(self) -> None:
        """Asks it to save and stop."""

    def kill(self) -> None:
        """Ends it at once."""

    def wait(self, seconds: float) -> None:
        """Waits for its end, and kills it if it takes too long."""


class Display(Protocol):
    """Shows people how far the study is, such as a terminal.

    Attributes:
        workers: the number of worker processes that run.
    """

    workers: int

    def show(self, snapshot: Snapshot) -> None:
        """Show the newest snapshot."""

    def say(self, text: str) -> None:
        """Print a line that stays."""


class WorkerProcess:
    """A worker as a process of its own: the same as ``rekindle worker``, but it ends with its parent."""

    def __init__(self, url: str, study: str, workers: int, extra: Sequence[str] = ()):
        # The URL may hold a password, and everybody can read a command line.
        environment = {**os.environ, URL_VARIABLE: url, "OMP_NUM_THREADS": "1"}
        command = [
            sys.executable,
            "-m",
            "rekindle.studies.cli",
            "worker",
            "--study",
            study,
            "--workers",
            str(workers),
            "--quiet",
            "--with-parent",
            *extra,
        ]
        # In a session of its own, Ctrl-C reaches the parent alone, which asks each worker once.
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.last_words: deque[str] = deque(maxlen=30)
        assert self.process.stderr is not None
        self._listener = threading.Thread(target=self._listen, args=(self.process.stderr,), daemon=True)
        self._listener.start()

    def _listen(self, stream: IO[str]) -> None:
        self.last_words.extend(line.rstrip() for line in stream)

    @property
    def name(self) -> str:
        """What people know it by."""
        return str(self.process.pid)

    @property
    def status(self) -> int | None:
        """None while it runs; negative for the signal that killed it."""
        return self.process.poll()

    def stop(self) -> None:
        """Asks it to save and stop."""
        with suppress(ProcessLookupError):
            self.process.terminate()

    def kill(self) -> None:
        """Ends it at once; nothing that was saved is lost."""
        self.process.kill()

    def wait(self, seconds: float) -> None:
        """Waits for its end, and kills it if it takes too long."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._listener.join(1.0)
        for stream in (self.process.stdin, self.process.stderr):
            if stream is not None:
                stream.close()


class Interrupted(Exception):
    """The user asked to stop; everything is saved.

    Attributes:
        signal: how.
    """

    def __init__(self, number: signal.Signals):
        self.signal = number
        super().__init__(f"stopped by {number.name}; everything is saved, and the same command carries on")


class Supervisor:
    """Runs a study to its end with so many workers, each of which `hire` starts."""

    def __init__(self, store: Store, study: str, workers: int, hire: Callable[[], WorkerHandle], progress: Display):
        self.store, self.study, self.workers, self.hire, self.progress = store, study, workers, hire, progress
        self.crew: list[WorkerHandle] = []
        self.deaths, self.through = 0, -1
        self.asked: signal.Signals | None = None

    def run(self) -> None:
        """Returns when the study is complete. Interrupted after SIGINT or SIGTERM, WorkersFailed if nothing goes on."""
        before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        self.store.wait_until(lambda: self.asked is not None)
        try:
            self._watch()
        except StoreError:
            if self.asked is None:  # else it waited for the database, and was told not to
                raise
        finally:
            for worker in self.crew:
                worker.stop()
            for worker in self.crew:
                worker.wait(PATIENCE)
            for number, handler in before.items():
                signal.signal(number, handler)
        if self.asked is not None:
            raise Interrupted(self.asked)

    def _ask(self, number: int, frame: object) -> None:
        if self.asked is not None:  # asked twice: at once, and nothing is lost either way
            for worker in self.crew:
                worker.kill()
        self.asked = signal.Signals(number)

    def _watch(self) -> None:
        self.crew = [self.hire() for _ in range(self.workers)]
        watch = Watch(self.store, self.study)
        while self.asked is None:
            snapshot = watch.look()
            through = snapshot.epochs + snapshot.counts.get("failed", 0)
            if through > self.through:
                self.deaths, self.through = 0, through
            self.progress.workers = sum(worker.status is None for worker in self.crew)
            self.progress.show(snapshot)
            if snapshot.complete:
                return
            self._replace_the_dead()
            time.sleep(LOOK_EVERY)

    def _replace_the_dead(self) -> None:
        for place, worker in enumerate(self.crew):
            if not worker.status:  # runs, or is through because it saw the end before this process did
                continue
            worker.wait(1.0)
            words = list(worker.last_words)
            said = words[-1] if words else "nothing"
            number = -worker.status if worker.status < 0 else worker.status - 128
            if number <= 0:  # an error that it named itself; another worker would meet it again
                raise WorkersFailed(f"a worker must go on until the study is complete, but one ended with: {said}")
            self.deaths += 1
            if self.deaths >= GIVE_UP * self.workers:
                raise WorkersFailed(
                    f"{self.deaths} workers in a row were killed before they finished an epoch, the last one by "
                    f"{signal.Signals(number).name}; is there enough memory? It said: {said}"
                )
            self.progress.say(
                f"worker {worker.name} was killed by {signal.Signals(number).name}; another one takes over"
            )
            self.crew[place] = self.hire()
