"""Results of a study that its workers have left, and their printing."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape

from ...analysis.cures import Finding, less_misled
from ...analysis.health import diagnose
from ...analysis.unlearned import AFTER_TUNE
from ...engine.confirmation_views import confirmation_view
from ...engine.confirmations import check_confirmable
from ...engine.probes import lines_of
from ...engine.study_views import study_view
from ...engine.views import ConfirmationView, ConfirmedStudyView, StudyView
from ...errors import BadConfig
from ...failures import one_line
from ...redact import printable
from ...report.answer import ANSWERED, answer
from ...report.verdicts import verdict
from ...shell import begin_again, command_line
from ...storage.store import Store
from ...study.config import SIZED, Config
from ...study.number_text import counted
from ..output import tables
from ..output.terminal import new_console, note, print_json
from . import options
from .storage import hides_password, repeated

LONGEST_STEM = 200  # bytes; file systems allow 255, with all that is added to it


class Outcome(NamedTuple):
    """Results of a study, and of its confirmation."""

    study: StudyView
    confirmation: ConfirmationView | None
    is_confirmed: bool  # as --confirm asks
    config: Config  # which its probe may have changed
    findings: Sequence[Finding]
    answer: str | None


def outcome_of(arguments: argparse.Namespace, store: Store, name: str, confirmation: str | None) -> Outcome:
    """Return a study's results, and write its agent.

    Only a confirmed study that was given time alone has one.
    """
    study = study_view(store, name)
    config = Config.from_json(store.study(name).config, name)
    result = confirmation_view(store, name, study.trials, confirmation)
    is_confirmed = confirmation is not None and is_estimated(result)
    if arguments.json:
        return Outcome(study, result, is_confirmed, config, [], None)
    findings, agent = diagnose(store, name).findings, None
    if SIZED in config.options and result is not None and study.best is not None:
        agent = answer(store, name, agent_file(name))  # written even if nobody reads
    return Outcome(study, result, is_confirmed, config, findings, agent)


def agent_file(study: str) -> Path:
    """Return the file of a study's agent in the working directory."""
    stem, whole = study.replace("/", "-"), study.encode(errors="surrogateescape")
    if len(whole) > LONGEST_STEM:
        start = stem.encode(errors="surrogateescape")[:LONGEST_STEM].decode(errors="ignore")
        stem = f"{start}-{hashlib.sha256(whole).hexdigest()[:8]}"
    return Path(f"{stem}.safetensors")


def is_estimated(result: ConfirmationView | None) -> bool:
    """Return whether the winner has an estimate.

    It has none if too many trainings failed.
    """
    return result is not None and result.winner is not None and result.candidates[result.winner].estimate is not None


def show(arguments: argparse.Namespace, outcome: Outcome, store: Store, errors: Console) -> int:
    """Print a study's results; return the exit status."""
    study, confirmation = outcome.study, outcome.confirmation
    tables.print_labels(errors, study)
    all_failed = study.best is None or _all_failed(study)
    unconfirmed = arguments.confirm is not None and study.state == "complete" and not outcome.is_confirmed
    status = options.FAILED if all_failed or unconfirmed else 0
    if arguments.json:
        if all_failed:
            note(errors, _without_results(study))
        elif confirmation is not None and unconfirmed:
            note(errors, verdict(confirmation))
        return print_json(ConfirmedStudyView(**vars(study), confirmation=confirmation), status)
    _print_study(outcome, store)
    if outcome.answer is not None:
        note(new_console(), outcome.answer)
    return status


def _all_failed(study: StudyView) -> bool:
    """Return whether all trials failed, with branches of a population."""
    return study.counts["failed"] == max(study.trials_total, sum(study.counts.values()))


def _without_results(study: StudyView) -> str:
    """Return why a study has nothing to show."""
    failed = [trial for trial in study.trials if trial.state == "failed"]
    if not failed:
        return f"study {study.study}: no trial has a result"
    share = f"{len(failed)} of {counted(len(study.trials), 'trial')} failed"
    return f"study {study.study}: {share}; trial {failed[0].number}: {one_line(failed[0].error or '')}"


def _print_study(outcome: Outcome, store: Store) -> None:
    study, confirmation, config, findings = outcome.study, outcome.confirmation, outcome.config, outcome.findings
    out = new_console()
    counts = ", ".join(f"{count} {state}" for state, count in study.counts.items() if count)
    storage, name = f"--storage {repeated(store)}", study.study
    if study.best is None:
        _print_remarks(out, study, findings)
        reasons = f"`{command_line('trials', name, storage)}` says why"
        advice = begin_again(name, storage) if _all_failed(study) else reasons
        note(out, f"no trial has a result: {counts or 'none is begun'}; {advice}")
        return
    flat = config.searched.flat()
    tables.print_best(out, study, {name: flat[name].default for name in config.open})
    is_answered = outcome.answer is not None  # at the end, in a paragraph
    if confirmation is not None and is_answered:
        tables.print_candidates(out, confirmation)
    elif confirmation is not None:
        tables.print_confirmation(out, confirmation, study.probe)
    spared = f"; racing spared {study.spared} of {study.trials_total * study.seeds} trainings"
    total = counted(sum(study.counts.values()), "trial")
    if config.scheduling.population:
        total += f" of {study.trials_total} members"
    note(out, f"{total}: {counts}{spared if study.spared else ''}\n")
    for rung in study.agreement:
        if rung.misleads:
            note(out, tables.misleading(rung, less_misled(config, rung.epochs, rung.next)))
    if is_answered:
        _print_findings(out, [finding for finding in findings if finding.check not in ANSWERED])
    else:
        _print_remarks(out, study, findings)
    best = "the first of these trials" if len(study.objectives) > 1 else "the best trial"
    proposed = {f"rekindle show {study.best.uid[:8]} {storage}": f"{best}: all hyperparameters, and the history"}
    if confirmation is None and _can_be_confirmed(study, config):
        proposed[command_line("confirm", name, storage)] = "the best trials and the defaults, estimated on fresh seeds"
    proposed[command_line("trials", name, storage)] = "all trials, rung by rung"
    proposed[command_line("report", name, storage)] = "a page with curves and what mattered"
    for command, text in proposed.items():
        out.print(f"[bright_black]# {text}[/]\n[cyan]{escape(printable(command))}[/]", soft_wrap=True)
    if hides_password(store):
        note(out, "# these take the password from PGPASSWORD or ~/.pgpass")


def _can_be_confirmed(study: StudyView, config: Config) -> bool:
    try:
        check_confirmable(config, study.study)
    except BadConfig:
        return False
    return study.best is not None and study.best.epochs == study.rungs[-1]


def _print_remarks(out: Console, study: StudyView, findings: Sequence[Finding]) -> None:
    """Print what a study's probe tells, and the defects that concern everybody."""
    for line in lines_of(study.probe, objectives=study.objectives):
        note(out, line)
    _print_findings(out, findings)


def _print_findings(out: Console, findings: Sequence[Finding]) -> None:
    for finding in findings:
        if finding.check in AFTER_TUNE:
            tables.print_finding(out, finding)
