"""Real Stable-Baselines3 models: as warm starts, they act as before."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import own_envs  # noqa: F401  # registers its environments
import pytest
import sb3_contrib
import stable_baselines3 as sb3
import torch
from mask_envs import Forbidding
from rekindle.tasks import EnvSpec, StateMismatch, import_policy, load
from rekindle.tasks.networks.sde import variance
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

SMALL: dict[str, dict[str, Any]] = {
    "dqn": {"buffer_size": 100, "learning_starts": 64},
    "sac": {"buffer_size": 300, "learning_starts": 256},
}
CASES = [
    (sb3.PPO, "MlpPolicy", "CartPole-v1", {"n_steps": 64}),
    (sb3.PPO, "MlpPolicy", "own_envs:RowsWalk-v0", {"policy_kwargs": {"net_arch": [24, 24, 24]}}),
    (
        sb3.PPO,
        "MlpPolicy",
        "Pendulum-v1",
        {"policy_kwargs": {"net_arch": {"pi": [32, 16], "vf": [24]}, "activation_fn": torch.nn.ELU}, "use_sde": True},
    ),
    (sb3.A2C, "MlpPolicy", "Pendulum-v1", {"policy_kwargs": {"full_std": False, "use_expln": True}, "use_sde": True}),
    (sb3.PPO, "CnnPolicy", "own_envs:PictureWalk-v0", {}),
    (sb3.A2C, "MlpPolicy", "Acrobot-v1", {}),
    (sb3.DQN, "MlpPolicy", "CartPole-v1", {"buffer_size": 10}),
    (
        sb3.SAC,
        "MlpPolicy",
        "Pendulum-v1",
        {"buffer_size": 10, "policy_kwargs": {"net_arch": [32, 32], "activation_fn": torch.nn.Tanh}},
    ),
    (sb3_contrib.QRDQN, "MlpPolicy", "CartPole-v1", {"buffer_size": 10, "policy_kwargs": {"n_quantiles": 7}}),
    (sb3.SAC, "MlpPolicy", "Pendulum-v1", {"buffer_size": 10, "policy_kwargs": {"n_critics": 3, "net_arch": [16]}}),
    (sb3.SAC, "MlpPolicy", "MountainCarContinuous-v0", {"buffer_size": 10, "use_sde": True}),
    (sb3.TD3, "MlpPolicy", "Pendulum-v1", {"buffer_size": 10, "policy_kwargs": {"net_arch": [40, 30]}}),
    (sb3.DDPG, "MlpPolicy", "MountainCarContinuous-v0", {"buffer_size": 10, "policy_kwargs": {"net_arch": [40, 30]}}),
    (
        sb3_contrib.TQC,
        "MlpPolicy",
        "Pendulum-v1",
        {"buffer_size": 10, "policy_kwargs": {"net_arch": {"pi": [16, 16], "qf": [32, 32]}, "n_critics": 3}},
    ),
    (sb3_contrib.TQC, "MlpPolicy", "Pendulum-v1", {"buffer_size": 10, "use_sde": True}),
    (sb3_contrib.CrossQ, "MlpPolicy", "Pendulum-v1", {"buffer_size": 10, "policy_kwargs": {"net_arch": [32, 24]}}),
    (sb3_contrib.TRPO, "MlpPolicy", "CartPole-v1", {"n_steps": 64, "batch_size": 64}),
    (sb3_contrib.TRPO, "MlpPolicy", "Pendulum-v1", {"n_steps": 64, "batch_size": 64, "use_sde": True}),
    (sb3_contrib.ARS, "LinearPolicy", "CartPole-v1", {}),
    (sb3_contrib.ARS, "LinearPolicy", "Pendulum-v1", {}),
    (sb3_contrib.ARS, "MlpPolicy", "CartPole-v1", {"policy_kwargs": {"net_arch": [16]}}),
    (sb3_contrib.ARS, "MlpPolicy", "Pendulum-v1", {"policy_kwargs": {"squash_output": False, "net_arch": [16, 8]}}),
]


def made(model_class: Any, policy: str, env: Any, arguments: dict[str, Any], path: Path) -> Any:
    real = gym.make(env.removeprefix("own_envs:")) if isinstance(env, str) else env
    model = model_class(policy, real, seed=3, device="cpu", **arguments)
    with torch.no_grad():  # as if it had learned, so that actions differ
        for number, parameter in enumerate(model.policy.parameters()):
            generator = torch.Generator().manual_seed(number)
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
        for number, (name, buffer) in enumerate(model.policy.named_buffers()):
            if name.endswith(("ra_mean", "ra_var")):  # of batch renormalization
                buffer += torch.rand(buffer.shape, generator=torch.Generator().manual_seed(number))
    if hasattr(model, "critic_target"):
        model.critic_target.load_state_dict(model.critic.state_dict())
    model.save(path)
    return model


@torch.no_grad()
def values_of(model: Any, observations: np.ndarray) -> torch.Tensor:
    """Values of a model, as `Task.value` defines them."""
    output = model.policy.obs_to_tensor(observations)[0]
    if hasattr(model.policy, "predict_values"):
        return model.policy.predict_values(output).squeeze(1)
    if hasattr(model, "quantile_net"):
        return model.quantile_net(output).mean(1).amax(1)
    if hasattr(model, "q_net"):
        return model.q_net(output).amax(1)
    actions = model.policy.scale_action(model.predict(observations, deterministic=True)[0])
    model.critic.train(False)
    critics = model.critic(output, torch.as_tensor(actions))
    if isinstance(model, sb3_contrib.TQC):
        return critics.flatten(1).mean(1)
    q = torch.cat(critics, 1)
    if isinstance(model, sb3.TD3):  # and DDPG
        return q[:, 0]
    return q.amin(1) if q.shape[1] == 2 else q.mean(1)  # more than two are followed as Chen et al. (2021) do


@pytest.mark.parametrize(("model_class", "policy", "env", "arguments"), CASES)
def test_a_model_acts_as_it_did_there(model_class: Any, policy: str, env: str, arguments: Any, tmp_path: Path) -> None:
    file = tmp_path / "model.zip"
    model, result = made(model_class, policy, env, arguments, file), import_policy(file)
    assert result.task == model_class.__name__.lower()
    task = load(result.task)(EnvSpec(env), warm_start=file).init(**result.hyperparameters, **SMALL.get(result.task, {}))
    space = gym.make(env.removeprefix("own_envs:")).observation_space
    space.seed(1)
    count = 50 if policy == "CnnPolicy" else 1000
    observations = np.stack([space.sample() for _ in range(count)]).clip(-5, 255).astype(space.dtype)
    theirs, ours = model.predict(observations, deterministic=True)[0], task.predict(observations)[0]
    if isinstance(model.action_space, gym.spaces.Box):
        np.testing.assert_allclose(ours, theirs.reshape(ours.shape), rtol=1e-4, atol=1e-4)
    else:
        first = getattr(model.action_space, "start", 0)  # which Stable-Baselines3 does not look at
        np.testing.assert_array_equal(ours - first, theirs)
        assert len(np.unique(theirs, axis=0)) > 1
    if getattr(model, "use_sde", False) and result.task in (
        "ppo",
        "a2c",
        "trpo",
    ):  # the spread of their noise is that of ours
        with torch.no_grad():
            output = torch.as_tensor(observations)
            z = model.policy.mlp_extractor.forward_actor(output)
            spread = model.policy.get_distribution(output).distribution.stddev
        np.testing.assert_allclose(variance(result.policy["actor.log_std"][None], z[None])[0].sqrt(), spread, rtol=1e-4)
    if result.task != "ars":  # which has no critic
        np.testing.assert_allclose(task.value(observations), values_of(model, observations), rtol=1e-3, atol=1e-3)
    task.fit(0)


@pytest.mark.parametrize("shared", [False, True])
def test_a_memory_is_that_of_the_model(shared: bool, tmp_path: Path) -> None:
    sizes = {"lstm_hidden_size": 24, "net_arch": {"pi": [16], "vf": [12]}}
    kwargs = {**sizes, "shared_lstm": shared, "enable_critic_lstm": not shared}
    model = made(
        sb3_contrib.RecurrentPPO, "MlpLstmPolicy", "CartPole-v1", {"policy_kwargs": kwargs}, tmp_path / "m.zip"
    )
    result = import_policy(tmp_path / "m.zip")
    assert (result.task, result.hyperparameters["model"]["width"]) == ("ppo", 24 if shared else 48)
    task = load("ppo")("CartPole-v1", warm_start=tmp_path / "m.zip").init(**result.hyperparameters)
    random = np.random.default_rng(0)
    states: list[Any] = [None, None]
    starts = np.ones(20, bool)
    chosen = []
    for _ in range(50):
        observations = random.normal(size=(20, 4)).astype(np.float32)
        theirs, states[0] = model.predict(observations, states[0], starts, deterministic=True)
        ours, states[1] = task.predict(observations, states[1], starts)
        np.testing.assert_array_equal(ours, theirs)
        starts = random.random(20) < 0.1
        chosen.append(ours)
    assert 0.02 < np.mean(chosen) < 0.98
    task.fit(0)


def test_masks_are_those_of_the_model(tmp_path: Path) -> None:
    env = EnvSpec("mask_envs:ForbiddingByMethod-v0", {"actions": "rows"})
    model = made(sb3_contrib.MaskablePPO, "MlpPolicy", Forbidding("rows", "method"), {}, tmp_path / "m.zip")
    imported = import_policy(tmp_path / "m.zip")
    task = load("ppo")(env, warm_start=tmp_path / "m.zip").init(**imported.hyperparameters)
    random = np.random.default_rng(0)
    numbers = random.uniform(-1, 1, (1000, 2)).astype(np.float32)
    masks = random.random((1000, 7)) < 0.5
    masks[:, [0, 3]] |= ~np.stack([masks[:, :3].any(1), masks[:, 3:].any(1)], 1)
    theirs = model.predict(numbers, deterministic=True, action_masks=masks)[0]
    ours = task.predict({"action_mask": masks.astype(np.int8), "observation": numbers})[0]
    np.testing.assert_array_equal(ours, theirs)
    assert len(np.unique(ours, axis=0)) > 8


def changed(path: Path, data: Any, weights: Any) -> Path:
    """A file with other content."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", json.dumps(data))
        with archive.open("policy.pth", "w") as file:
            torch.save(weights, file)
    return path


def test_settings_without_a_counterpart_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.zip"
    file.write_bytes(b"no archive")
    with pytest.raises(StateMismatch, match=r"model.zip must be a model that.* saved, but: File is not"):
        import_policy(file)
    with pytest.raises(StateMismatch, match=r"none.zip must be a model that.* saved, but: No such file or directory$"):
        import_policy(tmp_path / "none.zip")
    layer = {"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}
    td3 = {f"actor.mu.0.{name}": x for name, x in layer.items()}
    dqn = {f"q_net.q_net.{index}.{name}": x for index in (0, 2) for name, x in layer.items()}
    tqc = {f"actor.{place}.{name}": x for place in ("latent_pi.0", "mu", "log_std") for name, x in layer.items()}
    cases: list[tuple[Any, Any, str]] = [
        ({}, td3, "critics are named qf0, qf1 and so on, but got none"),
        ({}, {"x.weight": torch.zeros(1)}, "a PPO, A2C, DQN, SAC, .* or MaskablePPO, but got networks named x.weight"),
        (
            {"action_space": {":type:": "<class 'gymnasium.spaces.box.Box'>"}},
            {"action_net.0.weight": torch.zeros(2, 3)},
            "actions of ARS are clipped, not squashed by tanh, but got squash_output=True, MlpPolicy's default",
        ),
        (
            {"policy_kwargs": {"activation_fn": "<class 'torch.nn.modules.activation.GELU'>"}},
            dqn,
            "activations are Tanh, ReLU, SiLU, ELU, but got GELU",
        ),
        ({}, dqn | {"q_net.features_extractor.own.weight": torch.zeros(3, 3)}, "but got q_net.*own.weight too"),
        ({}, dqn | {"q_net.q_net.0.weight": torch.zeros(2)}, "but got q_net.q_net.0, which is not one of their layers"),
        ({}, tqc, "critics are named qf0, qf1 and so on, but got none"),
        ([], dqn, "must be a model that.* saved, but: 'list' object has no"),
        ({}, [1], "must be a model that.* saved, but: 'list' object has no"),
        ({}, {f"q_net.q_net.0.{name}": x for name, x in layer.items()}, "networks have hidden layers"),
        (
            {},
            {"q_net.q_net.0.weight": torch.zeros(2, 3)},
            r"of an MlpPolicy or CnnPolicy, but got none named .*0\.bias",
        ),
        (
            {"policy_kwargs": {"normalize_images": False}},
            {
                f"{place}.{name}": x
                for place in ("q_net.q_net.0", "q_net.features_extractor.cnn.0")
                for name, x in layer.items()
            },
            "images are bytes over 255, but got a model with normalize_images=False",
        ),
        (
            {},
            {
                "action_net.weight": torch.zeros(2, 3),
                "pi_features_extractor.x": torch.zeros(1),
                "vf_features_extractor.x": torch.ones(1),
            },
            "actor and critic share the encoder of images, but got share_features_extractor=False",
        ),
        (
            {},
            {
                f"{place}.{name}": x
                for place in ("actor.mu.0", "actor.features_extractor.cnn.0", "actor.features_extractor.linear.0")
                for name, x in layer.items()
            },
            "TD3's and DDPG's policies are of vectors, but got a CnnPolicy",
        ),
    ]
    for data, weights, message in cases:
        with pytest.raises(StateMismatch, match=message):
            import_policy(changed(file, data, weights))


def test_policies_that_act_in_another_way_are_refused(tmp_path: Path) -> None:
    class Scaled(FlattenExtractor):  # with as many features as there are observations
        def __init__(self, space: gym.Space[Any]):
            super().__init__(space)
            self.scale = torch.nn.Linear(self.features_dim, self.features_dim)

    cases: list[tuple[Any, dict[str, Any], str]] = [
        (sb3.PPO, {"use_sde": True, "policy_kwargs": {"squash_output": True}}, "but got squash_output=True"),
        (sb3.A2C, {"policy_kwargs": {"features_extractor_class": Scaled}}, "but got features_extractor.scale.weight"),
        (
            sb3.SAC,
            {"buffer_size": 10, "policy_kwargs": {"n_critics": 1}},
            "SAC has two critics or more, but got n_crit",
        ),
        (
            sb3_contrib.RecurrentPPO,
            {"policy_kwargs": {"enable_critic_lstm": False}},
            "remember with an LSTM, but got enable_critic_lstm=False",
        ),
        (sb3_contrib.RecurrentPPO, {"policy_kwargs": {"n_lstm_layers": 2}}, "but got lstm_actor.weight_ih_l1 too"),
        (sb3_contrib.CrossQ, {"buffer_size": 10, "use_sde": True}, "noise does not depend on states, but got use_sde"),
    ]
    for model_class, arguments, message in cases:
        policy = "MlpLstmPolicy" if model_class is sb3_contrib.RecurrentPPO else "MlpPolicy"
        made(model_class, policy, "Pendulum-v1", arguments, tmp_path / "model.zip")
        with pytest.raises(StateMismatch, match=message):
            import_policy(tmp_path / "model.zip")


def test_damage_anywhere_in_a_file_is_said(tmp_path: Path) -> None:
    file, statistics = tmp_path / "model.zip", tmp_path / "vecnormalize.pkl"
    made(sb3.A2C, "MlpPolicy", "CartPole-v1", {"policy_kwargs": {"net_arch": [8]}}, file)
    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    normalized(statistics, "CartPole-v1")
    random = np.random.default_rng(0)
    for path, argument in ((file, None), (statistics, statistics)):
        sound, refused = path.read_bytes(), 0
        for _ in range(120):
            damaged = bytearray(sound)
            damaged[random.integers(len(sound))] ^= 1 << random.integers(8)
            path.write_bytes(damaged)
            try:
                import_policy(file, argument)
            except StateMismatch:  # and nothing else
                refused += 1
        path.write_bytes(sound)
        assert refused > 40


def test_no_code_of_a_file_is_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    file = changed(tmp_path / "model.zip", {}, {"action_net.weight": Evil()})
    with pytest.raises(StateMismatch, match="must be a model that Stable-Baselines3 saved"):
        import_policy(file)
    made(sb3.A2C, "MlpPolicy", "CartPole-v1", {}, file)
    statistics = tmp_path / "vecnormalize.pkl"
    statistics.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(StateMismatch, match=r"must be the file that a VecNormalize .* but got a pickled .*touch"):
        import_policy(file, statistics)
    assert not (tmp_path / "ran").exists()


def normalized(path: Path, env: str, **options: Any) -> VecNormalize:
    """The statistics of an environment that was played for a while, saved."""
    envs = VecNormalize(DummyVecEnv([lambda: gym.make(env.removeprefix("own_envs:"))]), **options)
    envs.seed(3)
    envs.reset()
    for _ in range(50):
        envs.step(np.array([envs.action_space.sample()]))
    envs.save(str(path))
    return envs


@pytest.mark.parametrize("scales_rewards", [False, True])
@pytest.mark.parametrize(("model_class", "arguments"), [(sb3.PPO, {"n_steps": 64}), (sb3.SAC, {"buffer_size": 10})])
def test_statistics_of_observations_come_along(
    model_class: Any, arguments: dict[str, Any], scales_rewards: bool, tmp_path: Path
) -> None:
    file, statistics = tmp_path / "model.zip", tmp_path / "vecnormalize.pkl"
    small = {"policy_kwargs": {"net_arch": [16, 16]}}
    model = made(model_class, "MlpPolicy", "Pendulum-v1", arguments | small, file)
    envs = normalized(statistics, "Pendulum-v1", norm_reward=scales_rewards)
    result = import_policy(file, statistics)
    assert result.hyperparameters["normalize_obs"] is True
    assert result.hyperparameters.get("normalize_reward", scales_rewards) is scales_rewards
    assert import_policy(file).hyperparameters.get("normalize_reward", False) is False
    task = load(result.task)("Pendulum-v1", warm_start=result.policy)
    task.init(**result.hyperparameters, **SMALL.get(result.task, {}))
    observations = np.random.default_rng(2).normal(size=(1000, 3)).astype(np.float32) * [1, 1, 20]  # some are clipped
    theirs = model.predict(envs.normalize_obs(observations), deterministic=True)[0]
    ours = task.predict(observations.astype(np.float32))[0]
    np.testing.assert_allclose(ours, theirs.reshape(ours.shape), rtol=1e-4, atol=1e-4)
    assert not np.allclose(ours, model.predict(observations, deterministic=True)[0].reshape(ours.shape), atol=1e-2)
    task.fit(0)


def test_statistics_without_counterpart_are_refused(tmp_path: Path) -> None:
    file, statistics = tmp_path / "model.zip", tmp_path / "vecnormalize.pkl"
    made(sb3.A2C, "MlpPolicy", "CartPole-v1", {}, file)
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("CartPole-v1", {"clip_obs": 5.0}, "observations are normalized with clip_obs=10, but got 5.0"),
        ("CartPole-v1", {"norm_obs": False}, "one vector, but these are of rewards only"),
    ]
    for env, options, message in cases:
        normalized(statistics, env, **options)
        with pytest.raises(StateMismatch, match=message):
            import_policy(file, statistics)
    for content in (b"no pickle", pickle.dumps({"obs_rms": 1})[:-5], b""):
        statistics.write_bytes(content)
        with pytest.raises(StateMismatch, match="must be the file that a VecNormalize of Stable-Baselines3 saved, but"):
            import_policy(file, statistics)
    with pytest.raises(StateMismatch, match=r"No such file or directory"):
        import_policy(file, tmp_path / "none.pkl")
