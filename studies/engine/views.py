"""Views of studies, trials and tasks, which ``--json`` prints.

A field's annotation holds its description, from which come the documentation and the schema of the JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from inspect import get_annotations
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, dataclass_transform

from ..statistics.estimates import Interval
from ..storage.commands import Command
from ..study.objectives import RETURN

REQUIRED = object()  # in place of the default of a field that has none
EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass_transform(kw_only_default=True, frozen_default=True)
class View:
    """Part of a result: immutable, and compared by value.

    A subclass declares its fields as a dataclass does, which would take ten times as long to create.
    """

    fields: ClassVar[tuple[str, ...]] = ()
    merged: ClassVar[frozenset[str]] = frozenset()  # fields whose JSON is an object, the names of which stand here

    def __init_subclass__(cls) -> None:
        """List the fields, those of the base first."""
        cls.fields = (*dict.fromkeys((*cls.fields, *get_annotations(cls))),)

    def __init__(self, **values: Any):
        required = {name for name in self.fields if default_of(type(self), name) is REQUIRED}
        if wrong := (values.keys() - {*self.fields}) | (required - values.keys()):
            raise TypeError(f"{type(self).__name__} has the fields {', '.join(self.fields)}; check {sorted(wrong)}")
        vars(self).update(values)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values."""
        return type(self)(**{**vars(self), **changes})

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that commands print."""
        form: dict[str, Any] = to_json(self)
        return form

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and all(getattr(self, name) == getattr(other, name) for name in self.fields)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a view is immutable, but {name} was assigned; replace() returns a changed copy")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


def default_of(view: type[View], name: str) -> Any:
    """Return the default of a field, or REQUIRED."""
    return getattr(view, name, REQUIRED)


def key_of(name: str) -> str:
    """Return the JSON key of a field: `return` for `return_`."""
    return name.removesuffix("_")


def to_json(value: Any) -> Any:
    """Return the JSON of a result.

    It may hold views, dataclasses and named tuples, also in sequences and mappings. A view's field is left out while it
    has its default.
    """
    if isinstance(value, View):
        form: dict[str, Any] = {}
        for name in value.fields:
            if (content := getattr(value, name)) != default_of(type(value), name):
                form |= to_json(content) if name in value.merged else {key_of(name): to_json(content)}
        return form
    if is_dataclass(value):
        value = vars(value)
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {name: to_json(content) for name, content in value.items()}
    return [to_json(content) for content in value] if isinstance(value, list | tuple) else value


Values = Annotated[Mapping[str, Any], "value by dotted name"]
Objectives = Annotated[
    Mapping[str, float] | None,
    "null if the return is the only one, else {name: number}, with what the study's constraints bound",
]
Violation = Annotated[
    float | None, "how far it violates the study's constraints, relative to their bounds; 0 if it is feasible"
]
Env = Annotated[Mapping[str, Any], "{id, kwargs, wrappers, max_episode_steps}"]


class ResultView(View):
    """A result: of a trial, or of a trial on a rung."""

    if TYPE_CHECKING:  # each declares its fields in the order of the JSON
        return_: float | None
        objectives: Mapping[str, float] | None
        violation: float | None

    def results(self) -> dict[str, float]:
        """Return the objectives by name; none before the first result."""
        return dict(self.objectives or ({} if self.return_ is None else {RETURN: self.return_}))

    def result(self, objective: str) -> float | None:
        """Return an objective, or None."""
        return self.results().get(objective)


class RungView(ResultView):
    """Result of a trial on a rung."""

    rung: Annotated[int, "index of the rung"]
    epochs: Annotated[int, "total epochs at the rung"]
    state: Annotated[str, "ready, done or failed"]
    return_: Annotated[float | None, "return, or aggregate of the seeds' returns"]
    objectives: Objectives
    digest: Annotated[str | None, "digest of the state"]
    eval_steps: Annotated[int | None, "environment steps that measured it, if known"] = None
    eval_error: Annotated[float | None, "standard error of the return over its episodes, if known"] = None
    violation: Violation = None


class BranchView(View):
    """Start of a trial that branches from another."""

    trial: Annotated[int, "number of the other trial"]
    uid: Annotated[str, "uid of its task"]
    epochs: Annotated[int, "epoch at which the trial branches off"]
    digest: Annotated[str, "digest of the state there"]


class SeedView(View):
    """Training of a configuration with one seed."""

    seed: Annotated[int, "seed"]
    uid: Annotated[str, "uid of its task"]
    state: Annotated[str, "as of a trial"]
    epochs: Annotated[int, "epochs of its last finished rung"]
    return_: Annotated[float | None, "return there"]
    digest: Annotated[str | None, "digest of the state there"]
    env: Annotated[str | None, "name of the environment, if the study has several"] = None


class OriginView(View):
    """Origin of a candidate of a confirmation."""

    trial: Annotated[int | None, "number in the confirmed study; null for the defaults"]
    defaults: Annotated[bool, "whether it has the default hyperparameters"]

    @property
    def name(self) -> str:
        """Trial of the confirmed study, or the defaults."""
        return "the defaults" if self.trial is None else f"trial {self.trial}"

    @property
    def description(self) -> str:
        """Name, and whether it is the defaults."""
        return self.name + (", the defaults" if self.defaults and self.trial is not None else "")


class TrialView(ResultView):
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
    eval_error: Annotated[float | None, "standard error of the return there, over its episodes, if known"] = None
    seeds: Annotated[Sequence[SeedView] | None, "trainings, if trials have several seeds"] = None
    environments: Annotated[
        Mapping[str, float | None] | None, "mean of the returns in each environment, if the study has several"
    ] = None
    candidate: Annotated[OriginView | None, "origin of a confirmation's candidate"] = None
    violation: Violation = None
    repeats: Annotated[int | None, "trial whose hyperparameters it trains again, with another seed"] = None
    over_seeds: Annotated[
        Mapping[str, float] | None,
        "objectives, as means over the trial and those that repeat it, by which it ranks; null if none does",
    ] = None
    unreliable: Annotated[bool | None, "true if a repeat failed, so that it ranks below the others"] = None

    def ranked_by(self) -> dict[str, float]:
        """Return the objectives, as means over its seeds if it was repeated."""
        return dict(self.over_seeds) if self.over_seeds else self.results()

    @property
    def trainings(self) -> Sequence[SeedView | TrialView]:
        """Trainings, each with one seed."""
        return self.seeds or [self]


class ProgressView(View):
    """Number of trainings to a rung."""

    rung: Annotated[int, "index of the rung"]
    epochs: Annotated[int, "total epochs at the rung"]
    ready: Annotated[int, "trainings that wait or run"]
    done: Annotated[int, "finished trainings"]
    failed: Annotated[int, "failed trainings"]


class AgreementView(View):
    """Rank correlation of a rung with the next among all trials."""

    epochs: Annotated[int, "total epochs at the rung"]
    next: Annotated[int, "total epochs at the next rung"]
    trials: Annotated[int, "number of trials from which it is estimated"]
    correlation: Annotated[float | None, "estimate; null if all results of the rung are equal"]
    interval: Annotated[tuple[float, float] | None, "95% interval; null if all results of the rung are equal"]
    misleads: Annotated[
        bool,
        "whether the interval is below 0.5, or equal results were followed by different ones, and trials were pruned",
    ]


class MomentsView(View):
    """Scale and drift of numbers in several columns."""

    low: Annotated[float | None, "smallest standard deviation of a column"]
    high: Annotated[float | None, "largest standard deviation"]
    mean: Annotated[float | None, "largest absolute mean"]
    drift: Annotated[float | None, "largest difference of the means of both halves, in standard deviations"]


class RestoreView(View):
    """Way to restore an environment's state."""

    mode: Annotated[str, "its name"]
    exact: Annotated[bool, "whether that is exact"]
    reason: Annotated[str, "why"]


class BaselineView(View):
    """Return of untrained behaviour."""

    value: Annotated[float, "mean"]
    low: Annotated[float | None, "lower end of the 95% interval; null for too few runs"]
    high: Annotated[float | None, "upper end"]
    runs: Annotated[int, "number of episodes"]


class ProbeView(View):
    """Results of random actions and untrained policies in an environment."""

    actions: Annotated[str, "kind of the action space"] = ""
    masks: Annotated[bool, "whether observations have masks of actions"]
    goals: Annotated[bool, "whether observations have goals"]
    seed: Annotated[int, "seed"]
    steps: Annotated[int, "number of steps"]
    slow: Annotated[float | None, "seconds of a step, if it was too slow to be probed"]
    random: Annotated[Sequence[float], "returns of random actions"]
    untrained: Annotated[Sequence[Sequence[float]], "returns of each untrained policy"]
    lengths: Annotated[Sequence[int], "lengths of complete episodes"]
    terminated: Annotated[int, "number of those that were not truncated"]
    unfinished: Annotated[Mapping[str, int], "steps of the episode that was cut short, of random and untrained"] = EMPTY
    rewards: Annotated[MomentsView | None, "scale and drift of rewards"]
    zero_rewards: Annotated[float | None, "share of rewards that are 0; of several behaviours, of all agents' rewards"]
    zero_sum: Annotated[bool, "whether agents' rewards differ from 0, but add up to it in every step"] = False
    observations: Annotated[MomentsView | None, "scale and drift of observations"]
    largest_pixel: Annotated[int | None, "largest number of images, of 255; null without images"] = None
    restore: Annotated[RestoreView | None, "how a state is restored"]
    failures: Annotated[Sequence[str], "errors of the environment"]
    raised: Annotated[int, "number of episodes that ended by an error, where `on_error` says so"] = 0
    baselines: Annotated[Mapping[str, BaselineView], "returns of random actions (random) and untrained policies"]
    text: Annotated[str, "the results in words"]
    warnings: Annotated[Sequence[str], "unusual properties of the environment"]


class FailedProbeView(View):
    """A probe without results."""

    baselines: Annotated[Mapping[str, BaselineView], "empty"]
    text: Annotated[str, "why there are none"]
    warnings: Annotated[Sequence[str], "empty"]


Probe = ProbeView | FailedProbeView | None  # what is known of a study's environment


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
    probe: Annotated[ProbeView | FailedProbeView | None, "results of a probe of the environment; null before it"]
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
    constraints: Annotated[Sequence[str] | None, "constraints, such as info.cost<=25, if there are any"] = None
    progress: Annotated[Sequence[ProgressView], "trainings, rung by rung"]
    spared: Annotated[int, "trainings that racing left out"]
    eval_steps: Annotated[int, "environment steps of all evaluations"]
    best: Annotated[TrialView | None, "best trial; of a confirmation the winner, with the estimate as its result"]
    front: Annotated[
        Sequence[int],
        "numbers of the nondominated trials among those that trained longest, best in the first objective first",
    ]
    inexact: Annotated[Mapping[str, int], "number of trainings by the reason why they are not bit-exact"]
    advice: Annotated[Mapping[str, int], "number of trainings by advice on them"]
    exactness: Annotated[str | None, "exact, not exact or not checked, if its task is a program"] = None
    counts: Annotated[Mapping[str, int], "number of trials by state"]
    brackets: Annotated[int, "number of brackets begun"]
    agreement: Annotated[Sequence[AgreementView] | None, "agreement of each rung with the next"] = None
    workers: Annotated[int | None, "number of workers that train it now, in `status`"] = None

    def best_result(self) -> float | None:
        """Return the best trial's first objective, or None."""
        return None if self.best is None else self.best.result(next(iter(self.objectives)))


class StudyView(SummaryView):
    """A study with its trials."""

    agreement: Annotated[Sequence[AgreementView], "agreement of each rung with the next"]
    trials: Annotated[Sequence[TrialView], "all trials, by number"]

    @classmethod
    def of(cls, summary: SummaryView, trials: Sequence[TrialView]) -> StudyView:
        """Return a study from its summary."""
        return cls(**vars(summary), trials=trials)

    def summary(self) -> SummaryView:
        """Return the study without its trials."""
        return SummaryView(**{name: value for name, value in vars(self).items() if name != "trials"})


class RaceView(View):
    """Results of a candidate in the race."""

    seeds: Annotated[int, "number of its seeds with a result"]
    mean: Annotated[float | None, "mean of its results"]
    failed: Annotated[int, "number of its failed trainings"]


class MeanView(View):
    """Mean of results on fresh seeds."""

    value: Annotated[float, "mean"]
    low: Annotated[float, "lower end of the 95% interval"]
    high: Annotated[float, "upper end"]


class EstimateView(MeanView):
    """Result of a candidate on fresh seeds."""

    seeds: Annotated[int, "number of seeds with a result"]
    failed: Annotated[int, "number of seeds on which trainings failed"]
    results: Annotated[Sequence[float], "results by seed"]


class ConstraintView(View):
    """Mean on fresh seeds of what a constraint bounds."""

    value: Annotated[float, "mean"]
    low: Annotated[float, "lower end of the 99% interval, which allows for more trainings like the worst"]
    high: Annotated[float, "upper end"]
    holds: Annotated[
        bool | None, "whether the whole interval satisfies it; null if a part does, or fewer than 14 seeds"
    ]


class CandidateView(OriginView):
    """A candidate of a confirmation, with its results."""

    hyperparameters: Values
    claim: Annotated[float | None, "result in the search after as many epochs"]
    race: Annotated[RaceView, "results in the race"]
    estimate: Annotated[EstimateView | None, "result on fresh seeds"]
    environments: Annotated[
        Mapping[str, MeanView | None] | None,
        "results in each environment as measured, null for fewer than three seeds; if the study has several",
    ] = EMPTY
    constraints: Annotated[
        Mapping[str, ConstraintView] | None, "what each constraint bounds, on fresh seeds, if the study has any"
    ] = None


class CostView(View):
    """Cost of a confirmation."""

    trainings: Annotated[int, "number of finished trainings"]
    epochs: Annotated[int, "epochs of these"]
    failed: Annotated[int, "number of failed trainings"]


class ChangesView(View):
    """Changes of a study since its confirmation."""

    best: Annotated[Sequence[int], "trials that took no part and are now among the best"]
    excluded: Annotated[bool, "whether the winner has been excluded"]


class ConfirmationView(View):
    """Results of a confirmation."""

    study: Annotated[str, "name of the confirmed study"]
    confirmation: Annotated[str, "name of the study that trains the candidates"]
    state: Annotated[str, "complete or running"]
    objective: Annotated[str, "name of the objective"]
    direction: Annotated[str, "maximize or minimize"]
    across: Annotated[
        str | None,
        "aggregate over environments, if the study has several; all results are on its scale, on which 0 is the best "
        "of a minimized objective",
    ] = None
    epochs: Annotated[int, "epochs of each training"]
    seeds: Annotated[int, "seeds of an estimate"]
    race_seeds: Annotated[int, "seeds of the race"]
    eval_episodes: Annotated[int | None, "episodes of each evaluation, if they are not as many as in the study"] = None
    candidates: Annotated[Sequence[CandidateView], "candidates"]
    winner: Annotated[int | None, "index of the winner among the candidates"]
    runner_up: Annotated[int | None, "index of the second"]
    over_defaults: Annotated[Interval | None, "probability that a training of the winner beats one of the defaults"]
    over_runner_up: Annotated[Interval | None, "probability that it beats one of the runner-up"]
    optimism: Annotated[float | None, "claim of the winner minus its estimate"]
    cost: Annotated[CostView, "cost of the confirmation"]
    since: Annotated[ChangesView | None, "changes of the study since then"]
    lengthened: Annotated[bool, "whether the study has more epochs since then"] = False
    earlier: Annotated[Sequence[str], "earlier confirmations of the study, of whose seeds it uses none"]

    @property
    def best(self) -> CandidateView | None:
        """Winner; None without one."""
        return None if self.winner is None else self.candidates[self.winner]


class ConfirmedStudyView(StudyView):
    """A study with its trials and its confirmation."""

    confirmation: Annotated[ConfirmationView | None, "results of its last confirmation"]


class TrainedView(View):
    """A trial that a process trains."""

    study: Annotated[str, "name of its study"]
    number: Annotated[int, "number of its configuration"]


class WorkerView(View):
    """A process that trains."""

    host: Annotated[str, "machine"]
    pid: Annotated[int, "process"]
    trials: Annotated[Sequence[TrainedView], "trials that it trains"]
    seconds: Annotated[float, "time since it took the first"]
    lease_left: Annotated[float, "seconds until others may take them, unless its heartbeat renews its lease"]


class StatusView(View):
    """Content of a storage."""

    storage: Annotated[str, "URL without password"]
    studies: Annotated[Sequence[SummaryView], "all studies, the oldest first"]
    workers: Annotated[Sequence[WorkerView], "processes that train now"]
    tasks: Annotated[int, "number of tasks"]


class TrainingView(View):
    """A training that belongs to no study."""

    uid: Annotated[str, "uid"]
    task: Annotated[str, "algorithm"]
    env: Env
    seed: Annotated[int, "seed"]
    epochs: Annotated[int, "epochs stored"]
    return_: Annotated[float | None, "last return"]


class TrainingsView(View):
    """Trainings that belong to no study."""

    storage: Annotated[str, "URL without password"]
    tasks: Annotated[Sequence[TrainingView], "trainings"]


class AncestorView(View):
    """Task in a lineage."""

    uid: Annotated[str, "uid"]
    until: Annotated[int, "epochs that it contributes"]


class TrialOfTaskView(View):
    """Trial that a task belongs to."""

    study: Annotated[str, "name of the study"]
    number: Annotated[int, "number of the configuration"]
    state: Annotated[str, "as of a trial"]
    error: Annotated[str | None, "why it failed"]


class CheckpointView(View):
    """Stored checkpoint."""

    epochs: Annotated[int, "epochs trained"]
    within_epoch: Annotated[bool, "whether it lies within the next epoch"]
    digest: Annotated[str, "digest of the state"]
    bytes: Annotated[int, "size"]
    created: Annotated[float, "time"]
    kept: Annotated[str, "reason to keep it"]


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
    exactness: Annotated[str | None, "exact, not exact or not checked, if a study's program trains it"] = None
    advice: Annotated[Sequence[str], "advice on it"]
    metrics: Annotated[Sequence[Mapping[str, float]], "epoch, and number by name"]
    checkpoints: Annotated[Sequence[CheckpointView], "stored checkpoints"]
    events: Annotated[Sequence[Mapping[str, Any]], "time, kind, and what belongs to the kind"]
    config: Annotated[Mapping[str, Any] | None, "run file, with --config"] = None
