"""Means of metrics over reports: the same bits whenever they are read."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch
from drifting import Drift, DriftLearner
from rekindle.tasks.checkpoint.state import pack, unpack
from rekindle.tasks.runtime.metric_means import TOGETHER, MemberMetrics, Tally


def reports(count: int) -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    return [{"loss": torch.randn(2), **({"norm": torch.rand(2)} if i % 3 == 0 else {})} for i in range(count)]


def test_means_are_over_the_reports_that_told_of_it() -> None:
    tally = Tally(2)
    tally.add({"loss": torch.tensor([1.0, 2.0]), "norm": torch.tensor([5.0, 7.0])})
    tally.add({"loss": torch.tensor([3.0, 6.0])})
    tally.add({})
    assert tally.count == 3
    assert tally.take() == [{"loss": 2.0, "norm": 5.0}, {"loss": 4.0, "norm": 7.0}]
    assert (tally.count, tally.take()) == (0, [{}, {}])


def test_members_that_did_not_report_are_left_out() -> None:
    tally, which = Tally(2), np.array([True, False])
    tally.add(MemberMetrics({"loss": torch.tensor([1.0, float("nan")])}, which))
    which[:] = True  # the caller's array may change before it is read
    assert tally.take() == [{"loss": 1.0}, {}]


def test_reported_metrics_may_change_afterwards() -> None:
    tally, alpha = Tally(1), torch.ones(1)
    tally.add({"alpha": alpha})
    alpha.zero_()
    assert tally.take() == [{"alpha": 1.0}]


@pytest.mark.parametrize("saved_after", [1, TOGETHER - 1, TOGETHER, TOGETHER + 7])
def test_sums_are_the_same_bits_whenever_they_are_read(saved_after: int) -> None:
    whole, parts, alone = Tally(2), Tally(2), Tally(1)
    for i, report in enumerate(reports(2 * TOGETHER + 20)):
        whole.add(report)
        parts.add(report)
        alone.add({name: value[1:] for name, value in report.items()})
        if i + 1 == saved_after:
            tree = [parts.member_state(member) for member in range(2)]
            parts = Tally(2)
            for member in range(2):
                parts.load_member(member, tree[member])
    assert parts.count == whole.count
    assert [parts.member_state(member) for member in range(2)] == [whole.member_state(member) for member in range(2)]
    assert alone.member_state(0) == whole.member_state(1)
    exact = sum(report["loss"][0].item() for report in reports(2 * TOGETHER + 20)) / (2 * TOGETHER + 20)
    assert whole.take()[0]["loss"] == exact


def test_reports_of_a_long_epoch_are_not_all_kept() -> None:
    tally, made = Tally(1), []
    for _ in range(3 * TOGETHER):
        tally.add({"loss": torch.ones(1)})
        made.append(weakref.ref(tally.unread[-1][1]) if tally.unread else None)
    assert sum(report is not None and report() is not None for report in made) < TOGETHER


def test_a_report_keeps_no_graph_alive() -> None:
    weight = torch.ones(1, requires_grad=True)
    tally = Tally(1)
    tally.add({"loss": weight * 2})
    assert not tally.unread[0][1].requires_grad


@pytest.mark.parametrize("name", ["count", "loss/x", "100%", "%63ount", "a%2Fb/c"])
def test_a_metric_of_any_name_is_stored_within_an_epoch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DriftLearner, "name_of_metric", name)
    task, resumed = Drift().init(), Drift().init()
    task.member_ref().learner.run_epoch(stop=lambda: True)
    packed = pack(task.state_dict())
    resumed.load_state_dict(unpack(packed.manifest, packed.blobs.__getitem__))
    for half in (task, resumed):
        half.fit(1)
    assert task.metrics[name] == pytest.approx(1.25)  # of 0.5, 1.0, 1.5 and 2.0
    assert (resumed.metrics, resumed.digest) == (task.metrics, task.digest)
