"""Commands that create, train and steer studies."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from ....tasks.runtime.watcher import TRYING
from ...options.conversions import few, positive
from ...options.option import Group
from ...options.study_options import EXTENDED, STUDY
from ...options.worker_options import WORKER
from ...orion.trial import is_under_orion
from ...study import FRESH_SEEDS, TOP
from .parser import MANY, Container, Parser, command, declare, in_group, option, or_off
from .shared import add_backends, add_outputs, add_task

WORKERS = "worker processes (default: one per core; with Ray, as many as fit on the cluster)"


def add_tune(commands: Any) -> None:
    run = "under_orion.refuse_study" if is_under_orion() else "tune.tune"
    parser = command(commands, "tune", "search for good hyperparameters; rerun to resume", run, TRYING)
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
    _add_options_of_studies(command(commands, "create", text, "tune.create", TRYING))


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
    groups = {}
    for group in (Group.SEARCHED, Group.SIZE, Group.SEARCH, Group.SEEDS, Group.POPULATION):
        groups[group] = parser.add_argument_group(group.title)
        if group is Group.SIZE:
            option(groups[group], "--study NAME", "name of the study (default: TASK-ENV)")
        declare(groups[group], STUDY, *in_group(STUDY, group))
    _add_sources(groups[Group.SEARCHED])
    option(groups[Group.SIZE], "--workers N", WORKERS, type=few)
    add_outputs(parser)
    processes = parser.add_argument_group(Group.PROCESSES.title)
    declare(processes, WORKER, *in_group(WORKER, Group.PROCESSES))
    add_backends(parser, processes)
    return groups[Group.SEEDS]


def _add_sources(group: Container) -> None:
    """Add where hyperparameters and their ranges come from."""
    add = partial(option, group)
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


def add_confirm(commands: Any) -> None:
    text = "train a study's best configurations on fresh seeds, and compare them with the defaults"
    parser = command(commands, "confirm", text, "tune.confirm", TRYING)
    parser.add_argument("study", metavar="STUDY")
    add = partial(option, parser)
    add("--top N", "number of the study's configurations that take part, besides the defaults", default=TOP)
    add(
        "--seeds N",
        "fresh seeds of each estimate, at least 3; the race that decides the winner first uses half as many others",
        default=FRESH_SEEDS,
    )
    add("--eval-episodes N", "episodes of each evaluation (default: as many as in the study)")
    add("--workers N", WORKERS, type=few)
    add_backends(parser, parser)
    declare(parser, WORKER, *in_group(WORKER, Group.PROCESSES, Group.OUTPUTS))


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
    declare(parser, WORKER, *in_group(WORKER, Group.PROCESSES, Group.OUTPUTS))


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
            text = "go on with the code of the program or function as it is here, though it has changed"
            parser.add_argument("--code", action="store_true", help=text)
            for changed, declaration in EXTENDED.items():
                form = f"--{changed.replace('_', '-')} {declaration.placeholder}"
                option(parser, form, declaration.extend, type=or_off(declaration))
        option(parser, "--why TEXT", "reason, for later readers of the study", default="")
