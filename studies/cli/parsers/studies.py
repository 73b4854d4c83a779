"""Commands that make, train and steer studies."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from .shared import add_backends, add_device, add_env_processes, add_lease, add_outputs, add_task, add_use_previous
from .values import MANY, Container, Parser, command, few, option, positive


def add_tune(commands: Any) -> None:
    parser = command(commands, "tune", "search for good hyperparameters; rerun to resume", "tune.tune")
    seeds = _add_options_of_studies(parser)
    option(
        seeds,
        "--confirm SEEDS",
        "at the end, race the best 5 configurations and the defaults, and estimate the winner, the runner-up and the "
        "defaults on so many fresh seeds, as `rekindle confirm`",
        type=positive,
    )
    text = "make the study that tune would make, and leave its trials to workers"
    _add_options_of_studies(command(commands, "create", text, "tune.create"))


def _add_options_of_studies(parser: Parser) -> Container:
    """Add the shared options, and return their group about seeds."""
    add_task(
        parser,
        "low:high[:base], such as 1:27: train every trial for low epochs, the best of them base times as long, "
        "and so on up to high; base is 2 by --scheduler adaptive and 3 by the others unless given (default: 1:27, or "
        "up to what a recorded table has)",
        "fix a hyperparameter instead of searching it",
        "further environments, with --across: one configuration is searched for all of them",
    )
    parser.usage = "%(prog)s [OPTION ...] TASK [ENV ...]"
    add = partial(option, parser.add_argument_group("what is searched"))
    add(
        "--search NAME",
        "search this hyperparameter, and leave those that are not named at their defaults; may be repeated "
        "(default: search all that --set does not fix)",
        **MANY,
    )
    add(
        "--prior NAME=PRIOR",
        "search this hyperparameter over a range of your own, even one that is not searched by default: "
        "uniform(0, 1), loguniform(1e-5, 1e-3), uniform(1, 9, discrete=True), near_one(0.9, 0.999), ordinal(32, 64), "
        "choices('adam', 'sgd'), normal(0, 1), maybe(PRIOR); may be repeated",
        **MANY,
    )
    add("--try @FILE", "try the hyperparameters of this file first, as --set @FILE reads it; may be repeated", **MANY)
    add(
        "--learn-from STUDY",
        "choose three of four early trials by the results of this study of the same task, of this storage or as "
        "URL#STUDY, as far as they agree with the results here; they are copied, so that a rerun does not need the "
        "source; may be repeated",
        **MANY,
    )
    add(
        "--objective NAME",
        "return; return_median, return_iqm or return_top_quartile, of the same episodes; return_stochastic, whose "
        "actions are sampled as in training; model_size, the number "
        "of parameters, minimized; env_steps_per_second, measured on this machine and not reproducible; or a metric "
        "that the task reports with its direction, such as episode_length:minimize; may be repeated, for a Pareto "
        "front (default: return)",
        **MANY,
    )
    add = partial(option, parser.add_argument_group("the study: its size, and when it ends"))
    add("--study NAME", "name of the study (default: TASK-ENV)")
    add(
        "--trials N",
        "number of configurations in all (default: 16, or fewer if bruteforce has fewer points; with a grid, all "
        "of its points)",
    )
    add(
        "--budget WORK",
        "stop after this work of all workers together: 200epochs, 5e6steps, or time that they train, such as 2h; rerun "
        "with more to continue",
    )
    add(
        "--goal return:VALUE",
        "stop once a trial has this return, confirmed by fresh episodes (wrong in 5%% of studies at most)",
        metavar="return:VALUE",
    )
    add(
        "--plateau N",
        "stop when no trial was better, beyond the noise of evaluation, for so many trials",
        type=positive,
    )
    add(
        "--trial-time DURATION",
        "fail a trial that has trained for so long, such as 2h, of which a trial in a cohort has its share; retries go "
        "on counting (default: off)",
    )
    add("--workers N", "worker processes (default: one per core; with Ray, as many as fit on the cluster)", type=few)
    add(
        "--weight W",
        "share of workers that train several studies, beside 1 of each other one, such as 3; `extend` changes it",
    )
    searching = parser.add_argument_group("how it is searched")
    add = partial(option, searching)
    _add_scheduler(searching)
    add(
        "--sampler NAME",
        "a sampler of Optuna: tpe, random, gp, cmaes, qmc, nsgaii, nsgaiii, bruteforce or grid (default: tpe; "
        "random for a population)",
    )
    add(
        "--grid-points N",
        "with --sampler grid: points of each range including both ends, evenly spaced or evenly on the range's "
        "log scale; of a list of values, all are used (default: 5)",
    )
    text = (
        "trials suggested at a time (default: 12 by adaptive, 16 in several environments, else 8); asha keeps this "
        "many ready or in training"
    )
    add("--generation N", text, type=positive)
    add("--cohort N", "consecutive trials that share their structure, so that they train as one batch", default=4)
    seeds = parser.add_argument_group("seeds and environments")
    add = partial(option, seeds)
    add("--seeds N", "seeds per configuration", default=1)
    add("--aggregate NAME", "aggregate of the seeds' returns: mean, median, iqm or top_quartile", default="mean")
    add(
        "--racing",
        "race seeds: start each configuration with two of its --seeds, add one at a time, and drop "
        "configurations that a Friedman test rules out",
    )
    add(
        "--across NAME",
        "search one configuration for several ENV: the aggregate over environments and seeds of results on one scale, "
        "from 0, the lower decile of an environment's results, to 1, its best; mean, median, iqm or top_quartile; what "
        "loses in the first environments is not trained in the others (racing), except by --scheduler adaptive",
    )
    _add_population(parser)
    add_outputs(parser)
    processes = parser.add_argument_group("processes and devices")
    add_device(processes)
    add_env_processes(processes)
    add_lease(processes)
    add_backends(parser, processes)
    return seeds


def _add_scheduler(group: Container) -> None:
    option(
        group,
        "--scheduler NAME",
        "adaptive, which ends trials gently and the later the less the study's rungs agree, at the cost of a third of "
        "--trials trained to the end (default); halving (default with --racing); hyperband, whose brackets start on "
        "different rungs; asha, which promotes a trial as soon as it is among the best that have finished its rung, so "
        "that no worker waits, but promotions depend on timing (each trial's own result does not); none, which trains "
        "every trial to the end; or pbt, which trains a population to --epochs whose members copy and change each "
        "other's hyperparameters",
    )


def _add_population(parser: Parser) -> None:
    add = partial(option, parser.add_argument_group("with --scheduler pbt"))
    add("--population N", "members", default=8)
    add("--interval EPOCHS", "epochs per generation (default: 3)", type=positive)
    add(
        "--exploit HOW",
        "truncation: each member of the worst fifth copies one of the best fifth; tournament: each member copies "
        "a randomly drawn one that is better",
        default="truncation",
    )
    add(
        "--explore HOW",
        "perturb: raise or lower copied values by a fifth; resample: draw new values; pb2: choose values by a "
        "bandit with a Gaussian process of score improvements",
        default="perturb",
    )
    add("--perturb NAME", "a hyperparameter that is explored; may be repeated (default: all that are searched)", **MANY)


def add_confirm(commands: Any) -> None:
    text = "train a study's best configurations on fresh seeds: what they are worth, and whether they beat the defaults"
    parser = command(commands, "confirm", text, "tune.confirm")
    parser.add_argument("study", metavar="STUDY")
    add = partial(option, parser)
    add("--top N", "configurations of the study that take part, beside the defaults", default=5)
    add(
        "--seeds N",
        "fresh seeds of each estimate, at least 3; the race before it, which decides who wins, has half as many more",
        default=20,
    )
    add("--workers N", "worker processes (default: one per core; with Ray, as many as fit on the cluster)", type=few)
    add_backends(parser, parser)
    add_lease(parser)
    add_env_processes(parser)
    add_device(parser)
    add_use_previous(parser)


def add_worker(commands: Any) -> None:
    text = "join studies, from any machine that reaches their storage"
    parser = command(commands, "worker", text, "worker.worker")
    add = partial(option, parser)
    add(
        "--study NAME",
        "name of a study; may be repeated: each has its share of the time that all workers train, by its --weight "
        "(default: all of the storage, also those that are made meanwhile)",
        **MANY,
    )
    add(
        "--workers N",
        "how many workers share a study, to leave work for all; starts none (default: as many as train)",
        default=1,
    )
    add("--quiet", "print nothing but errors")
    text = "text, or json: each line an object with time, study, worker and message (default: %(default)s)"
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help=text)
    add("--with-parent", argparse.SUPPRESS)  # stop when stdin ends
    add_lease(parser)
    add_env_processes(parser)
    add_device(parser)
    add_use_previous(parser)


def add_steering(commands: Any) -> None:
    for name, text in (
        ("stop", "let all workers of a study save and end, on any machine"),
        ("pause", "let all workers of a study save and wait"),
        ("resume", "continue a study that was stopped or paused"),
        ("cancel", "end a trial of a study, which frees its worker"),
        ("exclude", "let samplers and schedulers forget a trial, and end it if it runs"),
        ("enqueue", "try hyperparameters of your own next in a study"),
        ("extend", "give a study more trials or epochs, other ranges or bounds"),
    ):
        parser = command(commands, name, text, f"steering.steer.{name}")
        parser.add_argument("study", metavar="STUDY")
        if name in ("cancel", "exclude"):
            parser.add_argument("trial", metavar="TRIAL", help="its number, or its UID, as `rekindle trials` prints it")
        elif name == "enqueue":
            text = "a hyperparameter, or @FILE as `rekindle show --json` prints it; the others have their defaults"
            option(parser, "--set NAME=VALUE", f"{text}; may be repeated", required=True, **MANY)
        elif name == "extend":
            option(parser, "--trials N", "number of configurations in all")
            option(parser, "--epochs N", "epochs to which the best trials train, in all")
            text = "search it over another range, from the next trials on"
            option(parser, "--prior NAME=PRIOR", f"{text}; may be repeated", **MANY)
            option(parser, "--budget WORK", "the work after which the study stops, as in tune; off: none")
            option(parser, "--goal GOAL", "the return at which it stops, as in tune; off: none")
            option(parser, "--plateau TRIALS", "the trials without a better one after which it stops; off: none")
            option(parser, "--weight W", "its share of workers that train several studies, beside 1 of each other one")
        option(parser, "--why TEXT", "the reason, for those who read the study later", default="")
