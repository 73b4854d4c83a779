"""Presets: known-good hyperparameters for tasks and families of environments."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from ...spaces import flatten
from ..errors import BadConfig
from .config import choose


class Preset(NamedTuple):
    """Published hyperparameters.

    Attributes:
        values: hyperparameters by dotted name.
        source: publication or repository.
        envs: environments for which they were found.
    """

    values: dict[str, Any]
    source: str
    envs: list[str]


@cache
def presets(task: str) -> dict[str, Preset]:
    """Return the presets of a task by name."""
    content = tomllib.loads(files(__package__).joinpath("presets.toml").read_text(encoding="utf-8"))
    return {
        name: Preset(flatten(preset["values"]), preset["source"], preset["envs"])
        for name, preset in content.get(task, {}).items()
    }


def preset_values(task: str, name: str) -> dict[str, Any]:
    """Return the hyperparameters of a preset by dotted name.

    Raises:
        BadConfig: the task has no preset of this name.
    """
    names = presets(task)
    if not names:
        raise BadConfig(f"--preset needs a task with presets, but {task} has none; leave --preset {name} out")
    return dict(names[choose(f"a preset of {task}", name, list(names))].values)
