"""Options shared by several commands."""

from __future__ import annotations

from functools import partial

from ...methods import sinks_described
from ...options.conversions import amount, output
from ...options.option import Group
from ...options.study_options import STUDY
from ...options.worker_options import WORKER
from .parser import MANY, Container, Parser, declare, in_group, option, weights

TASK = "algorithm, such as ppo, or package.module:Class, module:function, sb3:PPO, sbx:PPO, or command (see --space)"


def add_task(parser: Parser, epochs: str, setting: str, several: str = "") -> None:
    """Add the arguments that define tasks.

    Args:
        parser: parser of the command.
        epochs: help for --epochs.
        setting: help for --set.
        several: help for further environments; "" if the command takes only one.
    """
    text = f"{TASK}; or, in place of TASK and ENV, a run file (TOML or YAML) with these and options; typed options win"
    parser.add_argument("task", metavar="TASK", help=text)
    text = "Gymnasium id, such as CartPole-v1, or an EnvSpec as JSON or @FILE; omitted for tasks without an environment"
    parser.add_argument("env", metavar="ENV", nargs="?", help=text)
    if several:
        parser.add_argument("others", metavar="ENV", nargs="*", default=[], help=several)
    option(
        parser,
        "--space FILE",
        "with TASK command: TOML or YAML with priors of a program's hyperparameters; the program follows at the end: "
        "-- python train.py --lr {lr} --epochs {epochs} --dir {checkpoint}",
    )
    text = "write all settings of this command, including defaults, as a run file"
    option(parser, "--save-config FILE", text, type=output)
    trained = parser.add_argument_group(Group.TRAINED.title)
    add = partial(option, trained)
    add("--epochs EPOCHS", epochs)
    add("--env-steps STEPS", "environment steps in place of --epochs, rounded up to whole epochs of epoch_steps")
    declare(trained, STUDY, *in_group(STUDY, Group.TRAINED))
    text = f"{setting}; may be repeated; @FILE reads them from JSON, as printed by `rekindle show --json`"
    add("--set NAME=VALUE", text, **MANY)
    add(
        "--warm-start POLICY",
        "copy network weights from a task (UID, UID@EPOCH or UID@best) or a file (.safetensors, .npz, .npy, or .zip of "
        "Stable-Baselines3); they are stored, so a rerun does not need the source",
    )
    add("--partial", "with --warm-start: copy the weights that fit, and report the others")
    add(
        "--demonstrations FILE",
        "demonstrations written by `rekindle evaluate --record FILE`, for tasks that learn from them (--set "
        "cloning.use=true, --set gail.use=true); they are stored like a warm start",
    )
    text = (
        "report an entry of the environment's info as the metric info.NAME: its last value in an episode, or its mean, "
        "sum, min or max"
    )
    add("--info NAME[:HOW]", f"{text}; may be repeated", **MANY)
    text = (
        "weights of a reward's parts, for environments whose reward is a vector; the parts are objectives return.0, ..."
    )
    add("--reward-weights W,W", text, type=weights)
    text = (
        "let a policy play a behaviour without learning: random, a task (UID, UID@EPOCH or UID@best) or a file "
        "(.safetensors); it is stored, and its content is part of what the result depends on"
    )
    add("--player BEHAVIOUR=POLICY", f"{text}; may be repeated", **MANY)
    text = "measure the policies that learn against this one, which plays the other teams in evaluation"
    add("--opponent POLICY", f"{text}; may be repeated", **MANY)


def add_outputs(parser: Parser) -> None:
    """Add options about checkpoints and curves of new trainings."""
    outputs = parser.add_argument_group(Group.OUTPUTS.title)
    declare(outputs, STUDY, *in_group(STUDY, Group.OUTPUTS))
    declare(outputs, WORKER, *in_group(WORKER, Group.OUTPUTS))
    option(outputs, "--log KIND:PLACE", f"also copy learning curves to {sinks_described()}; may be repeated", **MANY)


def add_backends(parser: Parser, processes: Container) -> None:
    """Add the options that say where workers run.

    Args:
        parser: parser of the command.
        processes: the parser, or its group of options about processes.
    """
    processes.add_argument(
        "--engine",
        default="processes",
        choices=("processes", "ray"),
        help="where workers run: as processes on this machine, or with Ray on all machines of a cluster (default: "
        "%(default)s)",
    )
    add_of_ray = partial(option, parser.add_argument_group(Group.RAY.title))
    add_of_ray(
        "--address HOST:PORT",
        "address of a Ray cluster, whose machines must reach the storage (default: $RAY_ADDRESS, or a new Ray "
        "instance on this machine)",
    )
    add_of_ray("--cpus-per-worker N", "CPUs that Ray reserves for each worker (default: 1)", type=amount)
    add_of_ray(
        "--gpus-per-worker N", "GPUs that Ray reserves for each worker, with --device cuda (default: none)", type=amount
    )


def add_uid(parser: Parser) -> None:
    parser.add_argument("uid", metavar="UID", help="as printed by `rekindle trials`; a unique prefix is enough")


def add_checkpoint(parser: Parser) -> None:
    text = "UID for the last checkpoint, or UID@EPOCH, UID@best or UID@0 (the untrained agent)"
    parser.add_argument("checkpoint", metavar="UID", help=text)
    declare(parser, WORKER, "device", "stuck")
