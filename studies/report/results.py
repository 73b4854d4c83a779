"""Parts of a report about the reliability of results, in tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..engine.views import ConfirmationView
from ..statistics.aggregates import AGGREGATES
from ..statistics.estimates import FEWEST
from ..statistics.intervals import interval, too_narrow
from ..study.number_text import counted, in_digits
from . import figures
from .content import ReportView
from .drawing import escape
from .markup import figure, part, table
from .verdicts import failures_of, interval_texts

MOST_SAMPLES = 4  # configurations whose distributions are report


def confirmation_part(report: ReportView) -> str:
    confirmation = report.confirmation
    if confirmation is None:
        return ""
    candidates = confirmation.candidates
    claims = in_digits(candidate.claim for candidate in candidates)
    races = in_digits(candidate.race.mean for candidate in candidates)
    failures = any(map(failures_of, candidates))
    estimates = interval_texts(candidate.estimate for candidate in candidates)
    rows = []
    for index, (candidate, (value, low, high)) in enumerate(zip(candidates, estimates, strict=True)):
        name = escape(candidate.description)
        mark = f"<b>{name}</b>, the winner" if index == confirmation.winner else name
        raced = claims[index], races[index], str(candidate.race.seeds)
        estimated = f"{low} to {high}" if value else "", str(candidate.estimate.seeds) if candidate.estimate else ""
        rows.append((mark, *raced, value, *estimated, *[str(failures_of(candidate))] * failures))
    heads = ["candidate", "in the search", "in the race", "seeds", "on fresh seeds", "95% interval", "seeds"]
    heads += ["failed"] * failures
    objective = confirmation.objective
    if confirmation.across:
        objective = f"The {confirmation.across} over environments of {objective} on one scale,"
    source = f"on seeds that the search has not used, in {confirmation.confirmation}"
    text = f"{objective} after {counted(confirmation.epochs, 'epoch')}, {source}."
    rows_shown = table(heads, rows, "-nnnnnn" + "n" * failures)
    return part("Confirmation", text, rows_shown, _by_environment(confirmation))


def _by_environment(confirmation: ConfirmationView) -> str:
    """Return a table of the candidates' estimates in each environment, if several."""
    estimated = [(candidate, candidate.environments) for candidate in confirmation.candidates if candidate.environments]
    if not estimated:
        return ""
    rows = []
    for env in estimated[0][1]:
        cells = (
            f"{value} <span class='soft'>({low} to {high})</span>" if value else ""
            for value, low, high in interval_texts(environments[env] for _, environments in estimated)
        )
        rows.append((escape(env), *cells))
    text = f"{confirmation.objective} in each environment, as measured, with 95% intervals:"
    return f"<p class='soft'>{escape(text)}</p>" + table(
        ("environment", *(candidate.name for candidate, _ in estimated)), rows, "-" + "n" * len(estimated)
    )


def health(report: ReportView) -> str:
    """Return the defects that health checks found, with cures."""
    if not report.ranked:
        return ""
    rows = [(escape(finding.check), escape(finding.text), escape(finding.cure)) for finding in report.findings]
    content = table(("check", "finding", "cure"), rows) if rows else "<p>No defects were found.</p>"
    return part("Health checks", "", content)


def samples_of(report: ReportView) -> list[tuple[str, Sequence[float]]]:
    """Return names and results over seeds of the best configurations.

    The results come from the confirmation, or else from the replicates at each configuration's last rung. Of a
    confirmation itself, they are those of the estimates.
    """
    confirmation, study = report.confirmation, report.study
    if report.fresh is not None:
        return [(f"trial {n}", report.fresh[n]) for n in report.ranked if len(report.fresh.get(n, ())) >= FEWEST]
    if confirmation is not None:
        candidates = confirmation.candidates
        order = [i for i in (confirmation.winner, confirmation.runner_up) if i is not None]
        order += [i for i, candidate in enumerate(candidates) if candidate.defaults and i not in order]
        compared = [(candidates[i].name, candidates[i].estimate) for i in order]
        return [(name, estimate.results) for name, estimate in compared if estimate]
    if len(study.objectives) > 1:
        return []
    samples = [(f"trial {best}", report.of_seeds.get(best, ())) for best in report.ranked[:MOST_SAMPLES]]
    return [(name, values) for name, values in samples if len(values) >= FEWEST]


def statistics(studies: Sequence[ReportView]) -> str:
    """Return aggregates over seeds, with intervals and performance profiles."""
    several = len(studies) > 1
    samples = []
    for report in studies:
        prefix = f"{report.study.study}: " if several else ""
        samples += [(prefix + name, values) for name, values in samples_of(report)[: 1 if several else None]]
    if not samples or (several and len(samples) < 2):
        return ""
    rows = []
    for index, (name, values) in enumerate(samples):
        runs = np.array(values)[:, None]
        cells = []
        for aggregate in ("iqm", "mean"):  # the median is one over environments, and here the mean
            estimate, low, high = in_digits(interval(AGGREGATES[aggregate], runs))
            cells.append(f"{estimate} <span class='soft'>({low} to {high})</span>")
        key = f'<span class="key s{index}">{escape(name)}</span>' if index < MOST_SAMPLES else escape(name)
        rows.append((key, str(len(values)), *cells))
    statistics = table(("", "seeds", "IQM (95% interval)", "mean (95% interval)"), rows, "-nnn")
    drawing = figures.profiles(samples[:MOST_SAMPLES], studies[0].objective)
    fresh = all(report.confirmation is not None or report.fresh is not None for report in studies)
    text = (
        "Results over seeds that were not used for any choice."
        if fresh
        else ("Results over the seeds of the search, which chose these configurations and thus flatter them.")
    )
    text += " Intervals are stratified bootstraps."
    if narrow := too_narrow({name: len(values) for name, values in samples}, environments=1):
        text += f" {narrow}"
    return part("Statistics", text, statistics, figure(drawing))


def side_by_side(studies: Sequence[ReportView]) -> str:
    """Return a table of the studies and their winners' results."""
    rows = []
    for index, report in enumerate(studies):
        study, confirmation = report.study, report.confirmation
        result = report.results.get(report.ranked[0]) if report.ranked else None
        [claim] = in_digits([result])
        worth = ""
        if report.fresh is not None:  # a confirmation is no search, and its results are estimates
            claim, worth = "", claim
        if confirmation and confirmation.best and (estimate := confirmation.best.estimate):
            [(value, low, high)] = interval_texts([estimate])
            worth = f"{value} ({low} to {high})"
        method = f"{study.sampler}, {study.scheduler}"
        rows.append(
            (
                f'<a href="#study-{index}">{escape(study.study)}</a>',
                escape(report.title),
                escape(method),
                escape(f"{report.direction} {report.objective}"),
                str(len(study.trials)),
                f"{report.epochs:,}",
                claim,
                worth,
            )
        )
    heads = ("study", "task", "method", "objective", "trials", "epochs", "best in the search", "confirmed (95%)")
    shared = len({(report.title, report.objective) for report in studies}) == 1
    return part("Side by side", "", table(heads, rows, "----nnnn")) + (statistics(studies) if shared else "")
