"""Packages of environments: ids that Gymnasium does not know, and arguments that JSON does not have."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import own_envs  # registers its environments
import pytest
from rekindle.tasks.envs import EnvSpec, EnvSpecError
from rekindle.tasks.envs.gym import packages
from rekindle.tasks.envs.gym.make import make_env


@pytest.mark.parametrize(
    ("id", "message"),
    [
        ("MiniGrid-Nowhere-v0", r"; (pip install minigrid, and )?write minigrid:MiniGrid-Nowhere-v0$"),
        ("MinAtar/Nothing-v1", r"(pip install minatar, and )?write minatar:MinAtar/Nothing-v1$"),
        ("AntBulletEnv-v7", r"pip install pybullet-envs-gymnasium, and write pybullet_envs_gymnasium:AntBulletEnv-v7$"),
        (
            "CrafterReward-v1",
            r"write .*\"shimmy:GymV21Environment-v0\", .*\"CrafterReward-v1\", .*\"disable_env_checker\": true\}\}\}$",
        ),
        (
            "procgen-coinrun-v0",
            r"pip install procgen, pip install --no-deps shimmy gym==\S+ gym-notices, and write .*procgen-coinrun-v0",
        ),
        ("simple_spread_v3", "write pettingzoo/PACKAGE:simple_spread_v3, such as pettingzoo/mpe2:simple_spread_v3$"),
        ("Meta-World/reach-v3", r"write .*metaworld:Meta-World/MT1.*reach-v3"),
        ("Nowhere-v0", "doesn't exist"),
    ],
)
def test_an_unknown_id_of_a_known_package_is_answered_with_what_to_type(id: str, message: str) -> None:
    with pytest.raises(EnvSpecError, match=message):
        make_env(EnvSpec(id))


def test_a_package_that_registers_on_request_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("asked_for")
    module.__spec__ = own_envs.__spec__  # type: ignore[attr-defined]
    module.register_envs = lambda: gym.register("Asked/Walk-v1", own_envs.BoxWalk)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "asked_for", module)
    monkeypatch.setitem(packages.REGISTER, "asked_for", ("asked_for", "register_envs"))
    try:
        for _ in range(2):  # a second registration would warn
            assert isinstance(make_env(EnvSpec("asked_for:Asked/Walk-v1")).unwrapped, own_envs.BoxWalk)
    finally:
        gym.registry.pop("Asked/Walk-v1", None)


def test_games_of_atari_have_their_older_ids() -> None:
    assert make_env(EnvSpec("PongNoFrameskip-v4")).action_space == gym.spaces.Discrete(6)


def test_an_environment_of_old_gym_is_answered_with_what_to_type() -> None:
    class Old:
        observation_space = action_space = gym.spaces.Discrete(2)

    gym.register("OldGym-v0", Old)
    try:
        with pytest.raises(EnvSpecError, match=r"with old Gym, .*shimmy:GymV21.*OldGym-v0.*otherwise derive it"):
            make_env(EnvSpec("OldGym-v0"))
    finally:
        gym.registry.pop("OldGym-v0")


def test_the_mujoco_of_dm_control_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> None:
        raise AttributeError("'MjModel' object has no attribute 'flex_vertedge'")

    monkeypatch.setattr(packages, "requires", {"dm_control": ["dm-env", "mujoco>=3.17.0"]}.get)
    gym.register("dm_control/test-v0", make)
    try:
        with pytest.raises(EnvSpecError, match=r"reads the structures of one MuJoCo: pip install 'mujoco~=3.17.0'"):
            make_env(EnvSpec("dm_control/test-v0"))
    finally:
        gym.registry.pop("dm_control/test-v0")


class Shifted(gym.ObservationWrapper[Any, Any, Any]):
    """Adds an array, which must be one."""

    def __init__(self, env: gym.Env[Any, Any], by: np.ndarray) -> None:
        super().__init__(env)
        self.by = by.astype(np.float32)

    def observation(self, observation: Any) -> Any:
        return observation + self.by


def test_arrays_are_written_in_json() -> None:
    wrapper = {"entry_point": f"{__name__}:Shifted", "kwargs": {"by": {"array": [1, 2, 3, 4]}}}
    spec = EnvSpec("CartPole-v1", wrappers=[wrapper])
    assert spec == EnvSpec.from_json(spec.to_json())
    plain, shifted = (make_env(env).reset(seed=1)[0] for env in (EnvSpec("CartPole-v1"), spec))
    np.testing.assert_allclose(shifted - plain, [1, 2, 3, 4], atol=1e-6)
    wrapper["kwargs"] = {"by": [1, 2, 3, 4]}
    with pytest.raises(
        EnvSpecError, match=r"no attribute 'astype'; if a list should be a NumPy array, write .\"array\""
    ):
        make_env(EnvSpec("CartPole-v1", wrappers=[wrapper]))
