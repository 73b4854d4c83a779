"""Workers that hang, are killed, paused or preempted, or have wrong clocks, on a database that sometimes fails."""

from __future__ import annotations

import heapq
import itertools
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hanging
from rekindle.studies.errors import StoreError
from rekindle.studies.failures import HUNG
from rekindle.studies.storage.locks.fencing import TAKEOVER
from rekindle.studies.storage.store import Store
from skewed import skewed

# Forks workers (`rekindle worker`) from a process that has imported everything, in 50 ms each. Workers record each
# epoch as soon as it is trained, before they can be killed, and write a mark whenever they make progress: when a worker
# starts, writes rows, has trained an epoch, saves, or writes results.
NURSERY = """
import json, os, signal, sys
import optuna
from rekindle.studies import cli
from rekindle.studies.cli import dispatch
from rekindle.studies.engine.runner import StudyRunner
from rekindle.studies.workers import worker
from rekindle.studies.samplers import suggest
from rekindle.studies.storage.store import Store
from rekindle.tasks.learner import Learner
from rekindle.tasks.algorithms.ppo import PPO

counter, deaths, marks = (os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) for path in sys.argv[1:4])
run_epoch = Learner.run_epoch

def counted(learner, *arguments, **more):
    metrics = run_epoch(learner, *arguments, **more)
    if metrics is not None:
        os.write(counter, b"%d\\n" % learner.members)
        os.write(marks, b".")
    return metrics

def mark(owner, name):
    method = getattr(owner, name)
    def marked(*arguments, **more):
        os.write(marks, b".")
        return method(*arguments, **more)
    setattr(owner, name, marked)

def bury(*_):
    try:
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            os.write(deaths, b"%d %d\\n" % (found[0], os.waitstatus_to_exitcode(found[1])))
    except ChildProcessError:
        pass

Learner.run_epoch = counted
for owner, name in ((StudyRunner, "_write"), (Store, "save"), (Store, "finish_segments")):
    mark(owner, name)
os.setpgid(0, 0)
signal.signal(signal.SIGCHLD, bury)
print("ready", flush=True)
for line in sys.stdin:
    argv, log = json.loads(line)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    if not pid:
        out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(out, 1), os.dup2(out, 2)
        os.write(marks, b".")
        status = 1
        try:
            status = cli.main(argv)
        finally:
            sys.stderr.flush()
            os._exit(status)
    print(pid, flush=True)
os.killpg(0, signal.SIGKILL)
"""


HANGS = "hangs"  # folder of the files that make workers hang
STUCK = 5.0  # time without a step after which a worker hangs, in leases
MARKS = 3  # at most, between two faults
DATABASE = ("database locked", "server killed", "disk full")
FAULTS = ({"SIGKILL"}, {"SIGSTOP"}, {"SIGTERM"}, {"hang"}, {*DATABASE})  # five kinds; the last one is any of several


class Nursery:
    """A process that forks workers.

    Args:
        directory: directory for their logs.
        skew: seconds by which their clocks are wrong.
    """

    def __init__(self, directory: Path, skew: int = 0):
        self.directory, self.skew = directory, skew
        self.logs = itertools.count()
        self.epochs, self.deaths, self.marks = (directory / f"{name}{skew}" for name in ("epochs", "deaths", "marks"))
        environment, beginning = skewed(directory, skew) if skew else ({**os.environ}, "")
        command = [sys.executable, "-c", beginning + NURSERY, *map(str, (self.epochs, self.deaths, self.marks))]
        environment["OMP_NUM_THREADS"] = "1"
        environment[hanging.VARIABLE] = str(directory / HANGS)
        environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), environment.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._hear() == "ready"

    def start(self, argv: list[str]) -> int:
        """Start a worker, and return its pid."""
        assert self.process.stdin is not None
        log = self.directory / f"worker{self.skew}-{next(self.logs)}.log"
        self.process.stdin.write(json.dumps([argv, str(log)]) + "\n")
        self.process.stdin.flush()
        return int(self._hear())

    def statuses(self) -> dict[int, int]:
        """Return the exit statuses of workers that have ended, by pid."""
        lines = self.deaths.read_text().split("\n") if self.deaths.exists() else []
        return {int(line.split()[0]): int(line.split()[1]) for line in lines if line}

    def progress(self) -> int:
        """Return the number of marks of its workers."""
        return self.marks.stat().st_size if self.marks.exists() else 0

    def close(self) -> None:
        """Kill all workers, and end the process."""
        self.process.communicate("")

    def _hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


class Disk:
    """A small file system that can be filled completely."""

    def __init__(self, directory: Path, megabytes: int):
        self.directory, self.filler = directory, directory / "filler"
        directory.chmod(0o755)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=755", "none", str(directory)]
        self.mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0  # only root may

    def fill(self) -> None:
        """Fill the file system."""
        with suppress(OSError), self.filler.open("wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12):
                with suppress(OSError):
                    while True:
                        file.write(bytes(size))

    def empty(self) -> None:
        """Free the space again."""
        self.filler.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount the file system."""
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.directory)], check=True)
        shutil.rmtree(self.directory, ignore_errors=True)


@dataclass
class Figures:
    """Statistics of a disturbed study."""

    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    takeovers: Counter[str] = field(default_factory=Counter)
    needed: int = 0  # epochs
    trained: int = 0
    refused: int = 0  # late writes
    waits: int = 0
    longest: int = 0  # seconds
    retries: int = 0
    seconds: float = 0.0

    @property
    def kinds(self) -> int:
        """Return how many of the five kinds of faults occurred."""
        return sum(any(self.faults[name] for name in fault) for fault in FAULTS)

    def __str__(self) -> str:
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.faults.items()))
        takeovers = ", ".join(f"{count} {why}" for why, count in sorted(self.takeovers.items()))
        lost = self.trained - self.needed
        return (
            f"seed {self.seed}: {self.faults.total()} faults in {self.seconds:.0f} s ({faults}); "
            f"{self.takeovers.total()} takeovers ({takeovers}); {self.needed} epochs needed, {lost} trained twice; "
            f"{self.refused} late writes refused; {self.waits} waits for the database, the longest {self.longest} s"
        )


@dataclass
class Member:
    """A worker of the crew."""

    nursery: Nursery
    pid: int
    paused: bool = False
    leaving: bool = False  # whether it was told to end

    def send(self, number: signal.Signals) -> None:
        if not self.ended:  # otherwise the pid may belong to another process
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    @property
    def ended(self) -> bool:
        return self.pid in self.nursery.statuses()


class Chaos:
    """A crew that works on a study, and is disturbed meanwhile.

    The crew's marks, not the clock, determine when the next fault comes. On a machine of any speed and load, the crew
    thus makes the same progress between two faults, and is hit equally often while it starts, plans, trains and saves.

    Args:
        url, study: study to work on.
        crew: number of workers.
        seed: seed of the faults, and of their times and lengths.
        lease: seconds of a lease.
        disk: file system of the database.
        server: PostgreSQL server, or None.
        beside: commands that run beside the crew until the study ends, and are disturbed, too.
    """

    def __init__(
        self,
        url: str,
        study: str,
        directory: Path,
        *,
        crew: int,
        seed: int,
        lease: float,
        disk: Disk,
        server: Any = None,
        beside: Sequence[Sequence[str]] = (),
    ):
        self.url, self.study, self.directory = url, study, directory
        worker = ["worker", "--study", study, "--workers", str(crew), "--lease", str(lease)]
        worker += ["--stuck", f"{STUCK * lease:g}s"]
        self.commands = [*(worker for _ in range(crew)), *beside]
        self.lease, self.disk, self.server = lease, disk, server
        self.random, self.figures = random.Random(seed), Figures(seed)
        self.crew: list[Member] = []
        self.all: list[Member] = []
        self.agenda: list[tuple[float, int, Callable[[], None]]] = []
        self.turn = itertools.count()
        self.busy: set[str] = set()  # present faults of the database
        self.kinds: list[str] = []  # next faults
        self.last = 0, time.monotonic()  # number of marks, and time at which the last one was seen

    def run(self, faults: int, patience: float) -> Figures:
        """Disturb the crew in each of the five ways, then let it finish.

        Args:
            faults: smallest number of faults.
            patience: seconds without a mark after which the test fails.
        """
        began = time.monotonic()
        self.patience = patience
        with self._nurseries() as self.nurseries, Store(self.url, retry=0.5) as store:
            self.store = store
            try:
                for place in range(len(self.commands)):
                    self._start(place)
                self._disturb(faults)
                self._calm()
            finally:
                for member in self.all:
                    member.send(signal.SIGKILL)
            self.figures.seconds = time.monotonic() - began
            self._check_ends()
        self._count()
        return self.figures

    @contextmanager
    def _nurseries(self) -> Iterator[list[Nursery]]:
        hour = self.random.choice([-3600, 3600])
        nurseries = [Nursery(self.directory), Nursery(self.directory, hour)]
        try:
            yield nurseries
        finally:
            for nursery in nurseries:
                nursery.close()

    # Faults

    def _disturb(self, faults: int) -> None:
        """Cause a fault after every few marks, at a random time before the next mark is due."""
        began, due, strikes = time.monotonic(), 1, list[float]()
        while (self.figures.faults.total() < faults or self.figures.kinds < len(FAULTS)) and not self._complete():
            marks = self._look()
            while marks >= due:
                now = time.monotonic()
                heapq.heappush(strikes, now + self.random.random() * (now - began) / marks)
                due += self.random.randint(0, MARKS)
            while strikes and strikes[0] <= time.monotonic():
                heapq.heappop(strikes)
                self._strike()
            self._keep_agenda()
            self._replace_hung()
            time.sleep(0.01)

    def _look(self) -> int:
        """Return the crew's number of marks; fail if it makes no progress."""
        marks, now = sum(nursery.progress() for nursery in self.nurseries), time.monotonic()
        if marks != self.last[0]:
            self.last = marks, now
        assert now < self.last[1] + self.patience, f"no end with seed {self.figures.seed}: {self._last_words()}"
        self.figures.faults["hang"] = len([*(self.directory / HANGS).glob("taken-*")])
        return marks

    def _strike(self) -> None:
        """Cause the next possible fault; all kinds take turns."""
        for _ in range(2):
            for fault in self.kinds:
                if getattr(self, fault)():
                    self.kinds.remove(fault)
                    return
            self.kinds = self.random.sample(self._kinds(), len(self._kinds()))

    def _kinds(self) -> list[str]:
        database = ["lock" if self.server is None else "crash", *(["fill"] if self.disk.mounted else [])]
        return ["kill", "kill", "kill", "pause", "pause", "preempt", "hang", *database]

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.agenda, (time.monotonic() + seconds, next(self.turn), action))

    def _keep_agenda(self) -> None:
        while self.agenda and self.agenda[0][0] <= time.monotonic():
            heapq.heappop(self.agenda)[2]()

    def _victim(self) -> Member | None:
        living = [worker for worker in self.crew if not worker.paused and not worker.leaving and not worker.ended]
        return self.random.choice(living) if living else None

    def _start(self, place: int) -> None:
        nursery = self.nurseries[place == 0]  # the first worker has a wrong clock
        argv = [*self.commands[place], "--storage", self.url, "--patience", "60"]
        member = Member(nursery, nursery.start(argv))
        self.all.append(member)
        if place < len(self.crew):
            self.crew[place] = member
        else:
            self.crew.append(member)

    def _end(self, name: str, number: signal.Signals) -> bool:
        if (member := self._victim()) is None:
            return False
        self.figures.faults[name] += 1
        member.leaving = True
        member.send(number)
        place = self.crew.index(member)
        self._later(self.random.uniform(0.0, 0.3) * self.lease, lambda: self._start(place))
        return True

    def kill(self) -> bool:
        return self._end("SIGKILL", signal.SIGKILL)

    def preempt(self) -> bool:
        return self._end("SIGTERM", signal.SIGTERM)

    def hang(self) -> bool:
        """Make the next worker that steps its environment hang, until its watcher kills it."""
        folder = self.directory / HANGS
        if [*folder.glob("[0-9]*")]:  # no worker has taken the last file yet
            return False
        with suppress(StoreError):
            histories = self.store.histories([trial.uid for trial in self.store.trials(self.study)])
            if not any(history.failed[HUNG] for history in histories.values()):  # three hangs in a row fail a trial
                hanging.hang(folder, self.random.choice([*hanging.WAYS]))
                return True
        return False

    def _replace_hung(self) -> None:
        for index, member in enumerate(self.crew):
            if not member.leaving and member.nursery.statuses().get(member.pid) == -signal.SIGKILL:
                member.leaving = True
                self._start(index)

    def pause(self) -> bool:
        if (member := self._victim()) is None:
            return False
        self.figures.faults["SIGSTOP"] += 1
        member.paused = True
        member.send(signal.SIGSTOP)

        def go_on() -> None:
            member.send(signal.SIGCONT)
            member.paused = False

        self._later(self.random.uniform(0.2, 2.5) * self.lease, go_on)
        return True

    def lock(self) -> bool:
        if self.busy:
            return False
        connection = sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=0.2, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            connection.close()
            return False
        return self._lasts("database locked", connection.close)

    def crash(self) -> bool:
        if self.busy:
            return False
        self.server.kill()
        return self._lasts("server killed", self.server.start)

    def fill(self) -> bool:
        if self.busy:
            return False
        self.disk.fill()
        return self._lasts("disk full", self._make_room)

    def _make_room(self) -> None:
        self.disk.empty()
        if self.server is not None:  # it stops if it has no space for its log
            self.server.start()

    def _lasts(self, name: str, end: Callable[[], None]) -> bool:
        self.figures.faults[name] += 1
        self.busy.add(name)

        def over() -> None:
            end()
            self.busy.discard(name)

        self._later(self.random.uniform(0.3, 2.0) * self.lease, over)
        return True

    # The end

    def _complete(self) -> bool:
        with suppress(StoreError):
            return bool(self._ended()) and (
                {trial.state for trial in self.store.trials(self.study)} <= {"complete", "pruned", "failed"}
            )
        return False

    def _ended(self) -> list[Member]:
        """Return the workers that have seen the end of the study."""
        return [member for member in self.all if member.nursery.statuses().get(member.pid) == 0]

    def _calm(self) -> None:
        """Disturb nobody until the study is complete and all workers have seen it."""
        while self.agenda:
            heapq.heappop(self.agenda)[2]()
        for path in (self.directory / HANGS).glob("[0-9]*"):  # files that no worker has taken
            path.unlink(missing_ok=True)
        while not all(member.ended for member in self.crew):
            self._look()
            for index, member in enumerate(self.crew):
                if member.ended and member.nursery.statuses()[member.pid] != 0:
                    self._start(index)
            time.sleep(0.1)

    def _check_ends(self) -> None:
        killed = {-signal.SIGKILL, 128 + signal.SIGTERM, -signal.SIGTERM, 0}  # the third before it had a handler
        result = {member.pid: member.nursery.statuses().get(member.pid, -signal.SIGKILL) for member in self.all}
        wrong = {pid: status for pid, status in result.items() if status not in killed}
        assert not wrong, f"workers ended with {wrong} (seed {self.figures.seed}): {self._last_words()}"

    def _logs(self) -> Iterator[tuple[str, str]]:
        for path in sorted(self.directory.glob("worker*.log")):
            yield path.name, path.read_text()

    def _last_words(self) -> str:
        return "\n".join(f"{name}: {text[-1500:]}" for name, text in self._logs() if text.count("\n") > 1)

    def _count(self) -> None:
        figures, text = self.figures, "\n".join(text for _, text in self._logs())
        figures.refused = text.count("is held by another process now")
        figures.waits = text.count("waiting for the database")
        figures.retries = text.count("is tried again")
        figures.longest = max([0, *map(int, re.findall(r"the database is back after (\d+) s", text))])
        counters = [nursery.epochs for nursery in self.nurseries if nursery.epochs.exists()]
        figures.trained = sum(int(line) for counter in counters for line in counter.read_text().split())
        with Store(self.url) as store:
            reached: dict[str, int] = {}
            uids = {trial.number: trial.uid for trial in store.trials(self.study)}
            for row in store.segments(self.study):
                reached[uids[row.number]] = max(reached.get(uids[row.number], 0), row.epochs)
            figures.needed = sum(reached.values())
            for uid in reached:
                for event in store.events(uid):
                    if event.kind == TAKEOVER:
                        figures.takeovers[event.data["why"]] += 1
