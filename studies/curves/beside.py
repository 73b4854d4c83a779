"""Copying beside a training, by a process for each sink."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import IO

from ..redact import printable
from ..workers import URL_VARIABLE

MIRRORED = ("--to", "optuna")  # the copy in Optuna's tables
MIRROR_AFTER = 5.0  # seconds that a study trains before it is copied there; shorter ones are copied at their end
GRACE = 20.0  # seconds that a copier has after the training to write the rest


class Copier:
    """A process that runs ``rekindle export-curves --follow`` until this one ends it.

    Args:
        url: of the storage.
        name: of the study, or the task's uid.
        options: of the command, such as ["--to", "csv:curves.csv"].
        delay: seconds before it starts; a training that ends sooner starts none.
        say: is told if it fails.
    """

    def __init__(self, url: str, name: str, options: Sequence[str], delay: float, say: Callable[[str], None]):
        self.url, self.name, self.options, self.say = url, name, options, say
        self._process: subprocess.Popen[bytes] | None = None
        self._words: IO[bytes] = TemporaryFile()  # noqa: SIM115 - closed by `end`
        self._lock, self._over = threading.Lock(), False
        self._timer = threading.Timer(delay, self._start)
        self._timer.daemon = True
        self._timer.start() if delay else self._start()

    def _start(self) -> None:
        command = [sys.executable, "-m", "rekindle.studies.cli", "export-curves", self.name, "--follow"]
        command += ["--with-parent", *self.options]
        with self._lock:
            if self._over:
                return
            self._process = subprocess.Popen(
                command,
                env={**os.environ, URL_VARIABLE: self.url},  # everybody can read a command line, and no environment
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._words,
                start_new_session=True,
            )

    def end(self) -> None:
        """Let it write the rest, and say whether it failed."""
        self._timer.cancel()
        with self._lock:
            self._over = True
        with self._words:
            if self._process is not None:
                self._finish(self._process)

    def _finish(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        process.stdin.close()
        try:
            status = process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        self._words.seek(0)
        lines = self._words.read().decode(errors="replace").strip().splitlines()
        if status:
            last = lines[-1] if lines else f"exit status {status}"
            self.say(
                f"no trial depends on it, but a copy of the curves is not complete: {printable(last)}; "
                f"rekindle export-curves {self.name} {' '.join(self.options)} writes the rest"
            )


@contextmanager
def copied(
    url: str, name: str, targets: Sequence[Sequence[str]], say: Callable[[str], None], delay: float = 0.0
) -> Iterator[None]:
    """Run a copier for each target meanwhile; see `Copier`."""
    copiers = [Copier(url, name, options, delay, say) for options in targets]
    try:
        yield
    finally:
        for copier in copiers:
            copier.end()
