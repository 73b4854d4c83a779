"""Recorded actions, played again; the record is not used up, and its end is what was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from rekindle.tasks import PPO
from rekindle.tasks.experience.recorded_actions import BadRecording, Recording, RecordingEnded, Replayed

WALK = Recording.of([1, 0, 1])
OBS = np.zeros(4)


def play(policy: Any, seed: int = 3) -> tuple[list[Any], float]:
    """The actions and the return of an episode."""
    env = gym.make("Pendulum-v1", max_episode_steps=30)
    obs, _ = env.reset(seed=seed)
    actions, total = [], 0.0
    for _ in range(30):
        actions.append(policy(obs))
        obs, reward, *_ = env.step(actions[-1])
        total += float(reward)
    env.close()
    return actions, total


def test_an_episode_is_played_again_from_a_file(tmp_path: Path) -> None:
    task = PPO("Pendulum-v1", seed=1).init(num_steps=16, num_envs=2, num_minibatches=1, epoch_steps=32)
    actions, total = play(task.act)
    policy = Replayed.load(Recording.of(actions).save(tmp_path / "walk.npz"))
    again, same = play(policy)
    assert same == total
    assert np.array_equal(again, actions)
    policy.reset()
    assert play(policy)[1] == total


def test_the_first_action_after_a_reset_is_the_first_recorded() -> None:
    policy = Replayed(WALK)
    assert [policy(OBS), policy(OBS)] == [1, 0]
    policy.reset()
    assert [policy(OBS) for _ in range(3)] == [1, 0, 1]
    assert WALK.actions.tolist() == [[1, 0, 1]]


def test_the_answer_has_the_form_of_a_policy_of_stable_baselines() -> None:
    assert Replayed(WALK).predict(OBS) == (1, None)


def test_a_record_ends_with_an_error_that_says_what_to_do() -> None:
    policy = Replayed(WALK)
    for _ in range(3):
        policy(OBS)
    for _ in range(2):
        with pytest.raises(RecordingEnded, match=r"the 3 actions of episode 0 are; reset\(\) restarts it"):
            policy(OBS)


def test_a_record_begins_again_or_a_model_goes_on() -> None:
    loop = Replayed(WALK, end="loop")
    assert [loop(OBS) for _ in range(7)] == [1, 0, 1, 1, 0, 1, 1]
    asked: list[Any] = []
    model = Replayed(WALK, end="model", model=lambda obs: asked.append(obs) or 5)
    assert [model(i) for i in range(5)] == [1, 0, 1, 5, 5]
    assert asked == [3, 4]


def test_every_environment_has_its_own_cursor(tmp_path: Path) -> None:
    both = Recording.of([[0.5], [0.25]], [[1.0], [2.0], [3.0]])
    policy = Replayed.load(both.save(tmp_path / "two.npz"), end="loop")
    assert policy.batch([OBS, OBS]).tolist() == [[0.5], [1.0]]
    policy.reset([False, True])
    assert policy.batch([OBS, OBS]).tolist() == [[0.25], [1.0]]
    assert policy.batch(np.zeros((2, 4))).tolist() == [[0.5], [2.0]]
    policy.reset()
    assert policy.batch([OBS, OBS]).tolist() == [[0.5], [1.0]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Recording.of([]), r"at least one action each, .* but got \[\(0,\)\]"),
        (lambda: Recording.of([[1.0]], [[1.0, 2.0]]), r"all of one shape, but got \[\(1, 1\), \(1, 2\)\]"),
        (lambda: Recording.of(), r"but got \[\]"),
        (lambda: Recording.of(["left"]), "recorded actions are numbers"),
        (lambda: Recording(np.zeros((2, 3)), np.array([3])), r"of 2 recorded episodes .* from 1 to 3, but got \[3\]"),
        (lambda: Recording(np.zeros((1, 3)), np.array([4])), r"got \[4\]"),
        (lambda: Recording(np.zeros((1, 3)), np.array([0])), r"got \[0\]"),
        (lambda: Replayed(WALK, end="stop"), "must be one of raise, loop, model, but got 'stop'"),
        (lambda: Replayed(WALK, end="model"), "a model goes with end='model', but got end='model' and no model"),
        (lambda: Replayed(WALK, model=print), "but got end='raise' and a model"),
        (lambda: Replayed(WALK).batch([OBS, OBS]), "a record of 1 episodes .* got 2 observations"),
        (lambda: Replayed(Recording.of([1], [2]))(OBS), r"this record has 2 episodes, .* call batch\(\)"),
    ],
)
def test_what_cannot_be_played_is_refused(make: Any, message: str) -> None:
    with pytest.raises(BadRecording, match=message):
        make()


def test_a_file_that_is_no_record_is_named_and_runs_nothing(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.npz" for name in ("pickle", "other", "none", "cut")}
    np.savez(files["pickle"], actions=np.array([{}], dtype=object), lengths=np.array([1]))
    np.savez(files["other"], moves=np.zeros(3))
    files["cut"].write_bytes(files["other"].read_bytes()[:50])
    for file in files.values():
        with pytest.raises(BadRecording, match=rf"{file.name} must be an \.npz file of recorded actions"):
            Replayed.load(file)
