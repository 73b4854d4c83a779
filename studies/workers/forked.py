"""Worker processes forked in advance, which share imported modules.

Importing torch takes seconds; a fork shares the parent's imports. The processes are forked before the parent starts
threads or opens a database, then wait for a command to run. They end when their parent does.
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

from ...tasks.runtime.jax_threads import running
from ...tasks.runtime.progress import marked, unmark
from ...tasks.runtime.watcher import not_ignoring
from . import URL_VARIABLE

POLL = 0.01  # seconds between checks whether a process has ended
COMMAND = "rekindle.studies.cli"  # the module that a process runs


class Forked:
    """A forked process, with the interface of `subprocess.Popen`."""

    def __init__(self, pid: int, stdin: IO[str], stderr: IO[str]):
        self.pid, self.stdin, self.stderr = pid, stdin, stderr
        self.returncode: int | None = None

    def run(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        """Run ``rekindle`` with these arguments in the process."""
        self.stdin.write(json.dumps([*words]) + "\n" + json.dumps({**environment}) + "\n")
        self.stdin.flush()

    def poll(self) -> int | None:
        """Return the exit status, None while the process runs.

        It is -n if signal n killed the process.
        """
        with suppress(ChildProcessError):  # a signal's handler has polled amid this call, which then knows the status
            if self.returncode is None and (result := os.waitpid(self.pid, os.WNOHANG))[0]:
                self.returncode = os.waitstatus_to_exitcode(result[1])
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process ends.

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
        """Send a signal unless the process has ended.

        The pid of an ended process may belong to another one.
        """
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def can_fork() -> bool:
    """Return whether forking this process is safe.

    On macOS, system libraries do not support it; and a lock held by another thread, such as one of JAX, would never be
    released in the child.
    """
    return sys.platform == "linux" and threading.active_count() == 1 and not running()


class Crew:
    """Forked processes that wait for a command.

    Args:
        count: number of processes to fork; none are forked where that is not safe.

    Attributes:
        directory: working directory of all processes.
    """

    def __init__(self, count: int):
        """Fork the processes."""
        self.directory = os.getcwd()  # an environment may change it; a process that is started later begins here, too
        self._idle: list[Forked] = []
        if can_fork():
            for _ in range(count):
                others = [stream.fileno() for process in self._idle for stream in (process.stdin, process.stderr)]
                self._idle.append(_fork(others))

    def take(self) -> Forked | None:
        """Return a waiting process, None if none is left."""
        while self._idle:
            process = self._idle.pop()
            if process.poll() is None:
                return process
        return None

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *exception: object) -> None:
        """End the processes that still wait."""
        for process in self._idle:
            process.stdin.close()
            process.stderr.close()
        for process in self._idle:
            process.kill()  # it would end by itself, unless it is paused
            process.wait()
        self._idle = []


class CommandProcess:
    """A process that runs ``rekindle`` until its stdin is closed.

    It runs in a session of its own. It is taken from the crew or, if that is empty, started as a new interpreter.
    """

    def __init__(self, words: Sequence[str], url: str, crew: Crew | None = None):
        # The URL may contain a password, and all users can see command lines.
        with marked(""):
            environment = {**os.environ, URL_VARIABLE: url, "OMP_NUM_THREADS": "1"}
            self.process = _forked(crew, words, environment) or _started(words, environment, crew)
        self.last_words: deque[str] = deque(maxlen=30)
        assert self.process.stderr is not None
        self._listener = threading.Thread(target=self._listen, args=(self.process.stderr,), daemon=True)
        self._listener.start()

    def _listen(self, stream: IO[str]) -> None:
        with stream:
            self.last_words.extend(line.rstrip() for line in stream)

    @property
    def name(self) -> str:
        """Name shown to the user."""
        return str(self.process.pid)

    @property
    def pid(self) -> int:
        """The process."""
        return int(self.process.pid)

    @property
    def status(self) -> int | None:
        """Exit status; None while it runs, -n if killed by signal n."""
        return self.process.poll()

    def stop(self, hurried: bool = False) -> None:
        """Ask the process to save and stop, or to end its step.

        A second SIGTERM may be an echo of the first, SIGINT is not.
        """
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGINT if hurried else signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process; it resumes from what was saved."""
        self.process.kill()

    def end_stdin(self) -> None:
        """Close the process's stdin."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def wait(self, seconds: float) -> bool:
        """Wait until the process ends; kill it after `seconds`.

        Return whether it ended before.
        """
        ended = True
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            ended = False
            self.process.kill()
            self.process.wait()
        self._listener.join(1.0)  # it listens on while a process that this one has left behind, a simulator, may write
        self.end_stdin()
        return ended


def _forked(crew: Crew | None, words: Sequence[str], environment: Mapping[str, str]) -> Forked | None:
    """Run a command in a process of the crew, if any."""
    while crew is not None and (process := crew.take()) is not None:
        with suppress(BrokenPipeError):  # it was killed
            process.run(words, environment)
            return process
    return None


def _started(words: Sequence[str], environment: Mapping[str, str], crew: Crew | None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", COMMAND, *words],
        cwd=None if crew is None else crew.directory,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C then reaches only the parent, which asks each worker once
    )


def _fork(others: Sequence[int]) -> Forked:
    """Fork a process that waits for a command.

    Args:
        others: descriptors of the parent's pipes to earlier processes, which the child closes.
    """
    (stdin, to_stdin), (from_stderr, stderr) = os.pipe(), os.pipe()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # otherwise the child would write buffered output again
    # A signal waits until the child has handlers of its own: it would go on with the parent's code.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about BLAS threads, which handle forks
        pid = os.fork()
    if not pid:
        unmark()
        signal.signal(signal.SIGINT, not_ignoring)  # Ctrl-C is for the parent
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for descriptor in (*others, to_stdin, from_stderr):
            os.close(descriptor)
        _serve(stdin, stderr)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.close(stdin)
    os.close(stderr)
    return Forked(pid, os.fdopen(to_stdin, "w"), os.fdopen(from_stderr, errors="replace"))


def _serve(stdin: int, stderr: int) -> NoReturn:
    """Run the next command as a new interpreter would, and exit."""
    status: object = 0
    gc.freeze()  # never collect the parent's objects here: their finalizers belong to the parent
    inherited = sys.stdin, sys.stdout, sys.stderr  # kept alive: on deletion they would close the new descriptors
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        for number, descriptor in enumerate((stdin, null, stderr)):
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
        words, environment = _line(), _line()
        if words is None or environment is None:  # the parent has ended or does not need this process
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
    except BaseException:  # noqa: BLE001 - the parent's code must not continue in this process
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
    """Return one JSON object from stdin, None at its end.

    It reads byte by byte: what follows the line is left for the worker, which waits on stdin for its parent's end.
    """
    line = b""
    while not line.endswith(b"\n"):
        if not (byte := os.read(0, 1)):
            return None
        line += byte
    return json.loads(line)
