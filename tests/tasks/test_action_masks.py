"""Action masks: forbidden actions are never taken, have no gradient, and are refused where nothing knows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium import spaces
from mask_envs import ACTIONS, Forbidding
from rekindle import A2C, ARS, DQN, PPO, SAC
from rekindle.tasks.algorithms.continuous.actions import SoftActions
from rekindle.tasks.algorithms.continuous.entropy import forbidden_entropy
from rekindle.tasks.envs import EnvSpec, make_envs
from rekindle.tasks.envs.base.masks import legal, told_mask, without_choice
from rekindle.tasks.envs.base.observations import Observations
from rekindle.tasks.envs.base.spec import EnvSpecError
from rekindle.tasks.errors import UnsupportedSpace
from rekindle.tasks.experience.exploration import UniformActions
from rekindle.tasks.networks.distributions import Bernoulli, Categorical, MultiCategorical
from rekindle.tasks.networks.masked_logits import masked_logits
from rekindle.tasks.rng import streams

FORBIDDING = "mask_envs:Forbidding-v0"
SMALL: dict[str, Any] = {"num_envs": 2, "epoch_steps": 128, "model": {"width": 16}}
ROLLOUTS = {**SMALL, "num_steps": 16}
REPLAYS = {**SMALL, "learning_starts": 40, "batch_size": 16, "exploration": {"horizon": 100}}
SOFT = {**SMALL, "learning_starts": 40, "batch_size": 16, "num_steps": 4}


def in_info() -> dict[str, Any]:
    return {"id": FORBIDDING, "kwargs": {"told": "info"}, "masks": "info"}


@pytest.mark.parametrize(
    ("task", "env", "values"),
    [
        (PPO, FORBIDDING, {**ROLLOUTS, "num_minibatches": 2}),
        (PPO, {"id": FORBIDDING, "kwargs": {"actions": "grid"}}, {**ROLLOUTS, "num_minibatches": 2}),
        (A2C, {"id": FORBIDDING, "kwargs": {"actions": "bits"}}, ROLLOUTS),
        (PPO, FORBIDDING, {**ROLLOUTS, "num_minibatches": 2, "model": {"memory": "gru", "width": 16}}),
        (A2C, "mask_envs:ForbiddingByMethod-v0", {**ROLLOUTS, "normalize_obs": True}),
        (DQN, in_info(), {**REPLAYS, "normalize_obs": True}),
        (DQN, FORBIDDING, {**REPLAYS, "double": False, "n_step": 1}),
        (SAC, {"id": FORBIDDING, "kwargs": {"actions": "rows"}}, {**SOFT, "normalize_obs": True}),
        (SAC, {"id": FORBIDDING, "kwargs": {"actions": "bits"}}, {**SOFT, "critic": {"ensemble": 3, "norm": "layer"}}),
        (SAC, FORBIDDING, {**SOFT, "entropy": {"learn": False, "alpha": 0.1}}),
    ],
)
def test_training_takes_allowed_actions_and_resumes_exactly(task: Any, env: Any, values: dict[str, Any]) -> None:
    # the environment raises at a forbidden action, so that training would fail
    trained = task(env, seed=1).init(**values)
    trained.fit(1)
    state = trained.state_dict()
    trained.fit(2)
    resumed = task(env, seed=1).init(**values)
    resumed.load_state_dict(state)
    resumed.fit(2)
    assert resumed.digest == trained.digest
    assert 0 <= trained.evaluate(5) == resumed.evaluate(5)
    assert all(np.isfinite(value) for value in trained.metrics.values())


def test_predicted_actions_are_allowed() -> None:
    task = PPO(FORBIDDING, seed=2).init(**ROLLOUTS, num_minibatches=2)
    for only in range(5):
        mask = np.eye(5, dtype=np.int8)[only]
        seen = {"action_mask": mask, "numbers": np.zeros(2, np.float32)}
        assert task.act(seen) == only + 2  # the space starts at 2
        assert {int(task.predict(seen, deterministic=False)[0]) for _ in range(3)} == {only + 2}


@pytest.mark.filterwarnings("ignore:.torch.jit.load. is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("task", "actions", "values"),
    [*((PPO, actions, ROLLOUTS) for actions in ACTIONS), (DQN, "discrete", REPLAYS), (SAC, "bits", SOFT)],
)
@pytest.mark.parametrize("told", ["observation", "info"])
def test_programs_take_the_mask(task: Any, actions: str, values: dict[str, Any], told: str, tmp_path: Path) -> None:
    masks = {"masks": "info"} if told == "info" else {}
    trained = task({"id": FORBIDDING, "kwargs": {"actions": actions, "told": told}, **masks}).init(**values)
    env = Forbidding(actions)
    rows = [env.reset(seed=seed)[0] for seed in range(20)]
    mask, numbers = (np.stack([row[name] for row in rows]) for name in ("action_mask", "numbers"))
    script = torch.jit.load(str(trained.export_policy(tmp_path / "policy.pt")))  # type: ignore[no-untyped-call]
    session = onnxruntime.InferenceSession(str(trained.export_policy(tmp_path / "policy.onnx")))
    mask_of, numbers_of = session.get_inputs()
    assert "mask" in mask_of.name
    (of_onnx,) = session.run(None, {mask_of.name: mask, numbers_of.name: numbers})
    (of_script,) = script(torch.from_numpy(mask), torch.from_numpy(numbers))
    assert of_onnx.tolist() == of_script.tolist()
    groups = np.split(mask, np.cumsum(env.sizes)[:-1], axis=1)
    first = getattr(env.action_space, "start", 0)
    for group, chosen in zip(groups, (of_onnx - first).reshape(len(rows), -1).T, strict=True):
        assert group[np.arange(len(rows)), chosen].all()


def test_masks_of_several_choices_allow_their_combinations() -> None:
    rows = SoftActions(ACTIONS["rows"], "test")  # choices of 3 and 4
    allowed = rows.allowed(torch.tensor([True, False, True, False, True, True, False]))
    assert allowed.nonzero().flatten().tolist() == [1, 2, 9, 10]
    bits = SoftActions(ACTIONS["bits"], "test")
    assert bits.allowed(torch.tensor([False, True, True])).nonzero().flatten().tolist() == [0, 1, 2, 3]
    values = torch.tensor([False, True, True, False, True, True])  # bit 0 is 1, bit 1 is 0, bit 2 is free
    assert bits.allowed(values).nonzero().flatten().tolist() == [4, 5]


def test_soft_policies_draw_allowed_choices_only_and_aim_at_their_entropy() -> None:
    choices = SoftActions(ACTIONS["discrete"], "test")
    logits = torch.tensor([-1e8, 0.3, -1e8, 1.0, -1e8]).expand(1, 4, 5)
    uniforms = np.array([0.0, 0.3, 0.9, np.nextafter(1.0, 0.0)]).reshape(1, 4, 1)  # the last one rounds to 1
    assert choices.act(logits, torch.zeros(1, 4, 1), uniforms).tolist() == [[1, 1, 3, 3]]
    made = SAC(FORBIDDING).init(**SOFT, entropy={"choice_target": 0.5})
    learner: Any = SAC.learner(made.env, (0,), [made.hyperparameters or {}])
    columns = learner.mask
    obs = torch.zeros(1, 2, learner.envs.obs_shape[0])
    obs[0, 0, columns] = torch.tensor([1.0, 0, 0, 0, 1])
    obs[0, 1, columns] = 1
    # The targets of 2 and of 5 choices are log(2) / 2 and log(5) / 2 instead of twice the latter.
    decrease = forbidden_entropy(learner.hp, choices, obs, columns).item()
    assert learner.coefficients.targets.item() - decrease == pytest.approx((np.log(2) + np.log(5)) / 4, rel=1e-5)


def test_forbidden_logits_get_no_gradient_and_add_no_entropy() -> None:
    logits = torch.tensor([[0.3, -1.0, 2.0]], requires_grad=True)
    allowed = torch.tensor([[True, False, True]])
    params = masked_logits(Categorical(3), logits, allowed)
    log_prob, entropy = Categorical(3).log_prob_and_entropy(params, torch.tensor([2]))
    pair = torch.distributions.Categorical(logits=torch.tensor([[0.3, 2.0]]))
    assert torch.allclose(log_prob, pair.log_prob(torch.tensor([1])))
    assert torch.allclose(entropy, pair.entropy())
    (log_prob + entropy).sum().backward()
    assert logits.grad is not None
    assert logits.grad[0, 1] == 0
    assert logits.grad[0, 0] != 0


def test_a_mask_of_ones_changes_nothing() -> None:
    logits = torch.randn(4, 7)
    for distribution, width in ((Categorical(7), 7), (MultiCategorical([3, 4]), 7), (Bernoulli((7,)), 14)):
        assert torch.equal(masked_logits(distribution, logits, torch.ones(4, width, dtype=torch.bool)), logits)


def test_masks_of_bits_have_a_number_for_each_bit_or_each_value() -> None:
    logits = torch.zeros(1, 3)
    may_be_one = masked_logits(Bernoulli((3,)), logits, torch.tensor([[True, False, True]]))
    assert Bernoulli((3,)).mode(may_be_one + 1).tolist() == [[1, 0, 1]]
    # bit 0 is 1, bit 1 is 0, bit 2 is free
    values = torch.tensor([[False, True, True, False, True, True]])
    assert Bernoulli((3,)).mode(masked_logits(Bernoulli((3,)), logits - 1, values)).tolist() == [[1, 0, 0]]


def test_random_actions_are_uniform_among_the_allowed_ones() -> None:
    draw = UniformActions(streams.keys([0], "x"), ACTIONS["discrete"], 4000, "test")
    allowed = np.broadcast_to(np.array([True, False, True, False, True]), (1, 4000, 5))
    counts = np.bincount(draw(0, allowed).reshape(-1), minlength=5)
    assert counts[[1, 3]].tolist() == [0, 0]
    assert np.abs(counts[[0, 2, 4]] / 4000 - 1 / 3).max() < 0.03  # four standard deviations


def test_a_forbidden_action_is_replaced_by_an_allowed_one() -> None:
    assert legal(np.int64(3), [0, 0, 1, 0, 1], ACTIONS["discrete"]) == 6  # index 1 is forbidden; of 2 and 4 it is 4
    assert legal(np.array([2, 0]), [1, 0, 1, 0, 1, 0, 0], ACTIONS["rows"]).tolist() == [2, 1]


def test_rows_without_a_choice_are_found() -> None:
    masks = np.array([[1, 0, 0, 0, 0, 1, 0], [1, 1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1]])
    assert without_choice(masks, ACTIONS["rows"]).tolist() == [1, 2]


def test_a_mask_for_each_choice_is_obeyed_and_learned_from() -> None:
    task = PPO("mask_envs:InParts-v0").init(**ROLLOUTS)
    task.fit(2)  # a forbidden action fails
    assert task.inexact == []
    assert task.evaluate() > 0
    rows = [[1, 0, 1], (True, False, True, True)]
    assert told_mask(rows, spaces.MultiDiscrete([3, 4]), "Test-v0").tolist() == [1, 0, 1, 1, 0, 1, 1]


def test_a_mask_without_allowed_actions_is_an_error_that_names_the_step() -> None:
    envs = make_envs(EnvSpec.of({"id": FORBIDDING, "kwargs": {"broken": 3, "late": 1000}}), [4], 1)
    mask = Observations(envs.obs_space, "x").mask

    def act() -> None:
        envs.step(np.array([[int(np.flatnonzero(envs.obs[0, 0, mask])[0])]]))

    act()
    act()
    with pytest.raises(EnvSpecError, match=r"allows at least one value .* at step 3 of episode 0 of member 0's env"):
        act()


def test_a_mask_that_allows_nothing_is_found_before_training() -> None:
    with pytest.raises(EnvSpecError, match=r"^mask_envs:Forbidding-v0: .* of each choice, but 3 steps after"):
        PPO({"id": FORBIDDING, "kwargs": {"broken": 3}}).init(**ROLLOUTS, num_minibatches=2).fit(1)


@pytest.mark.parametrize(
    ("task", "env", "values", "message"),
    [
        (PPO, "mask_envs:WrongMask-v0", {}, r"the action_mask for Discrete\(3\) has 3 numbers, .* but it has 4"),
        (ARS, FORBIDDING, {}, "ARS on mask_envs:Forbidding-v0 knows no action masks"),
        (SAC, FORBIDDING, {"model": {"memory": "gru"}}, "a memory or an encoder hides the action mask from the policy"),
        (DQN, FORBIDDING, {"model": {"memory": "gru"}}, "a memory hides the action mask from the values"),
    ],
)
def test_masks_that_cannot_be_followed_are_refused(task: Any, env: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedSpace, match=message):
        task(env).init(**values)


def test_a_spec_says_only_where_masks_can_stand() -> None:
    with pytest.raises(EnvSpecError, match="masks must be 'info', or be left out, but got 'obs'"):
        EnvSpec("CartPole-v1", masks="obs")


def test_masks_of_an_environment_that_tells_none_are_refused() -> None:
    with pytest.raises(EnvSpecError, match="CartPole-v1: masks is for environments with steps of their own; leave it"):
        PPO({"id": "CartPole-v1", "masks": "info"}).init(**ROLLOUTS).fit(1)


def test_masks_in_info_that_nobody_asked_for_are_pointed_out() -> None:
    told = make_envs(EnvSpec("Taxi-v4"), [0], 1)
    assert told.advice == (
        'Taxi-v4: info has an action_mask, which is not obeyed; to obey it, write {"id": ..., "masks": "info"}',
    )
    assert make_envs(EnvSpec("Taxi-v4", masks="info"), [0], 1).advice == ()
    assert make_envs(EnvSpec(FORBIDDING, kwargs={"told": "observation"}), [0], 1).advice == ()


@pytest.mark.parametrize("told", ["info", "method"])
@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ([0.3, 1, 0, 0, 0], r"an action_mask has 1 where a value is allowed, else 0, but got \[0\.3, .*\]; fix it"),
        ([2, 2, 0, 0, 2], r"an action_mask has 1 where a value is allowed, else 0, but got \[2, 2, 0, .*\]; fix it"),
        (list("11111"), r"an action_mask has 1 where a value is allowed, else 0, but got \['1', .*\]; fix it"),
    ],
)
def test_a_told_mask_of_other_numbers_is_refused(told: str, mask: Any, words: str) -> None:
    env = FORBIDDING if told == "info" else "mask_envs:ForbiddingByMethod-v0"
    spec = EnvSpec.of(
        {"id": env, "kwargs": {"told": told, "given": mask}, **({"masks": "info"} if told == "info" else {})}
    )
    with pytest.raises(EnvSpecError, match=words):
        make_envs(spec, [0], 1)


def test_a_missing_mask_is_named_after_what_tells_it() -> None:
    for told, words in {
        "info": 'info has an action_mask after every .* missing once; add it there, or leave out "masks"',
        "method": r"action_masks\(\) returns a mask after every reset and step, but it was missing once; fix it",
    }.items():
        env = FORBIDDING if told == "info" else "mask_envs:ForbiddingByMethod-v0"
        masks = {"masks": "info"} if told == "info" else {}
        with pytest.raises(EnvSpecError, match=words):
            make_envs(EnvSpec.of({"id": env, "kwargs": {"told": told, "given": "none"}, **masks}), [0], 1)
