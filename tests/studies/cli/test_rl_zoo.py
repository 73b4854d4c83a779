"""Files of rl-zoo3 become run files that train; what has no counterpart is listed or refused by name."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sb3_contrib
import stable_baselines3
from rekindle.studies.cli.run_files.rl_zoo import DEFAULTS

Cli = Callable[..., tuple[int, str, str]]
CLASSES = {"ppo_lstm": "RecurrentPPO", "qrdqn": "QRDQN", "crossq": "CrossQ"}
PPO = """
atari: {n_timesteps: !!float 1e7, policy: CnnPolicy, frame_stack: 4, n_envs: 8, n_steps: 128, batch_size: 256,
  learning_rate: lin_2.5e-4, clip_range: lin_0.1, env_wrapper: [stable_baselines3.common.atari_wrappers.AtariWrapper]}
CartPole-v1: &classic
  n_envs: 8
  n_timesteps: !!float 1e5
  policy: 'MlpPolicy'
  n_steps: 32
  batch_size: 256
  clip_range: lin_0.2
  learning_rate: lin_0.001
  ent_coef: 0.0
  normalize: true
Pendulum-v1:
  <<: *classic
  normalize: "dict(norm_obs=True, norm_reward=False, clip_obs=5)"
  n_steps: 100
  batch_size: 64
  use_sde: True
  policy_kwargs: "dict(log_std_init=-2, ortho_init=False, activation_fn=nn.ReLU, net_arch=dict(pi=[64, 32], vf=[16]))"
  callback: rl_zoo3.callbacks.SaveVecNormalizeCallback
"""


@pytest.fixture
def convert(tmp_path: Path, cli: Cli) -> Callable[..., Any]:
    def converted(algorithm: str, text: str, *arguments: str) -> Any:
        (tmp_path / f"{algorithm}.yml").write_text(text)
        status, out, errors = cli("import-config", str(tmp_path / f"{algorithm}.yml"), *arguments, "--json")
        assert status == 0, errors
        return json.loads(out)

    return converted


@pytest.mark.parametrize("algorithm", DEFAULTS)
def test_defaults_are_those_of_stable_baselines3(algorithm: str) -> None:
    name = CLASSES.get(algorithm, algorithm.upper())
    model_class = getattr(stable_baselines3, name, None) or getattr(sb3_contrib, name)
    arguments = {name: parameter.default for name, parameter in inspect.signature(model_class).parameters.items()}
    assert {name: arguments[name] for name in DEFAULTS[algorithm]} == DEFAULTS[algorithm]
    policy = ("policy", "env", "seed", "device", "action_noise", "policy_kwargs", "verbose", "tensorboard_log")
    of_class = ("rollout_buffer", "replay_buffer", "optimize_memory", "stats_window", "_init", "use_sde_at_warmup")
    left = [name for name in arguments if name not in DEFAULTS[algorithm] and not name.startswith((*policy, *of_class))]
    assert not left


def test_an_entry_becomes_a_run_file(convert: Callable[..., Any]) -> None:
    result = convert("ppo", PPO, "--env", "CartPole-v1")
    assert result["without"] == []
    content, hp = result["config"], result["config"]["hyperparameters"]
    assert (content["task"], content["env"], content["env_steps"]) == ("ppo", "CartPole-v1", 100_000)
    assert (hp["num_steps"], hp["num_envs"], hp["num_minibatches"], hp["update_epochs"]) == (32, 8, 1, 10)
    assert (hp["optimizer.lr"], hp["lr_schedule.name"], hp["lr_schedule.horizon"]) == (0.001, "linear", 100_000)
    assert (hp["clip_coef"], hp["clip_coef_schedule.name"], hp["clip_coef_schedule.final"]) == (0.2, "linear", 1e-12)
    assert hp["vf_coef"] == 1.0  # twice theirs, 0.5 by default
    assert (hp["target_kl"], hp["ent_coef"], hp["normalize_obs"], hp["normalize_reward"]) == (None, 0.0, True, True)


def test_all_settings_without_a_counterpart_are_listed(convert: Callable[..., Any]) -> None:
    result = convert("ppo", PPO, "--env", "Pendulum-v1")
    hp = result["config"]["hyperparameters"]
    assert (hp["model.hidden"], hp["model.critic_hidden"], hp["model.activation"]) == ([64, 32], [16], "relu")
    assert hp["model.std_init"] == pytest.approx(math.exp(-2) * math.sqrt(32))  # with as many activations equal to 1
    assert (hp["normalize_obs"], hp["normalize_reward"], hp["num_minibatches"]) == (True, False, 10)
    assert sorted(result["without"]) == [
        "batch_size: 64 (num_minibatches = 10, 80 steps each)",  # 800 / 64 is 12.5
        "callback: rl_zoo3.callbacks.SaveVecNormalizeCallback",
        "normalize.clip_obs: 5",
        "policy_kwargs.ortho_init: False",
    ]


def test_games_of_atari_have_one_entry(convert: Callable[..., Any]) -> None:
    content = convert("ppo", PPO, "--env", "ALE/Pong-v5")["config"]
    wrappers = [wrapper["entry_point"] for wrapper in content["env"]["wrappers"]]
    assert wrappers == [
        "stable_baselines3.common.atari_wrappers:AtariWrapper",
        "gymnasium.wrappers:FrameStackObservation",
    ]
    assert content["env"]["wrappers"][1]["kwargs"] == {"stack_size": 4, "padding_type": "zero"}
    hp = content["hyperparameters"]
    assert (hp["model.encoder"], hp["model.width"], hp["model.layers"], hp["model.activation"]) == (
        "nature",
        512,
        1,
        "relu",
    )
    assert (hp["model.shared_critic"], hp["num_minibatches"]) == (True, 4)


def test_shares_of_an_unknown_training_are_listed(convert: Callable[..., Any]) -> None:
    result = convert("dqn", "CartPole-v1: {policy: MlpPolicy, exploration_fraction: 0.2, learning_rate: lin_0.001}")
    hp = result["config"]["hyperparameters"]
    assert hp["optimizer.lr"] == 0.001
    assert not {"env_steps", "exploration.horizon", "lr_schedule.name", "lr_schedule.horizon"} & {
        *result["config"],
        *hp,
    }
    assert sorted(result["without"]) == [
        "exploration_fraction: 0.2 (the default of exploration.horizon, as there is no n_timesteps)",
        "learning_rate: lin_0.001 (constant, as there is no n_timesteps to fall over)",
    ]


def test_off_policy_settings_have_their_counterparts(convert: Callable[..., Any]) -> None:
    dqn = "CartPole-v1: {n_timesteps: 5e4, policy: MlpPolicy, train_freq: 256, gradient_steps: 128, "
    dqn += "target_update_interval: 10, exploration_fraction: 0.16, learning_starts: 10}"
    result = convert("dqn", dqn)
    hp = result["config"]["hyperparameters"]
    assert (hp["num_steps"], hp["num_updates"], hp["target_interval"], hp["tau"]) == (256, 128, 128, 1.0)
    assert (hp["exploration.horizon"], hp["double"], hp["n_step"], hp["buffer_size"]) == (8000, False, 1, 1_000_000)
    assert result["without"] == ["learning_starts: 10 (32, which a batch needs)"]
    qrdqn = dqn.replace("learning_starts: 10", "policy_kwargs: 'dict(n_quantiles=25)'")
    hp = convert("qrdqn", qrdqn)["config"]["hyperparameters"]
    assert (hp["quantiles"], hp["optimizer.eps"], hp["max_grad_norm"]) == (25, 0.01 / 32, None)
    tqc = "E-v0: {n_timesteps: 100, policy: MlpPolicy, ent_coef: auto_0.1, use_sde: true, train_freq: 8, n_envs: 2, "
    tqc += "gradient_steps: -1, top_quantiles_to_drop_per_net: 5, policy_kwargs: 'dict(n_critics=3, n_quantiles=20)'}"
    hp = convert("tqc", tqc)["config"]["hyperparameters"]
    assert (hp["critics"], hp["quantiles"], hp["dropped_quantiles"], hp["num_updates"]) == (3, 20, 5, 16)
    assert (hp["entropy.learn"], hp["entropy.alpha"], hp["sde_sample_freq"], hp["sde_clip_mean"]) == (True, 0.1, 8, 2.0)
    td3 = "E-v0: {n_timesteps: 100, policy: MlpPolicy, noise_type: normal, noise_std: 0.3, train_freq: [1, episode]}"
    result = convert("td3", td3)
    hp = result["config"]["hyperparameters"]
    assert (hp["exploration.noise"], hp["exploration.std"], hp["model.hidden"]) == ("gaussian", 0.3, [400, 300])
    assert (
        "train_freq: [1, 'episode'] (1 step instead, with one gradient step per environment step)" in result["without"]
    )


def test_hindsight_is_that_of_rl_zoo(convert: Callable[..., Any]) -> None:
    kwargs = "\"dict(goal_selection_strategy='future', n_sampled_goal=4, copy_info_dict=True)\""
    text = f"E-v0: {{policy: M, replay_buffer_class: HerReplayBuffer, replay_buffer_kwargs: {kwargs}}}"
    result = convert("sac", text)
    hp = result["config"]["hyperparameters"]
    assert (hp["replay.relabel"], hp["replay.relabel_ratio"]) == ("future", 0.8)
    assert "replay_buffer_kwargs.copy_info_dict: True" in result["without"]
    text = "E-v0: {policy: M, model_class: tqc, goal_selection_strategy: episode, n_sampled_goal: 1}"  # of old files
    content = convert("her", text)["config"]
    assert (content["task"], content["hyperparameters"]["replay.relabel"]) == ("tqc", "episode")


def test_random_search_and_trust_regions_are_those_of_rl_zoo(convert: Callable[..., Any]) -> None:
    text = "CartPole-v1: {n_timesteps: 100, policy: LinearPolicy, n_envs: 2, n_delta: 4, n_top: 1, "
    result = convert("ars", text + "learning_rate: lin_0.03}")
    hp = result["config"]["hyperparameters"]
    assert (hp["deltas"], hp["top_fraction"], hp["lr"], hp["model.layers"], hp["num_envs"]) == (4, 0.25, 0.03, 0, 2)
    assert result["without"] == ["learning_rate: lin_0.03 (constant instead)", "policy: LinearPolicy (with biases)"]
    result = convert("ars", "Pendulum-v1: {policy: MlpPolicy, policy_kwargs: 'dict(net_arch=[16])', normalize: True}")
    hp = result["config"]["hyperparameters"]
    assert (hp["model.hidden"], hp["model.activation"], hp["normalize_obs"]) == ([16], "relu", True)
    assert "policy_kwargs.squash_output: True (actions in a Box are clipped instead)" in result["without"]
    text = "CartPole-v1: {policy: MlpPolicy, n_envs: 2, n_steps: 512, batch_size: 512, cg_damping: 1e-3, "
    hp = convert("trpo", text + "n_critic_updates: 20, sub_sampling_factor: 1}")["config"]["hyperparameters"]
    assert (hp["num_minibatches"], hp["cg_damping"], hp["update_epochs"], hp["cg_steps"]) == (2, 0.001, 20, 15)
    assert (hp["target_kl"], hp["optimizer.lr"], hp["line_search_factor"]) == (0.01, 0.001, 0.8)


def test_a_memory_is_that_of_rl_zoo(convert: Callable[..., Any]) -> None:
    text = "CartPole-v1: {n_timesteps: 100, policy: MlpLstmPolicy, n_envs: 8, n_steps: 16, "
    text += "policy_kwargs: 'dict(net_arch=[32], lstm_hidden_size=64)'}"
    result = convert("ppo_lstm", text)
    hp = result["config"]["hyperparameters"]
    assert (hp["model.memory"], hp["model.width"], hp["model.hidden"]) == ("lstm", 64, [32])
    assert hp["num_minibatches"] == 1  # of 128 steps, the default


@pytest.mark.parametrize(
    ("algorithm", "settings", "message"),
    [
        ("ppo", "batch_size: 0", "batch_size must be a whole number, at least 1, but got 0; mend it"),
        ("ppo", "n_envs: 0", "n_envs must be a whole number, at least 1, but got 0"),
        ("ppo", "n_steps: 1.5", "n_steps must be a whole number, at least 1, but got 1.5"),
        ("ppo", "n_steps: .inf", "n_steps must be a number, but got inf"),
        ("ppo", "policy_kwargs: {net_arch: 64}", "net_arch must be a list of units, or one for each of pi and vf, but"),
        ("ppo", "policy_kwargs: {net_arch: [wide]}", "policy_kwargs.net_arch must be a number, but got 'wide'"),
        ("ppo", "policy_kwargs: {optimizer_kwargs: 3}", "optimizer_kwargs must hold settings by name, but got 3"),
        ("ppo", "policy_kwargs: {optimizer_kwargs: {betas: 3}}", "betas must be two numbers, but got 3"),
        ("ppo", "policy_kwargs: {log_std_init: 1000}", "a value that ppo does not take: model.std_init"),
        ("td3", "noise_type: 3", "E-v0: noise_type must be normal or ornstein-uhlenbeck, but got 3; mend it"),
        ("ars", "n_delta: 0", "n_delta must be a whole number, at least 1, but got 0"),
        (
            "sac",
            "replay_buffer_class: HerReplayBuffer, replay_buffer_kwargs: {n_sampled_goal: -1}",
            "n_sampled_goal must be a whole number, at least 1, but got -1",
        ),
    ],
)
def test_a_value_that_is_none_of_its_setting_is_named(
    algorithm: str, settings: str, message: str, tmp_path: Path, cli: Cli
) -> None:
    (file := tmp_path / f"{algorithm}.yml").write_text(f"E-v0: {{policy: M, {settings}}}")
    status, _, errors = cli("import-config", str(file))
    assert (status, message in errors) == (2, True), errors


def test_networks_of_older_files_end_with_what_is_not_shared(convert: Callable[..., Any]) -> None:
    """As entries of rl-zoo3 before 2.0 do, for Stable-Baselines3 before 1.8."""
    text = "E-v0: {{policy: MlpPolicy, policy_kwargs: 'dict(net_arch=[{}dict(pi=[64, 32], vf=[16])])'}}"
    result = convert("ppo", text.format(""))
    values = result["config"]["hyperparameters"]
    assert (values["model.hidden"], values["model.critic_hidden"], result["without"]) == ([64, 32], [16], [])
    result = convert("ppo", text.format("128, "))
    values = result["config"]["hyperparameters"]
    assert (values["model.hidden"], values["model.critic_hidden"]) == ([128, 64, 32], [128, 16])
    assert "([128] for each of actor and critic, which share none)" in result["without"][0]


def test_an_activation_that_random_search_lacks_is_listed(convert: Callable[..., Any]) -> None:
    text = "E-v0: {policy: MlpPolicy, policy_kwargs: 'dict(activation_fn=nn.LeakyReLU)'}"
    result = convert("ars", text)
    assert result["config"]["hyperparameters"]["model.activation"] == "relu"
    assert "policy_kwargs.activation_fn: LeakyReLU (ReLU instead)" in result["without"]


def test_settings_without_a_counterpart_are_refused_by_name(tmp_path: Path, cli: Cli) -> None:
    cases = [
        ("mine", "E-v0: {policy: MlpPolicy}", (), "has the name of its algorithm (ppo_lstm, a2c"),
        ("ppo", PPO, ("--env", "Acrobot-v1"), "but none of Acrobot-v1"),
        ("ppo", PPO, ("--entry", "atari"), "atari has settings for many environments; name one with --env"),
        ("ppo", "E-v0: {policy: M, policy_kwargs: 'dict(a=open(1))'}", (), "of literals and dict(), but got open(1)"),
        ("ppo", "E-v0: {policy: M, learning_rate: cos_1}", (), "a linear schedule such as lin_0.001, but got 'cos_1'"),
        ("ppo", "E-v0: {policy: M, policy_kwargs: 'dict(net_arch=[])'}", (), "networks have hidden layers"),
        (
            "ppo",
            "E-v0: {policy: M, n_envs: many}",
            (),
            "ppo.yml: E-v0: n_envs must be a number, but got 'many'; mend it",
        ),
        (
            "ppo",
            "E-v0: {policy: M, learning_rate: [1]}",
            (),
            "E-v0: learning_rate must be a number, but got [1]; mend it",
        ),
        ("dqn", "E-v0: {policy: M, train_freq: often}", (), "E-v0: train_freq must be a number, but got 'often'; mend"),
        (
            "sac",
            "E-v0: {policy: M, ent_coef: many}",
            (),
            "ent_coef must be a number or auto, such as auto_0.1, but got",
        ),
        (
            "ppo",
            "E-v0: {policy: M, env_wrapper: [3]}",
            (),
            "env_wrapper must be names such as package.Wrapper, or each",
        ),
        ("ppo", "E-v0: {policy: M, gamma: 2}", (), "E-v0 has a value that ppo does not take: gamma"),
    ]
    for algorithm, text, arguments, message in cases:
        (file := tmp_path / f"{algorithm}.yml").write_text(text)
        status, _, errors = cli("import-config", str(file), *arguments)
        assert (status, message in errors) == (2, True), errors


def test_a_converted_entry_trains(convert: Callable[..., Any], tmp_path: Path, sqlite_url: str, cli: Cli) -> None:
    convert("ppo", PPO, "--entry", "CartPole-v1")
    run = str(tmp_path / "run.toml")
    assert cli("import-config", str(tmp_path / "ppo.yml"), "--env", "Pendulum-v1", "--output", run)[0] == 0
    small = ("num_envs=2", "epoch_steps=200", "update_epochs=1")
    options = [word for value in small for word in ("--set", value)]
    status, out, errors = cli("train", run, "--epochs", "1", *options, "--storage", sqlite_url, "--json")
    assert (status, json.loads(out)["epochs"]) == (0, 1), errors
