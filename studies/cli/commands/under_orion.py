"""``rekindle train`` under ``orion hunt``: one trial, with its result for Orion.

Importing this module imports neither orion nor torch.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from ...orion.trial import INTERRUPTED, RESULTS_VARIABLE, say, storage_url

if TYPE_CHECKING:
    import argparse

    from ...storage.branches import Start

INTERRUPT_VARIABLE = "ORION_INTERRUPT_CODE"
TRIAL_VARIABLE, EXPERIMENT_VARIABLE = "ORION_TRIAL_ID", "ORION_EXPERIMENT_ID"


def run(arguments: argparse.Namespace) -> int:
    """Train one trial of Orion's; return the exit status.

    The status is 0 if the result was written. It is ORION_INTERRUPT_CODE if a signal stopped the trial or another
    process took its lease; Orion then retries the trial. On an exception, the caller exits with another status, and the
    trial is broken.
    """
    if arguments.no_better is not None:
        raise ValueError("under Orion, its algorithm decides how long trials train; leave --no-better out")
    for option in ("record", "save_config"):
        if getattr(arguments, option) is not None:
            word = option.replace("_", "-")
            raise ValueError(f"under Orion, all trials would write the same file; leave --{word} out")
    if arguments.log:
        raise ValueError(
            "under Orion, a trial copies no curves, but got --log; leave it out, and copy those of a task afterwards "
            "with `rekindle export-curves UID --to`"
        )
    interrupted = int(os.environ.get(INTERRUPT_VARIABLE, INTERRUPTED))
    # Only until training starts: its own handlers save first.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(interrupted))

    from ....tasks.errors import Stopped
    from ...errors import LeaseLost

    row = trial_row()
    try:
        from .train import train_for_orion  # slow, and may be interrupted

        results = train_for_orion(arguments, _parent(row), interrupted)
    except (KeyboardInterrupt, Stopped, LeaseLost) as error:
        say(f"the trial is interrupted: {' '.join(str(error).split()) or 'stopped by SIGINT'}")
        return interrupted
    except Exception:  # the next process that tries the trial must know that this one was not killed
        note_failure(row)
        raise
    with open(os.environ[RESULTS_VARIABLE], "w", encoding="utf-8") as file:
        json.dump(results, file)
    say(", ".join(f"{row['name'].removeprefix('rk_')} {row['value']}" for row in results))
    return 0


def refuse_study(arguments: argparse.Namespace) -> int:
    """Raise ValueError: Orion's trials are trainings, not studies.

    Orion would break the trial at the end of the study, for want of a result.
    """
    raise ValueError(
        f"Orion waits for the result of one training in {RESULTS_VARIABLE}, but `rekindle tune` trains a whole study "
        "and writes none; run `rekindle train` under `orion hunt`, or `rekindle tune` without Orion; a script that "
        f"reports a result of its own starts `env -u {RESULTS_VARIABLE} rekindle tune` with --storage"
    )


def trial_row() -> tuple[str, int, str] | None:
    """Return database, experiment and trial if the database has checkpoints."""
    url, trial, experiment = storage_url(), os.environ.get(TRIAL_VARIABLE), os.environ.get(EXPERIMENT_VARIABLE, "")
    if url is None or trial is None or not experiment.isdecimal():
        return None
    from ...storage.sql.database import full_url

    return full_url(url), int(experiment), trial


def _parent(row: tuple[str, int, str] | None) -> Start | None:
    """Return the final state of this trial's parent in Orion."""
    if row is None:
        return None
    from ...orion.trial_rows import parent_of

    return parent_of(*row)


def note_failure(row: tuple[str, int, str] | None) -> None:
    """Record in Orion's database that the trial failed by itself."""
    from ...errors import StoreError

    if row is not None:
        from ...orion.trial_rows import note_failure

        with suppress(StoreError):  # without the record, the trial is retried and fails again
            note_failure(*row)
