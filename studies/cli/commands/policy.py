"""``rekindle evaluate`` and ``export-policy``: use the networks of a stored checkpoint.

With ``--json`` stdout is one JSON object:

    evaluate        format, uid, epochs, episodes, deterministic, return, median, iqm, top_quartile, min, max, std (of
                    the episodes' returns), digest; with --record also record (the file), steps (how many)
    export-policy   format, uid, epochs, file, bytes, parameters (how many numbers), digest
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..output.terminal import new_console, print_json
from . import options
from .storage import existing_store, whole_uid

if TYPE_CHECKING:
    from ....tasks.task import Task


def add_parsers(commands: Any) -> None:
    """Add the commands."""
    parser = options.add_command(commands, "evaluate", "the return of a stored checkpoint", evaluate)
    _add_checkpoint(parser)
    parser.add_argument("--episodes", type=int, default=20, metavar="N", help="number of episodes (default: 20)")
    parser.add_argument(
        "--stochastic",
        action="store_true",
        help="sample actions as training does, with the same random numbers each time",
    )
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="write observations and actions to a file such as demo.npz, for rekindle train --demonstrations",
    )
    text = "write the networks of a stored checkpoint, which cannot be resumed"
    parser = options.add_command(commands, "export-policy", text, export_policy)
    _add_checkpoint(parser)
    parser.add_argument("file", type=Path, metavar="FILE", help="such as policy.safetensors")


def _add_checkpoint(parser: options.Parser) -> None:
    parser.add_argument(
        "checkpoint", metavar="UID", help="or UID@EPOCH, or UID@best; without an epoch, the last checkpoint"
    )


def evaluate(arguments: argparse.Namespace) -> int:
    """Print statistics of evaluation returns on seeds reserved for evaluation."""
    from ...study.objectives import AGGREGATES

    task, greedy = _task(arguments), not arguments.stochastic
    returns = task.returns(arguments.episodes, greedy)
    spread = {"min": min(returns), "max": max(returns), "std": statistics.pstdev(returns)}
    others: dict[str, Any] = {name: aggregate(returns) for name, aggregate in AGGREGATES.items() if name != "mean"}
    mean = task.evaluate(arguments.episodes, greedy)
    if arguments.record is not None:
        demonstrations = task.record(arguments.episodes, greedy)
        others |= {"record": str(demonstrations.save(arguments.record)), "steps": demonstrations.steps}
    return _print(
        arguments,
        {
            "uid": task.uid,
            "epochs": task.epochs,
            "episodes": arguments.episodes,
            "deterministic": greedy,
            "return": mean,
            **others,
            **spread,
            "digest": task.digest,
        },
    )


def export_policy(arguments: argparse.Namespace) -> int:
    """Write the networks of a checkpoint as safetensors."""
    task = _task(arguments)
    file = task.save_policy(arguments.file)
    count = sum(tensor.numel() for tensor in task.parameters())
    return _print(
        arguments,
        {
            "uid": task.uid,
            "epochs": task.epochs,
            "file": str(file),
            "bytes": file.stat().st_size,
            "parameters": count,
            "digest": task.digest,
        },
    )


def _task(arguments: argparse.Namespace) -> Task:
    """Return the task as it was at the checkpoint, without a storage."""
    from ....tasks.checkpoint.state import unpack
    from ....tasks.checkpoint.storage import POLICY_PREFIX
    from ....tasks.warm_start import is_policy
    from ...engine.lineage import lineage, restore, retrain
    from ...storage.stored_policies import NoPolicy, checkpoint_of

    with existing_store(arguments) as store:
        uid, saved = checkpoint_of(store, arguments.checkpoint, whole_uid)
        if uid.startswith(POLICY_PREFIX):
            raise NoPolicy(
                f"a checkpoint is of a task, with an environment to act in, but {uid} is only a policy; "
                "rekindle train --warm-start takes it"
            )
        if is_policy(unpack(saved.manifest, saved.fetch)):  # a warm start that has not trained yet
            return retrain(lineage(store, uid), 0)
        return restore(saved)


def _print(arguments: argparse.Namespace, result: dict[str, Any]) -> int:
    from ..output import tables

    if arguments.json:
        return print_json(result)
    new_console().print(tables.pairs_table(arguments.checkpoint, result))
    return 0
