"""Guidance: signals and cloning together, their advantages, and refusals."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import pytest
import torch
from fakes import rollout_of
from rekindle import A2C, PPO, SVPG, Cohort
from rekindle.spaces import unflatten
from rekindle.tasks.checkpoint.member_state import Part
from rekindle.tasks.checkpoint.state import difference
from rekindle.tasks.experience.returns import gae
from rekindle.tasks.experience.rollout import evaluate_values
from signal_learners import CLONING, GAIL, ICM, RND, SMALL, DemonstratedSuite, built, signals_of
from support_path import SUPPORT


@pytest.mark.slow
class TestAllInA2C(DemonstratedSuite):
    task = A2C
    hyperparameters: ClassVar = {
        "epoch_steps": 128,
        "num_steps": 8,
        "num_envs": 4,
        "model.width": 16,
        "normalize_reward": False,  # so that gradients are clipped
        **ICM,
        **RND,
        **GAIL,
        **CLONING,
    }


@pytest.mark.slow
class TestSeveralInSVPG(DemonstratedSuite):
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


def test_without_any_a_task_is_what_it_was_before_there_were_signals() -> None:
    of_that_time = {"update_epochs": 4, "num_minibatches": 4, "target_kl": None}
    task = PPO("CartPole-v1").init(**of_that_time)
    assert task.uid == "1819267b1004f59117e4"
    names = {"extrinsic", "icm", "rnd", "gail", "cloning", "demonstrated_steps"}
    assert not {name.split(".")[0] for name in task.identity.values} & names
    assert not {path.split(".")[0] for path in task.get_space().flat()} & names
    learner = task.build_learner([task])
    assert not isinstance(learner.guidance, Part)
    assert "guidance" not in learner.member_state(0)
    assert rollout_of(learner).next_obs is None
    off = {"icm": {"use": False}, "extrinsic": {"strength": None}, "demonstrated_steps": 0}
    assert PPO("CartPole-v1").init(**of_that_time, **off).uid == task.uid


def test_the_policy_follows_the_mean_of_all_advantages_each_with_its_own_discount() -> None:
    learner = built(icm={"use": True, "gamma": 0.9}, gail={"use": True, "gamma": 0.7, "strength": 0.3}, num_steps=64)
    hp, rollout = learner.hp, rollout_of(learner)
    assert rollout.terminated.sum() > 0
    extrinsic = learner.agent.advantages(rollout, hp.gamma, hp.gae_lambda)
    whole = learner.guidance.augment_batch(dict(extrinsic), rollout)
    flat = {
        "obs": rollout.obs[:, :-1].flatten(1, 2),
        "actions": rollout.actions.flatten(1, 2),
        "next_obs": rollout.next_obs.flatten(1, 2),
    }
    total = extrinsic["advantages"]
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
    assert torch.equal(whole["returns"], extrinsic["returns"])


def test_the_environments_rewards_can_be_switched_off() -> None:
    learner = built(extrinsic={"strength": 0.0})
    assert rollout_of(learner).rewards.abs().max() == 0
    half, full = built(extrinsic={"strength": 0.5}), built()
    assert torch.equal(rollout_of(half).rewards, 0.5 * rollout_of(full).rewards)


def test_a_rollout_keeps_the_observations_that_followed_even_at_ends_of_episodes() -> None:
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


@pytest.mark.parametrize(
    "env", ["own_envs:RowsWalk-v0", "own_envs:BitsWalk-v0", "own_envs:PictureWalk-v0", "Pendulum-v1"]
)
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
        ({"gail": {"use": True}}, "gail needs demonstrations, but there are none; give"),
        ({"demonstrated_steps": 5}, "nothing learns from them; set cloning.use"),
        ({"icm": {"strength": 0.1}}, "icm.strength applies only when icm.use is True"),
        ({"icm": {"use": True, "strength": -1}}, "icm.strength must be"),
        ({"gail": {"variational": True}}, "gail.variational applies only when gail.use is True; leave it out"),
        ({"gail": {"use": True, "information": 0.1}}, "gail.information applies only when gail.variational is True"),
        ({"gail": {"use": True, "variational": True, "information": -1}}, "gail.information must be .*, not -1"),
        ({"gail": {"use": True, "variational": True, "code_width": 1}}, "gail.code_width must be .*, not 1"),
    ],
)
def test_contradicting_values_are_refused_before_training(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PPO("CartPole-v1").init(**values)
