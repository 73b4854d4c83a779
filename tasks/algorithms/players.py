"""Policies that play a behaviour and do not learn.

They are random actions, a stored policy, or a policy in a file. A result depends on a policy's content, so its name
says which content it is: ``policy/1a2b...`` in a storage, see `checkpoint.named_policies`, or a file and the beginning
of its sha256, such as ``prey.safetensors@1a2b3c4d``. `Task.save_policy` and ``rekindle export-policy`` write files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...spaces import unflatten
from ..checkpoint.named_policies import NamedPolicy, called, is_named, named_policy
from ..checkpoint.policy_files import metadata_of, read_policy
from ..envs import EnvSpec, spaces_of
from ..envs.agents.adapter import is_joint
from ..envs.agents.roster import roster_of
from ..envs.agents.views import BehaviourView, Extras
from ..envs.base.masks import mask_in
from ..errors import UnsupportedSpace
from ..learner import Learner
from ..registry import load
from ..rng.streams import Keys
from .behaviour_space import ALGORITHM, algorithm_values, extras_of
from .contest import Act, random_actor

RANDOM = "random"
DIGITS = 8  # fewest digits of a file's sha256
PlayerActor = Callable[[int, Keys], Act]  # rows of each member, and random streams


class Player(NamedTuple):
    """A policy that plays a behaviour.

    Attributes:
        learner: class of its learner.
        values: its hyperparameters.
        policy: its tensors, by name.
        extras: what its observations have besides.
        env_steps: steps of its agents that it had trained, which its exploration follows.
    """

    learner: type[Learner]
    values: dict[str, Any]
    policy: dict[str, Tensor]
    extras: Extras
    env_steps: int


def check_players(env: EnvSpec) -> None:
    """Raise ValueError unless the policies of an environment can play."""
    for name, text in (*env.players.items(), *product(roster_of(env).learning, env.opponents)):
        check_player(env, name, text)


def check_player(env: EnvSpec, name: str, text: str) -> None:
    """Raise ValueError unless a policy can play a behaviour."""
    if text != RANDOM:
        player(env, name, text)


@lru_cache(maxsize=64)
def player(env: EnvSpec, name: str, text: str) -> Player:
    """Return the named policy as a player of a behaviour.

    Raises:
        ValueError: there is no such policy, or another one, or it does not say what it holds.
        UnsupportedSpace: its spaces are not those of the behaviour, or it has a memory.
    """
    subject = f"{env.id}: the player of {name}"
    source = named_policy(text) if is_named(text) else policy_in_file(subject, text)
    return _fitting(env, name, source, subject, called(text))


def policy_in_file(subject: str, text: str) -> NamedPolicy:
    """Return the policy in a file that is named with its sha256.

    Args:
        subject: what needs it, in error messages.
        text: the file's name, ``@`` and the beginning of its sha256.

    Raises:
        ValueError: there is no such file, or another one, or it does not say what it holds.
    """
    file, _, digits = text.rpartition("@") if "@" in text else (text, "", "")
    path = Path(file)
    if path.suffix != ".safetensors" or not path.is_file():
        raise ValueError(
            f"{subject} must be {RANDOM!r} or a policy's file, such as prey.safetensors@1a2b3c4d, but there is no file "
            f"{file!r}; write one with rekindle export-policy UID prey.safetensors, or name a task's uid in a command"
        )
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if len(digits) < DIGITS or not digest.startswith(digits):
        raise ValueError(
            f"{subject} is named with the beginning of its file's sha256, since results depend on it, but got {text!r};"
            f" the file's name is {file}@{digest[:DIGITS]}"
        )
    return read_named(path, subject)


def read_named(path: Path, subject: str) -> NamedPolicy:
    """Return the policy in a file, and how it was made.

    Raises:
        ValueError: the file does not say it.
    """
    policy, about = read_policy(path, subject), metadata_of(path)
    if "identity" not in about:
        raise ValueError(
            f"{subject} needs a file that says how the policy was made, but {path} does not; write it again with "
            "rekindle export-policy"
        )
    tensors = {name: torch.as_tensor(x) for name, x in policy.items()}
    return NamedPolicy(json.loads(about["identity"]), int(about.get("epochs", 0)), tensors)


def _fitting(env: EnvSpec, name: str, source: NamedPolicy, subject: str, text: str) -> Player:
    """Return a policy as a player, if it fits the behaviour."""
    identity = source.identity
    if not identity["env"]:
        raise UnsupportedSpace(f"{subject} acts in an environment, but {text} is of {identity['task']}, which has none")
    if not issubclass(load(identity["task"]).learner, Learner):
        raise UnsupportedSpace(
            f"{subject} is a policy of one of Rekindle's own algorithms, but {text} is of {identity['task']}; train it "
            "by ppo or another one of them"
        )
    spec = EnvSpec.from_json(identity["env"])
    if is_joint(spec):
        candidate, spec = _of_behaviour(source, spec, name, subject, text), replace(spec, behaviour=name)
    else:
        candidate = _of_all(source, spec)
    env_spaces, policy_spaces = (
        spaces_of(replace(x, players={}, opponents=())) for x in (replace(env, behaviour=name), spec)
    )
    for part in ("observation", "action"):
        if getattr(env_spaces, part) != getattr(policy_spaces, part):
            raise UnsupportedSpace(
                f"{subject} has the behaviour's {part} space, {getattr(env_spaces, part)}, but that of {text} is "
                f"{getattr(policy_spaces, part)}; name a policy that was trained for it"
            )
    values = candidate.learner.space_in(spec).validate(candidate.values)
    if "num_particles" in values:
        raise UnsupportedSpace(f"{subject} is one policy, but {text} has several; name a task of another algorithm")
    if (memory := values["model"].get("memory", "none")) != "none":
        raise UnsupportedSpace(f"{subject} has no memory, but {text} has {memory!r}; train it without")
    return candidate._replace(values=values)


def _of_all(source: NamedPolicy, spec: EnvSpec) -> Player:
    """Return the policy of a task of one agent."""
    learner, values = load(source.identity["task"]).learner, unflatten(source.identity["hyperparameters"])
    env_steps = source.epochs * learner.space_in(spec).validate(values)["epoch_steps"]
    return Player(learner, values, dict(source.policy), Extras(), env_steps)


def _of_behaviour(source: NamedPolicy, spec: EnvSpec, name: str, subject: str, text: str) -> Player:
    """Return one behaviour's policy of a task of several.

    Raises:
        ValueError: the task has no policy of the behaviour.
    """
    prefix = f"{name}."
    policy = {path.removeprefix(prefix): x for path, x in source.policy.items() if path.startswith(prefix)}
    if not policy:
        raise ValueError(
            f"{subject} needs a policy of this behaviour, but {text} has those of "
            f"{', '.join(roster_of(spec).learning)}; name another one"
        )
    space = load(source.identity["task"]).learner.space_in(spec)
    values = space.validate(unflatten(source.identity["hyperparameters"]))
    settings, agents = values[name], len(roster_of(spec).behaviours[name].slots)
    env_steps = source.epochs * values["epoch_steps"] * agents
    return Player(load(settings[ALGORITHM]).learner, algorithm_values(settings), policy, extras_of(settings), env_steps)


def player_extras(env: EnvSpec, name: str, text: str) -> Extras:
    """Return what the player of a behaviour sees besides."""
    return Extras() if text == RANDOM else player(env, name, text).extras


def player_actor(
    view: BehaviourView, env: EnvSpec, text: str, seeds: Sequence[int], device: torch.device
) -> PlayerActor:
    """Return the function that makes a behaviour's player act.

    Args:
        view: the behaviour's environments, as the player sees them.
        env: the shared environment.
        text: the player's name.
        seeds: seeds of the members.
        device: torch device.
    """
    if text == RANDOM:
        mask = mask_in(view.obs_shape)
        return lambda rows, keys: random_actor(keys("player"), view.action_space, rows, env.id, mask)
    chosen = player(env, view.behaviour.name, text)
    learner = frozen(chosen.learner, view, seeds, [chosen.values] * len(seeds), device)
    learner.env_steps = chosen.env_steps
    for member in range(len(seeds)):
        learner.adopt(member, chosen.policy)
    return lambda rows, keys: learner.actor(rows, False, keys)


def frozen(
    learner: type[Learner], view: BehaviourView, seeds: Sequence[int], values: Sequence[Any], device: torch.device
) -> Learner:
    """Return a learner that only acts, without room for transitions."""
    small = {"num_envs": view.num_envs, "buffer_size": view.num_envs, "stats_window_size": None}
    acting_values = [{**member, **{name: x for name, x in small.items() if name in member}} for member in values]
    return learner(view.spec, seeds, acting_values, device, envs=view)
