"""Dimensions: accepted and refused values, error messages, and sampling."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import FixedTrial
from rekindle.spaces import (
    OutOfRange,
    Space,
    SpaceError,
    WrongType,
    argument,
    categorical,
    curve,
    entry,
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
    sizes,
)
from rekindle.spaces.drivers import to_optuna
from rekindle.spaces.quantiles import quantile

quick = settings(derandomize=True, deadline=None, max_examples=100)
quantiles = st.floats(0, 1, exclude_max=True)

EVERY_KIND = {
    "real": real(-1, 2.5, default=0),
    "quantized real": real(0, 1, step=0.1, default=0.3),
    "log real": log_real(1e-8, 0.1, default=0.01),
    "integer": integer(-3, 7, default=0),
    "quantized integer": integer(16, 128, step=16, default=64),
    "log integer": integer(1, 1000, log=True, default=10),
    "near one": near_one(0.9, 0.9999, default=0.99),
    "normal": normal(0, 2, default=1),
    "log-normal": lognormal(0, 1, default=1),
    "ordinal": ordinal(32, 64, 128, default=64),
    "ordinal of anything": ordinal(None, [32, 32], [64, [1, 2]], "wide", default=None),
    "open ordinal": ordinal(2, 4, 8, accept=(1, 100), default=5),
    "categorical": categorical("tanh", "relu", default="relu"),
    "weighted": categorical(True, False, None, weights=(1, 2, 0.5)),
    "fidelity": fidelity(1, 27, 3),
    "fixed": fixed([1, None]),
    "curve": curve(0, 1, default=[[0, 1], [1000, 0.5]]),
    "sizes": sizes(1, 512, default=[64, 32]),
    "entry": entry("a", "b", group="rekindle.nothing", default="my.nets:Net(heads=2, names=['x'])"),
    "maybe": maybe(log_real(1e-3, 1), default=None),
    "maybe ordinal": maybe(ordinal(1, 2, 3), default=2),
}
every_kind = pytest.mark.parametrize("dimension", EVERY_KIND.values(), ids=EVERY_KIND)


@every_kind
def test_samples_of_a_dimension_are_in_canonical_form(dimension: Any) -> None:
    for u in np.linspace(0, 1, 101, endpoint=False):
        value = dimension.at(float(u))
        assert json.dumps(dimension.check(value, "x")) == json.dumps(value)
    assert dimension.check(dimension.at(math.nextafter(1, 0)), "x") == dimension.at(math.nextafter(1, 0))


@every_kind
def test_no_dimension_holds_what_is_not_finite_or_not_json(dimension: Any) -> None:
    for value in (math.nan, math.inf, -math.inf, np.float32("nan")):
        with pytest.raises(OutOfRange, match=r"^x must be .*, not -?(nan|inf)$"):
            dimension.check(value, "x")
    with pytest.raises(WrongType, match=r"^x must be .*, not <object"):
        dimension.check(object(), "x")


@every_kind
def test_no_dimension_takes_an_unlisted_string(dimension: Any) -> None:
    with pytest.raises(SpaceError, match=r"^x must be .*, not 'abc' \(str\)$"):
        dimension.check("abc", "x")


@pytest.mark.parametrize(
    ("dimension", "value", "canonical"),
    [
        (real(0, 2), 1, 1.0),
        (real(0, 2), np.float32(0.5), 0.5),
        (real(0, 2), np.int64(2), 2.0),
        (real(-1, 1), -0.0, 0.0),
        (real(0, 1, step=0.1), 0.1 + 0.2, 0.3),
        (integer(1, 9), 3.0, 3),
        (integer(1, 9), np.int32(3), 3),
        (fidelity(1, 27), 3.0, 3),
        (ordinal(32, 64), 64.0, 64),
        (ordinal(0.5, 1.0), 1, 1.0),
        (ordinal([64, 64], None), (64, 64), [64, 64]),
        (ordinal([64, 64], None), np.array([64, 64]), [64, 64]),
        (ordinal(2, 4, accept=(1, 100)), 7.0, 7),
        (ordinal(0.5, 1, accept=(0, 100)), 7, 7.0),
        (categorical(1, True), True, True),
        (categorical(True, False), np.bool_(False), False),
        (maybe(real(0, 2)), 1, 1.0),
        (real(0.1, 1, accept=(0, 9)), 9, 9.0),
        (near_one(0.9, 0.99, accept=(0, 1)), 1, 1.0),
        (curve(0, 1, default=[[0, 1]]), ((0, 1), (np.int64(5), np.float32(0.5))), [[0.0, 1.0], [5.0, 0.5]]),
    ],
)
def test_values_become_plain_json_of_the_dimensions_type(dimension: Any, value: Any, canonical: Any) -> None:
    result = dimension.check(value, "x")
    assert json.dumps(result) == json.dumps(canonical)
    assert type(result) is type(canonical)
    assert math.copysign(1, result) == 1 if result == 0.0 and isinstance(result, float) else True


@pytest.mark.parametrize(
    ("dimension", "value", "error", "message"),
    [
        (real(0, 1), 1.5, OutOfRange, r"x must be a number in \[0.0, 1.0\], not 1.5"),
        (real(0, 1), True, WrongType, r"x must be a number in \[0.0, 1.0\], not True"),
        (real(0, 1), None, WrongType, r"x must be a number in \[0.0, 1.0\], not None"),
        (real(0, 1), [0.5], WrongType, r"x must be a number in \[0.0, 1.0\], not \[0.5\] \(list\)"),
        (real(0, 1), 10**400, OutOfRange, "x must fit into a float, not be an integer of that many digits"),
        (real(0, 1, step=0.25), 0.3, OutOfRange, r"x must be .* in \[0.0, 1.0\] in steps of 0.25 from 0.0, not 0.3"),
        (log_real(1e-3, 1), 0, OutOfRange, r"x must be a number in \[0.001, 1.0\], not 0"),
        (real(0.1, 1, accept=(0, 2)), 3, OutOfRange, r"x must be a number in \[0.0, 2.0\], not 3"),
        (integer(1, 9), 10, OutOfRange, r"x must be an integer in \[1, 9\], not 10"),
        (integer(1, 9), 2.5, WrongType, r"x must be an integer in \[1, 9\], not 2.5"),
        (integer(1, 9), False, WrongType, r"x must be an integer in \[1, 9\], not False"),
        (integer(0, 9, step=3), 4, OutOfRange, r"x must be an integer in \[0, 9\] in steps of 3 from 0, not 4"),
        (near_one(0.9, 0.99), 1, OutOfRange, r"x must be a number in \[0.9, 0.99\], not 1"),
        (lognormal(0, 1), 0, OutOfRange, "x must be a number above 0, not 0"),
        (normal(0, 1), "0", WrongType, r"x must be a number, not '0' \(str\)"),
        (ordinal(32, 64), 48, OutOfRange, "x must be one of 32, 64, not 48"),
        (ordinal(32, 64), True, OutOfRange, "x must be one of 32, 64, not True"),
        (ordinal(2, 4, accept=(1, 9)), 10, OutOfRange, r"x must be one of 2, 4, or an integer in \[1, 9\], not 10"),
        (ordinal(2, 4, accept=(1, 9)), 2.5, WrongType, r"x must be one of 2, 4, or an integer in \[1, 9\], not 2.5"),
        (ordinal(*range(24)), 30, OutOfRange, "x must be one of 0, 1, .* 22, 23, not 30"),
        (ordinal(*range(25)), 30, OutOfRange, "x must be one of 25 values, 0, 1, 2, ... 24, not 30"),
        (categorical("a", "b"), "c", OutOfRange, r"x must be one of 'a', 'b', not 'c' \(str\)"),
        (categorical(1, 0), False, OutOfRange, "x must be one of 1, 0, not False"),
        (fidelity(1, 27, 3), 28, OutOfRange, r"x must be an integer in \[1, 27\], not 28"),
        (fidelity(1, 27, 3), 2.5, WrongType, r"x must be an integer in \[1, 27\], not 2.5"),
        (fixed(3), 4, OutOfRange, "x must be 3, to which it is fixed, not 4"),
        (curve(0, 1, default=[[0, 1]]), [[0, 1], [0, 0]], OutOfRange, r"x must be points .*, x rising from 0, y"),
        (curve(0, 1, default=[[0, 1]]), [[-1, 1]], OutOfRange, r"x rising from 0.*, not \[\[-1, 1\]\]"),
        (curve(0, 1, default=[[0, 1]]), [[0, 1.5]], OutOfRange, r"y in \[0, 1\], not \[\[0, 1.5\]\]"),
        (curve(0, 1, default=[[0, 1]]), [], WrongType, r"x must be points such as \[\[0, 1\], \[100000, 0\]\]"),
        (curve(0, 1, default=[[0, 1]]), [0, 1], WrongType, r"x must be points"),
        (curve(0, 1, default=[[0, 1]]), [[0, True]], WrongType, r"x must be points"),
        (curve(0, 1, default=[[0, 1]]), 0.5, WrongType, r"x must be points .*, not 0.5"),
        (maybe(real(0, 1)), 2, OutOfRange, r"x must be None or a number in \[0.0, 1.0\], not 2"),
        (maybe(real(0, 1)), "a", WrongType, r"x must be None or a number in \[0.0, 1.0\], not 'a' \(str\)"),
        (real(0, 1), "a" * 200, WrongType, r"not 'a{76}\.\.\. \(str\)$"),
    ],
)
def test_refusals_say_what_is_expected_and_what_was_given(dimension: Any, value: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        dimension.check(value, "x")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: real(0, 1, default=2), r"the default must be a number in \[0.0, 1.0\], not 2"),
        (lambda: integer(1, 3, default=1.5), r"the default must be an integer in \[1, 3\], not 1.5"),
        (lambda: ordinal(1, 2, default=3), "the default must be one of 1, 2, not 3"),
        (lambda: maybe(real(0, 1), default=3), "the default must be None or a number"),
        (lambda: real(1, 1), r"low below high, not \[1.0, 1.0\]; use fixed\(\)"),
        (lambda: real(2, 1), r"low below high, not \[2.0, 1.0\]"),
        (lambda: real(0, math.inf), "a bound must be finite, not inf"),
        (lambda: real(True, 2), "a bound must be a number, not True"),
        (lambda: real("0", 2), r"a bound must be a number, not '0' \(str\)"),  # type: ignore[arg-type]
        (lambda: real(0, 1, step=0.3), "steps of 0.3 do not lead from 0.0 to 1.0"),
        (lambda: real(0, 1, step=0), "a step must be above 0, not 0.0"),
        (lambda: integer(0, 10, step=3), "steps of 3 do not lead from 0.0 to 10.0|steps of 3 do not lead from 0 to 10"),
        (lambda: integer(0, 10, step=0), "a step must be above 0, not 0"),
        (lambda: integer(1, 9, log=True, step=2), r"a log-uniform range cannot have steps of 2; use ordinal\(\)"),
        (lambda: integer(0, 9, log=True), "a log-uniform range of integers must begin at 1 or more, not at 0"),
        (lambda: integer(0, 2.5), "the bounds and steps of integers must be integers below .*, not 2.5"),  # type: ignore[arg-type]
        (lambda: integer(0, 2**60), "the bounds and steps of integers must be integers below"),
        (lambda: log_real(0, 1), "a log-uniform range must begin above 0, not at 0"),
        (lambda: real(0, 1, accept=(0.5, 2)), r"accept must contain the searched \[0.0, 1.0\], not be \[0.5, 2.0\]"),
        (lambda: near_one(0.4, 0.9), r"near_one searches inside \[0.5, 1\), not \[0.4, 0.9\]; use real\(\)"),
        (lambda: near_one(0.9, 1), r"near_one searches inside \[0.5, 1\), not \[0.9, 1\]"),
        (lambda: normal(0, 0), "a standard deviation must be above 0, not 0"),
        (lambda: ordinal(), "a choice needs at least one value"),
        (lambda: ordinal(1, 2, 1), "the values of a choice must differ: 1, 2, 1"),
        (lambda: ordinal([1], [1]), r"the values of a choice must differ: \[1\], \[1\]"),
        (lambda: ordinal(1, math.nan), "a choice must be finite, not nan"),
        (lambda: ordinal({}, 1), "a choice must be None, a bool, a number, a string or a list of them"),
        (lambda: ordinal(1, 20, accept=(1, 10)), r"every value of an ordinal with accept must be .*, not 20"),
        (lambda: ordinal(1, 2, accept=(0.5, 10)), "the bounds and steps of integers must be integers"),
        (lambda: categorical("a", "b", weights=(1,)), r"2 choices need as many weights above 0, not \[1.0\]"),
        (lambda: categorical("a", "b", weights=(1, 0)), r"2 choices need as many weights above 0, not \[1.0, 0.0\]"),
        (
            lambda: fidelity(0, 9),
            "a fidelity needs 1 <= low <= high and a base of 2 or more, not low 0, high 9, base 2",
        ),
        (lambda: fidelity(1, 9, 1), "not low 1, high 9, base 1"),
        (lambda: curve(1, 1, default=[[0, 1]]), r"a curve needs low below high, not \[1.0, 1.0\]"),
        (lambda: curve(0, 1, default=[[0, 2]]), "the default must be points"),
        (lambda: maybe(curve(0, 1, default=[[0, 1]])), r"maybe\(\) takes a dimension that is searched, not Curve"),
        (lambda: maybe(sizes(1, 9)), r"maybe\(\) takes a dimension that is searched, not Sizes"),
        (lambda: sizes(1, 9, structural=False), "sizes are structural, and not searched"),
        (lambda: sizes(1, 9, default=[10]), r"the default must be None or a list of 1 to 16 integers in \[1, 9\]"),
        (lambda: maybe(fixed(3)), r"maybe\(\) takes a dimension that is searched, not Fixed"),
        (lambda: maybe(3), r"maybe\(\) takes a dimension that is searched, not int"),  # type: ignore[arg-type]
        (lambda: maybe(real(0, 1, when={"a": 1})), r"write when= for maybe\(\) itself"),
        (lambda: real(0, 1, when={"a": ()}), "when a: no value is named"),
        (lambda: real(0, 1e30, step=0.3e30), r"steps of 3e\+29 do not lead from 0.0 to 1e\+30"),
        (lambda: normal(0, 1e308), "normal numbers must fit into a float, unlike those of 0.0 and 1e\\+308"),
        (lambda: real(0, 1, when=3), r"when must be values by name, such as \{'name': 'sgd'\}, not 3"),  # type: ignore[arg-type]
        (lambda: real(0, 1, when={1: 3}), r"when must be values by name, .*, not \{1: 3\} \(dict\)"),  # type: ignore[dict-item]
        (lambda: real(0, 1, structural="no"), r"structural must be True or False, not 'no' \(str\)"),  # type: ignore[arg-type]
        (lambda: real(0, 1, search=0), "search must be True or False, not 0"),  # type: ignore[arg-type]
        (lambda: lognormal(1000, 1), "the mean of a logarithm must lie within ±700, not be 1000.0"),
        (lambda: real(0, 1, search=False), r"a dimension that is not searched \(search=False\) needs a default"),
    ],
)
def test_a_dimension_that_means_nothing_cannot_be_built(build: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        build()


@quick
@given(st.floats(0.5, math.nextafter(1, 0)))
def test_the_distance_from_one_is_exact_there_and_back(x: float) -> None:
    assert 1 - (1 - x) == x


@quick
@given(st.floats(0.5, 0.9999), quantiles)
def test_near_one_reaches_its_bounds_and_never_passes_them(low: float, u: float) -> None:
    dimension = near_one(low, 0.99995)
    assert dimension.at(0) == pytest.approx(0.99995, abs=1e-15)
    assert low <= dimension.at(u) <= 0.99995
    distance = dimension.distance
    assert (1 - distance.low, 1 - distance.high) == (0.99995, low)


def test_near_one_spends_as_much_on_every_factor_of_the_distance() -> None:
    dimension = near_one(0.9, 0.9999)
    assert dimension.at(1 / 3) == pytest.approx(0.999)
    assert dimension.at(2 / 3) == pytest.approx(0.99)


def test_a_log_uniform_range_spends_as_much_on_every_factor() -> None:
    assert log_real(1e-4, 1).at(0.5) == pytest.approx(1e-2)
    counts = np.bincount([integer(1, 3, log=True).at(u) for u in np.linspace(0, 1, 10_000, endpoint=False)])
    assert counts[1:] / 10_000 == pytest.approx(np.log([1.5 / 0.5, 2.5 / 1.5, 3.5 / 2.5]) / np.log(7), abs=1e-3)


def test_steps_are_exact_in_decimal_and_equally_likely() -> None:
    dimension = real(0, 1, step=0.1)
    values = [dimension.at(u) for u in np.linspace(0, 1, 1100, endpoint=False)]
    assert sorted(set(values)) == [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1]
    assert {values.count(value) for value in values} == {100}


def test_choices_come_by_their_weights() -> None:
    dimension = categorical("a", "b", "c", weights=(1, 2, 1))
    values = [dimension.at(u) for u in np.linspace(0, 1, 400, endpoint=False)]
    assert [values.count(value) for value in "abc"] == [100, 200, 100]


def test_normal_priors_have_their_mean_and_deviation() -> None:
    values = np.array([normal(3, 2).at(u) for u in (np.arange(4000) + 0.5) / 4000])
    assert (values.mean(), values.std()) == (pytest.approx(3), pytest.approx(2, rel=0.01))
    assert lognormal(3, 2).at(0.5) == pytest.approx(math.exp(3))
    assert math.isfinite(normal(0, 1).at(0))
    wide = lognormal(0, 1000)
    assert 0 < wide.check(wide.at(0), "x") < 1 < wide.check(wide.at(0.9999), "x")  # type: ignore[operator]


def test_steps_may_be_as_many_as_floats_can_count() -> None:
    assert real(0, 1e30, step=1).at(0.25) == 2.5e29
    assert real(0, 1e30, step=1e29).at(0.3) == 3e29


def test_an_accepted_value_below_a_log_uniform_range_has_its_lowest_quantile() -> None:
    assert quantile(integer(1, 100, log=True, accept=(0, 1000)), 0) == 0
    assert quantile(log_real(1, 100, accept=(0, 1000)), 0) == 0
    assert quantile(integer(1, 100, log=True), 10) == pytest.approx(math.log(20) / math.log(201))


def test_maybe_is_none_half_of_the_time() -> None:
    dimension = maybe(real(0, 1))
    assert dimension.at(0.49) is None
    assert dimension.at(0.75) == 0.5


def test_a_maybe_of_what_is_not_searched_is_not_searched() -> None:
    space = Space(flag=maybe(categorical(True, False, default=False, search=False)))
    assert (space.flat()["flag"].search, to_optuna.distributions(space)) == (False, {})
    assert to_optuna.suggest(space, FixedTrial({})) == {"flag": False}
    assert space.sample(seed=0) == {"flag": False}


def test_the_default_of_maybe_is_that_of_its_dimension_unless_said() -> None:
    assert maybe(real(0, 1, default=0.5)).default == 0.5
    assert maybe(real(0, 1, default=0.5), default=None).default is None


def test_a_fidelity_is_at_its_highest_and_has_rungs() -> None:
    assert fidelity(1, 27, 3).default == fidelity(1, 27, 3).at(0) == 27
    assert fidelity(1, 27, 3).rungs == (1, 3, 9, 27)
    assert fidelity(2, 10, 2).rungs == (2, 4, 8, 10)
    assert fidelity(5, 5).rungs == (5,)


def test_a_list_that_is_handed_out_is_not_the_dimensions_own() -> None:
    dimension = ordinal([1, 2], [3])
    dimension.check([1, 2], "x").append(9)  # type: ignore[union-attr]
    dimension.at(0).append(9)  # type: ignore[union-attr]
    assert dimension.check([1, 2], "x") == [1, 2]


@pytest.mark.parametrize(
    ("length", "shown"), [(76, "'" + 76 * "x" + "'"), (78, "'" + 78 * "x" + "'"), (79, "'" + 76 * "x" + "...")]
)
def test_a_message_shows_the_beginning_of_a_long_value(length: int, shown: str) -> None:
    with pytest.raises(WrongType, match=rf"not {re.escape(shown)} \(str\)"):
        real(0, 1, default=0).check(length * "x", "lr")


def test_an_argument_is_data_with_classes_by_name() -> None:
    dimension = argument()
    checked = '{"act": "builtins:int", "sizes": [64, {"b": null}]}'
    for value in (
        {"sizes": (64, {"b": None}), "act": int},
        checked,
        "{'sizes': [64, {'b': None}], 'act': 'builtins:int'}",
    ):
        assert dimension.check(value, "x") == checked
    assert dimension.value(checked) == {"act": "builtins:int", "sizes": [64, {"b": None}]}
    assert [dimension.check(value, "x") for value in (None, 3, -0.5, True, "auto", (1, 2))] == [
        None, 3, -0.5, True, "auto", [1, 2],
    ]  # fmt: skip
    for value in (len, {1: 2}, {"a": [float("nan")]}, "{3}", "{", "{[1]: 2}", object()):
        with pytest.raises(WrongType, match=r"^x must be None, a number, .* or a dict as text, .*, but x"):
            dimension.check(value, "x")
