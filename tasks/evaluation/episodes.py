"""Playing episodes: which ones come next, and their steps."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator

import numpy as np

from ..envs import Envs, EnvSpec, StepResult, allows_one, make_envs, steps_all_at_once
from ..learner import Learner

OnStep = Callable[[np.ndarray, np.ndarray, np.ndarray], None]
EVALUATION_STEPS = 100_000  # longest episode, for environments without a time limit
LONG = 10_000  # steps of an episode at which a warning tells that it may be endless


def due_episodes(lengths: np.ndarray, steps: np.ndarray, longest: int | None) -> np.ndarray:
    """Return a mask (P, E) of the episodes to play next.

    The first are as many as surely fit; later ones as many as fit if they are as long as those before, but no more than
    these, whose mean may mislead.

    Args:
        lengths: steps of each episode so far (P, E), which are played in order; 0 for those to come.
        steps: steps of all episodes of each member together (P,); 0 for none.
        longest: the environment's time limit, if it is known.
    """
    total = lengths.shape[1]
    due = np.zeros(lengths.shape, bool)
    for row, used, most in zip(due, lengths, steps, strict=True):
        played, spent = np.count_nonzero(used), used.sum()
        if math.isinf(most):
            more = total - played
        elif played == 0:
            more = max(int(most > 0), int(most // longest) if longest else 0)
        else:
            more = min(int((most - spent) * played // spent), played)
        row[played : played + max(0, more)] = True
    return due


def played_steps(
    envs: Envs, first: int, act: Callable[[np.ndarray], np.ndarray], due: np.ndarray, see: OnStep, earlier: int = 0
) -> Iterator[tuple[slice, np.ndarray, StepResult]]:
    """Play the due episodes from `first` on, one in each environment.

    The policy always gets observations of all episodes, zeros for those that are not played: the last bits of its
    products depend on their number.

    Args:
        envs: environments of (P, N) episodes.
        first: index of the first episode.
        act: function of observations (P, E, ...) that returns actions (P, E, ...).
        due: mask of the episodes to play among all of the members' (P, E).
        see: called before each step with observations, actions (P, E, ...) and running episodes (P, E).
        earlier: number of episodes before those of `due`.

    Yields:
        The episodes that are played, a mask (P, E) of those that are running, which the caller updates, and the result
        of the step (P, N).
    """
    (members, episodes), running = due.shape, np.zeros_like(due)
    rows = slice(first, min(first + envs.num_envs, episodes))
    rows_of_member = slice(0, rows.stop - first)
    envs.first = earlier + first
    envs.reset()
    envs.begin_epoch(np.zeros(members, dtype=np.int64))
    running[:, rows] = due[:, rows]
    envs.leave_out(~_resized(running, rows, rows_of_member, envs.num_envs))
    for count in range(EVALUATION_STEPS):
        if not running.any():
            return
        if count == LONG:
            warnings.warn(
                f"{envs.spec.id}: {running.sum()} evaluation episodes take longer than {LONG:,} steps, and end after "
                f"{EVALUATION_STEPS:,}; set max_episode_steps, or evaluate fewer episodes (--eval-episodes)",
                stacklevel=2,
            )
        obs = _resized(envs.obs, rows_of_member, rows, episodes)
        actions = act(obs)
        see(obs, actions, running)
        yield rows, running, envs.step(_resized(actions, rows, rows_of_member, envs.num_envs))


def _resized(array: np.ndarray, take: slice, put: slice, count: int) -> np.ndarray:
    """Return columns of an array (P, N, ...) among `count` zeros."""
    if array.shape[1] == count:
        return array
    resized = np.zeros((len(array), count, *array.shape[2:]), array.dtype)
    resized[:, put] = array[:, take]
    return resized


def open_envs(learner: Learner, spec: EnvSpec, seeds: tuple[int, ...], episodes: int, most: int) -> Envs:
    """Return environments for evaluation, those of the last one if they fit."""
    width = _side_by_side(spec, len(seeds), episodes, most)
    envs = learner.evaluation_envs
    if envs is None or (envs.spec, envs.seeds, envs.num_envs) != (spec, seeds, width):
        if envs is not None:
            envs.close()
        envs = make_envs(spec, seeds, width, "evaluation", learner.env_processes, single_episodes=True)
    learner.evaluation_envs = envs
    return envs


def _side_by_side(spec: EnvSpec, members: int, episodes: int, most: int) -> int:
    """Return the number of each member's episodes that are played at once."""
    if steps_all_at_once(spec):
        return episodes
    count = 1 if allows_one(spec) else max(1, min(most // members, episodes))
    rounds = -(-episodes // count)
    return -(-episodes // rounds)
