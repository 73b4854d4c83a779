"""Confirmation: race and estimate by arithmetic, whole confirmations under attack, and the command's output."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import rekindle
from gated import Gate
from rekindle.studies import Study
from rekindle.studies.analysis.comparing import compare
from rekindle.studies.analysis.sources import BadSource
from rekindle.studies.cli import main
from rekindle.studies.engine.checked_config import make_config, make_population
from rekindle.studies.engine.confirmation_views import confirmation_view
from rekindle.studies.engine.confirmations import confirmation_config, confirmation_name, start_confirmation
from rekindle.studies.engine.ranking import rank
from rekindle.studies.engine.runner import start_study
from rekindle.studies.engine.snapshots import look
from rekindle.studies.engine.study_views import study_json, study_view
from rekindle.studies.engine.views import (
    BaselineView,
    CandidateView,
    ChangesView,
    ConfirmationView,
    CostView,
    EstimateView,
    FailedProbeView,
    RaceView,
)
from rekindle.studies.errors import BadConfig, StudyMismatch
from rekindle.studies.live.fragments import fragment
from rekindle.studies.live.views import LiveStudy
from rekindle.studies.report.verdicts import unfinished, verdict
from rekindle.studies.schedulers.confirming import Confirmation, Confirming, Standing, episodes_seed, standing
from rekindle.studies.statistics.estimates import Interval
from rekindle.studies.statistics.intervals import mean_interval
from rekindle.studies.steering.steering import Steering
from rekindle.studies.storage.rows import Segment
from rekindle.studies.storage.store import Store
from rekindle.studies.study.config import Config
from rekindle.studies.upkeep.deleting import delete
from rekindle.studies.workers.worker import Worker
from rekindle.tasks import load
from rekindle.tasks.runtime import EVALUATION_SEED
from studying import TINY, run, run_and_be_killed, run_by_three, tiny

CHEAP = CostView(trainings=9, epochs=9, failed=0)
Scores = Callable[[int, int], float]


def through(confirmation: Confirmation, score: Scores, fails: tuple[tuple[int, int], ...] = ()) -> list[Standing]:
    """All standings to the end, where each wanted training ends with its score."""
    rows: dict[tuple[int, int], Segment] = {}
    standings = [standing(confirmation, rows)]
    while not standings[-1].over:
        assert standings[-1].wanted
        for n, s in standings[-1].wanted:
            row = Segment(0, 0, 9, state="failed" if (n, s) in fails else "done", score=score(n, s))
            rows[n, s] = row
        standings.append(standing(confirmation, rows))
    return standings


def of(candidates: int, defaults: int | None = None, seeds: int = 6, race_seeds: int = 3) -> Confirmation:
    return Confirmation("s", candidates, defaults, seeds, race_seeds, (None,) * candidates)


def test_the_race_drops_half_then_all_but_two_and_fresh_seeds_estimate() -> None:
    first, second, third, fourth, last = through(of(6, defaults=5), lambda n, s: [3, 9, 4, 8, 5, 1][n])
    assert first.wanted == [(n, 0) for n in range(6)]
    assert second.wanted == [(1, 1), (3, 1), (4, 1)]
    assert third.wanted == [(1, 2), (3, 2)]
    assert fourth.wanted == [(n, s) for n in (1, 3, 5) for s in range(3, 9)]  # the defaults are estimated, too
    assert last == Standing([], finalists=[1, 3], estimated=[1, 3, 5], over=True)


def test_seeds_of_the_race_decide_and_no_others() -> None:
    """The second candidate is better on the seeds of the estimate, which come too late to choose."""
    last = through(of(2), lambda n, s: float(s < 3) if n == 0 else 0.5)[-1]
    assert last.finalists == [0, 1]


def test_a_claim_counts_in_the_race_as_one_more_seed() -> None:
    """The first candidate wins all fresh seeds by 1, but the search found it worse by 4."""
    ahead: Scores = lambda n, s: 1.0 - n  # noqa: E731
    claims = (0.0, 4.0)
    race = Confirmation("s", 2, None, 3, 2, claims)
    assert through(race, ahead)[-1].finalists == [1, 0]  # means of three: 2/3 and 4/3
    assert through(replace(race, race_seeds=5), ahead)[-1].finalists == [0, 1]  # of six: 5/6 and 4/6
    assert through(Confirmation("s", 2, None, 3, 2, (0.0, None)), ahead)[-1].finalists == [0, 1]


def test_a_result_after_fewer_epochs_claims_nothing(sqlite_url: str) -> None:
    searched(sqlite_url, noisy())
    few = {trial.number for trial in Study("s", sqlite_url).trials if trial.epochs < 3}
    with Store(sqlite_url) as store:
        form = confirmation_config(store, "s", top=9, seeds=3).options["confirms"]
    claims = dict(zip(form["trials"], form["claims"], strict=True))
    assert few
    assert {number for number, claim in claims.items() if claim is None} - {None} == few


def test_a_candidate_that_reaches_the_top_rung_later_has_claimed_nothing(sqlite_url: str) -> None:
    """As where a study was confirmed before it was complete."""
    searched(sqlite_url, noisy(options={"objectives": {"return": "minimize"}}))
    with Store(sqlite_url) as store:
        start_confirmation(store, "s", confirmation_config(store, "s", top=9, seeds=3))
        trials = study_view(store, "s").trials
        [late, *_] = [trial for trial in trials if trial.epochs < 3]
        longer = late.replace(rungs=[*late.rungs, late.rungs[0].replace(rung=1, epochs=3)])
        trials = [longer if trial is late else trial for trial in trials]
        view = confirmation_view(store, "s", trials)
    assert view is not None
    assert {candidate.trial: candidate.claim for candidate in view.candidates}[late.number] is None


def test_a_confirmation_of_an_earlier_version_races_without_claims(sqlite_url: str) -> None:
    searched(sqlite_url, noisy())
    with Store(sqlite_url) as store:
        config = confirmation_config(store, "s", top=2, seeds=3)
    assert Confirmation.of(config).claims_race
    del (form := dict(config.options["confirms"]))["claims_race"]
    before = Confirmation.of(replace(config, options={**config.options, "confirms": form}))
    assert before.earlier_scores(0) == []
    assert replace(before, claims_race=True) == Confirmation.of(config)


def test_a_candidate_that_fails_in_the_race_is_out_and_ties_go_to_the_first() -> None:
    last = through(of(4), lambda n, s: 1.0, fails=((0, 0),))[-1]
    assert last.finalists == [1, 2]
    assert through(of(2), lambda n, s: 1.0, fails=((0, 0), (1, 0)))[-1] == Standing(over=True)


def test_a_single_candidate_is_estimated_without_a_race() -> None:
    first, last = through(of(1, defaults=0), lambda n, s: 1.0)
    assert first.wanted == [(0, s) for s in range(3, 9)]
    assert (last.finalists, last.estimated) == ([0], [0])


def test_the_race_ends_where_one_candidate_is_left() -> None:
    first, second, last = through(of(2), lambda n, s: 1.0, fails=((0, 0),))
    assert first.wanted == [(0, 0), (1, 0)]
    assert second.wanted == [(1, s) for s in range(3, 9)]
    assert last.finalists == [1]


def test_a_confirmation_of_an_earlier_version_goes_on_without_the_rest_of_its_race() -> None:
    """It has raced with its single candidate."""
    raced = {(0, s): Segment(0, 0, 9, state="ready" if s == 2 else "done", score=1.0) for s in range(3)}
    assert standing(of(1), raced) == Standing([(0, s) for s in range(3, 9)], [0], [0])
    whole = raced | {(0, s): Segment(0, 0, 9, state="done", score=1.0) for s in range(3, 9)}
    assert not standing(of(1), whole).over  # a worker still trains a seed of the race
    whole |= {(0, 2): Segment(0, 0, 9, state="failed")}
    assert standing(of(1), whole) == Standing([], [0], [0], over=True)


def test_the_expected_number_of_trainings_is_that_of_an_undisturbed_confirmation(sqlite_url: str) -> None:
    searched(sqlite_url, noisy())
    with Store(sqlite_url) as store:
        config = confirmation_config(store, "s", top=5, seeds=6)
    for candidates in range(1, 7):
        form = {**config.options["confirms"], "defaults": candidates - 1, "claims": [None] * candidates}
        fewer = replace(config, trials=[candidates], options={**config.options, "confirms": form})
        standings = through(Confirmation.of(fewer), lambda n, s: -float(n))
        assert Confirming(fewer).entrants() == [sum(len(standing.wanted) for standing in standings)]


def test_defaults_that_are_the_only_candidate_do_not_race(sqlite_url: str) -> None:
    searched(sqlite_url, make_config(load("surrogate"), "CartPole-v1", trials=1, epochs=(1,), fixed={"noise": 5.0}))
    answer = Study("s", sqlite_url).confirm(top=1, seeds=4, progress=False)
    assert answer["cost"]["trainings"] == 4
    [candidate] = answer["candidates"]
    assert (candidate["defaults"], candidate["race"]) == (True, {"seeds": 0, "mean": None, "failed": 0})
    with Store(sqlite_url) as store:
        assert "The best that the search found are the defaults. It took 4 trainings" in answer_in(store)
        view = study_json(store, "s:confirmation")
    assert view["best"]["state"] == "complete"
    assert (view["counts"]["complete"], view["counts"]["pruned"]) == (1, 0)


def test_progress_names_the_trial_of_the_search_and_not_the_candidate(sqlite_url: str) -> None:
    searched(sqlite_url, noisy())
    answer = Study("s", sqlite_url).confirm(top=3, seeds=3, progress=False)
    trial = answer["candidates"][answer["winner"]]["trial"]
    assert trial != answer["winner"], "else both numbers are right"
    with Store(sqlite_url) as store:
        best = look(store, "s:confirmation").best
        assert best is not None
        assert (best.trial, best.name) == (answer["winner"], f"trial {trial}")
        assert f", trial {trial} at epoch 3." in fragment(LiveStudy(store, "s:confirmation").look())


def candidate(trial: int | None, ends: tuple[float, float, float] | None, **more: Any) -> CandidateView:
    """A candidate with an estimate and its interval, by default of 20 seeds."""
    claim, race = more.pop("claim", None), RaceView(seeds=0, mean=None, failed=0)
    estimate = None
    if ends is not None:
        value, low, high = ends
        estimate = EstimateView(value=value, low=low, high=high, **{"seeds": 20, "failed": 0, "results": [], **more})
    same: dict[str, Any] = {"hyperparameters": {}, "race": race, "defaults": trial is None}
    return CandidateView(trial=trial, claim=claim, estimate=estimate, **same)


def answer_of(*candidates: CandidateView, **more: Any) -> ConfirmationView:
    """A complete confirmation, which the first candidate won."""
    fields = {"study": "s", "confirmation": "s:confirmation", "state": "complete", "seeds": 20, "race_seeds": 3}
    fields |= {"objective": "return", "direction": "maximize", "epochs": 1, "candidates": candidates, "winner": 0}
    fields |= dict.fromkeys(("runner_up", "over_defaults", "over_runner_up", "optimism", "since"))
    return ConfirmationView(**{**fields, "cost": CHEAP, "earlier": [], **more})  # type: ignore[arg-type]


def test_a_verdict_says_once_what_beats_the_defaults_and_when_nothing_does() -> None:
    better = Interval(0.9, 0.8, 1.0)
    answer = answer_of(candidate(3, (5.0, 4.0, 6.0)), candidate(None, (5.0, 4.0, 6.0)), over_runner_up=better)
    text = verdict(answer.replace(runner_up=1, over_defaults=better))
    assert "A training of it beats a training of the defaults with probability 0.90 (0.80 to 1.00). It took" in text
    text = verdict(answer.replace(winner=1, runner_up=0))
    assert (
        "The defaults won the race against the best that the search found. A training of it beats a training of the "
        "runner-up" in text
    )


def test_a_verdict_says_if_another_candidate_was_better_on_the_fresh_seeds() -> None:
    """The race's seeds choose, and those of the estimate may disagree."""
    tried, defaults = candidate(3, (-216.0, -296.0, -136.0)), candidate(None, (-301.0, -381.0, -221.0))
    answer = answer_of(tried, defaults, winner=1, runner_up=0)
    assert verdict(answer) == (
        "Expect -301.0 of the defaults, with 95% confidence between -381.0 and -221.0. The defaults won the race "
        "against the best that the search found. But on the fresh seeds trial 3 was better, at -216.0, so that which "
        "one is best is open; `rekindle confirm s --top 1 --seeds 80` asks again, with more seeds. It took 9 "
        "trainings, 9 epochs."
    )
    assert "But" not in verdict(answer.replace(direction="minimize"))
    same = [candidate(3, (0.1 + 0.2, 0.0, 1.0)), candidate(None, (0.3, 0.0, 1.0))]
    assert "But" not in verdict(answer.replace(candidates=same))
    assert "But on the fresh seeds the defaults were better" in verdict(
        answer.replace(winner=0, runner_up=1, direction="minimize")
    )


@pytest.mark.parametrize(
    ("estimate", "sentence"),
    [
        ((19.0, 9.0, 25.0), "That is no better than random actions, which return 22.0. It took"),
        ((19.0, 9.0, 21.0), "That is worse than random actions, which return 22.0. It took"),
        (
            (22.5, 9.0, 30.0),
            "Whether that is better than random actions, which return 22.0, is open; more seeds decide. It took",
        ),
    ],
)
def test_a_verdict_says_if_the_winner_is_no_better_than_what_has_not_learned(
    estimate: tuple[float, float, float], sentence: str
) -> None:
    returns = {"random": 22.0, "untrained": 9.0}
    baselines = {name: BaselineView(value=value, low=None, high=None, runs=5) for name, value in returns.items()}
    probe = FailedProbeView(baselines=baselines, text="", warnings=[])
    answer = answer_of(candidate(3, estimate))
    assert sentence in verdict(answer, probe)
    for other in (verdict(answer.replace(objective="info.score"), probe), verdict(answer, probe.replace(baselines={}))):
        assert "than random" not in other
    assert "than random" not in verdict(answer_of(candidate(3, (23.5, 22.5, 30.0))), probe)


def test_a_verdict_says_what_is_missing() -> None:
    answer = answer_of(candidate(3, None, claim=500.0), state="running", winner=None, seeds=4)
    answer = answer.replace(cost=CostView(trainings=1200, epochs=3600, failed=2))
    spent = "It took 1,200 trainings, 3,600 epochs, and 2 trainings that failed."
    text = "The confirmation is not complete; `rekindle confirm s --top 1 --seeds 4` resumes it. "
    assert verdict(answer) == text + spent
    before = "The one before it, s:confirmation, is complete; `rekindle trials s:confirmation` shows it. "
    assert verdict(answer.replace(earlier=["s:confirmation"])) == text + before + spent
    for winner in (None, 0):
        text = verdict(answer.replace(state="complete", winner=winner))
        why = "`rekindle trials s:confirmation` says why"
        assert text == f"Nothing is confirmed, since too many trainings failed; {why}. {spent}"


def test_a_verdict_says_that_the_defaults_failed() -> None:
    answer = answer_of(best := candidate(2, (87.2, 86.0, 88.3)), candidate(None, None))
    assert "The defaults are not compared, since too many of their trainings failed. It took" in verdict(answer)
    assert "not compared" not in verdict(answer.replace(candidates=[best]))


def test_equal_results_of_all_seeds_are_no_certainty() -> None:
    answer = answer_of(candidate(3, (500.0, 500.0, 500.0), claim=500.0), optimism=0.0)
    text = verdict(answer)
    assert "all 20 fresh seeds gave exactly this" in text
    assert "at most 14% of seeds give another result" in text  # 0.86 to the power of 20 is 0.05
    assert "confidence between" not in text
    few = candidate(3, (500.0, 480.0, 500.0), claim=500.0, seeds=14, failed=6)
    assert "6 of its fresh trainings failed and are not counted." in verdict(answer.replace(candidates=[few]))


@pytest.mark.parametrize(
    ("claim", "value", "sentence"),
    [
        (500.0, 500.0, "The search claimed the same."),
        (56.319394889, 56.31939488900001, "The search claimed the same."),
        (0.0, -1e-17, "The search claimed the same."),
        (500.0, 148.8, "The search claimed 500.0, which differs by 351.2."),
        (-216.0, -301.25, "The search claimed -216.0, which differs by 85.2."),
        (500.0, 499.98, "The search claimed 500.00, which differs by 0.0200."),
        (56.319394889, 56.3191, "The search claimed 56.3194, which differs by 0.000295."),
        (0.75, 0.7125, "The search claimed 0.750, which differs by 0.0375."),
    ],
)
def test_a_verdict_says_how_far_the_claim_was_off(claim: float, value: float, sentence: str) -> None:
    best = candidate(3, (value, value - 1, value + 1), claim=claim)
    assert f". {sentence} It took" in verdict(answer_of(best, optimism=claim - value))


def answer_in(store: Store) -> str:
    """Return the verdict of the last confirmation of the study s."""
    confirmation = confirmation_view(store, "s")
    assert confirmation is not None
    return verdict(confirmation)


def searched(url: str, config: Config) -> None:
    with Store(url) as store:
        start_study(store, "s", config)
        assert Worker(store, "s").run()


def noisy(**options: Any) -> Config:
    """Trainings of a known function of the hyperparameters and of luck."""
    fixed = {"noise": 5.0, **options.pop("fixed", {})}
    return make_config(load("surrogate"), "CartPole-v1", trials=9, epochs=(1, 3, 3), fixed=fixed, **options)


@pytest.mark.slow
def test_the_answer_is_that_of_the_rows(sqlite_url: str) -> None:
    searched(sqlite_url, noisy(seed=1))
    study = Study("s", sqlite_url)
    answer = study.confirm(top=2, seeds=6, progress=False)
    assert answer == study.confirm(top=2, seeds=6, progress=False)  # nothing is left to train
    assert answer["cost"] == {"trainings": 3 + 2 + 2 + 3 * 6, "epochs": 3 * (3 + 2 + 2 + 3 * 6), "failed": 0}
    store, name = study.store, confirmation_name("s")
    config = Config.from_json(store.study(name).config, name)
    winner = answer["candidates"][answer["winner"]]
    rows = {(row.configuration, row.replicate): row.score for row in store.segments(name)}
    fresh = [rows[answer["winner"], s] for s in range(3, 9)]
    assert winner["estimate"]["results"] == fresh
    others = [[rows[n, s] for s in range(9) if (n, s) in rows] for n in range(3) if n != answer["winner"]]
    assert [winner["estimate"][end] for end in ("value", "low", "high")] == list(mean_interval(fresh, others))  # type: ignore[arg-type]
    assert answer["optimism"] == winner["claim"] - winner["estimate"]["value"]
    defaults = [rows[config.options["confirms"]["defaults"], s] for s in range(3, 9)]
    better = np.mean([[(x > y) + (x == y) / 2 for y in defaults] for x in fresh])  # type: ignore[operator]
    assert answer["over_defaults"]["estimate"] == pytest.approx(better)
    by_trial = {trial.number: trial for trial in study.trials}
    for candidate in answer["candidates"]:
        if candidate["trial"] is not None:
            assert candidate["hyperparameters"] == by_trial[candidate["trial"]].hyperparameters
            assert candidate["claim"] == by_trial[candidate["trial"]].value
    assert sum(candidate["defaults"] for candidate in answer["candidates"]) == 1


def test_seeds_and_episodes_are_none_of_the_search(sqlite_url: str) -> None:
    """The greedy return of a confirmed training is that of other episodes than the search measures."""
    searched(sqlite_url, tiny(trials=2, epochs=(1, 1, 2), generation=2))
    with Store(sqlite_url) as store:
        name = confirmation_name("s")
        start_study(store, name, confirmation_config(store, "s", top=1, seeds=3))
        assert Worker(store, name).run()
        searched_seeds = {store.task(trial.uid).seed for trial in store.trials("s")}
        trials = [trial for trial in store.trials(name) if trial.state == "complete"]
        seeds = [store.task(trial.uid).seed for trial in trials]
        assert not searched_seeds & set(seeds)
        assert len(set(seeds)) == 6
        scores = {row.number: row.score for row in store.segments(name)}
        task = store.task(trials[0].uid)
        other_seed = episodes_seed(Config.from_json(store.study(name).config, name), task.seed)
        assert task.evaluate(seed=other_seed) == scores[trials[0].number]
        assert task.returns() == task.returns(seed=EVALUATION_SEED) != task.returns(seed=other_seed)
        assert task.metrics["return"] == task.evaluate(seed=other_seed) != task.evaluate()
        assert task.score_epoch() == task.evaluate()  # as if no confirmation had trained it
        assert task.metrics["return_seed"] == EVALUATION_SEED


def test_episodes_differ_between_seeds_and_are_the_same_for_all_candidates(sqlite_url: str) -> None:
    """No policy has a part in these returns, so that all of their spread is that of episodes."""
    searched(sqlite_url, tiny(trials=2, epochs=(1, 1, 2), generation=2, env={"id": "own_envs:Wheel-v0"}))
    with Store(sqlite_url) as store:
        name = confirmation_name("s")
        config = confirmation_config(store, "s", top=2, seeds=3)
        start_study(store, name, config)
        assert Worker(store, name).run()
        of_seeds: dict[int, set[float | None]] = {}
        for row in store.segments(name):
            of_seeds.setdefault(row.replicate, set()).add(row.score)
    assert len(of_seeds) == 6
    assert {len(scores) for scores in of_seeds.values()} == {1}
    assert len(set[float | None]().union(*of_seeds.values())) == 6
    del (form := dict(config.options["confirms"]))["episodes_by_seed"]  # of an earlier version
    before = replace(config, options={**config.options, "confirms": form})
    assert episodes_seed(before, 1) == episodes_seed(before, 2) != episodes_seed(config, 1) != episodes_seed(config, 2)


def test_short_episodes_are_as_many_as_a_fifth_of_the_steps_allows(sqlite_url: str) -> None:
    limited = {"eval_steps": [[1, 0.1, 200], [2, 0.2, 200]]}
    wheel = {"id": "own_envs:Wheel-v0"}
    searched(sqlite_url, tiny(trials=2, epochs=(1, 2, 2), generation=2, env=wheel, options=limited))
    with Store(sqlite_url) as store:
        config = confirmation_config(store, "s", top=1, seeds=3)
        start_study(store, "s:confirmation", config)
        assert Worker(store, "s:confirmation").run()
        steps = {row.eval_steps for row in store.segments("s:confirmation")}
        other = confirmation_config(store, "s", top=1, seeds=3, eval_episodes=7)
    assert config.options["eval_steps"] == [[2, 0.5, 200]]
    assert steps == {max(20, TINY["epoch_steps"] // 2)}  # of one step each
    assert "eval_steps" not in other.options


@pytest.mark.slow
def test_any_number_of_workers_confirms_the_same(sqlite_url: str, tmp_path: Any) -> None:
    other = f"sqlite:///{tmp_path}/other.db"
    for url in (sqlite_url, other):
        searched(url, noisy())
    with Store(sqlite_url) as store:
        config = confirmation_config(store, "s", top=3, seeds=4)
    assert run(sqlite_url, config, "s:confirmation") == run_by_three(other, config, "s:confirmation")
    with Store(sqlite_url) as one, Store(other) as two:
        assert confirmation_view(one, "s") == confirmation_view(two, "s")


def test_the_command_resumes_and_prints_the_answer(
    sqlite_url: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    searched(sqlite_url, noisy())
    command = ["confirm", "s", "--top", "2", "--seeds", "4", "--workers", "1", "--storage", sqlite_url]
    assert main([*command, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)  # how far it is, it tells elsewhere
    assert answer["state"] == "complete"
    assert main(command) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "on seeds that its search has not used: return" in said
    assert "with 95% confidence between" in said
    assert f"It took {answer['cost']['trainings']} trainings" in said
    assert main(["trials", "s", "--storage", sqlite_url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["confirmation"]["winner"] == answer["winner"]
    assert main(["export", "s", str(tmp_path / "s.rekindle"), "--storage", sqlite_url]) == 0
    assert "its confirmation, the study s:confirmation, is not in the file" in capsys.readouterr().err


def test_only_what_trained_as_long_in_the_search_claims_a_result(sqlite_url: str) -> None:
    """Of six candidates, some were pruned after 1 of 3 epochs: another number than the one that is estimated."""
    searched(sqlite_url, noisy())
    with Store(sqlite_url) as store:
        start_study(store, "s:confirmation", confirmation_config(store, "s", top=6, seeds=3))
        view = confirmation_view(store, "s")
        assert view is not None
        of = {trial["number"]: trial for trial in study_json(store, "s")["trials"]}
        tried = [(of[candidate.trial], candidate.claim) for candidate in view.candidates if candidate.trial is not None]
        assert {trial["epochs"] for trial, _ in tried} == {1, 3}
        assert [claim for _, claim in tried] == [row["return"] if row["epochs"] == 3 else None for row, _ in tried]


def test_an_unfinished_confirmation_keeps_its_numbers(sqlite_url: str) -> None:
    searched(sqlite_url, noisy())
    with Store(sqlite_url) as store:
        name = start_confirmation(store, "s", confirmation_config(store, "s", top=1, seeds=3))
        assert start_confirmation(store, "s", confirmation_config(store, "s", top=1, seeds=3)) == name
        with pytest.raises(
            StudyMismatch,
            match=r"s:confirmation has --top 1, --seeds 3 and 3 epochs, and would now have --top 1, --seeds 4 and 3 "
            r"epochs; `rekindle worker --study s:confirmation` completes it, and `rekindle delete s:confirmation` "
            r"removes it, so that s can be confirmed again$",
        ):
            start_confirmation(store, "s", confirmation_config(store, "s", top=1, seeds=4))


@pytest.mark.parametrize(("options", "episodes"), [([], None), (["--eval-episodes", "7"], 7)])
def test_the_command_of_an_unfinished_confirmation_resumes_it(
    options: list[str], episodes: int | None, sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    searched(sqlite_url, noisy())
    with Store(sqlite_url) as store:
        start_confirmation(store, "s", confirmation_config(store, "s", top=1, seeds=3, eval_episodes=episodes))
        view = confirmation_view(store, "s")
        assert view is not None
        words = " ".join(["rekindle confirm s --top 1 --seeds 3", *options])
        assert verdict(view).startswith(f"The confirmation is not complete; `{words}` resumes it.")
    assert main([*words.split()[1:], "--workers", "1", "--storage", sqlite_url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["confirmation"] == "s:confirmation"


def test_an_unfinished_confirmation_of_a_study_with_more_epochs_is_resumed_by_a_worker(sqlite_url: str) -> None:
    searched(sqlite_url, noisy())
    with Store(sqlite_url) as store:
        start_confirmation(store, "s", confirmation_config(store, "s", top=1, seeds=3))
        Steering(store, "s").extend(epochs=9)
        view = confirmation_view(store, "s")
        assert view is not None
        words = "rekindle worker --study s:confirmation"
        assert verdict(view).startswith(f"The confirmation is not complete; `{words}` resumes it.")
        assert unfinished(view).endswith(f"`{words}` resumes it.")
    assert main([*words.split()[1:], "--storage", sqlite_url]) == 0
    with Store(sqlite_url) as store:
        view = confirmation_view(store, "s")
        assert view is not None
        assert (view.state, view.lengthened) == ("complete", True)


def test_the_front_of_a_confirmation_is_the_winner_of_its_race(sqlite_url: str) -> None:
    """A candidate that lost the race has a better estimate."""
    searched(sqlite_url, noisy(seed=1, fixed={"noise": 60.0}))
    with Store(sqlite_url) as store:
        name = start_confirmation(store, "s", confirmation_config(store, "s", top=2, seeds=3))
        study = Study(name, store)
        assert (study.best, study.front) == (None, [])
        assert Worker(store, name).run()
        assert study.best is not None
        assert study.best.number != rank(study_view(store, name).trials)[0].number
        assert study.front == [study.best]


def test_a_further_confirmation_uses_no_seed_of_an_earlier_one(sqlite_url: str) -> None:
    """What the earlier one said may be why the study was extended, so its seeds have taken part in a choice."""
    searched(sqlite_url, noisy())
    study = Study("s", sqlite_url)
    first = study.confirm(top=1, seeds=3, progress=False)
    again = study.confirm(top=1, seeds=4, progress=False)
    assert (first["earlier"], again["confirmation"]) == ([], "s:confirmation-2")
    assert again["earlier"] == ["s:confirmation"]
    assert "None of its seeds was used by s:confirmation. It took" in answer_in(study.store)
    assert study.confirm(top=1, seeds=4, progress=False) == again  # nothing is left to train
    study.exclude(again["candidates"][0]["trial"])
    third = study.confirm(top=1, seeds=3, progress=False)
    assert third["earlier"] == ["s:confirmation", "s:confirmation-2"]
    assert third["candidates"][0]["trial"] != again["candidates"][0]["trial"]
    of_each = [
        {trial.attrs["seed"] for trial in study.store.trials(view["confirmation"])} for view in (first, again, third)
    ]
    assert [len(seeds) for seeds in of_each] == [3 + 3, 3 + 4, 3 + 3]
    assert len(set.union(*of_each)) == 19
    deleted = delete(study.store, "s", dry_run=False)
    assert deleted.confirmations == ["s:confirmation", "s:confirmation-2", "s:confirmation-3"]
    assert study.store.studies() == []


def test_a_confirmation_with_these_numbers_stands_while_the_study_is_the_same(sqlite_url: str) -> None:
    searched(sqlite_url, noisy())
    study = Study("s", sqlite_url)
    first = study.confirm(top=2, seeds=3, progress=False)
    more = study.confirm(top=1, seeds=4, progress=False)
    assert study.confirm(top=2, seeds=3, progress=False) == first
    assert study.confirm(top=1, seeds=4, progress=False) == more
    with Store(sqlite_url) as store:  # an unfinished one between them changes nothing
        third = start_confirmation(store, "s", confirmation_config(store, "s", top=1, seeds=5))
        assert third == "s:confirmation-3"
        assert study.confirm(top=2, seeds=3, progress=False) == first
        earlier, last = confirmation_view(store, "s", name=first["confirmation"]), confirmation_view(store, "s")
    assert earlier is not None
    assert earlier.to_json() == first
    assert last is not None
    assert (last.confirmation, last.state) == (third, "running")


def test_a_confirmation_before_a_change_of_the_study_is_no_answer_after_it(sqlite_url: str) -> None:
    """The study changes and changes back, maybe because of what a confirmation said in between."""
    options: dict[str, Any] = {"epochs": 1, "scheduler": "none", "sampler": "random", "progress": False}
    options["fixed"] = {"noise": 0.1}
    with Store(sqlite_url) as store:
        study = rekindle.tune("surrogate", storage=store, study="s", trials=4, **options)
        study.confirm(top=1, seeds=3, progress=False)
        study = rekindle.tune("surrogate", storage=store, study="s", trials=16, **options)
        between = study.confirm(top=1, seeds=3, progress=False)
        best = [trial.number for trial in rank(study_view(store, "s").trials, {"return": "maximize"})]
        for number in best[: best.index(next(number for number in best if number < 4))]:
            study.exclude(number)
        again = study.confirm(top=1, seeds=3, progress=False)
        assert again["earlier"] == ["s:confirmation", between["confirmation"]]
        assert again["candidates"][0] != between["candidates"][0]


def test_an_unfinished_confirmation_goes_on_with_its_candidates(sqlite_url: str) -> None:
    """The study that it confirms has been extended meanwhile."""
    options: dict[str, Any] = {"epochs": 1, "scheduler": "none", "sampler": "random", "progress": False}
    options["fixed"] = {"noise": 0.1}
    with Store(sqlite_url) as store:
        study = rekindle.tune("surrogate", storage=store, study="s", trials=4, **options)
        name = start_confirmation(store, "s", confirmation_config(store, "s", top=2, seeds=3))
        before = Config.from_json(store.study(name).config, name)
        study = rekindle.tune("surrogate", storage=store, study="s", trials=64, **options)
        answer = study.confirm(top=2, seeds=3, progress=False)
        assert answer["confirmation"] == name
        assert Config.from_json(store.study(name).config, name) == before
        assert answer["since"]["best"]
        assert study.confirm(top=2, seeds=3, progress=False)["since"] is None  # a further one


def test_a_confirmation_says_what_has_changed_since(sqlite_url: str) -> None:
    """The winner is excluded, and the study is extended to trials of which some are better."""
    options: dict[str, Any] = {"epochs": 1, "scheduler": "none", "sampler": "random", "progress": False}
    with Store(sqlite_url) as store:
        study = rekindle.tune("surrogate", storage=store, study="s", fixed={"noise": 0.1}, trials=4, **options)
        answer = study.confirm(top=2, seeds=3, progress=False)
        assert answer["since"] is None
        assert "Since then" not in answer_in(store)
        winner = answer["candidates"][answer["winner"]]["trial"]
        study = rekindle.tune("surrogate", storage=store, study="s", fixed={"noise": 0.1}, trials=64, **options)
        best, second, *_ = (trial.number for trial in rank(study_view(store, "s").trials, {"return": "maximize"}))
        now = confirmation_view(store, "s")
        assert now is not None
        assert now.since == ChangesView(best=[best, second], excluded=False)
        assert (
            f"Since then, trials {best}, {second} have come among the best 2; `rekindle confirm s --top 2 "
            in verdict(now)
        )
        study.exclude(winner)
        assert (
            f"Since then, trial {winner} has been excluded and trials {best}, {second} have come among the best 2; "
            "`rekindle confirm s --top 2 --seeds 3` confirms the best ones of now, on further seeds. It took"
        ) in answer_in(store)
        with pytest.raises(BadSource, match="the best configuration of s was trained with 1; `rekindle confirm s`"):
            compare(store, ["s", "again=s"])  # the excluded trial is not compared


def test_a_search_is_confirmed_at_its_end(sqlite_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    sets = [text for name, value in TINY.items() for text in ("--set", f"{name}={value!r}")]
    command = ["tune", "ppo", "CartPole-v1", *sets, "--epochs", "2", "--trials", "2", "--scheduler", "none"]
    command += ["--workers", "1", "--study", "s", "--storage", sqlite_url, "--json"]
    assert main([*command, "--confirm", "2"]) == 2
    assert "an interval needs at least 3 seeds, but got 2" in " ".join(capsys.readouterr().err.split())
    assert main([*command, "--top", "1"]) == 2
    assert "--top 1 is how many configurations --confirm takes, which is missing; add it" in capsys.readouterr().err
    assert main([*command, "--confirm", "3", "--top", "1"]) == 0
    confirmation = json.loads(capsys.readouterr().out)["confirmation"]
    assert confirmation["state"] == "complete"
    assert confirmation["seeds"] == 3
    assert sum(candidate["trial"] is not None for candidate in confirmation["candidates"]) == 1


def test_an_extended_search_is_confirmed_again(sqlite_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["tune", "surrogate", "--set", "noise=0.1", "--epochs", "1", "--scheduler", "none", "--sampler", "random"]
    command += ["--workers", "1", "--study", "s", "--storage", sqlite_url]
    assert main([*command, "--trials", "4", "--confirm", "3", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)["confirmation"]
    assert main([*command, "--trials", "64", "--confirm", "3"]) == 0
    output = capsys.readouterr()
    assert "s:confirmation-2 trains on seeds that s:confirmation has not used" in output.err
    assert "best trials of s" in output.out
    assert "None of its seeds was used by s:confirmation." in " ".join(output.out.split())
    assert main(["trials", "s", "--json", "--storage", sqlite_url]) == 0
    again = json.loads(capsys.readouterr().out)["confirmation"]
    assert again["candidates"][0]["trial"] != first["candidates"][0]["trial"]
    assert again["since"] is None
    assert {study.name for study in Store(sqlite_url).studies()} == {"s", "s:confirmation", "s:confirmation-2"}


def test_a_search_that_cannot_be_confirmed_still_shows_its_results(
    sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    searched(sqlite_url, noisy())
    with Store(sqlite_url) as store:
        start_confirmation(store, "s", confirmation_config(store, "s", seeds=3))
    command = ["tune", "surrogate", "CartPole-v1", "--set", "noise=5.0", "--epochs", "1:3", "--trials", "9"]
    command += ["--workers", "1", "--study", "s", "--storage", sqlite_url]
    assert main([*command, "--confirm", "4"]) == 1, "what was asked for was not done"
    output = capsys.readouterr()
    assert "study s is not confirmed: a confirmation keeps its numbers until it is complete" in output.err
    assert "best trials of s" in output.out


def test_tune_trains_nothing_again_after_a_confirmation_with_more_seeds(
    sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["tune", "surrogate", "--set", "noise=0.1", "--epochs", "1", "--scheduler", "none", "--trials", "2"]
    command += ["--workers", "1", "--study", "s", "--storage", sqlite_url, "--confirm", "3", "--json"]
    assert main(command) == 0
    first = json.loads(capsys.readouterr().out)["confirmation"]
    assert main(["confirm", "s", "--seeds", "6", "--workers", "1", "--storage", sqlite_url]) == 0
    capsys.readouterr()
    assert main(command) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["confirmation"] == first
    text = "s:confirmation has these candidates and seeds already; the last confirmation is s:confirmation-2"
    assert text in " ".join(output.err.split())
    assert {study.name for study in Store(sqlite_url).studies()} == {"s", "s:confirmation", "s:confirmation-2"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["s", "--seeds", "2"], "an interval needs at least 3 seeds, but got 2; take more"),
        (["none"], "none"),
        (
            ["s", "--top", "1"],
            "needs a result at the top rung, 3 epochs, but s has none; `rekindle worker --study s --storage",
        ),
    ],
)
def test_a_study_that_cannot_be_confirmed_is_refused(
    options: list[str], message: str, sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store(sqlite_url) as store:
        start_study(store, "s", noisy())
    assert main(["confirm", *options, "--storage", sqlite_url]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    with Store(sqlite_url) as store:
        assert [study.name for study in store.studies()] == ["s"]


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ({"top": 2.5}, BadConfig, "top must be an integer of at least 1, but got 2.5"),
        ({"top": True}, BadConfig, "top must be an integer of at least 1, but got True"),
        ({"seed": 3}, TypeError, "unexpected keyword argument 'seed'"),
        ({"device": "abacus"}, ValueError, "abacus"),
    ],
)
def test_wrong_arguments_leave_no_confirmation(
    how: dict[str, Any], error: type[Exception], message: str, sqlite_url: str
) -> None:
    with Store(sqlite_url) as store:
        start_study(store, "s", noisy())
        assert Worker(store, "s").run()
        with pytest.raises(error, match=message):
            Study("s", store).confirm(**how)
        assert [study.name for study in store.studies()] == ["s"]


def test_a_complete_study_without_a_result_needs_more_trials(sqlite_url: str) -> None:
    with Store(sqlite_url) as store:
        start_study(store, "s", noisy())
        assert Worker(store, "s").run()
        study = Study("s", store)
        for trial in study.trials:
            if trial.epochs == noisy().rungs[-1]:
                study.exclude(trial.number)
        with pytest.raises(BadConfig, match="but s has none; `rekindle extend s --trials N` gives it more trials"):
            confirmation_config(store, "s")


def test_a_stopped_study_without_a_result_is_to_be_resumed(sqlite_url: str) -> None:
    with Store(sqlite_url) as store:
        start_study(store, "s", noisy())
        study = Study("s", store)
        study.stop("lunch")
        cure = "`rekindle resume s` continues it, and `rekindle worker --study s` trains it to its end"
        with pytest.raises(BadConfig, match=rf"but s has none; it had the stop by .*: lunch; {cure}$"):
            confirmation_config(store, "s")
        study.resume()
        with pytest.raises(BadConfig, match=r"but s has none; `rekindle worker --study s` trains it to its end$"):
            confirmation_config(store, "s")


def test_populations_fronts_and_confirmations_are_refused(sqlite_url: str) -> None:
    with Store(sqlite_url) as store:
        front = noisy(options={"objectives": {"return": "maximize", "model_size": "minimize"}}, scheduler="none")
        start_study(store, "front", front)
        with pytest.raises(BadConfig, match="ranks by one objective, but front has return, model_size"):
            confirmation_config(store, "front")
        population = make_population(load("ppo"), "CartPole-v1", epochs=4)
        start_study(store, "bred", population)
        with pytest.raises(BadConfig, match=r"those of bred change while it trains \(pbt\); `rekindle schedule UID`"):
            confirmation_config(store, "bred")
        start_study(store, "s", noisy())
        assert Worker(store, "s").run()
        with pytest.raises(BadConfig, match="--top must be at least 1, the best configuration alone, but got 0"):
            confirmation_config(store, "s", top=0)
        start_study(store, confirmation_name("s"), confirmation_config(store, "s"))
        with pytest.raises(BadConfig, match="s:confirmation is a confirmation itself; confirm s"):
            confirmation_config(store, "s:confirmation")


@pytest.mark.slow
def test_a_killed_confirmation_ends_as_an_undisturbed_one(
    sqlite_url: str, tmp_path: Any, gate: Gate, wait_until: Callable[..., None]
) -> None:
    searched(sqlite_url, tiny(trials=3, epochs=(1, 1, 2), generation=3, env="gated:Gated-v0"))
    with Store(sqlite_url) as store:
        config = confirmation_config(store, "s", top=2, seeds=3)
    undisturbed = run(f"sqlite:///{tmp_path}/undisturbed.db", config)
    assert run_and_be_killed(f"sqlite:///{tmp_path}/killed.db", config, gate, wait_until) == undisturbed
