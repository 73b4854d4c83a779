"""Parts of a report about the reliability of results, in tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..engine.json_views import Json
from ..statistics.aggregates import AGGREGATES
from ..statistics.intervals import FEWEST, interval, too_narrow
from ..study.number_text import counted, in_digits
from . import figures
from .drawing import escape
from .markup import figure, part, table
from .verdicts import candidate_name, described, failures_of

MOST_SAMPLES = 4  # configurations whose distributions are shown


def confirmation(shown: Json) -> str:
    confirmation = shown["confirmation"]
    if confirmation is None:
        return ""
    candidates = confirmation["candidates"]
    claims = in_digits(each["claim"] for each in candidates)
    races = in_digits(each["race"]["mean"] for each in candidates)
    failures = any(map(failures_of, candidates))
    estimates = [each["estimate"] or {} for each in candidates]
    ends = in_digits(each.get(end) for each in estimates for end in ("value", "low", "high"))
    values, lows, highs = ends[::3], ends[1::3], ends[2::3]
    rows = []
    for index, each in enumerate(candidates):
        name = escape(described(each))
        mark = f"<b>{name}</b>, the winner" if index == confirmation["winner"] else name
        between = f"{lows[index]} to {highs[index]}" if estimates[index] else ""
        cells = (claims[index], races[index], str(each["race"]["seeds"]), values[index], between)
        lost = [str(failures_of(each))] * failures
        rows.append((mark, *cells, str(estimates[index].get("seeds", "")), *lost))
    heads = ["candidate", "in the search", "in the race", "seeds", "on fresh seeds", "95% interval", "seeds"]
    heads += ["failed"] * failures
    what = confirmation["objective"]
    if "across" in confirmation:
        what = f"The {confirmation['across']} over environments of {what} on one scale,"
    where = f"on seeds that the search has not used, in {confirmation['confirmation']}"
    text = f"{what} after {counted(confirmation['epochs'], 'epoch')}, {where}."
    shown_rows = table(heads, rows, "-nnnnnn" + "n" * failures)
    return part("Confirmation", text, shown_rows, _by_environment(confirmation))


def _by_environment(confirmation: Json) -> str:
    """Return a table of the candidates' estimates in each environment, if several."""
    estimated = [each for each in confirmation["candidates"] if each.get("environments")]
    if not estimated:
        return ""
    rows = []
    for env in estimated[0]["environments"]:
        own = [each["environments"][env] for each in estimated]
        ends = in_digits(each and each[end] for each in own for end in ("value", "low", "high"))
        found = zip(own, ends[::3], ends[1::3], ends[2::3], strict=True)
        cells = (
            f"{value} <span class='soft'>({low} to {high})</span>" if each else "" for each, value, low, high in found
        )
        rows.append((escape(env), *cells))
    text = f"{confirmation['objective']} in each environment, as measured, with 95% intervals:"
    return f"<p class='soft'>{escape(text)}</p>" + table(
        ("environment", *map(candidate_name, estimated)), rows, "-" + "n" * len(estimated)
    )


def health(shown: Json) -> str:
    """Return the defects that health checks found, with cures."""
    if not shown["ranked"]:
        return ""
    rows = [(escape(each["check"]), escape(each["text"]), escape(each["cure"])) for each in shown["findings"]]
    found = table(("check", "finding", "cure"), rows) if rows else "<p>No defects were found.</p>"
    return part("Health checks", "", found)


def samples_of(shown: Json) -> list[tuple[str, list[float]]]:
    """Return names and results over seeds of the best configurations.

    The results come from the confirmation, or else from the replicates at each configuration's last rung. Of a
    confirmation itself, they are those of the estimates.
    """
    confirmation, study = shown["confirmation"], shown["study"]
    if shown["fresh"] is not None:
        return [(f"trial {n}", shown["fresh"][n]) for n in shown["ranked"] if len(shown["fresh"].get(n, ())) >= FEWEST]
    if confirmation is not None:
        candidates = confirmation["candidates"]
        order = [i for i in (confirmation["winner"], confirmation["runner_up"]) if i is not None]
        order += [i for i, each in enumerate(candidates) if each["defaults"] and i not in order]
        known = [(candidate_name(candidates[i]), candidates[i]["estimate"]) for i in order]
        return [(name, estimate["results"]) for name, estimate in known if estimate]
    if study["seeds"] < FEWEST or len(study["objectives"]) > 1 or "environments" in study:
        return []
    trials = {trial["number"]: trial for trial in study["trials"]}
    found = []
    for best in shown["ranked"][:MOST_SAMPLES]:
        seeds = [each for each in trials[best]["seeds"] if each["epochs"] == trials[best]["epochs"]]
        values = [each["return"] for each in seeds if each["return"] is not None]
        if len(values) >= FEWEST:
            found.append((f"trial {best}", values))
    return found


def statistics(studies: Sequence[Json]) -> str:
    """Return aggregates over seeds, with intervals and performance profiles."""
    several = len(studies) > 1
    samples = []
    for shown in studies:
        own = samples_of(shown)
        prefix = f"{shown['study']['study']}: " if several else ""
        samples += [(prefix + name, values) for name, values in (own[:1] if several else own)]
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
    drawing = figures.profiles(samples[:MOST_SAMPLES], studies[0]["objective"])
    fresh = all(shown["confirmation"] is not None or shown["fresh"] is not None for shown in studies)
    text = (
        "Results over seeds that were not used for any choice."
        if fresh
        else ("Results over the seeds of the search, which chose these configurations and thus flatter them.")
    )
    text += " Intervals are stratified bootstraps."
    if narrow := too_narrow({name: len(values) for name, values in samples}, environments=1):
        text += f" {narrow}"
    return part("Statistics", text, statistics, figure(drawing))


def side_by_side(studies: Sequence[Json]) -> str:
    """Return a table of the studies and their winners' results."""
    rows = []
    for index, shown in enumerate(studies):
        study, confirmation = shown["study"], shown["confirmation"]
        best = shown["ranked"][0] if shown["ranked"] else None
        claim = in_digits([shown["results"][best]])[0] if best in shown["results"] else ""
        worth = ""
        if shown["fresh"] is not None:  # a confirmation is no search, and its results are estimates
            claim, worth = "", claim
        if confirmation and confirmation["winner"] is not None:
            estimate = confirmation["candidates"][confirmation["winner"]]["estimate"]
            if estimate:
                value, low, high = in_digits([estimate[end] for end in ("value", "low", "high")])
                worth = f"{value} ({low} to {high})"
        method = f"{study['sampler']}, {study['scheduler']}"
        rows.append(
            (
                f'<a href="#study-{index}">{escape(study["study"])}</a>',
                escape(shown["title"]),
                escape(method),
                escape(f"{shown['direction']} {shown['objective']}"),
                str(len(study["trials"])),
                f"{shown['epochs']:,}",
                claim,
                worth,
            )
        )
    heads = ("study", "task", "method", "objective", "trials", "epochs", "best in the search", "confirmed (95%)")
    shared = len({(shown["title"], shown["objective"]) for shown in studies}) == 1
    return part("Side by side", "", table(heads, rows, "----nnnn")) + (statistics(studies) if shared else "")
