"""Export of curves during training, in one process for each sink."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ...tasks.errors import Stopped
from ..redact import printable
from ..shell import command_line, quoted
from ..workers.forked import CommandProcess, Crew

MIRRORED = ("--to", "optuna")  # the copy in Optuna's tables
MIRROR_AFTER = 5.0  # seconds of training before the copy begins; the copy of a shorter study is made at its end
GRACE = 20.0  # seconds after the training in which a copier can write the rest
STOPPED = {status for number in (signal.SIGINT, signal.SIGTERM) for status in (-number, 128 + number)}


class Copier:
    """A process that runs ``rekindle export-curves --follow`` until this one ends it.

    Args:
        url: URL of the storage.
        name: name of the study, or uid of the task.
        options: options of the command, such as ["--to", "csv:curves.csv"].
        delay: seconds before the process starts; if training ends sooner, it never does.
        say: function that takes a line if the process fails.
        crew: processes that have already imported its modules, if any.

    Attributes:
        process: process that copies; None before it starts.
        wrote_all: whether the process has ended and copied everything.
    """

    def __init__(
        self,
        url: str,
        name: str,
        options: Sequence[str],
        delay: float,
        say: Callable[[str], None],
        crew: Crew | None = None,
    ):
        self.url, self.name, self.options, self.say, self.crew = url, name, options, say, crew
        self.wrote_all = False
        self.process: CommandProcess | None = None
        self._lock, self._over = threading.Lock(), False
        self._timer = threading.Timer(delay, self._start)
        self._timer.daemon = True
        self._timer.start() if delay else self._start()

    def _start(self) -> None:
        words = ["export-curves", "--follow", "--with-parent", *self.options, "--", self.name]
        with self._lock:
            if not self._over:
                self.process = CommandProcess(words, self.url, self.crew)

    def end(self, stopped: bool = False) -> None:
        """Let the process write the rest, and report a failure.

        Args:
            stopped: whether the training was asked to stop. If a signal has ended the copier, too, that is no failure:
                when the training resumes, its copier writes the rest.
        """
        self._timer.cancel()
        with self._lock:
            self._over = True
        if self.process is not None:
            self._finish(self.process, stopped)

    def _finish(self, process: CommandProcess, stopped: bool) -> None:
        process.end_stdin()
        ended = process.wait(GRACE)
        status, lines = process.status, list(process.last_words)
        self.wrote_all = status == 0
        if status and not (stopped and status in STOPPED):
            last = (lines or [f"exit status {status}" if ended else f"it was not done {GRACE:g} s after the training"])[
                -1
            ]
            self.say(
                f"no trial depends on it, but a copy of the curves is incomplete: {printable(last)}; "
                f"{command_line('export-curves', self.name, *map(quoted, self.options))} writes the rest"
            )


@contextmanager
def copied(
    url: str,
    name: str,
    targets: Sequence[Sequence[str]],
    say: Callable[[str], None],
    delay: float = 0.0,
    crew: Crew | None = None,
) -> Iterator[Sequence[Copier]]:
    """Run a `Copier` for each target while the context lasts."""
    copiers = [Copier(url, name, options, delay, say, crew) for options in targets]
    stopped = False
    try:
        yield copiers
    except (KeyboardInterrupt, Stopped):
        stopped = True
        raise
    finally:
        for copier in copiers:
            copier.end(stopped)
