"""What is trained and how: all that a result depends on but the epochs, and the uid that is its hash."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch

from ..spaces import Space, flatten
from .checkpoint.manifests import canonical_json
from .envs import EnvSpec
from .errors import NotInitialized
from .learner import Learner

EnvLike = str | EnvSpec | Mapping[str, Any]


def device_of(device: str, place: str) -> torch.device:
    """The torch device with this name; ValueError if there is none, or this machine has not got it."""
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(
            f"{place}: device must be one that torch knows, such as 'cpu', 'cuda' or 'cuda:1', but got {device!r}"
        ) from None
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"{place}: device {device!r} is not here, torch sees {torch.cuda.device_count()} CUDA devices "
            "on this machine; take 'cpu', or a torch and a driver that can use it"
        )
    return found


class Identified:
    """An algorithm on an environment with a seed, and the hyperparameters that `init` gives it."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    learner: ClassVar[type[Learner]]

    env_processes = 0  # how many processes step the environments; no part of the identity, as it changes no result

    def __init__(self, env: EnvLike, seed: int, device: str, fixed: Mapping[str, Any]):
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
            raise ValueError(f"{self.name}: seed must be an integer from 0 to 2**63 - 1, but got {seed!r}")
        self.env, self.seed, self.device = EnvSpec.of(env), seed, device_of(device, self.name)
        self.fixed = flatten(fixed)
        self._left = self.learner.hyperparameters.fix(fixed) if fixed else None  # open; only if it must be checked
        self.hyperparameters: dict[str, Any] | None = None
        self.uid = ""
        self._start: str | None = None

    def __str__(self) -> str:
        return f"{self.name} on {self.env.id}, seed {self.seed}" + (f" ({self.uid[:8]})" if self.uid else "")

    def get_space(self, **fidelities: Any) -> Space:
        """The hyperparameters still open, nested, and the fidelities named, e.g. ``epochs=fidelity(1, 27)``."""
        left = self.learner.hyperparameters.fix({}) if self._left is None else self._left
        return left.searched().extend(**fidelities)

    def _complete(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All hyperparameters, nested, of those given; the space's and the algorithm's errors if they are wrong."""
        values = self.learner.hyperparameters.validate({**flatten(given), **self._without_overwriting(given)})
        self.learner.check(values)
        self.learner.check_env(self.env)
        self.learner.check_use(self.env, values)
        return values

    def _without_overwriting(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The fixed hyperparameters; ValueError if `given` sets one of them to something else."""
        for name, value in flatten(given).items():
            if name in self.fixed and self.fixed[name] != value:
                raise ValueError(
                    f"{self}: {name} was fixed to {self.fixed[name]!r} when the task was made, but init got {value!r}"
                )
        return self.fixed

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that the result depends on but the epochs, as JSON."""
        if self.hyperparameters is None:
            raise NotInitialized(f"{self} has no hyperparameters yet; call init(...) first")
        identity = {
            "task": self.name,
            "version": self.version,
            "env": self.env.to_json(),
            "seed": self.seed,
            "hyperparameters": self.learner.hyperparameters.identifying(self.hyperparameters),
        }
        return identity | ({"start": self._start} if self._start else {})

    def _hash(self) -> str:
        return uid_of(self.identity)

    def _copy(self) -> Self:
        """The same task once more, with no state and no storage."""
        copy = type(self)(self.env, seed=self.seed, device=str(self.device))  # type: ignore[call-arg]
        copy.hyperparameters, copy.uid, copy._start = self._values(), self.uid, self._start
        return copy

    @property
    def structure(self) -> str:
        """Equal for tasks that can train in one cohort, device aside."""
        structural = self.learner.hyperparameters.structure(self._values())
        return canonical_json([self.name, self.version, self.env.to_json(), structural]).decode()

    def structural_difference(self, other: Identified) -> list[str]:
        """Names of what keeps two tasks from training in one cohort."""
        names = [n for n in ("name", "version", "env", "device") if getattr(self, n) != getattr(other, n)]
        mine, theirs = (t.learner.hyperparameters.structure(t._values()) for t in (self, other))
        return names + sorted(k for k in mine.keys() | theirs.keys() if mine.get(k, ...) != theirs.get(k, ...))

    def _values(self) -> dict[str, Any]:
        if self.hyperparameters is None:
            raise NotInitialized(f"{self} has no hyperparameters yet; call init(...) first")
        return self.hyperparameters


def uid_of(identity: Mapping[str, Any]) -> str:
    """The uid of the task with this identity, unless it was given another."""
    return hashlib.sha256(canonical_json(identity)).hexdigest()[:20]
