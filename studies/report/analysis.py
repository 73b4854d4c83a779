"""Importances of hyperparameters, and correlations between rungs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ..engine.json_views import Json
from ..study.config import Config
from ..study.objectives import MAXIMIZE, RETURN, objectives_of

FEWEST_TRIALS = 16  # that importances are computed of
FEWEST_PAIRS = 4  # that a correlation is


def importances(config: Config, trials: Sequence[Json], objective: str) -> Json | None:
    """Return the importance of each searched hyperparameter, by PED-ANOVA.

    Watanabe et al. (2023), arXiv:2304.10255, as Optuna has it: which hyperparameters make the best tenth of trials
    differ from all of them. Trials are compared at the highest rung that enough of them reached.

    Returns:
        {epochs, trials, values {name: part of 1}}, or None of too few trials.
    """
    reached: dict[int, list[tuple[Json, float]]] = {}
    for trial in trials:
        for rung in trial["rungs"]:
            value = result_of(rung, objective)
            if value is not None:
                reached.setdefault(rung["epochs"], []).append((trial, value))
    enough = [epochs for epochs, found in reached.items() if len(found) >= FEWEST_TRIALS]
    if not enough or not config.open:
        return None
    epochs = max(enough)
    values = _ped_anova(config, reached[epochs], objectives_of(config)[objective] == MAXIMIZE)
    return {"epochs": epochs, "trials": len(reached[epochs]), "values": values} if any(values.values()) else None


def _ped_anova(config: Config, results: Sequence[tuple[Json, float]], maximize: bool) -> dict[str, float]:
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    from ...spaces.drivers.to_optuna import distributions, params
    from ..samplers.suggest import quiet

    spread, names = distributions(config.searched), config.searched.flat().keys()
    with quiet(optuna.logging.ERROR):
        study = optuna.create_study(direction="maximize" if maximize else "minimize")
        for trial, value in results:
            own = {name: found for name, found in trial["hyperparameters"].items() if name in names}
            chosen = params(config.searched, own)
            of = {name: spread[name] for name in chosen}
            study.add_trial(optuna.trial.create_trial(params=chosen, distributions=of, value=value))
        found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    values: dict[str, float] = {}
    for name, value in found.items():
        whole = _own_name(name, names)
        values[whole] = values.get(whole, 0.0) + float(value)
    return dict(sorted(values.items(), key=lambda pair: (-pair[1], pair[0])))


def _own_name(name: str, names: Collection[str]) -> str:
    """Return the hyperparameter of one of Optuna's parameters, see `spaces.drivers.params`."""
    group, dot, leaf = name.rpartition(".")
    plain = (f"{group}{dot}{leaf.removeprefix('one_minus_')}", group)
    return next((each for each in (name, *plain) if each in names), name)


def rank_correlations(trials: Sequence[Json], rungs: Sequence[int], objective: str) -> list[Json]:
    """Return Spearman's rank correlation between the results at each two rungs."""
    found = []
    at = [{row["epochs"]: result_of(row, objective) for row in trial["rungs"]} for trial in trials]
    for i, low in enumerate(rungs):
        for high in rungs[i + 1 :]:
            pairs = [(of[low], of[high]) for of in at if of.get(low) is not None and of.get(high) is not None]
            if len(pairs) >= FEWEST_PAIRS:
                found.append({"low": low, "high": high, "trials": len(pairs), "correlation": spearman(pairs)})
    return found


def spearman(pairs: Sequence[tuple[float | None, float | None]]) -> float:
    """Return Spearman's rank correlation, 0 if a side does not vary."""
    x, y = (_ranks(np.array(side, float)) for side in zip(*pairs, strict=True))
    x, y = x - x.mean(), y - y.mean()
    size = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / size if size else 0.0


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def result_of(result: Mapping[str, Any], objective: str) -> float | None:
    """Return an objective of a trial or rung, or None."""
    value: float | None = (result["objectives"] or {}).get(objective, result["return"] if objective == RETURN else None)
    return value
