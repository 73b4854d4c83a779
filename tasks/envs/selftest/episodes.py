"""Episodes of the self-test, and their records, compared bit for bit."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from ...rng import streams
from ..base.actions import Actions
from ..base.curriculum import Curriculum
from ..base.envs import Array
from ..base.observations import Observations
from ..base.spec import EnvSpec
from ..gym.make import Env

LONG, STEPS, IMAGE_STEPS = 6, 100, 40  # long episodes, and steps of the longest, for vectors and for images
SHORT, SHORT_STEPS = 24, 6  # short episodes: what survives a reset shows at their beginnings


class Episode(NamedTuple):
    """An episode to play."""

    seed: int
    actions: Array
    parameters: dict[str, Any]


class Record(NamedTuple):
    """A step of an episode; the first one is the reset."""

    observation: bytes
    reward: float
    terminated: bool
    truncated: bool
    info: bytes  # the numbers that the spec names


def plan_of(env: Env, spec: EnvSpec, draw: int) -> list[Episode]:
    """Return LONG episodes of different lengths, and then SHORT short ones.

    A trace of the past can depend on their number, and may show rarely. Actions are those of a policy in training: in a
    Box, a quarter of them lies at each bound.
    """
    codec = Actions(env.action_space, spec.id)
    steps = IMAGE_STEPS if Observations(env.observation_space, spec.id).kind != "vector" else STEPS
    width, count = int(np.prod(codec.learner_shape)), steps + SHORT * SHORT_STEPS
    draws = streams.uniform(streams.key("self-test", *([draw] if draw else [])), np.arange(count * width))
    actions = codec.decode(codec.pick(draws.reshape(count, width), beyond=0.5))
    drawn = Curriculum(spec.parameters, [0], "self-test", tuple(spec.info))
    sequences = [actions[: steps // (1 + k % 3)] for k in range(LONG)]
    sequences += np.split(actions[steps:], SHORT)
    first = draw * len(sequences)
    return [Episode(seed, actions, drawn.options(0, seed)) for seed, actions in enumerate(sequences, first)]


def bits_of(obs: Any, space: gym.Space[Any]) -> bytes:
    """Return the bytes of an observation, without parts that its space lacks."""
    if isinstance(space, gym.spaces.Dict):
        try:
            names = sorted(space.spaces)
        except TypeError:  # texts and integers, for instance
            names = [*space.spaces]
        return b"".join(bits_of(obs[name], space.spaces[name]) for name in names)
    if isinstance(space, gym.spaces.Tuple):
        return b"".join(map(bits_of, obs, space.spaces))
    return np.asarray(obs).tobytes()


def difference(one: list[Record], other: list[Record]) -> str | None:
    """Describe the first difference of two episodes; None if they are equal."""
    for step, (x, y) in enumerate(zip_longest(one, other)):
        if x is None or y is None:
            return f"the length of the episode ({min(len(one), len(other)) - 1} steps)"
        for part, p, q in zip(Record._fields, x, y, strict=True):
            if p != q and not (p != p and q != q):
                return f"the {part} at step {step}"
    return None


def first_difference(ones: list[list[Record]], others: list[list[Record]]) -> str | None:
    """Describe the first difference of lists of episodes, or None."""
    return next(filter(None, map(difference, ones, others)), None)
