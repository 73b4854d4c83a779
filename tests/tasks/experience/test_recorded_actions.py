"""Replay of recorded actions: the record is not consumed, and its end is the requested one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from rekindle import SVPG, Cohort
from rekindle.tasks import PPO
from rekindle.tasks.envs.gym.envs import reset_seed
from rekindle.tasks.experience.recorded_actions import BadRecording, Recording, RecordingEnded, Replayed
from support_path import SUPPORT

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


def test_at_its_end_a_record_restarts_or_a_model_continues() -> None:
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
        (lambda: Recording.of([]), r"at least one action, .* but got the shapes \[\(0,\)\]"),
        (
            lambda: Recording.of([[1.0]], [[1.0, 2.0]]),
            r"all of the same shape, but got the shapes \[\(1, 1\), \(1, 2\)\]",
        ),
        (lambda: Recording.of(), r"but got the shapes \[\]"),
        (lambda: Recording.of(["left"]), "recorded actions are numbers"),
        (
            lambda: Recording(np.zeros((2, 3)), np.array([3])),
            r"2 recorded episodes need as many lengths from 1 to 3, but got \[3\]",
        ),
        (lambda: Recording(np.zeros((1, 3)), np.array([4])), r"got \[4\]"),
        (lambda: Recording(np.zeros((1, 3)), np.array([0])), r"got \[0\]"),
        (lambda: Replayed(WALK, end="stop"), "must be one of raise, loop, model, but got 'stop'"),
        (lambda: Replayed(WALK, end="model"), "a model goes with end='model', but got end='model' and no model"),
        (lambda: Replayed(WALK, model=print), "but got end='raise' and a model"),
        (lambda: Replayed(WALK).batch([OBS, OBS]), "a record of 1 episodes .* got 2 observations"),
        (lambda: Replayed(Recording.of([1], [2]))(OBS), r"this record has 2 episodes, .* call batch\(\)"),
    ],
)
def test_a_recording_that_cannot_be_played_is_refused(make: Any, message: str) -> None:
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


SMALL: dict[str, Any] = {
    "num_steps": 16,
    "num_envs": 2,
    "num_minibatches": 1,
    "update_epochs": 1,
    "epoch_steps": 64,
    "model": {"width": 8},
}


def test_actions_of_an_evaluation_can_be_replayed(tmp_path: Path) -> None:
    task = PPO({"id": "Pendulum-v1", "kwargs": {"g": 9.0}}, seed=1).init(**SMALL)
    policy = Replayed.load(task.record(2).save(tmp_path / "walk.npz"))
    env = gym.make("Pendulum-v1", g=9.0)
    obs, _ = env.reset(seed=reset_seed("evaluation", 0x5EED, 1, 0))
    policy.batch([obs, obs])
    policy.reset()
    total = 0.0
    for _ in range(200):
        action = policy.batch([obs, obs])[1]
        np.testing.assert_allclose(action, task.act(obs), rtol=1e-5)
        obs, reward, *_ = env.step(action)
        total += float(reward)
    env.close()
    assert total == pytest.approx(task.returns(2)[1], rel=1e-5)


def test_a_recording_of_dicts_is_saved_again_with_its_parts(tmp_path: Path) -> None:
    path = PPO("own_envs:HybridWalk-v0", seed=1).init(**SMALL).record(1).save(tmp_path / "walk.npz")
    first = Recording.load(path)
    again = Recording.load(first.save(tmp_path / "again.npz"))
    one, other = (Replayed(recording)(OBS) for recording in (first, again))
    assert set(one) == {"mode", "push", "rest"}
    assert (other["mode"], other["push"].tolist()) == (one["mode"], one["push"].tolist())
    assert other["rest"] == one["rest"]
    assert np.array_equal(again.actions, first.actions)


def test_a_recording_keeps_the_whole_name_of_its_file(tmp_path: Path) -> None:
    files = [Recording.of([number]).save(tmp_path / "new" / f"walk-0.{number}") for number in (1, 2)]
    assert [file.name for file in files] == ["walk-0.1.npz", "walk-0.2.npz"]
    assert [Replayed.load(file)(OBS) for file in files] == [1, 2]


def test_recording_a_training_does_not_change_it(tmp_path: Path) -> None:
    quiet, task = (PPO("CartPole-v1", seed=1).init(**SMALL) for _ in range(2))
    quiet.fit(2)
    recorder = task.recorder()
    task.fit(2)
    assert task.digest == quiet.digest
    recorded = recorder.demonstrations()
    assert recorded.steps == 2 * 64
    ended = sum(int(metrics.get("episodes", 0)) for _, metrics in task.history)
    assert recorded.begins.sum() in range(ended, ended + 2 + 1)  # those that run at the end, but none that just ended
    path = recorded.save(tmp_path / "rollout.npz")
    policy = Replayed.load(path)
    first = int(policy.recording.lengths[0])
    env = gym.make("CartPole-v1")
    only = Replayed(Recording.of(policy.recording.actions[0, :first]))
    for step, observation in enumerate(recorded.observations[:first]):  # each action leads to what was seen next
        action = only(observation)
        assert action == recorded.actions[step]
        if step + 1 < first:
            env.reset()
            env.unwrapped.state = observation.astype(float)  # type: ignore[attr-defined]
            np.testing.assert_allclose(env.step(action)[0], recorded.observations[step + 1], atol=1e-5)
    env.close()
    PPO("CartPole-v1", demonstrations=path).init(**SMALL, cloning={"use": True}).fit(1)


@pytest.mark.parametrize(("algorithm", "more"), [(PPO, {}), (SVPG, {"num_particles": 2})])
def test_recording_a_member_of_a_cohort_leaves_the_others_out(algorithm: Any, more: dict[str, int]) -> None:
    alone, other, member = (algorithm("CartPole-v1", seed=seed).init(**SMALL, **more) for seed in (2, 1, 2))
    alone.fit(1)
    Cohort([other, member]).fit(1)
    recorders = alone.recorder(), member.recorder()
    alone.fit(2)
    Cohort([other, member]).fit(2)
    expected, recorded = (recorder.demonstrations() for recorder in recorders)
    assert recorded.steps == expected.steps > 0
    for name in ("observations", "actions", "begins"):
        assert np.array_equal(getattr(recorded, name), getattr(expected, name))


def test_a_recorder_follows_its_task_to_another_learner() -> None:
    alone, other, moving = (PPO("CartPole-v1", seed=seed).init(**SMALL) for seed in (2, 1, 2))
    recorders = alone.recorder(), moving.recorder()
    alone.fit(4)
    moving.fit(1)
    moving.load_state_dict(moving.state_dict())
    moving.fit(2)
    other.fit(2)
    cohort = Cohort([other, moving])
    cohort.fit(3)
    moving.load_state_dict(moving.state_dict())
    other.fit(4)  # in the environments where the recorded task was before
    moving.fit(4)
    expected, recorded = (recorder.demonstrations() for recorder in recorders)
    assert moving.digest == alone.digest
    assert recorded.steps == expected.steps > 0
    for name in ("observations", "actions", "begins"):
        assert np.array_equal(getattr(recorded, name), getattr(expected, name))


def test_the_actions_of_dicts_are_played_as_the_environment_takes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(SUPPORT)
    task = PPO("own_envs:HybridWalk-v0").init(**SMALL)
    policy = Replayed.load(task.record(1).save(tmp_path / "walk.npz"))
    env = gym.make("own_envs:HybridWalk-v0")
    obs, _ = env.reset(seed=1)
    action = policy(obs)
    assert env.action_space.contains(action)
    policy.reset()
    batch = policy.batch([obs])
    assert batch["mode"].tolist() == [action["mode"]]
    assert batch["rest"][1].shape == (1,)


def test_files_of_other_forms_are_read_or_refused(tmp_path: Path) -> None:
    before = tmp_path / "before.npz"  # as recordings were written once
    np.savez_compressed(before, actions=np.array([[1, 0, 1]]), lengths=np.array([3]))
    assert Replayed.load(before).recording.actions.tolist() == [[1, 0, 1]]
    nameless = tmp_path / "nameless.npz"
    np.savez_compressed(nameless, observations=np.zeros((2, 4)), actions=np.array([0, 1]), begins=np.array([1.0, 0.0]))
    with pytest.raises(BadRecording, match=r"does not name its environment; give env=\.\.\. of the task"):
        Recording.load(nameless)
    assert Recording.load(nameless, env="CartPole-v1").actions.tolist() == [[0, 1]]
