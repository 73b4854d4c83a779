"""Packages of environments: ids that Gymnasium does not know, and arguments that JSON does not have."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
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
        ("simple_spread_v3", "write pettingzoo/PACKAGE:simple_spread_v3$"),
        ("mpe2.simple_spread_v3", "write pettingzoo/mpe2:simple_spread_v3$"),
        ("mpe2:simple_spread_v3", "write pettingzoo/mpe2:simple_spread_v3$"),
        ("pettingzoo.classic.chess_v6", "write pettingzoo/classic:chess_v6$"),
        ("Meta-World/reach-v3", r"write .*metaworld:Meta-World/MT1.*reach-v3"),
        ("minigrid/MiniGrid-Nowhere-v0", r"; (pip install minigrid, and )?write minigrid:MiniGrid-Nowhere-v0$"),
        ("minigrid.MiniGrid-Nowhere-v0", r"; (pip install minigrid, and )?write minigrid:MiniGrid-Nowhere-v0$"),
        ("gym_minigrid:MiniGrid-Nowhere-v0", r"; (pip install minigrid, and )?write minigrid:MiniGrid-Nowhere-v0$"),
        ("highway-env:merge-v0", r"; (pip install highway-env, and )?write highway_env:merge-v0$"),
        ("own-envs:Walk-v0", "; write own_envs:Walk-v0$"),
        ("own_errors:merge-v0", "; install its package, or run where its file is$"),  # of a package of its own
        ("CartPole-v1(sutton_barto_reward=True)", r'; write {"id": "CartPole-v1", "kwargs": {\.\.\.}}$'),
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


def test_a_package_with_the_usual_function_is_asked_and_another_one_of_its_name_is_not(monkeypatch: Any) -> None:
    module = ModuleType("asks_too")
    module.__spec__ = own_envs.__spec__
    monkeypatch.setitem(sys.modules, "asks_too", module)
    monkeypatch.setattr(module, "register_envs", gym.register_envs, raising=False)  # it takes a module
    with pytest.raises(EnvSpecError, match="AsksToo` doesn't exist"):
        make_env(EnvSpec("asks_too:AsksToo-v1"))
    monkeypatch.setattr(module, "register_envs", lambda: gym.register("AsksToo-v1", own_envs.BoxWalk))
    try:
        assert isinstance(make_env(EnvSpec("asks_too:AsksToo-v1")).unwrapped, own_envs.BoxWalk)
    finally:
        gym.registry.pop("AsksToo-v1", None)


def test_a_namespace_whose_module_was_not_imported_is_answered_with_it(tmp_path: Path, monkeypatch: Any) -> None:
    """Gymnasium asks to install the package, though it is; one that registers in `envs` is common, too."""
    monkeypatch.syspath_prepend(tmp_path)
    for name, at in (("plain_games", ""), ("nested_games", "envs")):
        home = tmp_path / name / at
        home.mkdir(parents=True)
        (tmp_path / name / "__init__.py").touch()
        line = f"import gymnasium, own_envs\ngymnasium.register('{name}/Walk-v0', own_envs.BoxWalk)\n"
        (home / "__init__.py").write_text(line)
    steps = [
        ("plain_games/Walk-v0", "plain_games:plain_games/Walk-v0"),
        ("plain_games:Walk-v0", "plain_games:plain_games/Walk-v0"),
        ("nested_games/Walk-v0", "nested_games:nested_games/Walk-v0"),
        ("nested_games:nested_games/Walk-v0", "nested_games.envs:nested_games/Walk-v0"),
    ]
    try:
        for typed, advised in steps:
            with pytest.raises(EnvSpecError, match=f"; write {advised}$"):
                make_env(EnvSpec(typed))
            if typed != "nested_games/Walk-v0":
                assert isinstance(make_env(EnvSpec(advised)).unwrapped, own_envs.BoxWalk)
    finally:
        for name in ("plain_games", "nested_games"):
            gym.registry.pop(f"{name}/Walk-v0", None)
            for module in (name, f"{name}.envs"):
                sys.modules.pop(module, None)


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


def test_a_model_that_needs_an_older_mujoco_is_answered_with_its_version() -> None:
    """As the robots of gymnasium-robotics 1.4.2, where a joint's number is in no tuple of constants any more."""

    def made() -> Any:
        mujoco = SimpleNamespace(mjtJoint=SimpleNamespace(mjJNT_HINGE=0))
        assert mujoco.mjtJoint.mjJNT_HINGE
        raise NotImplementedError

    gym.register("OldRobot-v0", made)
    try:
        with pytest.raises(EnvSpecError, match=r"(?s)OldRobot-v0 cannot be made .*: pip install 'mujoco<3.9'$"):
            make_env(EnvSpec("OldRobot-v0"))
    finally:
        gym.registry.pop("OldRobot-v0")


def test_a_vector_environment_among_single_ones_is_answered_with_what_to_type() -> None:
    gym.register("Several-v0", lambda: gym.vector.SyncVectorEnv([own_envs.BoxWalk] * 2))
    try:
        with pytest.raises(EnvSpecError, match=r"; a vector environment is written vector/Several-v0, or register the"):
            make_env(EnvSpec("Several-v0"))
    finally:
        gym.registry.pop("Several-v0", None)


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
