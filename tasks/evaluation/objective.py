"""A learner's objective, measured by its evaluation episodes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..base_learner import BaseLearner
from ..envs import EnvSpec
from ..errors import Diverged
from ..runtime import EVALUATION_SEED
from ..runtime.threads import one_thread
from .episodes import OnStep
from .measuring import Measured, measure_episodes
from .players import playing, plays_episodes
from .seeds import Seeds


class Evaluated(NamedTuple):
    """Objective of a member, and the episodes and steps that measured it.

    For particles these are the episodes of each, and the steps of all. `error` is the standard error over episodes;
    None for fewer than two.
    """

    value: float
    episodes: int
    steps: int
    error: float | None = None


@one_thread()
def evaluate(
    learner: BaseLearner,
    episodes: int | None = None,
    env: EnvSpec | None = None,
    seed: int = EVALUATION_SEED,
    on_step: OnStep | None = None,
) -> np.ndarray:
    """Return each member's objective, (P,).

    The objective is the mean return of greedy episodes unless the learner measures another one. For particles it is the
    mean over their means. The arguments are those of `measure_episodes`; `episodes` is by default the learner's.
    """
    if (score := learner.score()) is not None:
        return score
    episodes = episodes or learner.eval_episodes
    returns = measure_episodes(learner, episodes, on_step=on_step, env=env, seed=seed).returns.reshape(-1, episodes)
    means: np.ndarray = returns.mean(1).reshape(learner.members, -1).mean(1)
    return means


@one_thread()
def evaluate_within(
    learner: BaseLearner,
    steps: float | None,
    seed: Seeds = EVALUATION_SEED,
    on_step: OnStep | None = None,
    most: int = 0,
    whole: bool = False,
) -> list[Evaluated]:
    """Return each member's objective, measured by the first of its episodes.

    A member plays at least one episode, and further ones, up to the learner's `eval_episodes`, while `steps` last. As
    many follow again and again, until there are `most`, unless all returns are equal. Its own episodes decide that, so
    the result is a function of its state, `steps` and `most`.

    Args:
        learner: learner whose members act.
        steps: environment steps of each member; None for all of the learner's `eval_episodes`.
        seed: see `measure_episodes`.
        on_step: see `measure_episodes`.
        most: number of episodes from which no further ones follow.
        whole: whether all of the learner's `eval_episodes` are played even if `steps` end earlier.
    """
    episodes = learner.eval_episodes
    if (score := learner.score()) is not None:
        return [Evaluated(value, episodes, 0) for value in score.tolist()]
    parts, shape = list[Measured](), (learner.members, -1, episodes)  # members, particles, episodes
    left = np.full(learner.members, math.inf if steps is None or whole else max(steps, 1.0))
    for first in range(0, max(most, 1), episodes):
        if not left.any():
            break
        parts.append(measure_episodes(learner, episodes, on_step=on_step, seed=seed, steps=left, first=first))
        returns = np.concatenate([part.returns.reshape(shape) for part in parts], -1)
        lengths = np.concatenate([part.lengths.reshape(shape) for part in parts], -1)
        left = _left(returns, lengths, steps or 0.0)
    return [_evaluated(*of_member) for of_member in zip(returns, lengths, strict=True)]


def _evaluated(returns: np.ndarray, lengths: np.ndarray) -> Evaluated:
    """Return a member's objective for episodes (particles, episodes)."""
    played = [row[row_lengths > 0] for row, row_lengths in zip(returns, lengths, strict=True)]
    mean = float(np.array([row.mean() for row in played]).mean())
    counts, error = [len(row) for row in played], None
    if min(counts) > 1:
        error = math.hypot(*(row.std(ddof=1) / math.sqrt(len(row)) for row in played)) / len(played)
    return Evaluated(mean, max(counts), int(lengths.sum()), error)


def _left(returns: np.ndarray, lengths: np.ndarray, steps: float) -> np.ndarray:
    """Return the steps (members,) of further episodes.

    There are none for a member whose returns are all equal, that has not played all episodes so far, or whose steps do
    not last for another one of each particle.

    Args:
        returns: (members, particles, episodes), NaN where none was played.
        lengths: of the same shape, 0 where none was played.
        steps: of all of a member's episodes together.
    """
    left = steps - lengths.sum((1, 2))
    differ = np.nanmax(returns, axis=(1, 2)) > np.nanmin(returns, axis=(1, 2))
    goes_on = differ & (lengths > 0).all((1, 2)) & (left >= lengths.mean(-1).sum(-1))
    return np.where(goes_on, left, 0.0)


def check_finite(learner: BaseLearner, member: int, returns: Sequence[float], subject: str) -> None:
    """Check what a member's environments gave in an evaluation.

    Args:
        learner: learner that was evaluated.
        member: index of the member.
        returns: its returns, or their mean.
        subject: name of the task in error messages.

    Raises:
        Diverged: a return is not finite. If only observations were not, a warning says so.
    """
    if not plays_episodes(type(learner)):
        return
    players = playing(learner)
    envs = (players.particles or players).evaluation_envs
    faults = {} if envs is None else envs.faults
    of_member = len(envs.seeds) // players.members if envs is not None else 0
    fault = next((faults[i] for i in range(member * of_member, (member + 1) * of_member) if i in faults), None)
    if not np.isfinite(returns).all():
        raise Diverged(f"{subject}: a return of its evaluation is not finite" + (f", since {fault}" if fault else ""))
    if fault:
        warnings.warn(f"{subject}: in its evaluation, {fault}", stacklevel=3)
