"""``rekindle train`` under ``orion hunt``: one trial, reported to Orion.

Importing this module imports neither orion nor torch.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ...orion.trial import INTERRUPTED, RESULTS_VARIABLE, say, storage_url, train, whole
from .options import expand_files, parse_env

if TYPE_CHECKING:
    import argparse

    from ....spaces import Space
    from ....tasks.runtime.observers import EpochEvent
    from ...orion.trial import Results
    from ...storage.branches import Start

INTERRUPT_VARIABLE = "ORION_INTERRUPT_CODE"
TRIAL_VARIABLE, EXPERIMENT_VARIABLE = "ORION_TRIAL_ID", "ORION_EXPERIMENT_ID"


def run(arguments: argparse.Namespace) -> int:
    """Train one trial of Orion's, and return the exit status.

    0: the result is written. ORION_INTERRUPT_CODE: a signal stopped the trial or another process took its lease, and
    Orion will try it again. The caller reports any exception with another status: the trial is broken.
    """
    if arguments.no_better is not None:
        raise ValueError("under Orion its algorithm says how far trials are trained; leave --no-better out")
    interrupted = int(os.environ.get(INTERRUPT_VARIABLE, INTERRUPTED))
    # Only while nothing is trained: training has handlers of its own, which save first.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(interrupted))

    from ....tasks.errors import Stopped
    from ...errors import LeaseLost

    try:
        results = _train(arguments)
    except (KeyboardInterrupt, Stopped, LeaseLost) as error:
        say(f"the trial is interrupted: {' '.join(str(error).split()) or 'stopped by SIGINT'}")
        return interrupted
    except Exception:  # the next process to try the trial has to know that it failed and was not killed
        _note_failure()
        raise
    with open(os.environ[RESULTS_VARIABLE], "w", encoding="utf-8") as file:
        json.dump(results, file)
    say(", ".join(f"{row['name'].removeprefix('rk_')} {row['value']}" for row in results))
    return 0


def _train(arguments: argparse.Namespace) -> Results:
    from ....tasks import load
    from ....tasks.identity import TaskIdentity
    from ...storage.sql.retry import RetryPolicy
    from ...storage.store import Store
    from ..output.terminal import epoch_line
    from . import warm_start

    warm_start.check_options(arguments)
    algorithm = load(arguments.task)
    space = algorithm.learner.hyperparameters
    values = _active(space, space.parse(*expand_files(arguments.set)))
    values = warm_start.with_demonstrated_steps(values, arguments)
    epochs = _epochs(arguments.epochs)
    env = parse_env(arguments.env)
    make = partial(
        algorithm, env, seed=arguments.seed, env_processes=arguments.env_processes, snapshots=arguments.snapshots
    )

    def at_epoch_end(event: EpochEvent) -> None:
        say(epoch_line(event, epochs, "episode_return", "return"))

    cold = TaskIdentity.of(algorithm, env, arguments.seed, values)  # wrong values are reported before a database exists
    retry = RetryPolicy(arguments.patience, full=True, say=say)
    with Store(arguments.storage, retry=retry) as store:
        return train(
            lambda storage: make(storage=storage),
            values,
            epochs,
            store,
            parent=_parent(),
            warm=warm_start.start_one(store, make(), cold, arguments, say),
            use_previous=arguments.use_previous,
            at_epoch_end=at_epoch_end,
        )


def _trial_row() -> tuple[str, int, str] | None:
    """Return database, experiment and trial, if the database holds checkpoints."""
    url, trial, experiment = storage_url(), os.environ.get(TRIAL_VARIABLE), os.environ.get(EXPERIMENT_VARIABLE, "")
    if url is None or trial is None or not experiment.isdecimal():
        return None
    return url, int(experiment), trial


def _parent() -> Start | None:
    """Return the final state of this trial's parent in Orion."""
    if (row := _trial_row()) is None:
        return None
    from ...orion.trial_rows import parent_of

    return parent_of(*row)


def _note_failure() -> None:
    """Note in Orion's database that the trial failed and was not killed."""
    from ...errors import StoreError

    if (row := _trial_row()) is not None:
        from ...orion.trial_rows import note_failure

        with suppress(StoreError):  # then the trial is tried again, and fails again
            note_failure(*row)


def _epochs(text: str) -> int:
    from ...study.config import check_epochs, parse_epochs

    with suppress(ValueError, OverflowError):
        return check_epochs([whole(float(text))])[0]
    low, high, _ = parse_epochs(text)
    if low != high:
        raise ValueError(
            f"under Orion a trial has one number of epochs, such as --epochs~'fidelity({low}, {high})' "
            f"gives it, but got --epochs {text}"
        )
    return high


def _active(space: Space, values: Mapping[str, Any]) -> dict[str, Any]:
    """Drop values that do not apply, as Orion knows no conditions."""
    from ....spaces import flatten, unflatten

    flat = flatten(values)
    applying = flatten(space.decide(lambda path, dimension: flat.get(path, dimension.default)))
    return unflatten({path: value for path, value in flat.items() if path in applying})
