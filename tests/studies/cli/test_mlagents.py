"""ML-Agents' documented configurations become run files; settings without a counterpart are listed."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., tuple[int, str, str]]
PYRAMIDS = """
behaviors:
  Pyramids:
    trainer_type: ppo
    hyperparameters:
      batch_size: 128
      buffer_size: 2048
      learning_rate: 0.0003
      beta: 0.01
      epsilon: 0.2
      lambd: 0.95
      num_epoch: 3
      learning_rate_schedule: linear
    network_settings:
      normalize: false
      hidden_units: 512
      num_layers: 2
      vis_encode_type: simple
      memory: null
    reward_signals:
      extrinsic: {gamma: 0.99, strength: 1.0}
      rnd: {gamma: 0.99, strength: 0.01, learning_rate: 0.0001, network_settings: {hidden_units: 64, num_layers: 3}}
    keep_checkpoints: 5
    max_steps: 3.0e6
    time_horizon: 128
    summary_freq: 30000
environment_parameters:
  mass:
    sampler_type: uniform
    sampler_parameters: {min_value: 0.5, max_value: 10}
  height:
    curriculum:
      - name: low
        completion_criteria: {measure: reward, behavior: Pyramids, threshold: 0.8, min_lesson_length: 100}
        value: 1.5
      - name: high
        value: 3.0
env_settings: {seed: 7, env_path: null}
torch_settings: {device: cpu}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "mlagents.yaml").write_text(PYRAMIDS)
    return tmp_path / "mlagents.yaml"


def test_a_configuration_gets_its_environment_from_json_too(file: Path, cli: Cli) -> None:
    result = json.loads(
        cli("import-config", str(file), '{"id": "my_envs:Pyramids-v0", "kwargs": {"n": 2}}', "--json")[1]
    )
    env = result["config"]["env"]
    assert (env["id"], env["kwargs"], "mass" in env["parameters"]) == ("my_envs:Pyramids-v0", {"n": 2}, True)


def test_a_configuration_becomes_a_run_file(file: Path, cli: Cli) -> None:
    status, out, errors = cli("import-config", str(file), "my_envs:Pyramids-v0")
    assert status == 0, errors
    content = tomllib.loads(out)
    assert (content["task"], content["env_steps"], content["seed"], content["snapshots"]) == ("ppo", 3_000_000, 7, "5")
    assert content["env"]["id"] == "my_envs:Pyramids-v0"
    assert content["env"]["parameters"]["mass"]["sampler_type"] == "uniform"
    assert content["env"]["parameters"]["height"]["curriculum"][1] == {"name": "high", "value": 3.0}
    hp = content["hyperparameters"]
    assert (hp["num_steps"], hp["num_envs"], hp["num_minibatches"], hp["update_epochs"]) == (128, 16, 16, 3)
    assert hp["lr_schedule"] == {"name": "linear", "horizon": 3_000_000}
    assert hp["model"] == {"width": 512, "layers": 2, "encoder": "simple", "activation": "silu"}
    assert hp["rnd"] == {"use": True, "gamma": 0.99, "strength": 0.01, "lr": 0.0001, "width": 64}
    file.write_text(PYRAMIDS.replace("keep_checkpoints: 5", "keep_checkpoints: 3\n    checkpoint_interval: 100000"))
    status, out, errors = cli("import-config", str(file), "my_envs:Pyramids-v0")
    assert (status, tomllib.loads(out)["snapshots"]) == (0, "every:24:3")  # of 4,096 steps each
    for path in ("summary_freq: 30000", "reward_signals.rnd.network_settings.num_layers: 3"):
        assert f"# no counterpart: {path}" in out
        assert f"no counterpart: {path}" in errors


def test_a_converted_configuration_trains(file: Path, tmp_path: Path, sqlite_url: str, cli: Cli) -> None:
    small = PYRAMIDS.partition("environment_parameters")[0].replace("2048", "256").replace("512", "16")
    file.write_text(small.replace("max_steps: 3.0e6", "max_steps: 512"))
    run = str(tmp_path / "run.toml")
    assert cli("import-config", str(file), "CartPole-v1", "--output", run)[0] == 0
    status, out, errors = cli("train", run, "--set", "epoch_steps=256", "--storage", sqlite_url, "--json")
    assert status == 0, errors
    assert (json.loads(out)["epochs"], json.loads(out)["hyperparameters"]["gae_lambda"]) == (2, 0.95)


def test_soft_actor_critic_has_its_own_names(file: Path, cli: Cli) -> None:
    file.write_text(
        "default_settings: {trainer_type: sac, network_settings: {hidden_units: 64}}\n"
        "behaviors:\n  Walker:\n    hyperparameters: {batch_size: 256, buffer_size: 50000, buffer_init_steps: 1000,"
        " tau: 0.005, steps_per_update: 10.0, init_entcoef: 1.0, save_replay_buffer: true}\n"
    )
    result = json.loads(cli("import-config", str(file), "--json")[1])
    hp = result["config"]["hyperparameters"]
    assert (hp["num_steps"], hp["num_updates"], hp["entropy.alpha"], hp["learning_starts"]) == (10, 1, 1.0, 1000)
    assert (hp["batch_size"], hp["buffer_size"], hp["model.width"]) == (256, 50000, 64)
    assert result["without"] == ["hyperparameters.save_replay_buffer: True"]


def test_settings_that_sac_does_not_have_are_listed(file: Path, cli: Cli) -> None:
    file.write_text(
        "behaviors:\n  Walker:\n    trainer_type: sac\n    hyperparameters: {beta_schedule: linear}\n"
        "    network_settings: {goal_conditioning_type: hyper, memory: {memory_size: 128, sequence_length: 32}}\n"
        "    reward_signals: {curiosity: {gamma: 0.9, strength: 0.02}}\n"
    )
    result = json.loads(cli("import-config", str(file), "--json")[1])
    hp = result["config"]["hyperparameters"]
    assert (hp["model.memory"], hp["model.sequence_length"], hp["icm.strength"]) == ("lstm", 32, 0.02)
    assert result["without"] == [
        "hyperparameters.beta_schedule: linear",
        "network_settings.goal_conditioning_type: hyper",
        "network_settings.memory.memory_size: 128",
        "reward_signals.curiosity.gamma: 0.9",
    ]


def test_memories_goals_cloning_and_schedules_have_ours(file: Path, cli: Cli) -> None:
    file.write_text(
        "behaviors:\n  Walker:\n    trainer_type: ppo\n"
        "    hyperparameters: {learning_rate_schedule: linear}\n"
        "    network_settings: {goal_conditioning_type: hyper, memory: {memory_size: 128, sequence_length: 32}}\n"
        "    behavioral_cloning: {demo_path: demo.demo, strength: 0.5}\n"
    )
    hp = json.loads(cli("import-config", str(file), "--json")[1])["config"]["hyperparameters"]
    assert (hp["model.goal_conditioning"], hp["model.memory"], hp["cloning.use"]) == ("hyper", "lstm", True)
    assert hp["lr_schedule.name"] == "linear"
    assert (hp["lr_schedule.horizon"], hp["num_steps"], hp["num_envs"]) == (500_000, 64, 160)  # defaults of ML-Agents
    assert (hp["num_minibatches"], hp["ent_coef"], hp["model.width"], hp["update_epochs"]) == (10, 0.005, 128, 3)
    sizes = "{buffer_size: 1000}"
    file.write_text(f"behaviors: {{A: {{trainer_type: ppo, time_horizon: 100, hyperparameters: {sizes}}}}}")
    hp = json.loads(cli("import-config", str(file), "--json")[1])["config"]["hyperparameters"]
    assert (hp["num_steps"], hp["num_envs"], hp["num_minibatches"]) == (100, 10, 1)


@pytest.mark.parametrize(("buffer", "batch", "horizon", "minibatches"), [(12000, 64, 1000, 200), (256, 32, 5, 5)])
def test_minibatches_divide_the_rollout(
    buffer: int, batch: int, horizon: int, minibatches: int, file: Path, cli: Cli
) -> None:
    sizes = f"{{buffer_size: {buffer}, batch_size: {batch}}}"  # of ML-Agents' 3DBall and GridWorld
    file.write_text(f"behaviors: {{A: {{trainer_type: ppo, time_horizon: {horizon}, hyperparameters: {sizes}}}}}")
    hp = json.loads(cli("import-config", str(file), "--json")[1])["config"]["hyperparameters"]
    assert hp["num_minibatches"] == minibatches
    assert hp["num_steps"] * hp["num_envs"] % minibatches == 0


def test_schedules_are_those_of_ml_agents(file: Path, cli: Cli) -> None:
    # Linear decay ends at 1e-5 (beta) and 0.1 (epsilon), and follows the learning rate's unless it is given.
    schedules = "max_steps: 1000, hyperparameters: {beta: 0.01, epsilon: 0.2"
    file.write_text(f"behaviors: {{A: {{trainer_type: ppo, {schedules}}}}}}}")
    hp = json.loads(cli("import-config", str(file), "--json")[1])["config"]["hyperparameters"]
    assert (hp["ent_coef_schedule.name"], hp["clip_coef_schedule.name"]) == ("linear", "linear")
    assert hp["ent_coef_schedule.final"] == pytest.approx(1e-3)
    assert hp["clip_coef_schedule.final"] == pytest.approx(0.5)
    assert hp["clip_coef_schedule.horizon"] == 1000
    more = f"{schedules}, learning_rate_schedule: constant, epsilon_schedule: linear".replace(
        "epsilon: 0.2", "epsilon: 0.05"
    )
    file.write_text(f"behaviors: {{A: {{trainer_type: ppo, {more}}}}}}}")
    hp = json.loads(cli("import-config", str(file), "--json")[1])["config"]["hyperparameters"]
    assert (hp["lr_schedule.name"], hp["ent_coef_schedule.name"]) == ("constant", "constant")
    assert hp["clip_coef_schedule.points"] == [[0, 1.0], [1000, 2.0]]  # ML-Agents' epsilon rises to 0.1


def test_signals_have_the_defaults_of_ml_agents(file: Path, cli: Cli) -> None:
    file.write_text(
        "behaviors:\n  A:\n    trainer_type: ppo\n    hyperparameters: {batch_size: 256}\n"
        "    reward_signals: {gail: {demo_path: d}, rnd: {strength: 0.1}, curiosity: {encoding_size: 32}}\n"
        "    behavioral_cloning: {demo_path: d}\n"
    )
    result = json.loads(cli("import-config", str(file), "--json")[1])
    hp = result["config"]["hyperparameters"]
    assert (hp["gail.use_actions"], hp["gail.strength"], hp["gail.width"], hp["gail.lr"]) == (False, 1.0, 128, 3e-4)
    assert (hp["rnd.strength"], hp["rnd.lr"], hp["icm.strength"], hp["icm.width"]) == (0.1, 1e-4, 1.0, 32)
    assert hp["extrinsic.strength"] == 0.0  # which the file does not name
    assert (hp["cloning.samples_per_update"], hp["cloning.batch_size"], hp["vf_coef"]) == (0, 256, 1.0)
    assert (hp["max_grad_norm"], hp["normalize_reward"], hp["target_kl"], hp["optimizer.eps"]) == (
        None,
        False,
        None,
        1e-8,
    )
    demos = [f"{section}.demo_path: d" for section in ("reward_signals.gail", "behavioral_cloning")]
    assert sorted(result["without"]) == sorted(demos)


def test_an_empty_section_means_its_defaults(file: Path, cli: Cli) -> None:
    file.write_text(
        "behaviors: {A: {trainer_type: ppo, network_settings: {memory: {}}, reward_signals: {curiosity: {},"
        " extrinsic: {}}}}"
    )
    result = json.loads(cli("import-config", str(file), "--json")[1])
    hp = result["config"]["hyperparameters"]
    assert (hp["model.memory"], hp["icm.use"], hp["icm.strength"]) == ("lstm", True, 1.0)
    assert ("extrinsic.strength" in hp, result["without"]) == (False, [])


def test_sections_of_older_releases_are_listed(file: Path, cli: Cli) -> None:
    file.write_text(
        "behaviors: {A: {trainer_type: ppo}}\ncurriculum: {A: {measure: reward}}\nenvironment_paramters: 1\n"
    )
    result = json.loads(cli("import-config", str(file), "--json")[1])
    assert result["without"] == ["curriculum.A.measure: reward", "environment_paramters: 1"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("trainer_type: ppo", "trainer_type: poca", "behavior Pyramids has trainer_type 'poca'"),
        ("behaviors:", "behaviours:", "an ML-Agents configuration has behaviors, but"),
        ("lambd: 0.95", "lambd: 9", "a value that ppo does not take: gae_lambda must be"),
        ("behaviors:", "behaviors: [", "must be a file of YAML"),
        (
            "time_horizon: 128",
            "time_horizon: long",
            "mlagents.yaml: behavior Pyramids: time_horizon must be a number, but got 'long'; mend it",
        ),
        ("time_horizon: 128", "time_horizon: 0", "time_horizon must be a whole number, at least 1, but got 0; mend it"),
        ("batch_size: 128", "batch_size: 0", "batch_size must be a whole number, at least 1, but got 0; mend it"),
        ("max_steps: 3.0e6", "max_steps: .inf", "Pyramids: max_steps must be a number, but got inf; mend it"),
        (
            "time_horizon: 128",
            "self_play: {save_steps: many}",
            "mlagents.yaml: behavior Pyramids: self_play.save_steps must be a number, but got 'many'; mend it",
        ),
        (
            "  Pyramids:",
            "  Others: 3\n  Pyramids:",
            "mlagents.yaml: Others must hold settings by name, but got 3; mend it",
        ),
    ],
)
def test_a_file_without_any_counterpart_is_refused(old: str, new: str, message: str, file: Path, cli: Cli) -> None:
    file.write_text(PYRAMIDS.replace(old, new))
    status, out, errors = cli("import-config", str(file))
    assert (status, out) == (2, "")
    assert message in errors


def test_one_of_several_behaviors_is_chosen(file: Path, cli: Cli) -> None:
    file.write_text("behaviors: {A: {trainer_type: ppo}, B: {trainer_type: sac}}")
    assert json.loads(cli("import-config", str(file), "--behavior", "B", "--json")[1])["config"]["task"] == "sac"
    assert "no behavior 'C'" in cli("import-config", str(file), "--behavior", "C")[2]


def test_several_behaviors_become_one_task(file: Path, cli: Cli) -> None:
    sizes = "{buffer_size: 1024, batch_size: 128}"
    play = "{save_steps: 50000, window: 20, play_against_latest_model_ratio: 0.7, swap_steps: 1000}"
    file.write_text(
        f"behaviors:\n  Goalie: {{trainer_type: ppo, time_horizon: 128, hyperparameters: {sizes}, self_play: {play}}}\n"
        "  Striker 2: {trainer_type: sac, max_steps: 7e5, summary_freq: 3}\n"
    )
    result = json.loads(cli("import-config", str(file), "pettingzoo/package:Soccer", "--json")[1])
    content, hp = result["config"], result["config"]["hyperparameters"]
    assert (content["task"], content["env"], content["env_steps"]) == (
        "behaviours",
        "pettingzoo/package:Soccer",
        700_000,
    )
    assert (hp["num_envs"], hp["epoch_steps"], hp["Goalie.num_steps"], hp["Goalie.num_minibatches"]) == (
        8,
        4096,
        128,
        8,
    )
    assert (hp["Goalie.algorithm"], hp["Striker_2.algorithm"], hp["Striker_2.num_steps"]) == ("ppo", "sac", 1)
    options = {name.removeprefix("Goalie.self_play."): x for name, x in hp.items() if "self_play" in name}
    assert options == {
        "use": True,
        "save_steps": 50_000,
        "team_change": 250_000,
        "window": 20,
        "play_against_latest_model_ratio": 0.7,
        "swap_steps": 1000,
    }
    assert result["without"] == ["Striker 2.summary_freq: 3"]


def test_a_converted_game_trains(file: Path, tmp_path: Path, sqlite_url: str, cli: Cli) -> None:
    file.write_text(
        "behaviors: {player: {trainer_type: ppo, max_steps: 64, time_horizon: 16, hyperparameters: {buffer_size: 64,"
        " batch_size: 32}, self_play: {window: 5}}}\n"
    )
    run = str(tmp_path / "run.toml")
    assert cli("import-config", str(file), "pettingzoo/hunt_env:Nim", "--output", run)[0] == 0
    words = ["--set", "epoch_steps=64", "--eval-episodes", "2", "--storage", sqlite_url, "--json"]
    status, out, errors = cli("train", run, *words)
    assert status == 0, errors
    assert json.loads(out)["hyperparameters"]["player.self_play.window"] == 5
