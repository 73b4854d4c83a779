"""The best trial of a study: of equal results, the one with the better previous rung, in every view."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rekindle
from rekindle.studies.engine.confirming import confirmation_config
from rekindle.studies.engine.json_views import rank, study_json, summary_json
from rekindle.studies.engine.progress import StudyProgress
from rekindle.studies.storage.store import Store

HIGHEST = 500.0


@pytest.fixture
def capped(tmp_path: Path) -> str:
    """A table of 200 trainings that all end with the highest return, the better ones earlier."""
    quality = np.random.default_rng(0).permutation(200)
    rise = np.linspace(10, 400, 8)[None] + quality[:, None]
    rise[:, -1] = HIGHEST
    path = tmp_path / "table.npz"
    curves = np.minimum(rise, HIGHEST)[:, None].repeat(2, 1)
    np.savez(path, **{"param.x": np.arange(200.0), "steps": np.arange(1, 9), "curves": curves})
    return str(path)


@pytest.mark.parametrize("seeds", [1, 2])
def test_of_equal_results_the_one_that_was_better_before_is_the_best(capped: str, sqlite_url: str, seeds: int) -> None:
    options: dict[str, Any] = {"trials": 12, "epochs": (1, 8, 2), "scheduler": "adaptive", "seeds": seeds, "seed": 7}
    with Store(sqlite_url) as store:
        progress: StudyProgress | None = None
        shown = []

        def look(study: rekindle.Study, trial: Any) -> None:
            nonlocal progress
            progress = progress or StudyProgress(store, "s")
            shown.append(progress.look().best)

        study = rekindle.tune("tabular", capped, storage=store, study="s", progress=False, callbacks=[look], **options)
        trials = study_json(store, "s")["trials"]
        ended = {trial["number"]: trial["rungs"][-2]["return"] for trial in trials if trial["epochs"] == 8}
        assert len(ended) > 1
        assert {trial["return"] for trial in trials if trial["epochs"] == 8} == {HIGHEST}
        best = max(ended, key=lambda number: ended[number])
        assert best != min(ended)  # what was tried first has no advantage
        assert [trial["number"] for trial in rank(trials)][: len(ended)] == sorted(ended, key=lambda n: -ended[n])
        assert study.best is not None
        assert study.best.number == best
        assert study_json(store, "s")["best"]["number"] == summary_json(store, "s")["best"]["number"] == best
        assert confirmation_config(store, "s").options["confirms"]["trials"][0] == best
        assert shown[-1] == StudyProgress(store, "s").look().best == (HIGHEST, best, 8)
