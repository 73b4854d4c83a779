"""Commands for single trainings, lineages, databases and policies."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from ....tasks.runtime import EVALUATION_EPISODES
from ....tasks.runtime.watcher import PLAYING, TRAINING, TRYING
from ...options.conversions import output, seed
from ...options.option import Group
from ...options.worker_options import WORKER
from ...orion.trial import is_under_orion
from .parser import MANY, command, declare, in_group, option, weights
from .shared import TASK, add_checkpoint, add_outputs, add_task, add_uid


def add_train(commands: Any) -> None:
    run = "under_orion.run" if is_under_orion() else "train.train"
    parser = command(commands, "train", "train one task; rerun to resume", run, TRYING)
    add_task(
        parser,
        "total epochs (default: 27, or less if a recorded table ends earlier)",
        "set a hyperparameter; the others keep their defaults",
    )
    parser.usage = "%(prog)s [OPTION ...] TASK [ENV]"
    option(
        parser,
        "--no-better METRIC:N",
        "stop early when a metric of the task, such as episode_return, has not risen for N epochs",
    )
    text = "write the observations and actions of this run to a file such as demo.npz, like `evaluate --record`"
    option(parser, "--record FILE", text, type=output)
    option(parser, "--eval-episodes N", "episodes of the evaluation at the end", default=EVALUATION_EPISODES)
    text = "go on with the code of a program or function as it is here, though the task began with other code"
    parser.add_argument("--code", action="store_true", help=text)
    add_outputs(parser)
    names = [name for name in in_group(WORKER, Group.PROCESSES) if name != "lease"]
    declare(parser.add_argument_group(Group.PROCESSES.title), WORKER, *names)


def add_check(commands: Any) -> None:
    text = "train a task with and without a kill, and compare: does it resume exactly?"
    parser = command(commands, "check-resume", text, "programs.check_resume", PLAYING)
    parser.add_argument("task", metavar="TASK", help=TASK)
    parser.add_argument("env", metavar="ENV", nargs="?", help="environment, omitted for tasks without one")
    parser.usage = "%(prog)s [OPTION ...] TASK [ENV]"
    add = partial(option, parser)
    add("--space FILE", "with TASK command: hyperparameters of the program that follows --")
    add("--epochs N", "epochs to train", default=4)
    add("--seed N", "seed of all randomness", type=seed, default=0)
    add("--set NAME=VALUE", "hyperparameter; the others keep their defaults; may be repeated", **MANY)
    add("--preset NAME", "known-good hyperparameters of TASK")
    add("--info NAME[:HOW]", "see `rekindle train`", **MANY)
    add("--reward-weights W,W", "see `rekindle train`", type=weights)
    declare(parser, WORKER, "stuck")


def add_lineage(commands: Any) -> None:
    text = "train a branch from a stored checkpoint, with other hyperparameters"
    parser = command(commands, "fork", text, "lineage.fork", TRAINING)
    add_uid(parser)
    option(parser, "--at EPOCH", "epoch of the checkpoint to start from", required=True)
    option(parser, "--set NAME=VALUE", "hyperparameter to change; may be repeated", **MANY)
    declare(parser, WORKER, "device", "stuck", "use_previous")
    text = "train a task's whole lineage again, and compare digests"
    parser = command(commands, "replay", text, "lineage.replay", PLAYING)
    add_uid(parser)
    declare(parser, WORKER, "device", "stuck")
    text = "train a population's lineage as a schedule of hyperparameters on fresh seeds, to tell gain from luck"
    parser = command(commands, "schedule", text, "lineage.schedule", PLAYING)
    add_uid(parser)
    option(parser, "--seeds N", "number of fresh seeds, at least 3", default=10)
    option(parser, "--objective NAME", "what to measure, such as return.NAME of a behaviour (default: the task's own)")
    declare(parser, WORKER, "device", "stuck")


def add_upkeep(commands: Any) -> None:
    parser = command(commands, "fsck", "check a storage for orphaned, damaged and inconsistent data", "upkeep.fsck")
    option(parser, "--repair", "repair findings, if possible; tasks that a process holds are left alone")
    text = "list the checkpoints that nothing needs any more; --yes drops them"
    parser = command(commands, "gc", text, "upkeep.gc")
    parser.add_argument("--study", action="append", metavar="NAME", help="only this study; may be repeated")
    option(parser, "--yes", "drop the checkpoints")
    text = "delete a study with its tasks, or one task; tasks that others need are kept"
    parser = command(commands, "delete", text, "upkeep.delete")
    parser.add_argument("name", metavar="STUDY|UID")
    option(parser, "--yes", "delete without asking")
    parser = command(commands, "export", "write a study, with everything that it trained, to one file", "upkeep.export")
    parser.add_argument("study", metavar="STUDY")
    parser.add_argument("file", type=Path, metavar="FILE")
    parser = command(commands, "import", "read a study from a file written by `rekindle export`", "upkeep.load")
    parser.add_argument("file", type=Path, metavar="FILE")


def add_policy(commands: Any) -> None:
    parser = command(commands, "evaluate", "measure the return of a stored checkpoint", "policy.evaluate", PLAYING)
    add = partial(option, parser)
    add_checkpoint(parser)
    add("--episodes N", "number of episodes", default=EVALUATION_EPISODES)
    declare(parser, WORKER, "eval_envs")
    add(
        "--env ENV",
        "evaluate in another environment with the same observations and actions: an id, an EnvSpec as JSON or "
        """@FILE, or JSON without an id that changes the task's own, such as '{"parameters": {"gravity": 5}}'""",
    )
    add("--seed N", "seed of the episodes (default: the one with which all tasks are compared)", type=seed)
    add("--stochastic", "sample actions as in training, with the same random numbers each time")
    add(
        "--record FILE",
        "write observations and actions to a file such as demo.npz, for rekindle train --demonstrations",
        type=output,
    )
    add(
        "--video FILE",
        "write one more episode, or its first 3,000 frames, as a video, such as policy.mp4 (needs the extra `video`)",
        type=output,
    )
    text = "play two policies of an environment of several agents against each other, and say who wins"
    parser = command(commands, "match", text, "match.match", PLAYING)
    add_checkpoint(parser)
    text = "the other one, in the same form, or a file (.safetensors), or random actions: random"
    parser.add_argument("other", metavar="OTHER", help=text)
    option(parser, "--games N", "number of games; each policy plays each team in turn", default=200)
    option(parser, "--seed N", "seed of the games (default: that of evaluation)", type=seed)
    text = "write the networks of a stored checkpoint to a file, for use but not for resuming"
    parser = command(commands, "export-policy", text, "policy.export_policy", PLAYING)
    add_checkpoint(parser)
    parser.add_argument(
        "file", type=output, metavar="FILE", help="such as policy.safetensors, policy.pt or policy.onnx"
    )
    parser.add_argument(
        "--format",
        choices=("safetensors", "torchscript", "onnx"),
        help="safetensors: weights; torchscript or onnx: a program from observations to greedy actions that runs "
        "without Rekindle (default: by FILE's extension)",
    )
    option(parser, "--behaviour NAME", "behaviour that the program plays, where several learn")
    text = "write the networks of a model of Stable-Baselines3 or sb3-contrib as weights, for --warm-start"
    parser = command(commands, "import-policy", text, "policy.import_policy")
    parser.add_argument("model", type=Path, metavar="MODEL", help="such as ppo.zip, written by `model.save`")
    parser.add_argument("file", type=Path, metavar="FILE", help="such as policy.safetensors")
    text = "statistics of normalized observations, written by the `save` of the model's VecNormalize"
    parser.add_argument("--vec-normalize", type=Path, metavar="PKL", help=text)
