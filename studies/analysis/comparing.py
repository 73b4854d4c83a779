"""Comparisons of studies and other runs, with intervals.

Each side has a label, and runs in the same environments. The statistics are those of Agarwal et al. (2021),
arXiv:2108.13264, with stratified bootstrap intervals over runs; those of probabilities are wider near 0 and 1. Results
in several environments are first put on one scale: 0 and 1 are the ends that the user names, or else the worst and the
best run of any side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Annotated

import numpy as np

from ..engine.views import View
from ..statistics.aggregates import Floats, iqm, mean, median, optimality_gap, performance_profile
from ..statistics.estimates import FEWEST, Interval
from ..statistics.intervals import ENOUGH, coverage, improvement_interval, interval, resamples
from ..study.objectives import MINIMIZE
from .sources import BadSource, Runs, common_objective, read_runs

if TYPE_CHECKING:
    from ..storage.store import Store

Scale = tuple[float, float]  # the results that count as 0 and as 1
POINTS = 21  # of a performance profile
PROFILE_REPETITIONS = 500
UNNAMED = "-"  # the environment of files that name none


class ScaleView(View):
    """An environment of a comparison."""

    env: Annotated[str, "name"]
    scale: Annotated[Scale | None, "results that count as 0 and as 1; null for results as measured"]


class LeftOutView(View):
    """An environment that not all sides have."""

    label: Annotated[str, "side that has it"]
    env: Annotated[str, "name"]


class SourceView(View):
    """Runs of a study or a file."""

    source: Annotated[str, "study or file"]
    env: Annotated[str | None, "environment"]
    kind: Annotated[str, "confirmed, selected or file"]
    epochs: Annotated[int | None, "epochs of each run"]
    env_steps: Annotated[int | None, "environment steps of a run in a file"]
    shared_error: Annotated[float | None, "standard error of returns over episodes that all runs share, if known"]
    results: Annotated[Sequence[float], "result of each run"]


class SideView(View):
    """A side of a comparison."""

    label: Annotated[str, "name"]
    sources: Annotated[Sequence[SourceView], "sources of its runs"]
    runs: Annotated[int, "number of runs in each environment"]
    coverage: Annotated[
        Mapping[str, Sequence[float]] | None,
        "least and greatest share of such intervals that contained the truth in simulations, of the iqm and the mean; "
        "null from ten runs on",
    ]
    iqm: Annotated[Interval, "interquartile mean"]
    median: Annotated[Interval, "median over environments"]
    mean: Annotated[Interval, "mean"]
    optimality_gap: Annotated[Interval | None, "optimality gap, with --scale"] = None


class BetterView(View):
    """Probability that one side's runs are better than another's."""

    better: Annotated[str, "the one side"]
    than: Annotated[str, "the other"]
    estimate: Annotated[float, "probability"]
    low: Annotated[float, "lower end of the 95% interval"]
    high: Annotated[float, "upper end"]


class ProfileView(View):
    """Performance profile of a side."""

    fraction: Annotated[Sequence[float], "fraction of runs above each threshold"]
    low: Annotated[Sequence[float], "lower ends of the 95% band"]
    high: Annotated[Sequence[float], "upper ends"]


class ProfilesView(View):
    """Performance profiles of all sides."""

    thresholds: Annotated[Sequence[float], "thresholds"]
    sides: Annotated[Mapping[str, ProfileView], "profiles by side"]


class ComparisonView(View):
    """Comparison of several sides."""

    objective: Annotated[str, "name of the objective"]
    direction: Annotated[str, "maximize or minimize"]
    environments: Annotated[Sequence[ScaleView], "environments of all sides"]
    scale: Annotated[str | None, "given or observed; null for results as measured"]
    left_out: Annotated[Sequence[LeftOutView], "environments that other sides lack"]
    sides: Annotated[Sequence[SideView], "sides"]
    pairs: Annotated[Sequence[BetterView], "comparisons of each side with each later one"]
    profiles: Annotated[ProfilesView, "performance profiles"]


def compare(store: Store | None, sources: Sequence[str], scales: Mapping[str, Scale] | None = None) -> ComparisonView:
    """Return the comparison of several sides.

    Args:
        store: store of the studies; None if all sources are files.
        sources: sources of runs, as the module `sources` describes them.
        scales: the results that count as 0 and as 1, by environment.

    Raises:
        BadSource: the sources cannot be compared.
    """
    runs = _with_environments(read_runs(store, sources))
    objective, direction = common_objective(runs)
    sides = _sides(runs)
    environments = _common(sides)
    used = _scales(sides, environments, scales or {}, direction)
    scores = {label: _matrix(label, by_env, environments, used, direction) for label, by_env in sides.items()}
    scaled = len(environments) > 1 or bool(scales)
    aggregates: dict[str, Callable[..., Floats]] = {"iqm": iqm, "median": median, "mean": mean}
    if scales:
        aggregates["optimality_gap"] = optimality_gap
    sign = -1 if direction == MINIMIZE and not scaled else 1
    return ComparisonView(
        objective=objective,
        direction=direction,
        environments=[ScaleView(env=env, scale=used[env] if scaled else None) for env in environments],
        scale=None if not scaled else "given" if scales else "observed",
        left_out=[
            LeftOutView(label=label, env=env)
            for label, by_env in sides.items()
            for env in by_env
            if env not in environments
        ],
        sides=[
            SideView(
                label=label,
                sources=[_source(run) for run in runs if run.label == label and run.env in environments],
                runs=len(matrix),
                coverage=coverage(*matrix.shape) if len(matrix) < ENOUGH else None,
                **{name: _signed(interval(how, matrix), sign) for name, how in aggregates.items()},
            )
            for label, matrix in scores.items()
        ],
        pairs=[
            BetterView(better=one, than=other, **improvement_interval(scores[one], scores[other])._asdict())
            for one, other in combinations(scores, 2)
        ],
        profiles=_profiles(scores, sign),
    )


def _with_environments(runs: Sequence[Runs]) -> list[Runs]:
    """Return the runs, each with its environment, which files may leave out.

    Raises:
        BadSource: a file leaves it out, and several are possible.
    """
    names = sorted({run.env for run in runs if run.env is not None})
    for run in runs:
        if run.env is None and len(names) > 1:
            raise BadSource(
                f"{run.source} names no environment, but other sources have {', '.join(names)}; write LABEL@ENV=FILE"
            )
    only = names[0] if names else UNNAMED
    return [run if run.env is not None else Runs(**{**vars(run), "env": only}) for run in runs]


def _sides(runs: Iterable[Runs]) -> dict[str, dict[str, list[float]]]:
    """Return the results by label and environment."""
    sides: dict[str, dict[str, list[float]]] = {}
    studied: dict[tuple[str, str], str] = {}
    for run in runs:
        env = str(run.env)
        if run.objective is not None and studied.setdefault((run.label, env), run.source) != run.source:
            raise BadSource(
                f"a side has one study in an environment, but {run.label!r} has {studied[run.label, env]} and "
                f"{run.source} in {env}; give them labels of their own"
            )
        sides.setdefault(run.label, {}).setdefault(env, []).extend(run.results)
    if len(sides) < 2:
        raise BadSource(f"a comparison has at least two sides, but got only {next(iter(sides), 'none')}; add a study")
    return sides


def _common(sides: Mapping[str, Mapping[str, Sequence[float]]]) -> list[str]:
    """Return the environments that all sides share, in the first side's order."""
    first, *others = sides.values()
    environments = [env for env in first if all(env in other for other in others)]
    if not environments:
        text = "; ".join(f"{label} has {', '.join(by_env)}" for label, by_env in sides.items())
        raise BadSource(
            f"sides need a common environment, but {text}; to join several studies into one side, write "
            "LABEL=STUDY LABEL=STUDY"
        )
    return environments


def _scales(
    sides: Mapping[str, Mapping[str, Sequence[float]]],
    environments: Sequence[str],
    chosen: Mapping[str, Scale],
    direction: str,
) -> dict[str, Scale]:
    """Return the results that count as 0 and 1 in each environment."""
    for env, (zero, one) in chosen.items():
        if env not in environments:
            raise BadSource(f"--scale takes an environment of all sides, {', '.join(environments)}, but got {env!r}")
        if (one < zero) != (direction == MINIMIZE) or one == zero:
            raise BadSource(
                f"--scale names the worse end first, but the objective is {direction}d and {env} has {zero:g}:{one:g}"
            )
    if chosen and (missing := [env for env in environments if env not in chosen]):
        raise BadSource(f"--scale is given for each environment or for none, but {', '.join(missing)} has none; add it")
    if chosen:
        return dict(chosen)
    scales = {}
    for env in environments:
        values = [value for by_env in sides.values() for value in by_env[env]]
        worst, best = min(values), max(values)
        if direction == MINIMIZE:
            worst, best = best, worst
        scales[env] = (worst, best if best != worst else worst + (-1.0 if direction == MINIMIZE else 1.0))
    return scales if len(environments) > 1 else {environments[0]: (0.0, -1.0 if direction == MINIMIZE else 1.0)}


def _matrix(
    label: str,
    by_env: Mapping[str, Sequence[float]],
    environments: Sequence[str],
    scales: Mapping[str, Scale],
    direction: str,
) -> Floats:
    """Return scores (runs, environments); higher is better.

    If environments have different numbers of runs, the surplus runs are left out.
    """
    runs = min(len(by_env[env]) for env in environments)
    if runs < FEWEST:
        env = min(environments, key=lambda name: len(by_env[name]))
        within = "" if env == UNNAMED else f" in {env}"
        raise BadSource(
            f"an interval needs at least {FEWEST} runs, but {label} has {runs}{within}; train more seeds, and give "
            f"each file the same label"
        )
    columns = []
    for env in environments:
        zero, one = scales[env]
        columns.append((np.asarray(by_env[env][:runs], float) - zero) / (one - zero))
    return np.stack(columns, 1)


def _source(runs: Runs) -> SourceView:
    return SourceView(
        source=runs.source,
        env=runs.env,
        kind=runs.origin,
        epochs=runs.epochs,
        env_steps=runs.env_steps,
        shared_error=runs.shared_error,
        results=list(runs.results),
    )


def _signed(difference: Interval, sign: int) -> Interval:
    low, high = sorted((sign * difference.low, sign * difference.high))
    return Interval(sign * difference.estimate, low, high)


def _profiles(scores: Mapping[str, Floats], sign: int) -> ProfilesView:
    """Return the fraction of runs above each threshold, with a 95% band."""
    values = np.concatenate([matrix.ravel() for matrix in scores.values()])
    thresholds = np.linspace(values.min(), values.max(), POINTS)
    sides = {}
    for label, matrix in scores.items():
        drawn = np.concatenate(
            [performance_profile(part, thresholds.tolist()) for (part,) in resamples([matrix], PROFILE_REPETITIONS, 0)]
        )
        low, high = np.quantile(drawn, (0.025, 0.975), axis=0)
        fraction = performance_profile(matrix, thresholds.tolist()).tolist()
        sides[label] = ProfileView(fraction=fraction, low=low.tolist(), high=high.tolist())
    return ProfilesView(thresholds=(sign * thresholds).tolist(), sides=sides)
