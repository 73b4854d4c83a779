"""Replays of a study's decisions from its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rekindle.studies.engine.runner import StudyRunner
from rekindle.studies.schedulers.registry import plan, remembered
from rekindle.studies.storage.commands import Command
from rekindle.studies.storage.store import Store
from rekindle.studies.study.config import Config


def assert_follows_from_rows(store: Store) -> None:
    """Suggest all trials again, each bracket from the rows and commands known at its time, and compare."""
    runner = StudyRunner(store, "s")
    config, rows = runner.config, runner.rows
    by_bracket: dict[int, list[Any]] = {}
    for trial in rows.trials.values():
        by_bracket.setdefault(trial.attrs["bracket"], []).append(trial)
    for bracket, trials in by_bracket.items():
        first, known = trials[0].number, trials[0].attrs.get("commands", 0)
        before = {n: forget_later(trial, known) for n, trial in rows.trials.items() if n < first}
        segments = [row for key, row in rows.segments.items() if key[0] in before]
        then = config_then(config, first, rows.commands[:known])
        segments = [row for row in segments if row.rung < len(then.rungs)]
        wanted = plan(then, before.values(), segments)
        assert (wanted.bracket, list(wanted.ask or ())[: len(trials)]) == (bracket, [trial.number for trial in trials])
        made = retold(store, then, before, segments, known, wanted)
        assert [(again.number, again.params, again.attrs) for again in made] == [
            (trial.number, trial.params, {key: value for key, value in trial.attrs.items() if key != "excluded"})
            for trial in trials
        ]


def forget_later(trial: Any, known: int) -> Any:
    late = trial.attrs.get("excluded", -1) >= known
    return replace(trial, attrs={key: value for key, value in trial.attrs.items() if not late or key != "excluded"})


def config_then(config: Config, first: int, given: Sequence[Command]) -> Config:
    """Return the configuration at the time when a bracket was suggested, after some commands."""
    longer = [command.data["epochs"] for command in given if "epochs" in command.data]
    spaces = [change for change in config.options.get("spaces", ()) if change[0] <= first]
    later = {name: value for name, value in (("longer", longer), ("spaces", spaces)) if value}
    others = {name: value for name, value in config.options.items() if name not in ("longer", "spaces")}
    return replace(config, options={**others, **later})


def retold(
    store: Store, config: Config, trials: Mapping[int, Any], segments: Any, known: int, wanted: Any
) -> list[Any]:
    """Return the trials that a runner suggests if it knows only these rows and the first commands."""
    runner = StudyRunner(store, "s")
    runner.rows.config = config
    runner.rows.trials, runner.rows.commands = dict(trials), runner.rows.commands[:known]
    runner.rows.segments = {(row.number, row.rung): row for row in remembered(trials.values(), segments)[1]}
    return runner._new_trials(wanted)
