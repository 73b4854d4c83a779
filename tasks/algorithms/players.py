"""Policies that play a behaviour and do not learn.

They are random actions, or a policy in a file. A file is named with the beginning of its sha256, such as
``prey.safetensors@1a2b3c4d``, so that a result depends on its content, not on its name. `Task.save_policy` and
``rekindle export-policy`` write such files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...spaces import unflatten
from ..checkpoint.policy_files import read_policy
from ..envs import EnvSpec, spaces_of
from ..envs.agents.adapter import is_joint
from ..envs.agents.views import BehaviourView, Extras
from ..envs.base.masks import mask_in
from ..errors import UnsupportedSpace
from ..learner import Learner
from ..registry import load
from ..rng.streams import Keys
from .contest import Act, random_actor
from .sharing import ALGORITHM, algorithm_values, extras_of

RANDOM = "random"
DIGITS = 8  # fewest digits of a file's sha256
PlayerActor = Callable[[int, Keys], Act]  # rows of each member, and random streams


class Saved(NamedTuple):
    """A policy in a file.

    Attributes:
        learner: class of its learner.
        values: its hyperparameters.
        policy: its tensors, by name.
        extras: what its observations have besides.
    """

    learner: type[Learner]
    values: dict[str, Any]
    policy: dict[str, Tensor]
    extras: Extras


def check_player(env: EnvSpec, name: str) -> None:
    """Raise ValueError unless the player of a behaviour can play it."""
    if env.players[name] != RANDOM:
        saved_player(env, name)


@lru_cache(maxsize=16)
def saved_player(env: EnvSpec, name: str) -> Saved:
    """Return the policy in the file that plays a behaviour.

    Raises:
        ValueError: there is no such file, or another one, or it does not say what it holds.
        UnsupportedSpace: its spaces are not those of the behaviour, or it has a memory.
    """
    where, text = f"{env.id}: the player of {name}", env.players[name]
    file, _, digits = text.rpartition("@") if "@" in text else (text, "", "")
    path = Path(file)
    if path.suffix != ".safetensors" or not path.is_file():
        raise ValueError(
            f"{where} must be {RANDOM!r} or a policy's file, such as {name}.safetensors@1a2b3c4d, but there is no file "
            f"{file!r}; write one with rekindle export-policy UID {name}.safetensors"
        )
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if len(digits) < DIGITS or not digest.startswith(digits):
        raise ValueError(
            f"{where} is named with the beginning of its file's sha256, since results depend on it, but got {text!r}; "
            f"the file's name is {file}@{digest[:DIGITS]}"
        )
    try:
        with safe_open(path, "pt") as opened:
            identity = json.loads((opened.metadata() or {})["identity"])
    except (SafetensorError, KeyError, ValueError):
        raise ValueError(
            f"{where} needs a file that says how the policy was made, but {file} does not; write it again with "
            "rekindle export-policy"
        ) from None
    policy = {path: torch.as_tensor(x) for path, x in read_policy(path, where).items()}
    task, spec, extras = load(identity["task"]), EnvSpec.from_json(identity["env"]), Extras()
    values = unflatten(identity["hyperparameters"])
    if is_joint(spec):
        prefix = f"{name}."
        policy = {path.removeprefix(prefix): x for path, x in policy.items() if path.startswith(prefix)}
        if not policy:
            raise ValueError(f"{where} needs a policy of this behaviour, but {file} has none")
        whole = task.learner.space_in(spec).validate(values)[name]
        task, spec, extras = load(whole[ALGORITHM]), replace(spec, behaviour=name), extras_of(whole)
        values = algorithm_values(whole)
    own, theirs = spaces_of(replace(env, behaviour=name, players={})), spaces_of(spec)
    for what in ("observation", "action"):
        if getattr(own, what) != getattr(theirs, what):
            raise UnsupportedSpace(
                f"{where} has the behaviour's {what} space, {getattr(own, what)}, but that of {file} is "
                f"{getattr(theirs, what)}; name a policy that was trained for it"
            )
    complete = task.learner.space_in(spec).validate(values)
    if complete["model"].get("memory", "none") != "none":
        raise UnsupportedSpace(
            f"{where} has no memory, but {file} has {complete['model']['memory']!r}; train it without"
        )
    return Saved(task.learner, complete, policy, extras)


def player_extras(env: EnvSpec, name: str) -> Extras:
    """Return what the player of a behaviour sees besides."""
    return Extras() if env.players[name] == RANDOM else saved_player(env, name).extras


def player_actor(view: BehaviourView, env: EnvSpec, seeds: Sequence[int], device: torch.device) -> PlayerActor:
    """Return the function that makes a behaviour's player act.

    Args:
        view: the behaviour's environments.
        env: the shared environment.
        seeds: seeds of the members.
        device: torch device.
    """
    name = view.behaviour.name
    if env.players[name] == RANDOM:
        mask = mask_in(view.obs_shape)
        return lambda rows, keys: random_actor(keys("player"), view.action_space, rows, env.id, mask)
    saved = saved_player(env, name)
    learner = frozen(saved.learner, view, seeds, [saved.values] * len(seeds), device)
    for member in range(len(seeds)):
        learner.adopt(member, saved.policy)
    return lambda rows, keys: learner.actor(rows, False, keys)


def frozen(
    learner: type[Learner], view: BehaviourView, seeds: Sequence[int], values: Sequence[Any], device: torch.device
) -> Learner:
    """Return a learner that only acts, without room for transitions."""
    small = {"num_envs": view.num_envs, "buffer_size": view.num_envs, "stats_window_size": None}
    own = [{**member, **{name: x for name, x in small.items() if name in member}} for member in values]
    return learner(view.spec, seeds, own, device, envs=view)
