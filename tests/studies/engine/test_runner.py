"""The engine: studies that several processes create, extend and train."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rekindle.spaces import flatten
from rekindle.studies.engine.checked_config import make_config
from rekindle.studies.engine.runner import StudyRunner, start_study
from rekindle.studies.errors import BadConfig, StoreError, StudyMismatch, UnknownStudy
from rekindle.studies.storage.store import Store
from rekindle.studies.workers.worker import Worker
from rekindle.tasks import load
from studying import bits, run, sqlite_first, tiny, undisturbed


def test_a_study_is_made_once_and_found_again(store: Store) -> None:
    config = tiny()
    assert start_study(store, "s", config) == start_study(store, "s", config) == config


def test_a_study_grows_and_never_shrinks(store: Store) -> None:
    start_study(store, "s", tiny(trials=6))
    assert start_study(store, "s", tiny(trials=10)).trials == [6, 10]
    assert start_study(store, "s", tiny(trials=8)).trials == [6, 10]
    assert start_study(store, "s", tiny(trials=10)).trials == [6, 10]


def test_processes_that_extend_a_study_at_once_all_do(url: str, child: Callable[..., Any]) -> None:
    code = """
import sys
from dataclasses import replace
from rekindle.studies.study.config import Config
from rekindle.studies.engine.runner import start_study
from rekindle.studies.storage.store import Store
with Store(sys.argv[1]) as store:
    config = Config.from_json(store.study("s").config, "s")
    print("ready", flush=True)
    for line in sys.stdin:
        print(*start_study(store, "s", replace(config, trials=[int(line)])).trials, flush=True)
"""
    with Store(url) as store:
        start_study(store, "s", tiny(trials=1))
        processes = [child(code, url) for _ in range(4)]
        assert [process.hear() for process in processes] == ["ready"] * 4
        for turn in range(6):
            before = store.study("s").config["trials"]
            wanted = [10 * turn + place for place in range(2, 6)]
            for process, trials in zip(processes, wanted, strict=True):
                process.say(str(trials))
            for process, trials in zip(processes, wanted, strict=True):
                assert max(map(int, process.hear().split())) >= trials
            after = store.study("s").config["trials"]
            assert after[: len(before)] == before
            assert after[-1] == wanted[-1]
            assert after == sorted(set(after))
            assert set(after[len(before) :]) <= set(wanted)


def test_fields_that_an_older_version_lacks_have_their_defaults(store: Store) -> None:
    config = replace(tiny(), cohort=4, options={})
    older = {key: value for key, value in config.to_json().items() if key not in ("options", "cohort", "direction")}
    store.change_study("s", lambda _: older)
    assert start_study(store, "s", config) == config
    assert store.study("s").config == older
    with pytest.raises(StudyMismatch, match=r"cohort \(4, now 2\)"):
        start_study(store, "s", replace(config, cohort=2))
    assert start_study(store, "s", replace(config, trials=[9])).trials == [6, 9]
    assert store.study("s").config == {**older, "trials": [6, 9]}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 1}, "seed"),
        ({"epochs": (1, 8, 2)}, "epochs"),
        ({"sampler": "random"}, "sampler"),
        ({"fixed": {"gamma": 0.9}}, "fixed.gamma"),
        ({"fixed": {"gamma": 0.9}}, "space.gamma"),
        ({"cohort": 1}, "cohort"),
    ],
)
def test_another_study_of_the_same_name_is_an_error_that_names_what_differs(
    store: Store, changes: dict[str, Any], named: str
) -> None:
    start_study(store, "s", tiny())
    with pytest.raises(StudyMismatch, match=named.replace(".", r"\.")):
        start_study(store, "s", tiny(**changes))
    assert store.study("s").config == tiny().to_json()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trials": 0}, "trials must be an integer of at least 1, but got 0"),
        ({"trials": 10**9}, "trials must be 10000000 at most, but got 1000000000"),
        ({"epochs": (1, 10**20)}, "epochs must be 10000000 at most, but got 100000000000000000000"),
        ({"trials": 10**6, "generation": 10**6}, "makes at most 100000 trials at once, but generation 1000000 with"),
        (
            {"trials": 100, "generation": 50, "options": {"seeds": 9000}},
            "generation 50 with seeds 9000 makes 450000; lower --generation or --seeds",
        ),
        ({"epochs": (0, 1)}, "low is 0"),
        ({"epochs": (4, 1)}, "high is 1"),
        ({"sampler": "tep"}, "did you mean tpe"),
        ({"scheduler": "hyperbnd"}, "did you mean hyperband"),
        (
            {"scheduler": "hyperband", "epochs": [9]},
            "different rungs, but epochs 9 make only one; write low:high, such as 1:9",
        ),
        ({"generation": 0}, "generation must be"),
        ({"cohort": True}, "cohort must be"),
        ({"fixed": {"gama": 1}}, "did you mean gamma"),
    ],
)
def test_an_invalid_study_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_config(load("ppo"), "CartPole-v1", **{"trials": 1, "epochs": [1, 2], **changes})
    assert issubclass(BadConfig, ValueError)


@sqlite_first
def test_planning_obeys_a_stop_between_two_trials_and_writes_nothing_then(url: str) -> None:
    with Store(url) as store:
        start_study(store, "s", tiny(trials=8, generation=8))
        worker, asked = Worker(store, "s"), iter(range(100))
        assert not worker.run(lambda: next(asked) >= 4)  # in the midst of the first eight
        assert 4 < next(asked) < 9
        assert store.trials("s") == []
        assert Worker(store, "s").run()
        assert bits(store) == undisturbed(tiny(trials=8, generation=8))


def test_workers_that_plan_at_once_plan_the_same(url: str) -> None:
    config = tiny(trials=8)
    with Store(url) as store:
        start_study(store, "s", config)
    seen: list[Any] = []

    def look() -> None:
        with Store(url) as mine:
            seen.append([(item.trial.uid, item.segment) for item in StudyRunner(mine, "s").advance()])

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 4
    assert len(seen[0]) == 4
    assert all(one == seen[0] for one in seen)


def test_a_plan_that_was_cut_off_in_the_middle_is_completed(store: Store) -> None:
    start_study(store, "s", tiny())
    whole = [(item.trial.params, item.segment) for item in StudyRunner(store, "s").advance()]
    start_study(store, "t", tiny())
    store.add_rows("t", trials=store.trials("s"))  # and killed before the segments
    assert [(item.trial.params, item.segment) for item in StudyRunner(store, "t").advance()] == whole


def test_trials_in_a_row_share_a_cohort(store: Store) -> None:
    start_study(store, "s", tiny(fixed={"model.activation": "relu"}, generation=4, cohort=2))
    engine = StudyRunner(store, "s")
    first, second, third, fourth = map(engine.structure, engine.advance())
    assert first == second
    assert third == fourth


def test_a_study_of_another_version_of_the_task_is_refused(store: Store) -> None:
    config = replace(tiny(), task_version=99)
    store.change_study("s", lambda _: config.to_json())
    with pytest.raises(StudyMismatch, match=f"ppo 99, but {load('ppo').version} is installed"):
        StudyRunner(store, "s")


def test_a_configuration_of_another_version_is_refused(store: Store) -> None:
    store.change_study("s", lambda _: {**tiny().to_json(), "version": 7})
    with pytest.raises(StoreError, match="version 1, but got 7"):
        StudyRunner(store, "s")


def test_an_unknown_study_is_an_error_that_names_those_there_are(store: Store) -> None:
    store.change_study("cartpole", lambda _: {})
    with pytest.raises(UnknownStudy, match="cartpole"):
        StudyRunner(store, "cartpol")


def test_an_extended_study_is_the_one_that_was_asked_for_at_once(sqlite_url: str) -> None:
    run(sqlite_url, tiny(2, (1, 2, 2), generation=2))
    config = tiny(4, (1, 2, 2), generation=2)
    assert run(sqlite_url, config) == undisturbed(config)


def test_two_studies_with_the_same_trials_train_them_once(sqlite_url: str) -> None:
    first = run(sqlite_url, tiny(3, (1, 2, 2)))
    with Store(sqlite_url) as store:
        uids = [task.uid for task in store.tasks()]
    assert run(sqlite_url, tiny(3, (1, 2, 2)), name="t") == first
    with Store(sqlite_url) as store:
        assert [task.uid for task in store.tasks()] == uids


def test_trials_of_different_hyperparameters_share_no_cohort(store: Store) -> None:
    options = {"objectives": {"place": "maximize"}}
    config = make_config(load("drifting:Drift"), None, trials=8, epochs=(1, 1, 2), cohort=4, options=options)
    start_study(store, "s", config)
    assert Worker(store, "s").run()
    trials = [flatten(trial.params) for trial in store.trials("s")]
    assert {trial["pushed"] for trial in trials} == {0, 1}
    places = [4 * (trial["speed"] + trial.get("push", 0.0)) for trial in trials]
    assert [segment.score for segment in store.segments("s")] == pytest.approx(places)
