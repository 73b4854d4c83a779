"""All commands and their options.

It imports nothing slow: the module of a command is imported once the command runs.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from ..orion.trial import is_under_orion, storage_url
from ..study.durations import parse_duration
from ..workers import URL_VARIABLE
from .commands.options import USAGE

STUCK = 600.0  # seconds, as `tasks.runtime.progress` has it, whose package is slow to import
DEFAULT_URL = "sqlite:///rekindle.db"
TASK = "the algorithm, such as ppo, or package.module:Class"
PICTURES = "curves, promotions, genealogy, profiles, importance, ranks, parallel, slice, pareto or workers"
SINKS = "tensorboard:DIR, wandb:DIR (offline runs), mlflow:FILE.db or mlflow:URL, csv:FILE or parquet:FILE"
MOST = 10_000_000  # of what is counted
MOST_PROCESSES = 1000
MANY: dict[str, Any] = {"action": "append", "default": []}  # an option that may be repeated


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line.

    Attributes:
        commands: the parsers of the commands, by name.
    """

    commands: dict[str, Parser]

    def error(self, message: str) -> NoReturn:
        """Print the message on stderr and exit."""
        print(f"rekindle: error: {message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(USAGE)


def make_parser() -> Parser:
    """Return the parser of all commands."""
    parser = Parser(
        prog="rekindle",
        description="Hyperparameter optimization for reinforcement learning, where every trial can be stopped and "
        "resumed exactly.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"rekindle {version('rekindle')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    _add_tune(commands)
    _add_confirm(commands)
    _add_report(commands)
    _add_train(commands)
    _add_worker(commands)
    _add_steering(commands)
    _add_readers(commands)
    _add_answers(commands)
    _add_lineage(commands)
    _add_upkeep(commands)
    _add_policy(commands)
    parser.commands = commands.choices
    return parser


def _command(commands: Any, name: str, text: str, run: str) -> Parser:
    """Add a command with the options that all commands have.

    `run` is the function that runs it, "module.function" in `commands`.
    """
    parser: Parser = commands.add_parser(
        name, help=text.replace("%", "%%"), description=text[0].upper() + text[1:] + ".", allow_abbrev=False
    )
    parser.set_defaults(run=run)
    option(
        parser,
        "--storage URL",
        f"sqlite:///file.db or postgresql://user:password@host/name (default: ${URL_VARIABLE}, or {DEFAULT_URL})",
        default=os.environ.get(URL_VARIABLE) or storage_url() or DEFAULT_URL,
    )
    option(
        parser, "--patience SECONDS", "how long to wait for a database that is busy, full or unreachable", default=600
    )
    option(parser, "--json", "print the result as JSON")
    option(parser, "--debug", "print the traceback of an error")
    return parser


def option(parser: argparse._ActionsContainer, form: str, text: str, **more: Any) -> None:
    """Add an option "--name PLACEHOLDER", or a flag "--name".

    The placeholder decides the type, unless `more` has one. A default is added to the text, unless that names it.
    """
    name, _, placeholder = form.partition(" ")
    value = {"metavar": placeholder, "type": TYPES.get(placeholder, str)} if placeholder else {"action": "store_true"}
    if more.get("default", []) != [] and "(default" not in text:
        text += " (default: %(default)s)"
    parser.add_argument(name, help=text, **(value | more))


def positive(text: str) -> int:
    """Parse an integer of at least 1."""
    if not text.isdecimal() or not text.strip("0"):
        raise argparse.ArgumentTypeError(f"must be a number of at least 1, but got {text!r}")
    return bounded(text)


def bounded(text: str, most: int = MOST) -> int:
    """Parse an integer of at most `most`."""
    if len(text.lstrip("0")) > len(str(most)) or int(text) > most:  # int() of very many digits is an error
        raise argparse.ArgumentTypeError(f"must be {most} at most, but got {text[:40]}")
    return int(text)


def few(text: str) -> int:
    """Parse a number of processes."""
    return bounded(str(positive(text)), MOST_PROCESSES)


def nonnegative(text: str) -> int:
    """Parse an integer of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, but got {text!r}")
    return bounded(text, MOST_PROCESSES)


def port(text: str) -> int:
    """Parse the number of a port."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 65535, but got {text!r}")
    return bounded(text, 65535)


def amount(text: str) -> float:
    """Parse a number above 0."""
    value = float(text) if text.replace(".", "", 1).isdecimal() else 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be a number above 0, such as 1 or 0.5, but got {text!r}")
    return value


def seed(text: str) -> int:
    """Parse a seed."""
    if not text.isdecimal() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"must be an integer from 0 to 2**63 - 1, but got {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """Parse a finite duration."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"must be seconds, a number of at least 0, but got {text!r}")
    return value


def duration(text: str) -> float | None:
    """Parse a duration, in seconds without a unit; "off" is None."""
    if text == "off":
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).replace(", but", ", or off, but", 1)) from None


def device(text: str) -> str:
    """Check the form of a device's name.

    Torch, which is slow to import, checks that the device is here.
    """
    kind, colon, index = text.partition(":")
    if kind not in ("auto", "cpu", "cuda", "mps") or (colon and (kind != "cuda" or not index.isdecimal())):
        raise argparse.ArgumentTypeError(
            f"must be auto, cpu, cuda, cuda:1 (or another number) or mps, but got {text!r}"
        )
    return text


def retention(text: str) -> str:
    """Check which checkpoints to keep."""
    from ...tasks.checkpoint.retention import keep_of

    try:
        keep_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


TYPES = {
    "N": positive,
    "SECONDS": seconds,
    "EPOCH": positive,
    "DURATION": duration,
    "MODE": retention,
    "DEVICE": device,
}  # of values, by placeholder


def _add_tune(commands: Any) -> None:
    parser = _command(commands, "tune", "search for good hyperparameters; rerun to resume", "tune.tune")
    _add_options_of_studies(parser)
    text = "at the end, train the best 5 configurations and the defaults on so many fresh seeds, as `rekindle confirm`"
    option(parser, "--confirm SEEDS", text, type=positive)
    text = "make the study that tune would make, and leave its trials to workers"
    _add_options_of_studies(_command(commands, "create", text, "tune.create"))


def _add_options_of_studies(parser: Parser) -> None:
    study = parser.add_argument_group("study")
    add = partial(option, study)
    _add_task(
        parser,
        "low:high[:base], such as 1:27: train every trial for low epochs, the best of them base times as long, "
        "and so on up to high; base is 2 by --scheduler adaptive and 3 by the others unless given",
        "1:27",
        "fix a hyperparameter instead of searching it",
    )
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
    add("--trials N", "number of configurations in all (default: 16; with a grid, all of its points)")
    add(
        "--budget WORK",
        "stop after this work of all workers together: 200epochs, 5e6steps, or time that they train, such as 2h; rerun "
        "with more to carry on",
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
    add("--study NAME", "name of the study (default: TASK-ENV)")
    add("--workers N", "worker processes (default: one per core; with Ray, as many as fit on the cluster)", type=few)
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
    add(
        "--objective NAME",
        "return; return_median, return_iqm or return_top_quartile, of the same episodes; return_stochastic, whose "
        "actions are sampled as in training; model_size, the number "
        "of parameters, minimized; env_steps_per_second, measured on this machine and not reproducible; or a metric "
        "that the task reports with its direction, such as episode_length:minimize; may be repeated, for a Pareto "
        "front (default: return)",
        **MANY,
    )
    text = "trials suggested at a time (default: 12 by adaptive, else 8); asha keeps this many ready or in training"
    add("--generation N", text, type=positive)
    add("--cohort N", "consecutive trials that share their structure, so that they train as one batch", default=4)
    add("--seeds N", "seeds per configuration", default=1)
    add("--aggregate NAME", "aggregate of the seeds' returns: mean, median, iqm or top_quartile", default="mean")
    add(
        "--racing",
        "race seeds: start each configuration with two of its --seeds, add one at a time, and drop "
        "configurations that a Friedman test rules out",
    )
    _add_schedulers(parser, study)
    _add_backends(parser)
    _add_lease(parser)
    _add_training(parser)


def _add_schedulers(parser: Parser, study: argparse._ArgumentGroup) -> None:
    option(
        study,
        "--scheduler NAME",
        "adaptive, which ends trials gently and the later the less the study's rungs agree, at the cost of a third of "
        "--trials trained to the end (default); halving (default with --racing); hyperband, whose brackets start on "
        "different rungs; asha, which promotes a trial as soon as it is among the best that have finished its rung, so "
        "that no worker waits, but promotions depend on timing (each trial's own result does not); none, which trains "
        "every trial to the end; or pbt, which trains a population to --epochs whose members copy and change each "
        "other's hyperparameters",
    )
    add_of_population = partial(option, parser.add_argument_group("with --scheduler pbt"))
    add_of_population("--population N", "members", default=8)
    add_of_population("--interval EPOCHS", "epochs per generation (default: 3)", type=positive)
    add_of_population(
        "--exploit HOW",
        "truncation: each member of the worst fifth copies one of the best fifth; tournament: each member copies "
        "a randomly drawn one that is better",
        default="truncation",
    )
    add_of_population(
        "--explore HOW",
        "perturb: raise or lower copied values by a fifth; resample: draw new values; pb2: choose values by a "
        "bandit with a Gaussian process of score improvements",
        default="perturb",
    )
    add_of_population(
        "--perturb NAME", "a hyperparameter that is explored; may be repeated (default: all that are searched)", **MANY
    )


def _add_backends(parser: Parser) -> None:
    parser.add_argument(
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


def _add_confirm(commands: Any) -> None:
    text = "train a study's best configurations on fresh seeds: what they are worth, and whether they beat the defaults"
    parser = _command(commands, "confirm", text, "tune.confirm")
    parser.add_argument("study", metavar="STUDY")
    add = partial(option, parser)
    add("--top N", "configurations of the study that take part, beside the defaults", default=5)
    add(
        "--seeds N",
        "fresh seeds of each estimate, at least 3; the race before it, which decides who wins, has half as many more",
        default=20,
    )
    add("--workers N", "worker processes (default: one per core; with Ray, as many as fit on the cluster)", type=few)
    _add_backends(parser)
    _add_lease(parser)
    _add_env_processes(parser)
    _add_device(parser)
    _add_use_previous(parser)


def _add_report(commands: Any) -> None:
    text = "write a report on studies: one HTML file to keep and send, without links to elsewhere"
    parser = _command(commands, "report", text, "answers.report.report")
    parser.add_argument("study", metavar="STUDY", nargs="+")
    text = "the file (default: %(default)s)"
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, default=Path("report.html"), help=text)

    text = "write a picture of a study, one of the report's figures (extra plot)"
    parser = _command(commands, "plot", text, "answers.report.plot")
    parser.add_argument("study", metavar="STUDY")
    option(parser, "--kind NAME", f"{PICTURES} (default: %(default)s)", default="curves")
    text = "the file, a .png, .svg or .pdf (default: KIND.png)"
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help=text)


def _add_train(commands: Any) -> None:
    run = "under_orion.run" if is_under_orion() else "train.train"
    parser = _command(commands, "train", "train one task; rerun to resume", run)
    _add_task(parser, "epochs in all", "27", "set a hyperparameter; the others have their defaults")
    option(
        parser,
        "--no-better METRIC:N",
        "stop early, once a metric of the task, such as episode_return, has not risen for N epochs",
    )
    text = "write what the policy observes and does in this run to a file such as demo.npz, as `evaluate --record` does"
    option(parser, "--record FILE", text, type=Path)
    _add_training(parser)


def _add_worker(commands: Any) -> None:
    text = "join a study, from any machine that reaches its storage"
    parser = _command(commands, "worker", text, "worker.worker")
    add = partial(option, parser)
    add("--study NAME", "name of the study", required=True)
    add("--workers N", "number of workers that share the study (default: as many as hold trials)", default=1)
    add("--quiet", "print nothing but errors")
    text = "text, or json: each line an object with time, study, worker and message (default: %(default)s)"
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help=text)
    add("--with-parent", argparse.SUPPRESS)  # stop when stdin ends
    _add_lease(parser)
    _add_env_processes(parser)
    _add_device(parser)
    _add_use_previous(parser)


def _add_steering(commands: Any) -> None:
    for name, text in (
        ("stop", "let all workers of a study save and end, on any machine"),
        ("pause", "let all workers of a study save and wait"),
        ("resume", "carry on a study that was stopped or paused"),
        ("cancel", "end a trial of a study, which frees its worker"),
        ("exclude", "let samplers and schedulers forget a trial, and end it if it runs"),
        ("enqueue", "try hyperparameters of your own next in a study"),
        ("extend", "give a study more trials or epochs, other ranges or bounds"),
    ):
        parser = _command(commands, name, text, f"steering.steer.{name}")
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
        option(parser, "--why TEXT", "the reason, for those who read the study later", default="")


def _add_readers(commands: Any) -> None:
    parser = _command(commands, "status", "all studies of a storage, and who trains them", "look.status")
    option(parser, "--prometheus", "print metrics as a Prometheus scraper reads them")
    _command(commands, "tasks", "the trainings of a storage that are in no study", "look.tasks")
    parser = _command(
        commands, "space", "the hyperparameters of a task: what is searched over what, and defaults", "look.space"
    )
    parser.add_argument("task", metavar="TASK", help=TASK)
    parser.add_argument("env", metavar="ENV", nargs="?", help="leave out what has no effect in this environment")
    parser = _command(commands, "trials", "the trials of a study, rung by rung", "look.trials")
    parser.add_argument("study", metavar="STUDY")
    text = "convert an ML-Agents configuration into a run file, and list what has no counterpart"
    parser = _command(commands, "import-config", text, "look.import_config")
    parser.add_argument("file", type=Path, metavar="FILE", help="such as mlagents.yaml")
    parser.add_argument("env", metavar="ENV", nargs="?", help="a Gymnasium id; ML-Agents' configurations name none")
    option(parser, "--behavior NAME", "which behavior, if the file has several")
    option(parser, "--output RUN.TOML", "write the run file here (default: stdout)", type=Path)
    text = "copy the learning curves of a study or a task for other tools; again, to add what is new"
    parser = _command(commands, "export-curves", text, "live.curves.export_curves")
    parser.add_argument("name", metavar="STUDY|UID")
    option(parser, "--to KIND:PLACE", f"{SINKS}; may be repeated", required=True, **MANY)
    text = "names of metrics: sb3, ml-agents, metabox or rekindle (default: sb3, and rekindle in tables)"
    option(parser, "--names NAMES", text)
    option(parser, "--follow", "go on until the study is complete")
    option(parser, "--with-parent", argparse.SUPPRESS)  # go on until stdin ends
    text = "what happens in a study now: rungs, trials in training, workers, failures; reads only, ends at q"
    parser = _command(commands, "watch", text, "live.watch.watch")
    parser.add_argument("study", metavar="STUDY", nargs="?", help="the study (default: the youngest one)")
    option(parser, "--every SECONDS", "how often to look", default=1.0)
    text = "show studies as they train, and their reports, as read-only pages in a browser"
    parser = _command(commands, "serve", text, "live.serve.serve")
    option(parser, "--host HOST", "address to listen at; any but loopback needs --token", default="127.0.0.1")
    option(parser, "--port N", "port to listen at; 0 for any free one", type=port, default=8765)
    option(parser, "--token TEXT", "what browsers must know; the printed address holds it", default="")
    text = "one trial: hyperparameters, metrics, checkpoints, digests, every start and resume"
    parser = _command(commands, "show", text, "look.show")
    _add_uid(parser)
    option(parser, "--config", "print the run file that trains it again")


def _add_answers(commands: Any) -> None:
    """Add the commands that answer questions about finished studies."""
    text = "studies and other runs beside one another: IQM, median and mean with 95% intervals, and who beats whom"
    parser = _command(commands, "compare", text, "answers.compare.compare")
    parser.add_argument(
        "source",
        metavar="STUDY",
        nargs="+",
        help="a study, whose runs are its confirmation's fresh seeds, or else its best configuration's seeds; "
        "evaluations.npz of Stable-Baselines3, one run; or a CSV file with a column return (or score), and maybe env. "
        "LABEL=STUDY and LABEL@ENV=FILE: what has the same label is one side",
    )
    option(
        parser,
        "--scale ENV=LOW:HIGH",
        "results that count as 0 and as 1, for scores over several environments and the optimality gap; may be "
        "repeated (default: the worst and the best run of any side)",
        **MANY,
    )
    text = "which hyperparameters of a study mattered, with intervals, and what ails it, with a cure each"
    parser = _command(commands, "diagnose", text, "answers.diagnose.diagnose")
    parser.add_argument("study", metavar="STUDY")


def _add_lineage(commands: Any) -> None:
    text = "train a task's whole lineage again and compare digests"
    parser = _command(commands, "replay", text, "lineage.replay")
    _add_uid(parser)
    _add_device(parser)
    text = "train a population's lineage as a schedule of hyperparameters on fresh seeds: what was gain, what luck"
    parser = _command(commands, "schedule", text, "lineage.schedule")
    _add_uid(parser)
    option(parser, "--seeds N", "fresh seeds, at least 3", default=10)
    _add_device(parser)
    text = "continue from a stored checkpoint with other hyperparameters"
    parser = _command(commands, "fork", text, "lineage.fork")
    _add_uid(parser)
    option(parser, "--at EPOCH", "epoch of the checkpoint to start from", required=True)
    option(parser, "--set NAME=VALUE", "a changed hyperparameter; may be repeated", **MANY)
    _add_device(parser)
    _add_use_previous(parser)


def _add_upkeep(commands: Any) -> None:
    parser = _command(commands, "fsck", "examine a storage for orphaned, damaged and inconsistent data", "upkeep.fsck")
    option(parser, "--repair", "repair what can be repaired, except what a process holds")
    text = "list the checkpoints that nothing needs any more; drop them with --yes"
    parser = _command(commands, "gc", text, "upkeep.gc")
    parser.add_argument("--study", action="append", metavar="NAME", help="of this study only; may be repeated")
    option(parser, "--yes", "drop them")
    text = "delete a study with its tasks, or one task; what others need stays"
    parser = _command(commands, "delete", text, "upkeep.delete")
    parser.add_argument("name", metavar="STUDY|UID")
    option(parser, "--yes", "delete without asking")
    parser = _command(commands, "export", "write a study, with all that it trained, to one file", "upkeep.export")
    parser.add_argument("study", metavar="STUDY")
    parser.add_argument("file", type=Path, metavar="FILE")
    parser = _command(commands, "import", "read a study from a file that `rekindle export` wrote", "upkeep.load")
    parser.add_argument("file", type=Path, metavar="FILE")


def _add_policy(commands: Any) -> None:
    parser = _command(commands, "evaluate", "the return of a stored checkpoint", "policy.evaluate")
    add = partial(option, parser)
    _add_checkpoint(parser)
    add("--episodes N", "number of episodes", type=int, default=20)
    add(
        "--env ENV",
        "evaluate in another environment with the same observations and actions: an id, an EnvSpec as JSON, or JSON "
        """without an id that changes the task's own, such as '{"parameters": {"gravity": 5}}'""",
    )
    add("--seed N", "evaluate on other episodes than all tasks are compared on", type=seed)
    add("--stochastic", "sample actions as training does, with the same random numbers each time")
    add(
        "--record FILE",
        "write observations and actions to a file such as demo.npz, for rekindle train --demonstrations",
        type=Path,
    )
    add("--video FILE", "write one more episode as a video, such as policy.mp4 (extra video)", type=Path)
    text = "write the networks of a stored checkpoint, which cannot be resumed"
    parser = _command(commands, "export-policy", text, "policy.export_policy")
    _add_checkpoint(parser)
    parser.add_argument("file", type=Path, metavar="FILE", help="such as policy.safetensors, policy.pt or policy.onnx")
    parser.add_argument(
        "--format",
        choices=("safetensors", "torchscript", "onnx"),
        help="safetensors: weights; torchscript or onnx: a program from observations to greedy actions, which runs "
        "without Rekindle (default: by FILE's ending)",
    )
    text = "write the networks of a Stable-Baselines3 model (PPO, A2C, DQN, SAC) as weights, for --warm-start"
    parser = _command(commands, "import-policy", text, "policy.import_policy")
    parser.add_argument("model", type=Path, metavar="MODEL", help="such as ppo.zip, as `model.save` wrote it")
    parser.add_argument("file", type=Path, metavar="FILE", help="such as policy.safetensors")


def _add_task(parser: Parser, epochs: str, default: str, setting: str) -> None:
    """Add the arguments that define tasks."""
    add = partial(option, parser)
    text = f"{TASK}; or, for TASK and ENV, a run file in TOML or YAML with them and any options; typed options win"
    parser.add_argument("task", metavar="TASK", help=text)
    text = "a Gymnasium id, such as CartPole-v1, or an EnvSpec as JSON; left out for tasks without an environment"
    parser.add_argument("env", metavar="ENV", nargs="?", help=text)
    text = (
        "report an entry of the environment's info, of an episode its last value, mean, sum, min or max, as info.NAME"
    )
    add("--info NAME[:HOW]", f"{text}; may be repeated", **MANY)
    add("--epochs EPOCHS", epochs, default=default)
    add("--env-steps STEPS", "instead of --epochs: environment steps, rounded up to whole epochs of epoch_steps")
    add("--seed N", "seed of all randomness", type=seed, default=0)
    add("--save-config FILE", "write all that this command is told, with all defaults, as a run file", type=Path)
    text = f"{setting}; may be repeated; @FILE reads them from JSON as `rekindle show --json` prints it"
    add("--set NAME=VALUE", text, **MANY)
    text = "known-good hyperparameters of TASK, such as cartpole; --set wins; a study tries them first and searches on"
    add("--preset NAME", text)


def _add_training(parser: Parser) -> None:
    """Add options of commands that train new tasks."""
    add = partial(option, parser)
    add("--log KIND:PLACE", f"copy learning curves meanwhile to {SINKS}; may be repeated", **MANY)
    _add_env_processes(parser)
    _add_device(parser)
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
    add(
        "--snapshots MODE",
        "checkpoints to keep: latest (two); best (also the one with the best return, evaluated after each "
        "epoch), or best:5 (after each fifth); every:5 (also those of each fifth epoch), or every:5:3 (the last three "
        "of these); initial (also the untrained agent); all epochs; how many of the latest epochs; no-replay "
        "(without replay memories, which are filled again on resuming; not in studies); several of these with commas "
        "between; or no; no result depends on it (default: latest)",
    )
    _add_use_previous(parser)


def _add_lease(parser: Parser) -> None:
    option(parser, "--lease SECONDS", "how long a silent worker keeps its trials from other workers", default=60)
    text = (
        "how long a worker has after SIGTERM, before the scheduler's SIGKILL: it saves between two steps, also within "
        "epochs and evaluations, and exits in time if one step takes longer"
    )
    option(parser, "--grace SECONDS", text, default=60)


def _add_env_processes(parser: Parser) -> None:
    text = "processes that step slow environments; no result depends on it (default: 0, the trainer's own process)"
    option(parser, "--env-processes N", text, type=nonnegative, default=0)
    text = (
        "kill a process, of the trainer or of its environments, that made no step for so long, such as 90s, 10m or 2h, "
        "and retry its trials from their checkpoints; off: wait for ever (default: 10m)"
    )
    option(parser, "--stuck DURATION", text, default=STUCK)


def _add_device(parser: Parser) -> None:
    text = (
        "torch device: auto (a GPU if there is one), cpu, cuda, cuda:1 or mps; no part of a task's identity, but "
        "results of different devices differ in their last bits (default: cpu)"
    )
    option(parser, "--device DEVICE", text, default="cpu")


def _add_use_previous(parser: Parser) -> None:
    option(parser, "--use-previous", "replace a damaged checkpoint by the last sound one, or by a fresh start")


def _add_uid(parser: Parser) -> None:
    parser.add_argument("uid", metavar="UID", help="as `rekindle trials` prints it; a unique prefix is enough")


def _add_checkpoint(parser: Parser) -> None:
    text = "or UID@EPOCH, UID@best or UID@0, the untrained agent; without an epoch, the last checkpoint"
    parser.add_argument("checkpoint", metavar="UID", help=text)
    _add_device(parser)
