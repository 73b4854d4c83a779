"""Videos of policies, read back by the library that writes them."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from imageio_ffmpeg import count_frames_and_secs
from rekindle import PPO, Behaviours, EnvSpec
from rekindle.tasks.deployment import video
from rekindle.tasks.deployment.predicting import Predictor
from rekindle.tasks.deployment.video import NoVideo
from rekindle.tasks.envs import spaces_of
from rekindle.tasks.envs.base.observations import Observations
from rekindle.tasks.errors import UnsupportedSpace
from rekindle.tasks.registry import load
from support_path import SUPPORT

SHORT = EnvSpec("CartPole-v1", max_episode_steps=15)


def untrained(env: Any = SHORT) -> PPO:
    return PPO(env).init(num_steps=8, num_envs=2, num_minibatches=4, epoch_steps=16, model={"width": 8})


def test_a_video_has_a_frame_for_each_state_of_the_episode(tmp_path: Path) -> None:
    task = untrained()
    digest = task.digest
    total = task.film(tmp_path / "one.mp4")
    assert count_frames_and_secs(str(tmp_path / "one.mp4"))[0] == total + 1  # a reward of 1 for each step
    assert task.film(tmp_path / "again.mp4") == total
    assert task.digest == digest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.mp4", "one.mp4"]


@pytest.mark.parametrize(
    "env", [SHORT, "Pendulum-v1", {"id": "FrozenLake-v1", "restore": "restart", "kwargs": {"map_name": "8x8"}}]
)
def test_a_video_shows_the_first_episode_of_an_evaluation(env: Any, tmp_path: Path) -> None:
    task, states = untrained(env), list[Any]()
    task.returns(1, on_step=lambda obs, *_: states.append(obs[0, 0].copy()))
    seen = list[Any]()
    predict = Predictor.__call__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Predictor, "__call__", lambda self, obs, *rest, **how: seen.append(obs) or predict(self, obs, *rest, **how)
        )
        total = task.film(tmp_path / "one.mp4")
    assert total == pytest.approx(task.returns(1)[0])
    encoder = Observations(spaces_of(task.env).observation, "here")
    encoded = np.zeros((len(seen), *encoder.shape), encoder.dtype)
    for obs, row in zip(seen, encoded, strict=True):
        encoder.write(obs, row)
    np.testing.assert_allclose(encoded, states, rtol=1e-4, atol=1e-4)


def test_a_film_that_ends_before_its_episode_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "MOST_FRAMES", 9)
    with pytest.warns(
        UserWarning, match=r"one.mp4 shows the first 9 frames of a longer episode, .*_steps\": 8}'"
    ) as told:
        total = untrained("Pendulum-v1").film(tmp_path / "one.mp4")
    assert [Path(warning.filename) for warning in told] == [Path(__file__)]
    assert count_frames_and_secs(str(tmp_path / "one.mp4"))[0] == 9
    whole = untrained({"id": "Pendulum-v1", "max_episode_steps": 8})
    with warnings.catch_warnings(action="error", category=UserWarning):
        assert whole.film(tmp_path / "whole.mp4") == total


def test_all_behaviours_are_in_one_video(tmp_path: Path) -> None:
    task = Behaviours("pettingzoo/hunt_env:Drawn", seed=2)
    task.init(hunter={"model": {"memory": "gru"}}, deer={"critic": {"central": "state"}})
    assert task.film(tmp_path / "hunt.mp4") == task.measure(1)["return"][0]


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({}, r"render\(\) raised NotImplementedError: no picture yet"),
        ({"picture": "x"}, r"render\(\) returns an array of the shape \(height, width, 3\), but it returned 'x'; fix"),
    ],
)
def test_an_environment_without_a_picture_has_no_video(tmp_path: Path, kwargs: dict[str, str], words: str) -> None:
    task = Behaviours({"id": "pettingzoo/hunt_env:Undrawn", "kwargs": kwargs}).init()
    with pytest.raises(NoVideo, match=f"pettingzoo/hunt_env:Undrawn cannot be drawn: .*{words}"):
        task.film(tmp_path / "hunt.mp4")


class Blind(gym.Wrapper[Any, Any, Any, Any]):
    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012 - as Gymnasium has it


@pytest.mark.parametrize(
    ("env", "file", "message"),
    [
        (SHORT, "x.gif", r"a video is written to a file that ends in \.mp4, but got .*x\.gif"),
        (SHORT, "no/x.mp4", r"but .*no/x\.mp4 cannot be: No such file or directory"),
        ("vector/own_pools:BoxPool-v0", "x.mp4", "BoxPool-v0 steps many at once and draws none; name one that does"),
        (
            "own_envs:RowsWalk-v0",
            "x.mp4",
            "draws itself as an rgb_array, but own_envs:RowsWalk-v0 has no render modes;",
        ),
        (
            EnvSpec("CartPole-v1", wrappers=[{"entry_point": f"{__name__}:Blind"}]),
            "x.mp4",
            r"but CartPole-v1 has the render modes ansi; write a render\(\) and name rgb_array in metadata",
        ),
    ],
)
def test_a_film_that_is_impossible_is_refused(tmp_path: Path, env: Any, file: str, message: str) -> None:
    with pytest.raises(NoVideo, match=message):
        untrained(env).film(tmp_path / file)
    assert not list(tmp_path.iterdir())


def test_without_moviepy_an_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "moviepy.video.io.ImageSequenceClip", None)
    with pytest.raises(NoVideo, match=r"a video needs the library moviepy: pip install 'rekindle-rl\[video\]'"):
        untrained().film(tmp_path / "x.mp4")


def test_a_task_without_episodes_has_no_video(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedSpace, match="Surrogate has no episodes"):
        load("surrogate")(None).init().film(tmp_path / "x.mp4")


@pytest.mark.parametrize("on_error", ["", "restart"])
def test_a_video_shows_observations_and_actions_of_other_forms(
    on_error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(SUPPORT)
    task = untrained({"id": "faulty_envs:faults/Drawn-v0", "on_error": on_error})
    assert task.film(tmp_path / "one.mp4") == pytest.approx(task.returns(1)[0])
