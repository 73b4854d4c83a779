"""DQN: exactness, its loss, and refusals."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import tiny
import torch
from rekindle import DQN, SAC, Cohort, EnvSpec
from rekindle.spaces import UnknownParameter, flatten, unflatten
from rekindle.tasks.algorithms.dqn.dqn import DQNLearner
from rekindle.tasks.checkpoint.state import difference, materialized
from rekindle.tasks.envs import EnvSpecError
from rekindle.tasks.errors import UnsupportedSpace
from rekindle.tasks.evaluation.objective import evaluate
from rekindle.tasks.testing import ExactnessSuite

SMALL = tiny.DQN


class TestOnCartPole(ExactnessSuite):
    task = DQN
    env = "CartPole-v1"
    hyperparameters: ClassVar = {**SMALL, "epoch_steps": 96}
    variants: ClassVar = (
        {"tau": 0.5, "double": True, "n_step": 3, "num_envs": 3, "buffer_size": 101, "normalize_obs": True},
        {
            "stats_window_size": 4,
            "replay.name": "prioritized",
            "replay.beta_horizon": 400,
            "exploration.name": "exponential",
            "n_step": 5,
            "num_envs": 2,
            "model.dueling": True,
            "model.activation": "tanh",
        },
        {
            "optimizer.name": "adamw",
            "lr_schedule.name": "cosine",
            "lr_schedule.horizon": 600,
            "target_interval": 1,
            "tau": 0.01,
            "model.activation": "tanh",
            "model.width": 17,
            "model.layers": 3,
            "num_steps": 3,
            "batch_size": 33,
        },
        {
            "optimizer.name": "rmsprop",
            "optimizer.momentum": 0.5,
            "lr_schedule.name": "exponential",
            "lr_schedule.horizon": 600,
            "max_grad_norm": None,
            "eval_interval": 2,
            "refill_interval": 1,
            "use_trained_policy_for_refill": True,
            "replay.name": "prioritized",
            "replay.beta_horizon": 400,
        },
    )


# What it learns from


def learner(members: int = 1, env: str | EnvSpec = "CartPole-v1", **changes: Any) -> DQNLearner:
    tasks = [DQN(env, seed=seed).init(**unflatten({**flatten(SMALL), **flatten(changes)})) for seed in range(members)]
    return DQNLearner(EnvSpec.of(env), range(members), [task.hyperparameters or {} for task in tasks])


def batch_of(size: int = 6, members: int = 1, discount: float = 0.9) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(0)
    numbers = {
        name: torch.from_numpy(rng.standard_normal((members, size, 4)).astype(np.float32))
        for name in ("obs", "next_obs")
    }
    return {
        **numbers,
        "action": torch.from_numpy(rng.integers(0, 2, (members, size))),
        "reward": torch.from_numpy(rng.standard_normal((members, size)).astype(np.float32)),
        "discount": torch.full((members, size), discount),
    }


def targets(dqn: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    values: torch.Tensor = dqn.targets(batch, dqn.policy.of_batch(batch, dqn.hp.double, learn=False))
    return values


def test_the_prediction_is_of_the_action_taken_not_of_the_best_one() -> None:
    dqn, batch = learner(), batch_of()
    every = dqn.policy.values(batch["obs"])
    taken = torch.stack([every[0, i, a] for i, a in enumerate(batch["action"][0])])
    best = dqn.policy.target_values(batch["next_obs"]).amax(-1)
    errors = dqn.losses(batch, dqn.policy.of_batch(batch, False, learn=False))[1]
    assert torch.allclose(errors[0], (batch["reward"] + 0.9 * best)[0] - taken)
    assert not torch.equal(taken, every.amax(-1)[0])
    other, _ = dqn.loss({**batch, "action": 1 - batch["action"]})
    assert other != dqn.loss(batch)[0]


def test_the_target_is_the_best_value_of_the_target_network() -> None:
    dqn, batch = learner(), batch_of()
    dqn.policy.target.vector.mul_(0.5)
    best = dqn.policy.target_values(batch["next_obs"]).amax(-1)
    assert torch.equal(targets(dqn, batch), batch["reward"] + 0.9 * best)


def test_double_lets_the_online_network_choose_and_the_target_network_judge() -> None:
    dqn, batch = learner(double=True), batch_of(50)
    dqn.policy.target.vector.neg_()
    chosen = dqn.policy.values(batch["next_obs"]).argmax(-1, keepdim=True)
    judged = dqn.policy.target_values(batch["next_obs"]).gather(-1, chosen).squeeze(-1)
    assert torch.equal(targets(dqn, batch), batch["reward"] + 0.9 * judged)
    assert (judged < dqn.policy.target_values(batch["next_obs"]).amax(-1)).any()


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("activation", ["relu", "tanh", "silu"])
def test_the_step_is_down_the_gradient_of_the_loss(activation: str, dueling: bool) -> None:
    dqn = learner(2, **{"model.activation": activation, "model.dueling": dueling, "model.layers": 3})
    batch = batch_of(32, members=2)
    policy = dqn.policy
    q = policy(batch["obs"])
    assert torch.allclose(q, policy.values(batch["obs"]), atol=1e-6)
    losses, errors = dqn.losses(batch, policy.of_batch(batch, dqn.hp.double))
    gradient = policy.parameters.gradient(losses)
    taken = policy._q(*policy._leaves, batch["obs"]).gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)
    losses = torch.nn.functional.huber_loss(taken, (errors + taken).detach(), reduction="none").mean(1)
    assert torch.allclose(gradient, policy.parameters.gradient(losses), atol=1e-6)


def test_dueling_separates_the_value_from_the_mean_of_the_advantages() -> None:
    policy, obs = learner(**{"model.dueling": True}).policy, batch_of()["obs"]
    value = policy.heads[1](policy._views[1][1], obs)
    assert torch.allclose(policy.values(obs).mean(-1, keepdim=True), value, atol=1e-6)


def test_a_step_follows_the_importance_weights() -> None:
    def moved(weight: torch.Tensor) -> torch.Tensor:
        dqn = learner(**{"optimizer.name": "sgd", "optimizer.lr": 0.1, "max_grad_norm": None})
        before = dqn.policy.parameters.vector.clone()
        dqn.update({**batch_of(), "weight": weight})
        return dqn.policy.parameters.vector - before

    ones = torch.ones(1, 6)
    assert not moved(0 * ones).any()
    torch.testing.assert_close(moved(0.5 * ones), 0.5 * moved(ones), rtol=1e-3, atol=1e-6)


def test_the_target_network_begins_as_a_copy_of_the_online_one() -> None:
    dqn = learner(2)
    assert torch.equal(dqn.policy.target.vector, dqn.policy.parameters.vector)


def test_the_target_interval_counts_gradient_steps() -> None:
    dqn = learner(target_interval=3, tau=1.0, num_updates=1, num_steps=40)
    dqn.iterate()
    assert dqn.progress.updates == 0  # the memory was being filled
    copies = []
    for _ in range(7):
        dqn.iterate()
        copies.append(torch.equal(dqn.policy.target.vector, dqn.policy.parameters.vector))
    assert dqn.progress.updates == 7
    assert copies == [False, False, True, False, False, True, False]


def test_tau_moves_a_part_of_the_way() -> None:
    policy = learner(2).policy
    policy.parameters.vector.fill_(1)
    policy.target.vector.fill_(0)
    policy.move_target(torch.tensor([[0.25], [1.0]]), np.array([[True], [False]]))
    assert policy.target.vector[:, 0].tolist() == [0.25, 0]


def test_a_member_that_does_not_move_its_target_keeps_every_bit_of_it() -> None:
    policy = learner(2).policy
    policy.target.vector.fill_(-0.0)
    policy.move_target(torch.ones(2, 1), np.array([[True], [False]]))
    assert policy.target.vector[1].signbit().all()


def test_a_gradient_step_lowers_the_loss_on_its_batch() -> None:
    dqn, batch = learner(2, target_interval=1000), batch_of(32, members=2)
    before, _ = dqn.loss(batch)
    dqn.progress.updates = 1  # at none the target would move
    for _ in range(20):
        dqn.update(batch)
    assert (dqn.loss(batch)[0] < before).all()


@pytest.mark.slow
def test_values_in_a_corridor_are_those_of_the_theory() -> None:
    env = EnvSpec("fakes:Corridor-v0", {"length": 3}, max_episode_steps=20)
    task = DQN(env, seed=0).init(
        epoch_steps=1200,
        learning_starts=200,
        gamma=0.5,
        num_updates=4,
        optimizer={"lr": 3e-3},
        exploration={"final": 0.5, "horizon": 1},
        n_step=1,  # over more steps, what is explored counts too
        target_interval=50,
        tau=1.0,
    )
    task.fit(1)
    assert task.ref is not None
    places = torch.tensor([[[0.0, 1], [1, 1], [2, 1]]])
    q = task.ref.learner.policy.values(places)[0]
    # The best is to stay at place 2 for ever, worth 2 + 2/2 + 2/4 + ... = 4; the limit only truncates.
    assert q[:, 0].tolist() == pytest.approx([0 + 3 / 2, 1 + 4 / 2, 2 + 4 / 2], abs=0.1)
    assert q[:, 1].tolist() == pytest.approx([1 + 4 / 2, 2 + 4 / 2, 3], abs=0.1)
    assert task.evaluate(3) == 1 + 2 + 2 * 18


# How the memory is filled


def test_the_memory_is_filled_by_a_random_policy_first() -> None:
    dqn = learner(num_steps=20, learning_starts=40, **{"exploration.start": 0.0, "exploration.final": 0.0})
    dqn.policy.parameters.vector.fill_(0)  # greedy is action 0
    assert dqn.iterate() == {}
    assert dqn.filling
    dqn.iterate()
    assert 5 < dqn.replay.numbers[0, :40, 0, dqn.replay.columns["action"]].sum() < 35
    dqn.progress.full_at = 0
    dqn.collect()
    assert dqn.replay.numbers[0, 40:60, 0, dqn.replay.columns["action"]].sum() == 0


@pytest.mark.parametrize("trained", [False, True])
def test_a_refill_is_by_the_policy_that_was_asked_for(trained: bool) -> None:
    dqn = learner(
        num_steps=20, use_trained_policy_for_refill=trained, **{"exploration.start": 0.0, "exploration.final": 0.0}
    )
    for _ in range(4):
        dqn.iterate()
    updates = dqn.progress.updates
    dqn.refill_all()
    assert dqn.replay.size == 0
    dqn.policy.parameters.vector.fill_(0)
    dqn.iterate()
    dqn.iterate()
    assert dqn.progress.updates == updates
    actions = dqn.replay.numbers[0, 80:120, 0, dqn.replay.columns["action"]]
    assert (actions.sum() == 0) == trained
    dqn.iterate()
    assert dqn.progress.updates > updates


def test_a_memory_is_refilled_every_so_many_epochs() -> None:
    task = DQN("CartPole-v1").init(**SMALL, refill_interval=2)
    task.fit(2)
    assert task.ref is not None
    dqn: Any = task.ref.learner
    assert dqn.filling
    assert dqn.replay.size == 0
    task.fit(3)
    assert not dqn.filling
    assert (dqn.replay.size, dqn.progress.updates) == (128, 2 * (128 // 4 * 3 - 2 * 10))


@pytest.mark.parametrize("trained", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_warm_start_fills_the_memory_by_the_policy_that_was_asked_for(trained: bool) -> None:
    source = DQN("CartPole-v1", seed=9).init(**SMALL)
    source.fit(1)
    hp = {**SMALL, "exploration.start": 0.0, "exploration.final": 0.0, "use_trained_policy_for_refill": trained}

    def made(seed: int, warm: bool) -> DQN:
        return DQN("CartPole-v1", seed=seed, warm_start=source if warm else None).init(**hp)

    together = [made(0, True), made(1, False), made(2, True)]
    Cohort(together).fit(1)
    for seed, warm in ((0, True), (1, False)):
        alone = made(seed, warm)
        assert alone.ref is None or alone.ref.learner.filling
        alone.fit(1)
        assert alone.digest == together[seed].digest
    assert together[0].ref is not None
    dqn: Any = together[0].ref.learner
    filled = dqn.replay.batch(np.tile(np.arange(40), (3, 1)), ("obs", "action"))
    first = [DQN("CartPole-v1", warm_start=source).init(**SMALL).act(obs) for obs in filled["obs"][0].numpy()]
    assert (filled["action"][0].tolist() == first) == trained  # seed 0's; seed 1 is not trained
    assert 5 < filled["action"][1].sum() < 35


def test_a_state_in_the_middle_of_filling_is_whole() -> None:
    one, other = learner(num_steps=20), learner(num_steps=20)
    one.iterate()
    other.load_member(0, materialized(one.member_state(0)))
    for dqn in (one, other):
        dqn.iterate()
        dqn.iterate()
    assert difference(one.member_state(0), other.member_state(0)) == []


def test_observations_are_scaled_by_all_that_was_seen_and_kept_as_they_came() -> None:
    dqn = learner(2, num_envs=3, normalize_obs=True, buffer_size=300)
    while dqn.filling:
        dqn.iterate()
    steps = dqn.replay.steps
    _, batch = dqn.sampler.draw(0, dqn.hp.gamma, dqn.env_steps)
    kept = dqn.replay.batch(np.tile(np.arange(3 * steps), (2, 1)), ("obs",))["obs"]
    assert dqn.obs_normalizer is not None
    np.testing.assert_allclose(kept.double().mean(1), dqn.obs_normalizer.mean, atol=1e-4)
    raw = {name: batch[name].numpy().copy() for name in ("obs", "next_obs")}
    _, scaled = dqn.draw()
    for name, values in raw.items():
        np.testing.assert_allclose(scaled[name], dqn.normalize(values), atol=1e-5)
        np.testing.assert_allclose(dqn.actor(64)(values), dqn.policy.values(scaled[name]).argmax(-1))
    counts = dqn.obs_normalizer.count.copy()
    evaluate(dqn, 2)
    assert np.array_equal(dqn.obs_normalizer.count, counts)


def test_evaluation_is_greedy() -> None:
    dqn = learner(**{"exploration.start": 1.0, "exploration.final": 1.0})
    dqn.policy.parameters.vector.fill_(0)
    assert (dqn.actor(1)(dqn.envs.obs) == 0).all()
    assert evaluate(dqn, 20)[0] < 11  # always to the left


def test_evaluation_has_an_interval_of_its_own_and_leaves_no_placeholders() -> None:
    task = DQN("CartPole-v1").init(**SMALL, eval_interval=2)
    task.fit(4)
    assert [epoch for epoch, row in task.history if "eval_return" in row] == [2, 4]
    assert task.history[-1][1]["eval_return"] == task.evaluate()
    assert all(np.isfinite(list(row.values())).all() for _, row in task.history)


def test_losses_are_means_over_the_iterations_that_learned() -> None:
    task = DQN("CartPole-v1").init(**{**SMALL, "learning_starts": 128, "optimizer.lr": 1e-9})
    task.fit(1)
    assert "loss" not in task.metrics
    task.fit(2)
    assert task.metrics["lr"] == pytest.approx(1e-9)


def test_the_loss_can_be_asked_for() -> None:
    task = DQN("CartPole-v1").init(**SMALL)
    batch = {name: x[0] for name, x in batch_of().items()}
    assert task.eval_loss(batch).keys() == {"loss", "q"}


# What it refuses


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"buffer_size": 16}, r"DQN: batch_size \(32\) must be at most buffer_size \(16\)"),
        ({"learning_starts": 300, "epoch_steps": 400}, r"learning_starts \(300\) must be at most buffer_size \(200\)"),
        ({"learning_starts": 31}, r"batch_size \(32\) must be at most learning_starts \(31\)"),
        (
            {"learning_starts": 129, "refill_interval": 1},
            r"learning_starts \(129\) must be at most refill_interval \* epoch_steps \(128\)",
        ),
        ({"n_step": 5, "num_envs": 9}, r"n_step \* num_envs \(45\) must be at most learning_starts \(40\)"),
        ({"n_step": 5, "num_envs": 90}, r"n_step \* num_envs \(450\) must be at most buffer_size \(200\)"),
        ({"num_steps": 25, "num_envs": 9}, r"num_steps \* num_envs \(225\) must be at most buffer_size \(200\)"),
    ],
)
def test_numbers_that_do_not_go_together_are_refused_before_training(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DQN("CartPole-v1").init(**{**SMALL, **changes})


def test_actions_that_it_cannot_choose_among_are_refused_before_training() -> None:
    with pytest.raises(UnsupportedSpace, match="DQN on Pendulum-v1 chooses among the actions of a Discrete space"):
        DQN("Pendulum-v1").init()


def test_an_unknown_environment_is_refused_before_training() -> None:
    with pytest.raises(EnvSpecError):
        DQN("NoSuchThing-v0").init()


@pytest.mark.parametrize("seed", range(20))
def test_every_sample_of_the_space_can_be_trained(seed: int) -> None:
    task = DQN("CartPole-v1")
    task.init(**task.get_space().sample(seed))


@pytest.mark.slow
def test_it_learns_cartpole() -> None:
    tasks = [DQN("CartPole-v1", seed=seed).init(eval_interval=1) for seed in range(5)]
    Cohort(tasks).fit(13)  # 53,000 steps
    returns = [[row["eval_return"] for _, row in task.history] for task in tasks]
    assert float(np.median([row[-1] for row in returns])) > 475, returns
    assert min(max(row) for row in returns) > 300, returns


@pytest.mark.parametrize(
    ("task", "theirs", "ours"),
    [
        (DQN, "num_updates_per_step", "num_updates"),
        (DQN, "num_init_memory_steps", "learning_starts"),
        (DQN, "memory_size", "buffer_size"),
        (DQN, "eval_intvl", "eval_interval"),
        (DQN, "train_freq", "num_steps"),
        (DQN, "gradient_steps", "num_updates"),
        (DQN, "buffer_init_steps", "learning_starts"),
        (DQN, "target_update_interval", "target_interval"),
        (DQN, "steps_per_update", "num_steps and num_updates"),
        (SAC, "ent_coef", "entropy.alpha"),
        (SAC, "init_entcoef", "entropy.alpha"),
        (SAC, "network_settings.hidden_units", "model.width"),
        (SAC, "learn_ent_coeff", "entropy.learn"),
    ],
)
def test_names_of_other_libraries_are_answered_with_ours(task: Any, theirs: str, ours: str) -> None:
    with pytest.raises(UnknownParameter, match=rf"'{theirs}'; did you mean {ours}\?"):
        task("CartPole-v1").init(**{theirs: 1})
