"""Studies in which nothing was learned are recognized, and sound ones raise no alarm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rekindle
from rekindle import PPO, Store
from rekindle.spaces import unflatten
from rekindle.studies.analysis.cures import cures
from rekindle.studies.analysis.health import diagnose
from rekindle.studies.analysis.importance import Measurements, measurements
from rekindle.studies.analysis.rising import drawn_return, is_early, is_rewarded, risen, too_short
from rekindle.studies.analysis.unlearned import (
    Baselines,
    Signs,
    bar_of,
    is_ahead,
    not_judged,
    nothing_learned,
    together_above,
)
from rekindle.studies.engine.confirmations import confirmation_config, confirmation_name, start_confirmation
from rekindle.studies.engine.probes import FOUND, described
from rekindle.studies.engine.runner import start_study
from rekindle.studies.engine.sizing import Sized
from rekindle.studies.engine.tune_options import study_config
from rekindle.studies.engine.views import FailedProbeView
from rekindle.studies.schedulers.seeds import seeds_of
from rekindle.studies.storage.commands import PROBE, add
from rekindle.studies.storage.rows import Segment, Trial
from rekindle.studies.study.config import SIZED
from rekindle.tasks import load
from rekindle.tasks.checkpoint.storage import Write
from rekindle.tasks.identity import TaskIdentity
from rekindle.tasks.probing import probe
from studying import TINY, tiny

TRIALS, EPOCHS = 16, 27
CHECKS = {"nothing learned", "one learned", "equal", "too short"}


@cache
def baselines(env: str) -> dict[str, Any]:
    """What a real probe of the environment finds."""
    return probe(PPO, TaskIdentity.of(PPO, env, 0, {}))


def diagnosed(
    url: str, env: str, scores: np.ndarray, curve: Callable[[float, np.ndarray], np.ndarray] | None = None, rng: int = 0
) -> dict[str, Any]:
    """The diagnosis of a study with these results after 1 epoch (trials, 2) and after 27, which has a real probe."""
    config = tiny(TRIALS, (1, EPOCHS, EPOCHS), env=env, scheduler="halving", sampler="random", generation=TRIALS)
    random = np.random.default_rng(rng)
    with Store(url) as store:
        start_study(store, "s", config)
        store.database.write(lambda c: add(c, "s", PROBE, {FOUND: baselines(env)}, "probe", ""))
        trials = [Trial(n, f"u{n}", {"gamma": random.uniform(0.9, 0.999)}, {"bracket": 0}) for n in range(len(scores))]
        segments = [
            Segment(n, rung, epochs, "done", float(scores[n, rung]), "d")
            for n in range(len(scores))
            for rung, epochs in enumerate((1, EPOCHS))
        ]
        store.add_rows("s", trials=trials, segments=segments)
        for n in range(len(scores)) if curve else ():
            at = np.arange(1, EPOCHS + 1)
            values = curve(float(scores[n, 1]), at) + 0.01 * abs(scores[n, 1]) * random.normal(size=EPOCHS)
            with store.open(f"u{n}", {"task": "ppo", "number": n}) as lease:
                points = [(int(e), {"episode_return": float(v)}) for e, v in zip(at, values, strict=True)]
                store.save([Write(lease, EPOCHS, metrics=points)])
        return diagnose(store, "s").to_json()


def confirm(url: str, result: float) -> None:
    """Store a confirmation of `diagnosed`'s study whose trainings on fresh seeds have about this result."""
    with Store(url) as store:
        config, name = confirmation_config(store, "s", 1, 3), confirmation_name("s")
        start_confirmation(store, "s", config)
        numbers = range(config.trials[-1] * seeds_of(config))
        trials = [Trial(n, f"fresh{n}", {}, {"seed": n}, "complete") for n in numbers]
        segments = [Segment(n, 0, EPOCHS, "done", result + n % 3, "d") for n in numbers]
        store.add_rows(name, trials=trials, segments=segments)


def checks(diagnosis: dict[str, Any]) -> set[str]:
    return {finding["check"] for finding in diagnosis["findings"]} & CHECKS


def saturating(last: float, at: np.ndarray) -> np.ndarray:
    return last * (1 - np.exp(-at / 4))


# Of 16 trials that learned nothing: results of 20 episodes, as untrained policies get them.
UNLEARNED: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "MountainCar-v0": lambda r: np.full((TRIALS, 2), -200.0),
    "MountainCarContinuous-v0": lambda r: -np.abs(r.normal(0, 1e-3, (TRIALS, 2))) * r.choice([1, 1e4], (TRIALS, 1)),
    "Pendulum-v1": lambda r: r.normal(-1300, 120, (TRIALS, 2)),
    "Acrobot-v1": lambda r: np.full((TRIALS, 2), -500.0),
    "CartPole-v1": lambda r: r.uniform(8, 13, (TRIALS, 2)),
}
LEARNED: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "MountainCar-v0": lambda r: np.stack([np.full(TRIALS, -200.0), r.uniform(-200, -105, TRIALS)], 1),
    "MountainCarContinuous-v0": lambda r: np.stack([r.uniform(-30, 0, TRIALS), r.choice([90, 93, 0], TRIALS)], 1),
    "Pendulum-v1": lambda r: np.stack([r.normal(-1200, 100, TRIALS), r.uniform(-900, -150, TRIALS)], 1),
    "Acrobot-v1": lambda r: np.stack([r.uniform(-500, -200, TRIALS), r.uniform(-120, -75, TRIALS)], 1),
    "CartPole-v1": lambda r: np.stack([r.uniform(20, 200, TRIALS), r.uniform(90, 500, TRIALS)], 1),
}


@pytest.mark.parametrize("env", UNLEARNED)
def test_a_study_that_learned_nothing_is_recognized(tmp_path: Path, env: str) -> None:
    for rng in range(4):
        diagnosis = diagnosed(f"sqlite:///{tmp_path / f'{rng}.db'}", env, UNLEARNED[env](np.random.default_rng(rng)))
        assert checks(diagnosis) == {"nothing learned"}
        assert (diagnosis["unlearned"], diagnosis["importances"]) == (True, [])
        assert not {"no effect", "edge", "first rung"} & {finding["check"] for finding in diagnosis["findings"]}


@pytest.mark.parametrize("env", LEARNED)
def test_a_sound_study_raises_no_alarm(tmp_path: Path, env: str) -> None:
    for rng in range(4):
        scores = LEARNED[env](np.random.default_rng(rng))
        diagnosis = diagnosed(f"sqlite:///{tmp_path / f'{rng}.db'}", env, scores, saturating, rng)
        assert (checks(diagnosis), diagnosis["unlearned"]) == (set(), False)


def seen(**results: Any) -> Any:
    rest = {"zero_rewards": 0.0, "actions": "Discrete", "lengths": [9] * 3, "terminated": 3, "slow": None}
    rest |= {"failures": [], "seed": 0, "steps": 27, "masks": False, "goals": False}
    return described({**rest, **dict.fromkeys(("rewards", "observations", "restore")), **results})


def test_a_result_of_one_episode_and_the_best_untrained_policy_are_no_learning() -> None:
    """Two policies of five return -200 untrained, and an episode in twenty 41."""
    config = study_config(load("ppo"), "CartPole-v1", trials=8, epochs="1:3")
    lucky = seen(random=[-700.0, -710.0, -800.0], untrained=[[-2000.0], [-2000.0], [-200.0], [-1980.0], [-200.0]])
    # Those two show an end, above which random actions' luck (a standard deviation of 55.1) may be.
    assert bar_of(config, lucky, 8) == pytest.approx(-200 + (2.4896 - 1.1290) * 55.08, rel=1e-3)
    pendulum = seen(random=[5.0] * 3, untrained=[[29, 20, 20, 23], [24, 20, 21, 38], [21, 21, 41, 19]])
    low, high = bar_of(config, pendulum, 8), bar_of(config, pendulum, 8, episodes=1)
    assert low is not None
    assert high is not None
    assert low < 38 < high


def test_the_bar_rises_with_the_number_of_results_and_their_errors() -> None:
    """Eight policies of one episode return 10 to 17; the best two differ by 1, and m(8) = 1.3863."""
    config = study_config(load("ppo"), "CartPole-v1", trials=8, epochs="1:3")
    probe = seen(random=[9.0] * 20, untrained=[[float(value)] for value in range(10, 18)])
    for count, z in ((8, 2.4896), (64, 3.1560)):  # normal quantiles of 0.95^(1 / 8) and 0.95^(1 / 64)
        assert bar_of(config, probe, count, 1) == pytest.approx(17 + z - 1.3863, rel=1e-3)
    never = seen(random=[0.0] * 20, untrained=[[0.0] * 5] * 8)  # a success in 50 episodes is easily missed
    assert bar_of(config, never, 8, 7) == 0
    rare = bar_of(config, never, 8, 7, 1 / 7)
    assert rare is not None
    assert 1 / 7 < rare < 3 / 7


def test_a_short_study_whose_returns_rise_is_told_that_it_is_too_early_to_say() -> None:
    config = study_config(load("ppo"), "CartPole-v1", trials=8, epochs="1:3")
    trials = [Trial(n, f"u{n}", {}) for n in range(5)]
    noise = np.random.default_rng(0).normal(0, 3, (5, 3))

    def early(rise: float, count: int = 5) -> bool:
        curves = {
            f"u{n}": [(epoch, {"episode_return": 20 + rise * epoch + noise[n, epoch]}) for epoch in range(3)]
            for n in range(count)
        }
        return is_early(config, trials, [0], curves)

    assert early(10)
    assert not early(0)
    assert not early(-10)
    assert not early(10, count=3)  # too few trials
    probe = seen(random=[20.0] * 3, untrained=[[9.0], [12.0], [9.0]])
    finding = nothing_learned(config, results_of(8), 20.0, probe, Signs(early=True))
    [(check, text, cure)] = [(row.check, row.text, row.cure) for row in finding]
    assert check == "too early"
    assert text == (
        "it is too early to say whether anything is learned: none of 8 trials is better than an untrained policy "
        "beyond chance: the best has 9.00 (20.00 for random actions, 12.00 for the best of 3 untrained policies), but "
        "returns still rise"
    )
    assert cure == "train longer (--epochs 1:9)"


def test_a_training_whose_drawn_actions_have_learned_is_told_that_greedy_ones_may_get_stuck() -> None:
    config = study_config(load("ppo"), "CartPole-v1", trials=8, epochs="1:9")
    trials = [Trial(n, f"u{n}", {}) for n in range(4)]

    def curves(*rises: float) -> dict[str, Any]:
        return {f"u{n}": [(e, {"episode_return": rise * e}) for e in range(9)] for n, rise in enumerate(rises)}

    rising = curves(0.01, 0.02, 0.03, 0.04)
    drawn = drawn_return(trials, rising)
    assert drawn == pytest.approx(0.04 * (6 + 7 + 8) / 3)
    assert drawn_return(trials, curves(0.01, -0.02, 0.03, -0.04)) is None  # by chance
    assert drawn_return(trials[:3], rising) is None  # too few trainings
    assert is_rewarded(rising)
    assert not is_rewarded(curves(0.0, 0.0))
    probe = seen(random=[0.0] * 3, untrained=[[0.0], [0.0]], zero_rewards=1.0)
    nothing = results_of(8)
    nothing.scores[:] = 0.0
    [finding] = nothing_learned(config, nothing, 0.0, probe, Signs(drawn=drawn, rewarded=True))
    assert (finding.check, finding.text) == (
        "nothing learned",
        "none of 8 trials is better than an untrained policy beyond chance: the best has 0.0 (0.0 for random actions, "
        "0.0 for the best of 2 untrained policies), but a training's own last episodes, whose actions are drawn, "
        "return 0.280",
    )
    assert finding.cure == (
        "compare and use policies by drawn actions, since greedy ones may get stuck (--objective return_stochastic; "
        "rekindle evaluate --stochastic), or train longer (--epochs 1:27)"
    )
    [finding] = nothing_learned(config, nothing, 0.5, probe, Signs(drawn=drawn, rewarded=True))  # no better than luck
    assert "drawn" not in finding.text
    assert "gives rewards" not in finding.cure


def test_a_best_result_clearly_above_all_baselines_is_too_early_to_judge() -> None:
    """Untrained policies differ so much that the best of eight may be as good by luck."""
    config = study_config(load("ppo"), "CartPole-v1", trials=8, epochs="1:3")
    untrained = [[mean - 0.2, mean + 0.2] for mean in (-9.9, -16.0, -19.0, -22.0, -30.0, -33.0, -35.0, -40.0)]
    probe = seen(random=[-10.4, -10.0] * 10, untrained=untrained)
    bar = bar_of(config, probe, 8)
    assert bar is not None
    assert bar > -5.4
    assert is_ahead(probe, -5.4, 8)
    results = replace(results_of(8), scores=np.array([-5.4] + [-20.0] * 7))
    [finding] = nothing_learned(config, results, bar, probe, Signs(ahead=True))
    assert (finding.check, finding.text) == (
        "too early",
        "it is too early to say whether anything is learned: none of 8 trials is better than an untrained policy "
        "beyond chance: the best has -5.40 (-10.20 for random actions, -9.90 for the best of 8 untrained policies), "
        "but that is clearly more than all of these",
    )
    assert finding.cure == (
        "train longer (--epochs 1:9), try more configurations (--trials 16), or measure the best ones on fresh seeds "
        "(rekindle confirm STUDY)"
    )


def test_a_best_result_that_episodes_or_random_actions_explain_is_not_ahead() -> None:
    """The best of eight equal results is seldom above them by 2.4896 standard errors."""
    untrained, equal = [[-9.9 - 0.2, -9.9 + 0.2], [-20.0, -21.0]], [-10.4, -10.0] * 10
    margin = 2.4896 * 0.5  # of two episodes of the second policy
    assert is_ahead(seen(random=equal, untrained=untrained), -9.9 + margin + 0.01, 8)
    assert not is_ahead(seen(random=equal, untrained=untrained), -9.9 + margin - 0.01, 8)
    assert not is_ahead(seen(random=equal, untrained=untrained), -9.9 + margin + 0.01, 16)
    assert not is_ahead(
        seen(random=[-10.4, -7.9], untrained=[[-10.0], [-20.0]]), -8.0, 8
    )  # below one of random actions
    assert not is_ahead(seen(random=[-7.9] * 20, untrained=untrained), -8.0, 8)
    assert not is_ahead(seen(random=equal, untrained=untrained), -8.0, 8, 20, 1.0)
    assert not is_ahead(seen(random=equal, untrained=[]), -8.0, 8)
    assert not is_ahead(None, -8.0, 8)


def test_fresh_seeds_above_all_untrained_policies_show_that_something_was_learned(tmp_path: Path) -> None:
    """The bar for the best of many results is far above untrained policies, but these seeds are not chosen."""
    view = described(baselines("Pendulum-v1"))
    level, bar = Baselines.of(view).level, bar_of(tiny(), view, 2 * TRIALS)
    assert bar is not None
    scores = np.linspace(level - 90, (level + bar) / 2, 2 * TRIALS).reshape(2, TRIALS).T
    for fresh, told in ((level - 5, True), ((level + bar) / 2, False)):
        url = f"sqlite:///{tmp_path / f'{told}.db'}"
        assert "nothing learned" in checks(diagnosed(url, "Pendulum-v1", scores))
        confirm(url, fresh)
        with Store(url) as store:
            assert ("nothing learned" in checks(diagnose(store, "s").to_json())) is told


def test_a_study_whose_probe_has_too_few_episodes_is_told_that_it_is_not_judged() -> None:
    """An episode of 5,000 steps takes half of the longest probe."""
    config = study_config(load("ppo"), "CartPole-v1", trials=8, epochs="1:3")
    probe = seen(random=[3.0], untrained=[[5.0]], lengths=[5000, 5000], steps=10_000)
    assert bar_of(config, probe, 8) is None
    [finding] = not_judged(config, results_of(8), probe)
    assert (finding.check, finding.cure) == (
        "not judged",
        "compare with a longer probe (rekindle probe ENV --steps 200000)",
    )
    assert finding.text == (
        "whether trials are better than an untrained policy is not judged: 3 episodes are needed, by random actions "
        "and different untrained policies, but the 10,000 steps of the probe ended 1 by random actions and 1 by "
        "untrained policies"
    )
    endless = seen(random=[], untrained=[], lengths=[], steps=10_000)
    assert next(not_judged(config, results_of(8), endless)).cure.endswith("--steps 100000)")
    failed = FailedProbeView(baselines={}, text="it could not be probed: no license", warnings=[])
    [finding] = not_judged(config, results_of(8), failed)
    assert finding.text.endswith("is not judged: it could not be probed: no license")
    assert not [*not_judged(config, results_of(7), probe)]  # too few trials to be judged anyway
    assert not [*not_judged(config, results_of(8), None)]  # no probe was asked for
    assert not [*not_judged(config, results_of(8), seen(random=[3.0, 3.0], untrained=[[5.0]]))]
    other = study_config(load("ppo"), "CartPole-v1", trials=8, epochs="1:3", objective=["return_median"])
    assert not [*not_judged(other, results_of(8), probe)]


def test_diagnose_tells_that_a_study_is_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = {**baselines("CartPole-v1"), "random": [20.0], "untrained": [[9.0]], "lengths": [5000, 5000]}
    monkeypatch.setitem(globals(), "baselines", lambda env: results)
    diagnosis = diagnosed(
        f"sqlite:///{tmp_path / 's.db'}", "CartPole-v1", LEARNED["CartPole-v1"](np.random.default_rng(0))
    )
    assert "not judged" in {finding["check"] for finding in diagnosis["findings"]}


def results_of(count: int, score: float = 9.0) -> Measurements:
    """Equal results of so many configurations on one rung."""
    config = tiny(count, (1, 3, 3))
    trials = [Trial(n, f"u{n}", {"gamma": 0.9}, {"bracket": 0}) for n in range(count)]
    return measurements(config, trials, [Segment(n, 1, 3, "done", score, "d") for n in range(count)])


def test_a_training_that_rises_above_untrained_policies_is_no_false_alarm() -> None:
    probe = seen(random=[-200.0, -580.0, -428.0], untrained=[[-640.0, -407.0], [-230.0, 23.0], [-331.0, -211.0]])
    noise = np.random.default_rng(0).normal(0, 20, 27)

    def curve(returns: np.ndarray) -> dict[str, Any]:
        return {"u": [(epoch, {"episode_return": value}) for epoch, value in enumerate(returns.tolist(), 1)]}

    trials = [Trial(7, "u", {})]
    assert risen(probe, trials, curve(np.linspace(-300, 150, 27) + noise)) == {7}
    assert not risen(probe, trials, curve(np.full(27, 150.0) + noise))  # it has not risen
    assert not risen(probe, trials, curve(np.linspace(-500, -300, 27) + noise))  # it is not above
    assert not risen(probe, trials, curve(np.linspace(-300, 150, 9)))  # too few epochs
    assert not risen(None, trials, curve(np.linspace(-300, 150, 27)))


def test_trials_that_all_return_as_much_as_one_lucky_policy_have_learned() -> None:
    """In a corridor with a goal, an untrained policy in three walks there by luck, and no policy can be better."""
    config = study_config(load("ppo"), "CartPole-v1", trials=8, epochs="1:3")
    untrained = [[-5.0, 0.3, 0.2], [-5.0, 0.2, 0.3], [-5.0, 0.3, 0.3], *[[-5.0] * 3] * 5]
    probe = seen(random=[-5.0] * 14 + [-0.5] * 6, untrained=untrained)
    bar = bar_of(config, probe, 8)
    assert bar is not None
    assert bar > 0.29  # no single result tells
    equal = results_of(8, 0.29)
    assert together_above(probe, equal) == {*range(8)}
    [finding] = nothing_learned(config, equal, bar, probe, Signs(together_above(probe, equal)))
    assert finding.check == "equal"
    mixed = replace(equal, scores=np.array([0.29, 0.2] + [-5.0] * 6))
    assert not together_above(probe, mixed)  # two of eight reach the goal, as by luck
    assert not together_above(probe, results_of(7, 0.29))  # too few
    lucky = seen(random=probe.random, untrained=[[0.3] * 3] * 5 + [[-5.0] * 3] * 3)
    assert not together_above(lucky, equal)  # most untrained policies are as good
    assert not together_above(seen(random=[0.3] * 20, untrained=[[-5.0] * 3] * 8), equal)  # so are random actions


def test_the_last_result_of_each_configuration_tells_what_all_have_learned() -> None:
    results = results_of(8, 9.0)
    both = Measurements(
        (),
        (),
        (),
        np.r_[results.scores, results.scores - 9],
        np.r_[results.numbers, results.numbers],
        np.repeat([1, 0], 8),
    )
    probe = seen(random=[0.0, 1.0] * 5, untrained=[[0.0], [1.0]] * 4)
    assert together_above(probe, both) == {*range(8)}
    assert not together_above(probe, replace(both, rungs=1 - both.rungs))


@pytest.mark.parametrize("rng", range(4))
def test_only_one_trial_that_learned_and_results_that_still_rise_are_recognized(tmp_path: Path, rng: int) -> None:
    random, url = np.random.default_rng(rng), f"sqlite:///{tmp_path / 's.db'}"
    env = list(UNLEARNED)[rng]
    scores = UNLEARNED[env](random)
    scores[5] = {"MountainCar-v0": -110, "MountainCarContinuous-v0": 93, "Pendulum-v1": -150, "Acrobot-v1": -80}[env]
    diagnosis = diagnosed(url, env, scores)
    [one] = [finding for finding in diagnosis["findings"] if finding["check"] == "one learned"]
    assert one["text"].startswith("only trial 5 of 16 learned anything: it has ")
    rising = diagnosed(
        f"sqlite:///{tmp_path / 't.db'}", "CartPole-v1", LEARNED["CartPole-v1"](random), lambda last, at: last * at / 27
    )
    [short] = [finding for finding in rising["findings"] if finding["check"] in CHECKS]
    assert short["text"] == "results still rise when training ends, in 16 of 16 trials that trained to epoch 27"
    assert short["cure"].startswith("train longer (rekindle extend STUDY --epochs 81")


def test_equal_results_above_the_baselines_are_told(tmp_path: Path) -> None:
    diagnosis = diagnosed(f"sqlite:///{tmp_path / 's.db'}", "CartPole-v1", np.full((TRIALS, 2), 500.0))
    [equal] = diagnosis["findings"]
    assert equal["text"] == "all results on each rung are equal, at best 500.0"
    assert equal["cure"] == "train for fewer epochs (--epochs), or compare by another --objective"


def test_the_cure_fits_the_environment_and_the_end_of_tune_tells_it(
    tmp_path: Path, cli: Callable[..., tuple[int, str, str]]
) -> None:
    storage = ("--storage", f"sqlite:///{tmp_path / 's.db'}")
    fixed = {**TINY, "use_sde": False, "normalize_obs": False}
    search: dict[str, Any] = {"study": "s", "trials": 8, "epochs": 1, "fixed": unflatten(fixed)}
    study = rekindle.tune("ppo", "MountainCarContinuous-v0", storage=storage[1], progress=False, **search)
    assert study.answer(tmp_path / "agent.safetensors").startswith("Nothing was learned: none of 8 trials is better")
    options = ["--trials=8", "--epochs=1", *(f"--set={name}={value}" for name, value in fixed.items())]
    output = " ".join(cli("tune", "ppo", "MountainCarContinuous-v0", "--study", "s", *options, *storage)[1].split())
    assert "nothing learned: none of 8 trials is better than an untrained policy beyond chance: the best has" in output
    assert (
        "cure: explore more (--set use_sde=true), scale observations (--set normalize_obs=true), train longer" in output
    )
    assert "try another algorithm (rekindle tune sac ...), or give it a memory, if earlier observations" in output
    said = " ".join(cli("diagnose", "s", *storage)[1].split())
    assert "importances need results that are better than those of an untrained policy, beyond chance" in said
    few = ["--trials=2", *options[1:]]
    assert cli("tune", "ppo", "MountainCarContinuous-v0", "--study", "few", *few, *storage)[0] == 0
    said = " ".join(cli("diagnose", "few", *storage)[1].split())
    assert "importances need 8 configurations with results, but there are 2" in said
    assert "no defects were found in this study, but whether its trials learned anything takes 8 configurations" in said


def test_a_study_in_an_environment_without_rewards_or_with_equal_observations_is_told_to_check_these() -> None:
    results: dict[str, Any] = {"random": [0.0] * 3, "untrained": [], "zero_rewards": 1.0}
    config = study_config(load("auto"), "CartPole-v1", trials=8, epochs="1:9")
    longer = "train longer (--epochs 1:27)"
    rewards = "make sure that the environment gives rewards: a probe saw only zeros"
    assert cures(config, seen(**results)) == f"{rewards}, or {longer}"
    assert cures(config, seen(**results), rewarded=True) == longer
    results["observations"] = {"low": 0.0, "high": 0.0, "mean": 1.0, "drift": 0.0}
    assert cures(config, seen(**results)) == (
        f"{rewards}, make sure that observations differ: a probe saw only equal ones, or {longer}"
    )


def test_a_cure_is_hindsight_where_observations_have_goals() -> None:
    def cure(task: str, goals: bool = True, **options: Any) -> str:
        some: dict[str, Any] = {"random": [-50.0] * 3, "untrained": [], "actions": "Box", "goals": goals}
        config = study_config(load(task), "Pendulum-v1", trials=8, epochs="1:9", **options)
        return cures(config, seen(**some | {"zero_rewards": 0.0}))

    assert "learn from goals that were achieved (--set replay.relabel=future), " in cure("sac")
    assert "replay.relabel" not in cure("sac", goals=False)
    assert "replay.relabel" not in cure("sac", fixed={"replay": {"relabel": "future"}})
    assert "try another algorithm (rekindle tune sac ... --set replay.relabel=future)" in cure("ppo")
    assert "try another algorithm (rekindle tune sac ...)" in cure("ppo", goals=False)


def test_a_cure_is_a_memory_of_a_policy_that_has_none() -> None:
    some: dict[str, Any] = {"random": [0.0, 1.0], "untrained": [], "zero_rewards": 0.9, "actions": "Discrete"}

    def cure(task: str, **fixed: Any) -> str:
        config = study_config(load(task), "CartPole-v1", fixed=fixed, trials=8, epochs="1:9")
        return cures(config, seen(**some)).partition(", or give it a memory, if earlier observations matter ")[2]

    assert cure("ppo") == cure("dqn") == "(--set model.memory=lstm)"
    assert cure("auto") == "(--set algorithm=ppo --set ppo.model.memory=lstm)"
    assert cure("auto", algorithm="dqn") == "(--set algorithm=dqn --set dqn.model.memory=lstm)"
    assert cure("ppo", model={"memory": "gru"}) == cure("ars") == ""


def test_the_cure_of_returns_that_never_differ_is_curiosity_and_that_of_a_budget_a_larger_one() -> None:
    config = study_config(load("dqn"), "MountainCar-v0", trials=8, epochs="1:9")
    alike: dict[str, Any] = {"random": [-200.0] * 5, "untrained": [], "zero_rewards": 0.0, "actions": "Discrete"}
    assert cures(config, seen(**alike)).startswith(
        "explore more (--set rnd.use=true --set n_step=1), train longer (--epochs 1:27)"
    )
    sized = replace(config, options={**config.options, SIZED: Sized(90.0, {"dqn": 1e-4}).to_json()})
    other = "try another algorithm (rekindle tune ppo ...)"
    memory = "or give it a memory, if earlier observations matter (--set model.memory=lstm)"
    assert cures(sized, seen(**alike | {"random": [-200.0, -150.0, -9.0]})) == (
        f"train longer (--budget 4.5m for a new study), {other}, {memory}"
    )


def test_results_of_a_budget_that_still_rise_want_a_larger_budget() -> None:
    config = study_config(load("ppo"), "CartPole-v1", trials=8, epochs="1:27")
    sized = replace(config, options={**config.options, SIZED: Sized(90.0, {"ppo": 1e-4}).to_json()})
    curve = [(epoch, {"return": float(epoch)}) for epoch in range(1, 28)]
    for of_study, option in ((config, "--epochs 1:81"), (sized, "--budget 4.5m")):
        [short] = too_short(of_study, [Trial(0, "u", {})], [0], {"u": curve})
        assert short.cure == f"train longer (rekindle extend STUDY --epochs 81, or {option} for a new study)"
