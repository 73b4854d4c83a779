"""Studies that are accepted can be run: every prior with every sampler, scheduler and extension, planned to the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest
import rekindle
from optuna.distributions import check_distribution_compatibility
from rekindle.spaces import SpaceError, flatten
from rekindle.studies.engine.optuna_mirror import frozen
from rekindle.studies.engine.tune_options import study_config
from rekindle.studies.errors import CommandRefused
from rekindle.studies.methods import SAMPLERS
from rekindle.studies.samplers.registry import check_exhausted, check_sampler
from rekindle.studies.samplers.suggest import suggest
from rekindle.studies.schedulers.registry import plan
from rekindle.studies.steering.extensions import lengthened, with_changed_priors
from rekindle.studies.storage.rows import Segment, Trial
from rekindle.studies.study.config import BadConfig, Config
from rekindle.studies.study.searched import known_values
from rekindle.tasks import load

SURROGATE = load("surrogate")
SCHEDULERS = ("adaptive", "halving", "asha", "hyperband", "none")
PRIORS: tuple[Mapping[str, str], ...] = (
    {},
    {"lr": "uniform(1e-4, 1e-2)"},
    {"lr": "uniform(0.01, 0.1, step=0.03)", "gamma": "choices([0.9, 0.99])"},
    {"lr": "ordinal([1e-3, 1e-2, 1e-1])", "gamma": "ordinal([0.9, 0.99])"},
    {"lr": "normal(0.01, 0.001)"},
    {"lr": "lognormal(-5, 0.1)"},
    {"width": "choices({16: 0.7, 32: 0.3})"},
    {"width": "choices([16, 64])", "lr": "choices([1e-3, 1e-2])", "gamma": "ordinal([0.9, 0.99, 0.999])"},
    {"epoch_steps": "uniform(1, 1000000000, discrete=True)", "lr": "choices([1e-3])", "gamma": "choices([0.9])"},
    {"epoch_steps": "loguniform(1, 64, discrete=True)", "lr": "choices([1e-3])", "gamma": "choices([0.9])"},
)
CHANGES: tuple[Mapping[str, str], ...] = (
    {"width": "ordinal([64, 128])"},
    {"width": "uniform(16, 32, step=16, discrete=True)"},
    {"lr": "loguniform(1e-3, 1e-2)"},
    {"lr": "ordinal([1e-3, 1e-2])"},
    {"lr": "lognormal(-5, 0.1)"},
    {"gamma": "choices([0.9, 0.99])"},
    {"epoch_steps": "uniform(1, 1000000000, discrete=True)"},
)
Rows = tuple[dict[int, Trial], dict[tuple[int, int], Segment]]


def run(config: Config, rows: Rows, enqueued: Mapping[int, Mapping[str, Any]] | None = None) -> None:
    """Plan a study to its end, with results as soon as they are asked for."""
    trials, segments = rows
    while not (step := plan(config, trials.values(), segments.values())).complete:
        for number, state in step.finished:
            trials[number] = replace(trials[number], state=state)
        if step.ask is not None:
            made = suggest(config, trials.values(), step, segments=segments.values(), enqueued=enqueued or {})
            for number, values in zip(step.ask, made, strict=True):
                config.searched.validate(values)
                trials[number] = Trial(number, f"u{number}", flatten(values), {"bracket": step.bracket})
            segments |= {(n, step.rung): Segment(n, step.rung, config.rungs[step.rung]) for n in step.ask}
        segments |= {(row.number, row.rung): row for row in step.segments}
        for key, row in segments.items():
            if row.state == "ready":
                segments[key] = replace(row, state="done", score=float(row.number * 7919 % 101))


def is_accepted(make: Callable[[], Config]) -> Config | None:
    try:
        return make()
    except (BadConfig, SpaceError, CommandRefused):
        return None


def extensions(config: Config) -> list[Callable[[], Config]]:
    """Return functions that extend a study, or refuse."""

    def more() -> Config:
        longer = replace(config, trials=[*config.trials, config.trials[-1] + 2])
        check_sampler(longer)
        check_exhausted(longer)
        return longer

    def changing(priors: Mapping[str, str]) -> Callable[[], Config]:
        def change() -> Config:
            changed = with_changed_priors(config, "s", priors, config.trials[-1])
            return replace(changed, trials=[*config.trials, config.trials[-1] + 3])

        return change

    return [more, lambda: lengthened(config, "s", 27), *map(changing, CHANGES)]


def assert_copied(config: Config, trials: Mapping[int, Trial]) -> None:
    """Check that Optuna's tables would take all trials."""
    made = [frozen(config, (trial, [], {}), None) for trial in trials.values()]
    for first, second in pairwise(made):
        for name in first.distributions.keys() & second.distributions.keys():
            check_distribution_compatibility(first.distributions[name], second.distributions[name])


@pytest.mark.parametrize("several", [1, pytest.param(len(SCHEDULERS), marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "sampler", [pytest.param(name, marks=pytest.mark.slow if name == "gp" else ()) for name in sorted(SAMPLERS)]
)
def test_an_accepted_study_can_be_run(sampler: str, several: int) -> None:
    """Run with one scheduler for each prior, or with all of them."""
    accepted, offset = 0, sorted(SAMPLERS).index(sampler)
    for (turn, priors), more in product(enumerate(PRIORS, offset), range(several)):
        scheduler = SCHEDULERS[(turn + more) % len(SCHEDULERS)]
        options = {"scheduler": scheduler, "sampler": sampler, "priors": priors, "generation": 2}
        epochs = 9 if scheduler == "none" else (1, 9, 3)
        config = is_accepted(lambda: study_config(SURROGATE, None, trials=3, epochs=epochs, **options))  # noqa: B023
        if config is None:
            continue
        rows: Rows = ({}, {})
        run(config, rows)
        assert len(rows[0]) == 3
        for extend in extensions(config):
            if (extended := is_accepted(extend)) is not None:
                trials, segments = {**rows[0]}, {**rows[1]}
                if "longer" in extended.options:  # an extension to more epochs reopens them
                    done = [row for row in trials.values() if row.state == "complete"]
                    trials |= {row.number: replace(row, state="running") for row in done}
                enqueued = {}
                if SAMPLERS[sampler].defaults and extended.trials[-1] > 3:
                    enqueued = {extended.trials[-1] - 1: known_values(extended, SURROGATE, {})}
                run(extended, (trials, segments), enqueued)
                assert len(trials) == extended.trials[-1]
                assert_copied(extended, trials)
                accepted += 1
    assert accepted >= 4 * several


@pytest.mark.parametrize("prior", ["lognormal(-5, 1)", "normal(0.01, 0.001)"])
def test_a_prior_that_no_sampler_draws_is_refused_at_once(prior: str) -> None:
    for sampler in ("tpe", "random"):
        with pytest.raises(BadConfig, match=r"those that Optuna has, but lr: Optuna cannot express .*; write a range"):
            study_config(SURROGATE, None, trials=3, epochs=3, sampler=sampler, priors={"lr": prior})
    config = study_config(SURROGATE, None, trials=3, epochs=3)
    with pytest.raises(BadConfig, match="Optuna cannot express"):
        with_changed_priors(config, "s", {"lr": prior}, 3)


def test_a_study_in_which_nothing_trains_to_the_end_says_so(cli: Callable[..., Any], sqlite_url: str) -> None:
    words = ["tune", "surrogate", "--scheduler", "asha", "--trials", "8", "--epochs", "1:9", "--storage", sqlite_url]
    why = r"promotes one of 3 trials of a rung, so of 8 trials none trains for more than 3 of 9 epochs; take 9 trials"
    status, _, errors = cli(*words, "--confirm", "3", "--workers", "1")
    assert status == 2
    assert "a confirmation takes trials that have trained to the end, but asha" in errors
    with pytest.warns(UserWarning, match=why):
        rekindle.tune("surrogate", trials=8, epochs=(1, 9), scheduler="asha", storage=sqlite_url, progress=False)
    assert why.removeprefix("promotes") in cli(*words, "--workers", "1")[2]
    rekindle.tune("surrogate", trials=9, epochs=(1, 9), scheduler="asha", storage=sqlite_url, progress=False)


def test_a_range_that_would_fill_the_memory_is_refused() -> None:
    priors = {"epoch_steps": "uniform(1, 1000000000, discrete=True)"}
    with pytest.raises(BadConfig, match=r"gp holds all values .* epoch_steps has 1,000,000,000; narrow it"):
        study_config(SURROGATE, None, trials=3, epochs=9, sampler="gp", scheduler="none", priors=priors)
