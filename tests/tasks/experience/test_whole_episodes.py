"""Updates on whole episodes: steps, timing, and independence of members."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from fakes import Told
from rekindle import A2C, PPO, PPO2, SVPG, Cohort, EnvSpec, Task
from rekindle.tasks.envs import make_envs
from rekindle.tasks.experience.rollout import Agent, Rollout
from rekindle.tasks.experience.whole_episodes import EpisodeBuffer
from rekindle.tasks.testing import VariantSuite

SMALL: dict[str, Any] = {"epoch_steps": 320, "num_envs": 4, "num_steps": 20, "optimizer.lr": 0.01, "max_grad_norm": 0.1}
WHOLE: dict[str, Any] = {"min_rollouts": 6, "max_rollout_steps": 100}


class TestOnCartPole(VariantSuite):
    task = A2C
    env = "CartPole-v1"
    hyperparameters: ClassVar = {**SMALL, **WHOLE}
    variants: ClassVar = (
        {"normalize_obs": True, "normalize_reward": True, "stats_window_size": 9},
        {"min_rollouts": None, "min_steps": 150, "normalize_advantage": True, "update_epochs": 2},
        {"min_rollouts": 2, "min_steps": 100, "model.memory": "gru", "num_envs": 3, "epoch_steps": 360},
    )
    inert = frozenset({"model.std_init"})  # the first standard deviation of continuous actions


@pytest.mark.slow
class TestOnPendulum(VariantSuite):
    """Where no episode is shorter than 200 steps, and some are cut."""

    task = A2C
    env = "Pendulum-v1"
    hyperparameters: ClassVar = {**SMALL, "epoch_steps": 600, "num_steps": 75, **WHOLE, "num_envs": 2}
    variants: ClassVar = ({"max_rollout_steps": 150, "use_sde": True},)
    inert = frozenset({"model.std_init"})  # acts on the first state only
    cohort_size = 3


@pytest.mark.slow
class TestWhereEpochsBeginAnew(VariantSuite):
    """Environments that are restored at the ends of epochs only, where running episodes are cut."""

    task = A2C
    env = EnvSpec("fakes:Remembering-v0", {"length": 40, "spread": 30})
    hyperparameters: ClassVar = {**SMALL, "min_rollouts": 4, "max_rollout_steps": 100}
    variants: ClassVar = ({"model.memory": "lstm"},)
    inert = frozenset({"model.std_init"})
    cohort_size = 3


@pytest.mark.slow
class TestClipped(VariantSuite):
    """PPO, whose ratios are to the probabilities before an update, which waits."""

    task = PPO
    env = "CartPole-v1"
    hyperparameters: ClassVar = {**SMALL, **WHOLE, "epoch_steps": 240, "num_minibatches": 1, "update_epochs": 3}
    variants: ClassVar = ({"target_kl": 0.003, "clip_coef": 0.1, "min_rollouts": 4}, {"model.memory": "gru"})
    inert = frozenset({"model.std_init"})
    cohort_size = 3


@pytest.mark.slow
class TestParticles(VariantSuite):
    """SVPG, whose particles wait for each other."""

    task = SVPG
    env = "CartPole-v1"
    hyperparameters: ClassVar = {**SMALL, "epoch_steps": 240, "num_particles": 2, "temperature": 5.0}
    variants: ClassVar = ({"min_rollouts": 4, "max_rollout_steps": 40},)
    inert = frozenset({"model.std_init"})
    cohort_size = 2


# When there is enough


def ones_like_rewards(rollout: Rollout) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones_like(rollout.rewards), torch.ones_like(rollout.rewards)


def gathered_of(members: int = 1, num_envs: int = 2, **asked: Any) -> EpisodeBuffer:
    """Room for 3 rollouts of 4 steps."""
    hp = {"min_rollouts": None, "min_steps": None, "max_rollout_steps": 10, "num_steps": 4, **asked}
    hp |= {name: torch.tensor([[float(hp[name])]] * members) for name in ("min_rollouts", "min_steps") if hp[name]}
    envs = make_envs(EnvSpec("fakes:Corridor-v0"), list(range(members)), num_envs)
    policy = SimpleNamespace(distribution=SimpleNamespace(action_shape=(), action_type=torch.int64))
    agent: Any = SimpleNamespace(policy=policy, device=torch.device("cpu"), values=ones_like_rewards)
    return EpisodeBuffer(SimpleNamespace(**hp), envs, agent)


def add(gathered: EpisodeBuffer, *ended: str) -> None:
    """A rollout in which episodes end where these texts, one for each environment of the one member, have an x."""
    marks = torch.tensor([[float(mark == "x") for mark in text] for text in ended]).T.unsqueeze(1)
    steps, members, num_envs = marks.shape
    obs = torch.arange(steps + 1.0).view(1, -1, 1, 1).expand(members, -1, num_envs, 2)
    actions = torch.ones(members, steps, num_envs, dtype=torch.int64)
    rollout = Rollout(obs, actions, torch.ones_like(marks), marks, marks, [])
    gathered.add(rollout, {})


def shown(gathered: EpisodeBuffer) -> tuple[bool, list[str]]:
    """Whether the one member is due, and which steps of each environment are used."""
    due, used = gathered.ready_members()
    return bool(due[0]), ["".join("o" if step else "." for step in row) for row in used[0].T]


def test_every_environment_gives_the_same_number_of_whole_episodes() -> None:
    gathered = gathered_of(min_rollouts=3)  # of two environments: two of each
    add(gathered, ".xx.", "...x")
    assert not shown(gathered)[0]
    add(gathered, "x..x", "..x.")
    assert shown(gathered) == (True, ["ooo.........", "ooooooo....."])  # and not the short ones of the first alone


def test_more_episodes_are_taken_until_there_are_enough_steps() -> None:
    gathered = gathered_of(min_steps=7)
    add(gathered, ".x.x", ".x..")
    assert shown(gathered)[0] is False  # 4 steps of one episode each; the second of the other is not done
    add(gathered, "...x", ".x..")
    assert shown(gathered) == (True, ["oooo........", "oooooo......"])


def test_an_episode_that_fills_the_room_is_cut_and_bootstraps() -> None:
    gathered = gathered_of(min_rollouts=2)
    for _ in range(2):
        add(gathered, ".x..", "....")
        assert not shown(gathered)[0]
    add(gathered, ".x..", "....")
    due, used = gathered.ready_members()
    assert shown(gathered) == (True, ["oo..........", "oooooooooooo"])
    one, half = torch.ones(1, 1), torch.full((1, 1), 0.5)
    record: Any = Told(1)
    gathered.agent = Agent(record, record, record, 1)
    returns = gathered.batch(used, half, one)["returns"].view(12, 2)
    assert returns[:2, 0].tolist() == [1.5, 1.0]  # rewards and values of 1: terminated after two steps
    assert returns[-1, 1] == 1 + 0.5 * 1  # and cut, with the value of what follows
    torch.testing.assert_close(returns[0, 1], torch.tensor(2 - 0.5**11 + 0.5**12))
    gathered.clear(due)
    assert not any(tensor.any() for tensor in gathered.tensors.values())


def test_running_episodes_are_truncated_when_environments_restart() -> None:
    gathered = gathered_of(min_rollouts=2)
    add(gathered, ".x..", "....")
    assert not shown(gathered)[0]
    gathered.truncate_all()
    assert shown(gathered) == (True, ["oo..........", "oooo........"])
    assert gathered.running().tolist() == [[False, False]]


def test_running_episodes_are_told_from_those_that_have_just_ended() -> None:
    gathered = gathered_of(min_rollouts=2)
    add(gathered, "...x", ".x..")
    assert gathered.running().tolist() == [[False, True]]


# Episodes that are abandoned


CORRIDOR, REMEMBERING = (
    EnvSpec(f"fakes:{name}-v0", {"length": 40, "spread": 30}) for name in ("Corridor", "Remembering")
)


@pytest.mark.parametrize(
    ("env", "processes"),
    [
        *((env, 0) for env in (EnvSpec("CartPole-v1"), CORRIDOR, REMEMBERING)),
        (REMEMBERING, 1),
        pytest.param(CORRIDOR, 1, marks=pytest.mark.slow),
    ],
)
def test_an_abandoned_episode_is_not_tallied_and_the_next_one_is_as_ever(env: EnvSpec, processes: int) -> None:
    envs, other = make_envs(env, [1, 2], 3, processes=processes), make_envs(env, [1, 2], 3)
    actions = np.ones((2, 3), np.int64)
    for _ in range(4):
        envs.step(actions)
        other.step(actions)
    mask = np.array([[True, False, False], [False, True, True]])
    kept, before = envs.obs, envs.obs.copy()
    envs.abandon(mask)
    assert np.array_equal(kept, before)  # which a learner may hold
    assert np.array_equal(envs.obs[~mask], before[~mask])
    assert envs.take_episodes().count.tolist() == [0, 0]
    first = np.full(envs.obs.shape, np.nan, np.float32)
    while np.isnan(first).any():  # until every first episode has ended
        step = other.step(actions)
        ended = (step.terminated | step.truncated) & np.isnan(first[..., 0])
        first[ended] = other.obs[ended]
    assert np.array_equal(envs.obs[mask], first[mask])
    envs.close()
    other.close()


# In the algorithm


def learner_of(members: int = 3, env: str = "CartPole-v1", task: type[Task] = A2C, **changes: Any) -> Any:
    options = {"num_envs": 4, "num_steps": 16, "min_rollouts": 8, "max_rollout_steps": 200, "num_minibatches": 1}
    tasks = [task(env, seed=seed).init(**options, **changes) for seed in range(members)]
    return tasks[0].build_learner(tasks)


def test_only_members_with_enough_are_updated_and_the_others_stay_as_they_are() -> None:
    learner = learner_of()
    updates, waiting = 0, 0
    for _ in range(12):
        before = learner.policy.parameters.vector.clone()
        metrics = learner.iterate()
        moved = (learner.policy.parameters.vector != before).any(1).numpy()
        assert moved.tolist() == getattr(metrics, "members", np.zeros(3, np.bool_)).tolist()
        updates, waiting = updates + moved.sum(), waiting + (~moved).sum()
    assert updates > 3
    assert waiting > 3


def test_an_update_is_on_whole_episodes_that_began_after_the_last_one() -> None:
    learner = learner_of()
    seen = []
    batch_of = learner.episodes.batch

    def batch(used: Any, *args: Any) -> Any:
        due, _ = learner.episodes.ready_members()
        room = {name: tensor.clone() for name, tensor in learner.episodes.tensors.items()}
        seen.extend((room["ended"][p], used[p], room["obs"][p]) for p in np.flatnonzero(due))
        return batch_of(used, *args)

    learner.episodes.batch = batch
    for _ in range(30):
        learner.iterate()
    assert len(seen) > 10
    for ended, used, obs in seen:
        assert obs[0].abs().max() <= 0.05  # where CartPole begins
        counts = (ended.numpy() * used).sum(0)
        assert counts.min() == counts.max() >= 2
        for n in range(4):
            last = np.flatnonzero(used[:, n])[-1]
            assert ended[last, n] == 1
            assert used[: last + 1, n].all()


@pytest.mark.parametrize(
    ("task", "more"),
    [(A2C, {"normalize_advantage": True}), (PPO, {"clip_value": 0.2, "critic_loss": "huber"}), (PPO2, {})],
)
def test_the_loss_is_that_of_the_used_steps_alone(task: type[Task], more: dict[str, Any]) -> None:
    learner = learner_of(1, task=task, **more)
    kept = {}
    update = learner.update

    def once(*args: Any) -> Any:
        kept["batch"] = batch = args[0]
        kept["loss"] = learner.loss(batch)[0].detach()
        alone = {name: x[:, batch["weights"][0] > 0] for name, x in batch.items() if name != "weights"}
        kept["alone"] = learner.loss(alone)[0].detach()
        return update(*args)

    learner.update = once
    while "loss" not in kept:
        learner.iterate()
    assert 0 < kept["batch"]["weights"].mean() < 1
    torch.testing.assert_close(kept["loss"], kept["alone"])


def test_a_member_that_is_not_updated_in_an_epoch_reports_no_losses() -> None:
    task = A2C("Pendulum-v1").init(num_envs=2, num_steps=50, epoch_steps=200, min_rollouts=2)
    task.fit(3)
    assert ["policy_loss" in row for _, row in task.history] == [False, True, False]  # an episode has 200 steps
    assert "lr" not in dict(task.history)[1]


@pytest.mark.slow
def test_how_many_episodes_an_update_is_on_is_told_also_where_its_room_is_full_first() -> None:
    def fitted(**room: int) -> list[Any]:
        task = A2C("CartPole-v1").init(num_envs=4, num_steps=10, min_rollouts=20, epoch_steps=2000, **room)
        task.fit(2)
        return [row["rollouts"] for _, row in task.history]

    assert fitted(max_rollout_steps=500) == [20, 20]  # 5 episodes of 20 steps or so in each environment
    assert all(0 < rollouts < 5 for rollouts in fitted(max_rollout_steps=40))


def test_members_of_a_cohort_are_updated_at_different_times_and_as_if_alone() -> None:
    def make(seed: int) -> A2C:
        return A2C("CartPole-v1", seed=seed).init(
            min_rollouts=4 * (seed + 1),
            min_steps=30 * (seed + 1),
            num_envs=4,
            num_steps=10,
            epoch_steps=200,
            max_rollout_steps=100,
        )

    together = [make(seed) for seed in range(4)]
    Cohort(together).fit(3)
    for seed in range(4):
        alone = make(seed)
        alone.fit(3)
        assert alone.digest == together[seed].digest
        assert alone.history == together[seed].history


@pytest.mark.parametrize(
    ("hyperparameters", "message"),
    [
        (
            {"min_steps": 9000},
            r"A2C: min_steps \(9000\) must be at most num_envs \* max_rollout_steps \(8000\), for which",
        ),
        (
            {"min_rollouts": 9000},
            r"A2C: min_rollouts \(9000\) must be at most num_envs \* max_rollout_steps \(8000\), for which",
        ),
        (
            {"min_rollouts": 8, "num_minibatches": 2},
            "is one minibatch, but num_minibatches is 2; try num_minibatches=1",
        ),
        ({"min_rollouts": 8, "normalize_advantage": "running"}, "but normalize_advantage is 'running'; try True"),
        ({"min_rollouts": 0}, r"min_rollouts must be None or an integer in \[1, "),
    ],
)
def test_contradicting_values_are_refused(hyperparameters: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        A2C("CartPole-v1").init(**hyperparameters)


def test_contradicting_values_of_ppo_are_refused() -> None:
    with pytest.raises(ValueError, match=r"PPO: an update that waits .*, but num_minibatches is 16; try"):
        PPO("CartPole-v1").init(min_steps=100)
    with pytest.raises(ValueError, match=r"PPO: a separate critic is fitted to every rollout, but min_r"):
        PPO("CartPole-v1").init(min_steps=100, num_minibatches=1, critic={"name": "separate"})


@pytest.mark.slow
def test_particles_of_a_trial_are_updated_together() -> None:
    tasks = [SVPG("CartPole-v1", seed=seed).init(num_particles=2, num_envs=2, min_rollouts=4) for seed in range(3)]
    learner: Any = tasks[0].build_learner(tasks)
    patterns = set()
    for _ in range(40):
        before = learner.particles.policy.parameters.vector.clone()
        learner.iterate()
        moved = (learner.particles.policy.parameters.vector != before).any(1).view(3, 2)
        assert torch.equal(moved[:, 0], moved[:, 1])
        patterns.add(tuple(moved[:, 0].tolist()))
    assert len(patterns) > 2


def test_before_an_update_the_ratios_are_one() -> None:
    learner = learner_of(2, task=PPO)
    seen = []
    update = learner.update

    def once(*args: Any) -> Any:
        seen.append(learner.loss(args[0])[1])
        return update(*args)

    learner.update = once
    while not seen:
        learner.iterate()
    assert float(seen[0]["approx_kl"].abs().max()) < 1e-6
    assert float(seen[0]["clip_fraction"].max()) == 0


@pytest.mark.slow
def test_whole_episodes_learn_cartpole() -> None:
    tasks = [
        A2C("CartPole-v1", seed=seed).init(min_rollouts=8, max_rollout_steps=512, num_steps=16) for seed in range(4)
    ]
    Cohort(tasks).fit(40)
    returns = sorted(task.evaluate() for task in tasks)
    assert returns[1] > 150, returns
