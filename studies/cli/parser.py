"""What can be typed: the commands, their options, and what these say about themselves."""

from __future__ import annotations

import argparse
import os
import sys
from importlib.metadata import version
from typing import Any, NoReturn

from .commands import options, policy, upkeep
from .commands import under_orion as orion_trial

URL_VARIABLE = "REKINDLE_STORAGE"
DEFAULT_URL = "sqlite:///rekindle.db"
USAGE = 2


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"rekindle: error: {message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(USAGE)


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="rekindle",
        description="Hyperparameter optimization for reinforcement learning, where every trial "
        "can be stopped and carried on exactly.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"rekindle {version('rekindle')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    tune = _command(commands, "tune", "search good hyperparameters; the same command again carries on")
    options.what_to_train(
        tune,
        "low:high[:base], such as 1:27: train all trials for low epochs, the best third three times as long, ... "
        "up to high; base 3 unless given",
        "1:27",
        "fix a hyperparameter instead of searching it",
    )
    tune.add_argument(
        "--search",
        action="append",
        default=[],
        metavar="NAME",
        help="search this hyperparameter, and give those that are not named their defaults; may be repeated (default: "
        "search all that --set does not fix)",
    )
    tune.add_argument(
        "--prior",
        action="append",
        default=[],
        metavar="NAME=PRIOR",
        help="search this hyperparameter, also one that is not searched by itself, over a range of your own: "
        "uniform(0, 1), loguniform(1e-5, 1e-3), uniform(1, 9, discrete=True), near_one(0.9, 0.999), ordinal(32, 64), "
        "choices('adam', 'sgd'), normal(0, 1), maybe(PRIOR); may be repeated",
    )
    tune.add_argument(
        "--trials",
        type=options.count,
        metavar="N",
        help="how many configurations in all (default: 16; with a grid, all of it)",
    )
    tune.add_argument("--study", metavar="NAME", help="name of the study (default: TASK-ENV)")
    tune.add_argument(
        "--workers",
        type=options.count,
        metavar="N",
        help="worker processes (default: as many as there are cores; with Ray, as the cluster has room for)",
    )
    tune.add_argument(
        "--sampler",
        metavar="NAME",
        help="of Optuna: tpe, random, gp, cmaes, qmc, nsgaii, nsgaiii, bruteforce or grid (default: tpe; random for a "
        "population)",
    )
    tune.add_argument(
        "--grid-points",
        type=options.count,
        metavar="N",
        help="with --sampler grid: values of each range, its ends among them, evenly or on the range's logarithm; of a "
        "list of values, all are taken (default: 5)",
    )
    tune.add_argument(
        "--objective",
        action="append",
        default=[],
        metavar="NAME",
        help="return; return_median, return_iqm or return_top_quartile, of the same episodes; model_size, the number "
        "of parameters, minimized; env_steps_per_second, which is measured on this machine and not the same twice; or "
        "a metric that the task reports with its direction, such as episode_length:minimize; may be repeated, for a "
        "Pareto front (default: return)",
    )
    tune.add_argument(
        "--generation",
        type=options.count,
        default=8,
        metavar="N",
        help="trials suggested at a time; with asha, as many are always ready or in training (default: 8)",
    )
    tune.add_argument(
        "--cohort",
        type=options.count,
        default=4,
        metavar="N",
        help="trials in a row that share their structure, so that they train as one (default: 4)",
    )
    tune.add_argument(
        "--seeds",
        type=options.count,
        default=1,
        metavar="N",
        help="train each configuration with so many seeds (default: 1)",
    )
    tune.add_argument(
        "--aggregate",
        default="mean",
        metavar="NAME",
        help="of the seeds' returns: mean, median, iqm or top_quartile (default: mean)",
    )
    tune.add_argument(
        "--racing",
        action="store_true",
        help="begin with two of the --seeds, add one at a time, and none to a configuration that, by Friedman's test, "
        "cannot win any more",
    )
    options.schedulers(tune)
    options.engines(tune)
    options.lease(tune)
    options.env_processes(tune)
    options.warm_start(tune)
    options.snapshots(tune)
    options.use_previous(tune)

    train = _command(commands, "train", "train one task; the same command again carries on")
    options.what_to_train(train, "epochs in all", "27", "set a hyperparameter; the others take their defaults")
    train.add_argument(
        "--no-better",
        metavar="METRIC:N",
        help="end earlier, when a metric of the task, such as episode_return, has not risen for N epochs",
    )

    options.env_processes(train)
    options.warm_start(train)
    options.snapshots(train)
    options.use_previous(train)

    worker = _command(commands, "worker", "join a study, from any machine that reaches its storage", json=False)
    worker.add_argument("--study", required=True, metavar="NAME")
    worker.add_argument(
        "--workers",
        type=options.count,
        default=1,
        metavar="N",
        help="how many workers share the study (default: as many as hold trials)",
    )
    worker.add_argument("--quiet", action="store_true", help="say nothing but errors")
    worker.add_argument("--with-parent", action="store_true", help=argparse.SUPPRESS)  # stop when stdin ends
    options.lease(worker)
    options.env_processes(worker)
    options.use_previous(worker)

    _command(commands, "status", "all studies of a storage")
    trials = _command(commands, "trials", "the trials of a study, rung by rung")
    trials.add_argument("study", metavar="STUDY")
    show = _command(
        commands, "show", "one trial: hyperparameters, metrics, checkpoints, digests, every start and resume"
    )
    show.add_argument("uid", metavar="UID", help="as `rekindle trials` shows it; its first characters will do")
    _lineages(commands)
    upkeep.add_parsers(commands, _command)
    policy.add_parsers(commands, _command)
    return parser


def _command(commands: Any, name: str, text: str, json: bool = True, module: str = "study") -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False
    )
    command.set_defaults(module=module)
    command.add_argument(
        "--storage",
        default=os.environ.get(URL_VARIABLE) or orion_trial.storage_url() or DEFAULT_URL,
        metavar="URL",
        help=f"sqlite:///file.db or postgresql://user:password@host/name (default: ${URL_VARIABLE}, or {DEFAULT_URL})",
    )
    command.add_argument(
        "--patience",
        type=options.seconds,
        default=600.0,
        metavar="SECONDS",
        help="how long to wait for a database that is busy, full or gone (default: 600)",
    )
    if json:
        command.add_argument("--json", action="store_true", help="print the result as JSON")
    command.add_argument("--debug", action="store_true", help="show where an error comes from")
    return command


def _lineages(commands: Any) -> None:
    replay = _command(commands, "replay", "train a task's whole lineage again and compare digests", module="lineage")
    replay.add_argument("uid", metavar="UID", help="as `rekindle trials` shows it; its first characters will do")
    fork = _command(commands, "fork", "train on from a stored checkpoint with other hyperparameters", module="lineage")
    fork.add_argument("uid", metavar="UID", help="as `rekindle trials` shows it; its first characters will do")
    fork.add_argument(
        "--at", type=options.count, required=True, metavar="EPOCH", help="of the checkpoint to start from"
    )
    fork.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="what changes; may be repeated")
    options.use_previous(fork)
