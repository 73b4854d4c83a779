"""``rekindle evaluate``, ``export-policy`` and ``import-policy``.

With ``--json`` stdout is one JSON object:

    evaluate        format, uid, epochs, episodes, deterministic, return, median, iqm, top_quartile, min, max, std (of
                    the episodes' returns), digest; info.NAME, the mean over episodes of each entry of info that the
                    environment's spec names, null if no episode had it; with --record also record (the file) and
                    steps (number recorded); with --video also video (the file) and video_return (of its episode);
                    with --env also env; with --seed also seed
    export-policy   format, uid, epochs, file, form (as for --format), bytes, parameters (number), digest
    import-policy   format, file, task, parameters (number), hyperparameters {dotted name: value}
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

from rich.text import Text

from ....spaces import flatten
from ....tasks.checkpoint import sb3_files
from ....tasks.checkpoint.policy_files import write_policy
from ....tasks.checkpoint.state import unpack
from ....tasks.checkpoint.storage import POLICY_PREFIX
from ....tasks.deployment.exporting import format_of
from ....tasks.deployment.video import check_video
from ....tasks.evaluation import other_env
from ....tasks.registry import load
from ....tasks.task import Task
from ....tasks.warm_start import is_policy
from ...engine.lineage import lineage, restore, retrain
from ...shell import option
from ...storage.stored_policies import NoPolicy, checkpoint_of
from ...study.objectives import AGGREGATES, RETURN, mean_of_known
from ..output import tables
from ..output.terminal import new_console, print_json
from . import options
from .storage import existing_store, whole_uid


def evaluate(arguments: argparse.Namespace) -> int:
    """Print statistics of evaluation returns, on seeds reserved for evaluation."""
    if arguments.video is not None:
        check_video(arguments.video)
    task, greedy = stored_task(arguments), not arguments.stochastic
    task.eval_envs = arguments.eval_envs
    env = options.parse_env(arguments.env)
    if not task.env and env is None and arguments.record is None and arguments.video is None:
        return _print(arguments, task, {task.learner.objective: task.evaluate()})
    elsewhere = {"env": env, "seed": arguments.seed}
    measured = task.measure(arguments.episodes, greedy, **elsewhere)
    returns = measured.pop(RETURN)
    spread = {"min": min(returns), "max": max(returns), "std": statistics.pstdev(returns)}
    others: dict[str, Any] = {name: aggregate(returns) for name, aggregate in AGGREGATES.items() if name != "mean"}
    mean = task.evaluate(arguments.episodes, greedy, **elsewhere)
    if arguments.record is not None:
        demonstrations = task.record(arguments.episodes, greedy, **elsewhere)
        others |= {"record": str(demonstrations.save(arguments.record)), "steps": demonstrations.steps}
    if arguments.video is not None:
        others |= {"video": str(arguments.video), "video_return": task.film(arguments.video, greedy, **elsewhere)}
    info = {name: mean_of_known(values) for name, values in measured.items()}
    found = {"episodes": arguments.episodes, "deterministic": greedy, "return": mean, **others, **spread, **info}
    if env is not None:
        found["env"] = other_env(task.env, env, str(task)).to_json()
    if arguments.seed is not None:
        found["seed"] = arguments.seed
    return _print(arguments, task, found)


def export_policy(arguments: argparse.Namespace) -> int:
    """Write the networks of a checkpoint as weights or as a program."""
    task = stored_task(arguments)
    file = task.export_policy(arguments.file, arguments.format)
    count = sum(tensor.numel() for tensor in task.parameters())
    form = format_of(file, arguments.format, str(task))
    written = {"file": str(file), "form": form, "bytes": file.stat().st_size, "parameters": count}
    return _print(arguments, task, written)


def import_policy(arguments: argparse.Namespace) -> int:
    """Write the networks of a Stable-Baselines3 model as weights."""
    found = sb3_files.import_policy(arguments.model, arguments.vec_normalize)
    load(found.task).learner.hyperparameters.validate(found.hyperparameters)
    file = write_policy(arguments.file, found.policy, {"task": found.task, "source": arguments.model.name})
    values = flatten(found.hyperparameters)
    count = sum(tensor.numel() for tensor in found.policy.values())
    result = {"file": str(file), "task": found.task, "parameters": count, "hyperparameters": values}
    if arguments.json:
        return print_json(result)
    out = new_console()
    table = {name: value for name, value in result.items() if name != "hyperparameters"} | values
    out.print(tables.pairs_table(str(arguments.model), table))
    words = [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in values.items()]
    settings = " ".join(option("--set", word) for word in words)
    command = f"rekindle train {found.task} ENV {option('--warm-start', str(file))} {settings}"
    out.print(Text(command, "cyan"), soft_wrap=True)
    return 0


def stored_task(arguments: argparse.Namespace) -> Task:
    """Return the task in the state of a checkpoint, without a storage."""
    with existing_store(arguments) as store:
        short, _, at = arguments.checkpoint.partition("@")
        if at == "0":  # untrained, whether stored or not
            return retrain(lineage(store, whole_uid(store, short))[:1], 0, device=arguments.device)
        uid, saved = checkpoint_of(store, arguments.checkpoint, whole_uid)
        if uid.startswith(POLICY_PREFIX):
            raise NoPolicy(
                f"a checkpoint belongs to a task, with an environment to act in, but {uid} is only a policy; "
                "rekindle train --warm-start takes it"
            )
        if is_policy(unpack(saved.manifest, saved.fetch)):  # a warm start that has not been trained yet
            return retrain(lineage(store, uid), 0, device=arguments.device)
        return restore(saved, arguments.device)


def _print(arguments: argparse.Namespace, task: Task, found: dict[str, Any]) -> int:
    result = {"uid": task.uid, "epochs": task.epochs, **found, "digest": task.digest}
    if arguments.json:
        return print_json(result)
    new_console().print(tables.pairs_table(arguments.checkpoint, result))
    return 0
