"""Options that several commands have, and the kinds of values that options take."""

from __future__ import annotations

import argparse
import math


def count(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a number of at least 1, but got {text!r}")
    return number


def number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, but got {text!r}")
    return int(text)


def amount(text: str) -> float:
    number = float(text) if text.replace(".", "", 1).isdecimal() else 0.0
    if not number > 0:
        raise argparse.ArgumentTypeError(f"must be a number above 0, such as 1 or 0.5, but got {text!r}")
    return number


def seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"must be an integer from 0 to 2**63 - 1, but got {text!r}")
    return int(text)


def seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0.0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be seconds, a number of at least 0, but got {text!r}")
    return number


def what_to_train(command: argparse.ArgumentParser, epochs: str, default: str, setting: str) -> None:
    command.add_argument("task", metavar="TASK", help="the algorithm, such as ppo")
    command.add_argument("env", metavar="ENV", help="a Gymnasium id, such as CartPole-v1, or an EnvSpec as JSON")
    command.add_argument("--epochs", default=default, metavar="EPOCHS", help=f"{epochs} (default: {default})")
    command.add_argument("--seed", type=seed, default=0, metavar="N", help="of all randomness (default: 0)")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"{setting}; may be repeated; @FILE takes them from JSON, such as `rekindle show --json` prints",
    )


def schedulers(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--scheduler",
        default="halving",
        metavar="NAME",
        help="halving; hyperband, whose brackets begin on different rungs; asha, which promotes a trial as soon as it "
        "is among the best of those that have finished its rung: nobody waits, but which trials are promoted depends "
        "on timing, and only each trial's own result does not; none, which trains every trial to the end; or pbt, "
        "which trains a population to --epochs whose members copy and change each other's hyperparameters "
        "(default: halving)",
    )
    population = command.add_argument_group("with --scheduler pbt")
    population.add_argument("--population", type=count, default=8, metavar="N", help="members (default: 8)")
    population.add_argument(
        "--interval", type=count, default=3, metavar="EPOCHS", help="between two generations (default: 3)"
    )
    population.add_argument(
        "--exploit",
        default="truncation",
        metavar="HOW",
        help="truncation: the worst fifth copies one of the best fifth; tournament: each copies one drawn at random, "
        "if that is better (default: truncation)",
    )
    population.add_argument(
        "--explore",
        default="perturb",
        metavar="HOW",
        help="perturb: what is copied goes up or down by a fifth; resample: it is drawn anew; pb2: a bandit chooses "
        "it, with a Gaussian process of what made scores rise (default: perturb)",
    )
    population.add_argument(
        "--perturb",
        action="append",
        default=[],
        metavar="NAME",
        help="a hyperparameter that is explored; may be repeated (default: all that are searched)",
    )


def engines(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--engine",
        default="processes",
        choices=("processes", "ray"),
        help="what runs the workers: processes of this machine; or Ray, on all machines of a cluster (default: "
        "%(default)s)",
    )
    ray = command.add_argument_group("with --engine ray")
    ray.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="of a Ray cluster, whose machines must reach the storage (default: $RAY_ADDRESS, or a Ray of its own on "
        "this machine)",
    )
    ray.add_argument("--cpus-per-worker", type=amount, metavar="N", help="that Ray keeps for each (default: 1)")
    ray.add_argument("--gpus-per-worker", type=amount, metavar="N", help="that Ray keeps for each (default: none)")


def lease(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--lease",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="how long a worker that falls silent keeps its trials from the others (default: 60)",
    )


def env_processes(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--env-processes",
        type=number,
        default=0,
        metavar="N",
        help="processes that step the environments, for slow ones; no result depends on it (default: 0, the trainer's)",
    )


def warm_start(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--warm-start",
        metavar="POLICY",
        help="begin with the networks of a task, UID, UID@EPOCH or UID@best, or of a file, .safetensors, .npz or .npy; "
        "they are stored, so that the same command carries on without their source",
    )
    command.add_argument(
        "--partial", action="store_true", help="with --warm-start: take over what fits, and say what does not"
    )
    command.add_argument(
        "--demonstrations",
        metavar="FILE",
        help="show what `rekindle evaluate --record FILE` wrote to tasks that learn from it (--set cloning.use=true, "
        "--set gail.use=true); it is stored, as a warm start is",
    )


def snapshots(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--snapshots",
        metavar="MODE",
        help="which checkpoints are kept: latest (two of them); best, also the one with the best return, evaluated at "
        "each epoch's end, or best:5, at each fifth; every:5, also those of each fifth epoch; all; no; or how many of "
        "the latest; no result depends on it (default: latest)",
    )


def use_previous(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--use-previous",
        action="store_true",
        help="where a checkpoint is damaged, carry on from a sound one before it, or start anew",
    )
