"""Policies that play in environments, stored with the tasks that need them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...tasks.algorithms.players import RANDOM, policy_in_file, read_named
from ...tasks.checkpoint.named_policies import NamedPolicy, is_named, named_policy, remember
from ...tasks.envs import EnvSpec
from ..storage.store import Store
from ..storage.stored_policies import put_player
from .lineage import task_at

Opened = Callable[[], AbstractContextManager[Store]]


def with_stored_policies(env: Any, opened: Opened, directory: Path = Path()) -> Any:
    """Store the policies that an environment names, by their content.

    Args:
        env: environment in any form that `EnvSpec.of` takes.
        opened: function that opens the storage of the tasks.
        directory: where relative paths begin.

    Raises:
        ValueError: a policy does not exist.
    """
    spec = EnvSpec.of(env)
    texts = dict.fromkeys([*spec.players.values(), *spec.opponents])
    if all(text == RANDOM for text in texts):
        return env
    names = {text: stored_policy(text, opened, directory) for text in texts}
    players = {name: names[text] for name, text in spec.players.items()}
    return replace(spec, players=players, opponents=[names[text] for text in spec.opponents]).to_json()


def stored_policy(text: str, opened: Opened, directory: Path = Path()) -> str:
    """Store a policy, unless it is stored; return its name."""
    if text == RANDOM:
        return text
    with opened() as store:
        name = text if is_named(text) else put_player(store, _source(store, text, directory).packed(), text)
        if name != text:
            remember(name, text)
        named_policy(name)  # keeps it for when the storage is closed
    return name


def _source(store: Store, text: str, directory: Path) -> NamedPolicy:
    """Return the policy of a task or a file.

    Raises:
        ValueError: it does not exist, or does not say how it was made.
    """
    subject = f"the policy {text}"
    file, at, _ = text.partition("@")
    if Path(file).suffix:
        if not (directory / file).is_file():
            raise ValueError(
                f"{subject} must be random, a task (UID, UID@EPOCH, UID@best) or a file, but there is no file {file}"
            )
        return policy_in_file(subject, f"{directory / text}") if at else read_named(directory / file, subject)
    task = task_at(store, text)
    return NamedPolicy(task.identity.to_json(), task.epochs, task.policy())
