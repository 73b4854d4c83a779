"""Measurements of evaluation episodes: returns, lengths and info."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..base_learner import BaseLearner
from ..envs import Envs, EnvSpec, StepResult, time_limit
from ..learner import Contest, Learner
from ..runtime import EVALUATION_EPISODES, EVALUATION_SEED
from ..runtime.threads import one_thread
from ..signals.demonstrations import Demonstrations
from .episodes import OnStep, due_episodes, open_envs, played_steps
from .players import playing
from .seeds import Seeds, by_member, evaluation_keys


class Measured(NamedTuple):
    """Measurements of evaluation episodes.

    Attributes:
        returns: undiscounted returns, (P, E); NaN for episodes that were not played.
        info: each entry of info that the environment's spec names, (P, E); NaN for episodes without it.
        lengths: steps of each episode, (P, E); 0 for those that were not played.
    """

    returns: np.ndarray
    info: dict[str, np.ndarray]
    lengths: np.ndarray


@one_thread()
def measure_episodes(
    learner: BaseLearner,
    episodes: int = EVALUATION_EPISODES,
    deterministic: bool = True,
    on_step: OnStep | None = None,
    env: EnvSpec | None = None,
    seed: Seeds = EVALUATION_SEED,
    steps: np.ndarray | float | None = None,
    first: int = 0,
) -> Measured:
    """Measure evaluation episodes, and return arrays of shape (P, episodes).

    With particles the shape is (P, num_particles * episodes).

    Args:
        learner: learner whose members act.
        episodes: number of episodes per member or particle; `eval_envs` of the learner limits how many are played at
            the same time, which changes no bit.
        deterministic: greedy actions; False samples them as in training.
        on_step: function called at each step with observations (P, N, ...), actions (P, N, ...), and a mask (P, N) of
            the episodes that are still running.
        env: another environment with the same spaces; None for the learner's own.
        seed: seed of the episodes and of random actions, the same for every member, or one for each.
        steps: steps of each member (P,) after which it begins no further episode, see `evaluate_within`; 0 for no
            episode at all, None to play all.
        first: number of the first episode.

    Raises:
        UnsupportedSpace: the learner has neither episodes nor a score.
    """
    if (score := learner.score()) is not None:
        returns = np.repeat(score[:, None], episodes, 1)
        return Measured(returns, {}, np.zeros(returns.shape, np.int64))
    owner = playing(learner)
    players = owner.particles or owner
    contest = players.contest if isinstance(players, Learner) else None
    spec = players.env if env is None else replace(env, state=players.env.state)
    spec = spec if contest is None else contest.reported(spec)
    seeds = tuple(by_member(seed, owner.members, players.members // owner.members))
    envs = open_envs(players, spec, seeds, episodes, owner.eval_envs)
    if not first:
        envs.faults.clear()  # of an earlier evaluation
    tally = EpisodeTally(owner.members, players.members, episodes, envs)
    left = tally.by_player(None if contest else steps)  # sides of a contest take turns
    keys = partial(evaluation_keys, players.members, seed=seeds)

    def see(*arrays: np.ndarray) -> None:
        if on_step is not None:
            on_step(*(x.reshape(owner.members, -1, *x.shape[2:]) for x in arrays))

    try:
        while (due := due_episodes(tally.lengths, left, time_limit(spec))).any():
            for begin in range(0, episodes, envs.num_envs):
                if due[:, begin : begin + envs.num_envs].any():
                    act = (contest or players).actor(episodes, deterministic, keys)
                    for columns, running, step in played_steps(envs, begin, act, due, see, first):
                        tally.add(columns, running, step)
    except BaseException:
        envs.close()  # a process may be amid an answer
        raise
    return tally.measured(contest)


class EpisodeTally:
    """Measurements of the episodes so far, of P members' players.

    Attributes:
        returns, lengths: returns and steps of each episode, (players, episodes).
        info: last reported info of each episode, (players, episodes, entries).
    """

    def __init__(self, members: int, players: int, episodes: int, envs: Envs):
        """Tally no steps; a member has a player for each particle."""
        self.members, self.envs = members, envs
        self.returns = np.zeros((players, episodes))
        self.lengths = np.zeros((players, episodes), np.int64)
        self.info = np.full((players, episodes, len(envs.info.names)), np.nan)

    def by_player(self, steps: np.ndarray | float | None) -> np.ndarray:
        """Return each player's share of its member's steps; None has no end."""
        particles = len(self.returns) // self.members
        of_members = np.broadcast_to(math.inf if steps is None else steps, self.members)
        return np.repeat(of_members / particles, particles)

    def add(self, columns: slice, running: np.ndarray, step: StepResult) -> None:
        """Add a step of the episodes in these columns, and end episodes.

        Args:
            columns: the episodes.
            running: mask (players, episodes) of those that took the step; those that ended leave it.
            step: results in the environments, (players, N), of which the first ones play these episodes.
        """
        count, active = columns.stop - columns.start, running[:, columns]
        self.lengths[:, columns] += active
        self.returns[:, columns] += np.where(active, step.reward[:, :count], 0.0)  # others may be infinite
        ended = active & (step.terminated | step.truncated)[:, :count]
        self.info[:, columns][ended] = self.envs.info.last.reshape(*step.reward.shape, -1)[:, :count][ended]
        active &= ~ended

    def measured(self, contest: Contest | None) -> Measured:
        """Return the measurements by member, as a contest credits them."""
        returns = np.where(self.lengths == 0, np.nan, self.returns)
        entries = {name: self.info[:, :, k] for k, name in enumerate(self.envs.info.names)}
        if contest is not None:
            returns, entries = contest.credited(returns, entries)
        shape = (self.members, -1)
        entries = {name: x.reshape(shape) for name, x in entries.items()}
        return Measured(returns.reshape(shape), entries, self.lengths.reshape(shape))


def record(learner: BaseLearner, member: int, episodes: int, deterministic: bool, **elsewhere: Any) -> Demonstrations:
    """Record one member's evaluation episodes, with actions as the environment takes them."""
    learner = playing(learner)
    steps: list[list[np.ndarray]] = []
    keep: OnStep = lambda *step: steps.append([x[member].copy() for x in step])  # noqa: E731
    measure_episodes(learner, episodes, deterministic, keep, **elsewhere)
    obs, actions, running = (np.stack(x, 1) for x in zip(*steps, strict=True))  # (N, T, ...)
    begins = (running & (running.cumsum(1) == 1)).astype(np.float32)
    return Demonstrations.of_envs(learner.envs, obs[running], actions[running], begins[running])
