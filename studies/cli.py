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
import os
import sys
from collections.abc import Callable, Sequence
from itertools import islice

from .orion import trial as orion_trial
from .parser import USAGE, make_parser
from .storage.redact import printable

FAILED = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    arguments = make_parser().parse_args(_spelled_out(sys.argv[1:] if argv is None else argv))
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


if __name__ == "__main__":
    sys.exit(main())
