"""``rekindle space``, ``import-config`` and ``probe``: hyperparameters that tasks take, and their environments."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from ....spaces.values import REQUIRED
from ....tasks import load
from ....tasks.envs import EnvSpec
from ....tasks.envs.agents.adapter import is_joint
from ....tasks.identity import TaskIdentity
from ....tasks.probing import probe as probed
from ...engine.probes import described, lines_of
from ...engine.tune_options import study_config
from ...engine.views import Env, ProbeView, View
from ...redact import printable
from ...shell import quoted
from ...study.searched import open_space
from ...study.widening import scaling_values, widened
from ..output import tables
from ..output.terminal import new_console, note, print_json
from ..run_files import mlagents, rl_zoo
from ..run_files.reading import read
from ..run_files.writing import to_toml, write
from .options import described_env, parse_env


class ProbedView(View):
    """A probe of an environment."""

    merged = frozenset({"probe"})

    task: Annotated[str, "algorithm"]
    env: Env
    probe: Annotated[ProbeView, "results"]


class HyperparameterView(View):
    """A hyperparameter of a task."""

    name: Annotated[str, "dotted name"]
    searched: Annotated[str | None, "prior of searches"]
    default: Annotated[Any, "default"]
    when: Annotated[Sequence[str], "conditions under which it applies"]
    help: Annotated[str, "explanation"]


class SpaceView(View):
    """Hyperparameters of a task."""

    task: Annotated[str, "algorithm"]
    env: Annotated[str | None, "environment"]
    hyperparameters: Annotated[Sequence[HyperparameterView], "hyperparameters"]


class ImportedConfigView(View):
    """A converted configuration of another tool."""

    config: Annotated[Mapping[str, Any], "run file"]
    without: Annotated[Sequence[str], "settings without a counterpart"]


def space(arguments: argparse.Namespace) -> int:
    """Print the hyperparameters of a task, with ranges and defaults."""
    algorithm = load(arguments.task)
    if arguments.env is None:
        hyperparameters = algorithm.learner.hyperparameters
        searched = hyperparameters.searched().priors()
    else:
        env = EnvSpec.of(parse_env(arguments.env))
        hyperparameters, searched = algorithm.learner.space_in(env), open_space(algorithm, env, {}, {}).priors()
    searched = {name: prior for name, prior in searched.items() if not prior.startswith("fixed(")}
    rows = []
    for row in hyperparameters.rows:
        default = None if row.dimension.default is REQUIRED else row.dimension.default
        only = [str(condition) for condition in row.conditions]
        prior, help_text = searched.get(row.path), row.dimension.help
        rows.append(HyperparameterView(name=row.path, searched=prior, default=default, when=only, help=help_text))
    if arguments.json:
        return print_json(SpaceView(task=arguments.task, env=arguments.env, hyperparameters=rows))
    cells = [row.to_json() | {"when": ", ".join(row.when), "searched": row.searched or ""} for row in rows]
    new_console().print(tables.rows_table(str(arguments.task), cells, ("name", "searched", "default", "when", "help")))
    return 0


def probe(arguments: argparse.Namespace) -> int:
    """Print what random actions and untrained policies find in an environment."""
    env = EnvSpec.of(described_env(arguments, arguments.env))
    task = arguments.task or ("behaviours" if is_joint(env) else "ppo")
    algorithm = load(task)
    identity = TaskIdentity.of(algorithm, env, arguments.seed, {})
    began = time.monotonic()
    results = probed(algorithm, identity, arguments.steps)
    seconds = time.monotonic() - began
    config = study_config(algorithm, env)  # of a study, which searches what the probe calls for
    result = described(results, wider=widened(config, algorithm, results))
    if arguments.json:
        return print_json(ProbedView(task=task, env=identity.env.to_json(), probe=result))
    out = new_console()
    for line in lines_of(result, whole=True):
        note(out, line)
    names = algorithm.learner.open_space(env, {}).flat()
    scaling = {name: value for name, value in scaling_values(config, results).items() if name in names}
    if settings := [f"--set {name}={json.dumps(value)}" for name, value in scaling.items()]:
        note(out, f"for a single training: {' '.join(settings)}; `rekindle tune` tries that by itself")
    test = ", and the test of how a state is restored," if result.restore else ""
    note(out, f"{result.steps:,} steps{test} took {seconds:.1f} s")
    return 0


def import_config(arguments: argparse.Namespace) -> int:
    """Print or write the run file for another tool's configuration."""
    file, env = arguments.file, parse_env(arguments.env or arguments.named_env)
    if rl_zoo.is_of_zoo(whole := read(file)):
        content, without = rl_zoo.convert(file, whole, env, arguments.behavior, arguments.algo)
    else:
        content, without = mlagents.convert(file, whole, env, arguments.behavior)
    if arguments.json:
        return print_json(ImportedConfigView(config=content, without=without))
    text = "".join(f"# no counterpart: {printable(line)}\n" for line in without) + to_toml(content)
    if arguments.output is None:
        print(text, end="")
    else:
        write(arguments.output, text)
        note(new_console(), f"{arguments.output}: rekindle train {quoted(str(arguments.output))}")
    for line in without:
        note(new_console(stderr=True), f"no counterpart: {line}")
    return 0
