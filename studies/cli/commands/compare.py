"""``rekindle compare``: comparisons of studies and other runs, with intervals."""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

from rich.console import Console

from ...analysis.comparing import ComparisonView, Scale, SourceView
from ...analysis.comparing import compare as comparison
from ...analysis.sources import CONFIRMED, FILE, SELECTED, is_file
from ...engine.confirmations import check_confirmable
from ...errors import BadConfig
from ...shell import command_line
from ...statistics.aggregates import LABELS
from ...statistics.intervals import too_narrow
from ...storage.store import Store
from ...study import FRESH_SEEDS
from ...study.config import Config
from ...study.number_text import in_digits
from ..output import tables
from ..output.terminal import new_console, note, print_json
from .storage import database_exists, existing_store

RUNS = {CONFIRMED: "fresh seeds", SELECTED: "best trial's seeds", FILE: "file"}


def compare(arguments: argparse.Namespace) -> int:
    """Print a comparison of the sides."""
    scales = _scales(arguments.scale)
    with existing_store(arguments) if _needs_store(arguments) else nullcontext() as store:
        result = comparison(store, arguments.source, scales)
        confirmable = [] if store is None else _confirmable(store, result)
    if arguments.json:
        return print_json(result)
    _print(new_console(), result, confirmable)
    return 0


def _needs_store(arguments: argparse.Namespace) -> bool:
    """Return whether a source may be a study."""
    missing = [text for text in arguments.source if not Path(text.rpartition("=")[2]).exists()]
    return not all(map(is_file, arguments.source)) or (bool(missing) and database_exists(arguments))


def _confirmable(store: Store, result: ComparisonView) -> list[str]:
    """Return the studies of a comparison that `confirm` takes."""
    names = [source.source for side in result.sides for source in side.sources if source.kind != FILE]
    notes = []
    for name in dict.fromkeys(names):
        with suppress(BadConfig):
            check_confirmable(Config.from_json(store.study(name).config, name), name)
            notes.append(name)
    return notes


def _scales(texts: Sequence[str]) -> dict[str, Scale]:
    """Return the values of --scale by environment."""
    scales: dict[str, Scale] = {}
    for text in texts:
        env, _, ends = text.rpartition("=")
        try:
            zero, one = map(float, ends.split(":"))
        except ValueError:
            env = ""
        if not env or env in scales or not (math.isfinite(zero) and math.isfinite(one)):
            law = "is given twice" if env in scales else "must be written ENV=LOW:HIGH, two finite numbers"
            raise ValueError(f"--scale {text!r} {law}, such as --scale CartPole-v1=22:500")
        scales[env] = (zero, one)
    return scales


def _print(out: Console, result: ComparisonView, confirmable: Sequence[str]) -> None:
    sides, environments = result.sides, [scale.env for scale in result.environments]
    unit = result.objective if result.scale is None else f"{result.objective}, scaled"
    title = f"{unit}, {', '.join(environments)}: estimates and 95% intervals"
    several = len(environments) > 1  # the median is one over environments
    names = [name for name in LABELS if getattr(sides[0], name) is not None and (several or name != "median")]
    rows = []
    for side in sides:
        ends = in_digits(end for name in names for end in getattr(side, name))
        texts = zip(names, ends[::3], ends[1::3], ends[2::3], strict=True)
        row = {LABELS[name]: f"{value} ({low} to {high})" for name, value, low, high in texts}
        kinds = dict.fromkeys(RUNS[source.kind] for source in side.sources)
        rows.append({"side": side.label, "runs": side.runs, "from": ", ".join(kinds), **row})
    out.print(tables.rows_table(title, rows, ("side", "runs", "from", *(LABELS[name] for name in names))))
    pairs = [
        {"one": pair.better, "other": pair.than}
        | {"probability": f"{pair.estimate:.2f} ({pair.low:.2f} to {pair.high:.2f})"}
        for pair in result.pairs
    ]
    out.print(tables.rows_table("probability that a run of one beats one of the other", pairs, tuple(pairs[0])))
    for text in _warnings(result, confirmable):
        note(out, text)


def _too_narrow(result: ComparisonView, confirmable: Sequence[str]) -> list[str]:
    """Return a warning about intervals of few runs, if there are any."""
    few = sorted((side for side in result.sides if side.coverage), key=lambda side: int(side.runs))
    studies = [source.source for side in few for source in side.sources if source.source in confirmable]
    cure = f", as `{command_line('confirm', studies[0], f'--seeds {FRESH_SEEDS}')}` does" if studies else ""
    runs = {side.label: int(side.runs) for side in few}
    return [text] if (text := too_narrow(runs, len(result.environments), cure)) else []


def _of_episodes(sources: Sequence[SourceView]) -> list[str]:
    """Return what intervals lack where runs were measured in the same episodes."""
    errors = {source.source: source.shared_error for source in sources if source.shared_error}
    sizes = [f"{name} ({error})" for name, error in zip(errors, in_digits(errors.values()), strict=True)]
    if not sizes:
        return []
    return [
        "All runs of a study were measured in the same episodes, and the intervals contain the luck of training alone. "
        f"Other episodes may move all results of one, by up to these standard errors: {', '.join(sizes)}. "
        "A confirmation gives each seed episodes of its own."
    ]


def _warnings(result: ComparisonView, confirmable: Sequence[str]) -> list[str]:
    """Return warnings about the numbers."""
    sources = [source for side in result.sides for source in side.sources]
    flattered = list(dict.fromkeys(source.source for source in sources if source.kind == SELECTED))
    epochs = {source.epochs for source in sources if source.epochs is not None}
    texts = []
    if flattered:
        text = (
            f"Selection flatters {', '.join(flattered)}: the best configuration is measured on the seeds that chose it."
        )
        if name := next((name_of_source for name_of_source in flattered if name_of_source in confirmable), ""):
            text += f" `{command_line('confirm', name)}` trains it on fresh seeds."
        texts.append(text)
    texts += _of_episodes(sources)
    texts += _too_narrow(result, confirmable)
    if len(epochs) > 1:
        texts.append(f"The studies trained for different numbers of epochs: {', '.join(map(str, sorted(epochs)))}.")
    if result.scale == "observed":
        texts.append("0 and 1 are the worst and the best run of any side; --scale ENV=LOW:HIGH sets others.")
    steps = sorted({source.env_steps for source in sources if source.env_steps is not None})
    if len(steps) > 1:
        texts.append(
            f"The runs of files end after {steps[0]:,} to {steps[-1]:,} environment steps, and each counts by its last "
            "result; compare runs of one length."
        )
    if left := [f"{part.env} of {part.label}" for part in result.left_out]:
        texts.append(f"Only environments of all sides count; {', '.join(left)} is left out.")
    uneven = []
    for side in result.sides:
        counts: Counter[str | None] = Counter()
        for source in side.sources:
            counts[source.env] += len(source.results)
        if len({*counts.values()}) > 1:
            uneven.append(side.label)
    if uneven:
        texts.append(
            f"Environments have different numbers of runs; for {', '.join(uneven)}, only the first ones count."
        )
    return texts
