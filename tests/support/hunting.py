"""Orion's hunts by several processes, some of which are killed, and by its command line."""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orion.core.cli import main as orion_main
from orion.core.worker import consumer
from rekindle.studies.cli import main
from rekindle.studies.orion.db import RekindleSQL

FORK = multiprocessing.get_context("fork")


def experiment_of(client: Any) -> Any:
    """Return the experiment of Orion's client, which offers more than the client."""
    return client._experiment


def database_of(storage: Any) -> Any:
    """Return the database of Orion's storage."""
    return storage._db


def _begin(work: Callable[[], object], gate: int, opener: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    os.close(opener)
    work()
    os.read(gate, 1)  # a process that is ready can still be killed before the gate opens


def run_killed(
    work: Callable[[], object],
    database: RekindleSQL,
    max_trials: int,
    count: int,
    kills: int,
    wait_until: Callable[..., None],
    seconds: float,
) -> None:
    """Work with several processes, kill some at random times, replace them, and wait for the end."""
    gate, opener = os.pipe()

    def start() -> multiprocessing.process.BaseProcess:
        worker = FORK.Process(target=_begin, args=(work, gate, opener))
        worker.start()
        return worker

    workers = [start() for _ in range(count)]
    try:
        for kill in range(kills):  # spread over the first two thirds of the hunt
            done = (kill + 1) * 2 * max_trials // (3 * (kills + 1))
            wait_until(lambda done=done: database.count("trials", {"status": "completed"}) >= done, seconds)
            victim = random.choice([worker for worker in workers if worker.is_alive()])
            os.kill(victim.pid or 0, signal.SIGKILL)
            victim.join()
            workers.append(start())
    finally:
        os.close(opener)
    deadline = time.monotonic() + seconds
    for worker in workers:
        worker.join(max(0.1, deadline - time.monotonic()))
    os.close(gate)
    left = [worker for worker in workers if worker.is_alive()]
    for worker in left:
        worker.kill()
    assert not left, "the hunt did not end"
    assert sorted(worker.exitcode or 0 for worker in workers) == [-signal.SIGKILL] * kills + [0] * count


def orion_says(
    arguments: list[str],
    url: str,
    directory: Path,
    forked: int = 0,
    environment: dict[str, str] | None = None,
    real: bool = False,
) -> str:
    """Run Orion's command in a forked process, and return its output.

    Args:
        arguments: arguments of the command.
        url: URL of the database.
        directory: working directory.
        forked: number of first trials that are forked, too; the others are separate programs.
        environment: environment variables of the programs, in addition to those that Orion needs.
        real: whether to run the command in its own interpreter.
    """
    folder = Path(sys.executable).parent
    settings = {
        "ORION_STORAGE_TYPE": "rekindlestorage",
        "ORION_DB_TYPE": "rekindlesql",
        "ORION_DB_ADDRESS": url,
        "PATH": f"{folder}:{os.environ['PATH']}",  # Orion looks for rekindle, even in commands that only print
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": "1",
        "ORION_EXECUTOR": "singleexecutor",
        "XDG_CONFIG_HOME": str(directory),
        **(environment or {}),
    }
    said = directory / "orion.log"
    if real:
        with said.open("w") as file:
            command = [str(folder / "orion"), *arguments]
            subprocess.run(
                command, env={**os.environ, **settings}, cwd=directory, stdout=file, stderr=file, check=False
            )
        return said.read_text()
    process = FORK.Process(target=_orion, args=(arguments, settings, directory, said, forked))
    process.start()
    process.join()
    return said.read_text()


def _orion(arguments: list[str], settings: dict[str, str], directory: Path, said: Path, forked: int) -> None:
    sys.stdout = sys.stderr = said.open("w")
    for descriptor in (1, 2):
        os.dup2(sys.stdout.fileno(), descriptor)
    warnings.simplefilter("ignore")
    logging.root.handlers.clear()  # with pytest's handlers, Orion would log nothing
    os.environ.update(settings)
    os.chdir(directory)
    Forked.left = forked
    consumer.subprocess = Forked
    orion_main(arguments)


class Forked:
    """A substitute for the module that starts Orion's programs, which forks the first ones."""

    left = 0

    @classmethod
    def Popen(cls, command: list[str], env: dict[str, str]) -> Any:  # noqa: N802
        if not cls.left:
            return subprocess.Popen(command, env=env)
        cls.left -= 1
        return cls(command, env)

    def __init__(self, command: list[str], environment: dict[str, str]):
        assert Path(command[0]).name == "rekindle"
        self.pid = os.fork()
        if not self.pid:
            status = 1
            try:
                os.environ.update(environment)
                status = main(command[1:])
            finally:
                sys.stdout.flush()
                os._exit(status)

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
