"""Views of studies, trials and tasks, which ``--json`` prints.

A field's annotation holds its description, from which come the documentation and the schema of the JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Annotated, Any

from ..storage.commands import Command


def key_of(name: str) -> str:
    """Return the JSON key of a field: `return` for `return_`."""
    return name.removesuffix("_")


def to_json(value: Any) -> Any:
    """Return JSON of a view, or of views in sequences and mappings.

    A field that has a default is left out while it has it.
    """
    if is_dataclass(value):
        pairs = [(field, getattr(value, field.name)) for field in fields(value)]
        return {
            key_of(field.name): to_json(each)
            for field, each in pairs
            if field.default is MISSING or each != field.default
        }
    if isinstance(value, Mapping):
        return {name: to_json(each) for name, each in value.items()}
    return [to_json(each) for each in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True, kw_only=True)
class View:
    """Part of a result."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that commands print."""
        form: dict[str, Any] = to_json(self)
        return form


Values = Annotated[Mapping[str, Any], "value by dotted name"]
Objectives = Annotated[Mapping[str, float] | None, "null if the return is the only one, else {name: number}"]
Env = Annotated[Mapping[str, Any], "{id, kwargs, wrappers, max_episode_steps}"]


@dataclass(frozen=True, kw_only=True)
class RungView(View):
    """Result of a trial on a rung."""

    rung: Annotated[int, "index of the rung"]
    epochs: Annotated[int, "total epochs at the rung"]
    state: Annotated[str, "ready, done or failed"]
    return_: Annotated[float | None, "return, or aggregate of the seeds' returns"]
    objectives: Objectives
    digest: Annotated[str | None, "digest of the state"]


@dataclass(frozen=True, kw_only=True)
class BranchView(View):
    """Start of a trial that branches from another."""

    trial: Annotated[int, "number of the other trial"]
    uid: Annotated[str, "uid of its task"]
    epochs: Annotated[int, "epoch at which the trial branches off"]
    digest: Annotated[str, "digest of the state there"]


@dataclass(frozen=True, kw_only=True)
class SeedView(View):
    """Training of a configuration with one seed."""

    seed: Annotated[int, "seed"]
    uid: Annotated[str, "uid of its task"]
    state: Annotated[str, "as of a trial"]
    epochs: Annotated[int, "epochs of its last finished rung"]
    return_: Annotated[float | None, "return there"]
    digest: Annotated[str | None, "digest of the state there"]
    env: Annotated[str | None, "name of the environment, if the study has several"] = None


@dataclass(frozen=True, kw_only=True)
class CandidateView(View):
    """Origin of a candidate of a confirmation."""

    trial: Annotated[int | None, "number in the confirmed study, or null"]
    defaults: Annotated[bool, "whether it has the default hyperparameters"]


@dataclass(frozen=True, kw_only=True)
class TrialView(View):
    """A trial, with the results of its last finished rung."""

    number: Annotated[int, "number of the configuration"]
    uid: Annotated[str, "uid of its task"]
    state: Annotated[
        str,
        "running (a process trains it now), waiting (begun, but no process trains it), complete, pruned, failed or "
        "cancelled",
    ]
    excluded: Annotated[bool, "whether `exclude` named it; then it is never the best"]
    bracket: Annotated[int | None, "number of its bracket"]
    rung: Annotated[int | None, "last rung to which it was promoted"]
    member: Annotated[int | None, "member of a population"]
    branch: Annotated[BranchView | None, "start of a branch"]
    epochs: Annotated[int, "epochs of its last finished rung; 0 before the first"]
    return_: Annotated[
        float | None, "return there; with several seeds the aggregate of those trained, in environments on one scale"
    ]
    objectives: Objectives
    digest: Annotated[str | None, "digest of the state there"]
    hyperparameters: Values
    error: Annotated[str | None, "why the trial failed"]
    rungs: Annotated[Sequence[RungView], "results, rung by rung"]
    seeds: Annotated[Sequence[SeedView] | None, "trainings, if trials have several seeds"] = None
    environments: Annotated[
        Mapping[str, float | None] | None, "mean of the returns in each environment, if the study has several"
    ] = None
    candidate: Annotated[CandidateView | None, "origin of a confirmation's candidate"] = None


@dataclass(frozen=True, kw_only=True)
class ProgressView(View):
    """Number of trainings to a rung."""

    rung: Annotated[int, "index of the rung"]
    epochs: Annotated[int, "total epochs at the rung"]
    ready: Annotated[int, "trainings that wait or run"]
    done: Annotated[int, "finished trainings"]
    failed: Annotated[int, "failed trainings"]


@dataclass(frozen=True, kw_only=True)
class AgreementView(View):
    """Rank correlation of a rung with the next among all trials."""

    epochs: Annotated[int, "total epochs at the rung"]
    next: Annotated[int, "total epochs at the next rung"]
    trials: Annotated[int, "number of trials from which it is estimated"]
    correlation: Annotated[float | None, "estimate; null if all results of the rung are equal"]
    interval: Annotated[tuple[float, float] | None, "95% interval; null if all results of the rung are equal"]
    misleads: Annotated[bool, "whether the interval is below 0.5, or equal results were followed by different ones"]


@dataclass(frozen=True, kw_only=True)
class SummaryView(View):
    """A study without its trials."""

    study: Annotated[str, "name"]
    state: Annotated[str, "running, paused, stopped or complete; in `status` also stalled: nobody trains the rest"]
    held: Annotated[
        Command | None,
        "command that stopped or paused it; if a bound stopped it, who is budget, goal or plateau, and why explains it",
    ]
    commands: Annotated[
        Sequence[Command],
        "all commands, in order; kind is also bound, weight, or check for a result tested against the goal, with "
        "trial, seed (if trials have several), epochs, episodes, mean, error and confirmed as data",
    ]
    probe: Annotated[Mapping[str, Any] | None, "what a probe of the environment found"]
    task: Annotated[str, "algorithm"]
    env: Env
    environments: Annotated[Sequence[Env] | None, "all environments, if the study has several"] = None
    seed: Annotated[int, "seed of all randomness"]
    sampler: Annotated[str, "name of the sampler"]
    scheduler: Annotated[str, "name of the scheduler"]
    seeds: Annotated[int, "trainings of a configuration, in all environments"]
    weight: Annotated[float, "weight among studies that share workers"]
    aggregate: Annotated[str | None, "aggregate of the seeds' returns, if there are several"]
    rungs: Annotated[Sequence[int], "total epochs at each rung"]
    fixed: Values
    trials_total: Annotated[int, "number of configurations"]
    objectives: Annotated[Mapping[str, str], "direction, maximize or minimize, by name"]
    progress: Annotated[Sequence[ProgressView], "trainings, rung by rung"]
    spared: Annotated[int, "trainings that racing left out"]
    best: Annotated[TrialView | None, "best trial; of a confirmation the winner, with the estimate as its result"]
    front: Annotated[
        Sequence[int],
        "numbers of the nondominated trials among those that trained longest, best in the first objective first",
    ]
    inexact: Annotated[Mapping[str, int], "number of trainings by the reason why they are not bit-exact"]
    advice: Annotated[Mapping[str, int], "number of trainings by advice on them"]
    counts: Annotated[Mapping[str, int], "number of trials by state"]
    brackets: Annotated[int, "number of brackets begun"]
    agreement: Annotated[Sequence[AgreementView] | None, "agreement of each rung with the next"] = None
    workers: Annotated[int | None, "number of workers that train it now, in `status`"] = None


@dataclass(frozen=True, kw_only=True)
class StudyView(SummaryView):
    """A study with its trials."""

    agreement: Annotated[Sequence[AgreementView], "agreement of each rung with the next"]
    trials: Annotated[Sequence[TrialView], "all trials, by number"]

    @classmethod
    def of(cls, summary: SummaryView, trials: Sequence[TrialView]) -> StudyView:
        """Return a study from its summary."""
        return cls(**{field.name: getattr(summary, field.name) for field in fields(summary)}, trials=trials)

    def summary(self) -> SummaryView:
        """Return the study without its trials."""
        return SummaryView(**{field.name: getattr(self, field.name) for field in fields(SummaryView)})


@dataclass(frozen=True, kw_only=True)
class TrainedView(View):
    """A trial that a process trains."""

    study: Annotated[str, "name of its study"]
    number: Annotated[int, "number of its configuration"]


@dataclass(frozen=True, kw_only=True)
class WorkerView(View):
    """A process that trains."""

    host: Annotated[str, "machine"]
    pid: Annotated[int, "process"]
    trials: Annotated[Sequence[TrainedView], "trials that it trains"]
    seconds: Annotated[float, "time since it took the first"]
    lease_left: Annotated[float, "seconds until others may take them, unless its heartbeat renews its lease"]


@dataclass(frozen=True, kw_only=True)
class StatusView(View):
    """Content of a storage."""

    storage: Annotated[str, "URL without password"]
    studies: Annotated[Sequence[SummaryView], "all studies, the oldest first"]
    workers: Annotated[Sequence[WorkerView], "processes that train now"]
    tasks: Annotated[int, "number of tasks"]


@dataclass(frozen=True, kw_only=True)
class TrainingView(View):
    """A training that belongs to no study."""

    uid: Annotated[str, "uid"]
    task: Annotated[str, "algorithm"]
    env: Env
    seed: Annotated[int, "seed"]
    epochs: Annotated[int, "epochs stored"]
    return_: Annotated[float | None, "last return"]


@dataclass(frozen=True, kw_only=True)
class TrainingsView(View):
    """Trainings that belong to no study."""

    storage: Annotated[str, "URL without password"]
    tasks: Annotated[Sequence[TrainingView], "trainings"]


@dataclass(frozen=True, kw_only=True)
class AncestorView(View):
    """Task in a lineage."""

    uid: Annotated[str, "uid"]
    until: Annotated[int, "epochs that it contributes"]


@dataclass(frozen=True, kw_only=True)
class TrialOfTaskView(View):
    """Trial that a task belongs to."""

    study: Annotated[str, "name of the study"]
    number: Annotated[int, "number of the configuration"]
    state: Annotated[str, "as of a trial"]
    error: Annotated[str | None, "why it failed"]


@dataclass(frozen=True, kw_only=True)
class CheckpointView(View):
    """Stored checkpoint."""

    epochs: Annotated[int, "epochs trained"]
    within_epoch: Annotated[bool, "whether it lies within the next epoch"]
    digest: Annotated[str, "digest of the state"]
    bytes: Annotated[int, "size"]
    created: Annotated[float, "time"]
    kept: Annotated[str, "reason to keep it"]


@dataclass(frozen=True, kw_only=True)
class TaskView(View):
    """Everything stored about one task."""

    uid: Annotated[str, "uid"]
    task: Annotated[str | None, "algorithm"]
    env: Annotated[Mapping[str, Any] | None, "environment"]
    seed: Annotated[int | None, "seed"]
    epochs: Annotated[int, "epochs stored"]
    return_: Annotated[float | None, "return there"]
    digest: Annotated[str | None, "digest of the last checkpoint"]
    owner: Annotated[str | None, "process that trains it"]
    hyperparameters: Values
    lineage: Annotated[Sequence[AncestorView], "tasks from the root to this one"]
    trials: Annotated[Sequence[TrialOfTaskView], "trials that train it"]
    inexact: Annotated[Sequence[str], "reasons why it is not bit-exact"]
    advice: Annotated[Sequence[str], "advice on it"]
    metrics: Annotated[Sequence[Mapping[str, float]], "epoch, and number by name"]
    checkpoints: Annotated[Sequence[CheckpointView], "stored checkpoints"]
    events: Annotated[Sequence[Mapping[str, Any]], "time, kind, and what belongs to the kind"]
