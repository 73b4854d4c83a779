"""Demonstrations: recorded observations and actions, in files and in a task's state.

    demonstrations = Demonstrations.of("CartPole-v1", (observations, actions), ...)  # one pair for each episode
    demonstrations.save("cartpole.npz")
    PPO("CartPole-v1", demonstrations="cartpole.npz").init(cloning={"use": True})

`task.record(episodes).save(FILE)` and ``rekindle evaluate UID --record FILE`` record a task in evaluation.
`task.recorder()` and ``rekindle train ... --record FILE`` record it in training. `Replayed` plays back the actions of
any of these files.

Like a warm start, demonstrations are part of a task's start, see `warm_start`. Their digest is in the identity, and
they are stored with the task, so you need the file only once.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..checkpoint.array_files import open_npz
from ..checkpoint.member_state import Stacked
from ..checkpoint.policy_files import write_whole
from ..envs import Envs, EnvSpec, Joined, StepResult, spaces_of
from ..envs.base.actions import Actions
from ..envs.base.joined import sizes_of
from ..envs.base.observations import Observations
from ..errors import TaskError
from ..experience.normalizers import ObservationNormalizer
from ..learner import Learner
from ..networks.distributions import distribution_for

Array = NDArray[Any]
NAMES = ("observations", "actions", "begins")
PREFIX = "demonstrations."


class BadDemonstrations(TaskError, ValueError):
    """Demonstrations lack the form that learning needs."""


def check_name(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file to write.

    Raises:
        BadDemonstrations: it does not end in .npz.
    """
    path = Path(path)
    if path.suffix != ".npz":
        raise BadDemonstrations(
            f"demonstrations are written as .npz, but got the name {path.name!r}; call it "
            f"{path.with_suffix('.npz').name}"
        )
    return path


@dataclass(frozen=True)
class Demonstrations:
    """M steps of some episodes, in order.

    Attributes:
        observations: (M, ...), encoded: vectors as float32, images as bytes.
        actions: (M, ...), in the form of `Envs.step`: choices count from 0, and several of them form one row.
        begins: (M,), 1 at the first step of each episode, else 0.
        env: text of the environment's spec, which determines the form of actions; empty if unknown.
    """

    observations: Array
    actions: Array
    begins: Array
    env: str = ""

    def __post_init__(self) -> None:
        arrays = {name: getattr(self, name) for name in NAMES}
        lengths = {name: len(x) if x.ndim else 0 for name, x in arrays.items()}
        if len(set(lengths.values())) != 1 or not lengths["begins"] or self.begins.ndim != 1:
            raise BadDemonstrations(
                "demonstrations must have the same number of observations, actions and begins, at least one, but got "
                f"the shapes {[x.shape for x in arrays.values()]}"
            )
        for name, x in arrays.items():
            if x.dtype.kind not in "iufb" or not np.isfinite(x).all():
                raise BadDemonstrations(f"demonstrations are finite numbers, but {name} are not: {x.dtype}")
        if not np.isin(self.begins, (0, 1)).all() or not self.begins[0]:
            raise BadDemonstrations(
                "begins must be 1 at the first step of each episode and 0 elsewhere, but got "
                f"{self.begins[:8].tolist()} ..."
            )

    @property
    def steps(self) -> int:
        """Number of steps, M."""
        return len(self.begins)

    @classmethod
    def of(cls, env: str | EnvSpec, *episodes: tuple[Sequence[Any], Sequence[Any]]) -> Self:
        """Create demonstrations from episodes of a Gymnasium environment.

        Args:
            env: the environment.
            episodes: for each episode, T observations and T actions as the environment has them.

        Raises:
            BadDemonstrations: numbers of observations and actions differ, or an action is not in the action space.
        """
        spec = EnvSpec.of(env)
        spaces = spaces_of(spec)
        encoder, codec = Observations(spaces.observation, spec.id), Actions(spaces.action, spec.id)
        observations, actions, begins = [], [], []
        for episode, (observations_of_episode, actions_of_episode) in enumerate(episodes):
            if len(observations_of_episode) != len(actions_of_episode):
                raise BadDemonstrations(
                    f"each observation has the action that followed it, but episode {episode} has "
                    f"{len(observations_of_episode)} observations and {len(actions_of_episode)} actions"
                )
            for step, (observation, action) in enumerate(zip(observations_of_episode, actions_of_episode, strict=True)):
                if not spaces.action.contains(action):
                    raise BadDemonstrations(
                        f"{spec.id}: an action must lie in {spaces.action}, but step {step} of "
                        f"episode {episode} is {action!r}"
                    )
                row = np.zeros(encoder.shape, encoder.dtype)
                encoder.write(observation, row)
                observations.append(row)
                actions.append(codec.encode(action))
                begins.append(step == 0)
        return cls(np.array(observations), np.array(actions), np.array(begins, np.float32), spec.canonical)

    @classmethod
    def of_envs(cls, envs: Envs, observations: Array, actions: Array, begins: Array) -> Self:
        """Create demonstrations from steps (M, ...); actions are clipped to their bounds."""
        if isinstance(space := envs.action_space, gym.spaces.Box | Joined):
            actions = np.clip(actions, space.low, space.high).astype(np.float32)
        return cls(observations, actions, begins.astype(np.float32), envs.spec.canonical)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the demonstrations as .npz, atomically."""
        path = check_name(path)
        data = io.BytesIO()
        named = {"env": np.array(self.env)} if self.env else {}
        arrays: dict[str, Any] = {name: getattr(self, name) for name in NAMES} | named
        np.savez_compressed(data, **arrays)
        return write_whole(path, data.getvalue())

    @classmethod
    def load(cls, path: Any) -> Self:
        """Read demonstrations from a file; no code from the file is run.

        Demonstrations are returned unchanged.

        Raises:
            BadDemonstrations: the file holds none.
        """
        if isinstance(path, cls):
            return path
        if not isinstance(path, str | os.PathLike):
            raise BadDemonstrations(f"demonstrations are Demonstrations or a file, but got a {type(path).__name__}")
        if not Path(path).is_file():
            raise BadDemonstrations(
                f"there is no file {path} with demonstrations; a task that has started resumes "
                "without the file: set demonstrated_steps=N, their number"
            )
        try:
            with open_npz(path) as file:
                env = str(file["env"]) if "env" in file.files else ""
                return cls(file[NAMES[0]], file[NAMES[1]], file[NAMES[2]], env)
        except BadDemonstrations as error:
            raise BadDemonstrations(f"{path}: {error}") from None
        except (OSError, ValueError, KeyError, EOFError, AttributeError, zipfile.BadZipFile) as error:
            raise BadDemonstrations(f"{path} must be an .npz file of {', '.join(NAMES)}, but: {error}") from None

    def as_tensors(self, examples: Mapping[str, Tensor], space: gym.Space[Any], subject: str) -> dict[str, Tensor]:
        """Return tensors by name, in the form of a member's `examples`.

        Args:
            examples: the member's own tensors, by name.
            space: action space.
            subject: name of the task in error messages.

        Raises:
            BadDemonstrations: shapes or types differ, or actions are not in the space.
        """
        tensors = {}
        for name, tensor in examples.items():
            loaded = torch.from_numpy(np.ascontiguousarray(getattr(self, name.removeprefix(PREFIX))))
            if tensor.shape != loaded.shape or (loaded.is_floating_point() and not tensor.is_floating_point()):
                raise BadDemonstrations(
                    f"{subject}: its {name} are {tensor.dtype} of shape {tuple(tensor.shape)}, but those "
                    f"given are {loaded.dtype} of shape {tuple(loaded.shape)}"
                )
            tensors[name] = loaded.to(tensor.dtype)
        actions = self.actions.reshape(self.steps, -1)
        if isinstance(space, gym.spaces.Box | Joined):  # clipped as the environment does it
            clipped = np.clip(actions, space.low.reshape(-1), space.high.reshape(-1)).astype(np.float32)
            tensors[f"{PREFIX}actions"] = torch.from_numpy(clipped).reshape(tensors[f"{PREFIX}actions"].shape)
        elif ((actions < 0) | (actions >= sizes_of(space))).any():
            raise BadDemonstrations(
                f"{subject}: demonstrated actions must lie in {space}, counted from 0, but got "
                f"{actions.min()} to {actions.max()}"
            )
        return tensors


class Examples(Stacked):
    """Demonstrations of P members, M steps each.

    They are part of the state, so no checkpoint needs their file.
    """

    def __init__(self, learner: Learner, steps: int):
        """Allocate the tensors."""
        self.steps = steps
        envs = learner.envs
        distribution = distribution_for(envs.action_space, f"demonstrations of {learner.env.id}")
        obs_type = torch.float32 if envs.obs_kind == "vector" else torch.uint8
        forms = ((envs.obs_shape, obs_type), (distribution.action_shape, distribution.action_type), ((), torch.float32))
        self.tensors = {
            name: torch.zeros(learner.members, steps, *shape, dtype=dtype, device=learner.device)
            for name, (shape, dtype) in zip(NAMES, forms, strict=True)
        }

    def of(self, member: int) -> dict[str, Tensor]:
        """Return one member's demonstrations by name; views."""
        return {PREFIX + name: x[member] for name, x in self.tensors.items()}

    def batch(self, rows: NDArray[np.int64], normalizer: ObservationNormalizer | None) -> dict[str, Tensor]:
        """Return obs, actions and begins of the steps with given indices.

        Indices are (P, B). Observations are normalized by the current statistics.
        """
        member = torch.arange(len(rows))[:, None]
        index = torch.from_numpy(rows)
        obs, actions, begins = (self.tensors[name][member, index] for name in NAMES)
        return {"obs": obs if normalizer is None else normalizer.of_batch(obs), "actions": actions, "begins": begins}


class Recorder:
    """Recorder of one task's observations and actions in training."""

    def __init__(self, envs: Envs, members: slice):
        """Start recording the environments of these members; particles are several."""
        self.steps: list[tuple[Array, Array, Array]] = []
        self.after: Array | None = None  # the last observations, or None before the first
        self.ended = np.zeros((members.stop - members.start, envs.num_envs), np.bool_)
        self.follow(envs, members)

    def follow(self, envs: Envs, members: slice) -> None:
        """Record the task in other environments from now on."""
        self.envs, self.members = envs, members
        envs.watch(partial(self._see, envs))

    def _see(self, envs: Envs, obs: Array, actions: Array, result: StepResult) -> None:
        if envs is not self.envs:
            return  # former ones, in which others train on
        obs, actions = obs[self.members], actions[self.members]
        begins = np.ones_like(self.ended)
        if self.after is not None:  # a learner may abandon an episode; its next observation then begins another one
            left = (obs != self.after).reshape(*begins.shape, -1).any(-1)
            begins = self.ended | left
        self.steps.append((obs.copy(), actions.copy(), begins))
        self.after = result.next_obs[self.members].copy()
        self.ended = (result.terminated | result.truncated)[self.members]

    def demonstrations(self) -> Demonstrations:
        """Return all steps so far, one environment after another.

        Raises:
            BadDemonstrations: there are no steps yet.
        """
        if not self.steps:
            raise BadDemonstrations("a recording has at least one step, but nothing was trained since it began")
        columns = (np.stack(column, 2) for column in zip(*self.steps, strict=True))  # (P, N, T, ...)
        return Demonstrations.of_envs(self.envs, *(x.reshape(-1, *x.shape[3:]) for x in columns))


def split_start(start: Mapping[str, Any]) -> tuple[dict[str, Any], Demonstrations | None]:
    """Split the start of a task into a policy and demonstrations."""
    demonstrations = {name.removeprefix(PREFIX): x.numpy() for name, x in start.items() if name.startswith(PREFIX)}
    networks = {name: x for name, x in start.items() if not name.startswith(PREFIX)}
    return networks, Demonstrations(**demonstrations) if demonstrations else None
