"""Whole studies with Hyperband and ASHA: several workers, some of them killed, and several seeds."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from gated import Gate
from rekindle.studies.cli import main
from rekindle.studies.engine.runner import StudyRunner, start_study
from rekindle.studies.engine.study_views import study_json, summary_view
from rekindle.studies.schedulers.hyperband import brackets
from rekindle.studies.schedulers.seeds import collapse, seed_options, seeds_of
from rekindle.studies.storage.rows import Result, Segment, Trial
from rekindle.studies.storage.store import Store
from rekindle.studies.study.config import Config
from rekindle.tasks import load
from studying import TINY, bits, run, run_and_be_killed, tiny, undisturbed, work


@pytest.mark.slow
def test_three_workers_train_the_study_by_hyperband_that_one_trains(sqlite_url: str) -> None:
    config = tiny(trials=6, epochs=(1, 2, 2), scheduler="hyperband")
    with Store(sqlite_url) as store:
        start_study(store, "s", config)
        work(sqlite_url, 3)
        assert bits(store) == undisturbed(config)
        view = study_json(store, "s")
    expected = [(bracket, content.rung) for bracket, content in enumerate(brackets(config)) for _ in content.numbers]
    assert [(trial["bracket"], trial["rungs"][0]["rung"]) for trial in view["trials"]] == expected
    assert [trial["rung"] for trial in view["trials"]] == [trial["rungs"][-1]["rung"] for trial in view["trials"]]


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["adaptive", "hyperband"])
def test_a_study_whose_workers_are_killed_ends_as_if_nothing_had_happened(
    sqlite_url: str, scheduler: str, gate: Gate, wait_until: Callable[..., None]
) -> None:
    config = tiny(trials=6, scheduler=scheduler, sampler="random", env="gated:Gated-v0")
    assert run_and_be_killed(sqlite_url, config, gate, wait_until) == undisturbed(config)


@pytest.mark.slow
def test_an_extended_hyperband_study_continues_with_the_next_bracket(sqlite_url: str) -> None:
    run(sqlite_url, tiny(trials=6, epochs=(1, 2, 2), scheduler="hyperband"))
    before = bits_of(sqlite_url)
    run(sqlite_url, tiny(trials=8, epochs=(1, 2, 2), scheduler="hyperband"))
    after = bits_of(sqlite_url)
    assert {key: after[key] for key in before} == before
    assert sorted({key[0] for key in after}) == list(range(8))


def bits_of(url: str) -> dict[tuple[int, int], tuple[float | None, str | None]]:
    """What came of each segment."""
    with Store(url) as store:
        return of_segments(store.segments("s"))


def of_segments(segments: list[Segment]) -> dict[tuple[int, int], tuple[float | None, str | None]]:
    return {(row.number, row.rung): (row.score, row.digest) for row in segments}


def is_by_asha(config: Config, trials: list[Trial], segments: list[Segment]) -> bool:
    """Whether an ended study is one that ASHA could have come to, in whatever order."""
    trials, segments = collapse(config, trials, segments)
    base, top = config.epochs[2], len(config.rungs) - 1
    reached = {trial.number: [row.rung for row in segments if row.number == trial.number] for trial in trials}
    assert sorted(reached) == list(range(config.trials[-1]))
    assert all(rungs == list(range(len(rungs))) for rungs in reached.values())
    assert {trial.number: trial.state for trial in trials} == {
        number: "complete" if rungs[-1] == top else "pruned" for number, rungs in reached.items()
    }
    for rung in range(top):
        ranked = sorted((-(row.score or 0.0), row.number) for row in segments if row.rung == rung)
        promoted = {row.number for row in segments if row.rung == rung + 1}
        assert promoted >= {number for _, number in ranked[: len(ranked) // base]}
        assert len(promoted) < len(ranked) or len(ranked) == 0
    return True


def test_the_trials_of_asha_are_exact_whatever_is_promoted(postgres_url: str) -> None:
    """With several seeds, and on a server."""
    config = tiny(trials=4, epochs=(1, 2, 2), scheduler="asha", sampler="random", options=seed_options(2, "mean"))
    with Store(postgres_url) as store:
        start_study(store, "s", config)
        work(postgres_url, 3)
        assert is_by_asha(config, store.trials("s"), store.segments("s"))
    here, there = bits_of(postgres_url), of_segments(undisturbed(config)["segments"])
    assert here.keys() & there.keys() >= {(number, 0) for number in range(4 * seeds_of(config))}
    assert {key: here[key] for key in here.keys() & there.keys()} == {
        key: there[key] for key in here.keys() & there.keys()
    }


@pytest.mark.slow
def test_a_study_by_asha_survives_the_death_of_its_workers(
    sqlite_url: str, gate: Gate, wait_until: Callable[..., None]
) -> None:
    config = tiny(trials=4, scheduler="asha", sampler="random", env="gated:Gated-v0")
    run_and_be_killed(sqlite_url, config, gate, wait_until)
    with Store(sqlite_url) as store:
        assert is_by_asha(config, store.trials("s"), store.segments("s"))
    here, there = bits_of(sqlite_url), of_segments(undisturbed(config)["segments"])
    assert all(here[key] == there[key] for key in here.keys() & there.keys())


@pytest.mark.slow
def test_a_study_by_asha_can_be_extended(sqlite_url: str) -> None:
    run(sqlite_url, tiny(trials=3, epochs=(1, 2, 2), scheduler="asha"))
    before = bits_of(sqlite_url)
    run(sqlite_url, tiny(trials=5, epochs=(1, 2, 2), scheduler="asha"))
    after = bits_of(sqlite_url)
    assert {key: after[key] for key in before} == before
    assert {number for number, _ in after} == set(range(5))


@pytest.mark.parametrize("scheduler", ["hyperband", pytest.param("asha", marks=pytest.mark.slow)])
def test_the_command_line_shows_brackets_and_rungs(
    sqlite_url: str, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "tune",
        "ppo",
        "CartPole-v1",
        "--study",
        "s",
        "--trials",
        "8",
        "--epochs",
        "1:4:2",
        "--generation",
        "4",
        "--cohort",
        "2",
        "--scheduler",
        scheduler,
        "--workers",
        "1",
        "--storage",
        sqlite_url,
    ]
    assert main([*command, *(part for name, value in TINY.items() for part in ("--set", f"{name}={value}"))]) == 0
    capsys.readouterr()
    assert main(["trials", "s", "--json", "--storage", sqlite_url]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["scheduler"] == scheduler
    assert {trial["bracket"] for trial in output["trials"]} == ({0, 1} if scheduler == "asha" else {0, 1, 2})
    assert all(trial["rung"] == trial["rungs"][-1]["rung"] for trial in output["trials"])
    assert main(["trials", "s", "--storage", sqlite_url]) == 0
    assert "bracket" in capsys.readouterr().out
    assert main(["status", "--json", "--storage", sqlite_url]) == 0
    [study] = json.loads(capsys.readouterr().out)["studies"]
    assert study["scheduler"] == scheduler
    assert [rung["epochs"] for rung in study["progress"]] == [1, 2, 4]
    for rung, row in enumerate(study["progress"]):
        here = [result for trial in output["trials"] for result in trial["rungs"] if result["rung"] == rung]
        assert (row["rung"], row["done"], row["ready"], row["failed"]) == (rung, len(here), 0, 0)
    assert study["brackets"] == len({trial["bracket"] for trial in output["trials"]})


@pytest.mark.parametrize(
    ("url", "scheduler"),
    [*(("sqlite", scheduler) for scheduler in ("halving", "hyperband", "asha", "none")), ("postgresql", "hyperband")],
    indirect=["url"],
)
def test_the_databases_counts_equal_those_of_all_trials(url: str, scheduler: str) -> None:
    with Store(url) as store:
        start_study(store, "s", tiny(trials=8, epochs=(1, 4, 2), scheduler=scheduler, sampler="random"))
        engine, states = StudyRunner(store, "s"), []
        while True:
            ready = engine.advance()
            whole = study_json(store, "s")
            assert summary_view(store, "s").to_json() == {
                name: part for name, part in whole.items() if name not in ("trials", "agreement")
            }
            states.append(whole["state"])
            if engine.complete:
                break
            for item in ready[:2]:
                number, rung = item.segment.number, item.segment.rung
                with store.open(item.trial.uid, {}) as lease:
                    if number == 1:
                        store.fail_trial(lease, "s", number, rung, "an error")
                    else:
                        store.finish_segments(
                            "s", [Result(lease, number, rung, score=float(number % 3 + rung), digest="d")]
                        )
    assert states[-1] == "complete"
    assert set(states[:-1]) == {"running"}


@pytest.mark.parametrize("scheduler", ["hyperband", pytest.param("asha", marks=pytest.mark.slow)])
def test_every_epoch_is_trained_once_and_promoted_trials_carry_on(
    sqlite_url: str, scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = load("ppo").learner
    run_epoch = learner.run_epoch
    trained: list[int] = []

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        trained.append(self.members)
        return run_epoch(self, *args, **kwargs)

    monkeypatch.setattr(learner, "run_epoch", counted)
    run(sqlite_url, tiny(trials=8, scheduler=scheduler, sampler="random"))
    with Store(sqlite_url) as store:
        last = {row.number: row.epochs for row in store.segments("s")}
        assert set(last.values()) == {1, 2, 4}
        assert sum(trained) == sum(last.values())
        for trial in store.trials("s"):
            kinds = [event.kind for event in store.events(trial.uid)]
            ways = sum(row.number == trial.number for row in store.segments("s"))
            assert (kinds.count("start"), kinds.count("resume")) == (1, ways - 1)
