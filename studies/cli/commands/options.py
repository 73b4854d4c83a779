"""Exit statuses, and values of options shared by several commands."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..run_files.reading import SUFFIXES, read, read_json
from ..run_files.writing import NULL, effective, to_toml, write

if TYPE_CHECKING:
    from ....spaces import Space
    from ....tasks.task import Task

FAILED = 1  # a valid request failed
USAGE = 2  # the request is invalid
ADDED = ("info", "reward_weights", "player", "opponent")  # options that add to an environment
EXAMPLE = '{"id": "CartPole-v1", "kwargs": {}}'  # an environment


def parse_env(text: str | None) -> Any:
    """Return a Gymnasium id, an EnvSpec as a mapping, or None.

    Args:
        text: text of the argument; ``@FILE`` stands for the content of a file, or for its "env", as printed by
            ``rekindle show --json``.

    Raises:
        ValueError: the text is not valid JSON, or the file holds no environment.
    """
    env: Any = text
    if text is not None and text.startswith("@"):
        env = _read_file(text, "ENV")
        env = env["env"] if isinstance(env, Mapping) and "env" in env else env
        if not isinstance(env, str | Mapping):
            raise ValueError(f"ENV {text} must hold one environment, such as {EXAMPLE}, but holds {str(env)[:40]}")
    elif text is not None and text.lstrip().startswith("{"):
        try:
            env = read_json(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"ENV must be an id, such as CartPole-v1, or JSON, but {text[:80]!r}: {error}") from None
    return env


def described_env(arguments: argparse.Namespace, text: str | None) -> Any:
    """Return an environment with what options add to it."""
    env, added = parse_env(text), [getattr(arguments, name, None) for name in ADDED]
    if not any(added):
        return env
    from ....tasks.envs import EnvSpec  # imports gymnasium

    info, weights, players, opponents = added
    spec = EnvSpec.of(env)
    entries = {name: how or "last" for name, _, how in (entry.partition(":") for entry in info or ())}
    return replace(
        spec,
        info={**spec.info, **entries},
        reward_weights=weights or spec.reward_weights,
        players={**spec.players, **_players(players or ())},
        opponents=[*spec.opponents, *(opponents or ())],
    ).to_json()


def _players(texts: Sequence[str]) -> dict[str, str]:
    """Return policies by the behaviours that they play."""
    players: dict[str, str] = {}
    for text in texts:
        name, equals, policy = text.partition("=")
        if not (name and equals and policy):
            raise ValueError(f"--player must be BEHAVIOUR=POLICY, such as prey=random, but got {text!r}")
        if players.setdefault(name, policy) != policy:
            raise ValueError(
                f"one policy plays a behaviour, but --player names {players[name]} and {policy} for {name}; leave one "
                "of them out"
            )
    return players


def trained_env(arguments: argparse.Namespace, text: str | None) -> Any:
    """Return an environment as tasks are trained in it.

    Its policies are stored, and named by their content.
    """
    from ...engine.players import with_stored_policies
    from .storage import open_store  # imports SQLAlchemy and rich

    return with_stored_policies(
        described_env(arguments, text), partial(open_store, arguments), getattr(arguments, "directory", Path())
    )


def space(arguments: argparse.Namespace, algorithm: type[Task]) -> Space:
    """Return the hyperparameters of the algorithm in the given environment."""
    from ....tasks.envs import EnvSpec  # imports gymnasium

    return algorithm.learner.space_in(EnvSpec.of(described_env(arguments, arguments.env)))


def epochs_of(arguments: argparse.Namespace, algorithm: type[Task], values: Mapping[str, Any]) -> str | None:
    """Return --epochs, or the epochs that take at least --env-steps.

    The result is None if neither is given.

    Raises:
        ValueError: both are given, or a number is invalid.
    """
    if None not in (arguments.env_steps, arguments.epochs):
        raise ValueError(
            f"--epochs or --env-steps sets the length of a training, but got --epochs {arguments.epochs} and "
            f"--env-steps {arguments.env_steps}; leave one out"
        )
    if arguments.env_steps is None:
        return arguments.epochs
    from ....spaces import flatten  # imports numpy
    from ...storage.rows import is_epoch_steps

    parts = arguments.env_steps.split(":")
    if len(parts) > 3 or not all(part.isdecimal() and int(part) for part in parts):
        raise ValueError(
            "--env-steps must be written high, low:high or low:high:base, such as 100000, but got "
            f"{arguments.env_steps!r}"
        )
    defaults = {name: dimension.default for name, dimension in space(arguments, algorithm).flat().items()}
    sizes = {int(size) for name, size in {**defaults, **flatten(values)}.items() if is_epoch_steps(name)}
    if len(sizes) != 1:
        raise ValueError(
            f"--env-steps is rounded to epochs of one size, but these have {sorted(sizes)} steps; use --epochs"
        )
    [epoch_steps] = sizes
    return ":".join([*(str(-(-int(part) // epoch_steps)) for part in parts[:2]), *parts[2:]])


def expand_files(texts: Sequence[str], searched: Collection[str] = ()) -> list[str]:
    """Replace each ``@FILE`` by assignments; direct ones and searches win.

    A file holds hyperparameters, nested or by dotted name, or an object with them under "hyperparameters", as printed
    by ``rekindle show --json`` and ``train --json``. A later file overrides an earlier one.

    Raises:
        ValueError: a file cannot be read or holds no hyperparameters.
    """
    direct = [text for text in texts if not text.startswith("@")]
    names = {*searched, *(text.partition("=")[0].strip() for text in direct)}
    values: dict[str, Any] = {}
    for text in texts:
        if text.startswith("@"):
            values |= read_hyperparameters(text)
    return [*(f"{name}={json.dumps(value)}" for name, value in values.items() if name not in names), *direct]


def assignments(arguments: argparse.Namespace) -> list[str]:
    """Return the assignments of --set and --preset; --set wins."""
    typed = expand_files(arguments.set)
    if arguments.preset is None:
        return typed
    from ...study.presets import preset_values

    names = {text.partition("=")[0].strip() for text in typed}
    values = preset_values(arguments.task, arguments.preset)
    return [*(f"{name}={json.dumps(value)}" for name, value in values.items() if name not in names), *typed]


def read_hyperparameters(text: str, option: str = "--set") -> dict[str, Any]:
    """Return the hyperparameters in a file by dotted name, see `expand_files`."""
    if not text.startswith("@"):
        raise ValueError(f"{option} takes @FILE, but got {text!r}")
    from ....spaces import SpaceError, flatten

    content = _read_file(text, option)
    if isinstance(content, Mapping) and isinstance(content.get("hyperparameters"), Mapping):
        content = content["hyperparameters"]
    try:
        values = {name: None if value == NULL else value for name, value in flatten(content).items()}
    except SpaceError as error:
        raise ValueError(f"{option} {text} must hold hyperparameters by name, but: {error}") from None
    for name, value in values.items():
        try:
            json.dumps(value)
        except TypeError:  # TOML and YAML have dates
            law = f"{option} {text}: {name} must be a number, a text, a truth value or a list"
            raise ValueError(f"{law}, but is {value!r}; put a text in quotes") from None
    return values


def _read_file(text: str, option: str) -> Any:
    """Return the content of ``@FILE``: JSON, TOML or YAML."""
    path = Path(text[1:])
    try:
        return read(path) if path.suffix in SUFFIXES else read_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{option} {text} must be a file of JSON, but: {error}") from None


def priors_of(texts: Sequence[str]) -> dict[str, str]:
    """Return the priors of --prior by dotted name."""
    priors: dict[str, str] = {}
    for assignment in texts:
        name, equals, text = (part.strip() for part in assignment.partition("="))
        if not equals or not name or name in priors:
            law = "is given twice" if name in priors else "must be written NAME=PRIOR"
            raise ValueError(f"--prior {assignment!r} {law}, such as --prior optimizer.lr='loguniform(1e-5, 1e-3)'")
        priors[name] = text
    return priors


def save_config(
    arguments: argparse.Namespace, env: Mapping[str, Any] | Sequence[Mapping[str, Any]], values: Mapping[str, Any]
) -> None:
    """Write the run file that --save-config asks for; see `effective`."""
    if arguments.save_config is not None:
        write(arguments.save_config, to_toml(effective(arguments.parser, arguments, env, values)))
