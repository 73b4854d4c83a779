"""Probes of environments: who makes them, and what they tell in words.

A probe is a command of a study: first the request; then a mark of each process that begins it, and of its end if that
was asked for or the process hung; and last what was found, with the hyperparameters that the study searches because of
it. It is written while the planning lock is held, before the first trial, and once: of two processes that find the
same, the second writes nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from ...tasks.errors import Stopped, class_and_text
from ..errors import CommandRefused
from ..failures import HUNG, KILLED, RETRY_RULES
from ..statistics.estimates import FEWEST
from ..storage.commands import (
    ASKED,
    BEGUN,
    ENDED,
    FOUND,
    LOST,
    PROBE,
    PROCESS,
    STOP,
    Command,
    add,
    awaits_probe,
    commands,
    hold,
)
from ..storage.locks.owner import Owner
from ..storage.studies import change_config, revise
from ..study.config import EVAL_STEPS
from ..study.number_text import counted, in_digits, in_digits_alone, share
from ..study.objectives import RETURN
from .evaluating import eval_steps_of
from .views import BaselineView, FailedProbeView, MomentsView, ProbeView, RestoreView

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ...tasks.envs import EnvSpec
    from ...tasks.task import Task
    from ..storage.store import Store
    from ..study.config import Config
    from .runner import StudyRunner

Json = dict[str, Any]
WHO = "probe"
GOES_ON = 'to end such episodes and go on, write {"id": ..., "on_error": "restart"}'
UNLEARNED = {"random": "random actions", "untrained": "untrained policies"}  # by name of their baseline
STUCK = 5  # times that policies play longer than the longest episode of random actions that ended
BASELINES, WIDER = "baselines", "wider"  # keys beside FOUND; the last: priors that the search adds or changes
_AT_WORK: set[tuple[str, str]] = set()  # studies that a thread of this process is probing, by URL and name


def request_probe(store: Store, name: str, config: Config, algorithm: type[Task]) -> None:
    """Ask the workers of a new study to probe its environment.

    Studies without an environment, of several ones, and those that have begun, are left as they are.
    """
    from ...tasks.learner import Learner  # slow to import (torch), as is the module of the probe below

    learner = algorithm.learner
    if not (config.env and issubclass(learner, Learner) and len(config.environments) == 1) or store.totals(name).trials:
        return
    _write(store, name, _Outcome({ASKED: True}), lambda before: not any(row.kind == PROBE for row in before))


def probe_if_asked(runner: StudyRunner) -> None:
    """Probe a study's environment, if a command asks for it.

    Whatever goes wrong is what was found: a probe fails no study.
    """
    study = runner.store.url, runner.name
    if not awaits_probe(runner.rows.commands) or study in _AT_WORK or not runner.is_planner():
        return
    _AT_WORK.add(study)
    try:
        _probe(runner)
    finally:
        _AT_WORK.discard(study)


class _Outcome(NamedTuple):
    """Outcome of a step of a probe.

    Attributes:
        data: data of its command.
        refusal: reason why the study is stopped, or None.
        opening: options of the first trials.
    """

    data: Mapping[str, Any]
    refusal: str | None = None
    opening: Mapping[str, Any] = MappingProxyType({})


def _probe(runner: StudyRunner) -> None:
    """Probe an environment, unless earlier attempts show that it cannot be."""
    marks = [command.data for command in runner.rows.commands if command.kind == PROBE]
    reason = _given_up(marks)
    outcome = _attempt(runner, sum(BEGUN in mark for mark in marks)) if reason is None else _Outcome({LOST: reason})
    _write(runner.store, runner.name, outcome, awaits_probe)
    runner.rows.refresh()


def _given_up(marks: Sequence[Mapping[str, Any]]) -> str | None:
    """Return why there is no further attempt, or None."""
    begun, ended, hung = ([mark[key] for mark in marks if key in mark] for key in (BEGUN, ENDED, HUNG))
    if len(hung) >= (RETRY_RULES[HUNG].times or 0):
        return str(hung[-1])
    if (killed := len(begun) - len(ended)) > (RETRY_RULES[KILLED].times or 0):
        return f"{killed} processes that probed it were killed"
    return None


def _attempt(runner: StudyRunner, number: int) -> _Outcome:
    """Probe the environment between marks that this attempt begins and ends."""
    mark = _Outcome({BEGUN: number, PROCESS: str(Owner.current())})
    _write(runner.store, runner.name, mark, lambda before: all(row.data.get(BEGUN) != number for row in before))
    try:
        return _results(runner)
    except (Stopped, KeyboardInterrupt):
        _write(runner.store, runner.name, _Outcome({ENDED: number}), awaits_probe)
        raise
    except Exception as error:  # noqa: BLE001 - an environment may raise anything
        return _Outcome({LOST: class_and_text(error)})


def _results(runner: StudyRunner) -> _Outcome:
    """Return the results of a probe, and what follows from them."""
    from ...tasks import load
    from ...tasks.probing import probe
    from ..study.widening import widened  # imports NumPy

    config, identity = runner.config, runner.config.identity(runner.algorithm, runner.config.fixed)
    results = probe(load(identity.algorithm), identity, None, runner.raise_if_asked, runner.first_identities())
    data: Json = {FOUND: results, BASELINES: {name: view.to_json() for name, view in _baselines(results).items()}}
    if wider := widened(config, runner.algorithm, results):
        data[WIDER] = wider
    opening = _opening(replace(config, space={**config.space, **wider}), runner.algorithm, results)
    return _Outcome(data, endless(identity.env, results), opening)


def _opening(config: Config, algorithm: type[Task], results: Mapping[str, Any]) -> dict[str, Any]:
    """Return options for the first trials that a probe chooses."""
    from ..study.portfolio import scaling_option
    from ..study.widening import scaling_values

    opening = scaling_option(config, algorithm, scaling_values(config, results))
    if opening and EVAL_STEPS in config.options:
        opening[EVAL_STEPS] = eval_steps_of(replace(config, options={**config.options, **opening}), algorithm)
    return opening


def endless(env: EnvSpec, results: Mapping[str, Any]) -> str | None:
    """Return why evaluations would hardly end, with the cure, or None."""
    from ...tasks.envs import time_limit  # imports gymnasium

    if results["lengths"] or results["failures"] or results["slow"] is not None or time_limit(env) is not None:
        return None
    within = _longest(results["steps"], results.get("unfinished", {}))
    return (
        f"an evaluation plays whole episodes, but none of {env.id} ended within {within:,} steps, and it "
        'has no time limit; give it one, such as {"id": ..., "max_episode_steps": 1000}'
    )


def _longest(steps: int, unfinished: Mapping[str, int]) -> int:
    """Return the steps of the longest episode, if none ended.

    Earlier versions did not store it. They played one for half of all steps.
    """
    return max(unfinished.values(), default=steps // 2)


def _write(store: Store, name: str, outcome: _Outcome, wanted: Callable[[list[Command]], bool]) -> None:
    """Write a command about the probe, if it is still wanted."""
    data, refusal, opening = outcome

    def work(connection: Connection) -> None:
        revise(connection, name)
        if wanted(commands(connection, name)):
            add(connection, name, PROBE, data, WHO, "")
            if (priors := data.get(WIDER, {})) or opening:
                change_config(connection, name, partial(_with_findings, priors=priors, opening=opening))
            if refusal is not None:
                with suppress(CommandRefused):  # it is stopped already
                    hold(connection, name, STOP, WHO, refusal)

    store.database.write(work)


def _with_findings(config: Mapping[str, Any], priors: Mapping[str, Any], opening: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored configuration with what a probe decides."""
    return {**config, "space": {**config["space"], **priors}, "options": {**config["options"], **opening}}


def probe_view(steering: Sequence[Command]) -> ProbeView | FailedProbeView | None:
    """Return the results of a study's probe, if there are any."""
    for command in steering:
        if command.kind == PROBE and FOUND in command.data:
            return described(command.data[FOUND], command.data.get(BASELINES), command.data.get(WIDER, {}))
        if command.kind == PROBE and LOST in command.data:
            text = f"the environment could not be probed: {command.data[LOST]}"
            return FailedProbeView(baselines={}, text=text, warnings=[])
    return None


def described(
    results: Mapping[str, Any], stored: Mapping[str, Any] | None = None, wider: Collection[str] = ()
) -> ProbeView:
    """Return the results of `tasks.probing.probe`, with baselines and in words.

    Args:
        results: results of the probe.
        stored: JSON of the baselines, by name; None if they were not stored with the results.
        wider: hyperparameters that a study searches because of them.
    """
    parts = {"rewards": MomentsView, "observations": MomentsView, "restore": RestoreView}
    nested = {name: view(**results[name]) for name, view in parts.items() if results[name] is not None}
    probe = ProbeView(**{**results, **nested}, baselines={}, text="", warnings=[])
    baselines = _baselines(results) if stored is None else {name: BaselineView(**row) for name, row in stored.items()}
    return probe.replace(baselines=baselines, text=_text(probe, baselines), warnings=_warnings(probe, wider))


def _baselines(results: Mapping[str, Any]) -> dict[str, BaselineView]:
    """Return means over episodes, without intervals where all are the same one."""
    from ..statistics.intervals import mean_interval  # slow to import (NumPy)

    baselines, policies = {}, results["untrained"]
    for name, runs in (("random", results["random"]), ("untrained", [*chain.from_iterable(policies)])):
        if runs:
            value, low, high = statistics.fmean(runs), None, None
            if len(runs) >= FEWEST and (name == "random" or max(map(len, policies)) > 1):
                value, low, high = mean_interval(runs, repetitions=400)
            baselines[name] = BaselineView(value=value, low=low, high=high, runs=len(runs))
    return baselines


def baselines_text(baselines: Mapping[str, BaselineView]) -> str:
    """Return the baselines in words; "" for none."""
    parts = []
    for name, policy in UNLEARNED.items():
        if name in baselines:
            baseline = baselines[name]
            value, *ends = in_digits((baseline.value, baseline.low, baseline.high))
            interval = f"{ends[0]} to {ends[1]}, " if baseline.low is not None else ""
            parts.append(f"{policy} return {value} ({interval}{counted(baseline.runs, 'episode')})")
    return ", ".join(parts)


def _text(probe: ProbeView, baselines: Mapping[str, BaselineView]) -> str:
    """Return a paragraph about the environment."""
    sentences = [baselines_text(baselines).capitalize()]
    if lengths := probe.lengths:
        ends = probe.terminated / len(lengths)
        span = f"{min(lengths):,} to {max(lengths):,}" if min(lengths) < max(lengths) else f"{lengths[0]:,}"
        how = {0.0: "all are truncated", 1.0: "all terminate"}.get(ends, f"{share(ends)} of them terminate")
        sentences.append(f"Episodes take {span} steps, and {how}")
    if probe.zero_rewards is not None and (rewards := probe.rewards) is not None:
        spread = "" if rewards.high is None else f"; their standard deviation is {in_digits_alone(rewards.high)}"
        sentences.append(f"{share(probe.zero_rewards)} of rewards are 0{spread}".capitalize())
    if probe.zero_sum:
        sentences.append("The agents' rewards add up to 0 in every step")
    scale = probe.observations
    if scale is not None and scale.low is not None and scale.high is not None and scale.drift is not None:
        low, high = map(in_digits_alone, (scale.low, scale.high))  # together, sizes far apart take many digits
        drift = f", and they drift by {scale.drift:.1f} of them" if scale.drift > 1 else ""
        sentences.append(f"Observations have standard deviations of {low} to {high}{drift}")
    if (restore := probe.restore) is not None:
        exactly = "exactly" if restore.exact else "not exactly"
        sentences.append(f"Its state is restored {exactly} ({restore.mode}: {restore.reason})")
    if has := [name for name, present in (("masks", probe.masks), ("goals", probe.goals)) if present]:
        hint = "; off-policy algorithms can learn from those that were achieved (--set replay.relabel=future)"
        sentences.append(f"Observations have {' and '.join(has)}{hint if probe.goals else ''}")
    return "".join(f"{sentence}. " for sentence in sentences if sentence).strip()


def _warnings(probe: ProbeView, wider: Collection[str]) -> list[str]:
    """Return what is unusual about the environment, a line each.

    Args:
        probe: results of the probe.
        wider: hyperparameters that a study searches because of them.
    """
    of_environment = chain(_code_warnings(probe), _length_warnings(probe), _signal_warnings(probe))
    return [*of_environment, *_pixel_warnings(probe, wider), *_search_warnings(probe, wider)]


def _code_warnings(probe: ProbeView) -> Iterator[str]:
    """Warn of slow steps and of errors."""
    if probe.slow is not None:
        yield (
            f"a step takes {probe.slow:.3g} s, so the probe ended early, and no study scales or explores because of "
            "it; more cores or machines train faster (rekindle worker)"
        )
    if (count := len(probe.failures)) > 0:
        last = probe.failures[-1].splitlines()[0]
        yield f"{counted(count, 'episode')} failed: {last}; a trial that meets this again and again fails; {GOES_ON}"
    if probe.raised:
        errors = f"{counted(probe.raised, 'episode')} of {len(probe.lengths)} ended by an error (on_error)"
        yield f"{errors}; a trial with too many fails"


def _length_warnings(probe: ProbeView) -> Iterator[str]:
    """Warn of episodes that do not end."""
    if not probe.lengths and probe.slow is None:
        within = _longest(probe.steps, probe.unfinished)
        yield (
            f"no episode ended within {within:,} steps; without a time limit (max_episode_steps), evaluations "
            "take very long"
        )
    policies = probe.unfinished.get("untrained", 0)
    if probe.lengths and probe.untrained and not any(probe.untrained) and policies > STUCK * max(probe.lengths):
        yield (
            f"random actions have ended episodes within {max(probe.lengths):,} steps, but untrained policies none "
            f"within {policies:,}: they may get stuck, as by actions without effect; unless it has a time limit "
            "(max_episode_steps), evaluations take very long"
        )


def _signal_warnings(probe: ProbeView) -> Iterator[str]:
    """Warn of rewards and observations that tell nothing."""
    if probe.zero_rewards == 1:
        yield "no reward was other than 0; if there is none at all, nothing can be learned from it"
    if probe.observations is not None and probe.observations.high == 0:
        yield "all observations are equal, so that a policy cannot react to anything"


def _pixel_warnings(probe: ProbeView, wider: Collection[str]) -> Iterator[str]:
    """Warn of images with small numbers."""
    from ..study.widening import is_dark  # imports NumPy

    if not is_dark(probe.largest_pixel):
        return
    start = f"no number of an image was above {probe.largest_pixel}, of 255"
    if scaled := _ending(wider, "model.largest_pixel"):
        yield f"{start}, so that many trials scale them ({scaled})"
    else:
        yield f"{start}; if that is so of all, --set model.largest_pixel={probe.largest_pixel} scales them"


def _search_warnings(probe: ProbeView, wider: Collection[str]) -> Iterator[str]:
    """Tell what a study searches because of rewards and observations."""
    if curious := _ending(wider, "rnd.use"):
        yield (
            "random actions hardly ever earn another reward than usual, so one trial in four explores by curiosity "
            f"({curious})"
        )
    if normalized := _ending(wider, "normalize_obs"):
        yield f"observations are far from 1, so that many trials normalize them ({normalized})"
    if scaled := _ending(wider, "scale_reward"):
        yield f"rewards are far from 1, so that many trials scale them ({scaled})"
    if further := _ending([name for name in wider if not name.endswith("rnd.gamma")], "gamma"):
        yield f"episodes take up to {max(probe.lengths):,} steps, so {further} may be nearer to 1"


def _ending(names: Iterable[str], end: str) -> str:
    """Return the names with this end, as a list in words."""
    return ", ".join(name for name in names if name.endswith(end))


def lines_of(
    probe: ProbeView | FailedProbeView | None, whole: bool = False, objectives: Iterable[str] = (RETURN,)
) -> list[str]:
    """Return the baselines or (whole) all of the text, and the warnings.

    The baselines are returns, which compare with no other objective.
    """
    if probe is None:
        return []
    text = probe.text if whole else baselines_text(probe.baselines) if RETURN in objectives else ""
    compared = [text if whole else f"for comparison: {text}"] if text else []
    return [*compared, *(f"about the environment: {line}" for line in probe.warnings)]
