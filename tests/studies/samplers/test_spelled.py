"""Samplers that are spelled package.module:Class(argument=value): reproducible, or said not to be."""

from __future__ import annotations

import functools
import importlib.util
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import own_samplers
import pytest
import rekindle
from rekindle.studies.engine.checked_config import make_config, remarks
from rekindle.studies.errors import BadConfig, StudyMismatch
from rekindle.studies.samplers.registry import make_sampler, sampler_name
from rekindle.studies.samplers.spelled import Spelled, spelled
from rekindle.tasks import load

SURROGATE = load("surrogate")


def values(study: rekindle.Study) -> list[object]:
    return [(trial.number, trial.hyperparameters["lr"], trial.digest) for trial in study.trials]


def tuned(path: Path, sampler: object, name: str = "one", trials: int = 6, **more: object) -> rekindle.Study:
    options: dict[str, Any] = {**more, "sampler": sampler, "scheduler": "none", "generation": 2, "progress": False}
    storage = f"sqlite:///{path}"
    return rekindle.tune("surrogate", "none", trials=trials, epochs=2, storage=storage, study=name, **options)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("own_samplers:Independent( low = 0.5 )", "own_samplers:Independent(low=0.5)"),
        ("optuna.samplers:TPESampler(n_startup_trials=3)", "optuna.samplers:TPESampler(n_startup_trials=3)"),
        (own_samplers.Independent, "own_samplers:Independent"),
        (functools.partial(own_samplers.Independent, low=0.5), "own_samplers:Independent(low=0.5)"),
        (
            functools.partial(optuna.samplers.GPSampler, n_startup_trials=9),
            "optuna.samplers:GPSampler(n_startup_trials=9)",
        ),
        (optuna.samplers.TPESampler(seed=1), "optuna.samplers:TPESampler"),
        (own_samplers.Independent(0.25), "own_samplers:Independent(low=0.25)"),
        (own_samplers.Bold(seed=3), "own_samplers:Bold"),
        (optuna.samplers.TPESampler(n_startup_trials=3), "optuna.samplers:TPESampler(n_startup_trials=3)"),
        (optuna.samplers.CmaEsSampler(seed=1), "cmaes"),
    ],
)
def test_a_sampler_has_one_name(text: object, name: str) -> None:
    assert sampler_name(text) == name


def test_arguments_reach_the_sampler(tmp_path: Path) -> None:
    low = tuned(tmp_path / "low.db", "own_samplers:Independent(high=0.5)", trials=8)
    drawn = [trial.hyperparameters["lr"] for trial in low.trials[1:]]  # the first takes the defaults
    low_lr, high_lr = 1e-5, 1e-1
    space = low.config.space["lr"]
    assert all(rate <= math.sqrt(low_lr * high_lr) * 1.001 for rate in drawn), space


def test_an_instance_is_the_sampler_that_its_arguments_make(tmp_path: Path) -> None:
    studies = [
        tuned(tmp_path / f"{number}.db", sampler)
        for number, sampler in enumerate((own_samplers.Independent(0.25), "own_samplers:Independent(low=0.25)"))
    ]
    assert values(studies[0]) == values(studies[1])
    assert studies[0].config == studies[1].config


def test_an_instance_with_further_attributes_is_refused() -> None:
    sampler = own_samplers.Independent(0.25)
    sampler.drawn = 3  # type: ignore[attr-defined]  # as one that has been used may have
    with pytest.raises(BadConfig, match="Independent has the attributes of this one; give one that has not been used"):
        sampler_name(sampler)


def test_a_sampler_of_ones_own_learns_which_trials_are_infeasible(tmp_path: Path) -> None:
    bounds = {"return<=1e9": 1e-1, "return>=1e9": 1e-5}
    for bound, expected in bounds.items():
        study = tuned(tmp_path / f"{expected}.db", "own_samplers:Cautious", trials=4, constraint=bound)
        assert study.trials[3].hyperparameters["lr"] == pytest.approx(expected), bound


def test_a_sampler_that_needs_constraints_is_refused_without_one(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="own_samplers:Demanding cannot be made: ValueError: there are no constraints"):
        tuned(tmp_path / "a.db", "own_samplers:Demanding")
    study = tuned(tmp_path / "a.db", "own_samplers:Demanding", trials=4, constraint="return<=-1e9")
    assert study.trials[3].hyperparameters["lr"] == pytest.approx(1e-5)


def test_the_source_of_a_sampler_of_optunahub_is_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "samplers" / "mine"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from .drawing import Mine\n")
    (package / "drawing.py").write_text("import own_samplers\n\n\nclass Mine(own_samplers.Bold):\n    pass\n")
    (package / "helper.py").write_text("")
    # as OptunaHub does it
    name = "optunahub_registry.package.samplers.mine"
    spec = importlib.util.spec_from_file_location(name, package / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    monkeypatch.setitem(sys.modules, name, module := importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)
    mine = sampler_name(module.Mine())
    before = Spelled(mine).source
    (package / "helper.py").write_text("changed = True\n")
    assert (mine, Spelled(mine).source == before) == (f"{name}.drawing:Mine", False)


@pytest.mark.parametrize("sampler", ["own_samplers:Independent", "own_samplers:Bold(startup=1)"])
def test_a_study_that_is_resumed_suggests_what_an_undisturbed_one_does(tmp_path: Path, sampler: str) -> None:
    whole = tuned(tmp_path / "whole.db", sampler)

    def stop(study: rekindle.Study, trial: rekindle.StudyTrial) -> None:
        raise KeyboardInterrupt

    options = {"sampler": sampler, "scheduler": "none", "generation": 2, "progress": False}
    parts = {"trials": 6, "epochs": 2, "storage": f"sqlite:///{tmp_path / 'parts.db'}", "study": "one", **options}
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            rekindle.tune("surrogate", "none", callbacks=[stop], **parts)
    assert values(rekindle.tune("surrogate", "none", **parts)) == values(whole)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("7.0", r"Wrong\(value=7.0\) must draw \w+ from FloatDistribution.*, but drew 7.0; correct the sampler"),
        ("'high'", "but drew 'high'; correct the sampler"),
        ("'error'", r"Wrong\(value='error'\) cannot draw: ZeroDivisionError: no prior trial"),
        ("'silence'", r"Wrong\(value='silence'\) cannot draw: AssertionError in .*own_samplers.py:\d+$"),
    ],
)
def test_a_sampler_that_draws_no_valid_value_is_named(tmp_path: Path, value: str, message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        tuned(tmp_path / "a.db", f"own_samplers:Wrong(value={value})")


def test_a_sampler_that_cannot_be_repeated_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="own_samplers:Unrepeatable is not reproducible: two that were made alike"):
        tuned(tmp_path / "a.db", "own_samplers:Unrepeatable")
    config = make_config(SURROGATE, "none", epochs=[1, 2], sampler="own_samplers:Independent", trials=4)
    assert remarks(config) == []


def test_another_source_is_another_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "my_sampler.py"
    source = "import own_samplers\n\nclass Mine(own_samplers.Independent):\n    pass\n"
    module.write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    tuned(tmp_path / "a.db", "my_sampler:Mine")
    config = make_config(SURROGATE, "none", epochs=[1, 2], sampler="my_sampler:Mine", trials=4)
    changed = replace(config, options={**config.options, "sampler_source": "0" * 16})
    with pytest.raises(BadConfig, match="the source of sampler my_sampler:Mine must be that of the study"):
        make_sampler(changed, 0)
    spelled.cache_clear()
    monkeypatch.delitem(__import__("sys").modules, "my_sampler")
    module.write_text(source + "    number = staticmethod(lambda: 0.5)\n")
    with pytest.raises(StudyMismatch, match="sampler_source"):
        tuned(tmp_path / "a.db", "my_sampler:Mine", trials=8)
    spelled.cache_clear()


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        ("own_samplers:Missing", "cannot be imported: AttributeError"),
        ("no_such_module:Class", "cannot be imported: ModuleNotFoundError"),
        ("own_samplers:not_a_sampler", "must be a class derived from optuna.samplers.BaseSampler"),
        ("own_samplers:Independent(0.5)", "arguments have names"),
        ("own_samplers:Independent(low=open)", "must have the form package.module:Class"),
        ("own_samplers:Independent(low=", "must have the form package.module:Class"),
        ("own_samplers:Independent(lowest=0.5)", "cannot be made: TypeError.*lowest"),
        ("own_samplers:Bold(seed=3)", "must leave out seed, which each trial gets from the study's --seed"),
        ("optuna.samplers:CmaEsSampler", "take --sampler cmaes"),
        (optuna.samplers.CmaEsSampler(popsize=10), "take --sampler cmaes"),
        (own_samplers.Cautious(len), r"Cautious has the excesses of this one; .* functools.partial\(Cautious, arg"),
        (own_samplers.Bold(startup=4), "Bold has the _n_startup_trials of this one; give one that has not been used"),
    ],
)
def test_another_object_is_refused_as_a_sampler(tmp_path: Path, sampler: object, message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        tuned(tmp_path / "a.db", sampler)
    assert not (tmp_path / "a.db").exists()
