"""User-defined priors: what they change in a space, what they keep, and which are refused."""

from __future__ import annotations

import pytest
from rekindle.spaces import (
    REQUIRED,
    Space,
    SpaceError,
    categorical,
    integer,
    log_real,
    maybe,
    ordinal,
    real,
    with_priors,
)
from rekindle.spaces.priors import render

SPACE = Space(
    optimizer=Space(
        name=categorical("adam", "sgd", default="adam", structural=True, search=False),
        lr=log_real(3e-5, 1e-2, default=1e-3, accept=(0.0, 100.0)),
        momentum=real(0.0, 0.99, default=0.5, when={"name": "sgd"}),
    ),
    width=ordinal(32, 64, default=64, accept=(1, 65536), structural=True),
    limit=maybe(real(0.1, 5.0, accept=(1e-6, 1e6)), default=None),
    epochs=integer(1, 10, default=4, accept=(1, 1000)),
)


@pytest.mark.parametrize(
    ("name", "text", "rendered"),
    [
        ("optimizer.lr", "loguniform(1e-5, 2e-3)", "loguniform(1e-05, 0.002, default_value=0.001)"),
        ("optimizer.lr", "uniform(0.1, 0.3)", "uniform(0.1, 0.3, default_value=0.2)"),
        ("optimizer.lr", "loguniform(0.1, 1, default_value=0.5)", "loguniform(0.1, 1.0, default_value=0.5)"),
        ("optimizer.lr", "normal(0.001, 1e-4)", "normal(0.001, 0.0001, default_value=0.001)"),
        ("optimizer.name", "choices('adam', 'sgd')", "choices(['adam', 'sgd'], default_value='adam', structural=True)"),
        (
            "optimizer.momentum",
            "uniform(0.75, 0.875)",
            "uniform(0.75, 0.875, default_value=0.8125, when={'name': 'sgd'})",
        ),
        ("width", "ordinal(128, 256)", "ordinal([128, 256], default_value=256, structural=True)"),
        ("limit", "maybe(uniform(0, 1))", None),
        ("limit", "uniform(1, 3)", "uniform(1.0, 3.0, default_value=2.0)"),
        ("epochs", "choices(1, 20)", "choices([1, 20], default_value=20)"),
    ],
)
def test_a_prior_takes_the_place_of_the_range_and_leaves_the_rest(name: str, text: str, rendered: str | None) -> None:
    if rendered is None:
        with pytest.raises(
            SpaceError, match=r"the prior .* has values that are not allowed: limit must be None or a number in"
        ):
            with_priors(SPACE, {name: text})
        return
    changed = with_priors(SPACE, {name: text})
    assert render(changed.flat()[name]) == rendered
    others = {path: text for path, text in SPACE.priors().items() if path != name}
    assert {path: text for path, text in changed.priors().items() if path != name} == others
    assert list(changed.flat()) == list(SPACE.flat())


def test_a_prior_makes_a_hyperparameter_searched_and_resolves_its_conditions() -> None:
    assert {SPACE.searched().sample(seed)["optimizer"]["name"] for seed in range(20)} == {"adam"}
    changed = with_priors(SPACE, {"optimizer.name": "choices('sgd', 'adam')"}).searched()
    samples = [changed.sample(seed)["optimizer"] for seed in range(20)]
    assert {sample["name"] for sample in samples} == {"adam", "sgd"}
    assert all(("momentum" in sample) == (sample["name"] == "sgd") for sample in samples)


def test_every_sample_is_one_that_the_space_itself_takes() -> None:
    priors = {
        "optimizer.lr": "loguniform(1e-5, 50)",
        "limit": "maybe(uniform(2, 9))",
        "width": "uniform(1, 5, discrete=True)",
    }
    changed = with_priors(SPACE, priors).searched()
    for seed in range(50):
        SPACE.validate(changed.sample(seed))


def test_a_hyperparameter_without_a_default_stays_without_none() -> None:
    [dimension] = with_priors(Space(x=real(0, 1)), {"x": "uniform(0.5, 1)"}).flat().values()
    assert dimension.default is not REQUIRED


@pytest.mark.parametrize(
    ("priors", "message"),
    [
        ({"optimizer.rl": "uniform(0, 1)"}, r"there is no hyperparameter 'optimizer.rl' that is open; did you mean"),
        (
            {"optimizer.lr": "uniform(-1, 1)"},
            r"the prior uniform\(-1.0, 1.0\) has values that are not allowed: optimizer.lr must be",
        ),
        ({"optimizer.lr": "loguniform(1, 1000)"}, r"optimizer.lr must be a number in \[0.0, 100.0\], not 1000.0"),
        (
            {"optimizer.lr": "choices('a', 'b')"},
            r"has values that are not allowed: optimizer.lr must be a number in .*, not 'a'",
        ),
        ({"optimizer.name": "choices('adam', 'lion')"}, r"optimizer.name must be .*, not 'lion'"),
        ({"epochs": "uniform(1, 3)"}, r"epochs must be an integer in \[1, 1000\], not"),
        ({"epochs": "normal(0.5, 1)"}, r"epochs must be an integer"),
        ({"width": "fixed(32)"}, r"width: a prior must be searched, but got fixed\(32\)"),
        ({"epochs": "fidelity(1, 27)"}, r"epochs: a prior must be searched"),
        ({"width": "ordinal(32, 64, when={'limit': 1})"}, r"width: a prior must have no when= and no search="),
        ({"width": "ordinal(32, 64"}, r"width: ordinal\(32, 64: a prior is a word with literals"),
        ({"width": "__import__('os')"}, r"there is no prior '__import__'"),
    ],
)
def test_invalid_values_are_named(priors: dict[str, str], message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        with_priors(SPACE, priors)
