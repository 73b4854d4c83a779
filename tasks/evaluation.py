"""Returns of episodes on fixed seeds that no training uses.

Evaluation changes no state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import gymnasium as gym
import numpy as np
import torch

from .envs import make_envs
from .learner import Learner
from .rng import streams
from .signals.demonstrations import Demonstrations

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


def evaluation_keys(members: int, purpose: str) -> streams.Bits:
    """Return the keys (P,) of a stream that evaluation alone uses."""
    return streams.keys([EVALUATION_SEED] * members, "evaluation", purpose)


@one_thread()
def evaluate(learner: Learner, episodes: int = EVALUATION_EPISODES) -> np.ndarray:
    """Return each member's mean return (P,) of greedy episodes.

    Of particles it is the mean of their means.
    """
    if (known := learner.known_returns()) is not None:
        return known
    returns = evaluate_episodes(learner, episodes).reshape(-1, episodes)
    means: np.ndarray = returns.mean(1).reshape(learner.members, -1).mean(1)
    return means


@one_thread()
def evaluate_episodes(
    learner: Learner, episodes: int = EVALUATION_EPISODES, deterministic: bool = True, on_step: OnStep | None = None
) -> np.ndarray:
    """Return the returns of all episodes, (P, episodes).

    Of particles they are (P, num_particles * episodes).

    Args:
        learner: whose members act.
        episodes: the number of parallel episodes of each member, or particle.
        deterministic: greedy actions, or random ones as in training.
        on_step: is called at each step with observations and actions (P, N, ...), and which episodes still run (P, N).
    """
    if (known := learner.known_returns()) is not None:
        return np.repeat(known[:, None], episodes, 1)
    members, learner = learner.members, learner.particles or learner
    envs = learner.evaluation_envs
    if envs is None or envs.num_envs != episodes:
        seeds = [EVALUATION_SEED] * learner.members
        envs = make_envs(learner.env, seeds, episodes, "evaluation", learner.env_processes)
    learner.evaluation_envs = None  # after an interruption nobody knows how far they are
    envs.reset()
    envs.begin_epoch(np.zeros(learner.members, dtype=np.int64))
    act = learner.actor(episodes, deterministic)
    returns = np.zeros((learner.members, episodes))
    running = np.ones((learner.members, episodes), dtype=bool)
    for _ in range(EVALUATION_STEPS):
        if not running.any():
            break
        actions = act(envs.obs)
        if on_step is not None:
            on_step(*(x.reshape(members, -1, *x.shape[2:]) for x in (envs.obs, actions, running)))
        step = envs.step(actions)
        returns += step.reward * running
        running &= ~(step.terminated | step.truncated)
    learner.evaluation_envs = envs
    return returns.reshape(members, -1)


def record(learner: Learner, member: int, episodes: int, deterministic: bool) -> Demonstrations:
    """Return one member's evaluation episodes, with actions as the environment takes them."""
    steps: list[list[np.ndarray]] = []
    evaluate_episodes(learner, episodes, deterministic, lambda *step: steps.append([x[member].copy() for x in step]))
    obs, actions, running = (np.stack(x, 1) for x in zip(*steps, strict=True))  # (N, T, ...)
    begins = np.zeros(running.shape, np.float32)
    begins[:, 0] = 1
    if isinstance(space := learner.envs.action_space, gym.spaces.Box):
        actions = np.clip(actions, space.low, space.high).astype(np.float32)
    return Demonstrations(obs[running], actions[running], begins[running])
