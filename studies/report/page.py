"""The page of a report: one HTML file that loads nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

from ...tasks.checkpoint.policy_files import replace_whole
from ..engine.probes import lines_of
from ..engine.trial_views import state_text
from ..engine.views import TrialView
from ..failures import one_line
from ..methods import scheduling
from ..options.constraints import Constraint
from ..shell import quoted
from ..storage.commands import CANCELLED
from ..study.number_text import in_digits
from ..study.objectives import MINIMIZE, RETURN
from . import figures, results, what_mattered
from .content import ReportView
from .drawing import escape, number
from .markup import document, figure, part, prose, table


def page(studies: Sequence[ReportView]) -> str:
    """Return the HTML of a report; `data.report_view` gives each study."""
    names = [study.study.study for study in studies]
    heading = f"Report on {', '.join(names)}"
    body = [f"<h1>{escape(heading)}</h1>"]
    if len(studies) > 1:
        links = " · ".join(f'<a href="#study-{i}">{escape(name)}</a>' for i, name in enumerate(names))
        body += [f"<nav>{links}</nav>", results.side_by_side(studies)]
    body += (_study(index, study, alone=len(studies) == 1) for index, study in enumerate(studies))
    return document(heading, "".join(body), files(__package__).joinpath("script.js").read_text(encoding="utf-8"))


def _study(index: int, report: ReportView, alone: bool) -> str:
    """Return the section of one study, omitting parts without data."""
    study = report.study
    name = study.study
    head = f"<p class='soft'>{escape(report.title)}: {escape(study.state)}</p>"
    parts = [head if alone else f"<h2>{escape(name)}</h2>{head}"]
    parts.append(f'<div class="verdict">{"".join(f"<p>{prose(line)}</p>" for line in report.verdict)}</div>')
    if study.probe is not None:
        lines = "".join(f"<p>{escape(line)}</p>" for line in lines_of(study.probe, whole=True))
        parts.append(part("Environment", "What random actions and untrained policies find in it.", lines))
    parts += [part_of(report) for part_of in PARTS]
    return f'<section id="study-{index}">{"".join(parts)}</section>'


def _curves(report: ReportView) -> str:
    text = (
        f"{report.curves.metric} of each trial by epoch; darker (on a dark page: brighter) lines have better results."
    )
    if len(report.study.rungs) > 1:
        text += " Dashed lines are rungs."
    if report.study.seeds > 1:
        text += " Each line is the mean over the seeds."
    if report.study.environments:
        best = 0 if report.direction == MINIMIZE else 1
        text += f" Results of all environments are on one scale: {best} is the best result in each."
    if band := report.band:
        text += f" In color: {band.label}, its mean over {band.seeds} seeds with the 95% interval."
    drawn = "".join(map(figure, figures.curves_of_behaviours(report)))
    more = f'<div class="many">{drawn}</div>' if drawn else ""
    return part("Learning curves", text, figure(figures.curves(report)) + more)


def _promotions(report: ReportView) -> str:
    return part(
        "Promotions", "How far each trial was trained; a dot is a result at a rung.", figure(figures.promotions(report))
    )


def _genealogy(report: ReportView) -> str:
    text = (
        "Members of the population; a dashed line is a copy of another member's state. Point at a line for its values."
    )
    return part("Genealogy", text, figure(figures.genealogy(report)), _lineage_table(report))


def _lineage_table(report: ReportView) -> str:
    """Return a table of hyperparameters along the best member's lineage."""
    trials = report.trials
    if not scheduling(report.study.scheduler).population or not report.ranked:
        return ""
    chain, at = list[TrialView](), report.ranked[0]
    while at in trials and trials[at] not in chain:
        chain.insert(0, trials[at])
        at = branch.trial if (branch := trials[at].branch) else -1
    names = [dimension.name for dimension in report.dimensions]
    rows = []
    for trial, following in zip(chain, [*chain[1:], None], strict=True):
        begin = trial.branch.epochs if trial.branch else 0
        end = following.branch.epochs if following and following.branch else trial.epochs
        values = (escape(number(trial.hyperparameters.get(name))) for name in names)
        rows.append((str(trial.number), f"{begin} to {end}", *values))
    text = "<p class='soft'>The lineage of the best member, with the hyperparameters of each part:</p>"
    return text + table(("trial", "epochs", *names), rows, "n" * (2 + len(names)))


def _what_mattered(report: ReportView) -> str:
    left = right = ""
    if report.importances:
        text = (
            "Share of the results' variance that each explains by itself, over all rungs, with 95% intervals (least "
            "squares)."
        )
        left = part("Importance of hyperparameters", text, figure(what_mattered.importances(report)))
    if report.correlations:
        rungs = sorted({end for row in report.correlations for end in (row.low, row.high)})
        by = {(row.low, row.high): row for row in report.correlations}
        rows = []
        for low in rungs[:-1]:
            cells = []
            for high in rungs[1:]:
                row = by.get((low, high))
                cells.append(f"{row.correlation:.2f} <span class='soft'>({row.trials})</span>" if row else "")
            rows.append((str(low), *cells))
        text = (
            "Spearman's rank correlation between the results at two rungs, over the trials (number) that reached "
            "both. Promotion selects trials, which lowers the correlation."
        )
        right = part("Agreement of rungs", text, table(("epochs", *map(str, rungs[1:])), rows, "n" * len(rungs)))
    return f'<div class="two">{left}{right}</div>' if left or right else ""


def _marginals(report: ReportView) -> str:
    text = (
        f"How far {report.objective} lies above the mean of its rung at each value, the other hyperparameters being "
        "equal, with 95% intervals (least squares)."
    )
    drawn = "".join(map(figure, what_mattered.marginals(report)))
    return part("Marginals", text, f'<div class="many">{drawn}</div>') if drawn else ""


def _pairs(report: ReportView) -> str:
    bars, *clouds = what_mattered.pairs(report) or (None,)
    text = (
        "Share of the variance that two hyperparameters explain together, beyond what each does by itself: the "
        "largest, with 95% intervals."
    )
    if clouds:
        text += " Below, the trials by the clear pairs; darker (on a dark page: brighter) is better."
    drawn = f'<div class="many">{"".join(map(figure, clouds))}</div>' if clouds else ""
    return part("Pairs of hyperparameters", text, figure(bars), drawn)


def _parallel(report: ReportView) -> str:
    hint = (
        '<p class="hint soft">Drag along an axis to choose trials; click it to clear. <b class="brush-count"></b></p>'
    )
    drawing = figures.parallel(report)
    text = "Each line is a trial; values that a trial does not have are below the axis."
    return part("Parallel coordinates", text, hint, figure(drawing)) if drawing is not None else ""


def _slices(report: ReportView) -> str:
    drawn = "".join(map(figure, figures.slices(report)))
    text = f"{report.objective} by each searched hyperparameter, at each trial's last rung."
    return part("Slices", text, f'<div class="many">{drawn}</div>') if drawn else ""


def _front(report: ReportView) -> str:
    return part("Pareto front", "The trials that no other trial dominates.", figure(figures.front(report)))


def _timeline(report: ReportView) -> str:
    timeline, failures = report.timeline, report.failures
    if not timeline:
        return ""
    takeovers = sum(mark.kind == "takeover" for mark in timeline.marks)
    processes, s = len(timeline.workers), "s" * (takeovers != 1)
    text = f"{processes} process{'es' * (processes != 1)} worked on it"
    text += f", with {takeovers} takeover{s} from others that died or fell silent." if takeovers else "."
    if lost := sum(loss.epochs for loss in timeline.lost):
        text += f" About {lost:,.1f} epochs since their last checkpoints were lost (red), and trained again."
    counted = table(("failures", "times"), [(escape(k), str(n)) for k, n in failures.items()], "-n") if failures else ""
    return part("Workers", text, figure(figures.workers(report)), counted)


def _method(report: ReportView) -> str:
    """Return the completed checklist of Eimer et al., and the search space."""
    rows = [(f"<b>{escape(name)}</b>", f'<span class="wrap">{escape(text)}</span>') for name, text in report.checklist]
    lines = "".join(f"<tr><td>{name}</td><td>{text}</td></tr>" for name, text in rows)
    space = [
        (
            f"<code>{escape(dimension.name)}</code>",
            f'<code class="wrap">{escape(dimension.prior)}</code>',
            escape(dimension.help),
        )
        for dimension in report.dimensions
    ]
    text = "The checklist of Eimer et al. (2023, arXiv:2306.01324) for papers that tune hyperparameters."
    spaces = f"<h3>Search space</h3>{table(('hyperparameter', 'prior', 'what it does'), space)}" if space else ""
    return part("Method", text, f'<div class="scroll"><table>{lines}</table></div>', spaces)


def _trials(report: ReportView) -> str:
    """Return a table of all trials, best first."""
    study = report.study
    if not study.trials:
        return ""
    by_number = report.trials
    order = [*report.ranked, *(n for n in by_number if n not in set(report.ranked))]
    names = [dimension.name for dimension in report.dimensions]
    metrics = {name: name for name in study.objectives}
    metrics |= {Constraint.of(text).name: text for text in study.constraints or ()}
    candidate = ["candidate"] * (scheduling(study.scheduler).confirms)
    spread = ["±"] if RETURN in metrics and any(trial.eval_error is not None for trial in study.trials) else []
    heads = ["trial", *candidate, "state", "epochs", *metrics.values(), *spread, *names, "digest", "replay"]
    styles = ["n", *("" for _ in candidate), "", *("n" for _ in ("epochs", *metrics, *spread, *names)), "", ""]
    columns = [in_digits(by_number[n].result(name) for n in order) for name in metrics]
    spreads = in_digits(by_number[n].eval_error for n in order)
    cell: Callable[[str, object, str], str] = lambda style, value, text: (  # noqa: E731
        f"<td{' class=n' if style else ''}{f' data-v={value!r}' if isinstance(value, float) else ''}>{text}</td>"
    )
    lines = []
    for index, n in enumerate(order):
        trial = by_number[n]
        state = escape(state_text(trial))
        state = f'<span class="failed">{state}</span>' if trial.state == "failed" else state
        values: list[tuple[object, str]] = [(n, str(n))]
        values += [(None, escape(trial.candidate.description))] if trial.candidate else []
        values += [(None, state), (trial.epochs, str(trial.epochs))]
        values += [(trial.result(name), column[index]) for name, column in zip(metrics, columns, strict=True)]
        values += [(trial.eval_error, spreads[index]) for _ in spread]
        values += [(v, escape(number(v))) for v in (trial.hyperparameters.get(name) for name in names)]
        # Seeds that a race spared have trained nothing that could be replayed.
        trained = [training for training in trial.trainings if training.epochs or training.state != "pruned"]
        uids, digests = [training.uid for training in trained], [training.digest or "" for training in trained]
        values.append((None, "<br>".join(f"<code>{digest[:12]}</code>" for digest in digests)))
        values.append((None, "<br>".join(f"<code>rekindle replay {escape(uid)}</code>" for uid in uids)))
        cells = "".join(cell(name, value, text) for name, (value, text) in zip(styles, values, strict=True))
        lines.append(f'<tr data-trial="{n}">{cells}</tr>')
    head = "".join(f"<th{' class=n' if k else ''}>{escape(h)}</th>" for h, k in zip(heads, styles, strict=True))
    errors: dict[str, list[tuple[str, str]]] = {}
    for trial in study.trials:
        if trial.error and trial.error.strip():
            why = f'<code class="wrap">{escape(one_line(trial.error))}</code>'
            errors.setdefault(_ended_by(trial.state), []).append((str(trial.number), why))
    ended = "".join(f"<h3>{head}</h3>{table(('trial', 'why'), errors[head], 'n-')}" for head in sorted(errors))
    words = (
        f"<p class='soft'>All {len(order)} trials, best first. The command in the last column trains a trial again and "
        "compares the digests, with <code class='whole'>--storage</code> "
        f"<code class='wrap'>{escape(quoted(report.storage))}</code>.</p>"
    )
    body = f'<div class="tall"><table class="sortable"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody>'
    return part("Trials", "", words, f"{body}</table></div>", ended)


def _ended_by(state: str) -> str:
    """Return the heading under which a trial's end is explained."""
    return "Ended by commands" if state == CANCELLED else "Failures"


PARTS = (
    *(
        results.confirmation_part,
        results.health,
        _curves,
        _promotions,
        _genealogy,
        lambda report: results.statistics([report]),
    ),
    *(_what_mattered, _marginals, _pairs, _parallel, _slices, _front, _timeline, _method, _trials),
)


def write_report(studies: Sequence[ReportView], path: Path) -> None:
    """Write a report on studies to a file, atomically.

    Args:
        studies: results of `data.report_view`.
        path: path of the file.

    Raises:
        ValueError: the file cannot be written.
    """
    html = page(studies)
    try:
        replace_whole(path, html.encode())
    except OSError as error:
        why = error.strerror or str(error)
        raise ValueError(f"a report is written to a file, but {path} cannot be: {why}; give another -o") from None
