"""Warm starts: a new task whose networks begin as those of another one, or as a vector of numbers.

A policy is what acts and estimates: the networks' parameters by name, and the statistics that scale what the networks
see, if there are some. Target networks become copies; optimizers, counters, entropy coefficients, replay memories,
other statistics and environments begin anew. What is taken over is a tree of its own, whose digest is part of the
task's identity and which is the first checkpoint of the task, so that training is as exact as from any other start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .checkpoint.policy_files import read_policy
from .checkpoint.state import Tree, unpack
from .checkpoint.storage import Saved
from .errors import StateMismatch

if TYPE_CHECKING:
    from .learner import Learner

POLICY_FORMAT = 1
PARTIAL = "take what fits with WarmStart(source, partial=True), or --partial"


@dataclass(frozen=True)
class WarmStart:
    """What a task begins with.

    Attributes:
        source: another task; its `state_dict()`, `policy()` or `parameters()`; a stored checkpoint, `store.load(uid)`;
            the vector of all networks' parameters in their order; or a file with one of those, .npz, .npy or
            .safetensors.
        partial: take over what fits, instead of refusing what does not fit as a whole.
        name: of the source, for people; it is recorded, and no part of the identity.
    """

    source: Any
    partial: bool = False
    name: str = ""


@dataclass(frozen=True)
class Taken:
    """What became of the parts of a policy, by their names.

    Attributes:
        loaded: taken over.
        mismatched: in both with different shapes, as "name: (3, 4), not (5, 4)".
        unexpected: in the source only; missing: in the task only, so that it begins anew.
    """

    loaded: list[str] = field(default_factory=list)
    mismatched: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, list[str]]:
        """The same, for an event."""
        return asdict(self)

    def __str__(self) -> str:
        parts = [f"{len(names)} {kind}" for kind, names in asdict(self).items() if names]
        return ", ".join(parts) or "nothing loaded"


def networks_of(learner: Learner, member: int) -> dict[str, Tensor]:
    """Return one member's networks' parameters by name, of all its particles; views of the live data."""
    if learner.particles is not None:
        return _by_particle(networks_of, learner, member)
    policy = (learner.agent or learner).policy
    return {} if policy is None else policy.parameters.of(member)


def policy_of(learner: Learner, member: int) -> dict[str, Tensor]:
    """Return one member's networks and the statistics that scale their observations, by name; views."""
    if learner.particles is not None:
        return _by_particle(policy_of, learner, member)
    normalizer = (learner.agent or learner).obs_normalizer
    moments = {} if normalizer is None else normalizer.moments.of(member)
    return networks_of(learner, member) | {f"obs_normalizer.{name}": view for name, view in moments.items()}


def _by_particle(of: Callable[[Learner, int], dict[str, Tensor]], learner: Learner, member: int) -> dict[str, Tensor]:
    assert learner.particles is not None
    first = member * learner.num_particles
    particles = (of(learner.particles, first + j) for j in range(learner.num_particles))
    return {f"{j}.{name}": view for j, views in enumerate(particles) for name, view in views.items()}


def demonstrations_of(learner: Learner, member: int) -> dict[str, Tensor]:
    """Return one member's demonstrations by name, which all its particles share; views."""
    if learner.particles is not None:
        return demonstrations_of(learner.particles, member * learner.num_particles)
    return {} if learner.demonstrations is None else learner.demonstrations.of(member)


@torch.no_grad()
def adopt(learner: Learner, member: int, policy: Mapping[str, Tensor]) -> None:
    """Give a new member these parts of a policy and these demonstrations; its target networks become copies."""
    shown = demonstrations_of(learner, member)
    own = {**policy_of(learner, member), **shown}
    check_fits(policy, own, learner.algorithm())
    for name, tensor in policy.items():
        own[name].copy_(tensor)
    if learner.particles is not None:
        for particle in range(member * learner.num_particles, (member + 1) * learner.num_particles):
            adopt(learner.particles, particle, shown)
    elif (network := (learner.agent or learner).policy) is not None:
        network.copy_target(member)
    learner.warm_started(member)


def policy_tree(policy: Mapping[str, Tensor]) -> Tree:
    """The tree that is packed, stored and named by its digest."""
    return {"format": POLICY_FORMAT, "policy": {name: tensor.to("cpu") for name, tensor in policy.items()}}


def is_policy(tree: Mapping[str, Any]) -> bool:
    """Whether a stored tree is a policy, and no state."""
    return tree.keys() == {"format", "policy"}


def policy_in(tree: Mapping[str, Any]) -> dict[str, Tensor]:
    """The policy of such a tree; StateMismatch if it is of another format."""
    if tree["format"] != POLICY_FORMAT or not isinstance(tree["policy"], Mapping):
        raise StateMismatch(
            f"a policy must have format {POLICY_FORMAT}, but got {str(tree['format'])[:40]!r}; use the Rekindle that "
            "wrote it"
        )
    return dict(tree["policy"])


def take(
    start: WarmStart, policy: Mapping[str, Tensor], networks: Sequence[str], place: str
) -> tuple[dict[str, Tensor], Taken]:
    """What is taken over of a source, and the report.

    Args:
        policy: the new task's own, by name; networks: the names of those that make up a vector, in order.
        place: names the task in errors. StateMismatch if something does not fit, unless it may be partial.
    """
    found = named(start.source, {name: policy[name] for name in networks}, place)
    loaded, mismatched = {}, []
    for name in (name for name in policy if name in found):
        mine, theirs = policy[name], as_tensor(found[name], name, place)
        if mine.shape == theirs.shape:
            loaded[name] = theirs.to("cpu", mine.dtype).clone()
        else:
            mismatched.append(f"{name}: {tuple(theirs.shape)}, not {tuple(mine.shape)}")
    names = set(found)
    report = Taken(list(loaded), mismatched, sorted(names - policy.keys()), [n for n in policy if n not in names])
    if not loaded:
        raise StateMismatch(f"{place}: a warm start takes something over, but nothing fits: {_why(report)}")
    if not start.partial and _why(report):
        raise StateMismatch(
            f"{place}: a warm start takes a whole policy over, but {_why(report)}; give the task the "
            f"hyperparameters of the source's networks, or {PARTIAL}"
        )
    return loaded, report


def _why(report: Taken) -> str:
    """What does not fit, or ""."""
    parts = [
        f"{kind} {', '.join(names[:3])}{' ...' if len(names) > 3 else ''}"
        for kind, names in asdict(report).items()
        if names and kind != "loaded"
    ]
    return "; ".join(parts)


def named(source: Any, networks: Mapping[str, Tensor], place: str) -> Mapping[str, Any]:
    """A source's parts by name; ValueError if it is nothing that a policy can be taken from."""
    from .task import Task  # which imports this

    if isinstance(source, Task):
        return source.policy()
    if isinstance(source, Saved):
        source = unpack(source.manifest, source.fetch)
    if not isinstance(source, Mapping | Sequence | np.ndarray | Tensor) or isinstance(source, str | bytes):
        source = read_policy(source, place)
    if isinstance(source, Mapping):
        if is_policy(source):
            return policy_in(source)
        return _of_state(source, place) if {"identity", "learner"} <= source.keys() else source
    if isinstance(source, Sequence):
        if len(source) != len(networks):
            raise StateMismatch(
                f"{place}: a list of parameters must have {len(networks)}, one for each of "
                f"{', '.join(list(networks)[:3])} ..., but got {len(source)}"
            )
        return dict(zip(networks, source, strict=True))
    return _cut(as_tensor(source, "the vector", place), networks, place)


def _cut(vector: Tensor, networks: Mapping[str, Tensor], place: str) -> dict[str, Tensor]:
    """A vector as the parameters that lie in it one after the other."""
    sizes = [tensor.numel() for tensor in networks.values()]
    if vector.shape != (sum(sizes),):
        raise StateMismatch(
            f"{place}: a parameter vector must have the shape ({sum(sizes)},), as the networks have so "
            f"many numbers, but got {tuple(vector.shape)}"
        )
    parts = vector.split(sizes)
    return {name: part.view(mine.shape) for (name, mine), part in zip(networks.items(), parts, strict=True)}


def _of_state(state: Mapping[str, Any], place: str) -> dict[str, Tensor]:
    """The policy in a whole state, whose task is made for that."""
    from ..spaces import unflatten
    from . import load

    identity = state["identity"]
    algorithm = load(identity["task"])
    if algorithm.version != identity["version"]:
        raise StateMismatch(
            f"{place}: a policy is taken from a state by the version that wrote it, {identity['task']} "
            f"{identity['version']}, but {algorithm.version} is installed"
        )
    task = algorithm(identity["env"], seed=identity["seed"])
    task.init(start=identity.get("start"), **unflatten(identity["hyperparameters"]))
    task.load_state_dict(state)
    return task.policy()


def as_tensor(value: Any, name: str, place: str) -> Tensor:
    """Numbers as a tensor; StateMismatch unless they are finite floating-point ones."""
    try:
        tensor = value.detach() if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
    except (TypeError, ValueError) as error:
        raise StateMismatch(f"{place}: a policy is made of arrays of numbers, but {name} is none: {error}") from None
    if not tensor.is_floating_point() or not bool(tensor.isfinite().all()):
        what = f"has the type {tensor.dtype}" if not tensor.is_floating_point() else "has a number that is not finite"
        raise StateMismatch(f"{place}: a policy is made of finite floating-point numbers, but {name} {what}")
    return tensor


def check_fits(policy: Mapping[str, Tensor], mine: Mapping[str, Tensor], place: str) -> None:
    """StateMismatch unless every part of a stored policy has a place in the task's own."""
    for name, tensor in policy.items():
        if name not in mine or not isinstance(tensor, Tensor) or mine[name].shape != tensor.shape:
            have = tuple(mine[name].shape) if name in mine else "none"
            raise StateMismatch(
                f"{place}: the policy that it starts from has {name} of shape "
                f"{tuple(getattr(tensor, 'shape', ()))}, but the task has {have}"
            )
