"""Several behaviours in one environment: exactness with agents that leave, returns by behaviour, and refusals."""

from __future__ import annotations

import hashlib
import pickle
import re
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hunt_env import Hunt, Lone
from rekindle import PPO, Behaviours
from rekindle.tasks import load
from rekindle.tasks.algorithms.behaviours_learner import BehavioursLearner
from rekindle.tasks.algorithms.contest import Contest
from rekindle.tasks.algorithms.players import player
from rekindle.tasks.algorithms.self_play import SelfPlay, packed
from rekindle.tasks.envs import EnvSpec, EnvSpecError, make_envs
from rekindle.tasks.envs.agents.adapter import make_joint
from rekindle.tasks.envs.agents.roster import roster_of
from rekindle.tasks.envs.agents.views import SharedEnvs
from rekindle.tasks.envs.selftest.attempts import self_test
from rekindle.tasks.errors import EnvironmentFailed, UnsupportedSpace
from rekindle.tasks.evaluation.measuring import measure_episodes
from rekindle.tasks.rng import streams
from rekindle.tasks.runtime.lockstep import Lockstep
from rekindle.tasks.testing import ExactnessSuite, VariantSuite

HUNT, NIM = "pettingzoo/hunt_env:Hunt", "pettingzoo/hunt_env:Nim"
SMALL: dict[str, Any] = {
    "epoch_steps": 64,
    "num_envs": 2,
    "hunter.num_steps": 16,
    "hunter.num_minibatches": 2,
    "hunter.update_epochs": 4,
    "hunter.optimizer.lr": 0.02,
    "hunter.target_kl": None,
    "deer.algorithm": "dqn",
    "deer.learning_starts": 32,
    "deer.batch_size": 16,
}


SELF_PLAY: dict[str, Any] = {"use": True, "save_steps": 32, "swap_steps": 32, "team_change": 32, "window": 2}


class TestHunt(ExactnessSuite):
    task = Behaviours
    env = HUNT
    hyperparameters: ClassVar = SMALL
    variants: ClassVar = (
        {"hunter.normalize_obs": True, "deer.n_step": 3, "deer.normalize_obs": True}
        | {"hunter.critic.central": "joint", "hunter.agent_ids": True, "deer.agent_ids": True},
    )
    inert = frozenset({"hunter.model.std_init"})


@pytest.mark.slow  # TestHunt is its quick sibling
class TestState(VariantSuite):
    task = Behaviours
    env = HUNT
    hyperparameters: ClassVar = SMALL
    variants: ClassVar = ({"hunter.critic.central": "state", "hunter.agent_ids": True},)
    inert = frozenset({"hunter.model.std_init"})


@pytest.mark.slow  # TestSelfPlay is its quick sibling
class TestTicTacToe(VariantSuite):
    task = Behaviours
    env = EnvSpec("pettingzoo/classic:tictactoe_v3", behaviours={"x": ["player_1"], "o": ["player_2"]})
    hyperparameters: ClassVar = {
        "epoch_steps": 64,
        "num_envs": 2,
        "x.num_steps": 16,
        "x.num_minibatches": 2,
        "x.optimizer.lr": 0.02,
        "x.target_kl": None,
        "o.algorithm": "dqn",
        "o.learning_starts": 32,
        "o.batch_size": 16,
        "o.n_step": 3,
    }
    variants: ClassVar = (
        {},
        {"o.algorithm": "qrdqn"},
        {f"{name}.self_play.{option}": x for name in "xo" for option, x in SELF_PLAY.items()},
    )
    inert = frozenset({"x.model.std_init"})


SMALL_PPO: dict[str, Any] = {"num_steps": 16, "num_minibatches": 2, "optimizer.lr": 0.02, "target_kl": None}


@pytest.mark.slow  # TestHunt is its quick sibling
class TestSpread(VariantSuite):
    task = Behaviours
    env = "pettingzoo/mpe2:simple_spread_v3"
    hyperparameters: ClassVar = {"epoch_steps": 64, "num_envs": 2, **{f"agent.{k}": x for k, x in SMALL_PPO.items()}}
    variants: ClassVar = ({"agent.critic.central": "state"},)
    inert = frozenset({"agent.model.std_init"})


@pytest.mark.slow  # TestHunt is its quick sibling
class TestTag(VariantSuite):
    task = Behaviours
    env = "pettingzoo/mpe2:simple_tag_v3"
    hyperparameters: ClassVar = {
        "epoch_steps": 64,
        "num_envs": 2,
        **{f"adversary.{name}": x for name, x in SMALL_PPO.items()},
        **{name.replace("deer", "agent"): x for name, x in SMALL.items() if name.startswith("deer")},
    }
    inert = frozenset({"adversary.model.std_init"})


@pytest.mark.slow  # TestHunt is its quick sibling
class TestPursuit(VariantSuite):
    task = Behaviours
    env = EnvSpec(
        "pettingzoo/sisl:pursuit_v5",
        kwargs={"x_size": 6, "y_size": 6, "n_evaders": 2, "n_pursuers": 3, "max_cycles": 12, "n_catch": 1},
    )
    hyperparameters: ClassVar = {"epoch_steps": 64, "num_envs": 2, **{f"pursuer.{k}": x for k, x in SMALL_PPO.items()}}
    inert = frozenset({"pursuer.model.std_init"})


class TestSelfPlay(VariantSuite):
    task = Behaviours
    env = NIM
    hyperparameters: ClassVar = {
        "epoch_steps": 64,
        "num_envs": 2,
        "player.num_steps": 16,
        "player.num_minibatches": 2,
        "player.optimizer.lr": 0.02,
        "player.target_kl": None,
        **{f"player.self_play.{option}": x for option, x in SELF_PLAY.items()},
    }
    variants: ClassVar = ({"player.model.memory": "gru", "player.normalize_obs": True},)
    inert = frozenset({"player.model.std_init"})


def self_play_of(**options: Any) -> tuple[BehavioursLearner, SelfPlay]:
    values = {**TestSelfPlay.hyperparameters, **{f"player.self_play.{name}": x for name, x in options.items()}}
    task = Behaviours(TestSelfPlay.env, seed=5).init(**values)
    learner = task.member_ref().learner
    assert isinstance(learner, BehavioursLearner)
    return learner, learner.self_play.pools["player"]


def test_teams_learn_in_turn_against_policies_of_the_pool() -> None:
    learner, pool = self_play_of(team_change=64, save_steps=48, window=2, play_against_latest_model_ratio=0.0)
    view = learner.shared.views["player"]
    teams, initial = [], packed(learner.learners["player"], 0)
    for _ in range(4):  # blocks of 32 steps
        assert view.ghosts is not None
        teams.append(view.ghosts.tolist())
        assert view.present is not None
        assert not (view.present & view.ghosts).any()
        learner.run_block()
    # agents of two environments: the second agents are played by others at first, from step 64 on the first ones
    assert teams == [[False, True] * 2] * 2 + [[True, False] * 2] * 2
    # copies were due at steps 48 and 96, so the newest one replaces the initial policy
    assert pool.saved == 3
    assert not torch.equal(pool.policies[0, 0], initial)
    assert torch.equal(packed(pool.past, 0), pool.policies[0, pool.opponent[0]])


def test_the_initial_policy_stays_in_the_pool_if_it_plays() -> None:
    learner, pool = self_play_of(initial_ratio=1.0, play_against_latest_model_ratio=0.0)
    initial, opponents = pool.policies[0, 0].clone(), []
    while learner.env_steps < 96:  # each block of 32 steps ends with a copy, a draw and another team
        learner.run_block()
        opponents.append(int(pool.opponent[0]))
    assert pool.saved == 4
    assert torch.equal(pool.policies[0, 0], initial)
    assert torch.equal(pool.policies[0, 1], packed(learner.learners["player"], 0))  # the newest replaced the others
    assert {*opponents} == {0}
    assert torch.equal(packed(pool.past, 0), initial)


def test_past_policies_forget_the_episodes_of_environments_that_are_rebuilt() -> None:
    values = {**TestSelfPlay.hyperparameters, "player.model.memory": "gru"}
    task = Behaviours(EnvSpec(NIM, restore="restart"), seed=5).init(**values)
    task.fit(1)
    learner = task.member_ref().learner
    assert isinstance(learner, BehavioursLearner)
    memory = learner.self_play.pools["player"].memory.tensors["state"]
    assert memory.any()
    learner.begin_epoch()  # new environments, whose policies begin with empty memories
    assert not memory.any()


@pytest.mark.parametrize("env", [HUNT, NIM])
def test_rewards_are_scaled_by_the_transitions_that_are_learned_from(env: str) -> None:
    name = "hunter" if env == HUNT else "player"
    replay = {"algorithm": "sac", "scale_reward": True, "learning_starts": 32, "batch_size": 16, "model.width": 16}
    playing = SELF_PLAY if env == NIM else {}
    values = {**replay, "buffer_size": 1000, **{f"self_play.{option}": x for option, x in playing.items()}}
    rest: dict[str, Any] = {"deer.num_steps": 16} if env == HUNT else {}
    rest |= {"epoch_steps": 64, "num_envs": 2, **{f"{name}.{key}": x for key, x in values.items()}}
    task = Behaviours(env, seed=5).init(**rest)
    task.fit(1)
    learner = task.member_ref().learner
    assert isinstance(learner, BehavioursLearner)
    soft = learner.learners[name]
    replayed, gamma = soft.replay, 0.99
    table = replayed.numbers[0, : replayed.steps]
    rewards, *ends = (table[..., replayed.columns[field]] for field in ("reward", "terminated", "truncated"))
    counted, ended = replayed.images["present"][0, : replayed.steps] > 0, np.maximum(*ends) > 0
    assert 0 < counted.mean() < 1  # agents are absent, wait, or are played by past policies
    running, returns = np.zeros(len(rewards[0])), []
    for reward, count, over in zip(rewards, counted, ended, strict=True):
        running = gamma * running + reward
        returns += running[count].tolist()
        running[over] = 0
    total = len(returns) + 1e-4  # with the prior, which has a weight of 1e-4, a mean of 0 and a variance of 1
    variance = (np.square(returns).sum() + 1e-4) / total - (np.sum(returns) / total) ** 2
    assert soft.rewards.deviation.item() == pytest.approx(np.sqrt(variance + 1e-8), rel=1e-5)


def test_statistics_of_a_signal_are_those_of_present_agents() -> None:
    options = {"hunter.rnd.use": True, "hunter.normalize_obs": True}
    learner = Behaviours(HUNT, seed=5).init(**SMALL, **options).member_ref().learner
    assert isinstance(learner, BehavioursLearner)
    hunter: Any = learner.learners["hunter"]
    rnd, collect, present = hunter.guidance.signals[0], hunter.agent.collect, []

    def recorded(*arguments: Any) -> Any:
        rollout = collect(*arguments)
        present.append(rollout.present)
        return rollout

    hunter.agent.collect = recorded
    learner.run_epoch()
    counted = torch.cat(present).sum().item()
    assert 0 < counted < torch.cat(present).numel()
    for moments in (rnd.whitening, rnd.scale, hunter.agent.obs_normalizer):
        assert moments.count.item() == pytest.approx(counted + 1e-4)  # the latter is the weight of the prior


def test_a_rating_changes_by_what_the_result_exceeds_the_expectation() -> None:
    _, pool = self_play_of(initial_elo=1000.0)
    pool.rate(0, 1.0)
    assert pool.ratings[0, [0, -1]].tolist() == [999.5, 1000.5]
    pool.ratings[0, [0, -1]] = 1000, 1400  # expects 1 / (1 + 10^-1) = 10 / 11
    pool.rate(0, -1.0)
    assert pool.ratings[0, [0, -1]].tolist() == pytest.approx([1000 + 10 / 11, 1400 - 10 / 11])
    pool.opponent[0] = pool.hp.window  # against itself nothing changes
    pool.rate(0, 1.0)
    assert pool.ratings[0, -1] == pytest.approx(1400 - 10 / 11)


def test_evaluation_plays_each_team_in_turn_against_random_actions() -> None:
    learner, _ = self_play_of()
    moves: list[np.ndarray] = []
    measured = measure_episodes(learner, 4, on_step=lambda obs, actions, running: moves.append(actions[0]))
    assert measured.returns.tolist() == measured.info["return.player"].tolist()
    assert set(np.unique(measured.returns)) <= {-1.0, 0.0, 1.0}
    first = np.stack(moves[:1])[0]
    assert first[0, 0] == first[2, 0]  # the policy is greedy, and begins in every other game


def test_a_contest_goes_through_teams_and_opponents() -> None:
    roster = roster_of(EnvSpec(HUNT))
    teams = {"hunters": (0, 1), "deer": (2,)}
    opponents = {str(n): lambda name, episodes, keys, n=n: lambda obs: np.full(obs.shape[:2], n) for n in (1, 2)}

    def acts(episodes: int, deterministic: bool, keys: streams.Keys, around: Any) -> Any:
        policy = around("deer", lambda obs: np.zeros(obs.shape[:2]), keys)
        return lambda obs: policy(obs)

    contest = Contest(roster, teams, acts, opponents)
    act = contest.actor(8, True, lambda purpose: streams.keys([0], purpose))
    # the policy plays the deer in every other episode, and each opponent in turn plays it in the others
    assert act(np.zeros((1, 8, 2))).tolist() == [[1, 0, 2, 0, 1, 0, 2, 0]]
    agent_returns = {f"returns.{agent}": np.arange(8.0)[None] + k for k, agent in enumerate(roster.agents)}
    returns, info = contest.credited(
        np.zeros((1, 8)),
        agent_returns | {f"return.{name}": np.zeros((1, 8)) for name in teams} | {"return.hunter": np.zeros((1, 8))},
    )
    assert returns.tolist() == [[0.5, 3, 2.5, 5, 4.5, 7, 6.5, 9]]  # the mean of both hunters, the deer, and so on
    assert info["return_against.2"][0, 2:4].tolist() == [2.5, 5]
    assert np.isnan(info["return_against.2"][0, :2]).all()


@pytest.mark.parametrize("several", [False, True])
def test_evaluation_plays_against_the_named_opponents(several: bool, deer: str) -> None:
    values = {**SMALL, "hunter.agent_ids": True}  # which the opponent does not see
    env = {"id": HUNT, "opponents": [deer, "random"] if several else [deer]}
    task = Behaviours(env, seed=3).init(**values)
    measured = task.measure(8)
    assert np.isfinite(measured["return"]).all()
    against = [x for x in measured[f"info.return_against.{deer}"] if x == x] if several else measured["return"]
    assert len(against) == (4 if several else 8)
    assert against[:2] == Behaviours({"id": HUNT, "opponents": [deer]}, seed=3).init(**values).measure(8)["return"][:2]


@pytest.fixture(scope="module")
def deer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A policy of the deer in a file, as a player's name."""
    task = Behaviours(HUNT, seed=7).init(**SMALL)
    file = task.save_policy(tmp_path_factory.mktemp("players") / "deer.safetensors")
    return f"{file}@{hashlib.sha256(file.read_bytes()).hexdigest()[:12]}"


@pytest.mark.parametrize("player", ["random", "file"])
def test_a_player_acts_and_does_not_learn(player: str, deer: str) -> None:
    env = {"id": HUNT, "players": {"deer": deer if player == "file" else player}}
    values = {name: x for name, x in SMALL.items() if not name.startswith("deer")}
    whole, parts = (Behaviours(env, seed=3).init(**values) for _ in range(2))
    whole.fit(2)
    parts.fit(1)
    again = Behaviours(env, seed=3).init(**values)
    again.load_state_dict(parts.state_dict())
    again.fit(2)
    assert again.digest == whole.digest
    assert all(name.startswith("hunter") for name in whole.policy())
    assert {"episode_return.hunter", "policy_loss.hunter"} <= whole.metrics.keys()
    assert "episode_return.deer" not in whole.metrics
    assert len(whole.measure(3)["info.return.deer"]) == 3
    if player == "file":
        seen = {"deer_0": np.array([3.0, 2.0], np.float32)}
        task = Behaviours(HUNT, seed=7).init(**SMALL)
        assert whole.act(seen).keys() == task.act(seen).keys() == {"deer_0"}


def test_a_player_explores_as_when_it_was_saved(tmp_path: Path) -> None:
    # After 10 steps of 2 agents' environments epsilon is 0; that of an untrained policy is 1.
    greedy = {"exploration.horizon": 10, "exploration.final": 0.0, "deer.algorithm": "dqn"}
    values = {**SMALL, **{name if "." in name and "deer" in name else f"deer.{name}": x for name, x in greedy.items()}}
    task = Behaviours(HUNT, seed=7).init(**values)
    task.fit(1)
    file = task.save_policy(tmp_path / "deer.safetensors")
    name = f"{file}@{hashlib.sha256(file.read_bytes()).hexdigest()[:8]}"
    assert player(EnvSpec(HUNT), "deer", name).env_steps == 64
    learner = Behaviours({"id": HUNT, "players": {"deer": name}}).init().member_ref().learner
    assert isinstance(learner, BehavioursLearner)
    act = learner.players["deer"](8, lambda purpose: streams.keys([0], purpose))
    seen = np.tile(np.array([3.0, 2.0], np.float32), (1, 8, 1))
    assert len({*np.concatenate([act(seen) for _ in range(8)], None).tolist()}) == 1


def test_a_player_that_does_not_fit_is_refused(deer: str, tmp_path: Path) -> None:
    file = deer.partition("@")[0]
    lone = PPO("CartPole-v1", seed=1).init()
    other = lone.save_policy(tmp_path / "other.safetensors")
    digest = hashlib.sha256(other.read_bytes()).hexdigest()
    model = load("sb3:PPO")("CartPole-v1", seed=1).init(n_steps=64).save_policy(tmp_path / "model.safetensors")
    foreign = f"{model}@{hashlib.sha256(model.read_bytes()).hexdigest()}"
    refused = [
        ({"deer": "uniform"}, "must be 'random' or a policy's file, such as prey.safetensors@1a2b3c4d"),
        ({"deer": file}, f"the file's name is {re.escape(deer[:-4])}"),
        ({"deer": f"{file}@00000000"}, "since results depend on it"),
        ({"deer": f"{other}@{digest}"}, r"has the behaviour's observation space, Box\(-20.0, 20.0, \(2,\)"),
        ({"deer": foreign}, "of one of Rekindle's own algorithms, but .* is of sb3:PPO; train it by ppo or another"),
        ({"wolf": "random"}, "players are policies of its behaviours, hunter, deer, but one is of wolf"),
        ({"deer": "random", "hunter": "random"}, "at least one behaviour learns"),
    ]
    for players, message in refused:
        with pytest.raises(ValueError, match=message):
            Behaviours({"id": HUNT, "players": players}).init()


def test_a_central_critic_sees_all_agents_and_the_actor_its_own() -> None:
    central = {"hunter.critic.central": "joint", "hunter.agent_ids": True}
    task = Behaviours(HUNT, seed=3).init(**SMALL, **central)
    learner = task.member_ref().learner
    assert isinstance(learner, BehavioursLearner)
    seen = learner.shared.views["hunter"].obs[0]
    first, second, deer = learner.envs.obs[0, 0, :1], learner.envs.obs[0, 0, 1:2], learner.envs.obs[0, 0, 2:4]
    # its distance, which of two hunters it is, and the observations of both hunters and the deer
    assert seen[0].tolist() == [*first, 1, 0, *first, *second, *deer]
    assert seen[1].tolist() == [*second, 0, 1, *first, *second, *deer]
    agent = learner.learners["hunter"].agent
    assert agent is not None
    obs = torch.from_numpy(learner.shared.views["hunter"].obs)
    other = obs.clone()
    other[..., 5:] += 1  # what only the critic sees
    assert torch.equal(agent.policy.action_params(obs), agent.policy.action_params(other))
    assert not torch.equal(agent.policy.value(obs), agent.policy.value(other))
    with pytest.raises(UnsupportedSpace, match=r"so model\.memory must be 'none', but got 'gru'"):
        Behaviours(HUNT).init(**{"hunter.critic.central": "joint", "hunter.model.memory": "gru"})


def test_an_actor_with_a_mask_sees_nothing_of_the_other_agents() -> None:
    values = SMALL | {"hunter.critic.central": "joint", "hunter.agent_ids": True}
    task = Behaviours({"id": "pettingzoo/hunt_env:Told", "masks": "info"}, seed=3).init(**values)
    learner = task.member_ref().learner
    assert isinstance(learner, BehavioursLearner)
    agent, obs = learner.learners["hunter"].agent, torch.from_numpy(learner.shared.views["hunter"].obs)
    assert agent is not None
    numbers = 1 + 3 + 2  # its distance, its mask, and which of two hunters it is
    of_others, of_itself = obs.clone(), obs.clone()
    of_others[..., numbers:] += 1
    of_itself[..., numbers - 1] += 1
    params = agent.policy.action_params(obs)
    assert torch.equal(params, agent.policy.action_params(of_others))
    assert not torch.equal(params, agent.policy.action_params(of_itself))
    assert not torch.equal(agent.policy.value(obs), agent.policy.value(of_others))


def test_a_critic_of_the_state_sees_it_beside_the_observation() -> None:
    task = Behaviours(HUNT, seed=3).init(**SMALL, **{"hunter.critic.central": "state"})
    learner = task.member_ref().learner
    assert isinstance(learner, BehavioursLearner)
    view, numbers = learner.shared.views["hunter"], learner.envs.obs[0, 0]
    assert view.obs.shape[-1] == 5
    state = [0, *numbers[:2] + numbers[2], numbers[2]]  # the time, and where both hunters and the deer are
    assert view.obs[0, 1].tolist() == [numbers[1], *state]
    learner.shared.actions = {"hunter": np.full((1, 4), 2), "deer": np.ones((1, 2), np.int64)}
    learner.shared.exchange()
    assert view.obs[0, 0, 1:].tolist() == [1, state[1] + 1, state[2] + 1, state[3]]  # both hunters went to the right
    assert task.evaluate(2) == task.evaluate(2, env={"kwargs": {"steps": 12}})
    env = Hunt()
    seen, _ = env.reset(seed=3)
    assert task.act(seen).keys() == seen.keys()


def test_an_environment_without_a_vector_as_its_state_is_refused() -> None:
    refused = {
        "Stateless": "needs state() to return numbers, but it failed: NotImplementedError",
        "Pictured": "of numbers, but state() returns images of the shape (36, 36, 3); use critic.central=joint",
    }
    for name, message in refused.items():
        with pytest.raises(EnvSpecError, match=re.escape(message)):
            Behaviours(f"pettingzoo/hunt_env:{name}").init(**{"hunter.critic.central": "state"})


def play_wrong(what: str) -> None:
    """Play an episode in which the environment does what it must not."""
    envs = make_envs({"id": "pettingzoo/hunt_env:Wrong", "kwargs": {"what": what}}, [0], 1)
    for _ in range(12):
        envs.step(np.ones((1, 1, 3), np.float32))


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("reset", r"reset returns \(observations, infos\), each a dict by agent, as .* but it returned {'deer_0'"),
        ("absent", "only agents that were present before a step get a reward for it, but 'hunter_0', .* got 0.5; give"),
        ("no reward", "every agent that was present before a .* 'deer_0' got none at step 1 of an episode; give 0.0"),
        (
            "leaves",
            "an agent leaves in the step in which it terminates or is truncated, but 'hunter_0' has left agents",
        ),
        (
            "stays",
            "an agent leaves in the step in which it .*, but 'deer_0' has done so and is still listed; remove it",
        ),
        ("listed twice", r"agents lists each present agent once, but it is .*'deer_0', 'deer_0'\]; remove"),
        ("too early", r"observation_space\(agent\) returns .* for 'hunter_0': RuntimeError: reset first"),
        ("no agents", "an episode begins with one agent or more, but after reset there is none in agents; list"),
        ("nobody", "an episode begins with one agent or more, but after reset there is none in agents; list"),
        ("numbers", r"agents have names, each one another string, but possible_agents is \[0, 1\]; name them"),
        ("twice", "agents have names, each one another string, but possible_agents is .'hunter_0', 'hunter_0'.; name"),
        (
            "space",
            r"observation_space\(agent\) returns the space of each of .* failed for 'hunter_0': KeyError.*; return one",
        ),
        (
            "nothing",
            r"observation_space\(agent\) must return a Gymnasium space, but for 'hunter_0' got None; return one,",
        ),
        (
            "stranger",
            "possible_agents lists all agents, but rewards has 'wolf_0' at step 1 of an episode, and there are only "
            "hunter_0, hunter_1, deer_0; list it there, or leave it out of rewards",
        ),
        (
            "new agent",
            "possible_agents lists all agents, but agents has 'wolf_0' at step 2 of .* leave it out of agents",
        ),
        (
            "unseen",
            "every present agent gets an observation, but 'deer_0' got none at step 1 of an episode; give it one",
        ),
        ("rewards", "a reward is a number, but that of '.*_0' is None; fix it"),
        ("text", "a reward is a number, but that of '.*_0' is '1'; fix it"),
        ("large", "rewards must be below 1e308, but at step 1 of an episode they are {'.*_0': 1000.*; scale them down"),
        ("ends", r"terminations and truncations are booleans, but that of '.*_0' is array\(\[ True, False\]\); fix it"),
    ],
)
def test_wrong_results_of_an_environment_are_named(what: str, words: str) -> None:
    with pytest.raises(EnvSpecError, match=f"pettingzoo/hunt_env:Wrong: {words}"):
        play_wrong(what)


def test_agents_by_chance_are_told_the_generator_that_pettingzoo_has() -> None:
    restore = self_test(EnvSpec("pettingzoo/hunt_env:Chancy"))
    assert not restore.exact
    assert restore.cure == (
        "draw all chance from np.random.default_rng(seed), made in each reset, and keep all state in self"
    )


def test_an_episode_without_agents_is_named_where_it_depends_on_the_seed() -> None:
    with pytest.raises(EnvSpecError, match=r"^pettingzoo/hunt_env:Deserted: an episode begins with one agent or more"):
        make_envs("pettingzoo/hunt_env:Deserted", [0], 1)


def test_the_turn_of_nobody_is_named() -> None:
    words = "agent_selection is one of agents, .* at step 1 of an episode it is 'player_7', and agents is .'player_0'"
    with pytest.raises(EnvSpecError, match=f"pettingzoo/hunt_env:Lost: {words}"):
        make_envs("pettingzoo/hunt_env:Lost", [0], 1)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("raises", r"cannot be made with kwargs {'what': 'raises'}: its constructor raised RuntimeError: no licence"),
        ("close", r": its close\(\) raised RuntimeError: the window is gone"),
    ],
)
def test_errors_of_an_environments_code_are_named(what: str, words: str) -> None:
    with pytest.raises(EnvironmentFailed, match=f"pettingzoo/hunt_env:Wrong ?{words}"):
        Behaviours({"id": "pettingzoo/hunt_env:Wrong", "kwargs": {"what": what}}).init()


def test_masks_that_info_tells_are_obeyed() -> None:
    env = {"id": "pettingzoo/hunt_env:Told", "masks": "info"}
    task = Behaviours(env, seed=0).init(**SMALL)
    task.fit(2)  # the environment refuses what they forbid
    roster = roster_of(task.env)
    assert roster.behaviours["hunter"].observation["action_mask"].shape == (3,)
    seen = {"observation": np.zeros(1, np.float32), "action_mask": np.array([0, 0, 1], np.int8)}
    assert task.act({"hunter_1": seen}) == {"hunter_1": 2}
    with pytest.raises(EnvSpecError, match=r"has an action_mask after every reset .* that of 'hunter_0' has none; add"):
        Behaviours({**env, "id": HUNT}, seed=0).init(**SMALL).fit(1)


def test_agents_that_always_act_learn_without_weights() -> None:
    env = {"id": HUNT, "kwargs": {"steps": 4}, "all_act": True}
    learner = Behaviours(env, seed=1).init(**SMALL).member_ref().learner
    assert isinstance(learner, BehavioursLearner)
    assert learner.shared.views["hunter"].present is None
    task = Behaviours({**env, "kwargs": {"steps": 12}}, seed=1).init(**SMALL)
    with pytest.raises(ValueError, match="all_act says that all agents act in every step, but one of"):
        task.fit(1)


def test_absent_agents_get_no_rewards_and_do_not_count() -> None:
    spec = EnvSpec.of({"id": HUNT, "kwargs": {"hunters": 3}})
    shared = SharedEnvs(make_envs(spec, [0], 1), roster_of(spec))
    hunters = shared.views["hunter"]
    counted, ends = [], []
    for _ in range(12):
        assert hunters.present is not None
        counted.append(int(hunters.present.sum()))
        shared.actions = {"hunter": np.ones((1, 3), np.int64), "deer": np.ones((1, 1), np.int64)}
        shared.exchange()
        step = shared.results["hunter"]
        assert (step.reward[~np.array([counted[-1] > 2, counted[-1] > 1, counted[-1] > 0])[None]] == 0).all()
        ends.append((int(step.terminated.sum()), int(step.truncated.sum())))
    # the first hunter starves at step 5, the second at 9, and the third is truncated at 12
    assert counted == [3] * 5 + [2] * 4 + [1] * 3
    assert ends == [(0, 0)] * 4 + [(1, 0)] + [(0, 0)] * 3 + [(1, 0)] + [(0, 0)] * 2 + [(0, 1)]
    assert hunters.take_episodes().length_sum.tolist() == [5 + 9 + 12]


class LoneHunter(gym.Env[Any, Any]):
    """The same environment as `Lone`, with Gymnasium's interface."""

    observation_space: ClassVar = spaces.Box(-20, 20, (1,), np.float32)
    action_space: ClassVar = spaces.Discrete(3)

    def __init__(self) -> None:
        self.env = Lone()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.env.reset(seed)[0]["hunter_0"], {}

    def step(self, action: Any) -> tuple[Any, ...]:
        seen, rewards, terminated, truncated, _ = self.env.step({"hunter_0": action})
        return *(x["hunter_0"] for x in (seen, rewards, terminated, truncated)), {}


gym.register("LoneHunter-v0", LoneHunter)


@pytest.mark.parametrize("restore", ["", "restart"])
def test_one_agent_learns_as_in_a_plain_environment(restore: str) -> None:
    settings = {"num_steps": 16, "num_minibatches": 2, "update_epochs": 2}
    env = EnvSpec("pettingzoo/hunt_env:Lone", restore=restore)
    several = Behaviours(env, seed=3).init(epoch_steps=64, num_envs=2, hunter=settings)
    alone = PPO(EnvSpec("LoneHunter-v0", restore=restore), seed=3).init(epoch_steps=64, num_envs=2, **settings)
    for task in (several, alone):
        task.fit(2)
    for metric in ("policy_loss", "episode_return", "episode_length"):
        assert several.metrics[f"{metric}.hunter"] == alone.metrics[metric]
    assert several.evaluate() == alone.evaluate()


@pytest.mark.parametrize("case", [TestHunt, TestSelfPlay])
def test_agents_resume_exactly_where_epochs_begin_with_new_environments(case: Any) -> None:
    def task() -> Behaviours:
        return Behaviours(EnvSpec(case.env, restore="restart"), seed=3).init(**case.hyperparameters)

    whole, stopped, resumed = task(), task(), task()
    whole.fit(3)
    stopped.fit(2)
    resumed.load_state_dict(stopped.state_dict())
    resumed.fit(3)
    assert resumed.digest == whole.digest
    assert resumed.metrics == whole.metrics


def test_a_task_is_sent_to_another_process() -> None:
    task = Behaviours(HUNT, seed=1).init(**{**SMALL})
    task.fit(1)
    sent = pickle.loads(pickle.dumps(task))
    for one in (task, sent):
        one.fit(2)
    assert (sent.uid, sent.digest, sent.metrics) == (task.uid, task.digest, task.metrics)


def test_returns_are_reported_by_behaviour() -> None:
    task = Behaviours(HUNT, seed=1).init(**{**SMALL})
    task.fit(1)
    assert {"episode_return", "episode_return.hunter", "episode_return.deer"} <= task.metrics.keys()
    measured = task.measure()
    # the environment's return is the sum over agents: two hunters and a deer
    total = [2 * h + d for h, d in zip(measured["info.return.hunter"], measured["info.return.deer"], strict=True)]
    assert task.evaluate() == pytest.approx(np.mean(total))


def test_an_entry_of_info_is_averaged_over_the_agents_that_report_it() -> None:
    env = make_joint(EnvSpec(HUNT, info={"hunter.near": "last"}))
    env.reset(seed=2)  # the second hunter stands beside the deer, the first one starves in the fifth step
    means = [env.step((1, 1, 1))[-1]["hunter"]["near"] for _ in range(8)]
    assert means == [0.5] * 5 + [1.0] * 3


def test_an_entry_of_info_of_nobody_is_refused() -> None:
    with pytest.raises(
        EnvSpecError, match=r"are \['hunter', 'deer', 'hunter_0', .* got 'green.near'; name one of these"
    ):
        make_joint(EnvSpec(HUNT, info={"green.near": "last"}))


def test_agents_act_by_name() -> None:
    task = Behaviours(HUNT, seed=1).init(**SMALL)
    env = Hunt()
    seen, _ = env.reset(seed=3)
    play = task.player()
    while env.agents:
        present = {agent: seen[agent] for agent in env.agents}
        actions = play(present)
        assert actions == task.act(present) == task.predict(present)[0]
        assert actions.keys() == present.keys()
        seen, *_ = env.step(actions)
    with pytest.raises(ValueError, match="by agent, of hunter_0, hunter_1, deer_0, but some are of wolf"):
        task.act({"wolf_0": seen})


def wrapped_hunt(name: str, **kwargs: Any) -> dict[str, Any]:
    """The hunt in a wrapper of Gymnasium's."""
    return {"id": HUNT, "wrappers": [{"entry_point": f"gymnasium.wrappers:{name}", "kwargs": kwargs}]}


@pytest.mark.parametrize(
    ("env", "values", "error", "message"),
    [
        ("CartPole-v1", {}, UnsupportedSpace, "environment of several agents, such as pettingzoo/"),
        (
            "hunt_env:Hunt",
            {},
            UnsupportedSpace,
            "got hunt_env:Hunt; name one .pettingzoo/hunt_env:Hunt, if it is of Petti",
        ),
        ("CartPole-v1", {"deer.algorithm": "dqn"}, UnsupportedSpace, "environment of several agents, such as"),
        (HUNT, {"hunter.overlap": True}, UnsupportedSpace, r"hunter\.overlap must be False where agents share"),
        (HUNT, {"hunter.cloning.use": True}, UnsupportedSpace, r"hunter\.cloning\.use must be False where agents"),
        (HUNT, {"hunter.gail.use": True}, UnsupportedSpace, r"hunter\.gail\.use must be False where agents share"),
        (HUNT, {"demonstrated_steps": 9}, ValueError, "of demonstrations, from which this task does not learn; leave"),
        (HUNT, {"hunter.num_steps": 24}, ValueError, r"epoch_steps \(4096\) must be divisible by hunter.num_steps"),
        (HUNT, {"wolf.gamma": 0.9}, ValueError, "there is no hyperparameter 'wolf.gamma'"),
        (HUNT, {"deer.algorithm": "qlearn"}, ValueError, "deer.algorithm must be one of"),
        (HUNT, {"deer.algorithm": "poca"}, ValueError, "not 'poca' .*; in its place, ppo learns with a central critic"),
        (HUNT, {"deer.algorithm": "trpo"}, ValueError, "not 'trpo' .*; it weights all steps alike, also those of"),
        (HUNT, {"deer.learning_rate": 1}, ValueError, r"'deer\.learning_rate'; did you mean deer\.optimizer\.lr\?"),
        (HUNT, {"deer.zzz": 1}, ValueError, r"'deer\.zzz'; there are deer\.algorithm, .*deer\.optimizer\.\*, "),
        (HUNT, {"deer.algorithm": "random"}, ValueError, "not 'random' .*; what does not learn is a player: --player"),
        ("pettingzoo/hunt_env:Mismatched", {}, UnsupportedSpace, "hunter_0 is .* and that of hunter_1 is"),
        (
            EnvSpec("pettingzoo/hunt_env:Wrong", kwargs={"what": "reserved"}),
            {},
            EnvSpecError,
            "a behaviour has another name than hyperparameters of all, but one is 'num_envs'; name it in",
        ),
        (
            EnvSpec(HUNT, info={"near": "last"}),
            {},
            EnvSpecError,
            r"BEHAVIOUR.ENTRY, such as hunter.near, or AGENT.ENTRY",
        ),
        (
            NIM,
            {"player.self_play.use": True, "player.self_play.initial_ratio": 0.6},
            ValueError,
            "at most 1 together, but got 0.5 and 0.6",
        ),
        (
            NIM,
            {"player.self_play.use": True, "player.self_play.initial_ratio": 0.1, "player.self_play.window": 1},
            ValueError,
            "window must be 2 or more, but got 1",
        ),
        (HUNT, {"hunter.self_play.use": True}, ValueError, "two teams or more, but the agents of hunter are in"),
        (
            HUNT,
            {"hunter.self_play.use": True, "deer.self_play.use": True, "deer.self_play.team_change": 7},
            ValueError,
            "team_change is 100000 for hunter, 7 for deer; give them the same",
        ),
        ({"id": HUNT, "teams": {"all": ["hunter_0"]}}, {}, ValueError, "every agent has a team, but hunter_1, deer_0"),
        ({"id": HUNT, "behaviours": {"all": ["hunter_0"]}}, {}, ValueError, "hunter_1, deer_0 is in none"),
        (
            {"id": HUNT, "behaviours": {"all": ["wolf_0"]}},
            {},
            ValueError,
            "'wolf_0', and there are hunter_0.*; name some",
        ),
        ({"id": HUNT, "behaviours": {"all": ["hunter_2"]}}, {}, ValueError, "; did you mean hunter_"),
        (
            {"id": HUNT, "behaviours": {"all": ["hunter_0"], "some": ["hunter_0"]}},
            {},
            ValueError,
            "an agent has one behaviour, but 'hunter_0' is in all and in some; leave it out of one",
        ),
        (
            wrapped_hunt("FlattenObservation"),
            {},
            EnvSpecError,
            "but FlattenObservation changes observation_space; name",
        ),
        (
            wrapped_hunt("ClipReward", max_reward=0),
            {},
            EnvSpecError,
            "but ClipReward changes the sum of rewards, while",
        ),
        (
            "pettingzoo/hunt_env:Unseeded",
            {},
            EnvSpecError,
            r"PettingZoo's reset\(seed=None, .* Unseeded has no seed; add",
        ),
        ("pettingzoo/hunt_env:make_anything", {}, ValueError, r"write def make_anything\(...\) -> ParallelEnv"),
        ("pettingzoo/hunt_env:Nothing", {}, ValueError, "must name an environment that can be imported"),
    ],
)
def test_an_environment_or_option_that_cannot_work_is_refused(
    env: Any, values: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Behaviours(env).init(**values)


def test_a_function_that_says_that_it_makes_an_environment_is_called() -> None:
    assert list(roster_of(EnvSpec("pettingzoo/hunt_env:make_hunt")).behaviours) == ["hunter", "deer"]


def test_wrong_arguments_of_a_task_of_behaviours_are_named() -> None:
    task = Behaviours(HUNT, seed=1).init(**SMALL)
    seen = {"hunter_0": np.zeros(1), "deer_0": np.zeros(3)}
    for ask in (task.act, task.predict, task.player()):
        with pytest.raises(
            EnvSpecError, match=r"deer_0: observation must have the shape \(2,\), .* the caller gave .*3"
        ):
            ask(seen)
    with pytest.raises(UnsupportedSpace, match="has a value for each of its agents, not one"):
        task.value({"hunter_0": np.zeros(1)})
    with pytest.raises(UnsupportedSpace, match="has a loss for each behaviour that learns"):
        task.eval_loss({})
    with pytest.raises(ValueError, match="games must be an integer of at least 1, but got 0"):
        task.match(task, games=0)
    with pytest.raises(TypeError, match=r"Behaviours.match: other is a Task or a text, but got 3"):
        task.match(3)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedSpace, match=r"but ppo on CartPole-v1.* has one policy for all; name a task"):
        task.match(PPO("CartPole-v1").init())


def test_a_table_names_behaviours() -> None:
    spec = EnvSpec.of({"id": HUNT, "behaviours": {"fast": ["hunter_1"], "slow": ["hunter_0"], "prey": ["deer_0"]}})
    assert {name: b.slots for name, b in roster_of(spec).behaviours.items()} == {
        "fast": (1,),
        "slow": (0,),
        "prey": (2,),
    }


def test_jobs_in_lockstep_run_in_order_and_meet() -> None:
    seen: list[str] = []
    lockstep = Lockstep(lambda: seen.append("|"))

    def job(name: str) -> str:
        for _ in range(2):
            seen.append(name)
            lockstep.meet(name)
        return name

    assert lockstep.run({"a": lambda: job("a"), "b": lambda: job("b")}) == {"a": "a", "b": "b"}
    assert "".join(seen) == "ab|ab|"


def test_a_job_that_fails_ends_the_others() -> None:
    ended: list[str] = []
    lockstep = Lockstep(lambda: None)

    def waits() -> None:
        try:
            while True:
                lockstep.meet("a")
        finally:
            ended.append("a")

    def fails() -> None:
        lockstep.meet("b")
        raise ArithmeticError("of b")

    with pytest.raises(ArithmeticError, match="of b"):
        lockstep.run({"a": waits, "b": fails})
    assert ended == ["a"]


def test_a_job_that_takes_fewer_steps_than_the_others_is_an_error() -> None:
    lockstep = Lockstep(lambda: None)
    with pytest.raises(RuntimeError, match="b must take as many steps as the others"):
        lockstep.run({"a": lambda: None, "b": lambda: lockstep.meet("b")})
