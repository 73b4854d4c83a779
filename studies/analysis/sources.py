"""Runs to compare, from studies, Stable-Baselines3's evaluations and CSV files.

A source is written ``[LABEL[@ENV]=]WHAT``. WHAT is the name of a study, or a file:

    .npz    evaluations.npz of Stable-Baselines3, one run: the mean over the episodes of its last evaluation
    .csv    one run in each row, with its result in the column "return" or "score" and, optionally, a column "env";
            or progress.csv of Stable-Baselines3, one run: the last "eval/mean_reward", or else "rollout/ep_rew_mean";
            or a file of its Monitor (0.monitor.csv), one run: the mean over its last 100 episodes

A study's name may contain "=": a text that is the name of a study, or ends with one after a "=", names that study.

A confirmed study gives the runs on the fresh seeds of its last complete confirmation; any other, the replicates of its
best configuration and the trials that repeat it.
"""

from __future__ import annotations

import csv
import json
import math
import os
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from ...tasks.algorithms.tabular import Tabular
from ...tasks.checkpoint.array_files import open_npz
from ..engine.confirmation_views import complete_confirmation
from ..engine.ranking import rank
from ..engine.study_views import study_view
from ..engine.views import ConfirmationView, EstimateView
from ..schedulers.confirming import Confirmation, has_own_episodes
from ..shell import command_line
from ..statistics.estimates import FEWEST
from ..study.config import Config
from ..study.environments import is_across
from ..study.objectives import DEFAULT, RETURN, measured, objectives_of
from ..study.repeats import origin

if TYPE_CHECKING:
    from ..storage.rows import Segment
    from ..storage.store import Store

CONFIRMED, SELECTED, FILE = "confirmed", "selected", "file"  # kinds of runs
RESULT = ("return", "score")  # columns of a CSV file
OF_LOGS = ("eval/mean_reward", "rollout/ep_rew_mean")  # columns of Stable-Baselines3's progress.csv
STEPS_OF_LOGS = "time/total_timesteps"
EPISODES = 100  # last ones of a Monitor, as many as Stable-Baselines3 averages
DIGITS = 8  # of a table's digest, where its path is not enough


class BadSource(ValueError):
    """A source that gives no runs to compare."""


@dataclass(frozen=True)
class Runs:
    """Results of one source in one environment.

    Attributes:
        label: label of the side that the runs belong to.
        env: text that names the environment; None if a file does not name it.
        source: study or file.
        origin: CONFIRMED, SELECTED (the replicates by which the best configuration was chosen) or FILE.
        results: result of each run, as measured.
        objective: name and direction of the objective; None for a file.
        epochs: epochs of each run; None for a file.
        env_steps: environment steps of a run in a file that names them.
        returns: whether the file can hold nothing but returns.
        shared_error: standard error of a study's returns over episodes that all of its runs share; None if each has its
            own, or if it is unknown.
    """

    label: str
    env: str | None
    source: str
    origin: str
    results: tuple[float, ...]
    objective: tuple[str, str] | None = None
    epochs: int | None = None
    env_steps: int | None = None
    returns: bool = False
    shared_error: float | None = None


def is_file(text: str, studies: Collection[str] = ()) -> bool:
    """Return whether a source is a file, not a study.

    A study on a recorded table has the table's name, which ends like a file's, unless it is given another.

    Args:
        text: the source.
        studies: names of all studies.
    """
    path = Path(target := _split(text, studies)[2])
    return path.suffix in (".npz", ".csv") and (target not in studies or path.exists())


def read_runs(store: Store | None, texts: Sequence[str]) -> list[Runs]:
    """Return the runs of all sources; only studies need a store.

    Raises:
        BadSource: a source gives no runs, or is named twice for a side.
        UnknownStudy: a study does not exist.
    """
    studies = {row.name for row in store.studies()} if store is not None else set()
    sources = [(_split(text, studies), is_file(text, studies)) for text in texts]
    identities = [_identity(*source) for source in sources]
    for text, identity in zip(texts, identities, strict=True):
        if (count := identities.count(identity)) > 1:
            raise BadSource(f"a run counts once, but {text} is named {count} times; leave one")
    tables: dict[str, str] = {}
    return [runs for parts, file in sources for runs in _read(None if file else store, parts, tables)]


def _split(text: str, studies: Collection[str]) -> tuple[str, str, str]:
    """Return the three parts of a source at its "=".

    They are all that precedes WHAT, "=" or nothing, and WHAT.
    """
    places = [index for index, character in enumerate(text) if character == "="]
    if text in studies or not places:
        return "", "", text
    index = next((index for index in places if text[index + 1 :] in studies), places[-1])
    return text[:index], "=", text[index + 1 :]


def _identity(source: tuple[str, str, str], file: bool) -> tuple[str, str]:
    """Return what identifies the runs of a source and their side."""
    name, _, target = source
    return (name, os.path.realpath(target)) if file else (name or target, target)


def _read(store: Store | None, source: tuple[str, str, str], tables: dict[str, str]) -> Iterator[Runs]:
    """Yield the runs of a source.

    Args:
        store: store of the study; None for a file.
        source: the source, see `_split`.
        tables: names of recorded tables by digest, which grow.
    """
    name, equals, target = source
    label, _, env = name.partition("@")
    if (equals and not label) or not target:
        raise BadSource(
            f"a source is a study or a file, optionally as LABEL=STUDY or LABEL@ENV=FILE, but got {''.join(source)!r}"
        )
    path = Path(target)
    if store is not None:
        yield from _of_study(store, target, label or target, env, tables)
    elif path.suffix == ".npz":
        result, steps = _last_evaluation(path)
        yield Runs(
            label or path.parent.name or target, env or None, target, FILE, (result,), env_steps=steps, returns=True
        )
    elif (header := _header(path)) is not None:
        result, steps = _last_episodes(path)
        env = env or str(header.get("env_id") or "")
        yield Runs(
            label or path.parent.name or target, env or None, target, FILE, (result,), env_steps=steps, returns=True
        )
    else:
        by_env, steps = _rows(path)
        for name, results in by_env.items():
            yield Runs(label or path.stem, name or env or None, target, FILE, results, env_steps=steps)


def _of_study(store: Store, name: str, label: str, env: str, tables: dict[str, str]) -> Iterator[Runs]:
    config = Config.from_json(store.study(name).config, name)
    if config.scheduling.confirms:
        of = Confirmation.of(config).study
        raise BadSource(f"{name} is the confirmation of {of}; compare {of}, which has its fresh seeds")
    objectives = objectives_of(config)
    if len(objectives) > 1:
        raise BadSource(
            f"studies are compared by one objective, but {name} has {', '.join(objectives)}; compare studies with one"
        )
    [objective] = objectives.items()
    if is_across(config):
        yield from _of_environments(store, name, label, config, tables)
        return
    about = (label, env or _environment(config.env, config.task, tables), name)
    if (confirmed := _confirmation(store, name)) is not None:
        confirmation, estimate = confirmed
        results, shared = tuple(estimate.results), _shared_error(*_of_winner(store, confirmation), objective)
        yield Runs(*about, CONFIRMED, results, objective, confirmation.epochs, shared_error=shared)
        return
    ranked = rank(study_view(store, name).trials, objectives)
    if not ranked:
        raise BadSource(f"a comparison needs results, but study {name} has none yet; train it, or leave it out")
    epochs, seeds_of_best = ranked[0].epochs, {trial.number for trial in ranked if origin(trial) == origin(ranked[0])}
    rows = [row for row in store.segments(name) if row.configuration in seeds_of_best and row.epochs == epochs]
    done = [row for row in rows if row.state == "done"]
    results = tuple(measured(config, row) for row in done)
    if len(results) < FEWEST:
        cure = f"`{command_line('confirm', name)}` trains it with fresh ones"
        if config.scheduling.population:  # a member's hyperparameters change, so it cannot be confirmed
            cure = f"make it with --seeds {FEWEST} or more"
        raise BadSource(
            f"an interval needs at least {FEWEST} seeds, but the best configuration of {name} was trained with "
            f"{len(results)}; {cure}"
        )
    yield Runs(*about, SELECTED, results, objective, epochs, shared_error=_shared_error(config, done, objective))


def _of_winner(store: Store, confirmation: ConfirmationView) -> tuple[Config, list[Segment]]:
    """Return the configuration of a confirmation, and the rows of its winner."""
    name = confirmation.confirmation
    rows = [row for row in store.segments(name) if row.configuration == confirmation.winner]
    return Config.from_json(store.study(name).config, name), rows


def _shared_error(config: Config, rows: Sequence[Segment], objective: tuple[str, str]) -> float | None:
    """Return the standard error over episodes that all rows share, or None."""
    errors = [row.eval_error for row in rows if row.eval_error is not None]
    if not errors or objective[0] != RETURN or has_own_episodes(config):
        return None
    return math.sqrt(fmean(error**2 for error in errors))


def _confirmation(store: Store, name: str) -> tuple[ConfirmationView, EstimateView] | None:
    """Return a study's last complete confirmation, and its winner's estimate.

    The winner must stand. It does not without an estimate, or if it has been excluded since.
    """
    confirmation = complete_confirmation(store, name)
    if confirmation is None or (confirmation.since and confirmation.since.excluded):
        return None
    best = confirmation.best
    return None if best is None or best.estimate is None else (confirmation, best.estimate)


def _of_environments(store: Store, name: str, label: str, config: Config, tables: dict[str, str]) -> Iterator[Runs]:
    """Yield the confirmed runs of a study across environments, for each environment."""
    confirmed, [objective] = _confirmation(store, name), objectives_of(config).items()
    if confirmed is None:
        raise BadSource(
            f"a study across environments is compared on fresh seeds in each of them, but {name} has no confirmed "
            f"winner, or has excluded it; `{command_line('confirm', name)}` finds one"
        )
    (confirmation, _), several = confirmed, len(config.environments)
    first = confirmation.race_seeds
    form, rows = _of_winner(store, confirmation)
    for index, env in enumerate(config.environments):
        of_env = [row for row in rows if row.replicate % several == index and row.replicate // several >= first]
        results = tuple(measured(config, row) for row in of_env if row.state == "done")
        environment, shared = _environment(env, config.task, tables), _shared_error(form, of_env, objective)
        yield Runs(label, environment, name, CONFIRMED, results, objective, confirmation.epochs, shared_error=shared)


def _environment(env: Mapping[str, Any], task: str, tables: dict[str, str]) -> str:
    """Return a text that only equal environments share."""
    if not env:
        return task
    if task == Tabular.name:
        return _table(str(env["id"]), str(env["kwargs"]["sha256"]), tables)
    more = {key: value for key, value in env.items() if key != "id" and value}
    return str(env["id"]) + (f" {json.dumps(more, sort_keys=True)}" if more else "")


def _table(path: str, digest: str, tables: dict[str, str]) -> str:
    """Return the name of a recorded table: its path.

    Users repeat it in --scale and in files. The same table in another folder keeps its first name; another table of
    this path adds its digest.
    """
    if digest not in tables:
        tables[digest] = f"{path} {digest[:DIGITS]}" if path in tables.values() else path
    return tables[digest]


def _last_evaluation(path: Path) -> tuple[float, int | None]:
    """Return the mean result of the last evaluation, and its environment steps."""
    try:
        with open_npz(path) as arrays:
            results = np.asarray(arrays["results"], float)
            steps = np.asarray(arrays["timesteps"], float) if "timesteps" in arrays.files else np.empty(0)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
        raise BadSource(
            f'{path} must be an evaluations.npz of Stable-Baselines3, with "results" of each evaluation, but: {error}'
        ) from None
    if results.ndim != 2 or not results.size:
        raise BadSource(f"{path}: results are (evaluations, episodes), at least one, but they are {results.shape}")
    if not np.isfinite(results[-1]).all():
        raise BadSource(f"{path}: the last evaluation has a result that is not finite; leave this run out")
    return float(results[-1].mean()), int(steps[-1]) if len(steps) == len(results) else None


def _header(path: Path) -> Mapping[str, Any] | None:
    """Return the JSON in a Monitor's first line, or None."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            first = file.readline()
        header = json.loads(first[1:]) if first.startswith("#{") else None
    except (OSError, ValueError):
        return None  # which the reader of tables will say
    return header if isinstance(header, dict) else None


def _last_episodes(path: Path) -> tuple[float, int]:
    """Return a Monitor's mean return at the end, and its steps."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        file.readline()
        rows = list(csv.DictReader(file))
    returns, lengths = ([_number(row.get(name)) for row in rows] for name in ("r", "l"))
    if not rows or not all(map(math.isfinite, (*returns, *lengths))):
        raise BadSource(
            f'{path} must be the file of a Monitor of Stable-Baselines3, with numbers "r" and "l" of each episode, at '
            "least one; leave it out, or correct it"
        )
    return float(np.mean(returns[-EPISODES:])), int(sum(lengths))


def _rows(path: Path) -> tuple[Mapping[str, tuple[float, ...]], int | None]:
    """Return a CSV file's results by environment, and its environment steps.

    The environment is "" if the file names none. Only logs have steps.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            names = reader.fieldnames or []
            lines = [(reader.line_num, row) for row in reader]
    except (OSError, ValueError, csv.Error) as error:
        raise BadSource(f"{path} must be a CSV file with a header, but: {error}") from None
    column = next((name for name in (*RESULT, *OF_LOGS) if name in names), None)
    if column is None:
        raise BadSource(f"{path} must have a column return or score, but has {', '.join(names) or 'none'}; rename one")
    if names.count(column) > 1:
        raise BadSource(f"{path} has one result in each row, but {names.count(column)} columns {column}; rename others")
    if {"uid", "epoch"} <= {*names}:
        raise BadSource(
            f"{path} must have a run in each row, but has an epoch in each, like a table of `rekindle export-curves`; "
            "compare the study itself"
        )
    if column in OF_LOGS:
        lines = [(line, row) for line, row in lines if row[column]][-1:]
    steps = _number(lines[-1][1].get(STEPS_OF_LOGS)) if column in OF_LOGS and lines else math.nan
    by_name: dict[str, list[float]] = {}
    for line, row in lines:
        if None in row:  # as 1,000 would be 1
            raise BadSource(
                f"{path}, line {line}: a row has a cell for each column, {', '.join(names)}, but it has more; write "
                "numbers without commas, and texts with commas in quotes"
            )
        value = _number(row[column])
        if not math.isfinite(value):
            raise BadSource(f"{path}, line {line}: {column} is a finite number, but it is {row[column]!r}; correct it")
        by_name.setdefault(row.get("env") or "", []).append(value)
    if not by_name:
        raise BadSource(f"{path} must have at least one result in the column {column}, but has none; leave it out")
    by_env = {env: tuple(values) for env, values in by_name.items()}
    return by_env, int(steps) if math.isfinite(steps) else None


def _number(text: str | None) -> float:
    """Return the number that a cell holds, NaN if it holds none."""
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan


def common_objective(runs: Sequence[Runs]) -> tuple[str, str]:
    """Return the objective that all studies share, and its direction.

    Raises:
        BadSource: studies have different objectives or directions, or another objective than a file.
    """
    objectives = {run.objective: run.source for run in runs if run.objective is not None}
    if len(objectives) > 1:
        text = " and ".join(f"{source} has {name} ({way}d)" for (name, way), source in list(objectives.items())[:2])
        raise BadSource(f"studies are compared by the same objective, but {text}; compare studies that share one")
    objective, direction = next(iter(objectives), next(iter(DEFAULT.items())))
    files = [run.source for run in runs if run.returns]
    if files and RETURN not in objective:  # it is in return_iqm too
        [study] = objectives.values()
        raise BadSource(
            f"{study} has {objective} ({direction}d), but {files[0]} of Stable-Baselines3 has returns; leave it out, "
            "or compare a study that optimizes the return"
        )
    return objective, direction
