"""Options of a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypedDict, cast, get_type_hints

from ...spaces.arguments import check
from ..errors import BadConfig
from ..methods import samplers_described, schedulers_described
from . import conversions, entries
from .option import Group, Option, declared

MEMBERS = 8  # members of a population


class StudyOptions(TypedDict, total=False):
    """Options of a study.

    They are those of `rekindle tune` and `create`, of run files, and of `rekindle.tune`. The environments, epochs and
    hyperparameters that are fixed, searched or known are arguments beside these.
    """

    seed: Annotated[int, Option("N", "seed of all randomness", Group.TRAINED, default=0, parse=conversions.seed)]
    preset: Annotated[
        str | None,
        Option(
            "NAME",
            "known-good hyperparameters of TASK, such as cartpole; --set wins; tune tries them in its first trial",
            Group.TRAINED,
        ),
    ]
    portfolio: Annotated[
        str | None,
        Option(
            "NAME",
            "auto: the first trials, after the defaults, are complementary configurations that were chosen from "
            "recorded trainings in many environments, for algorithms that have them (unless --search, --prior, --try "
            "or --preset says what to try); off: none of these (default: auto)",
            Group.SEARCHED,
        ),
    ]
    search: Annotated[
        str | Sequence[str],
        Option(
            "NAME",
            "search this hyperparameter, and leave all that are not named at their defaults; may be repeated "
            "(default: search all that --set does not fix)",
            Group.SEARCHED,
            default=(),
            many=True,
        ),
    ]
    objective: Annotated[
        str | Sequence[str],
        Option(
            "NAME",
            "return; return_median, return_iqm or return_top_quartile, of the same episodes; return_stochastic, with "
            "actions sampled as in training; model_size, the number of parameters, minimized; env_steps_per_second, "
            "measured on this machine and not reproducible; or a metric that the task reports, with its direction, "
            "such as episode_length:minimize; may be repeated, for a Pareto front (default: return)",
            Group.SEARCHED,
            default=(),
            many=True,
        ),
    ]
    constraint: Annotated[
        str | Sequence[str],
        Option(
            "BOUND",
            "bound of a metric, of those that --objective takes, such as 'info.cost<=25' or 'return>=400', in quotes "
            "for the shell; trials that violate it rank below all others; may be repeated",
            Group.SEARCHED,
            default=(),
            many=True,
            entry=entries.CONSTRAINTS,
        ),
    ]
    trials: Annotated[
        int | None,
        Option(
            "N",
            "total number of configurations (default: 16, or fewer if bruteforce has fewer points; with a grid, all "
            "of its points)",
            Group.SIZE,
        ),
    ]
    budget: Annotated[
        str | None,
        Option(
            "WORK",
            "stop after this much work by all workers together: 200epochs, 5e6steps (of training and evaluations), or "
            "training time such as 2h; rerun with more to continue",
            Group.SIZE,
            entry=entries.BUDGET,
            mutable=True,
            extend="work after which the study stops, as in tune; off: none",
            bound=True,
        ),
    ]
    goal: Annotated[
        str | None,
        Option(
            "return:VALUE",
            "stop when a trial has this return, confirmed by fresh episodes (wrong in at most 5%% of studies)",
            Group.SIZE,
            entry=entries.GOAL,
            mutable=True,
            extend="return at which it stops, as in tune; off: none",
            bound=True,
        ),
    ]
    plateau: Annotated[
        int | None,
        Option(
            "N",
            "stop after this many trials in a row without an improvement beyond the noise of evaluation",
            Group.SIZE,
            entry=entries.count("plateau"),
            mutable=True,
            extend="trials without an improvement after which it stops; off: none",
            bound=True,
        ),
    ]
    trial_time: Annotated[
        float | str | None,
        Option(
            "DURATION",
            "fail a trial that has trained for this long, such as 2h; in a cohort, a trial counts its share of the "
            "time; retries continue the count (default: off)",
            Group.SIZE,
            entry=entries.TRIAL_TIME,
            mutable=True,
        ),
    ]
    weight: Annotated[
        float | str | None,
        Option(
            "W",
            "weight by which workers divide their time between studies: one of 3 gets three times as much as one of "
            "1; `extend` changes it (default: 1)",
            Group.SIZE,
            entry=entries.WEIGHT,
            mutable=True,
            extend="weight by which workers divide their time between studies, as in tune",
        ),
    ]
    scheduler: Annotated[str | None, Option("NAME", schedulers_described(), Group.SEARCH)]
    sampler: Annotated[object, Option("NAME", samplers_described(), Group.SEARCH)]
    grid_points: Annotated[
        int | None,
        Option(
            "N",
            "with --sampler grid: points of each range including both ends, evenly spaced on its linear or log scale; "
            "of a list of values, all are used (default: 5)",
            Group.SEARCH,
            entry=entries.count("grid_points", 2, entries.MOST_GRID_POINTS),
        ),
    ]
    generation: Annotated[
        int | None,
        Option(
            "N",
            "trials suggested at a time (default: 12 with adaptive, 16 in several environments, else 8); asha keeps "
            "this many ready or in training",
            Group.SEARCH,
        ),
    ]
    cohort: Annotated[
        int,
        Option(
            "N", "consecutive trials with the same structure, so that they train as one batch", Group.SEARCH, default=4
        ),
    ]
    seeds: Annotated[int, Option("N", "seeds per configuration", Group.SEEDS, default=1)]
    aggregate: Annotated[
        str,
        Option(
            "NAME", "aggregate of the seeds' returns: mean, median, iqm or top_quartile", Group.SEEDS, default="mean"
        ),
    ]
    racing: Annotated[
        bool,
        Option(
            "",
            "race seeds: start each configuration with two of its --seeds, add one at a time, and drop "
            "configurations that a Friedman test rules out",
            Group.SEEDS,
            default=False,
        ),
    ]
    repeats: Annotated[
        int | None,
        Option(
            "N",
            "of the trials, the last N train the best ones again to the end, each with another seed; these then rank "
            "by the mean over their seeds (default: one of eight, at most 4, of trials in an environment with the "
            "scheduler adaptive and one objective; 0: none)",
            Group.SEEDS,
            parse=conversions.nonnegative,
        ),
    ]
    across: Annotated[
        str | None,
        Option(
            "NAME",
            "search one configuration for several ENV, by this aggregate over environments and seeds: mean, median, "
            "iqm or top_quartile, of results on one scale from 0, the lower decile of an environment's results, to 1, "
            "its best; configurations that lose in the first environments are not trained in the others (racing), "
            "except with --scheduler adaptive",
            Group.SEEDS,
        ),
    ]
    eval_episodes: Annotated[
        int | None,
        Option(
            "N",
            "episodes of each evaluation (default: up to 200, as many as a fifth of the study's steps allows)",
            Group.SEEDS,
            entry=entries.count("eval_episodes"),
        ),
    ]
    population: Annotated[int | None, Option("N", f"number of members (default: {MEMBERS})", Group.POPULATION)]
    interval: Annotated[
        int | None, Option("EPOCHS", "epochs per generation (default: 3)", Group.POPULATION, parse=conversions.positive)
    ]
    exploit: Annotated[
        str | None,
        Option(
            "HOW",
            "truncation: each member of the worst fifth copies one of the best fifth; tournament: each member copies "
            "a randomly drawn one if that is better (default: truncation)",
            Group.POPULATION,
        ),
    ]
    explore: Annotated[
        str | None,
        Option(
            "HOW",
            "perturb: raise or lower copied values by a fifth; resample: draw new values; pb2: choose values by a "
            "bandit with a Gaussian process of score improvements (default: perturb)",
            Group.POPULATION,
        ),
    ]
    perturb: Annotated[
        str | Sequence[str],
        Option(
            "NAME",
            "hyperparameter to explore; may be repeated (default: all that are searched)",
            Group.POPULATION,
            default=(),
            many=True,
        ),
    ]
    snapshots: Annotated[
        str | None,
        Option(
            "MODE",
            "checkpoints to keep: latest (the last two); best (also the one with the best return, evaluated after each "
            "epoch), or best:5 (evaluated after every fifth); every:5 (also every fifth epoch), or every:5:3 (only the "
            "last three of these); initial (also the untrained agent); all (every epoch); a number (of the latest "
            "epochs); no-replay (without replay buffers, which are filled again on resuming; not in studies); several "
            "of these, separated by commas; or no. Results do not depend on it (default: latest)",
            Group.OUTPUTS,
            entry=entries.SNAPSHOTS,
            mutable=True,
        ),
    ]


STUDY = declared(StudyOptions)
DEFAULTS = cast(StudyOptions, {name: option.default for name, option in STUDY.items()})
TEXTS = {name: hint for name, hint in get_type_hints(StudyOptions).items() if hint not in (int, int | None)}
EXTENDED = {name: option for name, option in STUDY.items() if option.extend}
BOUNDS = tuple(name for name, option in STUDY.items() if option.bound)


def entries_of(options: Mapping[str, object]) -> dict[str, Any]:
    """Return the entries of given options in a stored configuration.

    Raises:
        BadConfig: a value is invalid.
    """
    stored = {name: option.entry for name, option in STUDY.items() if option.entry}
    names = [name for name in stored if options.get(name) is not None and (options[name] or not STUDY[name].many)]
    check("a study", {name: TEXTS[name] for name in names if name in TEXTS}, options, BadConfig)
    return {name: stored[name].parse(options[name]) for name in names}
