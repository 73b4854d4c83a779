"""Commands that train, as names of tasks.

A task that runs a program is named ``command:`` and JSON, so whoever reads the name can train it. This module imports
nothing slow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any, Self

from ...spaces import Space
from ...spaces.custom_priors import with_defaults
from ...spaces.errors import near
from ..catalog import PREFIX

PLACEHOLDER = re.compile(r"\{([A-Za-z_][\w.]*)\}|\{(\{[A-Za-z_][\w.]*\})\}")  # {{name}} is the text {name}
ALMOST = r"\{{{{1,2}}\s*{}\s*([:!,][^{{}}]*)?\}}{{1,2}}"  # {{lr}}, {lr:.3f} and { lr } are text
OWN = ("epochs", "checkpoint", "seed", "device")  # placeholders beside the hyperparameters
NEEDED = ("epochs", "checkpoint")
SETTINGS = ("space", "objective", "bounds", "lines", "pattern", "version")
EPOCH = "epoch"


@dataclass(frozen=True)
class ProgramCommand:
    """A program that trains.

    Attributes:
        run: words of the command line, with placeholders such as {lr}.
        priors: text of each hyperparameter's prior, by dotted name.
        objective: name of the reported metric to maximize, or NAME:minimize.
        bounds: least and greatest value that the objective can have.
        lines: file of JSON lines with the reports, within the checkpoint folder; "" if there is none.
        pattern: regular expression whose named groups are reports in lines of the output; "" if there is none.
        version: number to raise when the program gives other results.
    """

    run: tuple[str, ...]
    priors: Mapping[str, str]
    objective: str = "return"
    bounds: tuple[float | None, float | None] = (None, None)
    lines: str = ""
    pattern: str = ""
    version: int = 1

    @classmethod
    def of(cls, run: Sequence[str], settings: Mapping[str, Any]) -> Self:
        """Return a checked command.

        Args:
            run: words of the command line.
            settings: content of a space file: either priors by name, or a table `space` of them and any of `objective`,
                `bounds`, `lines`, `pattern` and `version`.

        Raises:
            ValueError: a setting is unknown or invalid, or words and hyperparameters do not match.
        """
        if not isinstance(settings.get("space"), Mapping):
            settings = {"space": settings}
        if unknown := [name for name in settings if name not in SETTINGS]:
            raise ValueError(
                f"a program's settings are {', '.join(SETTINGS)}, but got {unknown[0]}{near(unknown[0], SETTINGS)}"
            )
        if not run:
            raise ValueError("a program needs a command line; add it at the end: -- python train.py --lr {lr}")
        space = with_defaults(Space.from_priors(settings["space"]))
        bounds = settings.get("bounds", (None, None))
        texts = {name: settings[name] for name in ("objective", "lines", "pattern") if name in settings}
        for name, text in texts.items():
            if not isinstance(text, str) or not text:
                raise ValueError(f"{name} of a program must be text, but is {text!r}")
        if not (isinstance(bounds, list | tuple) and len(bounds) == 2 and all(map(_is_bound, bounds))):
            raise ValueError(f"bounds of a program must be two numbers, such as [0, 1], but are {bounds!r}")
        version = settings.get("version", 1)
        if isinstance(version, bool) or not isinstance(version, int) or version < 1:
            raise ValueError(f"version of a program must be an integer of at least 1, but is {version!r}")
        command = cls(tuple(run), space.priors(), bounds=(bounds[0], bounds[1]), version=version, **texts)
        command._check()
        return command

    def _check(self) -> None:
        """Raise ValueError unless words, hyperparameters and reports match."""
        used = {match[1] for word in self.run for match in PLACEHOLDER.finditer(word) if match[1]}
        names = self.space.flat()
        for name in sorted(used - {*OWN, *names}):
            raise ValueError(
                f"each placeholder is a hyperparameter, or one of {', '.join(OWN)}, but {{{name}}} is neither"
                f"{near(name, [*names, *OWN])}; {{{{{name}}}}} is the text in braces"
            )
        for name in [*names, *NEEDED]:
            if name in names and name in OWN:
                raise ValueError(f"{{{name}}} is a placeholder of its own, so no hyperparameter may have the name")
            if name not in used:
                almost = re.search(ALMOST.format(re.escape(name)), " ".join(self.run))
                instead = f", and {almost[0]} is a text; write" if almost else "; add it, such as"
                raise ValueError(
                    f"the program must get {name}, but its command has no {{{name}}}{instead} --{name} {{{name}}}"
                )
        if PurePath(self.lines).is_absolute() or ".." in PurePath(self.lines).parts:
            raise ValueError(
                f"lines is a file within the checkpoint folder, but is {self.lines!r}; write its name there"
            )
        if self.lines and self.pattern:
            raise ValueError("a program reports by lines or by a pattern, but both are given; leave one out")
        try:
            groups = re.compile(self.pattern).groupindex
        except re.error as error:
            raise ValueError(f"pattern must be a regular expression, but {self.pattern!r}: {error}") from None
        if self.pattern and self.measured not in groups:
            raise ValueError(
                f"pattern needs a group for the objective, (?P<{self.measured}>...), but {self.pattern!r} has none"
            )
        if self.direction not in ("maximize", "minimize"):
            raise ValueError(f"objective must be NAME, NAME:maximize or NAME:minimize, but got {self.objective!r}")

    @cached_property
    def space(self) -> Space:
        """Hyperparameters."""
        return Space.from_priors(self.priors)

    @property
    def measured(self) -> str:
        """Name of the objective."""
        return self.objective.partition(":")[0]

    @property
    def direction(self) -> str:
        """Direction of the objective."""
        return self.objective.partition(":")[2] or "maximize"

    @property
    def name(self) -> str:
        """Name of the task."""
        settings: dict[str, Any] = {"run": [*self.run], "space": [[*item] for item in self.priors.items()]}
        for name in ("objective", "lines", "pattern", "version"):
            if getattr(self, name) != getattr(ProgramCommand, name):
                settings[name] = getattr(self, name)
        if self.bounds != (None, None):
            settings["bounds"] = [*self.bounds]
        return PREFIX + json.dumps(settings, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def parse(cls, name: str) -> Self:
        """Return the command of a task's name.

        Raises:
            ValueError: it is no such name.
        """
        try:
            content = json.loads(name.removeprefix(PREFIX))
            run, priors = content.pop("run"), dict(content.pop("space"))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise ValueError(
                f"a program is named {PREFIX}{{...}}, with run and space, but {name[:80]!r}: {error}"
            ) from None
        return cls.of(run, {**content, "space": priors})

    def words(self, values: Mapping[str, Any]) -> list[str]:
        """Return the command line with values in place of placeholders.

        Args:
            values: values by placeholder; those that are no text are written as JSON.
        """

        def text(match: re.Match[str]) -> str:
            value = values.get(match[1] or "", match[2] or match[0])
            return value if isinstance(value, str) else json.dumps(value)

        return [PLACEHOLDER.sub(text, word) for word in self.run]


def _is_bound(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
