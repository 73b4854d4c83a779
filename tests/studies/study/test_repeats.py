"""Trials that repeat the best ones with further seeds, and what a study ranks by."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rekindle
import sqlalchemy as sa
from rekindle.studies.cli import main
from rekindle.studies.cli.output.tables import best_table
from rekindle.studies.engine.ranking import rank
from rekindle.studies.engine.runner import start_study
from rekindle.studies.engine.snapshots import StudyProgress
from rekindle.studies.engine.study_views import study_view, summary_view
from rekindle.studies.engine.tune_options import study_config
from rekindle.studies.errors import BadConfig
from rekindle.studies.storage.rows import Segment, Trial
from rekindle.studies.storage.sql import schema
from rekindle.studies.storage.store import Store
from rekindle.studies.study.config import Config
from rekindle.studies.study.repeats import best_to_repeat, origin
from rekindle.studies.upkeep.fsck import check
from rekindle.studies.workers.worker import Worker
from rekindle.tasks import load
from replaying import assert_follows_from_rows


def config_of(**options: Any) -> Config:
    return study_config(rekindle.PPO, "CartPole-v1", **{"trials": 16, "epochs": "1:27", **options})


@pytest.fixture
def lucky(tmp_path: Path) -> str:
    """A table of 32 configurations whose results are as noisy as the configurations differ."""
    random = np.random.default_rng(3)
    curves = random.normal(0, 10, (32, 1, 1)) + random.normal(0, 10, (32, 16, 32))
    np.savez(tmp_path / "lucky.npz", **{"param.x": np.arange(32.0), "steps": np.arange(1, 33), "curves": curves})
    return str(tmp_path / "lucky.npz")


@pytest.mark.parametrize(
    ("options", "repeating"),
    [
        ({}, [range(14, 16)]),
        ({"trials": 7}, []),
        ({"trials": 8}, [range(7, 8)]),
        ({"trials": 100}, [range(96, 100)]),
        ({"repeats": 3}, [range(13, 16)]),
        ({"repeats": 0}, []),
        ({"scheduler": "halving"}, []),
        ({"seeds": 2}, []),
        ({"constraint": "episode_length<=200"}, []),
        ({"objective": ["return", "model_size"]}, []),
        ({"sampler": "bruteforce", "search": ["num_steps", "update_epochs"], "trials": 16}, []),
    ],
)
def test_one_of_eight_trials_repeats_the_best(options: dict[str, Any], repeating: list[range]) -> None:
    assert [*config_of(**options).repeating] == repeating


def test_known_trials_are_not_replaced_by_repeats() -> None:
    known = [{"gamma": 0.9 + n / 100} for n in range(8)]
    assert config_of(trials=8, known=known).repeating == ()
    assert config_of(trials=9, known=known).repeating == (range(8, 9),)
    with pytest.raises(BadConfig, match="so 1 of 9, of which 8 are given, but --repeats is 2; take fewer, or more"):
        config_of(trials=9, known=known, repeats=2)


def test_a_task_without_an_environment_repeats_only_what_it_is_asked_to() -> None:
    assert study_config(load("surrogate"), None, trials=16).repeating == ()
    assert study_config(load("surrogate"), None, trials=16, repeats=2).repeating == (range(14, 16),)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"repeats": 9}, "and none that is given, so 8 of 16, of which 7 are given, but --repeats is 9; take fewer"),
        ({"repeats": -1}, "repeats must be an integer of at least 0, but got -1"),
        ({"repeats": 2, "scheduler": "asha"}, "only the scheduler adaptive waits for them, and not asha; leave it out"),
        ({"repeats": 2, "seeds": 3}, "all trials have several trainings already .* leave it out"),
        ({"repeats": 2, "constraint": "episode_length<=9"}, "by one objective without constraints; leave it out"),
    ],
)
def test_repeats_that_are_not_possible_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(BadConfig, match=why):
        config_of(**options)


def test_the_command_line_takes_repeats(sqlite_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["create", "ppo", "CartPole-v1", "--storage", sqlite_url, "--json", "--repeats"]
    for text, repeating in (("0", ()), ("3", (range(13, 16),))):
        assert main([*words, text, "--study", text]) == 0
        with Store(sqlite_url) as store:
            assert Config.from_json(store.study(text).config, text).repeating == repeating
    with pytest.raises(SystemExit):
        main([*words, "x"])
    assert "argument --repeats: must be a number of at least 0, but got 'x'" in capsys.readouterr().err


def test_an_extension_ends_with_repeats_unless_it_is_small(store: Store) -> None:
    config = start_study(store, "s", config_of())
    assert start_study(store, "s", config_of(trials=32)).repeating == (range(14, 16), range(30, 32))
    assert start_study(store, "s", config_of(trials=33)).repeating == (range(14, 16), range(30, 32))
    assert config.repeating == (range(14, 16),)


def test_a_rerun_keeps_the_stored_repeats_or_their_absence(store: Store) -> None:
    start_study(store, "old", config_of(repeats=0))
    assert start_study(store, "old", config_of()).repeating == ()


def test_the_best_trials_are_repeated_with_further_seeds_and_rank_by_their_mean(lucky: str, sqlite_url: str) -> None:
    options: dict[str, Any] = {"trials": 16, "epochs": (1, 32, 2), "repeats": 4, "seed": 5, "progress": False}
    with Store(sqlite_url) as store:
        study = rekindle.tune("tabular", lucky, storage=store, study="s", **options)
        view = study_view(store, "s")
        repeats, others = view.trials[12:], view.trials[:12]
        ended = sorted((t for t in others if t.epochs == 32), key=lambda t: (-t.results()["return"], t.number))
        best = ended[:4]
        wanted = [best[index % len(best)].number for index in range(4)]
        assert [trial.repeats for trial in repeats] == wanted
        assert len(best) >= 2
        for trial in repeats:
            [of] = [other for other in others if other.number == trial.repeats]
            seed = 5 + 1 + sum(other.repeats == trial.repeats for other in repeats[: repeats.index(trial)])
            assert trial.hyperparameters == of.hyperparameters
            assert trial.uid == load("tabular")(lucky, seed=seed).init(x=of.hyperparameters["x"]).uid
            assert trial.epochs == 32
        means = {
            of.number: statistics.fmean(
                [of.results()["return"], *(t.results()["return"] for t in repeats if t.repeats == of.number)]
            )
            for of in ended
        }
        winner = max(means, key=lambda number: means[number])
        first = rank(view.trials)[0]
        assert winner in (first.number, first.repeats)
        assert winner != ended[0].number  # whose result was luck
        assert first.over_seeds == {"return": pytest.approx(means[winner])}
        assert study.best is not None
        assert study.best.over_seeds == first.over_seeds
        assert view.best is not None
        assert summary_view(store, "s").best == view.best
        shown = [column.header for column in best_table(view, ["x"]).columns][1:]
        assert shown[0] == str(first.number)
        origins = [origin(view.trials[int(str(number))]) for number in shown]
        assert len(origins) == len({*origins}) == 5  # each configuration once
        assert study.best.number == view.best.number == first.number == StudyProgress(store, "s").look().best[1]  # type: ignore[index]
        assert not check(store)
        assert_follows_from_rows(store)


def test_excluded_results_count_in_no_mean(lucky: str, sqlite_url: str) -> None:
    options: dict[str, Any] = {"trials": 16, "epochs": (1, 32, 2), "repeats": 2, "seed": 5, "progress": False}
    with Store(sqlite_url) as store:
        study = rekindle.tune("tabular", lucky, storage=store, study="s", **options)
        study.exclude(14)
        trials = study_view(store, "s").trials
        assert trials[trials[14].repeats or 0].over_seeds is None
        assert 14 not in [trial.number for trial in rank(trials)]


def test_trials_of_which_a_repeat_failed_are_not_the_best(lucky: str, sqlite_url: str) -> None:
    options: dict[str, Any] = {"trials": 16, "epochs": (1, 32, 2), "repeats": 2, "seed": 5, "progress": False}
    with Store(sqlite_url) as store:
        study = rekindle.tune("tabular", lucky, storage=store, study="s", **options)
        assert study.best is not None
        before = study.best.number, study.best.repeats
        of_best = study.trials[before[0]] if before[1] is None else study.trials[before[1]]
        [again] = [trial for trial in study.trials if trial.repeats == of_best.number]
        table = schema.trial
        store.database.write(
            lambda connection: connection.execute(
                sa.update(table).where(table.c.study == "s", table.c.number == again.number).values(state="failed")
            )
        )
        view = study_view(store, "s")
        assert view.trials[of_best.number].unreliable
        assert view.best is not None
        assert view.best.number not in (of_best.number, again.number)
        assert summary_view(store, "s").best == view.best
        assert StudyProgress(store, "s").look().best[1] == view.best.number  # type: ignore[index]
        ranked = [trial.number for trial in rank(view.trials)]
        ended = [trial.number for trial in view.trials if trial.epochs == 32]
        assert {*ranked[len(ended) - 2 : len(ended)]} == {of_best.number, again.number}
        study.exclude(again.number, "the machine had no memory left")
        view = study_view(store, "s")
        assert not view.trials[of_best.number].unreliable
        assert summary_view(store, "s").best == view.best


def test_enqueued_trials_do_not_take_the_place_of_repeats(lucky: str, sqlite_url: str) -> None:
    options: dict[str, Any] = {"trials": 8, "epochs": (1, 32, 2), "repeats": 2, "seed": 5}
    with Store(sqlite_url) as store:
        start_study(store, "s", study_config(load("tabular"), lucky, **options))
        study = rekindle.Study("s", store)
        worker = Worker(store, "s")
        worker.runner.advance()
        assert len(store.trials("s")) == 6
        study.enqueue({"x": 31.0})
        assert study.run(progress=False).complete
        assert [trial.repeats is None for trial in store.trials("s")] == [True] * 6 + [False] * 2 + [True]
        assert study.trials[8].hyperparameters["x"] == 31.0


def test_few_finishers_are_repeated_several_times_and_none_not_at_all() -> None:
    config = config_of(repeats=3)
    trials = [Trial(n, f"{n}", {"x": n}) for n in range(3)]
    rows = [Segment(1, len(config.rungs) - 1, 27, state="done", score=1.0)]
    assert [(r.trial.number, r.seed) for r in best_to_repeat(config, trials, rows, 3)] == [(1, 1), (1, 2), (1, 3)]
    assert not best_to_repeat(config, trials, [], 3)
