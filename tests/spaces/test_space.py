"""Spaces: names, conditions, parsed values, errors, and derived spaces."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rekindle.spaces import (
    MissingParameter,
    OutOfRange,
    Space,
    SpaceError,
    UnknownParameter,
    WrongType,
    categorical,
    curve,
    fidelity,
    fixed,
    flatten,
    integer,
    log_real,
    maybe,
    near_one,
    ordinal,
    real,
    unflatten,
)

SPACE = Space(
    gamma=near_one(0.9, 0.9999, default=0.99),
    num_steps=ordinal(32, 64, 128, 256, default=128, structural=True),
    ent_coef=log_real(1e-8, 0.1, default=0.0, accept=(0, 1)),
    target_kl=maybe(log_real(3e-3, 0.1), default=None),
    optimizer=Space(
        name=categorical("adam", "sgd", "rmsprop", default="adam", structural=True),
        lr=log_real(1e-5, 1e-1, default=3e-4),
        momentum=real(0, 0.99, default=0.0, when={"name": ("sgd", "rmsprop")}),
        nesterov=categorical(False, True, default=False, when={"name": "sgd", "momentum": 0.5}),
    ),
    model=Space(hidden=ordinal([32, 32], [64, 64], default=[64, 64], structural=True)),
    epochs=fidelity(1, 27, 3),
)
DEFAULTS = {
    "gamma": 0.99,
    "num_steps": 128,
    "ent_coef": 0.0,
    "target_kl": None,
    "optimizer": {"name": "adam", "lr": 3e-4},
    "model": {"hidden": [64, 64]},
    "epochs": 27,
}
seeds = st.integers(0, 2**64)
quick = settings(derandomize=True, deadline=None, max_examples=50)


def test_defaults_are_complete_and_nested_in_the_order_of_declaration() -> None:
    assert json.dumps(SPACE.defaults()) == json.dumps(DEFAULTS)


def test_a_space_is_a_mapping_of_nested_and_dotted_names() -> None:
    assert list(SPACE) == ["gamma", "num_steps", "ent_coef", "target_kl", "optimizer", "model", "epochs"]
    assert len(SPACE) == 7
    assert SPACE["optimizer.lr"] is SPACE["optimizer"]["lr"]  # type: ignore[index]
    assert "optimizer.lr" in SPACE
    assert "optimizer.lrr" not in SPACE
    assert "gamma.lr" not in SPACE
    assert list(SPACE.flat())[4:8] == ["optimizer.name", "optimizer.lr", "optimizer.momentum", "optimizer.nesterov"]


def test_any_word_can_be_a_name() -> None:
    space = Space(self=real(0, 1, default=0), values=real(0, 1, default=1))
    assert space.validate({"self": 1}) == {"self": 1.0, "values": 1.0}
    assert Space().extend(self=real(0, 1)) == Space(self=real(0, 1))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"a.b": real(0, 1)}, r"a hyperparameter's name must be an identifier, such as a_b, not 'a\.b'"),
        ({"a": 3}, r"a must be a dimension such as real\(0, 1\) or a Space, not 3"),
        ({"b": real(0, 1, when={"a": 1}), "a": integer(0, 1)}, "b depends on a, which must be declared above it"),
        ({"a": real(0, 1, when={"a": 1})}, "a depends on a, which must be declared above it"),
        ({"a": integer(0, 1), "b": real(0, 1, when={"a": 2})}, r"b: when a must be an integer in \[0, 1\], not 2"),
    ],
)
def test_a_space_that_means_nothing_cannot_be_built(entries: dict[str, Any], message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        Space(**entries)


def test_a_condition_on_an_unknown_name_is_refused_where_the_space_is_used() -> None:
    inner = Space(momentum=real(0, 1, default=0, when={"algorithm": "sgd"}))
    with pytest.raises(SpaceError, match=r"momentum depends on algorithm, which is not there"):
        inner.defaults()
    outer = Space(algorithm=categorical("sgd", "adam"), optimizer=inner)
    assert outer.validate({"algorithm": "adam"}) == {"algorithm": "adam"}
    with pytest.raises(SpaceError, match=r"o.momentum depends on algorithm, which .* did you mean algoritm\?"):
        Space(algoritm=categorical("sgd", "adam"), o=inner).sample(1)


def test_conditions_look_beside_first_then_further_out_and_down() -> None:
    space = Space(
        name=categorical("x", "y", default="x"),
        a=Space(name=categorical("p", "q", default="q"), b=integer(0, 1, default=0, when={"name": "q"})),
        c=integer(0, 1, default=0, when={"a.name": "q", "name": "x"}),
        d=Space(e=Space(f=integer(0, 1, default=0, when={"name": "x"}), g=integer(0, 1, default=0, when={"a.b": 1}))),
    )
    assert flatten(space.defaults()) == {"name": "x", "a.name": "q", "a.b": 0, "c": 0, "d.e.f": 0}
    assert flatten(space.validate({"a": {"name": "p"}})) == {"name": "x", "a.name": "p", "d.e.f": 0}
    assert flatten(space.validate({"name": "y", "a.b": 1})) == {"name": "y", "a.name": "q", "a.b": 1, "d.e.g": 0}


def test_values_may_be_nested_or_dotted_and_come_out_canonical() -> None:
    result = SPACE.validate(
        {"optimizer.lr": np.float32(0.5) / 8, "optimizer": {"name": "sgd"}, "num_steps": 64.0, "epochs": 3}
    )
    assert json.dumps(result) == json.dumps(
        DEFAULTS | {"num_steps": 64, "optimizer": {"name": "sgd", "lr": 0.0625, "momentum": 0.0}, "epochs": 3}
    )


def test_one_condition_follows_from_another() -> None:
    result = SPACE.validate({"optimizer": {"name": "sgd", "momentum": 0.5, "nesterov": True}})
    assert result["optimizer"] == {"name": "sgd", "lr": 3e-4, "momentum": 0.5, "nesterov": True}


def test_none_for_a_group_means_its_defaults() -> None:
    assert SPACE.validate({"optimizer": None, "model": None, "target_kl": None}) == DEFAULTS
    assert Space(a=Space(b=Space(c=real(0, 1, default=0)))).validate({"a": {"b": None}}) == {"a": {"b": {"c": 0.0}}}


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"gama": 0.9}, UnknownParameter, r"no hyperparameter 'gama'; did you mean gamma\?$"),
        ({"lr": 0.9}, UnknownParameter, r"there is no hyperparameter 'lr'; did you mean optimizer\.lr\?"),
        ({"optimizer": {"lrr": 1}}, UnknownParameter, r"'optimizer\.lrr'; did you mean optimizer\.lr\?"),
        ({"zzz": 0.9}, UnknownParameter, r"there is no hyperparameter 'zzz'; there are gamma, .*optimizer\.\*"),
        ({"model": {"zzz": 1}}, UnknownParameter, r"'model\.zzz'; there are model\."),
        ({"zzz": None}, UnknownParameter, r"there is no hyperparameter 'zzz'"),
        ({"gamma": 2}, OutOfRange, r"gamma must be a number in \[0\.9, 0\.9999\], not 2"),
        ({"gamma": float("nan")}, OutOfRange, "gamma must be finite, not nan"),
        ({"gamma": "0.99"}, WrongType, r"gamma must be a number in \[0\.9, 0\.9999\], not '0\.99' \(str\)"),
        ({"gamma": {"lr": 1}}, WrongType, r"gamma must be a number in .*, not a group of values"),
        (
            {"optimizer": "adam"},
            WrongType,
            r"optimizer is a group of values and must be a dict, not 'adam' .*; or give its entries, such",
        ),
        (
            {"optimizer": {"momentum": 0.5}},
            UnknownParameter,
            "optimizer.momentum applies only when optimizer.name is 'sgd' or",
        ),
        (
            {"optimizer": {"name": "sgd", "nesterov": True}},
            UnknownParameter,
            "'sgd' and optimizer.momentum is 0.5; leave it out",
        ),
        ({"optimizer.lr": 1e-3, "optimizer": {"lr": 1e-3}}, SpaceError, "optimizer.lr is given twice"),
        (3, WrongType, "values must be a dict by name, not 3"),
    ],
)
def test_values_that_do_not_belong_are_refused(values: Any, error: type[SpaceError], message: str) -> None:
    with pytest.raises(error, match=message):
        SPACE.validate(values)


def test_all_that_is_missing_is_named_at_once() -> None:
    space = Space(a=real(0, 1), b=integer(1, 3), c=real(0, 1, default=0), d=real(0, 1, when={"b": 2}))
    with pytest.raises(
        MissingParameter, match=r"a has no default: give a number in \[0.0, 1.0\]; b has no default: give an int"
    ):
        space.validate({})
    with pytest.raises(MissingParameter, match=r"^d has no default"):
        space.validate({"a": 0, "b": 2})


def test_fixed_values_stand_in_and_are_left_out_where_they_do_not_apply() -> None:
    fixed_values = {"optimizer": {"momentum": 0.9}, "gamma": 0.95}
    assert SPACE.validate({}, fixed=fixed_values) == DEFAULTS | {"gamma": 0.95}
    assert SPACE.validate({"optimizer.name": "sgd"}, fixed=fixed_values)["optimizer"]["momentum"] == 0.9
    assert SPACE.validate({"gamma": 0.95}, fixed=fixed_values)["gamma"] == 0.95
    with pytest.raises(SpaceError, match=r"gamma is fixed to 0.95 and cannot be 0.96"):
        SPACE.validate({"gamma": 0.96}, fixed=fixed_values)


def test_validation_copies_lists() -> None:
    hidden = [32, 32]
    result = SPACE.validate({"model": {"hidden": hidden}})
    result["model"]["hidden"].append(1)
    SPACE.defaults()["model"]["hidden"].append(1)
    assert hidden == [32, 32]
    assert SPACE.defaults() == DEFAULTS


def test_validation_calls_few_functions_for_each_hyperparameter() -> None:
    space = Space(**{f"group{i}": Space(**{f"x{j}": real(0, 1, default=0) for j in range(10)}) for i in range(5)})
    values = space.sample(1)
    calls: list[str] = []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        space.validate(values)
    finally:
        sys.setprofile(None)
    assert len(calls) < 50 * 20


# sampling


@quick
@given(seeds)
def test_a_sample_is_valid_complete_and_a_function_of_its_seed(seed: int) -> None:
    sample = SPACE.sample(seed)
    assert json.dumps(sample) == json.dumps(SPACE.validate(sample)) == json.dumps(SPACE.sample(seed))
    assert sample["epochs"] == 27


def test_samples_differ_and_reach_every_branch() -> None:
    samples = [SPACE.sample(seed) for seed in range(60)]
    assert len({json.dumps(sample) for sample in samples}) == 60
    assert {sample["optimizer"]["name"] for sample in samples} == {"adam", "sgd", "rmsprop"}
    assert {sample["target_kl"] is None for sample in samples} == {False, True}


def test_a_hyperparameters_sample_does_not_depend_on_the_others() -> None:
    smaller = Space(ent_coef=log_real(1e-8, 0.1), gamma=near_one(0.9, 0.9999))
    assert all(smaller.sample(seed)["gamma"] == SPACE.sample(seed)["gamma"] for seed in range(10))


def test_samples_are_the_same_on_every_day() -> None:
    assert SPACE.sample(7) == {"gamma": 0.0} or SPACE.sample(7)["optimizer"]


def test_unsearched_dimensions_have_their_defaults_in_samples_and_are_fixed_for_drivers() -> None:
    space = Space(num_envs=integer(1, 64, default=8, search=False), lr=real(0, 1))
    assert {space.sample(seed)["num_envs"] for seed in range(20)} == {8}
    assert space.validate({"num_envs": 16, "lr": 0})["num_envs"] == 16
    assert space.searched() == Space(num_envs=fixed(8), lr=real(0, 1))


def test_a_silent_value_at_its_default_is_left_out_of_identity_and_structure() -> None:
    old = Space(gamma=real(0, 1, default=0.5))
    more = Space(
        use=categorical(False, True, default=False, structural=True, search=False, silent=True),
        lr=real(0, 1, default=0.1, when={"use": True}),
    )
    new = old.extend(more=more)
    for values in ({}, {"more.use": False}):
        complete = new.validate(values)
        assert complete == {"gamma": 0.5, "more": {"use": False}}
        assert new.identifying(complete) == old.identifying(old.validate({}))
        assert new.structure(values) == old.structure({})
    assert new.identifying(new.sample(3)) == old.sample(3)
    assert new.searched() == old.searched()
    assert new.validate({"more": {"use": True}}) == {"gamma": 0.5, "more": {"use": True, "lr": 0.1}}
    assert new.structure({"more.use": True}) == {"more.use": True}
    assert new.identifying(new.validate({"more.use": True})) == {"gamma": 0.5, "more.use": True, "more.lr": 0.1}
    assert list(new.fix({"more.use": True}).flat()) == ["gamma", "more.lr"]
    with pytest.raises(SpaceError, match="left out at its default"):
        categorical(False, True, default=False, silent=True)


def test_conditions_on_a_fixed_hyperparameter_are_resolved_with_it() -> None:
    choice = categorical("linear", "exponential", default="linear", search=False)
    space = Space(
        kind=choice,
        half_life=real(1, 9, default=2, when={"kind": "exponential"}),
        end=real(0, 1, when={"kind": "linear"}),
    )
    assert space.searched() == Space(kind=fixed("linear"), end=real(0, 1))
    assert space.validate({"kind": "exponential"}) == {"kind": "exponential", "half_life": 2.0}


@pytest.mark.parametrize("seed", [-1, 1.5, True, "1", None])
def test_a_seed_is_an_integer_of_zero_or_more(seed: Any) -> None:
    with pytest.raises(SpaceError, match=r"a seed must be an integer of 0 or more, not"):
        SPACE.sample(seed)


# structure


@quick
@given(seeds)
def test_structure_and_dynamic_part_are_the_whole_but_for_fidelities(seed: int) -> None:
    values = flatten(SPACE.sample(seed))
    structure, dynamic = SPACE.structure(SPACE.sample(seed)), SPACE.dynamic(SPACE.sample(seed))
    enabled = structure.pop("target_kl.enabled")
    assert enabled == (values["target_kl"] is not None) == ("target_kl" in dynamic)
    del values["epochs"]
    if not enabled:
        del values["target_kl"]
    assert structure | dynamic == values
    assert list(structure) == ["num_steps", "optimizer.name", "model.hidden"]


def test_a_structural_maybe_is_structure_as_a_whole() -> None:
    space = Space(a=maybe(ordinal(1, 2, structural=True)), b=maybe(real(0, 1), structural=True))
    assert space.structure({"a": 2, "b": None}) == {"a": 2, "b": None}
    assert space.dynamic({"a": 2, "b": None}) == {}


# fixing


def test_fixing_takes_values_out_and_decides_conditions() -> None:
    opened = SPACE.fix({"optimizer": {"name": "sgd"}, "gamma": 0.95})
    assert "gamma" not in opened
    assert list(opened["optimizer"]) == ["lr", "momentum", "nesterov"]  # type: ignore[arg-type]
    assert opened["optimizer.momentum"] == real(0, 0.99, default=0.0)
    assert opened["optimizer.nesterov"] == categorical(False, True, default=False, when={"momentum": 0.5})
    assert "optimizer.momentum" not in SPACE.fix({"optimizer.name": "adam"})
    assert "optimizer.nesterov" not in SPACE.fix({"optimizer.name": "rmsprop"})


def test_a_conditional_value_stays_as_long_as_its_condition_is_open() -> None:
    opened = SPACE.fix({"optimizer.momentum": 0.9})
    assert opened["optimizer.momentum"] == fixed(0.9, when={"name": ("sgd", "rmsprop")})
    for seed in range(10):
        optimizer = opened.sample(seed)["optimizer"]
        assert optimizer.get("momentum") == (None if optimizer["name"] == "adam" else 0.9)
        assert SPACE.validate(opened.sample(seed), fixed={"optimizer.momentum": 0.9})["optimizer"] == optimizer


def test_fixing_refuses_what_validation_refuses() -> None:
    with pytest.raises(OutOfRange, match=r"gamma must be"):
        SPACE.fix({"gamma": 3})
    with pytest.raises(UnknownParameter, match=r"did you mean gamma"):
        SPACE.fix({"gama": 0.9})
    with pytest.raises(UnknownParameter, match=r"optimizer.momentum applies only when optimizer.name is 'sgd'"):
        SPACE.fix({"optimizer": {"name": "adam", "momentum": 0.9}})
    with pytest.raises(WrongType, match=r"target_kl.enabled must be True or False, not 1"):
        SPACE.fix({"target_kl.enabled": 1})


@quick
@given(seeds, seeds)
def test_fixing_a_structure_leaves_the_trials_of_one_cohort(seed: int, other: int) -> None:
    structure = SPACE.structure(SPACE.sample(seed))
    opened = SPACE.fix(structure)
    assert not any(dimension.structural for dimension in opened.flat().values())
    given_values = {path: value for path, value in structure.items() if path != "target_kl.enabled"}
    if not structure["target_kl.enabled"]:
        given_values["target_kl"] = None
    assert SPACE.structure(SPACE.validate(opened.sample(other), fixed=given_values)) == structure


def test_fixing_everything_leaves_nothing() -> None:
    assert SPACE.fix(SPACE.sample(3)) == Space()
    assert Space().sample(1) == Space().defaults() == {}


def test_fixing_whether_a_maybe_is_none_keeps_a_default_that_still_makes_sense() -> None:
    space = Space(
        a=maybe(real(0, 1, default=0.25), default=None), b=maybe(real(0, 1), default=0.5), c=maybe(real(0, 1))
    )
    opened = space.fix({"a.enabled": True, "b": {"enabled": True}, "c.enabled": False})
    assert opened == Space(a=real(0, 1, default=0.25), b=real(0, 1, default=0.5))


# spaces from spaces


def test_fidelities_can_be_told_apart_and_added() -> None:
    assert SPACE.fidelities() == Space(epochs=fidelity(1, 27, 3))
    without = Space(**{name: entry for name, entry in SPACE.items() if name != "epochs"})
    assert without.extend(epochs=fidelity(1, 27, 3)) == SPACE
    with pytest.raises(SpaceError, match=r"epochs is in the space already"):
        SPACE.extend(epochs=fidelity(1, 9))


def test_equality_tells_order_and_types_apart() -> None:
    a, b = real(0, 1), integer(0, 1)
    assert Space(a=a, b=b) == Space(a=a, b=b)
    assert Space(a=a, b=b) != Space(b=b, a=a)
    assert Space(a=categorical(1)) != Space(a=categorical(True))
    assert Space(a=a) != {"a": a}


def test_json_there_and_back() -> None:
    again = Space.from_json(json.loads(json.dumps(SPACE.to_json(), sort_keys=True)))
    assert again == SPACE
    assert again.sample(5) == SPACE.sample(5)
    assert repr(again) == repr(SPACE)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"version": 2, "dimensions": []}, "this Rekindle reads version 1 of a space's JSON, not 2"),
        ({}, "this Rekindle reads version 1 of a space's JSON, not None"),
        ({"version": 1}, r"a space's JSON holds 'dimensions', a list of \[name, prior\]: KeyError"),
        ({"version": 1, "dimensions": [3]}, r"a space's JSON holds 'dimensions', a list of \[name, prior\]: TypeError"),
        ({"version": 1, "dimensions": [["a", "b", "c"]]}, "a space's JSON holds 'dimensions'"),
        ({"version": 1, "dimensions": [["a", "what(3)"]]}, r"a: what\(3\): there is no prior 'what'"),
        (
            {"version": 1, "dimensions": [["a", "fixed(1)"], ["a.b", "fixed(1)"]]},
            "a.b: a is a value and cannot be a group",
        ),
        (
            {"version": 1, "dimensions": [["a.b", "fixed(1)"], ["a", "fixed(1)"]]},
            "a is given twice, or is a value and a group",
        ),
    ],
)
def test_other_json_is_refused(form: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        Space.from_json(form)


def test_priors_there_and_back() -> None:
    assert Space.from_priors(SPACE.priors()) == SPACE
    assert Space.from_priors({"optimizer": {"lr": "loguniform(1e-5, 1e-2)"}}) == Space(
        optimizer=Space(lr=log_real(1e-5, 1e-2))
    )


# values by name


def test_command_line_texts_are_read_by_their_dimension() -> None:
    space = SPACE.extend(mode=categorical("1", "none", None, default=None), on=categorical(True, False, default=True))
    texts = ["gamma=0.98", "optimizer.lr = 1e-3", "num_steps=64", "target_kl=null", "mode=1", "on=false", "epochs=3"]
    assert space.parse(*texts, "model.hidden=[32, 32]") == {
        "gamma": 0.98,
        "optimizer": {"lr": 1e-3},
        "num_steps": 64,
        "target_kl": None,
        "mode": "1",
        "on": False,
        "epochs": 3,
        "model": {"hidden": [32, 32]},
    }
    assert space.parse("mode=None", "target_kl=None", "on=False") == {"mode": None, "target_kl": None, "on": False}
    assert space.parse("target_kl=none")["target_kl"] is None  # as tables show it


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("gamma", SpaceError, "a hyperparameter must be written name=value, such as gamma=0.98, but got 'gamma'"),
        ("gama=1", UnknownParameter, "did you mean gamma"),
        ("gamma={[1]: 2}", WrongType, r"gamma must be a number in \[0.9, 0.9999\], not '\{\[1\]: 2\}' \(str\)"),
        ("optimizer=adam", WrongType, "optimizer is a group of values"),
        ("gamma=abc", WrongType, r"gamma must be a number .*, not 'abc' \(str\)"),
        ("gamma=nan", WrongType, r"gamma must be a number .*, not 'nan' \(str\)"),
        ("gamma=NaN", WrongType, r"gamma must be a number .*, not 'NaN' \(str\)"),
        ("gamma=", WrongType, r"gamma must be a number .*, not '' \(str\)"),
        ("gamma=__import__('os')", WrongType, "gamma must be a number"),
        ("gamma=2", OutOfRange, "gamma must be a number"),
        ("optimizer.name=lion", OutOfRange, r"optimizer.name must be one of 'adam', .*, not 'lion' \(str\)"),
    ],
)
def test_command_line_texts_that_mean_nothing_are_refused(text: str, error: type[SpaceError], message: str) -> None:
    with pytest.raises(error, match=message):
        SPACE.parse(text)
    with pytest.raises(SpaceError, match=r"gamma is given twice"):
        SPACE.parse("gamma=0.98", "gamma=0.98")


names = st.text("ab", min_size=1, max_size=2)
trees = st.recursive(st.integers(), lambda below: st.dictionaries(names, below, min_size=1, max_size=3), max_leaves=10)


@quick
@given(st.dictionaries(names, trees, max_size=3))
def test_flatten_and_unflatten_are_inverse(nested: dict[str, Any]) -> None:
    assert unflatten(flatten(nested)) == nested


def test_importing_spaces_imports_nothing_heavy() -> None:
    heavy = {"torch", "optuna", "orion.core", "scipy", "gymnasium"}
    code = f"import sys, rekindle.spaces; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_function_is_refused_and_the_cure_is_a_curve() -> None:
    when = {"when": {"name": "piecewise"}}
    names = categorical("constant", "piecewise", default="constant", structural=True)
    space = Space(
        clip=real(0, 1, default=0.2),
        lr_schedule=Space(name=names, points=curve(0, 1, default=[[0, 1]], **when)),
        clip_schedule=Space(name=names, points=curve(0, 1, default=[[0, 1], [9, 0]], **when)),
    )
    law = r"clip must be data, not <function .*: a function can be neither stored nor compared"
    cure = r"given as points, such as clip_schedule=\{'name': 'piecewise', 'points': \[\[0.0, 1.0\], \[9.0, 0.0\]\]\}"
    with pytest.raises(WrongType, match=f"{law}; what changes over time is {cure}"):
        space.validate({"clip": lambda progress: 0.2 * progress})
    with pytest.raises(WrongType, match=r"lr_schedule must be data, .* such as lr_schedule="):
        space.validate({"lr_schedule": lambda progress: progress})
    with pytest.raises(WrongType, match=r"lr must be data, not <function .* compared$"):
        Space(lr=real(0, 1)).validate({"lr": lambda progress: progress})
    assert Space.from_json(json.loads(json.dumps(space.to_json()))) == space


def test_the_names_of_another_library_are_known_where_their_meaning_is() -> None:
    space = Space(num_minibatches=integer(1, 8), optimizer=Space(lr=real(0, 1)), critic=Space(lr=real(0, 1)))
    with pytest.raises(UnknownParameter, match=r"'batch_size'; did you mean num_minibatches\?$"):
        space.validate({"batch_size": 64})
    with pytest.raises(UnknownParameter, match=r"'learning_rate'; did you mean optimizer\.lr\?$"):
        space.validate({"learning_rate": 0.1})
    with pytest.raises(UnknownParameter, match=r"'clip_range'; there are num_minibatches, optimizer\.\*, critic\.\*$"):
        space.validate({"clip_range": 0.1})


def test_an_explanation_is_in_errors_of_the_command_line_and_in_no_text_or_comparison() -> None:
    text = "discount of future rewards"
    plain, explained = (Space(gamma=near_one(0.9, 0.99, default=0.95, **more)) for more in ({}, {"help": text}))
    assert plain == explained
    assert plain.priors() == explained.priors()
    assert repr(plain["gamma"]) == repr(explained["gamma"])
    assert [explained.fix({}).flat()["gamma"].help, explained.searched().flat()["gamma"].help] == [text, text]
    with pytest.raises(
        OutOfRange, match=r"gamma must be a number in \[0.9, 0.99\], not 2 \(discount of future rewards\)$"
    ):
        explained.parse("gamma=2")
    with pytest.raises(OutOfRange, match=r"gamma must be a number in \[0.9, 0.99\], not 2$"):
        plain.parse("gamma=2")


def test_reasons_of_absent_names_stay_in_spaces_that_follow_and_in_those_around() -> None:
    inner = Space(lr=real(0, 1), steps=integer(1, 9)).without(tau="it has no targets")
    outer = Space(critic=inner).extend(gamma=real(0, 1))
    for space, name in (
        (inner, "tau"),
        (inner.fix({"lr": 0.5}), "tau"),
        (outer, "critic.tau"),
        (outer, "critic.tau.x"),
    ):
        with pytest.raises(UnknownParameter, match=f"there is no hyperparameter '{name}': it has no targets"):
            space.validate(unflatten({name: 1}))
    with pytest.raises(UnknownParameter, match=r"there is no hyperparameter 'tau'; there are critic\.\*"):
        outer.fix({"gamma": 0.5}).validate({"tau": 1, "critic": {"lr": 0.1, "steps": 1}})
