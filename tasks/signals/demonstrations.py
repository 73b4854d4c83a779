"""Demonstrations: what was seen and done by someone who can do it, in a file, and as a part of a task's state.

    demonstrations = Demonstrations.of("CartPole-v1", (observations, actions), ...)  # one pair for each episode
    demonstrations.save("cartpole.npz")
    PPO("CartPole-v1", demonstrations="cartpole.npz").init(cloning={"use": True})

`task.record(episodes).save(FILE)` and ``rekindle evaluate UID --record FILE`` record a task. What is shown to a task is
a part of what it starts with, see `warm_start`: its digest is in the identity, and it is stored with the task, so that
the file is needed once.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..checkpoint.member_state import Stacked
from ..envs import EnvSpec, spaces_of
from ..envs.base.encode import Actions, Observations
from ..errors import TaskError
from ..experience.normalizers import ObservationNormalizer
from ..networks.distributions import Distribution

Array = NDArray[Any]
NAMES = ("observations", "actions", "begins")
PREFIX = "demonstrations."


class BadDemonstrations(TaskError, ValueError):
    """Demonstrations are not of the form that can be learned from."""


@dataclass(frozen=True)
class Demonstrations:
    """M steps of some episodes, one after the other.

    Attributes:
        observations: (M, ...), as networks take them: vectors of float32, or images of bytes.
        actions: (M, ...), as `Envs.step` takes them: choices count from 0, several are in one row.
        begins: (M,), 1 where an episode begins with that step, else 0.
    """

    observations: Array
    actions: Array
    begins: Array

    def __post_init__(self) -> None:
        arrays = {name: getattr(self, name) for name in NAMES}
        lengths = {name: len(x) if x.ndim else 0 for name, x in arrays.items()}
        if len(set(lengths.values())) != 1 or not lengths["begins"] or self.begins.ndim != 1:
            raise BadDemonstrations(
                f"demonstrations are observations, actions and begins, at least one and as many of "
                f"each, but got the shapes {[x.shape for x in arrays.values()]}"
            )
        for name, x in arrays.items():
            if x.dtype.kind not in "iufb" or not np.isfinite(x).all():
                raise BadDemonstrations(f"demonstrations are finite numbers, but {name} are not: {x.dtype}")
        if not np.isin(self.begins, (0, 1)).all() or not self.begins[0]:
            raise BadDemonstrations(
                "begins is 1 where an episode begins, as at the first step, and else 0, but got "
                f"{self.begins[:8].tolist()} ..."
            )

    @property
    def steps(self) -> int:
        """M."""
        return len(self.begins)

    @classmethod
    def of(cls, env: str | EnvSpec, *episodes: tuple[Sequence[Any], Sequence[Any]]) -> Self:
        """Those of episodes, each the observations and actions, T of each, as the Gymnasium environment has them."""
        spec = EnvSpec.of(env)
        spaces = spaces_of(spec)
        seen, acts = Observations(spaces.observation, spec.id), Actions(spaces.action, spec.id)
        observations, actions, begins = [], [], []
        for episode, (saw, did) in enumerate(episodes):
            if len(saw) != len(did):
                raise BadDemonstrations(
                    f"each observation has the action that followed it, but episode {episode} has "
                    f"{len(saw)} observations and {len(did)} actions"
                )
            for step, (observation, action) in enumerate(zip(saw, did, strict=True)):
                if not spaces.action.contains(action):
                    raise BadDemonstrations(
                        f"{spec.id}: an action must lie in {spaces.action}, but step {step} of "
                        f"episode {episode} is {action!r}"
                    )
                row = np.zeros(seen.shape, seen.dtype)
                seen.write(observation, row)
                observations.append(row)
                actions.append(np.asarray(action).reshape(acts.learner_shape) - _start(spaces.action))
                begins.append(step == 0)
        return cls(np.array(observations), np.array(actions), np.array(begins, np.float32))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes them as .npz, whole or not at all."""
        path = Path(path)
        if path.suffix != ".npz":
            raise BadDemonstrations(
                f"demonstrations are written as .npz, but got the name {path.name!r}; call it "
                f"{path.with_suffix('.npz').name}"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            with open(part, "wb") as file:
                np.savez_compressed(file, **{name: getattr(self, name) for name in NAMES})
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        return path

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads them; nothing that is read can run code. BadDemonstrations if there are none."""
        if not Path(path).is_file():
            raise BadDemonstrations(
                f"there is no file {path} with demonstrations; a task that has begun carries on "
                "without: set demonstrated_steps=N, as many as there were"
            )
        try:
            with open(path, "rb") as data, np.load(data, allow_pickle=False) as file:
                return cls(*(file[name] for name in NAMES))
        except BadDemonstrations as error:
            raise BadDemonstrations(f"{path}: {error}") from None
        except (OSError, ValueError, KeyError, EOFError, AttributeError, zipfile.BadZipFile) as error:
            raise BadDemonstrations(f"{path} must be an .npz file of {', '.join(NAMES)}, but: {error}") from None

    @classmethod
    def given(cls, source: Any) -> Self:
        """Those that a source stands for: demonstrations, or a file of such."""
        if isinstance(source, cls):
            return source
        if not isinstance(source, str | os.PathLike):
            raise BadDemonstrations(f"demonstrations are Demonstrations or a file, but got a {type(source).__name__}")
        return cls.load(source)

    def parts(self, examples: Mapping[str, Tensor], space: gym.Space[Any], place: str) -> dict[str, Tensor]:
        """The same as tensors by name, in the form that a member's `examples` have; BadDemonstrations if they differ.

        space: of the actions; place: names the task in errors.
        """
        found = {}
        for name, mine in examples.items():
            theirs = torch.from_numpy(np.ascontiguousarray(getattr(self, name.removeprefix(PREFIX))))
            if mine.shape != theirs.shape or (theirs.is_floating_point() and not mine.is_floating_point()):
                raise BadDemonstrations(
                    f"{place}: its {name} are {mine.dtype} of shape {tuple(mine.shape)}, but those "
                    f"given are {theirs.dtype} of shape {tuple(theirs.shape)}"
                )
            found[name] = theirs.to(mine.dtype)
        low, high = _bounds(space)
        actions = self.actions.reshape(self.steps, -1)
        if isinstance(space, gym.spaces.Box):
            clipped = np.clip(actions, low, high).astype(np.float32)  # as the environment clips them
            found[f"{PREFIX}actions"] = torch.from_numpy(clipped).reshape(found[f"{PREFIX}actions"].shape)
        elif ((actions < low) | (actions > high)).any():
            raise BadDemonstrations(
                f"{place}: demonstrated actions must lie in {space}, counted from 0, but got "
                f"{actions.min()} to {actions.max()}"
            )
        return found


def _start(space: gym.Space[Any]) -> Any:
    """What choices count from."""
    if isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
        return np.asarray(space.start).reshape(-1) if np.ndim(space.start) else space.start
    return 0


def _bounds(space: gym.Space[Any]) -> tuple[Any, Any]:
    """The least and the largest of each of an action's numbers."""
    if isinstance(space, gym.spaces.Box):
        return space.low.reshape(-1), space.high.reshape(-1)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return 0, space.nvec.reshape(-1) - 1
    return 0, int(getattr(space, "n", 2)) - 1 if isinstance(space, gym.spaces.Discrete) else 1


class Examples(Stacked):
    """The demonstrations of P members, (P, M, ...), M alike for all: state, so that no checkpoint needs their file."""

    def __init__(
        self,
        members: int,
        steps: int,
        obs: tuple[tuple[int, ...], torch.dtype],
        distribution: Distribution,
        device: torch.device | str,
    ):
        """obs: the shape and type of one observation."""
        self.steps = steps
        shape, kind = obs
        self.tensors = {
            "observations": torch.zeros(members, steps, *shape, dtype=kind, device=device),
            "actions": torch.zeros(
                members, steps, *distribution.action_shape, dtype=distribution.action_type, device=device
            ),
            "begins": torch.zeros(members, steps, device=device),
        }

    def of(self, member: int) -> dict[str, Tensor]:
        """One member's, by name; views."""
        return {PREFIX + name: x[member] for name, x in self.tensors.items()}

    def batch(self, rows: NDArray[np.int64], normalizer: ObservationNormalizer | None) -> dict[str, Tensor]:
        """The steps (P, B) with these numbers, as a policy would see them now: obs, actions, begins."""
        member = torch.arange(len(rows))[:, None]
        index = torch.from_numpy(rows)
        obs, actions, begins = (self.tensors[name][member, index] for name in NAMES)
        return {"obs": obs if normalizer is None else normalizer.of_batch(obs), "actions": actions, "begins": begins}


def apart(beginning: Mapping[str, Any]) -> tuple[dict[str, Any], Demonstrations | None]:
    """What a task begins with as two: the parts of a policy, and what is shown to it."""
    shown = {name.removeprefix(PREFIX): x.numpy() for name, x in beginning.items() if name.startswith(PREFIX)}
    networks = {name: x for name, x in beginning.items() if not name.startswith(PREFIX)}
    return networks, Demonstrations(**shown) if shown else None


class Recorder:
    """Takes down what a task sees and does in episodes that run side by side; see `Learner.evaluate_episodes`."""

    def __init__(self, member: int, space: gym.Space[Any]):
        """space: of the actions."""
        self.member, self.space = member, space
        self.steps: list[tuple[Array, Array, Array]] = []

    def __call__(self, obs: Array, actions: Array, running: NDArray[np.bool_]) -> None:
        """One step of all members: (P, N, ...), (P, N, ...), and where episodes have not ended before, (P, N)."""
        self.steps.append(tuple(x[self.member].copy() for x in (obs, actions, running)))

    def demonstrations(self) -> Demonstrations:
        """All episodes, one after the other, actions as the environment takes them."""
        obs, actions, running = (np.stack(x, 1) for x in zip(*self.steps, strict=True))  # (N, T, ...)
        begins = np.zeros(running.shape, np.float32)
        begins[:, 0] = 1
        if isinstance(self.space, gym.spaces.Box):
            actions = np.clip(actions, self.space.low, self.space.high).astype(np.float32)
        return Demonstrations(obs[running], actions[running], begins[running])
