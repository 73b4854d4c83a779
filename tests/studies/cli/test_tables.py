"""Tables of studies: shown hyperparameters, and those that are only named."""

from __future__ import annotations

import io
from typing import Any

from rekindle.studies.cli.output.tables import MANY_NAMES, MANY_ROWS, print_best
from rekindle.studies.engine.views import StudyView, TrialView
from rich.console import Console

NAMES = [f"h{n}" for n in range(MANY_ROWS + 1)]


def trial(number: int, **changed: Any) -> TrialView:
    none = dict.fromkeys(("bracket", "rung", "member", "branch", "objectives", "digest", "error"))
    same = {"uid": "u" * 20, "state": "complete", "epochs": 3, "excluded": False, "rungs": []}
    values = {**dict.fromkeys(NAMES, 0.5), **changed}
    return TrialView(number=number, return_=float(number), hyperparameters=values, **none, **same)  # type: ignore[arg-type]


def printed(trials: list[TrialView], defaults: dict[str, Any], **more: Any) -> tuple[list[str], str]:
    """The rows of hyperparameters, and what is named below."""
    absent = dict.fromkeys(StudyView.fields)
    study = StudyView(**{**absent, "study": "s", "objectives": {"return": "maximize"}, "trials": trials, **more})  # type: ignore[arg-type]
    print_best(Console(file=(out := io.StringIO()), width=200), study, defaults)
    rows, _, named = out.getvalue().partition("at their defaults in all of these trials: ")
    return [line.split()[0] for line in rows.splitlines() if line.strip().startswith("h")], named.strip()


def test_of_many_hyperparameters_those_at_their_defaults_are_named_only() -> None:
    defaults = dict.fromkeys(NAMES, 0.5)
    rows, named = printed([trial(0, h3=0.1), trial(1, h5=None)], {**defaults, "h7": "[red]", "h8": 0.25})
    assert rows == ["h3", "h5", "h7", "h8"]  # one differs in some trial, the others from their defaults
    assert named == ", ".join(name for name in NAMES if name not in rows)
    worse = [trial(number) for number in range(1, 6)]
    assert "h3" not in printed([trial(0, h3=0.1), *worse], defaults)[0]  # the sixth is not shown
    both = {"return": "maximize", "loss": "minimize"}
    fronted = [row.replace(objectives={"return": 1.0, "loss": 2.0}) for row in (trial(0, h3=0.1), trial(1))]
    assert printed(fronted, defaults, objectives=both, front=[1])[0] == []
    assert printed(fronted, defaults, objectives=both, front=[1, 0])[0] == ["h3"]


def test_very_many_hyperparameters_at_their_defaults_are_counted_only() -> None:
    many = dict.fromkeys((f"h{n}" for n in range(MANY_NAMES + 2)), 0.5)
    rows, named = printed([trial(0, **{**many, "h3": 0.1})], many)
    assert (rows, named) == (["h3"], f"{MANY_NAMES + 1} further hyperparameters")


def test_few_hyperparameters_are_all_shown() -> None:
    few = dict.fromkeys(NAMES[:MANY_ROWS], 0.5)
    assert printed([trial(0)], few) == (list(few), "")
