"""Planted defects are found with a cure, and sound studies raise no alarm: recorded trainings of known form."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rekindle
from rekindle.studies.analysis.health import diagnose, workers_idle
from rekindle.studies.storage.rows import Event
from rekindle.studies.storage.store import Store

ROWS, POINTS = 4000, 4
HALVED: dict[str, Any] = {"scheduler": "halving", "epochs": (1, 4, 2), "generation": 16, "trials": 32}


def study(
    folder: Path,
    score: Callable[..., Any],
    rng: int = 0,
    early: Callable[..., Any] | None = None,
    columns: int = 2,
    noise: float = 0.05,
    **options: Any,
) -> dict[str, Any]:
    """The diagnosis of a study on a table, whose hyperparameters a, b, ... are uniform in [0, 1]."""
    random = np.random.default_rng(rng)
    x = random.uniform(0, 1, (columns, ROWS))
    late = score(*x)[:, None, None] + noise * random.normal(size=(ROWS, 4, POINTS))
    if early is not None:
        late[:, :, 0] = early(*x)[:, None] + noise * random.normal(size=(ROWS, 4))
    path = folder / f"table{rng}.npz"
    names = {f"param.{name}": column for name, column in zip("abcd", x, strict=False)}
    np.savez(path, steps=np.arange(1, POINTS + 1), curves=late, **names)
    options = {"epochs": 4, "trials": 32, "scheduler": "none", "sampler": "random", "seed": rng, **options}
    with Store(f"sqlite:///{folder / f'store{rng}.db'}") as store:
        rekindle.tune("tabular", str(path), storage=store, study="s", progress=False, cohort=16, **options)
        return diagnose(store, "s")


def checks(diagnosis: dict[str, Any]) -> list[str]:
    return [finding["check"] for finding in diagnosis["findings"]]


def hill(a: Any, b: Any, *_: Any) -> Any:
    return -((a - 0.5) ** 2) - (b - 0.4) ** 2


@pytest.mark.slow
def test_a_sound_study_raises_no_alarm_and_says_what_mattered(tmp_path: Path, cli: Callable[..., Any]) -> None:
    found = study(tmp_path, lambda a, b: 2 * np.sin(3 * a) + np.sin(3 * b), noise=0.01)
    assert found["findings"] == []
    first, second = found["importances"]
    assert (first["name"], second["name"]) == ("a", "b")
    assert first["low"] <= 0.8 <= first["high"]  # of two like functions, one is twice as large: 4 / (4 + 1)
    assert second["low"] <= 0.2 <= second["high"]
    assert first["low"] <= first["estimate"] <= first["high"]
    where = ("--storage", f"sqlite:///{tmp_path / 'store0.db'}")
    status, out, _ = cli("diagnose", "s", *where)
    assert (status, "nothing ails this study" in out) == (0, True)
    assert json.loads(cli("diagnose", "s", "--json", *where)[1])["importances"] == found["importances"]
    status, _, errors = cli("diagnose", "t", *where)
    assert (status, "there is no study 't'" in errors) == (2, True)


def test_defects_are_found_with_a_cure(tmp_path: Path) -> None:
    found = study(tmp_path, lambda a, b, c: 3 * a - 4 * (b - 0.5) ** 2 + 0 * c, columns=3, noise=0.01)
    edge, useless = found["findings"]
    assert (edge["check"], "best values of a are at the upper end of its range" in edge["text"]) == ("edge", True)
    assert "--prior a=" in edge["cure"]
    assert (useless["check"], useless["text"].startswith("c explains less than 5%")) == ("no effect", True)
    assert "--set c=" in useless["cure"]


@pytest.mark.slow
def test_a_pair_that_acts_together_is_named(tmp_path: Path, cli: Callable[..., Any]) -> None:
    found = study(tmp_path, lambda a, b, c: a + 4 * (a - 0.5) * (b - 0.5) + 0 * c, columns=3, noise=0.01)
    assert found["pairs"][0]["names"] == ["a", "b"]
    assert [each["name"] for each in found["marginals"]] == [each["name"] for each in found["importances"]]
    told = cli("diagnose", "s", "--storage", f"sqlite:///{tmp_path / 'store0.db'}")[1]
    assert "together, beyond each: a and b " in told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "how"),
    [
        ("edge", {"score": lambda a, b: 3 * a + np.sin(3 * b), "noise": 0.01}),
        ("edge", {"score": lambda a, b: np.sin(3 * a) - 4 * b, "noise": 0.1}),
        ("no effect", {"score": lambda a, b: np.sin(3 * a) + 0 * b, "noise": 0.01}),
        ("no effect", {"score": lambda a, b, c: hill(a, b) + 0 * c, "columns": 3, "noise": 0.0, "trials": 96}),
        ("seeds", {"score": hill, "noise": 1.0, "seeds": 3}),
        ("seeds", {"score": hill, "noise": 0.3, "seeds": 4}),
        ("first rung", {"score": hill, "early": lambda a, b: -hill(a, b), **HALVED}),
        ("first rung", {"score": hill, "early": lambda a, b: np.sin(1e4 * a * b), **HALVED, "trials": 64}),
        ("failures", {"score": lambda a, b: np.where(a > 0.6, np.nan, np.sin(3 * a))}),
        ("failures", {"score": lambda a, b: np.where(b < 0.4, np.nan, np.sin(3 * b))}),
    ],
)
def test_a_planted_defect_is_found(tmp_path: Path, check: str, how: dict[str, Any]) -> None:
    assert check in checks(study(tmp_path, rng=3, **how))


@pytest.mark.slow
@pytest.mark.parametrize("rng", range(10))
def test_sound_studies_raise_no_alarm(tmp_path: Path, rng: int) -> None:
    options: dict[str, Any] = [
        {},
        {"sampler": "tpe"},
        HALVED,
        {"seeds": 3, "noise": 0.1},
        {**HALVED, "scheduler": "adaptive"},
    ][rng % 5]
    options = {"noise": 0.03, **options}
    assert study(tmp_path, lambda a, b: np.sin(3 * a) + np.sin(3 * b), rng=rng, **options)["findings"] == []


def test_workers_that_wait_for_most_of_the_time_are_found() -> None:
    def found(*spans: tuple[float, float]) -> list[str]:
        events = [Event(f"t{n}", a, "start", {"owner": f"w{n}", "token": 1}) for n, (a, _) in enumerate(spans)]
        saved = {(f"t{n}", 1): b for n, (_, b) in enumerate(spans)}
        rows: Any = SimpleNamespace(events=events, saved=saved)
        return [finding.text for finding in workers_idle(rows)]

    assert found((0.0, 10.0), (0.0, 1.0), (0.0, 1.0)) == ["workers waited 60% of the time, while others trained"]
    assert found((0.0, 10.0), (0.0, 5.0), (0.0, 1.0)) == []  # 47%
    assert found((0.0, 4.0), (4.0, 5.0), (9.0, 10.0)) == []  # never two at once
