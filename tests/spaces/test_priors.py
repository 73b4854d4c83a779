"""Dimensions as text: round trips, and no evaluation of code."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rekindle.spaces import (
    Dimension,
    SpaceError,
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
from rekindle.spaces.priors import parse, render

TEXTS = {
    "uniform(0.0, 1.0)": real(0, 1),
    "uniform(0.0, 1.0, step=0.1, default_value=0.3)": real(0, 1, step=0.1, default=0.3),
    "loguniform(1e-05, 0.01)": log_real(1e-5, 1e-2),
    "uniform(-3, 9, discrete=True)": integer(-3, 9),
    "uniform(0, 9, discrete=True, step=3)": integer(0, 9, step=3),
    "loguniform(1, 9, discrete=True, default_value=2, structural=True)": integer(
        1, 9, log=True, default=2, structural=True
    ),
    "near_one(0.9, 0.9999, accept=(0.0, 1.0), default_value=1.0)": near_one(0.9, 0.9999, accept=(0, 1), default=1),
    "normal(0.0, 1.0)": normal(0, 1),
    "lognormal(0.0, 1.0)": lognormal(0, 1),
    "ordinal([None, [1, 2], 'a'], default_value=None)": ordinal(None, [1, 2], "a", default=None),
    "ordinal([2, 4], accept=(1, 9), default_value=5)": ordinal(2, 4, accept=(1, 9), default=5),
    "choices(['a', 'b'])": categorical("a", "b"),
    "choices([True, None], weights=[1.0, 3.0])": categorical(True, None, weights=(1, 3)),
    "fidelity(1, 27, 3)": fidelity(1, 27, 3),
    "fidelity(1, 27, 3, default_value=9)": fidelity(1, 27, 3, default=9),
    "fixed([1, 'x'])": fixed([1, "x"]),
    "maybe(loguniform(0.003, 0.1), default_value=None)": maybe(log_real(3e-3, 0.1), default=None),
    "sizes(1, 512, default_value=[64, 32], search=False, structural=True)": sizes(1, 512, default=[64, 32]),
    "entry(['a', 'b'], group='g', default_value='m:C(k=1)')": entry("a", "b", group="g", default="m:C(k=1)"),
    "argument(default_value='{\"a\": [1]}', search=False, structural=True)": argument(default={"a": (1,)}),
    "curve(0.0, 1.0, default_value=[[0.0, 1.0]], when={'a': 'b'})": curve(0, 1, default=[[0, 1]], when={"a": "b"}),
    "uniform(0.0, 1.0, when={'name': 'sgd'})": real(0, 1, when={"name": "sgd"}),
    "uniform(0.0, 1.0, when={'a.b': (1, None), 'c': [1]})": real(0, 1, when={"a.b": (1, None), "c": [1]}),
    "uniform(0.0, 1.0, default_value=0.5, search=False)": real(0, 1, default=0.5, search=False),
    "choices([False, True], default_value=False, search=False, silent=True)": categorical(
        False, True, default=False, search=False, silent=True
    ),
}


@pytest.mark.parametrize(("text", "dimension"), TEXTS.items(), ids=TEXTS)
def test_every_dimension_has_one_text(text: str, dimension: Dimension) -> None:
    assert render(dimension) == text
    assert parse(text) == dimension


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        (" loguniform(1e-5, 1e-2) ", log_real(1e-5, 1e-2)),
        ("uniform(0, 1, default_value=.5)", real(0, 1, default=0.5)),
        ("uniform(0, 1, default=.5)", real(0, 1, default=0.5)),
        ("uniform(0, 1, discrete=False)", real(0, 1)),
        ("uniform(-1, +1)", real(-1, 1)),
        ("choices('a', 'b')", categorical("a", "b")),
        ("choices(('a', 'b'))", categorical("a", "b")),
        ("choices({'a': 0.2, 'b': 0.8})", categorical("a", "b", weights=(0.2, 0.8))),
        ("gaussian(0, 1)", normal(0, 1)),
        ("fidelity(1, 27)", fidelity(1, 27, 2)),
        ("fidelity(low=1, high=27, base=3)", fidelity(1, 27, 3)),
    ],
)
def test_texts_may_be_written_as_orion_writes_them(text: str, dimension: Dimension) -> None:
    assert parse(text) == dimension


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "uniform(0, 1",
            r"^lr: uniform\(0, 1: a prior is a word with literals, such as uniform\(0, 1\): '\(' was never closed$",
        ),
        ("3", r"^lr: 3: a prior is written word\(arguments\)"),
        ("np.uniform(0, 1)", r"a prior is written word\(arguments\)"),
        ("unifrom(0, 1)", r"there is no prior 'unifrom'; did you mean uniform\?"),
        ("uniform(0, high)", "high is no literal, such as 1e-3, 'a', True or"),
        ("uniform(0, 1 + 1)", r"1 \+ 1 is no literal"),
        ("uniform(0, __import__('os').system('true'))", r"__import__\('os'\)\.system\('true'\) is no literal"),
        ("uniform(0, inf)", "inf is no literal"),
        ("gamma(2)", r"there is no prior 'gamma'; write uniform\(0, 1\), .* or maybe\(uniform\(0, 1\)\)"),
        ("uniform(-1.7e308, 1.7e308)", "the width of a range must fit into a float"),
        ("uniform(**{'low': 0})", r"a prior takes no \*\*"),
        ("uniform(0)", r"uniform does not take these arguments; write uniform\(0, 1\), perhaps with discrete=True"),
        ("uniform(0, 1, colour=3)", "uniform does not take these arguments"),
        ("uniform(0, 1, default_value=2)", r"^lr: uniform.*: the default must be a number in \[0.0, 1.0\], not 2"),
        ("loguniform(0, 1)", r"^lr: loguniform\(0, 1\): a log-uniform range must begin above 0, not at 0"),
        ("maybe(3)", r"a prior is written word\(arguments\)"),
        ("maybe(uniform(0, 1), uniform(0, 1))", "maybe does not take these arguments"),
        ("", "a prior is a word with literals"),
        ("(" * 5000, "a prior is a word with literals"),
        ("-" * 15000 + "1", "a prior is"),
        ("x" * 30_000, "a prior is a text of at most 20000 characters, not "),
        (3, "a prior is a text of at most 20000 characters, not 3; a program gets a value that is not s"),
    ],
)
def test_a_text_that_is_no_prior_is_refused_with_its_name(text: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        parse(text, "lr")


finite = st.floats(allow_nan=False, allow_infinity=False)
bounds = (
    st.tuples(finite, finite).map(sorted).filter(lambda pair: pair[0] < pair[1] and math.isfinite(pair[1] - pair[0]))
)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(bounds, st.booleans(), st.dictionaries(st.sampled_from("ab"), st.text(max_size=5) | finite, max_size=2))
def test_any_range_survives_its_text(pair: list[float], structural: bool, when: dict[str, Any]) -> None:
    dimension = real(*pair, default=pair[0], structural=structural, when=when)
    assert parse(render(dimension)) == dimension


scalars = st.none() | st.booleans() | st.integers() | finite.map(lambda x: x + 0.0) | st.text(max_size=10)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.lists(scalars | st.lists(scalars, max_size=3), min_size=1, max_size=5, unique_by=repr))
def test_any_choice_survives_its_text(values: list[Any]) -> None:
    for dimension in (ordinal(*values), categorical(*values, default=values[-1])):
        again = parse(render(dimension))
        assert again == dimension
        assert repr(again) == repr(dimension)  # where 1 == True == 1.0 would not tell
