"""Run files written from a command's settings."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .reading import places

BARE = re.compile(r"[A-Za-z0-9_-]+")
NULL = "null"  # TOML has no null; options understand this word
OFF = "off"  # None for an option that has another default


def effective(
    parser: argparse.ArgumentParser,
    arguments: argparse.Namespace,
    env: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    values: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the complete run file of a command.

    Args:
        parser: parser of the command.
        arguments: parsed arguments.
        env: environment as JSON, or several of them.
        values: hyperparameters that are not searched, by dotted name.
    """
    content: dict[str, Any] = {"task": arguments.task} | ({"env": env} if env else {})
    content["hyperparameters"] = dict(values)
    for path, action in places(parser).items():
        value = getattr(arguments, action.dest)
        if value is None and action.default is not None:
            value = OFF
        if (
            value is None
            or value is False
            or value == []
            or path in ("hyperparameters", "info", "reward_weights", "study.search")
        ):
            continue  # env includes info and weights, and hyperparameters include all that is not searched
        if path == "ranges":
            value = {name.strip(): text.strip() for name, _, text in (pair.partition("=") for pair in value)}
        if path == "storage" and re.search("//[^/]*:[^/]*@|password=", str(value)):
            continue  # it contains a password
        if path == "epochs" and arguments.env_steps is not None:
            continue
        section, _, name = path.rpartition(".")
        table = content.setdefault(section, {}) if section else content
        table[name] = str(value) if isinstance(value, Path) else value
    return content


def to_toml(content: Mapping[str, Any]) -> str:
    """Return the text of a run file."""
    content = {name: _environment(value) if name == "env" else value for name, value in content.items()}
    lines = [f"{_key(name)} = {_value(value)}" for name, value in content.items() if not isinstance(value, Mapping)]
    for name, table in content.items():
        if isinstance(table, Mapping):
            rows = [f"{_key(key)} = {_value(value)}" for key, value in table.items()]
            lines += ["", f"[{name}]", *rows]
    return "\n".join(lines) + "\n"


def write(path: Path, text: str) -> None:
    """Write a run file, atomically.

    Raises:
        ValueError: the file cannot be written.
    """
    from ....tasks.checkpoint.policy_files import replace_whole  # imports torch

    try:
        content = text.encode()
    except UnicodeEncodeError as error:
        line = next(line for line in text.splitlines() if error.object[error.start] in line)
        raise ValueError(f"a run file is text in UTF-8, but {line} is not; give it another name") from None
    try:
        replace_whole(path, content)
    except OSError as error:
        why = error.strerror or str(error)
        raise ValueError(f"a run file is written to a file, but {path} cannot be: {why}; give another name") from None


def _environment(env: Any) -> Any:
    """Return an environment without absent fields.

    It is JSON text if one of its arguments is None, which differs from an absent argument.
    """
    if isinstance(env, list | tuple):
        return [*map(_environment, env)]
    if not isinstance(env, Mapping):
        return env
    spec = {name: value for name, value in env.items() if value is not None}
    return json.dumps(spec) if _holds_none(spec) else spec


def _holds_none(value: Any) -> bool:
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return value is None or any(map(_holds_none, parts))


def _key(name: str) -> str:
    return ".".join(part if BARE.fullmatch(part) else json.dumps(part) for part in name.split("."))


def _value(value: Any) -> str:
    if value is None:
        return json.dumps(NULL)
    if isinstance(value, Mapping):
        pairs = (f"{json.dumps(str(name))} = {_value(item)}" for name, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # inf, -inf or nan
    return json.dumps(value, ensure_ascii=False)
