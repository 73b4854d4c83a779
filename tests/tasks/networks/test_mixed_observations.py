"""Dicts and Tuples with images: each image through its own encoder, beside numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from rekindle import DQN, PPO, EnvSpec
from rekindle.tasks.envs import make_envs
from rekindle.tasks.envs.base.images import MixedShape
from rekindle.tasks.envs.base.observations import Observations
from rekindle.tasks.errors import UnsupportedSpace
from support_path import SUPPORT
from torch.nn import functional

CAMERAS = EnvSpec("own_envs:CameraWalk-v0")


@pytest.fixture(autouse=True)
def own_envs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SUPPORT)


def test_a_row_of_bytes_holds_numbers_and_images_unchanged() -> None:
    frames = spaces.Box(0, 255, (4, 5, 6), np.uint8)  # channels first, the shorter axis
    space = spaces.Dict({"at": spaces.Box(-9, 9, (3,), np.float32), "eyes": spaces.Tuple((frames, spaces.Discrete(2)))})
    encoder = Observations(space, "it")
    assert (encoder.kind, encoder.dtype, encoder.shape) == ("mixed", np.uint8, (1, 5 * 4 + 4 * 5 * 6))
    assert isinstance(encoder.shape, MixedShape)
    seen = space.sample()
    rows = np.zeros((1, *encoder.shape), np.uint8)
    encoder.write(seen, rows[0])
    numbers = encoder.numbers(rows)
    assert numbers is not None
    assert numbers[0].tolist() == [*seen["at"].tolist(), *np.eye(2)[seen["eyes"][1]].tolist()]
    ((form, columns),) = encoder.shape.images
    np.testing.assert_array_equal(rows[0, 0, columns].reshape(form), np.moveaxis(seen["eyes"][0], 0, 2))


def test_features_are_the_numbers_and_each_images_convolutions() -> None:
    task = PPO(CAMERAS, seed=3).init(model={"encoder": "small", "width": 16})
    envs = make_envs(CAMERAS, [3], 2)
    for k in range(4):
        envs.step(np.array([[k % 2, 1]]))
    encoder = task.member_ref().learner.policy.encoder  # type: ignore[union-attr]
    obs = torch.from_numpy(envs.obs)
    result = encoder(task.member_ref().learner.policy.parameters.views, obs)  # type: ignore[union-attr]
    model = task.model
    numbers = envs.encoder.numbers(envs.obs[0])  # type: ignore[attr-defined]
    expected = [torch.from_numpy(numbers)]
    for k, (form, columns) in enumerate(envs.obs_shape.images):  # type: ignore[attr-defined]
        x = obs[0, :, 0, columns].reshape(2, *form).permute(0, 3, 1, 2).float() / 255
        for layer in range(2):
            name = f"features.image{k}.conv{layer}"
            x = functional.conv2d(x, model[f"{name}.weight"], model[f"{name}.bias"]).relu()
        expected.append(x.flatten(1))
    torch.testing.assert_close(result[0], torch.cat(expected, 1))
    assert result.shape[-1] == encoder.features


def test_the_smallest_image_decides_which_encoders_fit() -> None:
    with pytest.raises(UnsupportedSpace, match=r"'simple' sees images of at least 20 x 20 .* impala or small or flat"):
        DQN(CAMERAS).init(model={"encoder": "simple"})
    DQN(CAMERAS).init()
    DQN(CAMERAS).init(model={"encoder": "flat"})


def test_a_goal_among_images_is_refused() -> None:
    goals = EnvSpec("own_envs:CameraWalk-v0", {"place": "desired_goal"})
    with pytest.raises(UnsupportedSpace, match="goal_conditioning needs observations of numbers, but got images in"):
        PPO(goals).init(model={"encoder": "flat", "goal_conditioning": "hyper"})


def test_a_nan_among_the_numbers_is_found() -> None:
    encoder = Observations(make_envs(CAMERAS, [1], 1).obs_space, "it")
    row = np.zeros((1, *encoder.shape), np.uint8)
    assert np.isfinite(encoder.numbers(row)).all()  # type: ignore[arg-type]
    row[0, 0, :4] = np.array([np.nan], np.float32).view(np.uint8)
    assert np.isnan(encoder.numbers(row)[0, 0])  # type: ignore[index]
