"""A rerun of `tune` or `create`: what it need not say again, and what it may not change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import rekindle
from rekindle.studies.engine.runner import MUTABLE
from rekindle.studies.errors import StudyMismatch
from rekindle.studies.options.study_options import STUDY
from rekindle.studies.storage.store import Store

Cli = Callable[..., tuple[int, str, str]]
WORDS = ["create", "surrogate", "--study", "s"]
TASK: dict[str, list[str]] = {"portfolio": ["ppo", "CartPole-v1"], "repeats": ["ppo", "CartPole-v1"]}
PBT = ("--scheduler", "pbt", "--epochs", "9")
SEVERAL = ("--scheduler", "halving", "--seeds", "5")
GRID = ("--sampler", "grid", "--search", "lr", "--epochs", "2", "--scheduler", "none")
# By option: words of the first command and of another one, and what differs between the studies.
OTHERS: dict[str, tuple[Sequence[str], Sequence[str], str]] = {
    "seed": ((), ("--seed", "5"), "seed (0, now 5)"),
    "portfolio": ((), ("--portfolio", "off"), "options.portfolio ('auto', now 'off')"),
    "repeats": ((), ("--repeats", "0"), "options.repeats (2, now 0)"),
    "trials": (("--trials", "9"), ("--trials", "8"), "trials ([9], now [8])"),
    "scheduler": ((), ("--scheduler", "halving"), "scheduler ('adaptive', now 'halving')"),
    "sampler": ((), ("--sampler", "random"), "sampler ('tpe', now 'random')"),
    "generation": ((), ("--generation", "9"), "generation (12, now 9)"),
    "cohort": ((), ("--cohort", "3"), "cohort (4, now 3)"),
    "seeds": (SEVERAL, ("--scheduler", "halving", "--seeds", "3"), "options.seeds (5, now 3)"),
    "aggregate": (SEVERAL, (*SEVERAL, "--aggregate", "iqm"), "options.aggregate ('mean', now 'iqm')"),
    "racing": (SEVERAL, (*SEVERAL, "--racing"), "options.racing (absent, now "),
    "eval_episodes": ((), ("--eval-episodes", "7"), "options.eval_episodes (absent, now 7)"),
    "objective": ((), ("--objective", "return_iqm"), "options.objectives.return_iqm (absent, now 'maximize')"),
    "constraint": ((), ("--constraint", "return>=1"), "options.constraint (absent, now ['return>=1'])"),
    "search": ((), ("--search", "lr"), "fixed.epoch_steps (absent, now 1)"),
    "population": ((*PBT, "--population", "4"), (*PBT, "--population", "8"), "cohort (4, now 8)"),
    "interval": (PBT, (*PBT, "--interval", "2"), "epochs ([3, 9, 1], now [2, 9, 1])"),
    "exploit": (PBT, (*PBT, "--exploit", "tournament"), "options.exploit ('truncation', now 'tournament')"),
    "explore": (PBT, (*PBT, "--explore", "resample"), "options.explore ('perturb', now 'resample')"),
}
ELSEWHERE = {"preset", "across", "perturb", "grid_points"}  # they change what others of these store


def test_every_option_of_a_study_can_be_changed_or_is_refused() -> None:
    assert {*STUDY} == {*OTHERS, *MUTABLE, *ELSEWHERE}


@pytest.mark.parametrize("name", OTHERS)
def test_another_value_in_a_rerun_is_refused_before_anything_changes(name: str, sqlite_url: str, cli: Cli) -> None:
    first, other, differs = OTHERS[name]
    words = [WORDS[0], *TASK.get(name, ["surrogate"]), *WORDS[2:], "--storage", sqlite_url]
    assert cli(*words, *first)[0] == 0
    with Store(sqlite_url) as store:
        before = store.study("s")
    status, _, errors = cli(*words, *other)
    assert status == 2, errors
    assert f"a study keeps its configuration, but 's' differs in {differs}" in errors
    assert "; use the stored values, or another name for a new study (--study)" in errors
    assert cli(*words, *first)[0] == 0
    with Store(sqlite_url) as store:
        assert store.study("s") == before


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (("--sampler", "random", "--scheduler", "halving"), ()),
        (("--trials", "8", "--epochs", "2:8", "--eval-episodes", "7"), ()),
        (("--trials", "8", "--generation", "4"), ()),
        ((*GRID, "--grid-points", "3"), ("--search", "lr")),
        (("--scheduler", "none", "--epochs", "5"), ()),
        (("--scheduler", "halving", "--epochs", "1:2"), ()),
        ((*PBT, "--population", "6", "--interval", "2"), ("--scheduler", "pbt", "--population", "6")),
        ((*PBT, "--population", "4", "--exploit", "tournament", "--explore", "resample"), ()),
    ],
)
def test_a_rerun_need_not_repeat_what_was_chosen_in_place_of_a_default(
    first: Sequence[str], again: Sequence[str], sqlite_url: str, cli: Cli
) -> None:
    words = [*WORDS, "--storage", sqlite_url]
    assert cli(*words, *first)[0] == 0
    with Store(sqlite_url) as store:
        before = store.study("s")
        status, _, errors = cli(*words, *again)
        assert status == 0, errors
        assert store.study("s") == before


def test_a_rerun_may_name_any_number_of_trials_that_the_study_once_had(sqlite_url: str, cli: Cli) -> None:
    words = [*WORDS, "--storage", sqlite_url, "--trials"]
    for trials in ("8", "12", "8", "20", "12"):
        assert cli(*words, trials)[0] == 0
    with Store(sqlite_url) as store:
        assert store.study("s").config["trials"] == [8, 12, 20]


def test_a_rerun_in_python_keeps_and_refuses_the_same(sqlite_url: str) -> None:
    def tune(**options: Any) -> rekindle.Study:
        return rekindle.tune("surrogate", storage=sqlite_url, study="s", progress=False, **options)

    done = tune(trials=4, epochs=2, scheduler="none", sampler="random", eval_episodes=3, repeats=0)
    before = done.store.study("s")
    assert tune().store.study("s") == tune(trials=4, sampler="random", repeats=None).store.study("s") == before
    for options, differs in (
        ({"trials": 3}, r"trials \(\[4\], now \[3\]\)"),
        ({"sampler": "tpe"}, r"sampler \('random', now 'tpe'\)"),
        ({"epochs": 3}, r"epochs \(\[2, 2, \d\], now \[3, 3, \d\]\)"),
    ):
        with pytest.raises(StudyMismatch, match=differs):
            tune(**options)
    assert done.store.study("s") == before
