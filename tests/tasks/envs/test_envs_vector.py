"""Atari games by Gymnasium's vector entry point: seeds of every episode, true final observations, no step lost."""

from __future__ import annotations

from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import pytest
from rekindle.tasks.envs import EnvSpec, EnvSpecError, make_envs, spaces_of
from rekindle.tasks.envs.gym.envs import reset_seed
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
            shown = (actions[0, n], step.next_obs[0, n], step.reward[0, n], step.terminated[0, n], step.truncated[0, n])
            seen[n][-1].append(shown)
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
            for action, *shown in steps:
                obs, reward, terminated, truncated, _ = alone.step(np.array([action]))
                np.testing.assert_array_equal(np.moveaxis(obs[0], 0, -1), shown[0])
                assert [reward[0], terminated[0], truncated[0]] == shown[1:]
    alone.close()


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
        (EnvSpec("vector/ALE/Pong-v5", {"num_envs": 3}), "kwargs must leave num_envs to the task"),
        (EnvSpec("vector/ALE/Pong-v5", {"autoreset_mode": "SameStep"}), "must leave autoreset_mode to the task"),
        (EnvSpec("vector/ALE/Pong-v5", {"stack": 3}), "cannot be made with kwargs"),
        (EnvSpec("vector/ALE/Pong-v5", max_episode_steps=3), "max_episode_steps must be None"),
        (EnvSpec("vector/ALE/Pong-v5", wrappers=[{"entry_point": "a:B"}]), "takes no wrappers"),
    ],
)
def test_what_cannot_be_is_refused(spec: EnvSpec, words: str) -> None:
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
