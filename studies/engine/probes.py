"""Probes of environments: who makes them, and what they tell in words.

A probe is a command of a study: first the request; then a mark of each process that begins
it; and last what was found. It is written while the planning lock is held, and once: of two processes that find the
same, the second writes nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..statistics.intervals import FEWEST, mean_interval
from ..storage.commands import PROBE, Command, add, commands
from ..storage.studies import revise
from ..study.number_text import counted, in_digits, in_digits_alone

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ...tasks.task import Task
    from ..storage.store import Store
    from ..study.config import Config
    from .runner import StudyRunner

Json = dict[str, Any]
WHO = "probe"
ATTEMPTS = 2  # of processes that died before they had finished a probe
ASKED, BEGUN, FOUND, LOST = "asked", "begun", "found", "lost"  # keys of the commands' data


def request_probe(store: Store, name: str, config: Config, algorithm: type[Task]) -> None:
    """Ask the workers of a new study to probe its environment.

    Studies without an environment, of several ones, and those that have begun, are left as they are.
    """
    from ...tasks.learner import Learner  # slow to import (torch), as is the module of the probe below

    kind = algorithm.learner
    if not (config.env and issubclass(kind, Learner) and len(config.environments) == 1) or store.totals(name).trials:
        return
    _write(store, name, {ASKED: True}, lambda before: not before)


def probe_if_asked(runner: StudyRunner) -> None:
    """Probe a study's environment, if a command asks for it.

    Whatever goes wrong is what was found: a probe fails no study.
    """
    from ...tasks.probing import probe

    store, name = runner.store, runner.name
    given = [each.data for each in runner.rows.commands if each.kind == PROBE]
    if not given or _is_done(given) or not runner.is_planner():
        return
    begun = sum(BEGUN in data for data in given)
    if begun >= ATTEMPTS:
        data: Json = {LOST: f"{begun} processes that probed it did not end"}
    else:
        _write(store, name, {BEGUN: begun}, lambda before: {BEGUN: begun} not in before)
        try:
            identity = runner.config.identity(runner.algorithm, runner.config.fixed)
            data = {FOUND: probe(runner.algorithm, identity, on_step=runner.raise_if_asked)}
        except Exception as error:  # noqa: BLE001 - an environment may raise anything
            runner.raise_if_asked()
            data = {LOST: f"{type(error).__name__}: {error}"}
    _write(store, name, data, lambda before: not _is_done(before))
    runner.rows.refresh()


def _is_done(given: Iterable[Mapping[str, Any]]) -> bool:
    return any(FOUND in data or LOST in data for data in given)


def _write(store: Store, name: str, data: Mapping[str, Any], wanted: Callable[[list[Json]], bool]) -> None:
    """Write a command about the probe, if it is still wanted."""

    def work(connection: Connection) -> None:
        revise(connection, name)
        if wanted([each.data for each in commands(connection, name) if each.kind == PROBE]):
            add(connection, name, PROBE, data, WHO, "")

    store.database.write(work)


def probe_json(given: Sequence[Command]) -> Json | None:
    """Return what a study's probe found, with its baselines and in words.

    The result is None before that, and without a probe.
    """
    for each in given:
        if each.kind == PROBE and FOUND in each.data:
            return described(each.data[FOUND])
        if each.kind == PROBE and LOST in each.data:
            return {"baselines": {}, "text": f"the environment could not be probed: {each.data[LOST]}", "warnings": []}
    return None


def described(found: Mapping[str, Any]) -> Json:
    """Return what a probe found, with its baselines and in words."""
    baselines = {}
    untrained = [statistics.fmean(own) for own in found["untrained"] if own]
    for name, runs in (("random", found["random"]), ("untrained", untrained)):
        if runs:
            ends = mean_interval(runs, repetitions=400) if len(runs) >= FEWEST else (statistics.fmean(runs), None, None)
            baselines[name] = {**dict(zip(("value", "low", "high"), ends, strict=True)), "runs": len(runs)}
    return {**found, "baselines": baselines, "text": _text(found, baselines), "warnings": _warnings(found)}


def baselines_text(baselines: Mapping[str, Json]) -> str:
    """Return the baselines in words; "" for none."""
    parts = []
    for name, what, run in (("random", "random actions", "episode"), ("untrained", "untrained policies", "policy")):
        if name in baselines:
            value, *ends = in_digits(baselines[name][end] for end in ("value", "low", "high"))
            interval = f"{ends[0]} to {ends[1]}, " if baselines[name]["low"] is not None else ""
            runs = baselines[name]["runs"]
            parts.append(f"{what} return {value} ({interval}{runs} {run if runs == 1 else _plural(run)})")
    return ", ".join(parts)


def _plural(word: str) -> str:
    return f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"


def _text(found: Mapping[str, Any], baselines: Mapping[str, Json]) -> str:
    """Return a paragraph about the environment."""
    sentences = [baselines_text(baselines).capitalize()]
    if lengths := found["lengths"]:
        ends = found["terminated"] / len(lengths)
        span = f"{min(lengths)} to {max(lengths)}" if min(lengths) < max(lengths) else f"{lengths[0]}"
        how = {0.0: "all are truncated", 1.0: "all terminate"}.get(ends, f"{ends:.0%} of them terminate")
        sentences.append(f"Episodes take {span} steps, and {how}")
    if found["zero_rewards"] is not None and (rewards := found["rewards"]) is not None:
        spread = "" if rewards["high"] is None else f"; their standard deviation is {in_digits_alone(rewards['high'])}"
        sentences.append(f"{found['zero_rewards']:.0%} of rewards are 0{spread}")
    if (seen := found["observations"]) is not None and None not in seen.values():
        low, high = in_digits([seen["low"], seen["high"]])
        drift = f", and they drift by {seen['drift']:.1f} of them" if seen["drift"] > 1 else ""
        sentences.append(f"Observations have standard deviations of {low} to {high}{drift}")
    if (restore := found["restore"]) is not None:
        exactly = "exactly" if restore["exact"] else "not exactly"
        sentences.append(f"Its state is restored {exactly} ({restore['mode']}: {restore['reason']})")
    if has := [name for name in ("masks", "goals") if found[name]]:
        sentences.append(f"Observations have {' and '.join(has)}")
    return "".join(f"{sentence}. " for sentence in sentences if sentence).strip()


def _warnings(found: Mapping[str, Any]) -> list[str]:
    """Return what is unusual about the environment, a line each."""
    told = []
    if found["slow"] is not None:
        told.append(f"a step takes {found['slow']:.3g} s, which is too slow for a probe; use many --workers")
    if (count := len(found["failures"])) > 0:
        last = found["failures"][-1].splitlines()[0]
        told.append(f"{counted(count, 'episode')} failed: {last}; trials that meet this are retried, and may fail")
    if not found["lengths"] and found["slow"] is None:
        told.append(
            f"no episode ended within {found['steps']} steps; without a time limit (max_episode_steps), evaluations "
            "take very long"
        )
    if found["zero_rewards"] == 1:
        told.append("no reward was other than 0; if there is none at all, nothing can be learned from it")
    seen = found["observations"]
    if seen is not None and seen["high"] == 0:
        told.append("all observations are equal, so that a policy cannot react to anything")
    return told


def lines_of(probe: Mapping[str, Any] | None, whole: bool = False) -> list[str]:
    """Return the baselines or (whole) all of the text, and the warnings."""
    if probe is None:
        return []
    text = probe["text"] if whole else baselines_text(probe["baselines"])
    return [*([text] if text else []), *probe["warnings"]]
