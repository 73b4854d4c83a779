"""Identity of a task, and the uid computed from it.

The identity holds everything that a result depends on except the epochs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import torch

from ..spaces import Space
from ..spaces.values import whole_number
from .checkpoint.manifests import canonical_json
from .envs import EnvSpec
from .errors import StateMismatch
from .learner_state import check_counters

EnvLike = str | EnvSpec | Mapping[str, Any] | None
STATE_FORMAT = 1
STATE_PARTS = ("format", "identity", "structure", "learner")


@dataclass(frozen=True)
class TaskIdentity:
    """Everything a result depends on except the epochs.

    Create it with `of`, which checks the values.

    Attributes:
        algorithm: name of the task class.
        version: version of the algorithm.
        env: environment with its wrappers; falsy without one.
        seed: seed of all random streams.
        hyperparameters: complete values, nested.
        space: space of the hyperparameters.
        start: digest of the state or policy that the task starts from; None for a fresh task.
        units: what is measured in units of the bounds of the environment's spaces; empty where these make no
            difference, so that such tasks keep their uids.
    """

    algorithm: str
    version: int
    env: EnvSpec
    seed: int
    hyperparameters: dict[str, Any]
    space: Space = field(repr=False, compare=False)
    start: str | None = None
    units: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, algorithm: type[Any], env: EnvLike, seed: int, values: Mapping[str, Any], start: str | None = None
    ) -> Self:
        """Return the identity of a task without creating the task.

        Args:
            algorithm: task class.
            env: Gymnasium id, EnvSpec or its JSON; None without an environment.
            seed: 0 to 2**63 - 1.
            values: hyperparameters, nested or dotted; missing ones take their defaults.
            start: see the attribute.

        Raises:
            ValueError: values are out of range or contradict each other; the message names the parameter.
            UnsupportedSpace: the algorithm cannot act in this environment, or not with these values.
        """
        spec, learner = EnvSpec.of(env), algorithm.learner
        seed = check_seed(algorithm.name, seed)
        space = learner.space_in(spec)
        complete = space.validate(values)
        learner.check(complete)
        learner.check_presence(spec)
        learner.check_env(spec)
        learner.check_values_in_env(spec, complete)
        return cls(algorithm.name, algorithm.version, spec, seed, complete, space, start, learner.units(spec))

    @cached_property
    def values(self) -> dict[str, Any]:
        """Hyperparameters that enter the uid, by dotted name, see `Space.identifying`."""
        return self.space.identifying(self.hyperparameters)

    def to_json(self) -> dict[str, Any]:
        """Return the identity in the form that is hashed and stored."""
        identity = {
            "task": self.algorithm,
            "version": self.version,
            "env": self.env.to_json(),
            "seed": self.seed,
            "hyperparameters": dict(self.values),
        }
        later: dict[str, Any] = {"start": self.start, "units": list(self.units)}
        return identity | {name: value for name, value in later.items() if value}

    @cached_property
    def uid(self) -> str:
        """Hash of the identity."""
        return uid_of(self.to_json())

    @cached_property
    def structural(self) -> dict[str, Any]:
        """Hyperparameters that determine shapes and loop counts, by dotted name."""
        return self.space.structure(self.hyperparameters)

    @cached_property
    def structure(self) -> str:
        """Text that is equal for tasks whose states have the same form."""
        parts = [self.algorithm, self.version, self.env.to_json(), self.structural]
        return canonical_json(parts).decode()

    @cached_property
    def cohort_key(self) -> str:
        """Text that is equal for tasks that can share a cohort.

        Beside their structure, it names their other hyperparameters: where one depends on a value that is not
        structural, only some tasks have it. The device matters, too, but is not part of it.
        """
        return canonical_json([self.structure, sorted(self.space.dynamic(self.hyperparameters))]).decode()

    def structural_difference(self, other: TaskIdentity) -> list[str]:
        """Return the names of differences that prevent a common cohort."""
        names = [name for name in ("algorithm", "version", "env") if getattr(self, name) != getattr(other, name)]
        values, others = self.structural, other.structural
        names += sorted(k for k in values.keys() | others.keys() if values.get(k, ...) != others.get(k, ...))
        one, another = (task.space.dynamic(task.hyperparameters).keys() for task in (self, other))
        return names or sorted(one ^ another)

    def check_state(self, state: Mapping[str, Any], subject: str, perturb: bool = False) -> None:
        """Raise StateMismatch unless a state belongs to this task.

        Args:
            state: state as `Task.state_dict` returns it.
            subject: name of the task in error messages.
            perturb: allow other hyperparameters and another seed.
        """
        if missing := sorted({*STATE_PARTS} - state.keys()):
            raise StateMismatch(
                f"{subject}: a state must have {', '.join(STATE_PARTS)}, but lacks {', '.join(missing)}"
            )
        if state["format"] != STATE_FORMAT:
            raise StateMismatch(f"{subject}: a state must have format {STATE_FORMAT}, but got {state['format']!r}")
        check_counters(state["learner"], subject)
        if not isinstance(state["identity"], Mapping):
            raise StateMismatch(
                f"{subject}: a state's identity must be a mapping, but got {str(state['identity'])[:80]}"
            )
        parts, others = self.to_json(), dict(state["identity"])
        for name in ("task", "version", "env") if perturb else sorted(parts.keys() | others.keys()):
            if parts.get(name) != others.get(name):
                cure = "" if perturb else "; pass perturb=True to change it on purpose"
                differs = _difference(name, parts.get(name), others.get(name))
                raise StateMismatch(f"{subject}: the state is of another task: {differs}{cure}")
        if state["structure"] != self.structure:
            raise StateMismatch(
                f"{subject}: the state is of another structure, {state['structure']}; it cannot be perturbed into this "
                "one"
            )


def uid_of(identity: Mapping[str, Any]) -> str:
    """Return the hash of an identity: 20 hexadecimal digits of its sha256."""
    return hashlib.sha256(canonical_json(identity)).hexdigest()[:20]


def check_seed(subject: str, seed: Any) -> int:
    """Return a seed as an int.

    Raises:
        ValueError: it is not an integer from 0 to 2**63 - 1.
    """
    number = whole_number(seed)
    if number is None or not 0 <= number < 2**63:
        raise ValueError(f"{subject}: seed must be an integer from 0 to 2**63 - 1, but got {seed!r}")
    return number


def device_of(device: str, subject: str) -> torch.device:
    """Return the torch device with this name.

    "auto" is the first available of CUDA, MPS and CPU.

    Raises:
        ValueError: torch or this machine lacks the device.
    """
    if device == "auto":
        available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
        return torch.device(next(name for name in available if available[name]))
    try:
        named = torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(
            f"{subject}: device must be one that torch knows, such as 'cpu', 'cuda' or 'cuda:1', or 'auto', "
            f"but got {device!r}"
        ) from None
    if named.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError(
            f"{subject}: device {device!r} is not available, torch finds no Apple GPU on this machine; use 'cpu'"
        )
    if named.type == "cuda" and (named.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"{subject}: device {device!r} is not available, torch sees {torch.cuda.device_count()} CUDA devices on "
            "this machine; use 'cpu', or install a torch and a driver that support it"
        )
    return named


def _difference(name: str, value: Any, other: Any) -> str:
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        for key in sorted(value.keys() | other.keys()):
            if value.get(key) != other.get(key):
                return f"{name}.{key} is {other.get(key)!r} in the state and {value.get(key)!r} in the task"
    return f"{name} is {other!r} in the state and {value!r} in the task"
