"""Progress of this process, in memory that other processes can see.

Everything that can take long, or hang, ticks as it makes progress: steps of environments, gradient steps, iterations,
waits for a database.
"""

from __future__ import annotations

import faulthandler
import math
import mmap
import os
import secrets
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, Any, NoReturn

from . import STUCK, watcher

_words: Any = [0] * watcher.WORDS
_limit: float | None = STUCK
_traces: list[IO[bytes]] = []  # files in which watchers read where this process is
_simulators = 0, ""  # a process, and the name by which it marks what its environments start


def tick() -> None:
    """Note that this process makes progress."""
    _words[0] += 1


def limit() -> float | None:
    """Return the seconds without progress that count as a hang, or None."""
    return _limit


def set_limit(seconds: float | None) -> None:
    """Set the value that `limit` returns."""
    global _limit
    _limit = seconds


@contextmanager
def limited(seconds: float | None) -> Iterator[None]:
    """Set the value that `limit` returns, inside this context."""
    before = _limit
    set_limit(seconds)
    try:
        yield
    finally:
        set_limit(before)


def tell_in(words: Any) -> None:
    """Tick in another memory from now on."""
    global _words
    _words = words


@contextmanager
def at_work() -> Iterator[None]:
    """Note that this process should make progress, inside this context."""
    tick()
    words = _words
    if len(words) < watcher.WORDS:  # of an environment process, whose parent knows what it waits for
        yield
        return
    words[1] += 1
    try:
        yield
    finally:
        words[1] -= 1


def end_work() -> None:
    """Note that this process ends on purpose, within its work."""
    _words[1] = 0


@contextmanager
def watched(
    seconds: float | None,
    then: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    doing: str = watcher.TRYING,
) -> Iterator[None]:
    """Have this process killed from outside if it hangs while `at_work`.

    Processes that environments start inside this context, and do not end, are ended after it, however it is left.

    Args:
        seconds: seconds without a tick that count as a hang; None for no limit.
        then: command that records what happened, run before the process is killed.
        environment: environment variables of that command.
        doing: what this process does, told if it ends suddenly while `at_work`, whose status is then not 0; "" if
            others tell it.
    """
    before = _words, _limit
    set_limit(seconds)
    with ExitStack() as stack:
        stack.callback(_restore, *before)
        stack.enter_context(_watcher(math.inf if seconds is None else seconds, doing, then, environment))
        if doing:
            stack.enter_context(_no_early_success())
        yield


@contextmanager
def _no_early_success() -> Iterator[None]:
    """Let no code end this process with status 0 while `at_work`."""
    end, owner = os._exit, os.getpid()

    def _exit(status: int) -> NoReturn:
        end(status or int(os.getpid() == owner and _words[1] > 0))

    os._exit = _exit
    try:
        yield
    finally:
        os._exit = end


@contextmanager
def simulating() -> Iterator[None]:
    """Mark processes that start inside this context: they end with this one.

    Where nobody watches this process, as in a program of the user's, a watcher ends them even if it is killed.
    """
    global _simulators
    if watcher.STARTED_BY in os.environ or watcher.names_in(watcher.limits()[0]):
        yield
        return
    if _simulators[0] != os.getpid():
        _simulators = os.getpid(), new_name()
        with anonymous_file("rekindle-progress") as page:
            os.ftruncate(page.fileno(), 8 * watcher.WORDS)
            process = _start_watcher(_simulators[1], (page.fileno(),) * 2, math.inf, "", (), os.environ)
        weakref.finalize(watcher, _end_watcher, process, os.getpid())
    with marked(_simulators[1]):
        yield


def mark_step() -> tuple[int, int] | None:
    """Mark processes from now on; return the limits before, if changed."""
    before = watcher.limits()
    if watcher.names_in(before[0]) or _simulators[0] != os.getpid():
        return None
    watcher.set_limits(watcher.mark(before[0], _simulators[1]), before[1])
    return before


@contextmanager
def marked(name: str) -> Iterator[None]:
    """Mark processes that start inside by a name, "" for no mark."""
    before, (soft, hard) = os.environ.get(watcher.STARTED_BY, ""), watcher.limits()
    _mark("/".join(filter(None, (before, name))) if name else "", watcher.mark(soft, name) if name else hard, hard)
    try:
        yield
    finally:
        _mark(before, soft, hard)


def _mark(names: str, soft: int, hard: int) -> None:
    watcher.set_limits(soft, hard)
    os.environ.pop(watcher.STARTED_BY, None)
    if names:
        os.environ[watcher.STARTED_BY] = names


def unmark() -> None:
    """Let this fork outlive the process that it was forked from."""
    hard = watcher.limits()[1]
    _mark("", hard, hard)


def new_name() -> str:
    """Return a name for what a process starts."""
    return f"{os.getpid()}-{secrets.token_hex(4)}"


def _restore(words: Any, seconds: float | None) -> None:
    tell_in(words)
    set_limit(seconds)


@contextmanager
def _watcher(seconds: float, doing: str, then: Sequence[str], environment: Mapping[str, str] | None) -> Iterator[None]:
    """Run the process that watches this one."""
    name = new_name()
    with anonymous_file("rekindle-progress") as page, anonymous_file("rekindle-trace") as trace:
        os.ftruncate(page.fileno(), 8 * watcher.WORDS)
        tell_in(memoryview(mmap.mmap(page.fileno(), 8 * watcher.WORDS)).cast("q"))
        files = (page.fileno(), trace.fileno())
        process = _start_watcher(name, files, seconds, doing, then, os.environ if environment is None else environment)
        _traces.append(trace)
        faulthandler.register(watcher.TRACE, trace)
        try:
            with marked(name):
                yield
        finally:
            _traces.pop()
            faulthandler.unregister(watcher.TRACE)
            if _traces:  # of a watcher around this one
                faulthandler.register(watcher.TRACE, _traces[-1])
            _end_watcher(process, os.getpid())


def _start_watcher(
    name: str, files: tuple[int, int], seconds: float, doing: str, then: Sequence[str], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start the process that watches this one, see `watcher.watch`."""
    arguments = [name, *map(str, files), str(os.getpid()), str(seconds), doing, *then]
    with marked(""):
        return subprocess.Popen(
            [sys.executable, "-I", "-S", watcher.__file__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={name: value for name, value in environment.items() if name != watcher.STARTED_BY},
            pass_fds=files,
            start_new_session=True,  # Ctrl-C reaches this process alone
        )


def _end_watcher(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() == owner:
        process.communicate(b"\n")  # the end of its stdin is no sign: a fork of this process may hold it open


def anonymous_file(name: str) -> IO[bytes]:
    """Return a file without a name, in memory if possible."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create(name), "w+b", 0)
    return tempfile.TemporaryFile(buffering=0)
