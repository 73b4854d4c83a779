"""Configuration of a study: everything on which its trials depend."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...spaces import unflatten
from ...tasks.catalog import NOT_CHECKED, PREFIX, label
from ...tasks.runtime import EVALUATION_EPISODES
from ..errors import BadConfig, StoreError
from ..methods import SCHEDULERS, Sampling, Scheduling, sampling, scheduling
from ..options.entries import check_count
from .stored_form import MOST_AT_ONCE, invalid_field

if TYPE_CHECKING:
    from ...spaces import Space
    from ...tasks.checkpoint.storage import Storage
    from ...tasks.identity import TaskIdentity
    from ...tasks.task import Task

VERSION = 1
LONGEST_NAME = 480  # bytes; databases index names, and those of confirmations are longer
GOOD = "good"  # key of options: TPE counts one trial in this many as good; Optuna one in ten
EVAL_STEPS = "eval_steps"  # key of options
WIDENS = "widens"  # key of options: true if the search may still be widened by what a probe finds
OPENS = "opens"  # key of options: true if a probe may choose the first trials
RESUMES = "resumes"  # key of options: what `check-resume` found to differ, "" for nothing
SIZED = "sized"  # key of options: {seconds, paces}, from which the size of the study follows, see `engine.sizing`
EPOCHS = 27  # of a training, by default
GENERATION = 8
REPEAT_ONE_OF = 8  # trials of a study or an extension, at least, for each that repeats a good one


@dataclass(frozen=True)
class Config:
    """The configuration of a study.

    Attributes:
        task: name of the algorithm.
        task_version: version of the algorithm.
        env: environment as JSON; {} without one.
        seed: seed of all trainings and suggestions.
        space: searched space: text of each prior by dotted name, in order.
        fixed: hyperparameters that are not searched, by dotted name.
        epochs: [low, high, base]: rungs at low, low * base, ... and high; with base 1, at low, 2 low, ... and high.
        trials: number of configurations when the study was created, and after each extension.
        generation: number of configurations that are suggested together and form a bracket.
        cohort: number of consecutive configurations with the same structure, so that they can train as one cohort.
        sampler: name of the sampler.
        scheduler: name of the scheduler.
        options: further options, all optional:

            - options of the scheduler, and bounds of the study (see `engine.bounds`)
            - `seeds`, `aggregate`, `racing`: see `schedulers.seeds`
            - `environments`: all environments, if several; `scale`: see `study.environments`
            - `objectives`: direction by name
            - `grid_points`: points of a grid; `good`: one in how many trials TPE takes as good
            - `known`: configurations that are tried first, by dotted name
            - `portfolio`: {digest, trials, finishers}: those that are tried first if none is known, and how many
              of them the adaptive scheduler trains to the end, see `study.portfolio`
            - `repeats`: number of trials at the end that train the best ones again, see `study.repeats`
            - `learned`: results of earlier studies, [{study, values [by dotted name], scores [from 0 to 1]}]
            - `snapshots`: see `Task`
            - `warm_start`: digest of the stored policy that all trials start from
            - `trial_time`: seconds that a trial may train
            - `eval_episodes`: number of episodes of each evaluation
            - `sized`: {seconds, paces}, from which its size followed, see `engine.sizing`
            - `widens`: whether a probe may widen the search, see `study.widening`
            - `opens`: whether it may choose the first trials, see `study.portfolio`
            - `eval_steps`: [epochs, steps in epochs of training, most episodes] of an evaluation at each rung, see
              `engine.evaluating`
            - `weight`: share of the workers that train several studies
            - `confirmed`: number of fresh seeds that deleted confirmations used
            - `longer`: epochs to which the study was extended
            - `sampler_source`: digest of the source of a sampler that is spelled package.module:Class
            - `files`: digest of each file that trainings start, by path, see `BaseLearner.files`
            - `resumes`: what a resume changes, as `check-resume` measured; "" for nothing
            - `spaces`: [first trial, changed priors] of each change of the space
        direction: always "maximize"; part of the stored format.
        version: version of the stored format.
    """

    task: str
    task_version: int
    env: Mapping[str, Any]
    seed: int
    space: Mapping[str, Any]
    fixed: Mapping[str, Any]
    epochs: Sequence[int]
    trials: Sequence[int]
    generation: int = GENERATION
    cohort: int = 4
    sampler: str = "tpe"
    scheduler: str = "halving"
    options: Mapping[str, Any] = field(default_factory=dict)
    direction: str = "maximize"
    version: int = field(default=VERSION)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON for a study's row."""
        return asdict(self)

    @classmethod
    def from_json(cls, form: Mapping[str, Any], name: str) -> Config:
        """Return the configuration in a study's row, or raise StoreError."""
        version = form.get("version") if isinstance(form, Mapping) else None
        if version != VERSION:
            raise StoreError(
                f"study {name!r} must have a configuration of version {VERSION}, but got "
                f"{str(version)[:40]}; use the Rekindle that made it, or another name"
            )
        if wrong := invalid_field(form):
            raise StoreError(f"the configuration of study {name!r} is invalid: {wrong}; restore it from a copy")
        try:
            return cls(**form)
        except TypeError as error:
            raise StoreError(
                f"the configuration of study {name!r} is invalid: {error}; restore it from a copy"
            ) from None

    @property
    def scheduling(self) -> Scheduling:
        """Facts of the scheduler."""
        return scheduling(self.scheduler)

    @property
    def sampling(self) -> Sampling:
        """Facts of the sampler."""
        return sampling(self.sampler)

    @property
    def title(self) -> str:
        """Task and environments."""
        return title(self.task, *self.environments)

    @property
    def exactness(self) -> str | None:
        """Exactness of the study's program in words, if it has one."""
        if not self.task.startswith(PREFIX):
            return None
        differs = self.options.get(RESUMES)
        return NOT_CHECKED if differs is None else f"not exact: {differs}" if differs else "exact"

    @property
    def environments(self) -> Sequence[Mapping[str, Any]]:
        """JSON of all environments in which a configuration is trained."""
        environments: Sequence[Mapping[str, Any]] = self.options.get("environments", [self.env])
        return environments

    @property
    def default_name(self) -> str:
        """Name of a study to which the user gives none."""
        return "-".join([label(self.task), *(env["id"] for env in self.environments if env)])

    @cached_property
    def rungs(self) -> tuple[int, ...]:
        """Total epochs at each rung, rising."""
        low, high, base = self.epochs
        rungs = [low]
        for end in (high, *self.options.get("longer", ())):
            while rungs[-1] < end:
                rungs.append(min(rungs[-1] * base if base > 1 else rungs[-1] + low, end))
        return tuple(rungs)

    @cached_property
    def brackets(self) -> tuple[range, ...]:
        """Numbers of the trials of each bracket.

        A study of 20 trials that is extended to 32 keeps its last bracket of four.
        """
        start = len(self.portfolio)
        brackets = [range(start)] if start else []
        for total in self.trials:
            brackets += [range(n, min(n + self.generation, total)) for n in range(start, total, self.generation)]
            start = total
        return tuple(brackets)

    @cached_property
    def repeating(self) -> tuple[range, ...]:
        """Numbers of the trials that repeat the best, bracket by bracket.

        They are the last ones of the study and of each extension. An extension by few trials has none.
        """
        most, start = int(self.options.get("repeats", 0)), 0
        repeating = []
        for total in self.trials:
            size = most if start == 0 else min(most, (total - start) // REPEAT_ONE_OF)
            repeating += [range(total - size, total)] if size else []
            start = total
        return tuple(repeating)

    @property
    def portfolio(self) -> Sequence[Mapping[str, Any]]:
        """Hyperparameters of the portfolio's trials, by dotted name; empty without one."""
        trials: Sequence[Mapping[str, Any]] = self.options.get("portfolio", {}).get("trials", [])
        return trials

    @property
    def first_trials(self) -> Sequence[Mapping[str, Any]]:
        """Hyperparameters of the first trials that are not suggested, by dotted name."""
        return self.options.get("known") or self.portfolio

    @property
    def portfolio_rung(self) -> int:
        """Rung on which the trials of a portfolio are first compared.

        They differ most in how long they take to learn, so it is at a third of a training, not at its beginning.
        """
        return max((rung for rung, epochs in enumerate(self.rungs) if 3 * epochs <= self.epochs[1]), default=0)

    @property
    def open(self) -> list[str]:
        """Dotted names of the searched hyperparameters."""
        return [*self.searched.unfixed()]

    @cached_property
    def searched(self) -> Space:
        """Searched space, as it applies to the next trials."""
        return self.spaces[-1]

    @cached_property
    def spaces(self) -> Sequence[Space]:
        """Searched spaces: the first one, and that after each change."""
        from ...spaces import Space

        return [Space.from_priors(priors) for priors in self._priors]

    @property
    def priors(self) -> dict[str, Any]:
        """Texts of the priors, as they apply to the next trials."""
        return self._priors[-1]

    @property
    def _priors(self) -> list[dict[str, Any]]:
        changes = [self.space, *(priors for _, priors in self.options.get("spaces", ()))]
        return [dict(ChainMap(*reversed(changes[: n + 1]))) for n in range(len(changes))]

    def space_in(self, algorithm: type[Task], env: Mapping[str, Any] | None = None) -> Space:
        """Return all hyperparameters that the algorithm has in an environment.

        Args:
            algorithm: class of the task.
            env: JSON of the environment; by default the study's first.
        """
        from ...tasks.envs import EnvSpec  # imports torch

        return algorithm.learner.space_in(EnvSpec.of(self.env if env is None else env))

    def further_objectives(self, algorithm: type[Task]) -> list[str]:
        """Return what evaluation measures besides the task's objective."""
        from ...tasks.envs import EnvSpec  # imports torch

        return algorithm.learner.further_objectives(EnvSpec.of(self.env))

    def most_epochs(self, algorithm: type[Task], env: Mapping[str, Any] | None = None) -> int | None:
        """Return an environment's number of epochs; None for no end.

        Args:
            algorithm: class of the task.
            env: JSON of the environment; by default the one with the fewest epochs.
        """
        from ...tasks.envs import EnvSpec  # imports torch

        of_each = [algorithm.learner.most_epochs(EnvSpec.of(e)) for e in (self.environments if env is None else [env])]
        return min((epochs for epochs in of_each if epochs is not None), default=None)

    @property
    def eval_episodes(self) -> int:
        """Number of episodes of each evaluation, unless its steps end earlier."""
        return int(self.options.get("eval_episodes", EVALUATION_EPISODES))

    def eval_steps(self, epochs: int, hyperparameters: Mapping[str, Any]) -> tuple[float | None, int]:
        """Return steps and most episodes of an evaluation; None for no limit.

        Args:
            epochs: total epochs.
            hyperparameters: of the trial, whose `epoch_steps` count.
        """
        if (rungs := self.options.get(EVAL_STEPS)) is None:
            return None, self.eval_episodes
        _, share, *most = next((rung for rung in rungs if rung[0] >= epochs), rungs[-1])
        return float(share * hyperparameters["epoch_steps"]), most[0] if most else self.eval_episodes  # older: no most

    def make_task(
        self,
        algorithm: type[Task],
        values: Mapping[str, Any],
        storage: Storage | None,
        start: str | None = None,
        seed: int | None = None,
        device: str = "cpu",
        env: Mapping[str, Any] | None = None,
    ) -> Task:
        """Return the initialized task of a trial.

        Args:
            algorithm: class of the task.
            values: hyperparameters.
            storage: storage for its checkpoints.
            start: digest of the state that a branch starts from.
            seed: seed of a replicate; None for the study's seed.
            device: see `Task`.
            env: environment of a replicate; None for the study's first.
        """
        seed, snapshots = self.seed if seed is None else seed, self.options.get("snapshots")
        env = self.env if env is None else env
        how: dict[str, Any] = {"snapshots": snapshots, "device": device, "eval_episodes": self.eval_episodes}
        chosen, hyperparameters = algorithm.chosen(env, values)
        task = chosen(env, seed=seed, storage=storage, **how)
        return task.init(start=start or self.options.get("warm_start"), **unflatten(hyperparameters))

    def identity(
        self,
        algorithm: type[Task],
        values: Mapping[str, Any],
        start: str | None = None,
        seed: int | None = None,
        env: Mapping[str, Any] | None = None,
    ) -> TaskIdentity:
        """Return the identity of a trial's task without creating the task."""
        from ...tasks.identity import TaskIdentity  # imports torch

        seed, env = self.seed if seed is None else seed, self.env if env is None else env
        chosen, hyperparameters = algorithm.chosen(env, values)
        return TaskIdentity.of(chosen, env, seed, hyperparameters, start or self.options.get("warm_start"))

    def probe(self, algorithm: type[Task], device: str = "cpu") -> None:
        """Build environments and networks once, to raise this machine's errors."""
        alone = replace(self, options={name: self.options[name] for name in self.options if name == "eval_episodes"})
        for env in self.environments:
            alone.make_task(algorithm, self.fixed, None, device=device, env=env).probe()

    def uses_kernels(self, algorithm: type[Task]) -> bool:
        """Return whether kernels compute something of its trainings."""
        from ...tasks.envs import EnvSpec  # imports gymnasium

        return any(algorithm.learner.uses_kernels(EnvSpec.of(env)) for env in self.environments)


def check_name(name: object) -> str:
    """Return the name of a new study, or raise BadConfig."""
    if isinstance(name, str) and 0 < len(name.encode(errors="replace")) <= LONGEST_NAME:
        return name
    got = f"{len(name)} characters, {name[:20]!r}..." if isinstance(name, str) and name else repr(name)
    raise BadConfig(f"a study has a name of 1 to {LONGEST_NAME} bytes, but got {got}; choose another")


def title(task: str, *environments: Mapping[str, Any] | None) -> str:
    """Return the name of a task with the names of its environments."""
    names = ", ".join(env["id"] for env in environments if env)
    return f"{label(task)} on {names}" if names else label(task)


def choose(subject: str, name: str, names: Sequence[str]) -> str:
    """Return a known name, or raise a BadConfig that suggests the nearest."""
    if name in names:
        return name
    near = get_close_matches(name, names, n=1)
    raise BadConfig(
        f"{subject} must be one of {', '.join(names)}, but got {name!r}"
        + (f"; did you mean {near[0]}?" if near else "")
    )


def default_scheduler(racing: bool) -> str:
    """Return the scheduler of a study that names none."""
    return next(name for name, facts in SCHEDULERS.items() if facts.races or not racing)


def default_epochs(algorithm: type[Task], environments: Iterable[Any]) -> int:
    """Return the default number of epochs.

    It is EPOCHS, or less if one of the environments (as `Task` takes them) ends earlier.
    """
    from ...tasks.envs import EnvSpec  # imports gymnasium

    ends = [algorithm.learner.most_epochs(EnvSpec.of(env)) for env in environments]
    return min([EPOCHS, *(end for end in ends if end is not None)])


def check_end(env: str, most: int | None, epochs: int) -> None:
    """Raise BadConfig if an environment has fewer epochs; None means no end."""
    if most is not None and epochs > most:
        raise BadConfig(f"{env} has {most} epochs, but --epochs ends at {epochs}; end at {most}")


def check_epochs(epochs: Sequence[int], scheduler: str = "halving") -> list[int]:
    """Return [low, high, base] for one to three numbers, or raise BadConfig."""
    if not 1 <= len(epochs) <= 3:
        raise BadConfig(f"epochs are low:high:base, one to three numbers such as 1:27:3, but got {[*epochs]}")
    filled = [*epochs, *epochs] if len(epochs) == 1 else [*epochs]
    low, high, base = filled = [*filled, scheduling(scheduler).base] if len(filled) == 2 else filled
    for name, value, least in (("low", low, 1), ("high", high, low), ("base", base, 2)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            law = "epochs are low:high:base with 1 <= low <= high and base >= 2"
            raise BadConfig(f"{law}, but in {':'.join(map(str, epochs))} {name} is {value!r}")
    check_count("epochs", high)
    return filled


def parse_epochs(epochs: int | str | Sequence[int], scheduler: str = "halving") -> list[int]:
    """Return [low, high, base] for epochs as a user writes them.

    They are 27, ``1:27``, ``1:27:3``, or the same numbers in a list. A stored study may have a base above high, but who
    writes one means three rungs.
    """
    if isinstance(epochs, str):
        parts = epochs.split(":")
        if not 1 <= len(parts) <= 3 or not all(part.strip().isdecimal() for part in parts):
            raise BadConfig(f"epochs must be written high, low:high or low:high:base, such as 1:27, but got {epochs!r}")
        epochs = [int(part) for part in parts]
    numbers = [*epochs] if isinstance(epochs, Sequence) else [epochs]
    low, high, base = filled = check_epochs(numbers, scheduler)
    if len(numbers) == 3 and low < high < base:
        times = max(2, high // low)
        raise BadConfig(
            f"epochs are low:high:base with base <= high, but got {low}:{high}:{base}; for rungs from {low} to {base}, "
            f"each {times} times the one before, write {low}:{base}:{times}"
        )
    return filled


def weight_of(form: Mapping[str, Any]) -> float:
    """Return the weight in the JSON of a study's configuration."""
    return float(form.get("options", {}).get("weight", 1.0))


def check_at_once(config: Config) -> None:
    """Raise BadConfig if one plan would create more trials than memory holds."""
    seeds = int(config.options.get("seeds", 1))
    trials = min(config.generation, config.trials[-1]) * seeds
    if trials > MOST_AT_ONCE:
        raise BadConfig(
            f"a study makes at most {MOST_AT_ONCE} trials at once, but generation {config.generation} with seeds "
            f"{seeds} makes {trials}; lower --generation or --seeds"
        )
