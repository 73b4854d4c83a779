"""Recorded methods: what Python computes, whatever is asked first."""

from __future__ import annotations

import pytest
import torch
from rekindle import DQN, PPO, SAC, Cohort
from rekindle.tasks.cuda import graphs
from torch import Tensor


class Counter:
    """A tensor that grows in place."""

    def __init__(self, records: bool) -> None:
        self.records, self.calls = records, 0
        self.total = torch.zeros(2, device="cuda" if records else "cpu")

    @graphs.recorded
    def add(self, numbers: dict[str, Tensor], factor: Tensor | None, twice: bool) -> tuple[dict[str, Tensor], Tensor]:
        self.calls += 1
        for x in numbers.values():
            self.total += x * (2 if twice else 1) * (1 if factor is None else factor)
        return {"total": self.total.clone()}, self.total + 1


def test_on_the_processor_nothing_is_recorded() -> None:
    counter = Counter(records=False)
    for number in range(1, 5):
        told, more = counter.add({"a": torch.ones(2)}, None, False)
        assert told["total"].tolist() == [number] * 2
        assert more.tolist() == [number + 1] * 2
    assert counter.calls == 4


@pytest.mark.cuda
def test_calls_of_each_form_are_recorded_once() -> None:
    counter, total = Counter(records=True), 0.0
    for number in range(1, 6):
        for factor, twice in ((None, False), (torch.tensor(3.0, device="cuda"), True)):
            total += number * (6 if twice else 1)
            told, more = counter.add({"a": torch.full((2,), float(number), device="cuda")}, factor, twice)
            assert told["total"].tolist() == [total] * 2
            assert more.tolist() == [total + 1] * 2
            told["more"] = more  # the dictionary is the caller's own
    assert counter.calls == 4  # one by one, then recorded, for each of two forms


@pytest.mark.cuda
@pytest.mark.parametrize("kind", [PPO, DQN, SAC])
def test_recorded_training_has_the_bits_of_python(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    env = "Pendulum-v1" if kind is SAC else "CartPole-v1"
    small = {"epoch_steps": 128, "num_envs": 2, **({} if kind is PPO else {"learning_starts": 32, "batch_size": 16})}

    def digests() -> list[str]:
        tasks = [kind(env, seed=seed, device="cuda").init(**small) for seed in range(3)]
        Cohort(tasks).fit(2)
        return [task.digest for task in tasks]

    recorded = digests()
    monkeypatch.setattr(kind.learner, "records", False)
    assert digests() == recorded
