"""Actions and values for observations in the environment's own form."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from ..base_learner import BaseLearner, MemberRef
from ..envs import Joined, spaces_of
from ..envs.base.actions import Actions
from ..envs.base.joined import leaves
from ..envs.base.observations import Observations
from ..evaluation.players import playing
from ..networks.recurrent import States
from ..rng import streams
from ..runtime.threads import one_thread

Array = NDArray[Any]


class Predictor:
    """One member's actions and values, for one observation or a batch.

    A batch has one more leading axis, in every part of a Dict or Tuple, like that of a `gymnasium.vector` environment.
    Acting does not change the task: random actions have a stream of their own.

    Attributes:
        ref: learner and index of the member.
        learner: the learner that acts.
    """

    def __init__(self, learner: BaseLearner, member: int, subject: str):
        """Describe observations and actions.

        Args:
            learner: learner of the member.
            member: index of the member.
            subject: name of the task in error messages.

        Raises:
            UnsupportedSpace: the learner does not act in an environment.
        """
        self.ref, self.subject, self.learner = MemberRef(learner, member), subject, playing(learner)
        spaces, env = spaces_of(learner.env), learner.env.id
        self.observations, self.actions = Observations(spaces.observation, env), Actions(spaces.action, env)
        self.space, self.actor_count = spaces.observation, 0
        self._kind: tuple[int, bool, int] | None = None  # observations, greedy, work
        self._act: Callable[[Array], Array] = lambda obs: obs
        self._memory: Any = None

    @one_thread()
    def __call__(
        self, observation: Any, state: Array | None, episode_start: Any, deterministic: bool
    ) -> tuple[Any, Array | None]:
        """Return actions and the next recurrent states; see `Task.predict`."""
        batch, single = self._encode(observation)
        # Exploration follows the work done, such as a share of random actions that falls.
        work = getattr(self.learner, self.learner.unit)
        if self._kind != (batch.shape[1], deterministic, work):
            self._begin(batch.shape[1], deterministic)
            self._kind = batch.shape[1], deterministic, work
        self._remember(self._memory, state, episode_start)
        rows = self.actions.decode(self._act(batch)[self.ref.member])
        rows = rows[0] if single else rows
        action = self.actions.space.split(rows) if isinstance(self.actions.space, Joined) else rows
        return action, self._state()

    @one_thread()
    def value(self, observation: Any, state: Array | None) -> Any:
        """Return v(s), a number or (N,); see `Task.value`."""
        batch, single = self._encode(observation)
        memory = self.learner.acting_memory(batch.shape[1])
        self._remember(memory, state, None)
        values = self.learner.state_values(batch, memory)[self.ref.member]
        return float(values[0]) if single else values

    def _begin(self, number: int, deterministic: bool) -> None:
        """Create the acting function for this many observations at once."""
        learner = self.learner
        self.actor_count += 1  # each acting function gets new random streams
        keys = partial(streams.keys, learner.seeds, "predict", self.actor_count)
        self._memory = learner.acting_memory(number)
        self._act = learner.actor(number, deterministic, keys, self._memory)

    def _encode(self, observation: Any) -> tuple[Array, bool]:
        """Return observations (P, N, ...), and whether there is only one.

        All members get the same ones; the other members' actions are not used.
        """
        size = self._size(observation)
        rows = [observation] if size is None else [_row(self.space, observation, i) for i in range(size)]
        encoded = np.zeros((len(rows), *self.observations.shape), self.observations.dtype)
        for row, out in zip(rows, encoded, strict=True):
            self.observations.write(row, out, "the caller of predict")
        return np.repeat(encoded[None], self.learner.members, 0), size is None

    def _size(self, observation: Any) -> int | None:
        """Return the number of observations in a batch, None for one."""
        sizes = set()
        for path, leaf in leaves(self.space):
            part = observation
            try:
                for step in path:
                    part = part[step]
            except (KeyError, IndexError, TypeError, ValueError):
                raise self._unfit(f"one without {list(path)}") from None
            try:
                shape, leaf_shape = np.shape(part), leaf.shape or ()
            except ValueError:
                raise self._unfit("rows of unequal lengths" + (f" in {list(path)}" if path else "")) from None
            if shape[len(shape) - len(leaf_shape) :] != leaf_shape or len(shape) > len(leaf_shape) + 1:
                raise self._unfit(f"the shape {shape}" + (f" in {list(path)}" if path else ""))
            sizes.add(shape[0] if len(shape) > len(leaf_shape) else None)
        if len(sizes) > 1 or 0 in sizes:
            raise self._unfit(f"parts of {', '.join('one' if n is None else str(n) for n in sizes)}")
        return sizes.pop()

    def _unfit(self, got: str) -> ValueError:
        return ValueError(
            f"{self.subject}: an observation must have the form of {self.space}, or a batch one more axis in front, "
            f"but got {got}"
        )

    def _remember(self, memory: Any, state: Array | None, episode_start: Any) -> None:
        """Set the recurrent states, if any; 0 where an episode starts."""
        if not isinstance(memory, States):
            return
        tensor = memory.tensors["state"]
        shape = tuple(tensor.shape[1:])
        before = np.zeros(shape, np.float32) if state is None else np.array(state, np.float32)
        if before.shape != shape:
            raise ValueError(
                f"{self.subject}: the state must be the one that predict returned, of shape {shape} here, but got the "
                f"shape {before.shape}"
            )
        if episode_start is not None:
            before[np.broadcast_to(np.asarray(episode_start, bool), shape[:1])] = 0
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(before))

    def _state(self) -> Array | None:
        if not isinstance(self._memory, States):
            return None
        return self._memory.tensors["state"][self.ref.member].cpu().numpy().copy()


def _row(space: spaces.Space[Any], batch: Any, index: int) -> Any:
    """Return one observation of a batch."""
    if isinstance(space, spaces.Dict):
        return {name: _row(part, batch[name], index) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_row(part, values, index) for part, values in zip(space.spaces, batch, strict=True))
    return batch[index]


def player(predictor: Predictor) -> Callable[[Any], Any]:
    """Return a function that plays one episode greedily."""
    state: Array | None = None

    def act(observation: Any) -> Any:
        nonlocal state
        action, state = predictor(observation, state, None, True)
        return action

    return act
