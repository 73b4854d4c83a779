"""A running program, its reports and its output."""

from __future__ import annotations

import json
import math
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from ..errors import LAST_LINES
from ..runtime import progress
from ..runtime.secrets import without_secrets
from . import launcher, reporting
from .program_commands import EPOCH

LOOK = 0.05  # seconds between looks whether to stop
LONGEST_PATH = 100  # bytes of a socket's path; systems allow 104 to 108
GRACE = 5.0  # seconds between SIGTERM and SIGKILL
LINES, WIDTH = 20, 400  # last lines of output that a failure quotes, and characters of each


class Report(NamedTuple):
    """Metrics that a program reports after an epoch."""

    epoch: int
    metrics: dict[str, float]


class Reports:
    """Reports of a program between one epoch and a target.

    Attributes:
        epoch, target: first and last epoch to train.
        measures: metrics of these epochs, as far as they are reported.
        numbers: all epochs that were reported.
        beyond: whether the program waits in a report of an epoch beyond the target, so that it is to end.
        at: time of the last report.
    """

    def __init__(self, epoch: int, target: int):
        self.epoch, self.target = epoch, target
        self.measures: dict[int, dict[str, float]] = {}
        self.numbers: set[int] = set()
        self.beyond = False
        self.at = time.monotonic()

    @property
    def next(self) -> int:
        """The epoch of a report that names none."""
        return self.epoch + len(self.measures)

    def counts(self, number: int) -> bool:
        """Note a reported epoch, and return whether it is to be trained."""
        self.at = time.monotonic()
        self.numbers.add(number)
        return self.epoch <= number <= self.target

    def describe_lack(self) -> str:
        """Return what was reported instead of the target."""
        first = min(self.numbers, default=1)
        if first < 1:
            return f"it began with epoch {first}; report the number of epochs done, so 1 after the first"
        if self.measures:
            return f"its last one is epoch {max(self.measures)}"
        if later := [number for number in self.numbers if number > self.target]:
            return f"it reported epoch {min(later)} first"
        return "it reported nothing" + (f" after epoch {self.epoch - 1}" if self.epoch > 1 else "")


class Program:
    """A running program.

    Attributes:
        last: last lines of its output.
        lines: complete lines of its output that `events` has read and nobody has taken.
    """

    def __init__(self, words: Sequence[str], folder: Path, environment: Mapping[str, str]):
        """Start the program.

        Args:
            words: command line.
            folder: folder for the socket of its reports, unless the path is too long for one.
            environment: environment variables to add.
        """
        self.path, self.short = folder / "reports", ExitStack()
        if len(os.fsencode(self.path)) > LONGEST_PATH:
            self.path = Path(self.short.enter_context(TemporaryDirectory(prefix="rekindle-", dir="/tmp"))) / "reports"
        self.path.unlink(missing_ok=True)
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(str(self.path))
        self.server.listen()
        self.last: deque[str] = deque(maxlen=LINES)
        self.lines: list[str] = []
        self._rest, self._waiting = b"", list[socket.socket]()
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", launcher.__file__, str(os.getpid()), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PYTHONUNBUFFERED": "1", **os.environ, **environment, reporting.VARIABLE: str(self.path)},
            start_new_session=True,  # Ctrl-C reaches this process alone
        )
        assert self.process.stdout is not None
        self.output = self.process.stdout
        os.set_blocking(self.output.fileno(), False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.server, selectors.EVENT_READ)
        self.selector.register(self.output, selectors.EVENT_READ)

    def listen(self, seconds: float) -> list[Report]:
        """Return the reports that arrive, after at most this time."""
        reports = []
        for key, _ in self.selector.select(seconds):
            if key.fileobj is self.server:
                reports += self._accept()
            else:
                self._read()
        return reports

    def proceed(self, further: bool = True) -> None:
        """Answer a program that waits in a report: proceed, or end."""
        for connection in self._waiting:
            with suppress(OSError), connection:
                connection.sendall(reporting.PROCEED if further else b"end\n")
        self._waiting.clear()

    def status(self) -> int | None:
        """Return the exit status, None while the program runs."""
        status = self.process.poll()
        if status is not None and self.output in self.selector.get_map():
            while self._read():
                pass
        return status

    def end(self) -> None:
        """End the program and all that it has started: SIGTERM, then SIGKILL."""
        for number, seconds in ((signal.SIGTERM, GRACE), (launcher.HARD, None)):
            if self.process.poll() is None:
                self.process.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    self._wait(seconds)
        self.proceed(False)
        self.selector.close()
        self.server.close()
        self.output.close()
        self.path.unlink(missing_ok=True)
        self.short.close()

    def _wait(self, seconds: float | None) -> None:
        """Wait for the end, and read what is printed meanwhile."""
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        while self.status() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("program", seconds or 0.0)
            progress.tick()
            self.listen(LOOK)

    def _accept(self) -> list[Report]:
        connection, _ = self.server.accept()
        connection.settimeout(GRACE)
        try:
            content = json.loads(connection.makefile("rb").readline())
            report = Report(whole_epoch(content[EPOCH]), {name: float(x) for name, x in content["metrics"].items()})
        except (OSError, ValueError, LookupError, TypeError, AttributeError):  # it was killed amid its report
            connection.close()
            return []
        self._waiting.append(connection)
        return [report]

    def _read(self) -> bool:
        """Read some output; return whether there was any."""
        data = self.output.read(1 << 16) if not self.output.closed else b""
        if not data:
            if data is not None and self.output in self.selector.get_map():
                self.selector.unregister(self.output)
                self._add(self._rest)
            return False
        *whole, self._rest = re.split(rb"[\r\n]+", (self._rest + data))
        for line in whole:
            self._add(line)
        if len(self._rest) > 1 << 16:
            self._add(self._rest)
            self._rest = b""
        return True

    def _add(self, line: bytes) -> None:
        if text := line.decode(errors="replace").rstrip():
            self.lines.append(text)
            text = without_secrets(text)[:WIDTH]  # a cut could leave a part of one
            self.last.append("".join(x if x.isprintable() else "\ufffd" for x in text))

    def last_words(self) -> str:
        """Return the last lines of output, as the end of a message."""
        return (LAST_LINES + "\n".join(self.last)) if self.last else "; it printed nothing"


def whole_epoch(number: Any) -> int:
    """Return a reported epoch; raise ValueError unless it is whole."""
    if isinstance(number, bool) or not isinstance(number, int | float) or number % 1 != 0:
        raise ValueError(f"an epoch is the number of epochs done so far, but is {number!r}")
    return int(number)
