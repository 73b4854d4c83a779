"""Signals: exactness of every one, and what each must pay for."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from fakes import batch_of, rollout_of
from rekindle import A2C, PPO, PPO2, SVPG, Cohort
from rekindle.spaces import flatten, unflatten
from rekindle.tasks.checkpoint.member_state import Part
from rekindle.tasks.checkpoint.state import difference
from rekindle.tasks.experience.returns import gae
from rekindle.tasks.experience.rollout import evaluate_values
from rekindle.tasks.signals.actions import ActionEncoder
from rekindle.tasks.signals.demonstrations import Demonstrations
from rekindle.tasks.signals.discriminators import input_gradient
from rekindle.tasks.signals.gail import softplus
from rekindle.tasks.signals.rnd import ReturnScale
from rekindle.tasks.signals.trained_networks import perceptron
from rekindle.tasks.task import Task
from rekindle.tasks.testing import ExactnessSuite, VariantSuite
from support_path import SUPPORT

SMALL: dict[str, Any] = {
    "epoch_steps": 256,
    "num_steps": 32,
    "num_envs": 4,
    "update_epochs": 3,
    "optimizer.lr": 0.03,
    "max_grad_norm": 0.1,
    "model.width": 16,
}
ICM = {"icm.use": True, "icm.strength": 0.1, "icm.width": 16}
RND = {"rnd.use": True, "rnd.width": 17}
GAIL = {"gail.use": True, "gail.width": 16}
VAIL = {**GAIL, "gail.variational": True, "gail.code_width": 17}
CLONING = {"cloning.use": True, "cloning.batch_size": 32, "cloning.samples_per_update": 64}


def shown(env: str = "CartPole-v1", steps: int = 60, seed: int = 0) -> Demonstrations:
    """What somebody did at random."""
    world, rng, episodes = gym.make(env), np.random.default_rng(seed), []
    world.action_space.seed(seed)
    for episode in range(3):
        obs, _ = world.reset(seed=seed + episode)
        saw, did = [], []
        for _ in range(int(rng.integers(steps // 4, steps // 3))):
            saw.append(obs)
            did.append(world.action_space.sample())
            obs, _, terminated, truncated, _ = world.step(did[-1])
            if terminated or truncated:
                break
        episodes.append((saw, did))
    world.close()
    return Demonstrations.of(env, *episodes)


class _Shown(VariantSuite):
    """The suite on tasks that are shown something."""

    task = PPO
    inert = frozenset({"model.std_init"})  # acts on the first state only
    cohort_size = 3

    def make(self, seed: int = 3, **changes: Any) -> Task:
        values = {**flatten(self.hyperparameters), **flatten(changes)}
        learns = values.get("gail.use") or values.get("cloning.use")
        examples = shown(str(self.env)) if learns else None
        return self.task(self.env, seed=seed, demonstrations=examples).init(**unflatten(values))


class TestCuriosity(_Shown):
    hyperparameters: ClassVar = {**SMALL, **ICM}
    variants: ClassVar = ({"normalize_obs": True, "extrinsic.strength": 0.5},)


class TestDistillation(_Shown):
    task = PPO2
    hyperparameters: ClassVar = {**SMALL, **RND}
    variants: ClassVar = ({**ICM, "num_envs": 1},)


class TestAdversary(_Shown, ExactnessSuite):
    env = "Pendulum-v1"
    hyperparameters: ClassVar = {**SMALL, **GAIL}


class TestVariationalAdversary(_Shown):
    hyperparameters: ClassVar = {**SMALL, **VAIL}
    variants: ClassVar = ({}, {"gail.use_actions": False, "num_envs": 3, "num_minibatches": 1, "gail.code_width": 2})


class TestCloning(_Shown):
    hyperparameters: ClassVar = {**SMALL, **CLONING}
    variants: ClassVar = ({"normalize_obs": True, "cloning.steps": 600},)


@pytest.mark.slow
class TestMoreOfCuriosity(_Shown):
    hyperparameters: ClassVar = {**SMALL, **ICM}
    variants: ClassVar = (
        {"normalize_advantage": "running", "normalize_reward": True, "extrinsic.strength": 0.0},
        {"model.memory": "lstm", "num_minibatches": 2},
        {"critic.name": "separate", "num_envs": 3, "num_minibatches": 3, "critic.num_minibatches": 3, **RND},
    )


@pytest.mark.slow
class TestMoreOfTheGAIL(_Shown):
    env = "Pendulum-v1"
    hyperparameters: ClassVar = {**SMALL, **GAIL}
    variants: ClassVar = (
        {"gail.use_actions": False, "normalize_obs": True, **ICM},
        {"model.memory": "gru", "num_minibatches": 2},
        {"use_sde": True, **CLONING},
        {"gail.variational": True, "model.memory": "lstm", "num_minibatches": 2, "normalize_obs": True, **RND},
    )


@pytest.mark.slow
class TestMoreOfCloning(_Shown):
    hyperparameters: ClassVar = {**SMALL, **CLONING}
    variants: ClassVar = (
        {"cloning.steps": 200, "extrinsic.strength": 0.0},
        {"model.memory": "lstm", "num_minibatches": 2, "num_steps": 12, "epoch_steps": 96},
        {"cloning.samples_per_update": 0, "cloning.batch_size": 1000},
    )


@pytest.mark.slow
class TestAllInA2C(_Shown):
    task = A2C
    hyperparameters: ClassVar = {
        "epoch_steps": 128,
        "num_steps": 8,
        "num_envs": 4,
        "model.width": 16,
        **ICM,
        **RND,
        **GAIL,
        **CLONING,
    }


@pytest.mark.slow
class TestSeveralInSVPG(_Shown):
    task = SVPG
    hyperparameters: ClassVar = {
        "epoch_steps": 128,
        "num_steps": 8,
        "num_envs": 4,
        "model.width": 16,
        **RND,
        **CLONING,
        "num_particles": 2,
    }


@pytest.mark.parametrize("name", ["icm", "rnd"])
def test_members_with_strengths_of_their_own_are_what_they_are_alone(name: str) -> None:
    def make(seed: int) -> PPO:
        more = {f"{name}.use": True, f"{name}.strength": 0.02 * (seed + 1), "extrinsic.strength": 0.5 * seed}
        return PPO("CartPole-v1", seed=seed).init(**unflatten({**SMALL, **more}))

    together, alone = [make(seed) for seed in range(3)], make(1)
    Cohort(together).fit(2)
    alone.fit(2)
    assert difference(alone.state_dict(), together[1].state_dict()) == []
    assert alone.history == together[1].history


def test_a_member_whose_cloning_is_over_reports_and_is_what_it_is_alone() -> None:
    def make(seed: int) -> PPO:
        values = {**SMALL, **CLONING, "cloning.steps": 200 if seed == 1 else 0, "cloning.strength": 0.1 * (seed + 1)}
        return PPO("CartPole-v1", seed=seed, demonstrations=shown()).init(**unflatten(values))

    together, alone = [make(seed) for seed in range(3)], make(1)
    Cohort(together).fit(3)
    alone.fit(3)
    assert difference(alone.state_dict(), together[1].state_dict()) == []
    assert alone.history == together[1].history
    learner = alone.build_learner([alone])
    steps = learner.guidance.cloning.optimizer.tensors["steps"]
    assert steps.item() == 1  # after 128 environment steps; after 256 it was over


def test_without_any_a_task_is_what_it_was_before_there_were_signals() -> None:
    task = PPO("CartPole-v1").init()
    assert task.uid == "a67f6b2f5d7df648e444"
    names = {"extrinsic", "icm", "rnd", "gail", "cloning", "demonstrated_steps"}
    assert not {name.split(".")[0] for name in task.identity.values} & names
    assert not {path.split(".")[0] for path in task.get_space().flat()} & names
    learner = task.build_learner([task])
    assert not isinstance(learner.guidance, Part)
    assert "guidance" not in learner.member_state(0)
    assert rollout_of(learner).next_obs is None
    off = {"icm": {"use": False}, "extrinsic": {"strength": None}, "demonstrated_steps": 0}
    assert PPO("CartPole-v1").init(**off).uid == task.uid


def built(task: type[Any] = PPO, env: str = "CartPole-v1", members: int = 2, **hyperparameters: Any) -> Any:
    """A learner of two members."""
    values = unflatten({"num_steps": 16, "num_envs": 3, "num_minibatches": 1, **flatten(hyperparameters)})
    learns = "cloning" in values or "gail" in values
    tasks = [
        task(env, seed=seed, demonstrations=shown(env) if learns else None).init(**values) for seed in range(members)
    ]
    return tasks[0].build_learner(tasks)


def signals_of(learner: Any) -> dict[str, Any]:
    return {signal.name: signal for signal in learner.guidance.signals}


def test_the_policy_follows_the_mean_of_all_advantages_each_with_its_own_discount() -> None:
    learner = built(icm={"use": True, "gamma": 0.9}, gail={"use": True, "gamma": 0.7, "strength": 0.3}, num_steps=64)
    hp, rollout = learner.hp, rollout_of(learner)
    assert rollout.terminated.sum() > 0
    own = learner.agent.advantages(rollout, hp.gamma, hp.gae_lambda)
    whole = learner.guidance.augment_batch(dict(own), rollout)
    flat = {
        "obs": rollout.obs[:, :-1].flatten(1, 2),
        "actions": rollout.actions.flatten(1, 2),
        "next_obs": rollout.next_obs.flatten(1, 2),
    }
    total = own["advantages"]
    for name, signal in signals_of(learner).items():
        with torch.no_grad():
            rewards = getattr(hp, name).strength * signal.rewards(flat).unflatten(1, (64, 3)).transpose(0, 1)
            values, following = evaluate_values(rollout, signal.critic)
            terminated, ended = rollout.terminated, rollout.ended
            if name == "icm":  # which goes on over the ends of episodes
                last = signal.critic(rollout.obs[:, -1])
                following, terminated, ended = torch.cat([values[1:], last[None]]), 0 * ended, 0 * ended
        advantages = gae(rewards, values, following, terminated, ended, getattr(hp, name).gamma, hp.gae_lambda)
        torch.testing.assert_close(whole[f"{name}.returns"], learner.agent.flatten(advantages + values))
        total = total + learner.agent.flatten(advantages)
    torch.testing.assert_close(whole["advantages"], total / 3)
    assert torch.equal(whole["returns"], own["returns"])


def test_the_environments_rewards_can_be_switched_off() -> None:
    learner = built(extrinsic={"strength": 0.0})
    assert rollout_of(learner).rewards.abs().max() == 0
    half, full = built(extrinsic={"strength": 0.5}), built()
    assert torch.equal(rollout_of(half).rewards, 0.5 * rollout_of(full).rewards)


def test_what_a_rollout_keeps_is_what_really_followed_the_ends_of_episodes_too() -> None:
    learner = built(icm={"use": True}, num_steps=128)
    rollout = rollout_of(learner)
    ended = rollout.ended.transpose(0, 1).bool()
    assert ended.any()
    assert torch.equal(rollout.next_obs[~ended], rollout.obs[:, 1:][~ended])
    fallen = rollout.next_obs[ended]
    assert ((fallen[:, 0].abs() > 2.4) | (fallen[:, 2].abs() > 0.2)).all()  # while the next episodes begin near 0
    assert (rollout.obs[:, 1:][ended].abs() <= 0.05).all()


def test_networks_of_signals_have_no_memory() -> None:
    # As in ML-Agents: what they say of a step depends on that step alone, whatever a recurrent policy remembers.
    learner = built(model={"memory": "lstm"}, icm={"use": True}, rnd={"use": True})
    rollout = rollout_of(learner)
    seen = {
        "obs": rollout.obs[:, :-1].flatten(1, 2),
        "actions": rollout.actions.flatten(1, 2),
        "next_obs": rollout.next_obs.flatten(1, 2),
    }
    order = torch.randperm(48, generator=torch.Generator().manual_seed(0))
    for signal in signals_of(learner).values():
        mixed = signal.rewards({name: x[:, order] for name, x in seen.items()})
        torch.testing.assert_close(mixed, signal.rewards(seen)[:, order])


def test_curiosity_is_the_error_of_what_was_foretold_and_learns_as_in_the_paper() -> None:
    learner = built(icm={"use": True, "beta": 0.3})
    signal, batch = signals_of(learner)["icm"], batch_of(learner)
    tensors = signal.trained.leaves

    def net(name: str, x: torch.Tensor) -> torch.Tensor:
        first, last = ((tensors[f"icm.{name}.{i}.weight"], tensors[f"icm.{name}.{i}.bias"]) for i in (0, 1))
        return torch.tanh(x @ first[0] + first[1]) @ last[0] + last[1]

    before, after = net("features", batch["obs"]), net("features", batch["next_obs"])
    one_hot = torch.nn.functional.one_hot(batch["actions"], 2).float()
    error = 0.5 * (net("forward", torch.cat([before, one_hot], -1)) - after).square().sum(-1)
    torch.testing.assert_close(signal.rewards(batch), error.detach())
    guess = net("inverse", torch.cat([before, after], -1))
    inverse = torch.nn.functional.cross_entropy(guess.flatten(0, 1), batch["actions"].flatten(), reduction="none")
    expected = 0.7 * inverse.view(2, -1).mean(1) + 0.3 * error.mean(1)
    losses, _ = signal.loss(batch, 0)
    torch.testing.assert_close(losses, expected)
    gradient = signal.trained.parameters.gradient
    torch.testing.assert_close(gradient(losses), gradient(expected), rtol=1e-3, atol=1e-6)


def test_distillation_pays_less_for_what_was_seen_more_often_and_its_target_never_learns() -> None:
    learner = built(rnd={"use": True, "lr": 1e-3}, members=1)
    signal = signals_of(learner)["rnd"]
    target = {name: x.clone() for name, x in signal.trained.views.items() if ".target." in name}
    signal.whitening.moments.update(np.random.default_rng(0).normal(size=(1, 4096, 4)).astype(np.float32))
    generator = torch.Generator().manual_seed(0)
    often = torch.randn(1, 64, 4, generator=generator)
    never = often + torch.tensor([3.0, -3.0, 3.0, -3.0])
    for position in range(300):
        losses, _ = signal.loss({"next_obs": often}, position)
        signal.trained.descend(losses, signal.hp.lr)
    assert signal.rewards({"next_obs": often}).mean() < 0.05 * signal.rewards({"next_obs": never}).mean()
    assert len(target) == 4
    assert all(torch.equal(x, signal.trained.views[name]) for name, x in target.items())


def test_rewards_are_divided_by_the_deviation_of_their_discounted_sums() -> None:
    rewards = np.random.default_rng(0).exponential(size=(50, 2, 3)).astype(np.float32)
    scale, gamma = ReturnScale(2, 3, torch.tensor([[0.5], [0.9]])), np.array([[0.5], [0.9]])
    first, second = scale(rewards[:20]), scale(rewards[20:])
    sums, total = [], np.zeros((2, 3))
    for reward in rewards:
        total = gamma * total + reward
        sums.append(total)
    for until, scaled in ((20, first), (50, second)):
        deviation = np.array(sums[:until]).std((0, 2))[:, None]
        np.testing.assert_allclose(scaled, rewards[until - len(scaled) : until] / deviation, rtol=1e-3)


def test_the_slope_of_a_discriminator_is_what_autograd_finds() -> None:
    net, x = perceptron("d", 3, 8, 1), torch.randn(2, 5, 3, requires_grad=True)
    layers = [(torch.randn(2, a, b), torch.randn(2, 1, b)) for a, b in ((3, 8), (8, 8), (8, 1))]
    torch.testing.assert_close(input_gradient(net, layers, x), torch.autograd.grad(net(layers, x).sum(), x)[0])
    numbers = torch.tensor([-200.0, -3.0, 0.0, 2.0, 200.0])
    torch.testing.assert_close(softplus(numbers), torch.nn.functional.softplus(numbers))


def test_a_discriminator_comes_to_pay_for_what_looks_demonstrated() -> None:
    learner = built(gail={"use": True, "lr": 3e-3}, members=1)
    signal, own = signals_of(learner)["gail"], batch_of(learner)
    own["actions"] = torch.zeros_like(own["actions"])
    signal.examples.tensors["actions"].fill_(1)  # the demonstrator pushes to the right, and the policy to the left
    for position in range(100):
        losses, report = signal.loss(own, position)
        signal.trained.descend(losses, signal.hp.lr)
    assert report["expert_estimate"] > 0.6 > 0.4 > report["policy_estimate"]
    right = {**own, "actions": torch.ones_like(own["actions"])}
    assert signal.rewards(right).mean() > 1.5 * signal.rewards(own).mean()
    assert (signal.rewards(own) > 0).all()


def test_actions_become_numbers_by_their_space() -> None:
    spaces = gym.spaces
    discrete = ActionEncoder(spaces.Discrete(3, start=5), "here")
    assert discrete(torch.tensor([[2, 0]])).tolist() == [[[0, 0, 1], [1, 0, 0]]]
    several = ActionEncoder(spaces.MultiDiscrete([2, 3]), "here")
    assert several(torch.tensor([[[1, 2]]])).tolist() == [[[0, 1, 0, 0, 1]]]
    bits = ActionEncoder(spaces.MultiBinary(3), "here")
    assert bits(torch.tensor([[[1, 0, 1]]], dtype=torch.int8)).tolist() == [[[1, 0, 1]]]
    box = ActionEncoder(
        spaces.Box(np.array([-2, 0, -np.inf], np.float32), np.array([2, 4, np.inf], np.float32)), "here"
    )
    assert box(torch.tensor([[[9.0, 1.0, 7.0]]])).tolist() == [[[1, -0.5, 7]]]
    assert box.error(torch.tensor([[[1.0, 0.5, 6.0]]]), torch.tensor([[[9.0, 1.0, 7.0]]])).tolist() == [[2]]
    guess = torch.tensor([[[0.3, -1.0, 2.0]]])
    torch.testing.assert_close(discrete.error(guess, torch.tensor([[2]])), -guess.log_softmax(-1)[..., 2])


IMAGES = pytest.param("own_envs:PictureWalk-v0", marks=pytest.mark.slow)


@pytest.mark.parametrize("env", ["own_envs:RowsWalk-v0", "own_envs:BitsWalk-v0", IMAGES, "Pendulum-v1"])
def test_every_signal_learns_in_every_kind_of_space(env: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SUPPORT)
    learner = built(env=env, num_steps=8, num_envs=2, **unflatten({**ICM, **RND, **GAIL, **CLONING}))
    before = copy.deepcopy(learner.member_state(0)["guidance"])
    report = learner.iterate()
    after = learner.member_state(0)["guidance"]
    for name in ("icm", "rnd", "gail"):
        assert not torch.equal(
            before["signals"][name]["learned"]["vector"], after["signals"][name]["learned"]["vector"]
        )
        assert {f"{name}_reward", f"{name}_value", f"{name}_loss", f"{name}_value_loss"} <= report.keys()
    assert report["cloning_loss"].isfinite().all()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gail": {"use": True}}, "gail learn from demonstrations, but there are none; give"),
        ({"demonstrated_steps": 5}, "nothing learns from them; set cloning.use"),
        ({"icm": {"strength": 0.1}}, "icm.strength applies only when icm.use is True"),
        ({"icm": {"use": True, "strength": -1}}, "icm.strength must be"),
        ({"gail": {"variational": True}}, "gail.variational applies only when gail.use is True; leave it out"),
        ({"gail": {"use": True, "information": 0.1}}, "gail.information applies only when gail.variational is True"),
        ({"gail": {"use": True, "variational": True, "information": -1}}, "gail.information must be .*, not -1"),
        ({"gail": {"use": True, "variational": True, "code_width": 1}}, "gail.code_width must be .*, not 1"),
    ],
)
def test_what_does_not_go_together_is_refused_before_any_training(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PPO("CartPole-v1").init(**values)
