"""Programs as tasks.

The program is started with {epochs}, the total to reach, and {checkpoint}, a folder from which it resumes and into
which it writes. It reports metrics in one of three ways:

- `rekindle.report` after each epoch. It waits there until the folder is copied, so each epoch can be a checkpoint.
- lines of JSON in a file of the folder, {"epoch": 3, "accuracy": 0.9}.
- lines of its output that match a regular expression.

In the last two ways the folder is only copied when the program has ended. A program that was killed starts again from
the last copy. What it prints is not stored, except for the last lines when it fails.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

from ..catalog import label, resume_labels
from ..checkpoint.storage import Metrics
from ..errors import Hung, ProgramError, ProgramFailed
from ..rng import streams
from ..runtime import progress
from ..runtime.own_code import imported_files
from ..runtime.secrets import without_secrets
from ..task import Task
from .adapted_learner import MeasuredLearner
from .data import Data, decode, encode
from .folders import Folder
from .program_commands import EPOCH, PLACEHOLDER, ProgramCommand
from .running_program import LOOK, Program, Reports, whole_epoch

SCRIPTS = {".py", ".sh", ".r", ".jl", ".js", ".lua", ".rb", ".yaml", ".yml", ".toml", ".json", ".ini", ".cfg", ".gin"}


class ProgramLearner(MeasuredLearner):
    """State of a program's training: its checkpoint folder, and its reports.

    Attributes:
        command: the program.
        folder: checkpoint folder.
        reported: last metrics, and those of later epochs that the program has already trained.
    """

    parts = ("folder", "reported")
    scratch = ("program", "target", "clean")
    command: ClassVar[ProgramCommand]

    @classmethod
    def files(cls) -> dict[str, str]:
        """Return digests of the scripts and settings that the command line names.

        Files beside a Python script that it imports are among them.
        """
        return {str(path): digest for path in _named_files(cls.command.run) if (digest := _digest(path))}

    @classmethod
    def resume_differs(cls) -> str | None:
        """Return what `remember` stored about this program."""
        try:
            return str(json.loads(_result_file(cls).read_text())["differs"])
        except (OSError, ValueError, LookupError, TypeError):
            return None

    @classmethod
    def check_machine(cls) -> None:
        """Raise ProgramError without the program, or without a working directory."""
        try:
            folder = os.getcwd()
        except OSError:
            raise ProgramError(
                "a program runs in the working directory of its worker, but that was removed; start the worker in "
                "another one"
            ) from None
        program, *words = cls.command.run
        if shutil.which(program) is None:
            cure = "install it, or give its path"
            if Path(program).suffix == ".py" and Path(program).is_file():
                cure = f"write python {program}, as in a terminal"
            elif not words and " " in program:
                cure = "write its words without quotes around them all"
            raise ProgramError(
                f"a program must be installed where it trains, but this machine has no {program!r} (in {folder}) to "
                f"start; {cure}"
            )

    def build(self) -> None:
        self.check_machine()
        self.folder, self.reported = Folder(), Data({"last": {}, "ahead": {}})
        self.program: Program | None = None
        self.target: int | None = None
        self.clean = False  # whether the program's folder is what `folder` keeps

    @contextmanager
    def training(self, epochs: int) -> Iterator[None]:
        """Start the program with this target if needed, and end it."""
        self.target = epochs
        try:
            yield
        finally:
            self.target = None
            self.close()

    def close(self) -> None:
        """End the program, if one runs."""
        if self.program is not None:
            program, self.program, self.clean = self.program, None, False
            program.end()

    def run_epoch(self, stop: Callable[[], bool] = lambda: False) -> list[Metrics] | None:
        epoch, reports = self.epochs + 1, decode(self.reported.tree)
        while not any(number >= epoch for number in reports["ahead"]):
            measures = self.train(epoch, stop)
            if measures is None:
                return None
            reports["ahead"] |= measures
        metrics = reports["ahead"].pop(epoch, {})
        reports["last"] = metrics or reports["last"]
        self.reported.tree = encode(reports, "reports")
        self.epochs = self.iterations = epoch
        progress.tick()
        return [{self.unit: float(epoch)} | metrics]

    def train(self, epoch: int, stop: Callable[[], bool]) -> dict[int, dict[str, float]] | None:
        """Let the program train until its folder is whole again.

        That is at the end of this epoch or a later one.

        Returns:
            The reports by epoch; None if it was stopped, which leaves the state as it was.

        Raises:
            ProgramFailed: the program ended with an error.
            ProgramError: it ended well, but did not report.
            Hung: it did not report for too long.
        """
        if stop():
            return None
        reports = Reports(epoch, self.target or epoch)
        program = self.program = self.program or self.start(reports.target)
        self.clean = False
        program.proceed()
        while True:
            status = program.status()
            for number, metrics in program.listen(0 if status is not None else LOOK):
                reports.beyond = reports.beyond or number > reports.target
                if self.add(reports, number, metrics):
                    self.folder.keep()
                    if number < reports.target:
                        return reports.measures
                program.proceed(not reports.beyond)
            for named, metrics in self.matched(program):
                self.add(reports, reports.next if named is None else named, metrics)
            if status is not None:
                return self.ended(program, status, reports)
            if stop():
                self.close()
                return None
            progress.tick()  # the program may hang, but this process does not
            if (limit := progress.limit()) is not None and time.monotonic() - reports.at > limit:
                self.close()
                silence = f"reported nothing for {limit:g} s and was killed (--stuck)"
                raise Hung(f"{self.title} {silence}{program.last_words()}")

    def add(self, reports: Reports, number: int, metrics: dict[str, float]) -> bool:
        """Add a report, and return whether its epoch is to be trained.

        Raises:
            ProgramError: it is, but the metrics lack the objective.
        """
        if not reports.counts(number):
            return False
        if self.objective not in metrics:
            names = ", ".join(map(repr, metrics)) or "no metric"
            raise ProgramError(
                f"{self.title} must report its objective {self.objective!r}, but reported {names}; report it, or set "
                "objective in the space file"
            )
        reports.measures[number] = metrics
        return True

    def start(self, target: int) -> Program:
        """Start the program from its last whole checkpoint."""
        if not self.clean:
            self.folder.restore()
        variables = {
            "epochs": target,
            "checkpoint": str(self.folder.work),
            "seed": streams.short(self.seeds[0]),
            "device": str(self.device),
        }
        environment = {f"REKINDLE_{name.upper()}": str(value) for name, value in variables.items()}
        return Program(self.command.words({**self.values, **variables}), self.folder.root, environment)

    def ended(self, program: Program, status: int, reports: Reports) -> dict[int, dict[str, float]]:
        """Return an ended program's metrics by epoch, and keep its folder."""
        self.program = None
        program.end()
        target = reports.target
        if status and not (reports.beyond and target in reports.measures):
            how = f"was killed by {_signal(status)}" if status > 128 else f"ended with status {status}"
            raise ProgramFailed(f"{self.title} {how}, on the way to epoch {target}{program.last_words()}")
        if self.command.lines:
            for number, metrics in self.read_lines().items():
                self.add(reports, number, metrics)
        if target not in reports.measures:
            raise ProgramError(
                f"{self.title} must report each epoch from 1 to {target} (rekindle.report, or lines or pattern of the "
                f"space file), but {reports.describe_lack()}{program.last_words()}"
            )
        if not reports.beyond:
            self.folder.keep()
            self.clean = True
        return reports.measures

    def matched(self, program: Program) -> Iterator[tuple[int | None, dict[str, float]]]:
        """Yield epochs, None where a line names none, and metrics."""
        lines, program.lines = program.lines, []
        for match in (re.search(self.command.pattern, line) for line in lines) if self.command.pattern else ():
            if match is not None:
                numbers = {name: _number(text) for name, text in match.groupdict().items() if text is not None}
                try:
                    epoch = whole_epoch(numbers.pop(EPOCH)) if EPOCH in numbers else None
                except ValueError as error:
                    raise ProgramError(
                        f"{self.title}: {error}, in the line {without_secrets(match.string)[:80]!r}"
                    ) from None
                yield epoch, numbers

    def read_lines(self) -> dict[int, dict[str, float]]:
        """Return the reports in the file of JSON lines."""
        measures, path = dict[int, dict[str, float]](), self.folder.work / self.command.lines
        if not path.is_file():
            raise ProgramError(
                f"{self.title} must report in the file {self.command.lines} of {{checkpoint}}, but wrote none"
            )
        for line in path.read_text(errors="replace").split("\n"):  # other line separators may be part of a text
            if not line.strip():
                continue
            try:
                content = json.loads(line)
                number = whole_epoch(content.pop(EPOCH))
                numbers = {name: float(x) for name, x in content.items() if isinstance(x, int | float)}
            except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
                raise ProgramError(
                    f"{self.title}: a line of {self.command.lines} must be JSON with an epoch (1, 2, ...) and numbers, "
                    f"but is {without_secrets(line)[:80]!r}"
                ) from None
            measures[number] = numbers
        return measures

    def measured(self) -> Mapping[str, float]:
        last: Mapping[str, float] = decode(self.reported.tree)["last"]
        return last

    def inexact(self, member: int) -> list[str]:
        """Return the reason why the program may not resume exactly."""
        return resume_labels(self.title, self.resume_differs())


def program_task(name: str) -> type[Task]:
    """Return the task class of a program.

    Args:
        name: name of the task, see `ProgramCommand`.

    Raises:
        ValueError: the name is invalid.
    """
    command = ProgramCommand.parse(name)
    learner = type(
        "Learner",
        (ProgramLearner,),
        {
            "__module__": __name__,
            "command": command,
            "title": label(name),
            "hyperparameters": command.space,
            "objective": command.measured,
            "direction": command.direction,
            "bounds": command.bounds,
        },
    )

    def probe(self: Task) -> None:
        Task.probe(self)
        _check_script(command)

    content = {"name": name, "version": command.version, "learner": learner, "probe": probe, "__module__": __name__}
    return type("Program", (Task,), {**content, "__doc__": f"The program {shlex.join(command.run)}."})


def remember(learner: type[ProgramLearner], differs: str) -> None:
    """Remember whether a program resumes exactly on this machine.

    Args:
        learner: learner of the program.
        differs: what differs after a resume; "" if nothing does.
    """
    path = _result_file(learner)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"differs": differs}))


def _result_file(learner: type[ProgramLearner]) -> Path:
    content = json.dumps([learner.command.name, learner.files()], sort_keys=True)
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return folder / "rekindle" / "resumes" / f"{hashlib.sha256(content.encode()).hexdigest()[:20]}.json"


def _check_script(command: ProgramCommand) -> None:
    """Raise ProgramError if the command names a Python script that is missing."""
    script = next((word for word in command.run[1:] if not word.startswith("-")), "")
    if script.endswith(".py") and not PLACEHOLDER.search(script) and not Path(script).exists():
        raise ProgramError(
            f"a program runs in the working directory, but {os.getcwd()} has no {script}; run this in the folder that "
            "has it, or write its path from here"
        )


def _named_files(words: Sequence[str]) -> Iterator[Path]:
    """Yield what a command line may name, and the files it imports.

    A program that is found by PATH is none of them, nor is one at an absolute path: that is installed.
    """
    if "/" in words[0] and not Path(words[0]).is_absolute():
        yield from _with_imports(Path(words[0]))
    for before, word in pairwise(words):
        if before == "-m":
            module, (*folders, _) = Path(*word.split(".")), word.split(".")
            yield from _with_imports(module.with_suffix(".py"), ".".join(folders), Path())
            yield from _with_imports(module / "__main__.py", word, Path())
        for path in map(Path, {word, word.partition("=")[2]}):
            yield from _with_imports(path)


def _with_imports(path: Path, package: str = "", root: Path | None = None) -> Iterator[Path]:
    """Yield a file and, of a Python script, those it imports."""
    yield path
    if path.suffix == ".py":
        with suppress(OSError, ValueError):
            yield from imported_files(path.read_text(), package, path.parent if root is None else root, {path})


def _digest(path: Path) -> str:
    """Return the digest of code or settings; "" of anything else."""
    with suppress(OSError, ValueError):  # ValueError: the word has a null character
        if path.is_file():
            with path.open("rb") as file:
                if path.suffix.lower() in SCRIPTS or file.read(2) == b"#!":
                    file.seek(0)
                    return hashlib.file_digest(file, "sha256").hexdigest()[:12]
    return ""


def _signal(status: int) -> str:
    with suppress(ValueError):
        return signal.Signals(status - 128).name
    return f"signal {status - 128}"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ProgramError(f"a group of a program's pattern must match a number, but matched {text[:40]!r}") from None
