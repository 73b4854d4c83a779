"""Advantages against a table made by hand, and in the limits of λ."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rekindle.tasks.experience.returns import (
    CRITIC_LOSSES,
    RunningStandardizer,
    empirical_returns,
    explained_variance,
    gae,
    standardize,
)
from torch import Tensor


def column(*values: float) -> Tensor:
    """One environment of one member over time, (T, 1, 1)."""
    return torch.tensor(values).view(-1, 1, 1)


def coefficient(*values: float) -> Tensor:
    return torch.tensor(values).view(-1, 1)


def test_a_table_made_by_hand() -> None:
    advantages = gae(
        rewards=column(1, 2, 3, 4, 5),
        values=column(2, 4, 6, 8, 2),
        next_values=column(4, 100, 8, 10, 4),
        terminated=column(0, 1, 0, 0, 0),
        ended=column(0, 1, 0, 1, 0),
        gamma=coefficient(0.5),
        gae_lambda=coefficient(0.5),
    )
    # gamma = lambda = 0.5, so a step's advantage is its error δ + 0.25 of the next one's, unless an episode ends there:
    #   t   r   v   v'   end         δ = r + 0.5 v' - v     advantage
    #   4   5   2   4                5 + 2 - 2 = 5          5
    #   3   4   8   10   truncated   4 + 5 - 8 = 1          1, and nothing of step 4
    #   2   3   6   8                3 + 4 - 6 = 1          1 + 0.25 * 1 = 1.25
    #   1   2   4   100  terminated  2 - 4 = -2 (no v')     -2, and nothing of step 2
    #   0   1   2   4                1 + 2 - 2 = 1          1 + 0.25 * -2 = 0.5
    assert advantages.flatten().tolist() == [0.5, -2, 1.25, 1, 5]


def test_a_termination_ends_the_return_and_a_truncation_does_not() -> None:
    for terminated, expected in ((1.0, 1.0 - 3.0), (0.0, 1.0 + 0.9 * 10 - 3.0)):
        advantages = gae(
            column(1), column(3), column(10), column(terminated), column(1), coefficient(0.9), coefficient(0.8)
        )
        assert advantages.item() == pytest.approx(expected)


def episodes(seed: int, steps: int = 9, members: int = 2, num_envs: int = 3) -> dict[str, Tensor]:
    """Random numbers with random ends, in double precision."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda: torch.randn(steps, members, num_envs, generator=generator, dtype=torch.float64)  # noqa: E731
    rewards, values, next_values = draw(), draw(), draw()
    terminated, truncated = (draw() > 0.8).double(), (draw() > 0.8).double()
    ended = torch.maximum(terminated, truncated)
    within = ended[:-1] == 0  # where an episode goes on, what followed is what is seen next
    next_values[:-1] = torch.where(within, values[1:], next_values[:-1])
    return {"rewards": rewards, "values": values, "next_values": next_values, "terminated": terminated, "ended": ended}


def monte_carlo(x: dict[str, Tensor], gamma: Tensor) -> Tensor:
    """The discounted return of the rest of each episode, with the value of what lies behind its cut."""
    returns = torch.zeros_like(x["rewards"])
    steps, members, num_envs = returns.shape
    for p in range(members):
        for n in range(num_envs):
            for start in range(steps):
                factor, t = 1.0, start
                while True:
                    returns[start, p, n] += factor * x["rewards"][t, p, n]
                    factor *= gamma[p].item()
                    if x["ended"][t, p, n] or t == steps - 1:
                        break
                    t += 1
                returns[start, p, n] += factor * (1 - x["terminated"][t, p, n]) * x["next_values"][t, p, n]
    return returns


@given(st.integers(0, 1000))
def test_lambda_one_is_the_monte_carlo_return(seed: int) -> None:
    x, gamma = episodes(seed), coefficient(0.9, 0.99).double()
    advantages = gae(**x, gamma=gamma, gae_lambda=torch.ones_like(gamma))
    torch.testing.assert_close(advantages + x["values"], monte_carlo(x, gamma))


@given(st.integers(0, 1000))
def test_lambda_zero_is_the_one_step_error(seed: int) -> None:
    x, gamma = episodes(seed), coefficient(0.9, 0.99).double()
    advantages = gae(**x, gamma=gamma, gae_lambda=torch.zeros_like(gamma))
    error = x["rewards"] + gamma * (1 - x["terminated"]) * x["next_values"] - x["values"]
    torch.testing.assert_close(advantages, error)


def test_nothing_flows_back_over_the_end_of_an_episode() -> None:
    x = episodes(1)
    x["ended"][4], x["terminated"][4] = 1, 0
    coefficients = {"gamma": coefficient(0.9, 0.9).double(), "gae_lambda": coefficient(0.9, 0.9).double()}
    before = gae(**x, **coefficients)
    x["rewards"][5:] += 100
    after = gae(**x, **coefficients)
    assert torch.equal(before[:5], after[:5])
    assert (after[5:] - before[5:] >= 100 - 1e-9).all()


def test_every_member_has_its_own_coefficients() -> None:
    x = {name: value.float() for name, value in episodes(3, members=5, num_envs=3).items()}
    gamma, gae_lambda = coefficient(0.9, 0.95, 0.99, 0.5, 1.0), coefficient(0.1, 0.5, 0.9, 1.0, 0.0)
    together = gae(**x, gamma=gamma, gae_lambda=gae_lambda)
    for p in range(5):
        member = {name: value[:, p : p + 1].clone() for name, value in x.items()}
        alone = gae(**member, gamma=gamma[p : p + 1], gae_lambda=gae_lambda[p : p + 1])
        assert torch.equal(alone[:, 0], together[:, p])


def test_arguments_are_left_alone() -> None:
    x = episodes(4)
    kept = {name: value.clone() for name, value in x.items()}
    gae(**x, gamma=coefficient(0.9, 0.9), gae_lambda=coefficient(0.9, 0.9))
    assert all(torch.equal(x[name], kept[name]) for name in x)


def test_standardized_rows_have_mean_zero_and_deviation_one() -> None:
    x = torch.randn(3, 500, generator=torch.Generator().manual_seed(0)) * torch.tensor([[1.0], [100.0], [0.01]]) + 5
    y = standardize(x)
    torch.testing.assert_close(y.mean(1), torch.zeros(3), rtol=0, atol=1e-4)
    torch.testing.assert_close(y.std(1, correction=0), torch.ones(3), rtol=1e-4, atol=0)


def test_a_row_of_equal_numbers_becomes_zeros() -> None:
    assert standardize(torch.full((2, 4), 3.0)).tolist() == [[0.0] * 4] * 2
    assert standardize(torch.tensor([[7.0]])).tolist() == [[0.0]]


@pytest.mark.parametrize("size", [1, 2, 7, 33, 256])
def test_rows_do_not_depend_on_each_other(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    x, y = torch.randn(5, size, generator=generator), torch.randn(5, size, generator=generator)
    for p in range(5):
        alone = slice(p, p + 1)
        assert torch.equal(standardize(x[alone].clone())[0], standardize(x)[p])
        assert torch.equal(explained_variance(x[alone].clone(), y[alone].clone())[0], explained_variance(x, y)[p])


def test_the_explained_variance_tells_a_good_critic_from_a_constant_one() -> None:
    returns = torch.tensor([[1.0, 2.0, 3.0, 4.0]]).expand(4, 4)
    values = torch.stack([returns[0], torch.full((4,), 9.0), returns[0] + 5, -returns[0]])
    torch.testing.assert_close(explained_variance(values, returns), torch.tensor([1.0, 0.0, 1.0, -3.0]))


def test_the_explained_variance_of_equal_returns_is_finite() -> None:
    assert explained_variance(torch.zeros(1, 3), torch.ones(1, 3)).isfinite().all()


@given(st.integers(0, 1000))
def test_empirical_returns_are_the_monte_carlo_return(seed: int) -> None:
    x, gamma = episodes(seed), coefficient(0.9, 0.99).double()
    returns = empirical_returns(x["rewards"], x["next_values"], x["terminated"], x["ended"], gamma)
    torch.testing.assert_close(returns, monte_carlo(x, gamma))


@given(st.integers(0, 1000))
def test_advantages_and_values_are_lambda_returns_on_the_scale_of_the_rewards(seed: int) -> None:
    # Pyrado added standardized advantages to the values, which are on another scale.
    x, gamma, gae_lambda = episodes(seed), coefficient(0.9, 0.99).double(), coefficient(0.5, 0.95).double()
    returns = gae(**x, gamma=gamma, gae_lambda=gae_lambda) + x["values"]
    bootstrapped = x["rewards"] + gamma * (1 - x["terminated"]) * x["next_values"]
    later = gamma * gae_lambda * (1 - x["ended"][:-1]) * (returns[1:] - x["values"][1:])
    torch.testing.assert_close(returns[-1], bootstrapped[-1])
    torch.testing.assert_close(returns[:-1], bootstrapped[:-1] + later)


def test_the_running_standardizer_knows_all_numbers_so_far() -> None:
    # Pyrado's took the means of batches for numbers, began its sum of squares with a squared mean, and gave the first
    # batch back as it was.
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(2, size, generator=generator) * 5 + 3 for size in (4, 1, 50, 7)]
    standardizer = RunningStandardizer(2, 1)
    for count, batch in enumerate(batches, 1):
        seen = torch.cat(batches[:count], 1)
        expected = (batch - seen.mean(1, keepdim=True)) / seen.std(1, correction=0, keepdim=True)
        torch.testing.assert_close(standardizer(batch).float(), expected, rtol=1e-3, atol=1e-3)


def test_a_running_standardizer_survives_one_number_and_being_saved() -> None:
    standardizer, other = RunningStandardizer(3, 1), RunningStandardizer(1, 1)
    assert standardizer(torch.full((3, 1), 7.0)).isfinite().all()
    x = torch.randn(3, 33, generator=torch.Generator().manual_seed(1))
    standardizer(x)
    other.load_member(0, standardizer.member_state(2))
    assert torch.equal(other(x[2:]), standardizer(x)[2:])


def test_a_critics_huber_loss_is_torchs() -> None:
    errors = torch.linspace(-3, 3, 25)
    expected = torch.nn.functional.huber_loss(errors, torch.zeros_like(errors), reduction="none")
    torch.testing.assert_close(0.5 * CRITIC_LOSSES["huber"](errors), expected)
