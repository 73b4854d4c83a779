"""Confirmations: candidates of a study, trained on fresh seeds.

A confirmation is a study of its own, next to the one that it confirms, with the scheduler `confirm`. It is therefore
trained, killed and resumed like any other.

A study that gets other candidates after its confirmation is complete, because it was extended or trials were excluded,
gets a further confirmation: STUDY:confirmation-2 follows STUDY:confirmation. Its seeds are none of the earlier ones.
Whoever has seen results of a confirmation may have extended the study or excluded its winner because of them; then
these seeds have taken part in a choice, and a result on them says too little about further ones.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from ...spaces import flatten, unflatten
from ...spaces.errors import SpaceError
from ...tasks.runtime import EVALUATION_EPISODES
from ..errors import BadConfig, StudyMismatch
from ..methods import CONFIRM
from ..options.entries import check_count
from ..options.study_options import entries_of
from ..schedulers.confirming import (
    BY_SEED,
    FIRST,
    USED,
    Confirmation,
    by_seed,
    first_seed,
    first_unused,
    fresh_scores,
    standing,
)
from ..schedulers.registry import remembered, without_finalist
from ..shell import begin_again, command_line
from ..statistics.estimates import FEWEST
from ..storage.commands import cure_of
from ..study import FRESH_SEEDS, TOP
from ..study.code import FILES
from ..study.config import EVAL_STEPS, RESUMES, Config
from ..study.environments import SCALE, as_objective, is_across, scale_of
from ..study.number_text import counted
from ..study.objectives import CONSTRAINT, MINIMIZE, bounds_of, objectives_of, value_of
from ..study.stored_form import MOST_SEEDS
from .evaluating import confirmation_steps
from .ranking import distinct, rank
from .study_views import study_view
from .views import TrialView

if TYPE_CHECKING:
    from ..storage.store import Store

BOUNDS = "bounds"  # key in a confirmation's options: least and greatest possible result, None where it is not known
# Options that a confirmation has from its study.
KEPT = ("objectives", CONSTRAINT, "warm_start", "environments", "eval_episodes", FILES, RESUMES)


class Size(NamedTuple):
    """Numbers of a confirmation."""

    top: int  # candidates, without the defaults
    seeds: int
    epochs: int
    episodes: int  # of an evaluation

    @classmethod
    def of(cls, config: Config) -> Size:
        """Return the numbers of a confirmation."""
        form = Confirmation.of(config)
        top = sum(number is not None for number in form.trials)
        return cls(top, form.seeds, config.rungs[-1], config.eval_episodes)

    def __str__(self) -> str:
        more = "" if self.episodes == EVALUATION_EPISODES else f", --eval-episodes {self.episodes}"
        return f"--top {self.top}, --seeds {self.seeds}{more} and {counted(self.epochs, 'epoch')}"


def confirmation_name(study: str, number: int = 1) -> str:
    """Return the name of a confirmation: the first, or a further one."""
    return f"{study}:confirmation" + (f"-{number}" if number > 1 else "")


def confirmations_of(store: Store, study: str) -> dict[str, Config]:
    """Return the confirmations of a study by name, the first one first.

    Those of an earlier study of this name are left out.
    """
    original = Config.from_json(store.study(study).config, study)
    identity = (original.task, original.environments, original.seed, original.fixed)
    namesakes = [
        (name, Config.from_json(store.study(name).config, name))
        for name in (row.name for row in store.studies())
        if re.fullmatch(re.escape(confirmation_name(study)) + r"(-\d+)?", name)
    ]
    confirmations = [
        (name, config)
        for name, config in namesakes
        if config.scheduling.confirms and (config.task, config.environments, config.seed, config.fixed) == identity
    ]
    return dict(sorted(confirmations, key=lambda item: first_seed(item[1])))


def confirmation_config(
    store: Store, study: str, top: int = TOP, seeds: int = FRESH_SEEDS, eval_episodes: int | None = None
) -> Config:
    """Return the configuration of the study that confirms another.

    Args:
        store: store of the study.
        study: name of the study to confirm.
        top: number of its best configurations, besides the defaults.
        seeds: seeds per estimate; a race of several candidates uses half as many in addition, and at least three.
        eval_episodes: episodes of each evaluation; None for as many as in the study, or as a study can pay.

    Raises:
        BadConfig: the study cannot be confirmed, or a number is too small.
    """
    from .checked_config import load_task  # imports all schedulers and samplers

    config = Config.from_json(store.study(study).config, study)
    check_confirmable(config, study, top, seeds)
    best = _finished_best(store, study, config)[:top]
    values = [dict(flatten(trial.hyperparameters)) for trial in best]
    defaults = _defaults(config)
    if defaults is not None and defaults not in values:
        values.append(defaults)
    added = [None] * (len(values) - len(best))  # the defaults are no trial of the study, and claim nothing
    (bounds,) = (bounds_of(name, load_task(config), config.environments) for name in objectives_of(config))
    claims = [_claim(config, trial) for trial in best]
    options: dict[str, Any] = {
        "seeds": (max(FEWEST, seeds // 2) + seeds) * len(config.environments),
        "aggregate": config.options["aggregate"] if is_across(config) else "mean",
        "known": values,
        "confirms": {
            "study": study,
            "seeds": seeds,
            "trials": [*(trial.number for trial in best), *added],
            "claims": [*claims, *added],
            "claims_race": True,
            BY_SEED: True,
            "defaults": values.index(defaults) if defaults in values else None,
            **({BOUNDS: list(bounds)} if any(bound is not None for bound in bounds) else {}),
        },
    }
    options |= {name: config.options[name] for name in KEPT if name in config.options}
    options |= entries_of({"eval_episodes": eval_episodes})
    if (steps := confirmation_steps(config)) is not None and eval_episodes is None:
        options[EVAL_STEPS] = steps
    if is_across(config):
        results = remembered(store.trials(study), store.segments(study))[1]
        options[SCALE] = [*map(list, scale_of(config, results))]
    return Config(
        task=config.task,
        task_version=config.task_version,
        env=config.env,
        seed=config.seed,
        space={},
        fixed=config.fixed,
        epochs=[config.rungs[-1], *config.epochs[1:]],
        trials=[len(values)],
        generation=len(values),
        cohort=1,
        sampler="random",
        scheduler=CONFIRM,
        options=options,
    )


def _finished_best(store: Store, study: str, config: Config) -> list[TrialView]:
    """Return a study's trials with different hyperparameters, best first.

    Raises:
        BadConfig: none has a result at the top rung.
    """
    view = study_view(store, study)
    ranked = rank(view.trials, objectives_of(config))
    if ranked and ranked[0].epochs >= config.rungs[-1]:
        return distinct(ranked)
    cure = f"`{command_line('worker', study)}` trains it to its end"
    if view.held is not None:  # else no worker trains it
        cure = f"it had the {view.held}; {cure_of(study, view.held)}, and {cure}"
    elif view.state == "complete" and view.counts["failed"] == sum(view.counts.values()):
        cure = f"all of its trials failed. {begin_again(study)}"
    elif view.state == "complete":
        cure = f"`{command_line('extend', study, '--trials N')}` gives it more trials"
    raise BadConfig(
        f"a confirmation needs a result at the top rung, {config.rungs[-1]} epochs, but {study} has none; {cure}"
    )


def _claim(config: Config, trial: TrialView) -> float | None:
    """Return a trial's score over its seeds; None before the top rung."""
    ((name, _),) = objectives_of(config).items()
    if trial.epochs != config.rungs[-1]:
        return None
    return turned(config, value_of(trial.ranked_by(), name))


def start_confirmation(store: Store, study: str, config: Config) -> str:
    """Return the name of a study's confirmation; create it if needed.

    An earlier confirmation with the same candidates and number of seeds is the answer, unless the study has changed
    before a later one, or it failed as a whole with other code. So is an unfinished one with the same numbers, which
    keeps its candidates. Otherwise a new confirmation begins, with seeds that no earlier one has used, deleted ones
    included.

    Raises:
        StudyMismatch: an unfinished confirmation has other numbers.
    """
    earlier = confirmations_of(store, study)
    for name, confirmation in reversed(earlier.items()):
        if _content(confirmation) == _content(config):
            if confirmation.options.get(FILES) != config.options.get(FILES) and _failed(store, name, confirmation):
                break  # by code that has been mended since
            return name
        size = Size.of(confirmation)
        if _content(confirmation) != _content(confirmation_config(store, study, size.top, size.seeds, size.episodes)):
            break  # answers of earlier ones may be why the study has changed, and are no unbiased ones any more
    if earlier:
        name, last = list(earlier.items())[-1]
        if not standing(Confirmation.of(last), by_seed(last, store.segments(name))).over:
            if Size.of(last) == Size.of(config):
                return name
            resume = command_line("worker", name)
            raise StudyMismatch(
                f"a confirmation keeps its numbers until it is complete, but {name} has {Size.of(last)}, and would now "
                f"have {Size.of(config)}; `{resume}` completes it, and `{command_line('delete', name)}` removes it, so "
                f"that {study} can be confirmed again"
            )
    from .runner import start_study  # imports all that trains

    deleted = Config.from_json(store.study(study).config, study).options.get(USED, 0)
    used = max([deleted, *map(first_unused, earlier.values())])
    form = {**config.options["confirms"], **({FIRST: used} if used else {})}
    names = {row.name for row in store.studies()}
    name = next(name for n in count(1) if (name := confirmation_name(study, n)) not in names)
    start_study(store, name, replace(config, options={**config.options, "confirms": form}))
    return name


def _failed(store: Store, name: str, config: Config) -> bool:
    """Return whether a confirmation is over without any estimate."""
    form, pairs = Confirmation.of(config), by_seed(config, store.segments(name))
    now = standing(form, pairs)
    return now.over and all(len(fresh_scores(pairs, n, form.estimating)) < FEWEST for n in now.estimated)


def _content(config: Config) -> tuple[Any, ...]:
    """Return all in which confirmations may differ, except their seeds."""
    form = Confirmation.of(config)
    parts = (form.trials, form.claims, form.seeds, form.defaults, config.first_trials)
    scale = [list(map(float, ends)) for ends in config.options.get(SCALE, ())]
    return (*parts, scale, config.options["seeds"], config.rungs, config.task_version, config.eval_episodes)


def check_confirmable(config: Config, study: str, top: int = TOP, seeds: int = FRESH_SEEDS) -> None:
    """Raise BadConfig if a study with this configuration cannot be confirmed."""
    if isinstance(top, int) and top < 1:
        raise BadConfig(f"--top must be at least 1, the best configuration alone, but got {top}")
    check_count("top", top)
    check_count("seeds", seeds, MOST_SEEDS // 2)
    if seeds < FEWEST:
        raise BadConfig(f"an interval needs at least {FEWEST} seeds, but got {seeds}; take more")
    if config.scheduling.confirms:
        raise BadConfig(f"{study} is a confirmation itself; confirm {Confirmation.of(config).study}")
    if config.scheduling.population:
        raise BadConfig(
            f"a confirmation trains fixed hyperparameters, but those of {study} change while it trains "
            f"({config.scheduler}); `rekindle schedule UID` trains a member's schedule of them on fresh seeds"
        )
    if (why := without_finalist(config)) is not None:
        raise BadConfig(f"a confirmation takes trials that have trained to the end, but {why}")
    if len(objectives := objectives_of(config)) > 1:
        raise BadConfig(
            f"a confirmation ranks by one objective, but {study} has {', '.join(objectives)}; choose a trial of its "
            "front, and train it with other seeds (rekindle train --seed)"
        )


def _defaults(config: Config) -> dict[str, Any] | None:
    """Return the defaults combined with the fixed values, None if they contradict."""
    from .checked_config import load_task

    try:
        algorithm = load_task(config)
        if algorithm.starts(config.env):
            return None  # each algorithm has its own
        identity = config.identity(algorithm, unflatten(config.fixed))
        return algorithm.named(identity.algorithm, identity.values)
    except (SpaceError, ValueError):
        return None


def turned(config: Config, value: float) -> float:
    """Return the objective of a score, or the score of an objective.

    The same function does both. In several environments, either is on their scale.
    """
    ((name, direction),) = objectives_of(config).items()
    if is_across(config):
        return as_objective(config, value)[name]
    return -value if direction == MINIMIZE else value
