"""Python processes that are forked from one that has imported everything, in milliseconds instead of seconds.

`Popen` is a `subprocess.Popen`: the process is a child of the caller, with a pid, pipes, signals and an exit status. It
shares the imports of torch, Optuna and Gymnasium. Of the environment variables that an interpreter reads at its start,
only PYTHONPATH has an effect. Commands other than ``python -c`` and ``python -m`` are started normally.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import inspect
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SUBREAPER = 36  # prctl option: orphaned descendants become children of this process
START = "import sys; sys.path.insert(0, sys.argv[2]); import nursery; nursery.main(int(sys.argv[1]))"
PARENTS = ["rekindle.studies.cli", "tune"]  # a command that itself starts processes
MAINS = ("__main__", "ray_workers", "processes.child", "examples.digits")  # modules that are run, or import much
PACKAGES = [
    *("optuna", "alembic.command", "sqlalchemy.orm", "sqlalchemy.dialects.sqlite", "psycopg", "psutil"),
    *("sqlalchemy.dialects.postgresql.psycopg", "gymnasium.envs.classic_control", "rich.live", "rich.table"),
]
STREAMS = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
SIGNATURE = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]


class Nursery:
    """The forking process, as its caller sees it."""

    def __init__(self, requests: socket.socket, process: subprocess.Popen[bytes] | None = None):
        self.requests, self.process, self.lock = requests, process, threading.Lock()

    def start(self, request: dict[str, Any], streams: Sequence[int]) -> int:
        """Start a process, and return its pid; it is a child of this process."""
        with self.lock:
            _adopt_orphans(True)
            try:
                socket.send_fds(self.requests, [json.dumps(request).encode()], streams)
                return int(self.requests.recv(64))
            finally:
                _adopt_orphans(False)

    def close(self) -> None:
        """End the nursery, but not the processes that it started."""
        self.requests.close()
        if self.process is not None:
            self.process.wait()


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    """A process that is forked if it runs Python."""

    nursery: Nursery | None = None

    def _execute_child(self, *arguments: Any) -> None:
        named = SIGNATURE.bind(self, *arguments).arguments
        command = list(map(os.fspath, named["args"]))
        if sys.platform != "linux" or command[0] != sys.executable or command[1] not in ("-c", "-m"):
            return super()._execute_child(*arguments)
        request = {
            "command": command[1:],
            "directory": os.fspath(named["cwd"] or os.getcwd()),
            "environment": dict(os.environ if named["env"] is None else named["env"]),
            "session": named["start_new_session"],
            "group": named["process_group"],
            "passed": sorted(named["pass_fds"]),
        }
        streams = [named["p2cread"], named["c2pwrite"], named["errwrite"]]
        streams = [n if fd < 0 else fd for n, fd in enumerate(streams)]
        self.pid = start().start(request, [*streams, *request["passed"]])
        self._child_created = True
        self._close_pipe_fds(*map(named.get, STREAMS))
        return None


def run(command: Sequence[str], **how: Any) -> subprocess.CompletedProcess[str]:
    """Run a command like `subprocess.run`, and capture both streams as text."""
    with Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how) as process:
        stdout, stderr = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def start() -> Nursery:
    """Return the nursery of this process."""
    if Popen.nursery is None:
        Popen.nursery = _start_nursery()
    return Popen.nursery


def close() -> None:
    """End the nursery, if there is one."""
    if Popen.nursery is not None:
        Popen.nursery.close()
        Popen.nursery = None


def _start_nursery() -> Nursery:
    from rekindle.tasks.runtime.progress import marked

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, marked(""):  # a command ends what is marked, but the nursery outlives it
        process = subprocess.Popen(
            [sys.executable, "-c", START, str(theirs.fileno()), str(Path(__file__).parent)],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    return Nursery(ours, process)


def _adopt_orphans(here: bool) -> None:
    ctypes.CDLL(None).prctl(SUBREAPER, int(here), 0, 0, 0)


# Within the nursery


def main(descriptor: int) -> None:
    """Import everything, and fork until there are no more requests."""
    gc.disable()  # imports make hardly any garbage
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import rekindle
        from rekindle.tasks.compiled import loading

        loading.kernels()  # uses the cache of machine code; importing the modules of kernels would compile
        for name in PACKAGES:
            importlib.import_module(name)
        for package in ("spaces", "tasks", "studies"):
            for submodule in pkgutil.walk_packages([f"{rekindle.__path__[0]}/{package}"], f"rekindle.{package}."):
                if (
                    not submodule.name.endswith(MAINS)
                    and "orion" not in submodule.name
                    and ".cuda." not in submodule.name
                ):
                    with contextlib.suppress(ImportError):  # of an extra that is not installed
                        importlib.import_module(submodule.name)
    gc.freeze()
    gc.enable()
    _serve(socket.socket(fileno=descriptor))
    os._exit(0)


def _serve(requests: socket.socket) -> None:
    while True:
        message, streams, _, _ = socket.recv_fds(requests, 1 << 20, 8)
        if not message:
            return
        told, tell = os.pipe()
        between = os.fork()
        if not between:  # ends at once, so that its child becomes a child of the caller
            if os.fork():
                os._exit(0)
            requests.close()
            os.close(told)
            _become(json.loads(message), streams, tell)
        os.close(tell)
        pid = os.read(told, 64)
        os.waitpid(between, 0)
        for descriptor in (told, *streams):
            os.close(descriptor)
        requests.send(pid)


def _become(request: dict[str, Any], streams: list[int], tell: int) -> None:
    """Run a command like an interpreter, and exit."""
    if request["session"]:
        os.setsid()
    if request["group"] >= 0:
        os.setpgid(0, request["group"])
    os.write(tell, str(os.getpid()).encode())
    os.close(tell)
    numbers = [0, 1, 2, *request["passed"]]
    above = max(*numbers, *streams) + 1  # no copy overwrites another from here on
    copies = [fcntl.fcntl(stream, fcntl.F_DUPFD, above) for stream in streams]
    for stream in streams:
        os.close(stream)
    for number, descriptor in zip(numbers, copies, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    how, what, *arguments = request["command"]
    if [what, *arguments[:1]] == PARENTS:
        Popen.nursery = _fork_nursery()
        subprocess.Popen = Popen  # type: ignore[misc]
    sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
    sys.argv = [how, *arguments]
    sys.path.insert(0, "" if how == "-c" else request["directory"])
    os._exit(_status(how, what))


def _fork_nursery() -> Nursery:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not os.fork():
        ours.close()
        for number in (0, 1, 2):
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        _serve(theirs)
        os._exit(0)
    theirs.close()
    return Nursery(ours)


def _status(how: str, what: str) -> int:
    """Run a command to its end, and return its exit status."""
    status: Any = 0
    try:
        if how == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        status = end.code or 0
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001 - the command may raise anything
        traceback.print_exc()
        status = 1
    if not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            status = status or 120
    return status
