"""A spec is JSON, and equal specs have equal text."""

from __future__ import annotations

import json

import pytest
from rekindle.tasks.envs import EnvSpec, EnvSpecError

WRAPPERS = [{"entry_point": "a.b:C", "kwargs": {"size": (84, 84)}}, {"entry_point": "a.b:D"}]


def test_json_there_and_back() -> None:
    spec = EnvSpec("X-v0", {"size": (1, 2), "name": "é"}, WRAPPERS, 50)
    again = EnvSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert again == spec
    assert hash(again) == hash(spec)
    assert again.canonical == spec.canonical


def test_equal_specs_have_one_text_however_they_are_written() -> None:
    one = EnvSpec("X-v0", {"a": 1, "b": [1, 2]})
    for other in (
        EnvSpec("X-v0", {"b": (1, 2), "a": 1}),
        EnvSpec.of({"id": "X-v0", "kwargs": {"b": [1, 2], "a": 1}}),
        EnvSpec.of(one),
    ):
        assert other == one
        assert other.canonical == one.canonical
    assert EnvSpec.of("X-v0") == EnvSpec("X-v0")
    assert EnvSpec("X-v0", max_episode_steps=7).canonical != EnvSpec("X-v0").canonical


def test_a_spec_does_not_follow_what_it_was_made_of() -> None:
    kwargs = {"sizes": [1]}
    spec = EnvSpec("X-v0", kwargs)
    kwargs["sizes"].append(2)
    spec.to_json()["kwargs"]["sizes"].append(3)
    assert spec.kwargs == {"sizes": [1]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"id": "", "kwargs": {"a": 1}}, "id must be a string"),
        ({"id": "X", "max_episode_steps": 0}, "positive integer or None, but got 0"),
        ({"id": "X", "max_episode_steps": True}, "but got True"),
        ({"id": "X", "max_episode_steps": 5.5}, "but got 5.5"),
        ({"id": "X", "kwargs": {"f": print}}, "must hold JSON values only"),
        ({"id": "X", "kwargs": {"f": float("nan")}}, "must hold JSON values only"),
        ({"id": "X", "kwargs": {1: 2}}, "dict with string keys"),
        ({"id": "X", "kwargs": [1]}, "dict with string keys"),
        ({"id": "X", "wrappers": ["a.b:C"]}, r"wrappers\[0\] must be .*; write {'entry_point': 'a.b:C'}$"),
        ({"id": "X", "wrappers": ["a.b.C"]}, r"wrappers\[0\] must be .*; write {'entry_point': 'a.b:C'}$"),
        ({"id": "X", "wrappers": ["C"]}, r"wrappers\[0\] must be .*, but got 'C'$"),
        ({"id": "X", "use_lidar": True}, "but got use_lidar; arguments of its constructor belong into its kwargs$"),
        ({"id": "X", "wrappers": "a:B"}, "must be a list"),
        ({"id": "X", "wrappers": [{"entry_point": "a.B"}]}, "entry_point must be a string 'module:Class'"),
        ({"id": "X", "wrappers": [{"entry_point": "a:B", "args": 1}]}, r"wrappers\[0\] must be"),
        ({"id": "X", "wraps": []}, "but got wraps"),
        ({"kwargs": {"a": 1}}, "must have an id"),
        (7, "must be an id, an EnvSpec or its JSON, but got 7"),
    ],
)
def test_an_invalid_spec_is_refused(content: object, words: str) -> None:
    with pytest.raises(EnvSpecError, match=words):
        EnvSpec.of(content)


def test_no_environment_is_a_spec_too() -> None:
    nothing = EnvSpec.none()
    assert nothing == EnvSpec.of(None) == EnvSpec.of({}) == EnvSpec.of(nothing.to_json())
    assert not nothing
    assert EnvSpec("CartPole-v1")
