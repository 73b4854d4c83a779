"""Studies that are extended to more epochs, or to other ranges."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from rekindle.studies import Study
from rekindle.studies.engine.runner import start_study
from rekindle.studies.errors import BadConfig, CommandRefused
from rekindle.studies.storage.store import Store
from rekindle.studies.upkeep.fsck import check
from rekindle.studies.workers.worker import Worker
from replaying import assert_follows_from_rows
from studying import bits, surrogate, tiny, undisturbed

Cli = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("scheduler", ["halving", "adaptive"])
def test_a_study_that_is_extended_to_more_epochs_is_one_that_had_them(sqlite_url: str, scheduler: str) -> None:
    """Where neither suggestions nor promotions depend on how many rungs there are: a single bracket, random ones."""
    make = lambda epochs: surrogate(4, epochs=epochs, scheduler=scheduler, sampler="random")  # noqa: E731
    with Store(sqlite_url) as store:
        start_study(store, "s", make((3, 9, 3)))
        study = Study("s", store).run(progress=False)
        study.extend(epochs=40)
        assert (study.config.rungs, study.complete) == ((3, 9, 27, 40), False)
        assert study.run(progress=False).complete
        assert study.best is not None
        assert study.best.epochs == 40
        assert not check(store)
        assert_follows_from_rows(store)
        if scheduler == "halving":
            assert bits(store) == undisturbed(make((3, 40, 3)))
        start_study(store, "s", make((3, 9, 3)))  # the first command again
        assert study.config.rungs == (3, 9, 27, 40)


@pytest.mark.parametrize("seeds", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_all_trials_train_on_where_none_is_pruned(sqlite_url: str, seeds: int) -> None:
    of_seeds = {"seeds": seeds, "aggregate": "mean"}
    with Store(sqlite_url) as store:
        start_study(store, "s", surrogate(3, scheduler="none", epochs=(3,), options=of_seeds))
        study = Study("s", store).run(progress=False)
        study.extend(5, epochs=9)
        study.run(progress=False)
        assert [trial.epochs for trial in study.trials] == [9] * 5
        assert {row.state for row in store.trials("s")} == {"complete"}
        longest = undisturbed(surrogate(3, scheduler="none", epochs=(9,), options=of_seeds))
        ends = {row.digest for row in store.segments("s") if row.epochs == 9}
        assert {row.digest for row in longest["segments"]} & ends  # the first trials take the same values


def test_further_trials_search_other_ranges(sqlite_url: str, cli: Cli) -> None:
    with Store(sqlite_url) as store:
        start_study(store, "s", surrogate(8))
        study = Study("s", store).run(progress=False)
        words = ["extend", "s", "--storage", sqlite_url]
        assert cli(*words, "--trials", "20", "--prior", "lr=loguniform(2e-4, 4e-4)", "--why", "it lies there")[0] == 0
        assert "lr" in study.commands[-1].data["priors"]
        study.run(progress=False)
        rates = [trial.hyperparameters["lr"] for trial in study.trials]
        assert all(2e-4 <= rate <= 4e-4 for rate in rates[8:])
        assert any(not 2e-4 <= rate <= 4e-4 for rate in rates[:8])
        study.extend(24, priors={"lr": "loguniform(1e-5, 1e-1)"})
        study.run(progress=False)
        assert not check(store)
        assert_follows_from_rows(store)
        assert [command.data for command in study.commands if "trials" in command.data] == [
            {"trials": 20},
            {"trials": 24},
        ]
        start_study(store, "s", surrogate(8))  # the first command again
        assert study.config.priors["lr"].startswith("loguniform(1e-05, 0.1")


def test_a_worker_that_lives_while_ranges_change_suggests_what_a_new_one_does(tmp_path: Path) -> None:
    results = []
    for lives in (True, False):
        with Store(f"sqlite:///{tmp_path / str(lives)}.db") as store:
            start_study(store, "s", surrogate(8))
            worker = Worker(store, "s")
            assert worker.run()
            Study("s", store).extend(20, priors={"lr": "loguniform(2e-4, 4e-4)"})
            assert (worker if lives else Worker(store, "s")).run()
            results.append(bits(store))
    assert results[0] == results[1]


def test_an_extension_that_is_impossible_is_an_error(sqlite_url: str) -> None:
    with Store(sqlite_url) as store:
        start_study(store, "s", surrogate())
        start_study(store, "brackets", surrogate(scheduler="hyperband"))
        start_study(store, "points", surrogate(4, sampler="grid", epochs=(1,), options={"grid_points": 2}))
        for name, given, error in (
            ("s", {"epochs": 9}, "extend takes more epochs than 's' has, 9, but got 9"),
            ("s", {"epochs": 0}, "epochs must be an integer of at least 1, but got 0"),
            (
                "brackets",
                {"epochs": 27},
                "only schedulers that compare rung by rung .* can add rungs, but 'brackets' has hyperband",
            ),
            ("s", {"priors": {"lr": "uniform(1e-4, 1e-3)"}}, "a changed --prior keeps its kind, such as loguniform"),
            (
                "s",
                {"priors": {"noise": "uniform(0, 1)"}},
                "a study keeps searching the same names, but --prior names 'noi",
            ),
            ("points", {"trials": 5000}, "a grid is trained once, but it has 16 points for 5000 trials"),
            ("points", {"priors": {"lr": "loguniform(1e-4, 1e-3)"}}, "a grid keeps its points, but --prior names 'lr'"),
        ):
            before = store.study(name).config
            with pytest.raises((CommandRefused, BadConfig), match=error):
                Study(name, store).extend(**given)  # type: ignore[arg-type]
            assert store.study(name).config == before
            assert store.commands(name) == []


@pytest.mark.slow
def test_a_real_training_resumes_from_its_checkpoint(sqlite_url: str) -> None:
    with Store(sqlite_url) as store:
        start_study(store, "s", tiny(4, (1, 2, 2)))
        study = Study("s", store).run(progress=False)
        study.extend(epochs=4)
        study.run(progress=False)
        best = study.best
        assert best is not None
        [other] = [t for t in undisturbed(tiny(4, (1, 4, 2)))["segments"] if t.number == best.number and t.epochs == 4]
        assert (best.epochs, best.digest) == (4, other.digest)
