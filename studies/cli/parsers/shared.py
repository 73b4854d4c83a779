"""Options that several commands have."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from .values import MANY, Container, Parser, amount, nonnegative, option, seed

STUCK = 600.0  # seconds, as `tasks.runtime.progress` has it, whose package is slow to import
TASK = "the algorithm, such as ppo, or package.module:Class"
SINKS = "tensorboard:DIR, wandb:DIR (offline runs), mlflow:FILE.db or mlflow:URL, csv:FILE or parquet:FILE"


def add_task(parser: Parser, epochs: str, setting: str, several: str = "") -> None:
    """Add the arguments that define tasks.

    several: the text about further environments, of commands that take them.
    """
    text = f"{TASK}; or, for TASK and ENV, a run file in TOML or YAML with them and any options; typed options win"
    parser.add_argument("task", metavar="TASK", help=text)
    text = "a Gymnasium id, such as CartPole-v1, or an EnvSpec as JSON or in @FILE; left out for tasks without any"
    parser.add_argument("env", metavar="ENV", nargs="?", help=text)
    if several:
        parser.add_argument("others", metavar="ENV", nargs="*", help=several)
    text = "write all that this command is told, with all defaults, as a run file"
    option(parser, "--save-config FILE", text, type=Path)
    add = partial(option, parser.add_argument_group("what is trained"))
    add("--epochs EPOCHS", epochs)
    add("--env-steps STEPS", "instead of --epochs: environment steps, rounded up to whole epochs of epoch_steps")
    add("--seed N", "seed of all randomness", type=seed, default=0)
    text = f"{setting}; may be repeated; @FILE reads them from JSON as `rekindle show --json` prints it"
    add("--set NAME=VALUE", text, **MANY)
    text = "known-good hyperparameters of TASK, such as cartpole; --set wins; a study tries them first and searches on"
    add("--preset NAME", text)
    add(
        "--warm-start POLICY",
        "copy network weights from a task (UID, UID@EPOCH or UID@best) or a file (.safetensors, .npz, .npy, or .zip of "
        "Stable-Baselines3); they are stored, so that a rerun does not need the source",
    )
    add("--partial", "with --warm-start: copy the weights that fit, and report the others")
    add(
        "--demonstrations FILE",
        "demonstrations written by `rekindle evaluate --record FILE`, for tasks that learn from them (--set "
        "cloning.use=true, --set gail.use=true); they are stored as a warm start is",
    )
    text = (
        "report an entry of the environment's info, of an episode its last value, mean, sum, min or max, as info.NAME"
    )
    add("--info NAME[:HOW]", f"{text}; may be repeated", **MANY)


def add_outputs(parser: Parser) -> None:
    """Add options about what is kept of new trainings."""
    outputs = parser.add_argument_group("checkpoints and curves")
    option(
        outputs,
        "--snapshots MODE",
        "checkpoints to keep: latest (two); best (also the one with the best return, evaluated after each "
        "epoch), or best:5 (after each fifth); every:5 (also those of each fifth epoch), or every:5:3 (the last three "
        "of these); initial (also the untrained agent); all epochs; how many of the latest epochs; no-replay "
        "(without replay memories, which are filled again on resuming; not in studies); several of these with commas "
        "between; or no; no result depends on it (default: latest)",
    )
    add_use_previous(outputs)
    option(outputs, "--log KIND:PLACE", f"copy learning curves meanwhile to {SINKS}; may be repeated", **MANY)


def add_backends(parser: Parser, processes: Container) -> None:
    """Add where workers run.

    processes: the parser, or its group of options about processes.
    """
    processes.add_argument(
        "--engine",
        default="processes",
        choices=("processes", "ray"),
        help="where workers run: as processes on this machine, or with Ray on all machines of a cluster (default: "
        "%(default)s)",
    )
    add_of_ray = partial(option, parser.add_argument_group("with --engine ray"))
    add_of_ray(
        "--address HOST:PORT",
        "address of a Ray cluster, whose machines must reach the storage (default: $RAY_ADDRESS, or a new Ray "
        "instance on this machine)",
    )
    add_of_ray("--cpus-per-worker N", "CPUs that Ray reserves for each (default: 1)", type=amount)
    add_of_ray(
        "--gpus-per-worker N", "GPUs that Ray reserves for each, with --device cuda (default: none)", type=amount
    )


def add_lease(parser: Container) -> None:
    option(parser, "--lease SECONDS", "how long a silent worker keeps its trials from other workers", default=60)
    add_grace(parser)


def add_grace(parser: Container) -> None:
    text = (
        "how long a process has after SIGTERM, before the scheduler's SIGKILL: it saves between two steps, also within "
        "epochs and evaluations, and exits in time if one step takes longer"
    )
    option(parser, "--grace SECONDS", text, default=60)


def add_env_processes(parser: Container) -> None:
    text = "processes that step slow environments; no result depends on it (default: 0, the trainer's own process)"
    option(parser, "--env-processes N", text, type=nonnegative, default=0)
    text = (
        "kill a process, of the trainer or of its environments, that made no step for so long, such as 90s, 10m or 2h, "
        "and retry its trials from their checkpoints; off: wait for ever (default: 10m)"
    )
    option(parser, "--stuck DURATION", text, default=STUCK)


def add_device(parser: Container) -> None:
    text = (
        "torch device: auto (a GPU if there is one), cpu, cuda, cuda:1 or mps; no part of a task's identity, but "
        "results of different devices differ in their last bits (default: cpu)"
    )
    option(parser, "--device DEVICE", text, default="cpu")


def add_use_previous(parser: Container) -> None:
    option(parser, "--use-previous", "replace a damaged checkpoint by the last sound one, or by a fresh start")


def add_uid(parser: Parser) -> None:
    parser.add_argument("uid", metavar="UID", help="as `rekindle trials` prints it; a unique prefix is enough")


def add_checkpoint(parser: Parser) -> None:
    text = "or UID@EPOCH, UID@best or UID@0, the untrained agent; without an epoch, the last checkpoint"
    parser.add_argument("checkpoint", metavar="UID", help=text)
    add_device(parser)
