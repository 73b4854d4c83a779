"""Warm starts: tasks whose networks start from given weights.

A policy is the networks' parameters by name, plus the statistics that scale observations, if any. Target networks
become copies of the loaded ones. Everything else starts fresh: optimizers, counters, entropy coefficients, replay
buffers, other statistics and environments. The policy's digest is part of the task's identity, and the policy is its
first checkpoint, so training from it is as reproducible as from scratch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .base_learner import BaseLearner
from .checkpoint.policy_files import metadata_of, read_policy
from .checkpoint.state import Tree, unpack
from .checkpoint.storage import Saved
from .errors import StateMismatch
from .learner import Learner
from .registry import task_of
from .signals.demonstrations import Demonstrations

POLICY_FORMAT = 1
PARTIAL = "load only the parts that fit with WarmStart(source, partial=True), or --partial"


@dataclass(frozen=True)
class WarmStart:
    """The policy that a task starts from.

    Attributes:
        source: another task; its `state_dict()`, `policy()` or `parameters()`; a stored checkpoint, `store.load(uid)`;
            a vector of all networks' parameters in their order; or a file with one of these: .npz, .npy, .safetensors,
            or a .zip of Stable-Baselines3, see `checkpoint.sb3_files`.
        partial: load the parts that fit, instead of refusing a policy that does not fit as a whole.
        name: name of the source, recorded for people; it is not part of the identity.
    """

    source: Any
    partial: bool = False
    name: str = ""


def located(source: Any) -> Any:
    """Return a source, with its whole path if it is a file.

    An environment may change the working directory before the file is read.
    """
    if isinstance(source, WarmStart):
        return replace(source, source=located(source.source))
    return Path(source).absolute() if isinstance(source, str | os.PathLike) else source


@dataclass(frozen=True)
class LoadReport:
    """Names of a policy's parts, grouped by what happened to them.

    Attributes:
        loaded: loaded into the task.
        mismatched: in both with different shapes, as "name: (3, 4), not (5, 4)".
        unexpected: in the source only.
        missing: in the task only; these start fresh.
    """

    loaded: list[str] = field(default_factory=list)
    mismatched: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, list[str]]:
        """Return the report as JSON, for an event."""
        return asdict(self)

    def __str__(self) -> str:
        parts = [f"{len(names)} {outcome}" for outcome, names in asdict(self).items() if names]
        return ", ".join(parts) or "nothing loaded"


def policy_tree(policy: Mapping[str, Tensor]) -> Tree:
    """Return the tree in which a policy is packed and stored."""
    return {"format": POLICY_FORMAT, "policy": {name: tensor.to("cpu") for name, tensor in policy.items()}}


def is_policy(tree: Mapping[str, Any]) -> bool:
    """Return whether a stored tree is a policy rather than a state."""
    return tree.keys() == {"format", "policy"}


def policy_in(tree: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the policy in a tree for which `is_policy` is true.

    Raises:
        StateMismatch: its format is unknown.
    """
    if tree["format"] != POLICY_FORMAT or not isinstance(tree["policy"], Mapping):
        raise StateMismatch(
            f"a policy must have format {POLICY_FORMAT}, but got {str(tree['format'])[:40]!r}; use the Rekindle that "
            "wrote it"
        )
    return dict(tree["policy"])


def match_beginning(
    learner: BaseLearner, start: WarmStart | None, demonstrations: Demonstrations | None, subject: str
) -> tuple[dict[str, Tensor], LoadReport]:
    """Return the tensors that a new member starts from, and a report."""
    parts: dict[str, Tensor] = {}
    report = LoadReport()
    if start is not None:
        parts, report = match_policy(start, learner.policy_views(0), list(learner.network_views(0)), subject)
    if demonstrations is not None:
        assert isinstance(learner, Learner)
        more = demonstrations.as_tensors(learner.demonstration_views(0), learner.envs.action_space, subject)
        parts, report = {**parts, **more}, replace(report, loaded=[*report.loaded, *more])
    return parts, report


def match_policy(
    start: WarmStart, policy: Mapping[str, Tensor], networks: Sequence[str], subject: str
) -> tuple[dict[str, Tensor], LoadReport]:
    """Return the parts of a source that fit, and a report.

    Args:
        start: the warm start.
        policy: the new task's own policy, by name.
        networks: names of the parameters that make up a vector, in order.
        subject: name of the task in error messages.

    Raises:
        StateMismatch: nothing fits; or something does not fit and `start` is not partial.
    """
    source = parts_of(start.source, {name: policy[name] for name in networks}, subject)
    loaded, mismatched = {}, []
    for name in (name for name in policy if name in source):
        part, other = policy[name], as_tensor(source[name], name, subject)
        if part.shape == other.shape:
            loaded[name] = other.to("cpu", part.dtype).clone()
        else:
            mismatched.append(f"{name}: {tuple(other.shape)}, not {tuple(part.shape)}")
    names = set(source)
    report = LoadReport(list(loaded), mismatched, sorted(names - policy.keys()), [n for n in policy if n not in names])
    if not loaded:
        raise StateMismatch(
            f"{subject}: a warm start must have parts of the task's policy, but nothing fits: {_misfits(report)}"
        )
    if not start.partial and _misfits(report):
        raise StateMismatch(
            f"{subject}: the warm start's policy must fit as a whole, but {_misfits(report)}; give the task the "
            f"hyperparameters of the source's networks, or {PARTIAL}"
        )
    return loaded, report


def _misfits(report: LoadReport) -> str:
    parts = [
        f"{outcome} {', '.join(names[:3])}{' ...' if len(names) > 3 else ''}"
        for outcome, names in asdict(report).items()
        if names and outcome != "loaded"
    ]
    return "; ".join(parts)


def hyperparameters_of(source: Any) -> Mapping[str, Any]:
    """Return the nested hyperparameters of the task that a policy is from.

    They are {} if the source does not tell them.
    """
    if hasattr(source, "policy"):  # a task
        return source.hyperparameters or {}
    if isinstance(source, Saved):
        source = unpack(source.manifest, source.fetch)
    identity = source.get("identity", {}) if isinstance(source, Mapping) else {}
    if isinstance(source, str | os.PathLike):
        identity = json.loads(metadata_of(Path(source)).get("identity", "{}"))
    values: Mapping[str, Any] = identity.get("hyperparameters", {})
    return values


def parts_of(source: Any, networks: Mapping[str, Tensor], subject: str) -> Any:
    """Return a source's parts by name.

    Raises:
        ValueError: no policy can be read from it.
    """
    if hasattr(source, "policy"):  # a task
        return source.policy()
    if isinstance(source, Saved):
        source = unpack(source.manifest, source.fetch)
    if not isinstance(source, Mapping | Sequence | np.ndarray | Tensor) or isinstance(source, str | bytes):
        source = read_policy(source, subject)
    if isinstance(source, Mapping):
        if is_policy(source):
            return policy_in(source)
        if not {"identity", "learner"} <= source.keys():
            return source
        with closing(task_of(source["identity"])) as task:
            task.load_state_dict(source)
            return task.policy()
    if isinstance(source, Sequence):
        if len(source) != len(networks):
            raise StateMismatch(
                f"{subject}: a list of parameters must have {len(networks)}, one for each of "
                f"{', '.join(list(networks)[:3])} ..., but got {len(source)}"
            )
        return dict(zip(networks, source, strict=True))
    return split_vector(as_tensor(source, "the vector", subject), networks, subject)


def split_vector(vector: Tensor, networks: Mapping[str, Tensor], subject: str) -> dict[str, Tensor]:
    """Split a vector into the networks' parameters, by name."""
    sizes = [tensor.numel() for tensor in networks.values()]
    if vector.shape != (sum(sizes),):
        raise StateMismatch(
            f"{subject}: a parameter vector must have the shape ({sum(sizes)},), one number for each parameter of the "
            f"networks, but got {tuple(vector.shape)}"
        )
    parts = vector.split(sizes)
    return {name: part.view(network.shape) for (name, network), part in zip(networks.items(), parts, strict=True)}


def as_tensor(value: Any, name: str, subject: str) -> Tensor:
    """Return an array as a tensor, or raise StateMismatch.

    Only finite floating-point numbers are accepted.
    """
    try:
        tensor = value.detach() if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
    except (TypeError, ValueError) as error:
        raise StateMismatch(f"{subject}: a policy is made of arrays of numbers, but {name} is none: {error}") from None
    if not tensor.is_floating_point() or not bool(tensor.isfinite().all()):
        fault = f"has the type {tensor.dtype}" if not tensor.is_floating_point() else "has a number that is not finite"
        raise StateMismatch(f"{subject}: a policy is made of finite floating-point numbers, but {name} {fault}")
    return tensor
