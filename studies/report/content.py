"""Views of a report's content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from ..analysis.cures import Finding
from ..analysis.importance import MarginalView, PairView, ShareView
from ..engine.views import ConfirmationView, StudyView, TrialView, View


class CurvesView(View):
    """Learning curves of a study."""

    metric: Annotated[str, "name of the metric"]
    trials: Annotated[Mapping[int, Sequence[tuple[int, float]]], "epoch and value of each point, by trial"]


class BandView(View):
    """Learning curve of the best configuration."""

    label: Annotated[str, "name of the configuration"]
    seeds: Annotated[int, "number of seeds"]
    points: Annotated[Sequence[tuple[int, float, float, float]], "epoch, mean, and the ends of its 95% interval"]


class DimensionView(View):
    """A searched hyperparameter."""

    name: Annotated[str, "dotted name"]
    prior: Annotated[str, "prior"]
    axis: Annotated[str, "axis in drawings: linear, log, near one or choice"]
    help: Annotated[str, "explanation"]


class CorrelationView(View):
    """Rank correlation between the results at two rungs."""

    low: Annotated[int, "epochs at the lower rung"]
    high: Annotated[int, "epochs at the higher rung"]
    trials: Annotated[int, "number of trials that reached both"]
    correlation: Annotated[float, "Spearman's correlation"]


class WorkView(View):
    """Work of a process on a cohort; seconds since the first event."""

    from_: Annotated[float, "begin"]
    to: Annotated[float, "end"]
    trials: Annotated[Sequence[int], "numbers of the configurations"]


class ProcessView(View):
    """Work of a process."""

    name: Annotated[str, "name of the process"]
    work: Annotated[Sequence[WorkView], "work, in order"]


class MarkView(View):
    """A takeover or a failure."""

    worker: Annotated[str, "name of the process"]
    at: Annotated[float, "time in seconds"]
    kind: Annotated[str, "takeover, or the kind of failure"]
    trial: Annotated[int, "number of the configuration"]


class LostView(View):
    """Work that was lost with a process."""

    worker: Annotated[str, "name of the process"]
    from_: Annotated[float, "time of the last checkpoint in seconds"]
    to: Annotated[float, "end"]
    trial: Annotated[int, "number of the configuration"]
    epochs: Annotated[float, "about as many epochs"]


class TimelineView(View):
    """Work of all processes, in seconds since the first event."""

    seconds: Annotated[float, "length"]
    workers: Annotated[Sequence[ProcessView], "processes, in order of appearance"]
    marks: Annotated[Sequence[MarkView], "takeovers and failures"]
    lost: Annotated[Sequence[LostView], "lost work"]


class ReportView(View):
    """Content of a report on one study."""

    study: Annotated[StudyView, "the study"]
    title: Annotated[str, "task and environment"]
    objective: Annotated[str, "name of the first objective"]
    direction: Annotated[str, "maximize or minimize"]
    storage: Annotated[str, "URL without password"]
    ranked: Annotated[Sequence[int], "numbers of the trials with results, the best first"]
    results: Annotated[Mapping[int, float], "first objective by trial"]
    confirmation: Annotated[ConfirmationView | None, "last complete confirmation, if there is any; else the last one"]
    unfinished: Annotated[ConfirmationView | None, "a further confirmation that is not complete"]
    fresh: Annotated[
        Mapping[int, Sequence[float]] | None, "results that estimate each candidate; null unless it is a confirmation"
    ]
    of_seeds: Annotated[
        Mapping[int, Sequence[float]], "first objective of each seed at a trial's last rung, if trials have several"
    ]
    epochs: Annotated[int, "epochs trained in all"]
    dimensions: Annotated[Sequence[DimensionView], "searched hyperparameters"]
    importances: Annotated[Sequence[ShareView], "as for diagnose"]
    marginals: Annotated[Sequence[MarginalView], "as for diagnose"]
    pairs: Annotated[Sequence[PairView], "as for diagnose"]
    findings: Annotated[Sequence[Finding], "as for diagnose"]
    correlations: Annotated[Sequence[CorrelationView], "agreement of rungs"]
    timeline: Annotated[TimelineView | None, "work of processes; null if nothing was trained"]
    failures: Annotated[Mapping[str, int], "number of failures by kind"]
    curves: Annotated[CurvesView, "learning curves"]
    of_behaviours: Annotated[Sequence[CurvesView], "learning curves of each behaviour, where there are several"]
    band: Annotated[BandView | None, "learning curve of the best configuration with its interval"]
    verdict: Annotated[Sequence[str], "results in sentences"]
    checklist: Annotated[Sequence[tuple[str, str]], "checklist of Eimer et al. (2023), arXiv:2306.01324"]

    @property
    def trials(self) -> Mapping[int, TrialView]:
        """Trials by number."""
        return {trial.number: trial for trial in self.study.trials}
