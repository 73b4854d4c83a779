"""The command line: ``rekindle tune``, ``train``, ``worker``, ``status``, ``trials``, ``show``, ``replay``, ``fork``.

Results go to stdout, progress and errors to stderr. Exit status: 0 done; 1 it failed (a loss became NaN, the database
went away, ...); 2 what was asked makes no sense; 130 and 143 stopped by SIGINT and SIGTERM, with everything saved.

With ``--json`` stdout is one JSON object, whose names are stable within one "format" (now 1; new names may be added):

    tune, trials  format, study, state ("running", "complete"), task, env {id, kwargs, wrappers, max_episode_steps},
                  seed, seeds, aggregate, spared (seeds that --racing left untrained), sampler, scheduler,
                  rungs [epochs], fixed {dotted name: value}, trials_total,
                  counts {complete, pruned, failed, running}, brackets (how many have begun),
                  progress [{rung, epochs, ready, done, failed}] (how many trainings to each rung),
                  objectives {name: "maximize" or "minimize"},
                  best (a trial or null), front [numbers of the trials that trained longest and that no other one
                  dominates, the best in the first objective first], trials [trial]
      trial       number, uid, state ("running", "complete", "pruned", "failed"), bracket, rung (the last one that it
                  was sent to, or null), member (of a population),
                  branch (null, or {trial, uid, epochs, digest} that it starts from), epochs, return,
                  objectives (null where the return is the only one, else {name: number}), digest,
                  hyperparameters {dotted name: value}, error (text or null),
                  rungs [{rung, epochs, state ("ready", "done", "failed"), return, digest}]
                  with several seeds also seeds [{seed, uid, state, epochs, return, digest}]; return is the aggregate
                  of those that were trained so far, which are not all where --racing found that they cannot win
                  epochs, return and digest are those of its last finished rung (0 and null before the first)
    train         format, uid, task, env, seed, epochs, return, digest, resumed, hyperparameters, metrics {name: number}
    status        format, storage, studies [as tune, without trials], workers [{host, pid}], tasks (how many)
    show          format, uid, task, env, seed, epochs, return, digest, owner (text or null), hyperparameters,
                  trials [{study, number, state}], metrics [{epoch, name: number}],
                  lineage [{uid, until (epochs)}] from its root to itself,
                  checkpoints [{epochs, digest, bytes, created, kept (why)}], events [{time, kind, ...}]
    replay        format, uid, equal, epochs, digest, replayed (digest or null), reason (text or null),
                  lineage [{uid, from (epochs), to (epochs), digest}]
    fork          as train, and from (uid), at (epochs), changed {dotted name: [old, new]}, return_before

``--set:NAME VALUE`` is another spelling of ``--set NAME=VALUE``, for Orion's sake, whose parser gives a prior to an
option's name and takes each name once:

    orion hunt -n cartpole rekindle train ppo CartPole-v1 --set:optimizer.lr~'loguniform(1e-5, 1e-2)' \\
        --set:epoch_steps 1024 --epochs~'fidelity(1, 27, 3)'

``rekindle train`` notices that it runs under Orion: it reports to it, carries on from the checkpoint of a lower rung,
leaves hyperparameters out that do not apply, and keeps its checkpoints in Orion's database if ORION_DB_TYPE is
rekindlesql and ORION_DB_ADDRESS says where; then a trial of Orion's PBT starts where its parent ended. After SIGTERM
and SIGINT the trial is interrupted and tried again, and so is one whose process is killed, unless that happens over and
over; one that fails is broken. --warm-start gives all trials of a hunt a policy to start from. With -vv Orion itself
logs ORION_DB_ADDRESS: leave the password to ~/.pgpass or PGPASSWORD.

``return`` is the mean undiscounted return of greedy evaluation episodes on seeds that no training uses; ``digest`` is
the sha256 of the canonical form of the whole training state; times are seconds since 1970.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import sys
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NoReturn

from .. import __version__
from . import operations, policy_commands
from .orion import trial as orion_trial
from .storage.redact import printable

URL_VARIABLE = "REKINDLE_STORAGE"
DEFAULT_URL = "sqlite:///rekindle.db"
FAILED, USAGE = 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    arguments = _parser().parse_args(_spelled_out(sys.argv[1:] if argv is None else argv))
    if arguments.debug:
        return _run(arguments)
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return _say("stopped", 130)
    except BrokenPipeError:  # of `rekindle trials x | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:  # noqa: BLE001 - people get one line; --debug shows the rest
        return _explain(error)


def _run(arguments: argparse.Namespace) -> int:
    if any(text.startswith("@") for text in getattr(arguments, "set", ())):
        from .assignments import spelled_out

        arguments.set = spelled_out(arguments.set)
    if arguments.command == "train" and orion_trial.is_under_orion():
        if arguments.no_better is not None:
            raise ValueError("under Orion its algorithm says how far trials are trained; leave --no-better out")
        return orion_trial.run(arguments)
    module = importlib.import_module(f".{arguments.module}", __package__)  # takes a while, and --help does not need it
    run: Callable[[argparse.Namespace], int] = getattr(module, arguments.command)
    return run(arguments)


def _explain(error: Exception) -> int:
    """Says in one line what is wrong; the exit status."""
    from ..tasks.errors import Diverged, Stopped
    from .errors import BadURL, DamagedCheckpoint, StoreError, StudyMismatch, UnknownStudy
    from .tune import Interrupted

    if isinstance(error, Interrupted):
        return _say(str(error), 128 + error.signal)
    if isinstance(error, Stopped):
        return _say(str(error), 143)
    if isinstance(error, DamagedCheckpoint):
        return _say(f"{error}; or run the same command with --use-previous", FAILED)
    asked = isinstance(error, BadURL | StudyMismatch | UnknownStudy | ValueError)
    if asked or isinstance(error, StoreError | Diverged):
        return _say(f"error: {error}", USAGE if asked else FAILED)
    return _say(f"error: {type(error).__name__}: {error} (the same command with --debug says where)", FAILED)


def _say(text: str, status: int) -> int:
    print("rekindle: " + printable(" ".join(text.split())), file=sys.stderr, flush=True)
    return status


# --- the parser ---


def _spelled_out(argv: Sequence[str]) -> list[str]:
    """``--set:NAME VALUE`` as ``--set NAME=VALUE``.

    Orion's parser of a program's options takes each name once, and gives priors only to names.
    """
    spelled: list[str] = []
    words = iter(argv)
    for word in words:
        if word.startswith("--set:"):
            name, equals, value = word.removeprefix("--set:").partition("=")
            spelled += ["--set", *(f"{name}={text}" for text in ([value] if equals else islice(words, 1)))]
        else:
            spelled.append(word)
    return spelled


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"rekindle: error: {message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(USAGE)


def _count(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a number of at least 1, but got {text!r}")
    return number


def _number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, but got {text!r}")
    return int(text)


def _amount(text: str) -> float:
    number = float(text) if text.replace(".", "", 1).isdecimal() else 0.0
    if not number > 0:
        raise argparse.ArgumentTypeError(f"must be a number above 0, such as 1 or 0.5, but got {text!r}")
    return number


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"must be an integer from 0 to 2**63 - 1, but got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0.0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be seconds, a number of at least 0, but got {text!r}")
    return number


def _lease(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--lease",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="how long a worker that falls silent keeps its trials from the others (default: 60)",
    )


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="rekindle",
        description="Hyperparameter optimization for reinforcement learning, where every trial "
        "can be stopped and carried on exactly.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"rekindle {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    tune = _command(commands, "tune", "search good hyperparameters; the same command again carries on")
    _what_to_train(
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
        type=_count,
        metavar="N",
        help="how many configurations in all (default: 16; with a grid, all of it)",
    )
    tune.add_argument("--study", metavar="NAME", help="name of the study (default: TASK-ENV)")
    tune.add_argument(
        "--workers",
        type=_count,
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
        type=_count,
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
        type=_count,
        default=8,
        metavar="N",
        help="trials suggested at a time; with asha, as many are always ready or in training (default: 8)",
    )
    tune.add_argument(
        "--cohort",
        type=_count,
        default=4,
        metavar="N",
        help="trials in a row that share their structure, so that they train as one (default: 4)",
    )
    tune.add_argument(
        "--seeds", type=_count, default=1, metavar="N", help="train each configuration with so many seeds (default: 1)"
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
    _schedulers(tune)
    _engines(tune)
    _lease(tune)
    _env_processes(tune)
    _warm_start(tune)
    _snapshots(tune)
    _use_previous(tune)

    train = _command(commands, "train", "train one task; the same command again carries on")
    _what_to_train(train, "epochs in all", "27", "set a hyperparameter; the others take their defaults")
    train.add_argument(
        "--no-better",
        metavar="METRIC:N",
        help="end earlier, when a metric of the task, such as episode_return, has not risen for N epochs",
    )

    _env_processes(train)
    _warm_start(train)
    _snapshots(train)
    _use_previous(train)

    worker = _command(commands, "worker", "join a study, from any machine that reaches its storage", json=False)
    worker.add_argument("--study", required=True, metavar="NAME")
    worker.add_argument(
        "--workers",
        type=_count,
        default=1,
        metavar="N",
        help="how many workers share the study (default: as many as hold trials)",
    )
    worker.add_argument("--quiet", action="store_true", help="say nothing but errors")
    worker.add_argument("--with-parent", action="store_true", help=argparse.SUPPRESS)  # stop when stdin ends
    _lease(worker)
    _env_processes(worker)
    _use_previous(worker)

    _command(commands, "status", "all studies of a storage")
    trials = _command(commands, "trials", "the trials of a study, rung by rung")
    trials.add_argument("study", metavar="STUDY")
    show = _command(
        commands, "show", "one trial: hyperparameters, metrics, checkpoints, digests, every start and resume"
    )
    show.add_argument("uid", metavar="UID", help="as `rekindle trials` shows it; its first characters will do")
    _lineages(commands)
    operations.add_parsers(commands, _command)
    policy_commands.add_parsers(commands, _command)
    return parser


def _command(
    commands: Any, name: str, text: str, json: bool = True, module: str = "commands"
) -> argparse.ArgumentParser:
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
        type=_seconds,
        default=600.0,
        metavar="SECONDS",
        help="how long to wait for a database that is busy, full or gone (default: 600)",
    )
    if json:
        command.add_argument("--json", action="store_true", help="print the result as JSON")
    command.add_argument("--debug", action="store_true", help="show where an error comes from")
    return command


def _what_to_train(command: argparse.ArgumentParser, epochs: str, default: str, setting: str) -> None:
    command.add_argument("task", metavar="TASK", help="the algorithm, such as ppo")
    command.add_argument("env", metavar="ENV", help="a Gymnasium id, such as CartPole-v1, or an EnvSpec as JSON")
    command.add_argument("--epochs", default=default, metavar="EPOCHS", help=f"{epochs} (default: {default})")
    command.add_argument("--seed", type=_seed, default=0, metavar="N", help="of all randomness (default: 0)")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"{setting}; may be repeated; @FILE takes them from JSON, such as `rekindle show --json` prints",
    )


def _lineages(commands: Any) -> None:
    replay = _command(commands, "replay", "train a task's whole lineage again and compare digests", module="branching")
    replay.add_argument("uid", metavar="UID", help="as `rekindle trials` shows it; its first characters will do")
    fork = _command(
        commands, "fork", "train on from a stored checkpoint with other hyperparameters", module="branching"
    )
    fork.add_argument("uid", metavar="UID", help="as `rekindle trials` shows it; its first characters will do")
    fork.add_argument("--at", type=_count, required=True, metavar="EPOCH", help="of the checkpoint to start from")
    fork.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="what changes; may be repeated")
    _use_previous(fork)


def _schedulers(command: argparse.ArgumentParser) -> None:
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
    population.add_argument("--population", type=_count, default=8, metavar="N", help="members (default: 8)")
    population.add_argument(
        "--interval", type=_count, default=3, metavar="EPOCHS", help="between two generations (default: 3)"
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


def _env_processes(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--env-processes",
        type=_number,
        default=0,
        metavar="N",
        help="processes that step the environments, for slow ones; no result depends on it (default: 0, the trainer's)",
    )


def _warm_start(command: argparse.ArgumentParser) -> None:
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


def _snapshots(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--snapshots",
        metavar="MODE",
        help="which checkpoints are kept: latest (two of them); best, also the one with the best return, evaluated at "
        "each epoch's end, or best:5, at each fifth; every:5, also those of each fifth epoch; all; no; or how many of "
        "the latest; no result depends on it (default: latest)",
    )


def _engines(command: argparse.ArgumentParser) -> None:
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
    ray.add_argument("--cpus-per-worker", type=_amount, metavar="N", help="that Ray keeps for each (default: 1)")
    ray.add_argument("--gpus-per-worker", type=_amount, metavar="N", help="that Ray keeps for each (default: none)")


def _use_previous(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--use-previous",
        action="store_true",
        help="where a checkpoint is damaged, carry on from a sound one before it, or start anew",
    )


if __name__ == "__main__":
    sys.exit(main())
