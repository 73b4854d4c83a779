"""Commands that create, train and steer studies."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from ...orion.trial import is_under_orion
from ...study import FRESH_SEEDS, TOP
from .shared import add_backends, add_device, add_env_processes, add_lease, add_outputs, add_task, add_use_previous
from .values import MANY, Container, Parser, command, few, option, positive


def add_tune(commands: Any) -> None:
    run = "under_orion.refuse_study" if is_under_orion() else "tune.tune"
    parser = command(commands, "tune", "search for good hyperparameters; rerun to resume", run)
    seeds = _add_options_of_studies(parser)
    option(
        seeds,
        "--confirm SEEDS",
        "at the end, race the best configurations and the defaults, and estimate the winner, the runner-up and the "
        f"defaults on SEEDS fresh seeds, like `rekindle confirm` ({FRESH_SEEDS} without a number)",
        type=positive,
        nargs="?",
        const=FRESH_SEEDS,
    )
    option(
        seeds, "--top N", f"configurations that --confirm takes besides the defaults (default: {TOP})", type=positive
    )
    text = "create the study that tune would create, and leave its trials to workers"
    _add_options_of_studies(command(commands, "create", text, "tune.create"))


def _add_options_of_studies(parser: Parser) -> Container:
    """Add the shared options, and return their group about seeds."""
    add_task(
        parser,
        "low:high[:base], such as 1:27: train every trial for low epochs, the best of them base times as long, and so "
        "on up to high; base is 2 with --scheduler adaptive, else 3, unless given (default: 1:27, or less if a "
        "recorded table ends earlier)",
        "fix a hyperparameter instead of searching it",
        "further environments, with --across: one configuration is searched for all of them",
    )
    parser.usage = "%(prog)s [OPTION ...] TASK [ENV ...]"
    _add_space(parser)
    _add_size_and_bounds(parser)
    _add_search(parser)
    seeds = _add_seeds(parser)
    _add_population(parser)
    add_outputs(parser)
    processes = parser.add_argument_group("processes and devices")
    add_device(processes)
    add_env_processes(processes)
    add_lease(processes)
    add_backends(parser, processes)
    return seeds


def _add_space(parser: Parser) -> None:
    add = partial(option, parser.add_argument_group("what is searched"))
    add(
        "--search NAME",
        "search this hyperparameter, and leave all that are not named at their defaults; may be repeated "
        "(default: search all that --set does not fix)",
        **MANY,
    )
    add(
        "--prior NAME=PRIOR",
        "search this hyperparameter over your own range, even if it is not searched by default: "
        "uniform(0, 1), loguniform(1e-5, 1e-3), uniform(1, 9, discrete=True), near_one(0.9, 0.999), ordinal(32, 64), "
        "choices('adam', 'sgd'), normal(0, 1), maybe(PRIOR); may be repeated",
        **MANY,
    )
    text = "try the hyperparameters in this file first, as with --set @FILE; may be repeated"
    add("--try|--enqueue @FILE", text, **MANY)
    add(
        "--learn-from STUDY",
        "choose three of four early trials by the results of another study of the same task, while these agree with "
        "the results here; STUDY is in this storage, or URL#STUDY; the results are copied, so a rerun does not "
        "need the source; may be repeated",
        **MANY,
    )
    add(
        "--objective NAME",
        "return; return_median, return_iqm or return_top_quartile, of the same episodes; return_stochastic, with "
        "actions sampled as in training; model_size, the number of parameters, minimized; env_steps_per_second, "
        "measured on this machine and not reproducible; or a metric that the task reports, with its direction, such as "
        "episode_length:minimize; may be repeated, for a Pareto front (default: return)",
        **MANY,
    )


def _add_size_and_bounds(parser: Parser) -> None:
    add = partial(option, parser.add_argument_group("the study: its size, and when it ends"))
    add("--study NAME", "name of the study (default: TASK-ENV)")
    add(
        "--trials N",
        "total number of configurations (default: 16, or fewer if bruteforce has fewer points; with a grid, all "
        "of its points)",
    )
    add(
        "--budget WORK",
        "stop after this much work by all workers together: 200epochs, 5e6steps, or training time such as 2h; rerun "
        "with more to continue",
    )
    add(
        "--goal return:VALUE",
        "stop when a trial has this return, confirmed by fresh episodes (wrong in at most 5%% of studies)",
        metavar="return:VALUE",
    )
    add(
        "--plateau N",
        "stop after this many trials in a row without an improvement beyond the noise of evaluation",
        type=positive,
    )
    add(
        "--trial-time DURATION",
        "fail a trial that has trained for this long, such as 2h; in a cohort, a trial counts its share of the time; "
        "retries continue the count (default: off)",
    )
    add("--workers N", "worker processes (default: one per core; with Ray, as many as fit on the cluster)", type=few)
    add(
        "--weight W",
        "weight by which workers divide their time between studies: one of 3 gets three times as much as one of 1; "
        "`extend` changes it (default: 1)",
    )


def _add_search(parser: Parser) -> None:
    group = parser.add_argument_group("how it is searched")
    add = partial(option, group)
    _add_scheduler(group)
    add(
        "--sampler NAME",
        "sampler of Optuna: tpe, random, gp, cmaes, qmc, nsgaii, nsgaiii, bruteforce or grid (default: tpe; "
        "random for a population)",
    )
    add(
        "--grid-points N",
        "with --sampler grid: points of each range including both ends, evenly spaced on its linear or log scale; of "
        "a list of values, all are used (default: 5)",
    )
    text = (
        "trials suggested at a time (default: 12 with adaptive, 16 in several environments, else 8); asha keeps this "
        "many ready or in training"
    )
    add("--generation N", text, type=positive)
    add("--cohort N", "consecutive trials with the same structure, so that they train as one batch", default=4)


def _add_seeds(parser: Parser) -> Container:
    group = parser.add_argument_group("seeds and environments")
    add = partial(option, group)
    add("--seeds N", "seeds per configuration", default=1)
    add("--aggregate NAME", "aggregate of the seeds' returns: mean, median, iqm or top_quartile", default="mean")
    add(
        "--racing",
        "race seeds: start each configuration with two of its --seeds, add one at a time, and drop "
        "configurations that a Friedman test rules out",
    )
    add(
        "--across NAME",
        "search one configuration for several ENV, by this aggregate over environments and seeds: mean, median, iqm or "
        "top_quartile, of results on one scale from 0, the lower decile of an environment's results, to 1, its best; "
        "configurations that lose in the first environments are not trained in the others (racing), except with "
        "--scheduler adaptive",
    )
    return group


def _add_scheduler(group: Container) -> None:
    option(
        group,
        "--scheduler NAME",
        "adaptive (default), which costs as much as training a third of --trials to the end, and prunes more "
        "cautiously where early rungs do not predict later ones; halving (default with --racing); hyperband, whose "
        "brackets start on different rungs; asha, which promotes a trial as soon as it is among the best that have "
        "finished its rung: no worker waits, but promotions depend on timing (each trial's own result does not); "
        "none, which trains every trial to the end; or pbt, which trains a population to --epochs, whose members "
        "copy and change each other's hyperparameters",
    )


def _add_population(parser: Parser) -> None:
    add = partial(option, parser.add_argument_group("with --scheduler pbt"))
    add("--population N", "number of members", default=8)
    add("--interval EPOCHS", "epochs per generation (default: 3)", type=positive)
    add(
        "--exploit HOW",
        "truncation: each member of the worst fifth copies one of the best fifth; tournament: each member copies a "
        "randomly drawn one if that is better",
        default="truncation",
    )
    add(
        "--explore HOW",
        "perturb: raise or lower copied values by a fifth; resample: draw new values; pb2: choose values by a "
        "bandit with a Gaussian process of score improvements",
        default="perturb",
    )
    add("--perturb NAME", "hyperparameter to explore; may be repeated (default: all that are searched)", **MANY)


def add_confirm(commands: Any) -> None:
    text = "train a study's best configurations on fresh seeds, and compare them with the defaults"
    parser = command(commands, "confirm", text, "tune.confirm")
    parser.add_argument("study", metavar="STUDY")
    add = partial(option, parser)
    add("--top N", "number of the study's configurations that take part, besides the defaults", default=TOP)
    add(
        "--seeds N",
        "fresh seeds of each estimate, at least 3; the race that decides the winner first uses half as many others",
        default=FRESH_SEEDS,
    )
    add("--workers N", "worker processes (default: one per core; with Ray, as many as fit on the cluster)", type=few)
    add_backends(parser, parser)
    add_lease(parser)
    add_env_processes(parser)
    add_device(parser)
    add_use_previous(parser)


def add_worker(commands: Any) -> None:
    text = "join studies, from any machine that can reach their storage"
    parser = command(commands, "worker", text, "worker.worker")
    add = partial(option, parser)
    add(
        "--study NAME",
        "name of a study; may be repeated: each gets a share of the training time of all workers, by its --weight "
        "(default: all studies of the storage, including new ones)",
        **MANY,
    )
    add(
        "--workers N",
        "expected number of workers on a study, so that each leaves work for the others; this command starts no "
        "further workers (default: those that train now)",
        default=1,
    )
    add("--quiet", "print only errors")
    text = "text, or json: one object per line, with time, study, worker and message (default: %(default)s)"
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help=text)
    add("--with-parent", argparse.SUPPRESS)  # stop when stdin ends
    add_lease(parser)
    add_env_processes(parser)
    add_device(parser)
    add_use_previous(parser)


def add_steering(commands: Any) -> None:
    for name, text in (
        ("stop", "make all workers of a study save and exit, on any machine"),
        ("pause", "make all workers of a study save and wait"),
        ("resume", "resume a study that was stopped or paused"),
        ("cancel", "end a trial of a study, which frees its worker"),
        ("exclude", "hide a trial from samplers and schedulers, and end it if it runs"),
        ("enqueue", "try your own hyperparameters next in a study"),
        ("extend", "give a study more trials or epochs, or other ranges or bounds"),
    ):
        parser = command(commands, name, text, f"steer.{name}")
        parser.add_argument("study", metavar="STUDY")
        if name in ("cancel", "exclude"):
            parser.add_argument("trial", metavar="TRIAL", help="its number or UID, as printed by `rekindle trials`")
        elif name == "enqueue":
            text = "hyperparameter, or @FILE as printed by `rekindle show --json`; the others have their defaults"
            option(parser, "--set NAME=VALUE", f"{text}; may be repeated", required=True, **MANY)
        elif name == "extend":
            option(parser, "--trials N", "total number of configurations")
            option(parser, "--epochs N", "total epochs of the best trials")
            text = "search a hyperparameter over another range, from the next trials on"
            option(parser, "--prior NAME=PRIOR", f"{text}; may be repeated", **MANY)
            option(parser, "--budget WORK", "work after which the study stops, as in tune; off: none")
            option(parser, "--goal GOAL", "return at which it stops, as in tune; off: none")
            option(parser, "--plateau TRIALS", "trials without an improvement after which it stops; off: none")
            option(parser, "--weight W", "weight by which workers divide their time between studies, as in tune")
        option(parser, "--why TEXT", "reason, for later readers of the study", default="")
