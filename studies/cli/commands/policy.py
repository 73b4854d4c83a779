"""``rekindle evaluate`` and ``rekindle export-policy``: a stored checkpoint that is looked at, and used elsewhere.

With ``--json`` stdout is one JSON object:

    evaluate        format, uid, epochs, episodes, deterministic, return, median, iqm, top_quartile, min, max, std (of
                    the episodes' returns), digest; with --record also record (the file), steps (how many)
    export-policy   format, uid, epochs, file, bytes, parameters (how many numbers), digest
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...study.objectives import AGGREGATES

if TYPE_CHECKING:
    from ....tasks.task import Task

HERE = "policy"


def add_parsers(commands: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Adds the commands; ``command`` makes a parser with what all commands have."""
    evaluate = command(commands, "evaluate", "the return of a stored checkpoint", module=HERE)
    export = command(commands, "export-policy", "write a stored checkpoint's networks, not resumable", module=HERE)
    for parser in (evaluate, export):
        parser.add_argument("checkpoint", metavar="UID", help="or UID@EPOCH, or UID@best; the last one by itself")
    evaluate.add_argument("--episodes", type=int, default=20, metavar="N", help="how many (default: 20)")
    evaluate.add_argument(
        "--stochastic",
        action="store_true",
        help="act at random, as in training, with the same random numbers each time",
    )
    evaluate.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="write what was seen and done to a file such as demo.npz, for rekindle train --demonstrations",
    )
    export.add_argument("file", type=Path, metavar="FILE", help="such as policy.safetensors")
    export.set_defaults(command="export_policy")


def evaluate(arguments: argparse.Namespace) -> int:
    """Prints what episodes on seeds that no training uses return, in the mean and otherwise."""
    task, greedy = _task(arguments), not arguments.stochastic
    returns = task.returns(arguments.episodes, greedy)
    spread = {"min": min(returns), "max": max(returns), "std": statistics.pstdev(returns)}
    others: dict[str, Any] = {name: aggregate(returns) for name, aggregate in AGGREGATES.items() if name != "mean"}
    mean = task.evaluate(arguments.episodes, greedy)
    if arguments.record is not None:
        shown = task.record(arguments.episodes, greedy)
        others |= {"record": str(shown.save(arguments.record)), "steps": shown.steps}
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
    """Writes the networks of a checkpoint as safetensors."""
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
    """The task as it was at the checkpoint, without a storage."""
    from ....tasks.checkpoint.state import unpack
    from ....tasks.checkpoint.storage import POLICY
    from ....tasks.warm_start import is_policy
    from ...engine.lineage import lineage, retrain, task_of
    from ...storage.stored_policies import NoPolicy, checkpoint_of
    from ..output.terminal import existing_store, whole_uid

    with existing_store(arguments) as store:
        uid, saved = checkpoint_of(store, arguments.checkpoint, whole_uid)
        state = unpack(saved.manifest, saved.fetch)
        if uid.startswith(POLICY):
            raise NoPolicy(
                f"a checkpoint is of a task, with an environment to act in, but {uid} is only a policy; "
                "rekindle train --warm-start takes it"
            )
        if is_policy(state):  # a warm start that has not trained yet
            return retrain(lineage(store, uid), 0)
        task = task_of(state["identity"])
        task.load_state_dict(state)
        return task


def _print(arguments: argparse.Namespace, result: dict[str, Any]) -> int:
    from ..output import json_views as report
    from ..output import tables
    from ..output.terminal import new_console, print_json

    if arguments.json:
        return print_json({"format": report.FORMAT, **result})
    new_console().print(tables.pairs_table(arguments.checkpoint, result))
    return 0
