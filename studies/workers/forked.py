"""Processes that are forked before they are needed.

They share what their parent has imported: to import torch takes a new process seconds. They are forked before their
parent starts a thread or opens a database, and wait until they are told which command to run; the end of their parent
ends them.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, NoReturn

import torch
from threadpoolctl import threadpool_limits

from ...tasks.compiled.loading import kernels
from . import URL_VARIABLE

POLL = 0.01  # seconds between two looks whether a process has ended
COMMAND = "rekindle.studies.cli"  # what a process runs


class Forked:
    """A forked process, with the interface of `subprocess.Popen`."""

    def __init__(self, pid: int, stdin: IO[str], stderr: IO[str]):
        self.pid, self.stdin, self.stderr = pid, stdin, stderr
        self.returncode: int | None = None

    def run(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        """Let it run ``rekindle`` with these words."""
        self.stdin.write(json.dumps([*words]) + "\n" + json.dumps({**environment}) + "\n")
        self.stdin.flush()

    def poll(self) -> int | None:
        """Return its exit status, None while it runs.

        It is minus the signal that killed it.
        """
        if self.returncode is None and (found := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(found[1])
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it still runs after `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(COMMAND, timeout or 0.0)
            time.sleep(POLL)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended.

        Its number may be another process's then.
        """
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


def can_fork() -> bool:
    """Return whether a fork of this process is safe.

    Apple's libraries do not survive one, and a thread that holds a lock never lets go of it in a child.
    """
    return sys.platform == "linux" and threading.active_count() == 1


class Crew:
    """Forked processes that wait for a command."""

    def __init__(self, count: int):
        """Fork `count` processes; where that is not safe, none."""
        self._idle: list[Forked] = []
        if can_fork():
            kernels()  # or every process would load them
            for _ in range(count):
                others = [stream.fileno() for process in self._idle for stream in (process.stdin, process.stderr)]
                self._idle.append(_fork(others))

    def take(self) -> Forked | None:
        """Return a process that waits, None if there is none left."""
        while self._idle:
            process = self._idle.pop()
            if process.poll() is None:
                return process
        return None

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *exception: object) -> None:
        """End those that still wait."""
        for process in self._idle:
            process.stdin.close()
            process.stderr.close()
        for process in self._idle:
            process.wait()
        self._idle = []


class CommandProcess:
    """A process that runs ``rekindle`` until its stdin ends.

    It has a session of its own, and is one of the crew while that has some, else a new one.
    """

    def __init__(self, words: Sequence[str], url: str, crew: Crew | None = None):
        # The URL may hold a password, and everybody can read a command line.
        environment = {**os.environ, URL_VARIABLE: url, "OMP_NUM_THREADS": "1"}
        self.process = _forked(crew, words, environment) or _started(words, environment)
        self.last_words: deque[str] = deque(maxlen=30)
        assert self.process.stderr is not None
        self._listener = threading.Thread(target=self._listen, args=(self.process.stderr,), daemon=True)
        self._listener.start()

    def _listen(self, stream: IO[str]) -> None:
        self.last_words.extend(line.rstrip() for line in stream)

    @property
    def name(self) -> str:
        """The name that people see."""
        return str(self.process.pid)

    @property
    def status(self) -> int | None:
        """None while it runs; minus the signal that killed it."""
        return self.process.poll()

    def stop(self) -> None:
        """Ask it to save and stop."""
        with suppress(ProcessLookupError):
            self.process.terminate()

    def kill(self) -> None:
        """Kill it; nothing that was saved is lost."""
        self.process.kill()

    def end_stdin(self) -> None:
        """Let it see the end of its stdin."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def wait(self, seconds: float) -> None:
        """Wait for its end, and kill it after `seconds`."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._listener.join(1.0)
        for stream in (self.process.stdin, self.process.stderr):
            if stream is not None:
                stream.close()


def _forked(crew: Crew | None, words: Sequence[str], environment: Mapping[str, str]) -> Forked | None:
    """Let a process of the crew run a command, if any."""
    process = None if crew is None else crew.take()
    if process is not None:
        process.run(words, environment)
    return process


def _started(words: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", COMMAND, *words],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # so that Ctrl-C reaches the parent only, which asks each worker once
    )


def _fork(others: Sequence[int]) -> Forked:
    """Fork a process that waits for a command.

    `others` are the descriptors of its parent's pipes to earlier ones.
    """
    (stdin, to_stdin), (from_stderr, stderr) = os.pipe(), os.pipe()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # or a child would write the rest, too
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the BLAS's threads, which know what a fork is
        pid = os.fork()
    if not pid:
        for descriptor in (*others, to_stdin, from_stderr):
            os.close(descriptor)
        _serve(stdin, stderr)
    os.close(stdin)
    os.close(stderr)
    return Forked(pid, os.fdopen(to_stdin, "w"), os.fdopen(from_stderr, errors="replace"))


def _serve(stdin: int, stderr: int) -> NoReturn:
    """Run the command that comes, as a new interpreter would, and end."""
    status: object = 0
    gc.freeze()  # what the parent has no use for any more is nothing to this process
    inherited = sys.stdin, sys.stdout, sys.stderr  # they would close the new ones
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
        null = os.open(os.devnull, os.O_WRONLY)
        for number, descriptor in enumerate((stdin, null, stderr)):
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
        words, environment = _line(), _line()
        if words is None or environment is None:  # the parent has ended, or needs no more
            os._exit(0)
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(environment)
        threadpool_limits(1)
        torch.set_num_threads(1)
        sys.argv = [COMMAND, *words]
        runpy.run_module(COMMAND, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code or 0
    except BaseException:  # noqa: BLE001 - nothing of the parent's may run in this process
        traceback.print_exc()
        status = 1
    if not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    del inherited
    os._exit(status)


def _line() -> Any:
    """Return the object in a line of stdin, None at its end.

    Nothing behind the line is read: a worker waits there for the end of its parent.
    """
    line = b""
    while not line.endswith(b"\n"):
        if not (byte := os.read(0, 1)):
            return None
        line += byte
    return json.loads(line)
