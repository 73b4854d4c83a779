"""Gymnasium's vector entry points: seeds of every episode, true final observations, no lost step."""

from __future__ import annotations

from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import pytest
import torch
from own_envs import Brittle
from own_pools import STEPS
from rekindle import DQN, PPO, Task
from rekindle.tasks.envs import EnvSpec, EnvSpecError, make_envs, spaces_of
from rekindle.tasks.envs.base.actions import Actions
from rekindle.tasks.envs.base.observations import Observations
from rekindle.tasks.envs.gym.envs import reset_seed
from rekindle.tasks.envs.gym.make import make_env
from rekindle.tasks.envs.pools.pool import pool_test
from rekindle.tasks.errors import environment_of
from test_envs_gym import choose, run

KWARGS: dict[str, Any] = {"img_height": 20, "img_width": 20, "stack_num": 2, "max_num_frames_per_episode": 120}
PONG = EnvSpec("vector/ALE/Pong-v5", KWARGS)


@pytest.mark.slow
def test_every_episode_is_that_of_its_seed_to_the_true_final_observation() -> None:
    # The vector environment itself would reset one step late, and lose the action of that step.
    envs = make_envs(PONG, [4], 2)
    assert (envs.mode, envs.exact, envs.obs.shape) == ("restart", True, (1, 2, 20, 20, 2)), envs.reason
    seen: list[list[list[tuple[Any, ...]]]] = [[[]], [[]]]
    first: list[list[np.ndarray]] = [[envs.obs[0, n]] for n in range(2)]
    for k in range(70):
        actions = choose(envs, k, [4])
        step = envs.step(actions)
        for n in range(2):
            output = (
                actions[0, n],
                step.next_obs[0, n],
                step.reward[0, n],
                step.terminated[0, n],
                step.truncated[0, n],
            )
            seen[n][-1].append(output)
            if step.terminated[0, n] or step.truncated[0, n]:
                seen[n].append([])
                first[n].append(envs.obs[0, n])
    envs.close()
    gym.register_envs(ale_py)
    alone = gym.make_vec("ALE/Pong-v5", 1, "vector_entry_point", **KWARGS)
    for n in range(2):
        assert len(seen[n]) >= 3
        for episode, (begin, steps) in enumerate(zip(first[n], seen[n], strict=True)):
            seed = reset_seed("train", 4, "epoch", 0, n, episode)
            obs, _ = alone.reset(seed=np.array([seed]))  # type: ignore[arg-type]
            np.testing.assert_array_equal(np.moveaxis(obs[0], 0, -1), begin)
            for action, *output in steps:
                obs, reward, terminated, truncated, _ = alone.step(np.array([action]))
                np.testing.assert_array_equal(np.moveaxis(obs[0], 0, -1), output[0])
                assert [reward[0], terminated[0], truncated[0]] == output[1:]
    alone.close()


@pytest.mark.parametrize("name", ["Box", "Dict", "Camera"])
def test_episodes_are_those_of_an_environment_stepped_alone(name: str) -> None:
    pool = make_envs(EnvSpec(f"vector/own_pools:{name}Pool-v0"), [4], 3)
    assert (pool.mode, pool.exact) == ("restart", True), pool.reason
    alone = [make_env(EnvSpec(f"own_envs:{name}Walk-v0", max_episode_steps=STEPS)) for _ in range(3)]
    encoder, codec = Observations(alone[0].observation_space, name), Actions(alone[0].action_space, name)
    episodes = [0, 0, 0]

    def begun(n: int) -> np.ndarray:
        return encoded(alone[n].reset(seed=reset_seed("train", 4, "epoch", 0, n, episodes[n]))[0])

    def encoded(obs: Any) -> np.ndarray:
        out = np.zeros((1, *encoder.shape), encoder.dtype)
        encoder.write(obs, out[0])
        return out[0]

    for n in range(3):
        np.testing.assert_array_equal(pool.obs[0, n], begun(n))
    for k in range(40):
        actions = choose(pool, k, [4])
        step, decoded = pool.step(actions), codec.decode(actions)
        for n in range(3):
            obs, reward, *ended, _ = alone[n].step(decoded[n])
            np.testing.assert_array_equal(step.next_obs[0, n], encoded(obs))
            assert [step.reward[0, n], step.terminated[0, n], step.truncated[0, n]] == [np.float32(reward), *ended]
            if any(ended):
                episodes[n] += 1
                np.testing.assert_array_equal(pool.obs[0, n], begun(n))
    assert min(episodes) > 2
    pool.close()


@pytest.mark.parametrize("task", [PPO, DQN])
def test_resuming_equals_not_stopping(task: type[Task]) -> None:
    replay = {"learning_starts": 16, "batch_size": 16}
    small = {"num_envs": 2, "epoch_steps": 64} | (replay if task is DQN else {"num_steps": 32})
    env = "vector/own_pools:DictPool-v0"
    whole, begun, resumed = (task(env, seed=1).init(**small) for _ in range(3))
    whole.fit(3)
    begun.fit(1)
    resumed.load_state_dict(begun.state_dict())
    resumed.fit(3)
    assert resumed.digest == whole.digest


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Other", "two new pools with the same seeds and actions differ"),
        ("Crowded", "an environment alone differs from the same one in a pool of three"),
    ],
)
def test_pools_that_do_not_repeat_themselves_are_labelled_not_exact(name: str, reason: str) -> None:
    envs = make_envs(EnvSpec(f"vector/own_pools:{name}Pool-v0"), [1], 2)
    assert (envs.mode, envs.exact, envs.reason) == ("restart", False, reason)
    envs.close()


def test_a_pool_that_fails_once_is_tested_again() -> None:
    Brittle.began = False
    with pytest.warns(UserWarning, match=r"BrittlePool-v0: .* raised ConnectionError .* does not with the same seeds"):
        restore = pool_test(EnvSpec("vector/own_pools:BrittlePool-v0"))
    assert (restore.mode, restore.exact) == ("restart", True)


def test_entries_of_info_are_numbers_that_may_be_missing() -> None:
    info = {"even": "max", "inner.negative": "min", "never": "last"}
    envs = make_envs(EnvSpec("vector/own_pools:ToldPool-v0", info=info), [4], 2)
    assert envs.info is not None
    ended = 0
    while not ended:  # the last even step of an episode is counted, whenever it ends
        step = envs.step(choose(envs, 0, [4]))
        ended = int((step.terminated | step.truncated).sum())
    metrics = envs.info.take_metrics()[0]
    assert metrics["info.even"] == -metrics["info.inner.negative"] > 0
    assert "info.never" not in metrics
    envs.close()
    with pytest.raises(EnvSpecError, match=r"must be one number a step, but info\['word'\] is object"):
        make_envs(EnvSpec("vector/own_pools:ToldPool-v0", info={"word": "last"}), [4], 2)


@pytest.mark.slow
def test_neither_neighbours_nor_threads_change_a_member() -> None:
    together, alone = make_envs(PONG, [5, 6], 1, processes=2), make_envs(PONG, [6], 1)
    assert run(together, [5, 6], 0, 50)[1] == run(alone, [6], 0, 50)[0]
    for envs in (together, alone):
        envs.begin_epoch(np.full(envs.num_members, 2))
    assert run(together, [5, 6], 50, 60)[1] == run(alone, [6], 50, 60)[0]
    together.close()
    alone.close()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (EnvSpec("vector/CartPole-v1"), "take a seed for each .* CartPoleVectorEnv does not .*; use CartPole-v1"),
        (EnvSpec("vector/FrozenLake-v1"), "FrozenLake-v1 has no vector entry point; use FrozenLake-v1, by several"),
        (EnvSpec("vector/Nothing-v1"), "Nothing.*doesn't exist"),
        (EnvSpec("vector/no_module:Nothing-v1"), "No module named 'no_module'; install its package"),
        (EnvSpec("vector/ALE/Pong-v5", {"num_envs": 3}), "kwargs must leave num_envs to the task"),
        (EnvSpec("vector/ALE/Pong-v5", {"autoreset_mode": "SameStep"}), "must leave autoreset_mode to the task"),
        (EnvSpec("vector/ALE/Pong-v5", {"stack": 3}), "cannot be made with kwargs"),
        (EnvSpec("vector/ALE/Pong-v5", max_episode_steps=3), "max_episode_steps must be None"),
        (EnvSpec("vector/ALE/Pong-v5", wrappers=[{"entry_point": "a:B"}]), "takes no wrappers"),
    ],
)
def test_invalid_vector_specs_are_refused(spec: EnvSpec, words: str) -> None:
    with pytest.raises(EnvSpecError, match=words):
        spaces_of(spec)


@pytest.mark.slow
def test_entries_of_info_come_from_the_vector_environment() -> None:
    info = {"lives": "min", "episode_frame_number": "max", "missing": "last"}
    envs = make_envs(EnvSpec("vector/ALE/Breakout-v5", KWARGS, info=info), [4], 2)
    for _ in range(40):  # an episode of at most 120 frames, 4 a step, begins after up to 30 frames without an action
        envs.step(np.ones((1, 2), np.int64))
    metrics = envs.info.take_metrics()[0]
    assert metrics.keys() == {"info.lives", "info.episode_frame_number"}
    assert metrics["info.lives"] in range(6)
    assert 120 <= metrics["info.episode_frame_number"] <= 160
    envs.close()


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_last_observations_are_true_in_every_autoreset_mode(mode: str) -> None:
    envs = make_envs(EnvSpec(f"vector/own_pools:Count{mode}-v0", info={"count": "last"}), [0], 2)
    assert (envs.exact, envs.advice) == (True, ())
    seen = [envs.step(np.zeros((1, 2), np.int64)) for _ in range(11)]
    assert [step.next_obs[0, 1, 0] for step in seen] == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1]
    assert [bool(step.truncated[0, 1]) for step in seen] == [*[False] * 4, True] * 2 + [False]
    assert envs.info.take_metrics()[0] == {"info.count": 5}
    envs.close()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Silent", r"SAME_STEP gives the last observations of episodes in info\['final_obs'\], but there are none"),
        ("Lying", "after the end of an episode must only reset it, but gave the reward 1, and .* says .*NEXT_STEP"),
        ("Undeclared", "after the end of an episode must only reset it, but gave the reward 1, .* does not say how"),
        ("Maskless", r"that options\['reset_mask'\] selects, but others were reset, too; obey the mask, or step"),
    ],
)
def test_a_pool_that_contradicts_its_autoreset_mode_is_refused(name: str, words: str) -> None:
    with pytest.raises(EnvSpecError, match=f"vector/own_pools:{name}-v0: .*{words}"):
        make_envs(EnvSpec(f"vector/own_pools:{name}-v0"), [0], 2)


def test_gymnasium_s_own_pool_is_refused_with_the_reason_and_the_environment_to_use() -> None:
    words = (
        "must take a seed for each .*, as otherwise episodes depend on their neighbors, but CartPoleVectorEnv does not"
    )
    with pytest.raises(EnvSpecError, match=f"vector/CartPole-v1: .*{words} .*; use CartPole-v1"):
        make_envs(EnvSpec("vector/CartPole-v1"), [0], 2)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("none", r"rewards is \[None, None\], of type object and shape \(2,\)"),
        ("column", r"rewards is array\([\s\S]*\), of type float64 and shape \(2, 1\)"),
        ("text", r"terminated is array\(.*, of type <U5 and shape \(2,\)"),
    ],
)
def test_late_rewards_and_ends_of_wrong_types_are_named(wrong: str, words: str) -> None:
    envs = make_envs(EnvSpec("vector/own_pools:Odd-v0", {"wrong": wrong}), [0], 2)

    def play() -> None:
        for _ in range(601):
            envs.step(np.zeros((1, 2), np.int64))

    with pytest.raises(EnvSpecError, match=f"vector/own_pools:Odd-v0: a step of 2 environments .* {words}; fix it"):
        play()


@pytest.mark.parametrize(("wrong", "error"), [("few", EnvSpecError), ("raises", OSError)])
def test_late_errors_name_the_environment(wrong: str, error: type[Exception]) -> None:
    envs = make_envs(EnvSpec("vector/own_pools:Odd-v0", {"wrong": wrong}), [0], 2)
    with pytest.raises(error) as raised:  # noqa: PT012 - in the 601st step
        for _ in range(601):
            envs.step(np.zeros((1, 2), np.int64))
    assert environment_of(raised.value) == "vector/own_pools:Odd-v0"
    assert wrong == "raises" or "2 environments return as many observations, but got an array of" in str(raised.value)


def test_vector_environments_can_compute_gradients_in_their_steps() -> None:
    envs = make_envs(EnvSpec("vector/own_pools:Differentiates-v0"), [0], 2)
    with torch.inference_mode():
        assert envs.step(np.zeros((1, 2), np.int64)).reward.tolist() == [[1, 1]]
