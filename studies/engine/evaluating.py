"""Steps of evaluations, for as many episodes as a study can pay.

A new study spends about a fifth of its environment steps (SHARE) on evaluations at most. Half of these and more (LAST)
are for the last rung, where all episodes are played if they fit, since its results are the answer; the others are
divided among the earlier rungs by the epochs that these add. An evaluation plays its first episodes until its steps are
spent: many short ones, or few long ones, and always one. After the usual number, further ones follow if returns differ,
up to MOST. A confirmation plays the usual number even if its steps end earlier. The steps belong to the study's
configuration, in units of a trial's epochs, so results depend on no other trial.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..schedulers.registry import scheduler
from ..storage.rows import is_epoch_steps
from ..study.config import EVAL_STEPS, Config
from ..study.objectives import measured_names

if TYPE_CHECKING:
    from ...tasks.task import Task

SHARE = 0.2  # of all steps of a study
LAST = 0.55  # of the steps of its evaluations
MOST = 200  # episodes of an evaluation


def eval_steps_of(config: Config, algorithm: type[Task]) -> list[list[float]] | None:
    """Return steps and episodes of evaluations by rung, or None.

    They are [epochs, steps in epochs of training, most episodes]. Studies with a plateau need the noise of all
    episodes, and other objectives than the return, and constraints, are statistics of all.

    Args:
        config: configuration of a new study.
        algorithm: class of its tasks.
    """
    from ...tasks.envs import EnvSpec, numbers_episodes, time_limit  # imports gymnasium
    from ...tasks.evaluation.players import plays_episodes  # imports torch

    defaults = {name: dimension.default for name, dimension in config.space_in(algorithm).flat().items()}
    sizes = [value for name, value in {**defaults, **config.fixed}.items() if is_epoch_steps(name)]
    all_count = measured_names(config) or {"eval_episodes", "plateau"} & config.options.keys()
    if all_count or not sizes or not plays_episodes(algorithm.learner):
        return None
    rungs, counts = config.rungs, scheduler(config).entrants()
    added = [high - low for low, high in zip((0, *rungs), rungs, strict=False)]
    epochs = [count * more for count, more in zip(counts, added, strict=True)]
    left = sum(epochs) * SHARE / (1 - SHARE)
    envs = [EnvSpec.of(env) for env in config.environments]
    limits = [time_limit(env) or math.inf for env in envs]
    whole = config.eval_episodes * max(limits) / min(sizes)
    shares = list[float]()
    for rung in reversed(range(len(rungs))):
        part = epochs[rung] / sum(epochs[: rung + 1]) if epochs[rung] else 1.0
        if len(rungs) - 1 == rung > 0:
            part = max(part, LAST)
        shares.insert(0, min(whole, left * part / max(1, counts[rung])))
        left -= shares[0] * counts[rung]
    most = MOST if all(map(numbers_episodes, envs)) else config.eval_episodes
    return [[end, round(share, 6), most] for end, share in zip(rungs, shares, strict=True)]


def confirmation_steps(config: Config) -> list[list[float]] | None:
    """Return the steps and episodes of a confirmation's evaluations, as `eval_steps_of` does.

    They are a fifth of all of its steps. None where its study plays a fixed number of episodes.

    Args:
        config: configuration of the study that is confirmed.
    """
    if (rungs := config.options.get(EVAL_STEPS)) is None:
        return None
    end, _, *most = rungs[-1]
    return [[end, round(end * SHARE / (1 - SHARE), 6), *most]]
