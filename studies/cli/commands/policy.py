"""``rekindle evaluate``, ``export-policy`` and ``import-policy``."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from rich.text import Text

from ....spaces import flatten
from ....tasks.checkpoint import sb3_files
from ....tasks.checkpoint.policy_files import write_policy
from ....tasks.deployment.exporting import format_of
from ....tasks.deployment.video import check_video
from ....tasks.evaluation.players import other_env
from ....tasks.registry import load
from ....tasks.task import Task
from ...engine.lineage import task_at
from ...engine.views import EMPTY, Values, View
from ...shell import option
from ...study.objectives import AGGREGATES, RETURN, mean_of_known
from ..output import tables
from ..output.terminal import new_console, print_json
from . import options
from .storage import existing_store

OfTask = TypeVar("OfTask", bound=View)


class EvaluationView(View):
    """Statistics of evaluation episodes, or a task's own objective."""

    merged = frozenset({"result", "info"})

    uid: Annotated[str, "uid"]
    epochs: Annotated[int, "epochs of the checkpoint"]
    result: Annotated[Mapping[str, float], "objective of a task without an environment, by its name"] = EMPTY
    episodes: Annotated[int | None, "number of episodes"] = None
    deterministic: Annotated[bool | None, "whether actions are greedy"] = None
    return_: Annotated[float | None, "mean of the episodes' returns"] = None
    median: Annotated[float | None, "median"] = None
    iqm: Annotated[float | None, "interquartile mean"] = None
    top_quartile: Annotated[float | None, "mean of the best quarter"] = None
    record: Annotated[str | None, "written file of demonstrations, with --record"] = None
    steps: Annotated[int | None, "number of steps in it"] = None
    video: Annotated[str | None, "written video, with --video"] = None
    video_return: Annotated[float | None, "return of its episode"] = None
    min: Annotated[float | None, "lowest return"] = None
    max: Annotated[float | None, "highest return"] = None
    std: Annotated[float | None, "standard deviation of the returns"] = None
    info: Annotated[
        Mapping[str, float | None],
        "means over episodes of the entries of info that the environment's spec names: info.NAME; null if no episode "
        "had it",
    ] = EMPTY
    env: Annotated[Mapping[str, Any] | None, "environment, with --env"] = None
    seed: Annotated[int | None, "seed, with --seed"] = None
    digest: Annotated[str, "digest of the state"]


class ExportedView(View):
    """An exported policy."""

    uid: Annotated[str, "uid of its task"]
    epochs: Annotated[int, "epochs of the checkpoint"]
    file: Annotated[str, "path"]
    form: Annotated[str, "as for --format"]
    bytes: Annotated[int, "size"]
    parameters: Annotated[int, "number of parameters"]
    digest: Annotated[str, "digest of the state"]


class ImportedView(View):
    """An imported policy."""

    file: Annotated[str, "path"]
    task: Annotated[str, "algorithm"]
    parameters: Annotated[int, "number of parameters"]
    hyperparameters: Values


def evaluate(arguments: argparse.Namespace) -> int:
    """Print statistics of evaluation returns, on seeds reserved for evaluation."""
    if arguments.video is not None:
        check_video(arguments.video)
    task, greedy = stored_task(arguments), not arguments.stochastic
    task.eval_envs = arguments.eval_envs
    env = options.parse_env(arguments.env)
    if not task.env and env is None and arguments.record is None and arguments.video is None:
        return _print(arguments, _of(EvaluationView, task, result={task.learner.objective: task.evaluate()}))
    elsewhere = {"env": env, "seed": arguments.seed}
    measured = task.measure(arguments.episodes, greedy, **elsewhere)
    returns = measured.pop(RETURN)
    spread = {"min": min(returns), "max": max(returns), "std": statistics.pstdev(returns)}
    more: dict[str, Any] = {name: aggregate(returns) for name, aggregate in AGGREGATES.items() if name != "mean"}
    mean = task.evaluate(arguments.episodes, greedy, **elsewhere)
    if arguments.record is not None:
        demonstrations = task.record(arguments.episodes, greedy, **elsewhere)
        more |= {"record": str(demonstrations.save(arguments.record)), "steps": demonstrations.steps}
    if arguments.video is not None:
        more |= {"video": str(arguments.video), "video_return": task.film(arguments.video, greedy, **elsewhere)}
    info = {name: mean_of_known(values) for name, values in measured.items()}
    if env is not None:
        more["env"] = other_env(task.env, env, str(task)).to_json()
    more |= {"episodes": arguments.episodes, "deterministic": greedy, "return_": mean, "info": info, **spread}
    return _print(arguments, _of(EvaluationView, task, **more, seed=arguments.seed))


def export_policy(arguments: argparse.Namespace) -> int:
    """Write the networks of a checkpoint as weights or as a program."""
    task = stored_task(arguments)
    file = task.export_policy(arguments.file, arguments.format, behaviour=arguments.behaviour)
    count = sum(tensor.numel() for tensor in task.parameters())
    form = format_of(file, arguments.format, str(task))
    written = {"file": str(file), "form": form, "bytes": file.stat().st_size, "parameters": count}
    return _print(arguments, _of(ExportedView, task, **written))


def import_policy(arguments: argparse.Namespace) -> int:
    """Write the networks of a Stable-Baselines3 model as weights."""
    imported = sb3_files.import_policy(arguments.model, arguments.vec_normalize)
    load(imported.task).learner.hyperparameters.validate(imported.hyperparameters)
    file = write_policy(arguments.file, imported.policy, {"task": imported.task, "source": arguments.model.name})
    values = flatten(imported.hyperparameters)
    count = sum(tensor.numel() for tensor in imported.policy.values())
    result = ImportedView(file=str(file), task=imported.task, parameters=count, hyperparameters=values)
    if arguments.json:
        return print_json(result)
    out = new_console()
    table = {"file": result.file, "task": result.task, "parameters": count, **values}
    out.print(tables.pairs_table(str(arguments.model), table))
    words = [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in values.items()]
    settings = " ".join(option("--set", word) for word in words)
    command = f"rekindle train {imported.task} ENV {option('--warm-start', str(file))} {settings}"
    out.print(Text(command, "cyan"), soft_wrap=True)
    return 0


def stored_task(arguments: argparse.Namespace) -> Task:
    """Return the task in the state of a checkpoint, without a storage."""
    with existing_store(arguments) as store:
        return task_at(store, arguments.checkpoint, arguments.device)


def _of(view: type[OfTask], task: Task, **values: Any) -> OfTask:
    """Return a view of a checkpoint's task."""
    return view(uid=task.uid, epochs=task.epochs, digest=task.digest, **values)


def _print(arguments: argparse.Namespace, result: View) -> int:
    if arguments.json:
        return print_json(result)
    new_console().print(tables.pairs_table(arguments.checkpoint, result.to_json()))
    return 0
