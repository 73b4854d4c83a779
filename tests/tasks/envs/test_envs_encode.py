"""Observations as vectors and images, and actions as environments take them."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
import torch
from gymnasium import spaces
from rekindle.tasks.envs import EnvSpecError
from rekindle.tasks.envs.base.actions import Actions
from rekindle.tasks.envs.base.images import is_scaled, with_scale
from rekindle.tasks.envs.base.joined import Joined, can_join
from rekindle.tasks.envs.base.observations import BadObservation, Observations
from rekindle.tasks.errors import UnsupportedSpace


def encode(space: spaces.Space, value: object) -> np.ndarray:
    encoder = Observations(space, "Test-v0")
    out = np.zeros(encoder.shape, encoder.dtype)
    encoder.write(value, out)
    return out


def test_spaces_of_absurd_sizes_are_refused() -> None:
    seen = spaces.Dict({"place": spaces.Discrete(10_000_000), "speed": spaces.Box(-1, 1, (2,))})
    with pytest.raises(UnsupportedSpace, match=r"Far-v0: an observation has at most 4,000,000 .* has 10,000,002: Dict"):
        Observations(seen, "Far-v0")
    several = Joined(spaces.Tuple([spaces.Discrete(2), spaces.Discrete(10**9)]))
    for space, size in (
        (spaces.Discrete(10**6), "1,000,000"),
        (spaces.MultiDiscrete([10**5, 2]), "100,002"),
        (several, "1,000,000,000"),
    ):
        with pytest.raises(UnsupportedSpace, match=f"Far-v0: an action has at most 100,000 .* has {size}: .* split"):
            Actions(space, "Far-v0")


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (2, 3), np.float64),
        spaces.Box(0, 255, (128,), np.uint8),
        spaces.Discrete(5),
        spaces.Discrete(5, start=-2),
        spaces.MultiDiscrete([3, 2, 4]),
        spaces.MultiDiscrete([[3, 2], [2, 2]]),
        spaces.MultiBinary((2, 3)),
        spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,))]),
        spaces.Dict(b=spaces.Discrete(3), a=spaces.Tuple([spaces.MultiBinary(2), spaces.Dict(c=spaces.Box(-1, 1))])),
    ],
)
def test_vectors_are_what_gymnasium_flattens_to(space: spaces.Space) -> None:
    space.seed(0)
    for _ in range(20):
        value = space.sample()
        vector = encode(space, value)
        assert vector.dtype == np.float32
        assert np.array_equal(vector, spaces.flatten(space, value).astype(np.float32))


def test_multi_discrete_that_does_not_begin_at_zero() -> None:
    assert encode(spaces.MultiDiscrete([2, 3], start=[5, -1]), np.array([6, -1])).tolist() == [0, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("shape", "encoded"),
    [
        ((84, 84, 3), (84, 84, 3)),
        ((4, 84, 84), (84, 84, 4)),
        ((210, 160), (210, 160, 1)),
        ((4, 21, 16, 3), (21, 16, 12)),
    ],
)
def test_images_stay_bytes_with_channels_last(shape: tuple[int, ...], encoded: tuple[int, ...]) -> None:
    space = spaces.Box(0, 255, shape, np.uint8)
    space.seed(0)
    value = space.sample()
    image = encode(space, value)
    assert Observations(space, "Test-v0").kind == "image"
    assert image.dtype == np.uint8
    assert image.shape == encoded
    assert image.sum(dtype=np.int64) == value.sum(dtype=np.int64)
    if shape[0] == 4:  # the first frame comes first
        assert np.array_equal(image[..., : encoded[2] // 4].reshape(value[0].shape), value[0])


def test_a_text_is_counts_of_words_and_pairs() -> None:
    space = spaces.Dict(a=spaces.Discrete(2), mission=spaces.Text(40))
    counts = {text: encode(space, {"a": 1, "mission": text})[2:] for text in ("go to the red ball", "red red", "", "a")}
    assert [x.sum() for x in counts.values()] == [5 + 4, 2 + 1, 0, 1]
    columns = {text: zlib.crc32(text.encode()) % 64 for text in ("red", "red red")}
    expected = np.zeros(64)
    expected[columns["red"]] += 2
    expected[columns["red red"]] += 1
    assert np.array_equal(counts["red red"], expected)
    assert not np.array_equal(*(encode(spaces.Text(9), text) for text in ("red blue", "blue red")))
    with pytest.raises(BadObservation, match=r"observation\['mission'\] must be a text, .* but step gave 3"):
        encode(space, {"a": 1, "mission": 3})


@pytest.mark.parametrize("space", [spaces.Sequence(spaces.Discrete(2)), spaces.Graph(spaces.Box(0, 1), None)])
def test_other_observations_are_refused_by_name(space: spaces.Space) -> None:
    with pytest.raises(UnsupportedSpace, match=rf"Test-v0.*observation_space\['x'\]\[1\] is {type(space).__name__}"):
        Observations(spaces.Dict(x=spaces.Tuple([spaces.Discrete(2), space])), "Test-v0")


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(4, start=2),
        spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [-1, 7]]),
        spaces.MultiBinary((2, 3)),
        spaces.Box(-2, np.array([3, np.inf], np.float32), dtype=np.float32),
        spaces.Box(-np.inf, np.array([-3, 1], np.float64), dtype=np.float64),
        spaces.Box(-3, 5, (2, 2), np.int16),
    ],
)
def test_picked_actions_lie_in_their_space(space: spaces.Space) -> None:
    actions = Actions(space, "Test-v0")
    rows = np.random.default_rng(0).uniform(size=(12, int(np.prod(actions.learner_shape))))
    picked = actions.pick(rows).reshape(4, 3, *actions.learner_shape)
    actions.check(picked, (4, 3))
    decoded = actions.decode(picked)
    assert len(decoded) == 12
    assert all(space.contains(action) for action in decoded)
    assert len(np.unique(decoded, axis=0)) > 1


NESTED = spaces.Dict(
    {
        "choice": spaces.Discrete(3, start=-1),
        "rest": spaces.Tuple([spaces.Box(-2, 0.1, (2, 2), np.float64), spaces.Discrete(2)]),
    }
)


def test_a_joined_space_is_rows_of_its_parts() -> None:
    joined = Joined(NESTED)
    assert joined.low.tolist() == [0, -2, -2, -2, -2, 0]
    assert joined.choices == {0: 3, 5: 2}
    action = joined.split(np.array([2, -2, -1, 0, 0.1, 1], np.float32))
    assert NESTED.contains(action)
    assert (action["choice"], action["rest"][1]) == (1, 1)
    np.testing.assert_allclose(action["rest"][0], [[-2, -1], [0, 0.1]])


def test_every_row_of_a_joined_space_is_an_action_and_all_choices_come() -> None:
    actions = Actions(Joined(NESTED), "Test-v0")
    picked = actions.pick(np.random.default_rng(0).uniform(size=(600, 6))).reshape(20, 30, 6)
    actions.check(picked, (20, 30))
    decoded = actions.decode(picked * 2)  # beyond the bounds, and clipped
    assert all(NESTED.contains(Joined(NESTED).split(row)) for row in decoded[:50])
    counts = np.unique(picked[..., 0], return_counts=True)
    assert counts[0].tolist() == [0, 1, 2]
    assert min(counts[1]) > 150


def test_choices_alone_are_joined_and_split() -> None:
    space = spaces.Tuple([spaces.Discrete(3, start=1), spaces.MultiDiscrete([[2], [5]], start=[[1], [0]])])
    whole = spaces.Dict(bits=spaces.MultiBinary((2, 1)), rest=space)
    joined = Joined(whole)
    assert joined.choices == {0: 2, 1: 2, 2: 3, 3: 2, 4: 5}
    assert (joined.low.tolist(), joined.high.tolist()) == ([0] * 5, [1, 1, 2, 1, 4])
    taken = joined.split(np.array([1, 0, 2, 1, 4], np.float32))
    assert whole.contains(taken)
    assert (taken["bits"].tolist(), taken["rest"][0], taken["rest"][1].tolist()) == ([[1], [0]], 3, [[2], [4]])
    batch = joined.split(joined.draw(np.random.default_rng(0).uniform(size=(7, 5))))
    assert all(whole.contains({"bits": batch["bits"][i], "rest": tuple(x[i] for x in batch["rest"])}) for i in range(7))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict(a=spaces.Text(2)),
        spaces.Dict(a=spaces.Box(-np.inf, 1, (1,)), b=spaces.Discrete(2)),
        spaces.Dict(a=spaces.Box(0, 2**40, (1,), np.int64), b=spaces.Discrete(2)),
        spaces.Tuple([]),
        spaces.Box(0, 1, (1,)),
    ],
)
def test_only_dicts_of_bounded_boxes_and_choices_are_joined(space: spaces.Space) -> None:
    assert not can_join(space)
    with pytest.raises(ValueError, match="is joined, but not"):
        Joined(space)


def test_boxes_of_integers_are_rounded() -> None:
    actions = Actions(spaces.Box(-3, 5, (2,), np.int16), "Test-v0")
    assert actions.decode(np.array([[[1.6, 9.0]]], np.float32)).tolist() == [[2, 5]]
    joined = Joined(whole := spaces.Dict(a=spaces.Box(-3, 5, (), np.int8), b=spaces.Box(0, 1, (2,), np.bool_)))
    taken = joined.split(np.array([1.6, 0.4, 0.6], np.float32))
    assert whole.contains(taken)
    assert (int(taken["a"]), taken["b"].tolist()) == (2, [False, True])


@pytest.mark.parametrize(
    "space", [spaces.Box(-1, 1, (0,)), spaces.MultiDiscrete([]), Joined(spaces.Tuple([spaces.Box(-1, 1, (0, 2))]))]
)
def test_actions_without_a_value_are_refused(space: spaces.Space) -> None:
    with pytest.raises(UnsupportedSpace, match=r"Test-v0: an action has at least one number or choice, but .* add a"):
        Actions(space, "Test-v0")


def test_many_agents_may_have_more_values_together_than_one_action() -> None:
    assert Actions(Joined(spaces.Tuple([spaces.Discrete(60_000)] * 2)), "Test-v0").learner_shape == (2,)


def test_images_without_pixels_are_no_part_of_an_observation() -> None:
    space = spaces.Dict(picture=spaces.Box(0, 255, (0, 3), np.uint8), x=spaces.Box(-9, 9, (1,)))
    assert encode(space, {"picture": np.zeros((0, 3), np.uint8), "x": np.float32([2])}).tolist() == [2]


@pytest.mark.parametrize(
    "space", [spaces.Dict(a=spaces.Discrete(2)), spaces.Tuple([spaces.Discrete(2)]), spaces.Text(2)]
)
def test_other_actions_are_refused_by_name(space: spaces.Space) -> None:
    with pytest.raises(UnsupportedSpace, match=rf"Test-v0: actions must be .* action_space is {type(space).__name__}"):
        Actions(space, "Test-v0")


def test_a_joined_space_samples_what_it_contains_and_equals_that_of_the_same_parts() -> None:
    joined = Joined(NESTED)
    joined.seed(1)
    rows = [joined.sample() for _ in range(20)]
    assert all(joined.contains(row) and NESTED.contains(joined.split(row)) for row in rows)
    assert len({row.tobytes() for row in rows}) == 20
    assert not joined.contains(rows[0][:-1])
    assert not joined.contains(joined.high + 1)
    assert joined == Joined(NESTED)
    assert joined != Joined(spaces.Tuple([spaces.Discrete(2)]))


BYTES = spaces.Box(0, 255, (40, 40, 3), np.uint8)


@pytest.mark.parametrize(
    ("space", "value", "words"),
    [
        (spaces.Discrete(5), -1, r"observation must lie between 0 and 4, as .* but step gave -1"),
        (spaces.Discrete(5), 5, r"observation must lie between 0 and 4, as .* but step gave 5"),
        (spaces.Discrete(5), 2.5, r"observation must consist of whole numbers \(int64\), as .* but step gave 2.5"),
        (spaces.Discrete(5), None, "observation must consist of numbers, as .* but step gave None"),
        (spaces.Discrete(5), np.array([2, 3]), r"observation must be one number, as .* gave the shape \(2,\)"),
        (spaces.MultiDiscrete([3, 4]), np.array([3, 0]), "observation must lie between 0 and 3, as .* gave 3"),
        (spaces.MultiDiscrete([3, 4]), np.array([1]), r"observation must have the shape \(2,\), as .* gave the shape"),
        (spaces.MultiDiscrete([3, 4]), np.array([0.5, 1]), "observation must consist of whole numbers .* gave 0.5"),
        (spaces.Dict(pos=spaces.Box(-5, 5, (3,))), {"pos": 0.3}, r"observation\['pos'\] must have the shape \(3,\)"),
        (spaces.Dict(pos=spaces.Box(-5, 5, (3,))), {}, r"observation must have 'pos', as observation_space says, but"),
        (spaces.Dict(a=spaces.Tuple([spaces.Discrete(2)])), {"a": ()}, r"observation\['a'\] must have 0, as .* \(\)"),
        (spaces.Dict(pos=spaces.Discrete(3)), np.zeros(3), "observation must have 'pos', as observation_space says"),
        (BYTES, np.full((40, 40, 3), 0.9), "observation must consist of whole numbers .uint8., as .* gave 0.9"),
        (BYTES, np.full((40, 40, 3), 300), "observation must lie between 0 and 255, as .* but step gave 300"),
        (BYTES, np.full((3, 40, 40), 3, np.uint8), r"have the shape \(40, 40, 3\), as .* the shape \(3, 40, 40\)"),
        (spaces.Box(0, 1, (4, 4), np.uint8), np.full((4, 4), 2, np.uint8), "must lie between 0 and 1, as .* gave 2"),
        (spaces.Box(-1, 1, (2,)), [[1], [2, 3]], r"observation must have the shape \(2,\)"),
        (spaces.Box(-1, 1, (2, 3)), np.zeros((3, 2)), r"observation must have the shape \(2, 3\)"),
    ],
)
def test_an_observation_that_contradicts_its_space_is_refused(space: spaces.Space, value: object, words: str) -> None:
    with pytest.raises(BadObservation, match=f"Test-v0: .*{words}.*"):
        encode(space, value)
    with pytest.raises(BadObservation, match=r"fix one of them, or add a wrapper that does"):
        Observations(space, "Test-v0").check(value, "reset")


@pytest.mark.parametrize(
    ("space", "value", "encoded"),
    [
        (spaces.Discrete(3), np.array([2]), [0, 0, 1]),
        (spaces.Discrete(3), 2.0, [0, 0, 1]),
        (spaces.Discrete(2), True, [0, 1]),
        (spaces.MultiDiscrete([2, 2]), [1.0, 0.0], [0, 1, 1, 0]),
        (spaces.Box(-1, 1, (2,)), torch.tensor([0.5, 1.0]), [0.5, 1]),
        (spaces.Box(-1, 1, (1,)), 0.25, [0.25]),
        (spaces.Box(-1, 1, (2, 2)), [1, 2, 3, 4], [1, 2, 3, 4]),
    ],
)
def test_other_forms_of_the_same_observation_are_read(space: spaces.Space, value: object, encoded: list[float]) -> None:
    Observations(space, "Test-v0").check(value, "reset")
    assert encode(space, value).tolist() == encoded


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_])
def test_boards_are_scaled_by_their_bounds(dtype: type) -> None:
    board = np.eye(4).astype(dtype)
    assert np.array_equal(encode(spaces.Box(0, 1, (4, 4), dtype), board)[..., 0], 255 * np.eye(4))


def test_codes_are_scaled_by_the_scale_that_their_environment_gets() -> None:
    codes = spaces.Dict(image=spaces.Box(0, 255, (2, 2), np.uint8), other=spaces.Discrete(2))
    space = with_scale(codes, 10, "Test-v0")
    row = encode(space, {"image": np.array([[0, 1], [5, 10]], np.uint8), "other": 1})[0]
    assert row[8:].tolist() == [0, 26, 128, 255]  # 25.5 and 127.5 are rounded to the even
    assert not is_scaled(codes)
    assert is_scaled(space)
    with pytest.raises(EnvSpecError, match="scale is the largest value of images"):
        with_scale(spaces.Discrete(2), 10, "Test-v0")


@pytest.mark.parametrize("parts", [1, 2])
def test_numbers_above_those_of_32_bits_become_infinite_without_a_warning(parts: int) -> None:
    box, huge = spaces.Box(-np.inf, np.inf, (2,), np.float64), np.array([1e300, -1.0])
    observations = Observations(spaces.Tuple([box] * parts) if parts > 1 else box, "env")
    out = np.zeros(observations.shape, np.float32)
    observations.write((huge,) * parts if parts > 1 else huge, out)
    assert out.tolist() == [np.inf, -1.0] * parts
