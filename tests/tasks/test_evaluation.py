"""Evaluation: returns of greedy and stochastic episodes, which change no state."""

from __future__ import annotations

import math
import pickle
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rekindle import A2C, DQN, PPO, SAC, SVPG, Cohort, EnvSpec, Store
from rekindle.tasks import Task
from rekindle.tasks.envs import StepResult, make_envs
from rekindle.tasks.evaluation import episodes as played_episodes
from rekindle.tasks.evaluation.episodes import due_episodes
from rekindle.tasks.evaluation.measuring import EpisodeTally, measure_episodes
from rekindle.tasks.evaluation.objective import evaluate_within
from rekindle.tasks.evaluation.seeds import evaluation_keys

SMALL: dict[str, Any] = {"num_steps": 8, "num_envs": 4, "epoch_steps": 64, "model": {"width": 16}}
REPLAY: dict[str, Any] = {
    "learning_starts": 120,
    "buffer_size": 200,
    "batch_size": 32,
    "epoch_steps": 128,
    "num_envs": 2,
    "model.width": 16,
}
CASES = [
    (PPO, "CartPole-v1", SMALL),
    (PPO, "Pendulum-v1", {**SMALL, "normalize_obs": True, "use_sde": True, "sde_sample_freq": 3}),
    (A2C, "CartPole-v1", {**SMALL, "model": {"width": 16, "memory": "gru"}}),
    (SVPG, "CartPole-v1", {**SMALL, "num_particles": 2}),
    (DQN, "CartPole-v1", REPLAY),
    (SAC, "Pendulum-v1", REPLAY),
    (SAC, "Pendulum-v1", {**REPLAY, "use_sde": True}),
    (SAC, "CartPole-v1", {**REPLAY, "model.memory": "lstm", "model.sequence_length": 8, "model.burn_in": 4}),
]


@pytest.mark.parametrize(("task", "env", "values"), CASES)
def test_episodes_played_as_in_training_are_the_same_each_time_and_alone(
    task: type[Task], env: str, values: Any
) -> None:
    def make(seed: int) -> Task:
        return task(env, seed=seed).init(**values)

    together = [make(seed) for seed in range(3)]
    Cohort(together).fit(1)
    alone = make(1)
    alone.fit(1)
    digest, greedy = alone.digest, alone.returns(4)
    played = alone.returns(4, deterministic=False)
    assert alone.returns(4, deterministic=False) == played == together[1].returns(4, deterministic=False)
    assert alone.digest == digest
    assert played != greedy
    assert alone.evaluate(4, deterministic=False) == statistics.fmean(played)
    assert alone.returns(4) == greedy
    assert alone.evaluate(4) == pytest.approx(statistics.fmean(greedy))


def test_the_random_numbers_of_training_are_not_those_of_evaluation() -> None:
    task = PPO("CartPole-v1", seed=0x5EED).init(**SMALL)
    learner = task.build_learner([task])
    assert evaluation_keys(1, "action").tolist() != learner.keys("action").tolist()


@pytest.mark.parametrize("env", ["CartPole-v1", "LunarLander-v3"])
def test_a_task_with_the_seed_of_evaluation_is_not_trained_on_its_episodes(env: str) -> None:
    task = PPO(env, seed=0x5EED).init(**SMALL)
    learner = task.build_learner([task])
    trained, evaluated = learner.envs.obs.copy(), []
    measure_episodes(learner, 4, on_step=lambda obs, *_: evaluated.append(obs.copy()))
    assert evaluated[0].shape == trained.shape
    assert not (evaluated[0] == trained).all(-1).any()


def test_the_actions_are_drawn_from_the_policy() -> None:
    task = PPO("Pendulum-v1").init(**{**SMALL, "model": {"width": 16, "std_init": 0.7}})
    learner = task.build_learner([task])
    act, greedy = learner.actor(1000, deterministic=False), learner.actor(1000)
    obs = np.tile(learner.envs.obs[:, :1], (1, 1000, 1))
    noise = np.concatenate([act(obs) - greedy(obs) for _ in range(3)], 1)
    assert noise.std() == pytest.approx(0.7, rel=0.05)
    assert abs(noise.mean()) < 0.05
    assert len(np.unique(noise)) > 2900


def test_epsilon_is_that_of_the_moment() -> None:
    task = DQN("CartPole-v1").init(**REPLAY, exploration={"start": 0.5, "final": 0.0, "horizon": 128})
    learner = task.build_learner([task])
    act, greedy = learner.actor(4000, deterministic=False), learner.actor(4000)
    obs = np.tile(learner.envs.obs[:, :1], (1, 4000, 1))
    assert (act(obs) != greedy(obs)).mean() == pytest.approx(0.25, abs=0.03)  # half of the random ones are the other
    task.fit(1)
    assert (learner.actor(4000, deterministic=False)(obs) == learner.actor(4000)(obs)).all()


@pytest.mark.parametrize("ask", [Task.evaluate, Task.returns])
def test_evaluation_needs_an_episode(ask: Any) -> None:
    with pytest.raises(ValueError, match="episodes must be at least 1, but got 0"):
        ask(PPO("CartPole-v1").init(**SMALL), 0)


@pytest.mark.parametrize(("length", "limit", "value"), [(3, 100, 1 + 2 + 3), (1000, 10, 55), (5, 5, 15)])
def test_an_episode_counts_once_whether_it_is_terminated_or_truncated(length: int, limit: int, value: int) -> None:
    env = EnvSpec("fakes:Corridor-v0", {"length": length}, max_episode_steps=limit)
    task = PPO(env).init(**SMALL)
    learner = task.build_learner([task])
    learner.actor = lambda *_, **__: lambda obs: np.ones(obs.shape[:2], np.int64)  # type: ignore[method-assign]
    began = learner.envs.obs.copy()
    assert measure_episodes(learner, 3).returns.tolist() == [[value] * 3]
    assert measure_episodes(learner, 3).returns.tolist() == [[value] * 3]
    assert (learner.envs.obs == began).all()


def test_an_episode_that_does_not_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(played_episodes, "EVALUATION_STEPS", 4)
    task = PPO(EnvSpec("fakes:Corridor-v0", {"length": 10**6})).init(**SMALL)
    task.member_ref().learner.actor = lambda *_, **__: lambda obs: np.ones(obs.shape[:2], np.int64)  # type: ignore[method-assign]
    assert task.returns(2) == [1 + 2 + 3 + 4] * 2


def test_an_evaluation_without_an_end_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(played_episodes, "EVALUATION_STEPS", 5)
    monkeypatch.setattr(played_episodes, "LONG", 3)
    task = PPO(EnvSpec("fakes:Corridor-v0", {"length": 10**6}), eval_episodes=2).init(**SMALL)
    with pytest.warns(UserWarning, match=r"Corridor-v0: 2 evaluation episodes take longer than 3 steps"):
        task.evaluate()


def test_a_policy_is_evaluated_in_another_environment() -> None:
    task = PPO(EnvSpec("fakes:Corridor-v0", {"length": 5}, max_episode_steps=100)).init(**SMALL)
    task.member_ref().learner.actor = lambda *_, **__: lambda obs: np.ones(obs.shape[:2], np.int64)  # type: ignore[method-assign]
    digest = task.digest
    assert task.returns(2) == [15, 15]
    assert task.returns(2, env={"kwargs": {"length": 3}}) == [6, 6]  # the rest as in the task's own
    assert task.evaluate(2, env=EnvSpec("fakes:Corridor-v0", {"length": 1000}, max_episode_steps=10)) == 55
    assert task.record(2, env={"kwargs": {"length": 3}}).steps == 6
    assert task.returns(2) == [15, 15]
    assert task.digest == digest


@pytest.mark.parametrize("deterministic", [True, False])
def test_other_seeds_are_other_episodes_the_same_for_every_task(deterministic: bool) -> None:
    task, other = (SAC("Pendulum-v1", seed=seed).init(**REPLAY) for seed in (1, 2))
    other.load_state_dict(task.state_dict(), perturb=True)
    result = [of.returns(3, deterministic, seed=7) for of in (task, other)]
    assert result[0] == result[1] == task.returns(3, deterministic, seed=7)
    assert not set(result[0]) & set(task.returns(3, deterministic))


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("Acrobot-v1", r"same observation space, Box.*\(4,\).*but Acrobot-v1 has Box.*\(6,\)"),
        ({"id": "CartPol-v1"}, "CartPol"),
        ({"kwarg": {}}, "an environment has .*kwargs.*but got kwarg; did you mean kwargs"),
    ],
)
def test_an_environment_of_other_spaces_is_refused(env: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PPO("CartPole-v1").init(**SMALL).evaluate(env=env)


@pytest.mark.parametrize(
    ("lengths", "steps", "longest", "count"),
    [
        ([], 1100, 500, 2),  # as many as surely fit
        ([], 100, 500, 1),
        ([], 1100, None, 1),
        ([500, 500], 1100, 500, 0),
        ([20], 1100, None, 1),  # no more than those before
        ([20, 30], 80, None, 1),  # 30 steps are left, and the mean is 25
        ([20, 30], 1100, 500, 2),
        ([20] * 19, 1100, None, 1),  # there are no others
        ([700], 600, None, 0),
        ([], math.inf, None, 20),
        ([9] * 20, math.inf, None, 0),
        ([], 0, None, 0),
    ],
)
def test_as_many_episodes_are_due_as_the_steps_allow(
    lengths: list[int], steps: float, longest: int | None, count: int
) -> None:
    played = np.array([lengths + [0] * (20 - len(lengths))])
    due = due_episodes(played, np.array([steps]), longest)
    assert due.nonzero()[1].tolist() == list(range(len(lengths), len(lengths) + count))


@pytest.mark.parametrize("env", ["CartPole-v1", EnvSpec("fakes:Corridor-v0", {"length": 30}, max_episode_steps=50)])
def test_an_evaluation_within_steps_is_the_mean_of_the_first_of_all_episodes(env: Any) -> None:
    def make(seed: int) -> Task:
        return PPO(env, seed=seed, eval_envs=12).init(**SMALL)  # not all are played side by side

    together = [make(seed) for seed in range(3)]
    Cohort(together).fit(1)
    learner, alone = together[0].member_ref().learner, make(1)
    alone.fit(1)
    whole = measure_episodes(learner)
    for steps in (1.0, 150.0, 400.0, None):
        result = evaluate_within(learner, steps)
        for returns, lengths, (value, episodes, taken, error) in zip(whole.returns, whole.lengths, result, strict=True):
            assert value == returns[:episodes].mean()
            assert (error is None) == (episodes == 1)
            assert error is None or error == pytest.approx(returns[:episodes].std(ddof=1) / episodes**0.5)
            assert taken == lengths[:episodes].sum()
        assert evaluate_within(alone.member_ref().learner, steps) == [result[1]]
    assert {estimate.episodes for estimate in evaluate_within(learner, 1.0)} == {1}
    assert [estimate.value for estimate in evaluate_within(learner, None)] == [task.evaluate() for task in together]


@pytest.mark.parametrize("algorithm", [PPO, SVPG])
def test_each_member_plays_episodes_of_its_own_seed(algorithm: type[Task]) -> None:
    particles = {"num_particles": 2} if algorithm is SVPG else {}
    together = [algorithm("CartPole-v1", seed=seed).init(**SMALL, **particles) for seed in range(2)]
    Cohort(together).fit(1)
    result = evaluate_within(together[0].member_ref().learner, None, [7, 8])
    assert [estimate.value for estimate in result] == [together[0].evaluate(seed=7), together[1].evaluate(seed=8)]


def test_all_usual_episodes_are_played_if_they_are_wanted_whole() -> None:
    task = PPO("CartPole-v1", eval_episodes=4).init(**SMALL)
    task.fit(1)
    [few], [whole] = (evaluate_within(task.member_ref().learner, 1.0, most=8, whole=whole) for whole in (False, True))
    assert (few.episodes, whole.episodes, whole.value) == (1, 4, task.evaluate())


def test_however_a_task_begins_it_is_measured_in_its_own_number_of_episodes(tmp_path: Path) -> None:
    """The learner measures for checkpoints, `eval_return` and studies, so its number counts, too."""
    how: dict[str, Any] = {"eval_episodes": 3, "eval_envs": 2, "snapshots": "best"}
    source = PPO("CartPole-v1", **how, storage=Store(f"sqlite:///{tmp_path}/rekindle.db")).init(**SMALL)
    source.fit(1)
    loaded = PPO("CartPole-v1", **how).init(**SMALL)
    loaded.load_state_dict(source.state_dict())
    warm = PPO("CartPole-v1", **how, warm_start=source).init(**SMALL)
    for task in (source, loaded, warm, source.best(), pickle.loads(pickle.dumps(source))):
        learner = task.member_ref().learner
        [measured] = evaluate_within(learner, None)
        assert (measured.value, measured.episodes) == (pytest.approx(task.evaluate()), 3)
        assert (task.eval_envs, learner.eval_envs) == (2, 2)


def test_company_with_other_numbers_of_episodes_changes_no_score(tmp_path: Path) -> None:
    def make(episodes: int, store: str) -> PPO:
        storage = Store(f"sqlite:///{tmp_path}/{store}.db")
        return PPO("CartPole-v1", seed=episodes, eval_episodes=episodes, snapshots="best", storage=storage).init(
            **SMALL
        )

    together, alone = (
        [make(episodes, "together") for episodes in (3, 5)],
        [make(episodes, "alone") for episodes in (3, 5)],
    )
    Cohort(together).fit(2)
    for task, other in zip(together, alone, strict=True):
        other.fit(2)
        assert (task.history, task.digest) == (other.history, other.digest)
        assert task.metrics["return"] == pytest.approx(task.evaluate())


@pytest.mark.parametrize("env", ["CartPole-v1", "FrozenLake-v1"])
def test_further_episodes_follow_where_returns_differ_and_steps_last(env: str) -> None:
    """The next episodes are those of the next numbers, whoever trains beside."""

    def make(seed: int) -> PPO:
        return PPO(env, seed=seed, eval_episodes=4).init(**SMALL)

    together = [make(seed) for seed in range(2)]
    Cohort(together).fit(1)
    learner, alone = together[0].member_ref().learner, make(1)
    alone.fit(1)
    parts = [measure_episodes(learner, 4, first=first) for first in (0, 4, 8)]
    returns, lengths = (np.concatenate([getattr(part, name) for part in parts], 1) for name in ("returns", "lengths"))
    assert len(np.unique(lengths[0])) > 4  # further episodes differ from the first ones
    for steps, most in ((30.0, 12), (150.0, 12), (1e6, 12), (1e6, 5), (1e6, 0)):
        result = evaluate_within(learner, steps, most=most)
        for scores, played, value in zip(returns, lengths, result, strict=True):
            assert (value.value, value.steps) == (scores[: value.episodes].mean(), played[: value.episodes].sum())
            assert value.episodes <= max(4, -(-most // 4) * 4)
            assert value.episodes == 1 or played[: value.episodes - 1].sum() < steps
            differ = len(set(scores[:4])) > 1
            assert steps < 1e6 or value.episodes == (4 if most <= 4 or not differ else 8 if most == 5 else 12)
        assert evaluate_within(alone.member_ref().learner, steps, most=most) == [result[1]]


def test_each_particle_has_its_share_of_the_steps() -> None:
    task = SVPG("CartPole-v1").init(**SMALL, num_particles=2)
    task.fit(1)
    [(value, _, steps, error)] = evaluate_within(task.member_ref().learner, 240.0)
    returns = measure_episodes(task.member_ref().learner, steps=240.0).returns.reshape(2, -1)
    assert value == pytest.approx(
        statistics.fmean(float(np.nanmean(returns_of_particle)) for returns_of_particle in returns)
    )
    assert 2 * 20 < np.nansum(returns) == steps < 480  # a return of CartPole is its episode's length
    rows = [row[~np.isnan(row)] for row in returns]
    assert error == pytest.approx(sum(row.var(ddof=1) / len(row) for row in rows) ** 0.5 / 2)  # of a mean of two means


def test_no_reward_counts_after_the_end_of_an_episode_however_large() -> None:
    envs = make_envs("CartPole-v1", [0], 3)
    tally, running, none = EpisodeTally(1, 1, 3, envs), np.array([[True, False, False]]), np.zeros((1, 3), bool)
    rewards = np.float32([[1, np.inf, np.nan]])
    tally.add(slice(0, 3), running, StepResult(envs.obs, rewards, none, none))
    envs.close()
    assert tally.returns.tolist() == [[1, 0, 0]]
    assert tally.lengths.tolist() == [[1, 0, 0]]
