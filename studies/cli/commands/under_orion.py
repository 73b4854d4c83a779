"""``rekindle train`` under ``orion hunt``: one trial, reported to Orion in its own form.

This module imports neither orion nor torch at once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...orion.trial import INTERRUPTED, say, train, whole

if TYPE_CHECKING:
    import argparse

    from ....spaces import Space
    from ....tasks.checkpoint.storage import Storage
    from ....tasks.cohort import EpochEvent
    from ....tasks.task import Task
    from ...orion.trial import Results
    from ...storage.branches import Start

RESULTS_VARIABLE = "ORION_RESULTS_PATH"  # Orion sets it for the programs it runs, and reads the file when they end
INTERRUPT_VARIABLE = "ORION_INTERRUPT_CODE"
TRIAL_VARIABLE, EXPERIMENT_VARIABLE = "ORION_TRIAL_ID", "ORION_EXPERIMENT_ID"


def is_under_orion() -> bool:
    """Whether Orion runs this process and waits for its result."""
    return RESULTS_VARIABLE in os.environ


def storage_url() -> str | None:
    """Orion's own database, if its environment names one that can keep checkpoints too."""
    address = os.environ.get("ORION_DB_ADDRESS")
    if not is_under_orion() or not address or os.environ.get("ORION_DB_TYPE", "").lower() != "rekindlesql":
        return None
    return address if "://" in address else f"sqlite:///{address}"


def run(arguments: argparse.Namespace) -> int:
    """What ``rekindle train`` does under Orion; returns the exit status that Orion understands.

    0: the result is written. ORION_INTERRUPT_CODE: stopped by a signal or overtaken, and Orion will try the trial
    again. Whatever is raised is said by the caller, with another status: the trial is broken.
    """
    again = int(os.environ.get(INTERRUPT_VARIABLE, INTERRUPTED))
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(again))  # while nothing is trained; see Interrupts

    from ....tasks.errors import Stopped
    from ...errors import LeaseLost

    try:
        found = _train(arguments)
    except (KeyboardInterrupt, Stopped, LeaseLost) as error:
        say(f"the trial is interrupted: {' '.join(str(error).split()) or 'stopped by SIGINT'}")
        return again
    except Exception:  # whatever it was: who takes the trial next is to know that it ended by itself
        _note_failure()
        raise
    with open(os.environ[RESULTS_VARIABLE], "w", encoding="utf-8") as file:
        json.dump(found, file)
    say(", ".join(f"{row['name'].removeprefix('rk_')} {row['value']}" for row in found))
    return 0


def _train(arguments: argparse.Namespace) -> Results:
    from ....tasks import load
    from ...storage.sql.retry import Patience
    from ...storage.store import Store
    from .warm_start import check_start, counted, is_given, warm_start

    check_start(arguments)
    algorithm, space = load(arguments.task), load(arguments.task).learner.hyperparameters
    env = json.loads(arguments.env) if arguments.env.lstrip().startswith("{") else arguments.env
    values = counted(_active(space, space.parse(*arguments.set)), arguments)
    epochs = _epochs(arguments.epochs)

    def make(storage: Storage | None) -> Task:
        what = {"seed": arguments.seed, "env_processes": arguments.env_processes, "snapshots": arguments.snapshots}
        return algorithm(env, storage=storage, **what)

    def at_epoch_end(event: EpochEvent) -> None:
        shown = (name for name in ("episode_return", "return") if name in event.metrics)
        say(f"epoch {event.epoch}/{epochs}  " + "  ".join(f"{name} {event.metrics[name]:.5g}" for name in shown))

    make(None).init(**values)  # what is wrong with them is said before a database is made
    patience = Patience(arguments.patience, full=True, say=say)
    with Store(arguments.storage, patience=patience) as store:
        warm = None
        if is_given(arguments):
            warm = warm_start(store, make(None), values, arguments, say)
        return train(
            make,
            values,
            epochs,
            store,
            parent=_parent(),
            warm=warm,
            use_previous=arguments.use_previous,
            at_epoch_end=at_epoch_end,
        )


def _place() -> tuple[str, int, str] | None:
    """The database, the experiment and the trial, if they are in a database that is ours too."""
    url, trial, experiment = (storage_url(), os.environ.get(TRIAL_VARIABLE), os.environ.get(EXPERIMENT_VARIABLE, ""))
    if url is None or trial is None or not experiment.isdecimal():
        return None
    return url, int(experiment), trial


def _parent() -> Start | None:
    """Where the trial ended from which Orion branched this one."""
    if (place := _place()) is None:
        return None
    from ...orion.parents import parent_of

    return parent_of(*place)


def _note_failure() -> None:
    """Says in Orion's database that the trial failed by itself, and was not killed."""
    from ...errors import StoreError

    if (place := _place()) is not None:
        from ...orion.attempts import note_failure

        with suppress(StoreError):  # then it is tried again, which finds out
            note_failure(*place)


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
    """The values without those that do not apply: Orion knows no conditions and gives every hyperparameter one."""
    from ....spaces import flatten, unflatten

    given = flatten(values)
    applying = flatten(space.decide(lambda path, dimension: given.get(path, dimension.default)))
    return unflatten({path: value for path, value in given.items() if path in applying})
