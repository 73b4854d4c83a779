"""Captured methods give the results of Python, in any order of calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rekindle import Cohort
from rekindle.spaces import unflatten
from rekindle.tasks import load
from rekindle.tasks.cuda import graphs
from torch import Tensor


class Counter:
    """A tensor that grows in place."""

    def __init__(self, capturable: bool) -> None:
        self.capturable, self.calls = capturable, 0
        self.total = torch.zeros(2, device="cuda" if capturable else "cpu")

    @graphs.captured
    def add(self, numbers: dict[str, Tensor], factor: Tensor | None, twice: bool) -> tuple[dict[str, Tensor], Tensor]:
        self.calls += 1
        for x in numbers.values():
            self.total += x * (2 if twice else 1) * (1 if factor is None else factor)
        return {"total": self.total.clone()}, self.total + 1


def test_on_the_processor_nothing_is_captured() -> None:
    counter = Counter(capturable=False)
    for number in range(1, 5):
        told, more = counter.add({"a": torch.ones(2)}, None, False)
        assert told["total"].tolist() == [number] * 2
        assert more.tolist() == [number + 1] * 2
    assert counter.calls == 4


@pytest.mark.cuda
def test_calls_of_each_form_are_captured_once() -> None:
    counter, total = Counter(capturable=True), 0.0
    for number in range(1, 6):
        for factor, twice in ((None, False), (torch.tensor(3.0, device="cuda"), True)):
            total += number * (6 if twice else 1)
            told, more = counter.add({"a": torch.full((2,), float(number), device="cuda")}, factor, twice)
            assert told["total"].tolist() == [total] * 2
            assert more.tolist() == [total + 1] * 2
            told["more"] = more  # the dictionary is the caller's own
    assert counter.calls == 4  # one by one, then captured, for each of two forms


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["ppo", "ppo2", "a2c", "dqn", "sac"])
@pytest.mark.parametrize("changes", [{}, {"max_grad_norm": None, "optimizer.name": "rmsprop"}])
def test_captured_training_has_the_bits_of_python(
    name: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    env, replay = "Pendulum-v1" if name == "sac" else "CartPole-v1", {"learning_starts": 32, "batch_size": 16}
    small = {"epoch_steps": 128, "num_envs": 2, **(replay if name in ("dqn", "sac") else {"num_steps": 16}), **changes}

    def digests() -> list[str]:
        tasks = [load(name)(env, seed=seed, device="cuda").init(**unflatten(small)) for seed in range(3)]
        Cohort(tasks).fit(3)
        return [task.digest for task in tasks] + [str(task.evaluate(2)) for task in tasks]

    captured = digests()
    monkeypatch.setattr(graphs, "_can_capture", lambda of: False)
    assert digests() == captured


@pytest.mark.cuda
def test_a_failed_capture_restores_the_stream() -> None:
    stream = torch.cuda.current_stream()
    with pytest.raises(RuntimeError):
        graphs.capture(lambda: torch.ones(2, device="cuda").tolist())
    assert torch.cuda.current_stream() == stream
