"""The tabular task: recorded curves, replayed epoch by epoch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rekindle import Cohort, tune
from rekindle.spaces import SpaceError
from rekindle.studies.cli.dispatch import main
from rekindle.tasks.algorithms.tabular import Tabular, read_table
from rekindle.tasks.envs import EnvSpecError
from rekindle.tasks.errors import Diverged

LR, KIND = [0.001, 0.001, 0.1, 0.1], ["adam", "sgd", "adam", "sgd"]
CURVES = np.arange(4 * 2 * 4, dtype=np.float32).reshape(4, 2, 4)  # row, seed, point
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(**changes: Any) -> str:
        arrays = {"param.lr": np.array(LR), "param.kind": np.array(KIND), "curves": CURVES, "meta": "{}"}
        path = tmp_path / "table.npz"
        np.savez(path, **{"steps": np.array([0.0, 100, 200, 300]), **arrays, **changes})
        return str(path)

    return write


def test_epochs_walk_along_the_row_of_the_hyperparameters_and_the_column_of_the_seed(write: Write) -> None:
    table = write()
    for row, (lr, optimizer) in enumerate(zip(LR, KIND, strict=True)):
        for seed in (0, 1, 2):
            task = Tabular(table, seed=seed).init(lr=lr, kind=optimizer)
            assert task.evaluate() == CURVES[row, seed % 2, 0]
            task.fit(3)
            assert [metrics["episode_return"] for _, metrics in task.history] == CURVES[row, seed % 2, 1:].tolist()
            assert (task.evaluate(), task.env_steps) == (CURVES[row, seed % 2, 3], 300)


def test_other_hyperparameters_take_the_nearest_row(write: Write) -> None:
    rows = np.array([0, 3])  # of the full grid
    table = write(**{"param.lr": np.array(LR)[rows], "param.kind": np.array(KIND)[rows], "curves": CURVES[rows]})
    assert read_table(table).nearest({"lr": 0.04, "kind": "adam"}) == 0
    assert read_table(table).nearest({"lr": 0.07, "kind": "sgd"}) == 1


def test_each_hyperparameter_weighs_the_same(write: Write) -> None:
    along = np.linspace(0, 1, 101)
    depth = np.where(along > 0, 3, 1)  # a few integers are ordinal, from 0 to 1 as the ranges are
    columns = {"param.lr": along, "param.kind": along, "param.depth": depth}
    table = read_table(write(**columns, curves=np.zeros((101, 1, 4))))
    assert table.nearest({"lr": 1.0, "kind": 1.0, "depth": 1}) == 100  # 1 apart, not sqrt(2)
    assert table.nearest({"lr": 0.4, "kind": 0.4, "depth": 1}) == 0


def test_booleans_choose_rows(write: Write, tmp_path: Path) -> None:
    table = write(**{"param.kind": np.array([False, True, False, True])})
    assert Tabular(table).get_space().priors()["kind"] == "choices([False, True], default_value=False, structural=True)"
    for row, lr in enumerate(LR):
        assert Tabular(table).init(lr=lr, kind=row % 2 == 1).evaluate() == CURVES[row, 0, 0]
    options: dict[str, Any] = {"epochs": 3, "trials": 8, "cohort": 1, "progress": False}
    study = tune("tabular", table, storage=f"sqlite:///{tmp_path}/s.db", **options)
    assert {trial.hyperparameters["kind"] for trial in study.trials} == {False, True}


@pytest.mark.parametrize("value", [3.0, 1e300, "sgd", True])
def test_a_hyperparameter_with_one_value_is_fixed(write: Write, value: Any) -> None:
    table = write(**{"param.kind": np.full(4, value)})
    assert set(Tabular(table).get_space().searched().priors()) >= {"lr"}
    task = Tabular(table).init(lr=LR[2])
    assert task.evaluate() == CURVES[2, 0, 0]
    assert Tabular(table).init(lr=LR[2], kind=value).uid == task.uid
    with pytest.raises(SpaceError, match=r"kind must be .*, to which it is fixed, not 'adam'"):
        Tabular(table).init(kind="adam")
    row = write(**{"param.lr": np.array([0.1]), "param.kind": np.array(["sgd"]), "curves": CURVES[3:]})
    assert Tabular(row).init().evaluate() == CURVES[3, 0, 0]


def test_a_range_is_logarithmic_if_its_values_are(write: Write) -> None:
    lr = np.geomspace(1e-5, 1e-1, 100)
    changes = {"param.kind": np.linspace(-1, 1, 100), "curves": np.zeros((100, 1, 4))}
    table = write(**{"param.lr": lr}, **changes)
    priors = Tabular(table).get_space().priors()
    assert ["loguniform" in priors[name] for name in ("lr", "kind")] == [True, False]
    assert read_table(table).nearest({"lr": float(lr[7]) * 1.01, "kind": -1 + 2 * 7 / 99}) == 7


def test_a_range_of_integers_has_no_other_numbers(write: Write) -> None:
    width, budget = np.arange(3, 303, 3), np.geomspace(10, 1e6, 100).round()  # a budget as floats
    columns = {"param.lr": np.append(width[:-1], 300.5), "param.kind": width, "param.budget": budget}
    table = write(**columns, curves=np.zeros((100, 1, 4)))
    space = Tabular(table).get_space()
    assert space.priors() == {
        "lr": "uniform(3.0, 300.5, default_value=151.75)",
        "kind": "uniform(3, 300, discrete=True, default_value=152)",
        "budget": "loguniform(10, 1000000, discrete=True, default_value=3162)",
        "epoch_steps": "fixed(100, structural=True)",
    }
    drawn = [space.sample(seed) for seed in range(20)]
    assert all(isinstance(values[name], int) for values in drawn for name in ("kind", "budget"))
    row = {name: column[40].item() for name, column in (("lr", width), ("kind", width), ("budget", budget))}
    assert read_table(table).nearest({**row, "kind": row["kind"] + 1, "budget": row["budget"] * 1.02}) == 40
    with pytest.raises(SpaceError, match=r"kind must be an integer in \[3, 300\], not 33.5"):
        Tabular(table).init(kind=33.5)


def test_a_fixed_integer_may_have_any_size(write: Write) -> None:
    table = write(
        **{"param.id": np.array([2**60] * len(LR)), "param.least": np.array([-(2**53) + 1, *range(len(LR) - 1)])}
    )
    assert Tabular(table).get_space().priors()["id"] == f"fixed({2**60})"


def test_less_is_better_where_the_table_says_so(write: Write) -> None:
    assert Tabular(write(meta=json.dumps({"maximize": False})), seed=1).init(lr=0.1, kind="sgd").fit(1)[
        "episode_return"
    ] == -float(CURVES[3, 1, 1])


def test_resuming_and_a_cohort_change_nothing(write: Write) -> None:
    table = write()
    together = [Tabular(table, seed=seed).init(lr=0.1) for seed in range(3)]
    Cohort(together).fit(3)
    for seed, task in enumerate(together):
        alone, resumed = (Tabular(table, seed=seed).init(lr=0.1) for _ in range(2))
        alone.fit(2)
        resumed.load_state_dict(alone.state_dict())
        resumed.fit(3)
        assert (resumed.digest, resumed.evaluate()) == (task.digest, task.evaluate())


def test_a_recorded_training_that_diverged_diverges(write: Write) -> None:
    curves = CURVES.copy()
    curves[0, 0, 2] = np.nan
    task = Tabular(write(curves=curves)).init(lr=0.001, kind="adam")
    task.fit(1)
    with pytest.raises(Diverged, match=r"episode_return became nan.*the recorded training diverged"):
        task.fit(2)


def test_the_content_of_the_table_is_part_of_the_identity(write: Write) -> None:
    table = write()
    task = Tabular(table).init()
    write(curves=CURVES + 1)
    assert Tabular(table).init().uid != task.uid
    with pytest.raises(EnvSpecError, match=r"with the table that it started with, sha256 .* restore the old file"):
        task.fit(1)


def test_training_beyond_the_end_of_the_table_is_refused_before_it_begins(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = Tabular(write()).init(lr=0.1)
    with pytest.raises(EnvSpecError, match=r"table\.npz has only 3 epochs, but got 4; train at most 3$"):
        task.fit(4)
    assert task.epochs == 0
    database = tmp_path / "studies.db"
    command = ["train", "tabular", write(), "--set", "lr=0.1", "--storage", f"sqlite:///{database}"]
    assert main([*command, "--epochs", "4"]) == 2
    assert "table.npz has 3 epochs, but --epochs ends at 4; end at 3" in capsys.readouterr().err
    assert not database.exists()
    assert main([*command, "--epochs", "3"]) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": np.array([0.0, 2, 1, 3])}, "steps rise from 0 or more, but they are "),
        (
            {"steps": np.array([0.0, 100, 166.5, 300])},
            r"table\.npz: steps are whole environment steps, but point 2 has 166\.5; round them \(np\.rint\)",
        ),
        ({"steps": np.array([1.0])}, "steps are one number for each of 4 points, but they are float64 "),
        ({"curves": np.zeros(4)}, r"curves are numbers \(trainings, seeds, points\), but they are float64 "),
        ({"param.lr": np.array([1, np.nan, 3, 4])}, "lr is a finite number, but in row 1 it is not"),
        ({"param.lr": np.array([1.0])}, "lr is a number, a text or a boolean for each of 4 trainings, but it is f"),
        ({"param.lr": np.array(LR) * 1j}, "lr is a number, a text or a boolean for each of .*, but it is complex128 "),
        ({"param.optimizer.lr": np.array(LR)}, "name is an identifier, .*, but one is 'optimizer.lr'; rename it"),
        (
            {"param.id": 2**60 + np.arange(len(LR))},
            r"id has integers below 2\*\*53.*, but in row 0 it is 1152921504606846976; write it as floats, or as texts",
        ),
        ({"param.epochs": np.array(LR)}, "and none of epochs, start, uid, but one is 'epochs'; rename it"),
        ({"param.epoch_steps": np.array(LR)}, "epoch_steps follows from steps, but it is a hyperparameter"),
        ({"meta": "[]"}, 'meta is an object whose "maximize" is true or false, but it is '),
        ({"meta": "no json"}, 'meta is an object whose "maximize" is true or false, but it is no json'),
    ],
)
def test_an_invalid_table_is_refused(write: Write, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvSpecError, match=message):
        Tabular(write(**changes))


def test_a_file_that_is_missing_or_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvSpecError, match=r"an .npz file, but got 'no.npz': No such file.*give its path"):
        Tabular("no.npz")
    np.savez(tmp_path / "other.npz", steps=np.ones(3))
    with pytest.raises(EnvSpecError, match=r"needs the arrays .* but curves, param.NAME is missing"):
        Tabular(str(tmp_path / "other.npz"))


def test_a_study_whose_trials_all_fail_says_so(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write(curves=np.full((4, 2, 4), np.nan))
    command = ["tune", "tabular", table, "--storage", f"sqlite:///{tmp_path}/studies.db", "--workers", "1"]
    command += ["--trials", "2", "--sampler", "bruteforce", "--scheduler", "none", "--study", "recorded"]
    assert main(command) == 1
    out = " ".join(capsys.readouterr().out.split())
    why = f"rekindle trials recorded --storage sqlite:///{tmp_path}/studies.db"
    assert f"no trial has a result: 2 failed; `{why}` says why" in out
    assert main([*command, "--json"]) == 1
    output = capsys.readouterr()
    assert json.loads(output.out)["counts"]["failed"] == 2
    assert "study recorded: 2 of 2 trials failed; trial 0: Diverged: " in " ".join(output.err.split())


def test_a_study_on_a_table_finds_its_best_row(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, table = f"sqlite:///{tmp_path}/studies.db", write()
    command = ["tune", "tabular", table, "--storage", url, "--workers", "1", "--study", "recorded", "--json"]
    assert main([*command, "--epochs", "1:4"]) == 2
    assert "table.npz has 3 epochs, but --epochs ends at 4; end at 3" in capsys.readouterr().err
    assert main([*command, "--sampler", "bruteforce", "--trials", "4"]) == 0
    best = json.loads(capsys.readouterr().out)["best"]
    assert best["epochs"] == 3  # as far as the table goes, where nothing else is asked for
    assert (best["hyperparameters"]["lr"], best["hyperparameters"]["kind"], best["return"]) == (0.1, "sgd", 27.0)


def test_a_study_of_python_ends_where_the_table_ends(write: Write, tmp_path: Path) -> None:
    study = tune("tabular", write(), trials=2, storage=f"sqlite:///{tmp_path}/s.db", progress=False)
    assert study.config.epochs[:2] == [1, 3]
