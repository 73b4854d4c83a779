"""Results and methods of a study in words, for reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..engine.study_views import infeasible
from ..methods import scheduling
from ..schedulers.confirming import Confirmation, lost_seeds
from ..shell import command_line
from ..study.config import Config
from ..study.environments import is_across
from ..study.number_text import counted, in_digits_alone
from .content import ReportView
from .verdicts import unfinished, verdict

VERSIONS = ("rekindle", "torch", "numpy", "gymnasium", "machine", "device")


def summary(config: Config, report: ReportView) -> list[str]:
    """Return the study's results in sentences, what ended it, and its cost."""
    study, ends = report.study, list[str]()
    if (command := study.held) is not None:
        ends.append(f"The study had the {command.kind} by {command.who}{f': {command.why}' if command.why else ''}.")
    if not report.ranked:
        failed = sum(trial.state == "failed" and not trial.excluded for trial in study.trials)
        all_failed = failed > 0 and failed == _trials(report)
        why = f"all {failed} of its trials failed" if all_failed else "no trial has a result yet"
        return [f"The study has nothing to show: {why}.", *ends]
    if not ends and study.state != "complete":
        ends.append("The study is not complete.")
    return [*_results(config, report), *ends, _cost(report)]


def _results(config: Config, report: ReportView) -> list[str]:
    """Return sentences about the results of a study that has some."""
    study = report.study
    if (confirmation := report.confirmation) is not None:
        further = [unfinished(report.unfinished)] if report.unfinished is not None else []
        return [verdict(confirmation, study.probe), *further]
    if config.scheduling.confirms:
        return [_winner(config, report)]
    if len(study.objectives) > 1:
        return [f"{len(study.front)} of {_trials(report)} trials are on the Pareto front."]
    sentences, best = [_best(report)], report.trials[report.ranked[0]]
    if best.violation:
        sentences.append(f"It is infeasible: {infeasible(study)}.")
    if best.epochs >= study.rungs[-1] and not scheduling(study.scheduler).population:  # else nothing can be confirmed
        sentences.append(
            "The best of many noisy results is partly luck: "
            f"`{command_line('confirm', study.study)}` estimates it on fresh seeds."
        )
    return sentences


def _trials(report: ReportView) -> int:
    """Return the number of trials that nobody excluded."""
    return sum(not trial.excluded for trial in report.study.trials)


def _best(report: ReportView) -> str:
    """Return a sentence about the best trial."""
    study, best = report.study, report.ranked[0]
    seeds = f", the {study.aggregate} of {study.seeds} seeds" if study.seeds > 1 else ", of one seed"
    if means := report.trials[best].over_seeds:
        seeds = f", and {in_digits_alone(means[report.objective])} as the mean over the seeds of its repeats"
    if study.environments:
        seeds = f", the {study.aggregate} over {len(study.environments)} environments, on one scale"
    result = f"{report.objective} {in_digits_alone(report.results[best])}"
    return f"Trial {best} is the best of {_trials(report)}: {result}{seeds}."


def _winner(config: Config, report: ReportView) -> str:
    """Return a sentence about the winner of a confirmation."""
    best, confirmation = report.study.best, Confirmation.of(config)
    if best is None:
        return "No candidate has won yet."
    result = f"{report.objective} {in_digits_alone(report.results[best.number])}"
    if is_across(config):
        result += f", the {config.options['aggregate']} over {len(config.environments)} environments, on one scale,"
    won = f"won the race of {confirmation.candidates}" if confirmation.candidates > 1 else "is the only candidate"
    lost = len(lost_seeds(config, {n: seed.state for n, seed in enumerate(best.seeds or ())}))
    failed = f"; trainings of {counted(lost, 'further seed')} failed" if lost else ""
    seeds = confirmation.seeds - lost
    origin = confirmation.trials[best.number]
    candidate = "the defaults" if origin is None else f"trial {origin} of {confirmation.study}"
    return f"Trial {best.number}, {candidate}, {won}: {result} on {seeds} seeds that took part in no choice{failed}."


def _cost(report: ReportView) -> str:
    """Return a sentence about the study's cost and what promotion saved."""
    study, epochs = report.study, report.epochs
    facts = scheduling(study.scheduler)
    evaluated = f", and evaluated in {counted(study.eval_steps, 'step')}" if study.eval_steps else ""
    cost = f"The {'confirmation' if facts.confirms else 'search'} trained {counted(epochs, 'epoch')}{evaluated}."
    started = sum(1 for trial in study.trials for _ in trial.trainings)
    whole = started * study.rungs[-1]
    if len(study.rungs) == 1 or not facts.promotes or epochs >= whole:
        return cost
    saved = 1 - epochs / whole
    return f"{cost} All {started:,} trainings to the end would have taken {whole:,}: {saved:.0%} were saved."


def checklist(config: Config, report: ReportView, starts: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the completed checklist of Eimer et al. (2023), arXiv:2306.01324."""
    study, confirmation = report.study, report.confirmation
    repeats = sum(trial.repeats is not None for trial in study.trials)
    but = f" but {repeats} that repeat others" if repeats else ""
    seeds = (
        f"{study.seeds} per configuration, from {config.seed}"
        if study.seeds > 1
        else f"{config.seed}, for all trials{but}"
    )
    if study.environments:
        seeds += f", in {len(study.environments)} environments together"
    tested = "none: the study is not confirmed"
    if config.scheduling.confirms:
        this = Confirmation.of(config)
        seeds, tested = f"none: this confirms {this.study}", _tested(this.seeds, this.race_seeds, this.candidates)
    elif confirmation is not None:
        tested = _tested(confirmation.seeds, confirmation.race_seeds, len(confirmation.candidates))
    versions = {name: sorted({str(start[name]) for start in starts if name in start}) for name in VERSIONS}
    rungs = ", ".join(map(str, study.rungs))
    sought = ", ".join(f"{how} {name}" for name, how in study.objectives.items())
    return [
        ("Task", f"{report.title}, version {config.task_version}"),
        ("Objective", sought),
        *([("Constraints", ", ".join(study.constraints))] if study.constraints else []),
        ("Method", f"sampler {config.sampler}, scheduler {config.scheduler}, rungs at {rungs} epochs"),
        ("Budget", f"{config.trials[-1]:,} configurations, {report.epochs:,} epochs trained"),
        ("Seeds of the search", seeds),
        ("Seeds of the test", tested),
        *([("Resumed after a kill", study.exactness)] if study.exactness else []),
        ("Not searched", _pairs(config.fixed) or "the defaults"),
        *((name, ", ".join(values)) for name, values in versions.items() if values),
    ]


def _tested(seeds: int, race_seeds: int, candidates: int) -> str:
    """Return the seeds of a confirmation in words."""
    chosen = f"; {race_seeds} others chose the winner" if candidates > 1 else ""
    return f"{seeds} of each estimate, disjoint from those of the search{chosen}"


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())
