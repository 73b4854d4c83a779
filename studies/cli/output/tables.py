"""Tables of studies, trials and tasks."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ....spaces import flatten
from ....tasks.catalog import label
from ...engine.ranking import rank
from ...engine.study_views import infeasible
from ...engine.trial_views import RUNNING, STATES, state_text
from ...engine.views import (
    AgreementView,
    ConfirmationView,
    FailedProbeView,
    ProbeView,
    StatusView,
    StudyView,
    SummaryView,
    TrialView,
    View,
)
from ...methods import scheduling
from ...options.constraints import Constraint
from ...redact import printable
from ...report.verdicts import failures_of, interval_texts, verdict
from ...study.config import title
from ...study.number_text import counted, in_digits, in_digits_alone
from ...study.objectives import DEFAULT, RETURN
from ...study.repeats import origin
from .terminal import note

if TYPE_CHECKING:
    from ...analysis.cures import Finding  # slow to import (torch)

LONG = ("digest", "help", "kept", "more", "searched", "until", "when")  # columns whose text may wrap
MANY_ROWS = 12  # hyperparameters of the best trials that are all shown
MANY_NAMES = 24  # of those at their defaults that are all named
WHOLE = 2.0**53  # below this, an integral number is a count and is shown with all digits
UNFINISHED = {"ready": "...", "failed": "failed"}  # shown in place of a segment's result, by its state


def harmless(value: Any) -> Any:
    """Escape terminal control sequences and markup in text from a database."""
    if isinstance(value, str):
        return escape(printable(value))
    if isinstance(value, View):
        return value.replace(**{name: harmless(content) for name, content in vars(value).items()})
    if isinstance(value, Mapping):
        return {harmless(name): harmless(item) for name, item in value.items()}
    return [harmless(item) for item in value] if isinstance(value, list | tuple) else value


def number(value: Any) -> str:
    """Format a hyperparameter or metric briefly."""
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < WHOLE else f"{value:.4g}"
    return "none" if value is None else str(value)


def _table(heading: str, columns: Iterable[str] = (), left: Container[str] = (), **more: Any) -> Table:
    """Return a table with columns and no rows."""
    table = Table(title=heading, title_style="bold", header_style="bold", box=SIMPLE, pad_edge=False, **more)
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    return table


def print_best(out: Console, study: StudyView, searched: Mapping[str, Any]) -> None:
    """Print the best trials with their searched hyperparameters.

    If there are more than MANY_ROWS, those at their default in all of these trials are only named below the table, or
    counted, if there are more than MANY_NAMES.

    Args:
        out: console.
        study: view of the study.
        searched: names and defaults of the searched hyperparameters.
    """
    default = [name for name, value in searched.items() if _is_default(name, value, _best(study))]
    named = default if len(searched) > MANY_ROWS else []
    out.print(best_table(study, [name for name in searched if name not in named]))
    if study.best and study.best.violation:
        note(out, f"{infeasible(study)}; those that violate it least come first")
    if named:
        names = ", ".join(named) if len(named) <= MANY_NAMES else counted(len(named), "further hyperparameter")
        out.print(f"[bright_black]at their defaults in all of these trials: {harmless(names)}[/]\n")


def _is_default(name: str, value: Any, trials: Sequence[TrialView]) -> bool:
    """Return whether a hyperparameter is at its default wherever it applies."""
    values = [trial.hyperparameters[name] for trial in trials if name in trial.hyperparameters]
    return bool(values) and all(other == value for other in values)


def _best(study: StudyView, limit: int = 5) -> list[TrialView]:
    """Return the best trials, or the Pareto front of several objectives.

    Of trials that repeat each other, the best stands for all.
    """
    if len(study.objectives) == 1:
        best: dict[int, TrialView] = {}
        for trial in rank(study.trials, study.objectives):
            best.setdefault(origin(trial), trial)
        return [*best.values()][:limit]
    by_number = {trial.number: trial for trial in study.trials}
    return [by_number[number] for number in study.front]


def best_table(study: StudyView, searched: Sequence[str]) -> Table:
    """Return a table of the best trials and their searched hyperparameters."""
    study = harmless(study)
    objectives, best = study.objectives, _best(study)
    constraints = [Constraint.of(text) for text in study.constraints or ()]
    heading = f"best trials of {study.study}"
    if len({trial.epochs for trial in best}) > 1:
        heading += ", the longest trained first"
    if len(objectives) > 1:
        heading = f"Pareto front of {study.study}"
    if objectives != DEFAULT:
        heading += ": " + ", ".join(f"{direction} {name}" for name, direction in objectives.items())
    table = _table(heading, ["trial", *(str(trial.number) for trial in best)], left=["trial"])
    names = list(best[0].environments or ()) if best else []
    for name in objectives:
        values = in_digits(trial.result(name) for trial in best)
        heading = f"{study.aggregate} on one scale" if names else name
        table.add_row(heading, *(Text(value, "bold green") for value in values))
        means = [(trial.over_seeds or {}).get(name) for trial in best]
        if any(mean is not None for mean in means):
            table.add_row("mean over its seeds", *in_digits(means))
    for name in names:
        table.add_row(name, *in_digits((trial.environments or {})[name] for trial in best))
    for constraint in constraints:
        results = [trial.result(constraint.name) for trial in best]
        styles = ["red" if result is not None and constraint.excess(result) > 0 else "" for result in results]
        cells = zip(in_digits(results), styles, strict=True)
        table.add_row(str(constraint), *(Text(value, style) for value, style in cells))
    table.add_row("epochs", *(str(trial.epochs) for trial in best))
    table.add_row("uid", *(Text(trial.uid[:8], "cyan") for trial in best), end_section=True)
    for name in searched:
        row = [trial.hyperparameters.get(name, ...) for trial in best]
        if any(value is not ... for value in row):
            table.add_row(name, *("" if value is ... else number(value) for value in row))
    return table


def print_finding(out: Console, finding: Finding) -> None:
    """Print a finding of a health check, with its cure."""
    note(out, f"{finding.check}: {finding.text}.\n  cure: {finding.cure}")


def print_confirmation(out: Console, confirmation: ConfirmationView, probe: ProbeView | FailedProbeView | None) -> None:
    """Print a confirmation, complete or not, of a study with a probe."""
    print_candidates(out, confirmation)
    out.print(Text(verdict(confirmation, probe)), soft_wrap=False)


def print_candidates(out: Console, confirmation: ConfirmationView) -> None:
    """Print the results of a confirmation's candidates."""
    out.print(_confirmation_table(confirmation))
    if confirmation.across and confirmation.winner is not None:
        out.print(_by_environment(confirmation))


def _confirmation_table(confirmation: ConfirmationView) -> Table:
    """Return a table of the candidates' races and estimates."""
    confirmation = harmless(confirmation)
    candidates = confirmation.candidates
    objective = f"{confirmation.across} on one scale" if confirmation.across else confirmation.objective
    heading = f"{confirmation.study} on seeds that its search has not used: {objective}"
    names = ("candidate", "in the search", "in the race", "seeds", "on fresh seeds", "95% interval", "seeds")
    failures = any(map(failures_of, candidates))
    table = _table(heading, [*names, *["failed"] * failures], left=("candidate",), collapse_padding=True)
    claims = in_digits(candidate.claim for candidate in candidates)
    races = in_digits(candidate.race.mean for candidate in candidates)
    estimates = interval_texts(candidate.estimate for candidate in candidates)
    bounded = {
        text: interval_texts((candidate.constraints or {}).get(text) for candidate in candidates)
        for text in dict.fromkeys(text for candidate in candidates for text in candidate.constraints or ())
    }
    for text in bounded:
        table.add_column(text, justify="right")
    for index, (candidate, (value, low, high)) in enumerate(zip(candidates, estimates, strict=True)):
        style = "bold green" if index == confirmation.winner else ""
        table.add_row(
            Text(candidate.description, style),
            claims[index],
            races[index],
            str(candidate.race.seeds),
            Text(value, style),
            f"{low} to {high}" if value else "",
            str(candidate.estimate.seeds) if candidate.estimate else "",
            *[str(failures_of(candidate))] * failures,
            *("{} ({} to {})".format(*cells[index]) if cells[index][0] else "" for cells in bounded.values()),
        )
    return table


def _by_environment(confirmation: ConfirmationView) -> Table:
    """Return a table of the candidates' estimates in each environment."""
    confirmation = harmless(confirmation)
    estimated = [(candidate, candidate.environments) for candidate in confirmation.candidates if candidate.environments]
    heading = f"{confirmation.objective} in each environment, with 95% intervals"
    names = [candidate.name for candidate, _ in estimated]
    table = _table(heading, ["environment", *names], left=("environment",))
    for env in estimated[0][1] if estimated else ():
        cells = interval_texts(environments[env] for _, environments in estimated)
        table.add_row(env, *(f"{value} ({low} to {high})" if value else "" for value, low, high in cells))
    return table


def misleading(rung: AgreementView, cure: str) -> str:
    """Return a note about a misleading rung, with a cure."""
    epochs = counted(rung.epochs, "epoch")
    if rung.correlation is None or rung.interval is None:
        return (
            f"all {rung.trials} trials have the same result after {epochs}, but later ones differ, so chance "
            f"decided which were pruned there; {cure}\n"
        )
    low, high = rung.interval
    return (
        f"results after {epochs} say little about those after {rung.next}: their rank correlation is "
        f"{rung.correlation:.2f} (95%: {low:.2f} to {high:.2f}, from {rung.trials} trials), so good trials may "
        f"have been pruned there; {cure}\n"
    )


def environments_of(study: SummaryView) -> Sequence[Mapping[str, Any]]:
    """Return the JSON of a study's environments."""
    return study.environments or [study.env]


def trials_table(study: StudyView) -> Table:
    """Return a table of all trials, with their results at each rung."""
    study = harmless(study)
    branches = any(trial.branch for trial in study.trials)
    rungs = [f"{'' if rung else 'epoch '}{epochs}" for rung, epochs in enumerate(study.rungs)]
    rows = [row for trial in study.trials for row in trial.rungs]
    main, *others = study.objectives
    bounds = {Constraint.of(text).name: text for text in study.constraints or ()}
    further = {name: name for name in others} | {name: text for name, text in bounds.items() if name != main}
    several = ["front"] if len(study.objectives) > 1 else []
    confirms = scheduling(study.scheduler).confirms
    errors = in_digits(trial.eval_error if main == RETURN else None for trial in study.trials)
    spread = ["±"] if any(errors) else []
    origin = "branches from" if branches else "candidate" if confirms else "bracket"
    table = _table(
        f"{study.study}: {title(study.task, *environments_of(study))}, seed {study.seed}"
        + (f", {study.aggregate} of results on one scale" if study.environments else "")
        + ("" if main == RETURN else f", {study.objectives[main]} {main}")
        + (", estimates on fresh seeds" if confirms else ""),
        ["trial", origin, "uid", "state", *rungs, *spread, *further.values(), *several, "digest"],
        left=["candidate", "uid", "state", "front", "digest"],
        collapse_padding=True,  # lets four rungs fit on a terminal
    )
    colors = {"complete": "bold green", "pruned": "dim", "failed": "red", "cancelled": "dim", RUNNING: "yellow"}
    returns = iter(in_digits(row.result(main) if row.state == "done" else None for row in rows))
    measured = [in_digits((trial.objectives or {}).get(name) for trial in study.trials) for name in further]
    for index, trial in enumerate(study.trials):
        pairs = zip(trial.rungs, returns, strict=False)
        results = {row.rung: UNFINISHED.get(row.state, result) for row, result in pairs}
        table.add_row(
            str(trial.number),
            _origin(trial, branches),
            Text(trial.uid[:8], "cyan"),
            Text(state_text(trial), colors.get(trial.state, "")),
            *(results.get(rung, "") for rung in range(len(rungs))),
            *(errors[index] for _ in spread),
            *(column[index] for column in measured),
            *("*" if trial.number in study.front else "" for _ in several),
            (trial.digest or "")[:12],
        )
    return table


def _origin(trial: TrialView, branches: bool) -> str:
    """Return the branch, candidate or bracket that a trial comes from."""
    if branches:
        return f"{branch.trial} at {branch.epochs}" if (branch := trial.branch) else ""
    return trial.candidate.description if trial.candidate else number(trial.bracket)


def status_table(status: StatusView) -> Table:
    """Return a table of all studies, omitting states that no trial has."""
    status = harmless(status)
    studies = status.studies
    states = [state for state in STATES if state != "complete" and any(study.counts[state] for study in studies)]
    weighs = ["weight"] if any(study.weight != 1 for study in studies) else []
    evaluated = ["eval steps"] if any(study.eval_steps for study in studies) else []
    table = _table(status.storage, collapse_padding=True)
    for name in ("study", "state", "task", "trials", *states, *weighs, "rungs", *evaluated, "best return"):
        justify: JustifyMethod = "left" if name in ("study", "state", "task") else "right"
        table.add_column(name, justify=justify, no_wrap=name in ("state", "trials", "rungs"))
    for study in studies:
        value, objective = study.best_result(), next(iter(study.objectives))
        unit = "" if value is None or objective == RETURN else f" {objective}"
        fresh = " on fresh seeds" if scheduling(study.scheduler).confirms else ""
        front = len(study.front) if len(study.objectives) > 1 else 1
        begun = sum(study.counts.values())
        table.add_row(
            study.study,
            Text(*_state(study)),
            " ".join([label(study.task), *(str(env.get("id", "")) for env in environments_of(study))]),
            f"{begun}/{max(begun, study.trials_total)}",  # the branches of a population are additional trials
            *(str(study.counts[state]) for state in states),
            *(f"{study.weight:g}" for _ in weighs),
            "→".join(str(rung.done) for rung in study.progress),
            *(f"{study.eval_steps:,}" for _ in evaluated),
            ("" if value is None else f"{in_digits_alone(value)}{unit}{fresh}")
            + (f" and {front - 1} on the front" if front > 1 else ""),
        )
    return table


def print_labels(out: Console, study: SummaryView) -> None:
    """Print why trainings are not bit-exact, and advice."""
    if study.exactness is not None:
        note(out, f"study {study.study}, resumed after a kill: {study.exactness}")
    for text, count in study.inexact.items():
        note(out, f"study {study.study}: {counted(count, 'training')} not bit-exact{_continued(text)}")
    for text in study.advice:
        note(out, f"study {study.study}: {text}")


def _continued(reason: str) -> str:
    """Return the reason of a label as it follows "not bit-exact"."""
    rest = reason.removeprefix("not bit-exact")
    return f": {reason}" if rest == reason else rest


def _state(study: SummaryView) -> tuple[str, str]:
    """Return the text of a study's state, and its color."""
    if study.state == "complete":
        return "complete", "green"
    return study.state, "yellow" if study.state == "running" else "red"


def pairs_table(heading: str, pairs: Mapping[str, Any]) -> Table:
    """Return a table of names and values."""
    table = _table(harmless(heading), title_justify="left", show_header=False, min_width=len(heading))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in flatten(harmless(pairs)).items():
        table.add_row(name, number(value))
    return table


def rows_table(heading: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Table:
    """Return a table with one row for each mapping."""
    rows = harmless(rows)
    left = [name for name in columns if any(isinstance(row.get(name), str) for row in rows)]
    table = _table(heading, title_justify="left")
    for name in columns:  # on a narrow terminal, only columns with long text wrap
        justify: JustifyMethod = "left" if name in left else "right"
        table.add_column(name, justify=justify, no_wrap=name not in LONG, overflow="fold")
    for row in rows:
        table.add_row(*(number(row[name]) if name in row else "" for name in columns))
    return table
