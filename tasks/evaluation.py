"""Returns of episodes on seeds that no training uses.

The seeds, and the environment, are the same for all tasks unless others are asked for. Evaluation changes no state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from .base_learner import BaseLearner
from .envs import EnvSpec, make_envs, spaces_of
from .envs.base.encode import Observations
from .errors import UnsupportedSpace
from .learner import Learner
from .rng import streams
from .signals.demonstrations import Demonstrations


class Measured(NamedTuple):
    """Measurements of evaluation episodes.

    Attributes:
        returns: (P, E).
        info: (P, E) of each entry that the environment's spec names, NaN of episodes without it.
    """

    returns: np.ndarray
    info: dict[str, np.ndarray]


OnStep = Callable[[np.ndarray, np.ndarray, np.ndarray], None]
EVALUATION_SEED = 0x5EED  # of every trial, so that all are measured on the same episodes; never a training stream
EVALUATION_EPISODES = 20
EVALUATION_STEPS = 100_000  # an episode of an environment without a time limit is truncated here


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread.

    Sums of large arrays round differently on two; cores are used through processes.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def evaluation_keys(members: int, purpose: str, seed: int = EVALUATION_SEED) -> streams.Bits:
    """Return the keys (P,) of a stream that evaluation alone uses."""
    return streams.keys([seed] * members, "evaluation", purpose)


@one_thread()
def evaluate(
    learner: BaseLearner,
    episodes: int = EVALUATION_EPISODES,
    env: EnvSpec | None = None,
    seed: int = EVALUATION_SEED,
    on_step: OnStep | None = None,
) -> np.ndarray:
    """Return each member's objective (P,).

    It is the mean return of greedy episodes, of particles the mean of their means, unless the learner measures another.
    The arguments are those of `evaluate_episodes`.
    """
    if (score := learner.score()) is not None:
        return score
    returns = evaluate_episodes(learner, episodes, on_step=on_step, env=env, seed=seed).reshape(-1, episodes)
    means: np.ndarray = returns.mean(1).reshape(learner.members, -1).mean(1)
    return means


@one_thread()
def evaluate_episodes(
    learner: BaseLearner,
    episodes: int = EVALUATION_EPISODES,
    deterministic: bool = True,
    on_step: OnStep | None = None,
    env: EnvSpec | None = None,
    seed: int = EVALUATION_SEED,
) -> np.ndarray:
    """Return the returns of all episodes, (P, episodes), see `measure_episodes`."""
    return measure_episodes(learner, episodes, deterministic, on_step, env, seed).returns


@one_thread()
def measure_episodes(
    learner: BaseLearner,
    episodes: int = EVALUATION_EPISODES,
    deterministic: bool = True,
    on_step: OnStep | None = None,
    env: EnvSpec | None = None,
    seed: int = EVALUATION_SEED,
) -> Measured:
    """Return what is measured of all episodes, (P, episodes).

    Of particles they are (P, num_particles * episodes).

    Args:
        learner: whose members act.
        episodes: the number of parallel episodes of each member, or particle.
        deterministic: greedy actions, or random ones as in training.
        on_step: is called at each step with observations and actions (P, N, ...), and which episodes still run (P, N).
        env: another environment than the members', with the same spaces; None: theirs.
        seed: of the episodes and of random actions, for every member the same.
    """
    if (score := learner.score()) is not None:
        return Measured(np.repeat(score[:, None], episodes, 1), {})
    learner = acting(learner)
    members, learner = learner.members, learner.particles or learner
    envs, spec, seeds = learner.evaluation_envs, env or learner.env, (seed,) * learner.members
    if envs is None or (envs.spec, envs.seeds, envs.num_envs) != (spec, seeds, episodes):
        envs = make_envs(spec, seeds, episodes, "evaluation", learner.env_processes)
    learner.evaluation_envs = None  # after an interruption nobody knows how far they are
    envs.reset()
    envs.begin_epoch(np.zeros(learner.members, dtype=np.int64))
    act = learner.actor(episodes, deterministic, partial(evaluation_keys, learner.members, seed=seed))
    returns = np.zeros((learner.members, episodes))
    running = np.ones((learner.members, episodes), dtype=bool)
    info = np.full((learner.members, episodes, len(envs.info.names)), np.nan)
    for _ in range(EVALUATION_STEPS):
        if not running.any():
            break
        actions = act(envs.obs)
        if on_step is not None:
            on_step(*(x.reshape(members, -1, *x.shape[2:]) for x in (envs.obs, actions, running)))
        step = envs.step(actions)
        returns += step.reward * running
        ended = running & (step.terminated | step.truncated)
        info[ended] = envs.info.last.reshape(info.shape)[ended]
        running &= ~ended
    learner.evaluation_envs = envs
    columns = {name: info[:, :, k].reshape(members, -1) for k, name in enumerate(envs.info.names)}
    return Measured(returns.reshape(members, -1), columns)


def other_env(own: EnvSpec, asked: str | Mapping[str, Any] | EnvSpec, where: str) -> EnvSpec:
    """Return an environment that a policy can be evaluated in.

    Args:
        own: the environment that the policy was trained in.
        asked: another one; a mapping without an id changes what it names of `own`.
        where: names the task in errors.

    Raises:
        UnsupportedSpace: its observations or actions are not those of `own`.
    """
    if not own:
        raise UnsupportedSpace(f"{where} learns without an environment, but got {asked!r}; leave it out")
    whole = {**own.to_json(), **asked} if isinstance(asked, Mapping) and "id" not in asked else asked
    spec = EnvSpec.of(whole)
    need, have = spaces_of(own), spaces_of(spec)
    forms = [(obs.kind, obs.shape) for obs in (Observations(spaces.observation, where) for spaces in (need, have))]
    for what, equal in (("observation", forms[0] == forms[1]), ("action", need.action == have.action)):
        if not equal:
            raise UnsupportedSpace(
                f"{where} is evaluated in environments of the same {what} space, {getattr(need, what)}, but {spec.id} "
                f"has {getattr(have, what)}; name another environment, or add a wrapper that makes them equal"
            )
    return spec


def acting(learner: BaseLearner) -> Learner:
    """Return a learner that acts; UnsupportedSpace if not."""
    if not isinstance(learner, Learner):
        raise UnsupportedSpace(f"{learner.algorithm()} has no episodes; evaluate() measures its {learner.objective}")
    return learner


def record(learner: BaseLearner, member: int, episodes: int, deterministic: bool, **elsewhere: Any) -> Demonstrations:
    """Return one member's evaluation episodes, with actions as the environment takes them."""
    learner = acting(learner)
    steps: list[list[np.ndarray]] = []
    keep: OnStep = lambda *step: steps.append([x[member].copy() for x in step])  # noqa: E731
    evaluate_episodes(learner, episodes, deterministic, keep, **elsewhere)
    obs, actions, running = (np.stack(x, 1) for x in zip(*steps, strict=True))  # (N, T, ...)
    begins = np.zeros(running.shape, np.float32)
    begins[:, 0] = 1
    return Demonstrations.of_envs(learner.envs, obs[running], actions[running], begins[running])
