"""Spaces in Optuna and Orion, checked against the real libraries: accepted, searched as meant, and converted back."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from rekindle.spaces import (
    MissingParameter,
    OutOfRange,
    Space,
    SpaceError,
    UnknownParameter,
    categorical,
    fidelity,
    fixed,
    integer,
    log_real,
    lognormal,
    maybe,
    near_one,
    normal,
    ordinal,
    real,
)
from rekindle.spaces.drivers import to_optuna, to_orion

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from orion.client import build_experiment
    from orion.core.io.space_builder import SpaceBuilder

SPACE = Space(
    gamma=near_one(0.9, 0.9999, default=0.99, accept=(0, 1)),
    betas=Space(second=near_one(0.99, 0.9999)),
    num_steps=ordinal(32, 64, 128, default=128, structural=True),
    ent_coef=log_real(1e-8, 0.1, default=0.0, accept=(0, 1)),
    clip_coef=real(0.1, 0.5, step=0.1, default=0.2),
    update_epochs=integer(1, 10, log=True, default=4, structural=True),
    width=integer(16, 64, step=16, default=32),
    target_kl=maybe(log_real(3e-3, 0.1), default=None),
    beta_decay=maybe(near_one(0.9, 0.99)),
    rank=maybe(ordinal(1, 2, 4), default=2),
    activation=categorical("tanh", "relu", None, default="tanh"),
    norm=categorical(True, False, default=False),
    mixed=categorical(1, True, "1", 1.5),
    hidden=categorical([64, 64], [256], None, "wide"),
    optimizer=Space(
        name=categorical("adam", "sgd", default="adam", structural=True),
        momentum=real(0, 0.99, default=0.99, when={"name": "sgd"}),
        nesterov=categorical(False, True, when={"name": "sgd"}),
    ),
    num_envs=integer(1, 64, default=8, search=False),
    version=fixed(3),
    epochs=fidelity(1, 27, 3),
)
seeds = st.integers(0, 2**32 - 1)
quick = settings(derandomize=True, deadline=None, max_examples=30)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    yield
    optuna.logging.set_verbosity(before)


def a_study(seed: int = 1) -> optuna.Study:
    return optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))


def same(a: Any, b: Any) -> bool:
    return json.dumps(a) == json.dumps(b)


# Optuna


def test_optunas_distributions_say_what_is_searched() -> None:
    assert to_optuna.distributions(SPACE) == {
        "one_minus_gamma": FloatDistribution(1 - 0.9999, 1 - 0.9, log=True),
        "betas.one_minus_second": FloatDistribution(1 - 0.9999, 1 - 0.99, log=True),
        "num_steps.index": IntDistribution(0, 2),
        "ent_coef": FloatDistribution(1e-8, 0.1, log=True),
        "clip_coef": FloatDistribution(0.1, 0.5, step=0.1),
        "update_epochs": IntDistribution(1, 10, log=True),
        "width": IntDistribution(16, 64, step=16),
        "target_kl.enabled": CategoricalDistribution((False, True)),
        "target_kl.value": FloatDistribution(3e-3, 0.1, log=True),
        "beta_decay.enabled": CategoricalDistribution((False, True)),
        "beta_decay.one_minus_value": FloatDistribution(1 - 0.99, 1 - 0.9, log=True),
        "rank.enabled": CategoricalDistribution((False, True)),
        "rank.value.index": IntDistribution(0, 2),
        "activation": CategoricalDistribution(("tanh", "relu", None)),
        "norm": CategoricalDistribution((True, False)),
        "mixed": CategoricalDistribution(("1", "true", '"1"', "1.5")),
        "hidden": CategoricalDistribution(("[64, 64]", "[256]", "null", '"wide"')),
        "optimizer.name": CategoricalDistribution(("adam", "sgd")),
        "optimizer.momentum": FloatDistribution(0, 0.99),
        "optimizer.nesterov": CategoricalDistribution((False, True)),
    }


@quick
@given(seeds)
def test_optunas_suggestions_are_valid_and_can_be_read_back_from_the_trial(seed: int) -> None:
    study = a_study(seed)
    trial = study.ask()
    values = to_optuna.suggest(SPACE, trial)
    assert same(values, SPACE.validate(values))
    assert values["epochs"] == 27
    assert (values["num_envs"], values["version"]) == (8, 3)
    assert ("optimizer.momentum" in trial.params) == (values["optimizer"]["name"] == "sgd")
    assert set(trial.params) <= set(to_optuna.distributions(SPACE))
    assert same(values, to_optuna.from_params(SPACE, trial.params))


@quick
@given(seeds)
def test_any_values_can_be_enqueued_and_come_back_bit_for_bit(seed: int) -> None:
    values = SPACE.sample(seed)
    study = a_study()
    params = to_optuna.params(SPACE, values)
    study.enqueue_trial(params)
    trial = study.ask()
    assert same(values, to_optuna.suggest(SPACE, trial))
    assert same(values, to_optuna.from_params(SPACE, params))
    assert trial.params == params
    active = {name: d for name, d in to_optuna.distributions(SPACE).items() if name in params}
    assert set(active) == set(params)
    optuna.trial.create_trial(params=params, distributions=active, value=0.0)  # which checks that it contains them


@quick
@given(seeds, seeds)
def test_a_suggestion_with_a_fixed_structure_has_that_structure(seed: int, other: int) -> None:
    structure = SPACE.structure(SPACE.sample(seed))
    trial = a_study(other).ask()
    values = to_optuna.suggest(SPACE, trial, fixed=structure)
    assert SPACE.structure(values) == structure
    assert set(trial.params) <= set(to_optuna.distributions(SPACE)), (
        "the names of an open structure, so that samplers can learn"
    )
    assert not {"num_steps.index", "optimizer.name", "target_kl.enabled"} & set(trial.params)
    assert same(values, to_optuna.from_params(SPACE, trial.params, fixed=structure))


def test_a_structure_alone_can_be_enqueued() -> None:
    structure = SPACE.structure(SPACE.sample(3))
    study = a_study()
    study.enqueue_trial(to_optuna.params(SPACE, structure))
    assert SPACE.structure(to_optuna.suggest(SPACE, study.ask())) == structure


def test_fixed_values_are_in_the_suggestion_only_where_they_apply() -> None:
    study = a_study()
    for _ in range(10):
        values = to_optuna.suggest(SPACE, study.ask(), fixed={"optimizer": {"momentum": 0.5}, "gamma": 0.95})
        assert values["gamma"] == 0.95
        assert values["optimizer"].get("momentum") == (0.5 if values["optimizer"]["name"] == "sgd" else None)


def test_optunas_own_sampler_searches_a_space_with_conditions() -> None:
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1, n_startup_trials=5))
    study.optimize(lambda trial: to_optuna.suggest(SPACE, trial)["gamma"], n_trials=15)
    assert to_optuna.from_params(SPACE, study.best_params)["gamma"] == study.best_value


def test_a_value_that_optuna_does_not_search_is_refused() -> None:
    values = SPACE.sample(1)
    with pytest.raises(
        OutOfRange, match=r"ent_coef = 0.0 is not where Optuna searches: ent_coef must be .*\[1e-08, 0.1\]"
    ):
        to_optuna.params(SPACE, values | {"ent_coef": 0})
    with pytest.raises(OutOfRange, match=r"gamma = 1.0 is not where Optuna searches: one_minus_gamma must be"):
        to_optuna.params(SPACE, {"gamma": 1})
    wide = Space(width=ordinal(16, 32, 64, default=32, accept=(1, 512)))
    law = r"width = 50 is not where Optuna searches: width must be one of 16, 32, 64, not 50; the nearest is 64"
    with pytest.raises(OutOfRange, match=law):
        to_optuna.params(wide, {"width": 50})
    with pytest.raises(OutOfRange, match=r"num_envs = 16 is not searched by Optuna: fix\(\) it"):
        to_optuna.params(SPACE, {"num_envs": 16})
    assert to_optuna.params(SPACE, {"num_envs": 8, "epochs": 9, "version": 3}) == {}


# Orion


def test_orions_priors_say_what_is_searched() -> None:
    assert to_orion.priors(SPACE) == {
        "one_minus_gamma": f"loguniform({1 - 0.9999!r}, {1 - 0.9!r}, precision=None, default_value={1 - 0.99!r})",
        "betas.one_minus_second": f"loguniform({1 - 0.9999!r}, {1 - 0.99!r}, precision=None)",
        "num_steps.index": "uniform(0, 2, discrete=True, default_value=2)",
        "ent_coef": "loguniform(1e-08, 0.1, precision=None)",
        "clip_coef.index": "uniform(0, 4, discrete=True, default_value=1)",
        "update_epochs": "loguniform(1, 10, discrete=True, default_value=4)",
        "width.index": "uniform(0, 3, discrete=True, default_value=1)",
        "target_kl.enabled": "choices([False, True], default_value=False)",
        "target_kl.value": "loguniform(0.003, 0.1, precision=None)",
        "beta_decay.enabled": "choices([False, True])",
        "beta_decay.one_minus_value": f"loguniform({1 - 0.99!r}, {1 - 0.9!r}, precision=None)",
        "rank.enabled": "choices([False, True], default_value=True)",
        "rank.value.index": "uniform(0, 2, discrete=True, default_value=1)",
        "activation": "choices(['tanh', 'relu', None], default_value='tanh')",
        "norm": "choices([True, False], default_value=False)",
        "mixed": "choices(['1', 'true', '\"1\"', '1.5'])",
        "hidden": "choices(['[64, 64]', '[256]', 'null', '\"wide\"'])",
        "optimizer.name": "choices(['adam', 'sgd'], default_value='adam')",
        "optimizer.momentum": "uniform(0.0, 0.99, precision=None, default_value=0.99)",
        "optimizer.nesterov": "choices([False, True])",
        "epochs": "fidelity(1, 27, 3)",
    }


def test_orion_builds_the_space_and_its_samples_are_valid() -> None:
    space = SpaceBuilder().build(to_orion.priors(SPACE))
    for trial in space.sample(100, seed=1):
        values = to_orion.from_params(SPACE, trial.params)
        assert same(values, SPACE.validate(values))
        assert ("momentum" in values["optimizer"]) == (values["optimizer"]["name"] == "sgd")


@pytest.mark.parametrize(
    "algorithm",
    [{"tpe": {"seed": 1, "n_initial_points": 3}}, pytest.param({"asha": {"seed": 1}}, marks=pytest.mark.slow)],
)
@pytest.mark.filterwarnings("ignore")  # Orion's own
def test_orions_algorithms_suggest_from_the_space(algorithm: dict[str, Any]) -> None:
    space = Space(**{n: d for n, d in SPACE.items() if n != "epochs"})
    if "asha" in algorithm:
        space = Space(**space, epochs=fidelity(1, 3, 3))
    client = build_experiment(
        "t",
        space=to_orion.priors(space),
        algorithm=algorithm,
        max_trials=8,
        storage={"type": "legacy", "database": {"type": "ephemeraldb"}},
    )
    for _ in range(4):
        trial = client.suggest()
        values = to_orion.from_params(space, trial.params)
        assert same(values, space.validate(values))
        client.observe(trial, [{"name": "loss", "type": "objective", "value": values["gamma"]}])
    client.close()


@quick
@given(seeds)
def test_orions_parameters_come_back_bit_for_bit(seed: int) -> None:
    values = SPACE.sample(seed)
    params = to_orion.params(SPACE, values)
    built = SpaceBuilder().build(to_orion.priors(SPACE))
    assert all(value in built[name] for name, value in params.items())
    assert same(values, to_orion.from_params(SPACE, params))
    late = {name: float(value) if name == "epochs" else value for name, value in params.items()}
    assert same(values, to_orion.from_params(SPACE, late)), "Orion's fidelities can be floats"


def test_weights_and_normal_priors_go_to_orion() -> None:
    space = Space(a=categorical("x", "y", weights=(1, 3)), b=normal(0, 2), c=lognormal(1, 0.5))
    assert to_orion.priors(space) == {
        "a": "choices({'x': 0.25, 'y': 0.75})",
        "b": "normal(0.0, 2.0, precision=None)",
        "c": "lognorm(0.5, scale=2.718281828459045, precision=None)",
    }
    samples = [
        to_orion.from_params(space, t.params) for t in SpaceBuilder().build(to_orion.priors(space)).sample(400, seed=1)
    ]
    assert sum(sample["a"] == "y" for sample in samples) == pytest.approx(300, abs=40)
    assert sorted(sample["c"] for sample in samples)[200] == pytest.approx(2.718, rel=0.15)


@quick
@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.sampled_from(["low", "high"]))
def test_orion_takes_a_default_at_the_very_bound(low: float, width: float, bound: str) -> None:
    high = low + width
    space = Space(x=real(low, high, default=low if bound == "low" else high))
    built = SpaceBuilder().build(to_orion.priors(space))
    assert to_orion.from_params(space, {"x": float(built["x"].interval()[1])})["x"] == high


def test_optuna_searches_quantiles_of_weighted_choices() -> None:
    space = Space(a=categorical("x", "y", "z", weights=(1, 2, 1)))
    assert [to_optuna.from_params(space, {"a.quantile": u})["a"] for u in (0.0, 0.24, 0.25, 0.74, 0.75, 1.0)] == list(
        "xxyyzz"
    )
    assert [to_optuna.params(space, {"a": value})["a.quantile"] for value in "xyz"] == [0.125, 0.5, 0.875]


# both


def test_a_dimension_that_optuna_cannot_express_is_named() -> None:
    with pytest.raises(SpaceError, match=r"b: Optuna cannot express a normal prior"):
        to_optuna.suggest(Space(b=normal(0, 2)), a_study().ask())


def test_a_dimension_that_orion_cannot_express_is_named() -> None:
    with pytest.raises(SpaceError, match=r"steps: Orion cannot express a second fidelity"):
        to_orion.priors(Space(epochs=fidelity(1, 9), steps=fidelity(1, 9)))


@pytest.mark.parametrize("driver", [to_optuna, to_orion])
def test_parameters_of_another_space_are_refused(driver: Any) -> None:
    params = driver.params(SPACE, SPACE.sample(1))
    with pytest.raises(UnknownParameter, match=r"(Optuna|Orion) gave lr, but the space has only one_minus_gamma, "):
        driver.from_params(SPACE, params | {"lr": 1})
    del params["one_minus_gamma"]
    with pytest.raises(MissingParameter, match=r"(Optuna|Orion) gave no value for one_minus_gamma"):
        driver.from_params(SPACE, params)
    with pytest.raises(OutOfRange, match=r"one_minus_gamma must be a number in \[.*\], not 0.5"):
        driver.from_params(SPACE, params | {"one_minus_gamma": 0.5})


@pytest.mark.parametrize("convert", [to_optuna.distributions, to_orion.priors])
def test_two_dimensions_of_one_name_in_a_driver_are_refused(convert: Any) -> None:
    with pytest.raises(SpaceError, match=r"gamma: (Optuna|Orion) would have one_minus_gamma twice; rename one"):
        convert(Space(one_minus_gamma=real(0, 1), gamma=near_one(0.9, 0.99)))


def test_an_ordinal_of_one_value_is_still_one_parameter() -> None:
    space = Space(a=ordinal("only"))
    assert to_optuna.suggest(space, a_study().ask()) == {"a": "only"}
    assert to_orion.from_params(space, SpaceBuilder().build(to_orion.priors(space)).sample(1, seed=1)[0].params) == {
        "a": "only"
    }
