"""Studies from Python: `tune` runs one, `Study` holds its results.

    study = rekindle.tune(rekindle.PPO, "CartPole-v1", trials=16, epochs=(1, 27), storage="sqlite:///studies.db")
    study.best.hyperparameters, study.best.value
    task = study.store.task(study.best.uid)  # ready to act, evaluate or train further

Workers started from the command line can share such a study, and either side can resume it.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

from ..spaces import flatten, unflatten
from ..spaces.arguments import at_least, checked
from ..spaces.errors import near
from ..spaces.values import argument, by_name, plain
from ..tasks.registry import load
from ..tasks.runtime import EVALUATION_ENVS
from ..tasks.runtime.notebook import html_table
from ..tasks.signals.demonstrations import Demonstrations
from ..tasks.warm_start import located
from .analysis.learning import all_located
from .creation import Remake, create_study
from .engine.checked_config import load_task, remarks
from .engine.confirmation_views import confirmation_view
from .engine.confirmations import confirmation_config, start_confirmation
from .engine.optuna_mirror import mirror
from .engine.players import with_stored_policies
from .engine.sizing import SEEDS, Sized, candidates_of, is_given_time_alone
from .engine.snapshots import StudyProgress
from .engine.study_views import study_view
from .engine.tune_options import listed, study_config
from .engine.views import StudyView, TrialView
from .errors import BadConfig, StoreError, StudyMismatch
from .options.option import with_keywords
from .options.study_options import STUDY, StudyOptions
from .redact import printable
from .report.answer import answer
from .report.data import report_view
from .report.page import write_report
from .report.pictures import Pictures
from .starts import SourceNames, Sources, source_of, started, stored_steps
from .steering.steering import Steering
from .storage.commands import Command
from .storage.sql.database import full_url
from .storage.store import Store, opened
from .study import FRESH_SEEDS, TOP
from .study.config import Config, check_name, title
from .study.number_text import in_digits_alone
from .study.objectives import objectives_of
from .workers import DEFAULT_URL, URL_VARIABLE
from .workers.worker import Worker

if TYPE_CHECKING:
    from pandas import DataFrame
    from tqdm import tqdm

    from ..tasks.task import Task

LOOK_EVERY = 0.5  # seconds between two looks at the progress
CALLER = 3  # stack level of the line that calls `tune`, beyond the check of its arguments


@dataclass(frozen=True)
class StudyTrial:
    """A trial, with the results of its last finished rung.

    Attributes:
        number: trial number.
        uid: uid of its task; pass it to `Store.task`.
        state: "running" (a process trains it now), "waiting" (started, but none does), "complete", "pruned",
            "failed" or "cancelled".
        epochs: epochs at that rung; 0 before the first result.
        value: first objective of the study, the return by default; None before the first result.
        objectives: all objectives by name.
        digest: digest of the complete state; None before the first result.
        hyperparameters: complete values, by dotted name.
        error: why the trial failed, or None.
        repeats: number of the trial that it trains again with another seed, or None.
        over_seeds: objectives, as means over a trial and those that repeat it, by which they rank; None without any.
        violation: how far it violates the study's constraints, relative to their bounds; 0 if it is feasible, None
            without constraints or a result.
    """

    number: int
    uid: str
    state: str
    epochs: int
    value: float | None
    objectives: Mapping[str, float]
    digest: str | None
    hyperparameters: Mapping[str, Any]
    error: str | None
    violation: float | None = None
    repeats: int | None = None
    over_seeds: Mapping[str, float] | None = None

    @classmethod
    def of(cls, view: TrialView, objectives: Sequence[str]) -> StudyTrial:
        """Create a trial from its view."""
        results = view.results()
        measured = {name: results[name] for name in objectives if name in results}
        names = ("number", "uid", "state", "epochs", "digest", "hyperparameters", "error", "violation", "repeats")
        value = next(iter(measured.values()), None)
        return cls(
            **{name: getattr(view, name) for name in names},
            value=value,
            objectives=measured,
            over_seeds=view.over_seeds,
        )


class Study(Pictures):
    """A stored study, with its results and the methods to steer it.

    Args:
        name: name of the study.
        storage: URL or Store.

    Raises:
        UnknownStudy: the storage has no study of this name.
    """

    def __init__(self, name: str, storage: str | Store):
        if not isinstance(name, str):
            raise TypeError(f"Study: a study has a text as name, but got {name!r}")
        self.name, self.store = name, storage if isinstance(storage, Store) else Store(storage)
        self.store.study(name)

    def __repr__(self) -> str:
        return f"Study({self.name!r}, {self.store.url!r})"

    def _repr_html_(self) -> str:
        view = self._view()
        facts: dict[str, Any] = {"state": view.state, **{state: n for state, n in view.counts.items() if n}}
        if (best := view.best) is not None:
            facts |= {"best": f"trial {best.number} ({best.uid[:8]}), {best.epochs} epochs", **best.results()}
            facts |= {name: best.hyperparameters.get(name) for name in self.config.open}
        return html_table(f"{view.study}: {title(view.task, *view.environments or [view.env])}", facts)

    @property
    def config(self) -> Config:
        """Configuration: everything that the study's trials depend on."""
        return Config.from_json(self.store.study(self.name).config, self.name)

    @property
    def complete(self) -> bool:
        """True if there is nothing left to train."""
        return StudyProgress(self.store, self.name).look().complete

    @property
    def trials(self) -> list[StudyTrial]:
        """All trials, in order of their numbers."""
        return self._trials(self._view().trials)

    @property
    def best(self) -> StudyTrial | None:
        """Best of the trials that trained longest; None before the first result.

        Trials that others repeat rank by the mean over their seeds. Equal trials are ordered by their results on the
        rung before, and so on. Of several objectives the first decides. Of a confirmation it is the winner, with the
        estimate as its result.
        """
        best = self._view().best
        return None if best is None else self._trials([best])[0]

    @property
    def front(self) -> list[StudyTrial]:
        """Pareto front of the trials that trained longest.

        Of a confirmation it is the winner alone, and empty before the end.
        """
        view = self._view()
        return self._trials([view.trials[number] for number in view.front])

    def dataframe(self) -> DataFrame:
        """Return a DataFrame with one row per trial: results and hyperparameters.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            from pandas import DataFrame
        except ImportError as error:
            raise ImportError("Study.dataframe needs pandas, which is not installed: pip install pandas") from error
        names = ("number", "uid", "state", "epochs")
        rows = [
            {name: getattr(trial, name) for name in names} | {**trial.objectives} | {**trial.hyperparameters}
            for trial in self.trials
        ]
        return DataFrame(rows).set_index("number") if rows else DataFrame(columns=[*names]).set_index("number")

    @checked()
    def run(
        self,
        *,
        progress: bool = True,
        device: str = "cpu",
        env_processes: int = 0,
        eval_envs: int = EVALUATION_ENVS,
        use_previous: bool = False,
        callbacks: Callback | Sequence[Callback] = (),
    ) -> Study:
        """Train in this process until the study is complete; return the study.

        Ctrl-C stops after the current step. Everything is saved then, and the same call resumes.

        Args:
            progress: whether to show a progress bar, in a terminal or a notebook.
            device: see `Task`.
            env_processes: see `Task`.
            eval_envs: see `Task`.
            use_previous: whether to replace a damaged checkpoint by the last sound one.
            callbacks: function, or functions, called with this study and a trial after each rung that this process
                trains, once everything is saved (with several seeds, that of the last one). They may steer the study
                (`study.stop()`). An exception from them ends this call and loses nothing.

        Returns:
            The study itself.

        Raises:
            KeyboardInterrupt: after Ctrl-C.
            StoreError: the store failed, or the remaining trials need a decision from you.
            TypeError: a callback is no function.
        """
        functions = _functions(callbacks)
        processes, envs = at_least("run", "env_processes", env_processes, 0), at_least("run", "eval_envs", eval_envs, 1)
        with _bar(self, progress) as bar:
            worker = Worker(
                self.store,
                self.name,
                device=device,
                env_processes=processes,
                eval_envs=envs,
                use_previous=use_previous,
                say=bar.write,
                ended=partial(self._call, functions),
            )
            worker.runner.check()
            worker.run()
        mirror(self.store, self.name)
        return self

    def confirm(
        self, top: int = TOP, seeds: int = FRESH_SEEDS, eval_episodes: int | None = None, **how: Any
    ) -> dict[str, Any]:
        """Train the best configurations and the defaults on fresh seeds.

        The same call resumes, and later gives the same answer while the study is the same. Once the confirmation is
        complete, other numbers or other best configurations start a further one, on seeds that no earlier one has
        used. The result is the JSON of `rekindle confirm`: the expected result of the race's winner with a 95%
        interval, the probability that it beats the defaults, and how much the search overstated it.

        Args:
            top: number of configurations besides the defaults.
            seeds: seeds per estimate, at least 3.
            eval_episodes: episodes of each evaluation; None for as many as in the study.
            how: arguments of `run`.

        Raises:
            BadConfig: the study cannot be confirmed, or a number is too small.
            StudyMismatch: an unfinished confirmation has other numbers.
            TypeError: an argument is unknown.
            KeyboardInterrupt: after Ctrl-C.
        """
        try:
            arguments = signature(self.run).bind(**how).arguments  # all errors come before a confirmation is stored
        except TypeError as error:
            raise TypeError(f"Study.confirm: {error}; it takes top, seeds, eval_episodes and those of run") from None
        numbers = argument(top), argument(seeds), argument(eval_episodes)
        config = confirmation_config(self.store, self.name, *numbers)
        config.probe(load_task(config), arguments.get("device", "cpu"))
        name = start_confirmation(self.store, self.name, config)
        Study(name, self.store).run(**how)
        result = confirmation_view(self.store, self.name, name=name)
        assert result is not None
        return result.to_json()

    @checked()
    def answer(self, path: str | Path) -> str:
        """Write the best agent's policy, and return a paragraph of results.

        Of a confirmed study, that is the best of the winner's trainings on fresh seeds; else that of the best trial.

        Args:
            path: file to write, see `Task.export_policy`.

        Raises:
            ValueError: no trial has a result, or the file cannot be written.
        """
        return answer(self.store, self.name, Path(path))

    @checked()
    def stop(self, why: str = "") -> Command:
        """Ask all workers of the study, anywhere, to save and exit.

        Args:
            why: reason to record.
        """
        return self._steering.stop(why)

    @checked()
    def pause(self, why: str = "") -> Command:
        """Ask all workers of the study, anywhere, to save and wait.

        Args:
            why: reason to record.
        """
        return self._steering.pause(why)

    @checked()
    def resume(self, why: str = "") -> Command:
        """Resume a study that was stopped or paused.

        Args:
            why: reason to record.
        """
        return self._steering.resume(why)

    def cancel(self, trial: int | str, why: str = "") -> Command:
        """End a running trial.

        Args:
            trial: its number or uid.
            why: reason to record.
        """
        return self._steering.cancel(argument(trial), why)

    def exclude(self, trial: int | str, why: str = "") -> Command:
        """Make samplers and schedulers ignore a trial.

        Args:
            trial: its number or uid.
            why: reason to record.
        """
        return self._steering.exclude(argument(trial), why)

    def enqueue(self, hyperparameters: Mapping[str, Any], why: str = "") -> Command:
        """Try these hyperparameters next.

        Args:
            hyperparameters: values, nested or dotted; missing ones take their defaults.
            why: reason to record.
        """
        return self._steering.enqueue(flatten(plain(by_name(hyperparameters))), why)

    def extend(self, trials: int | None = None, why: str = "", **other: Any) -> Command:
        """Extend the study: more trials or epochs, other ranges or other bounds.

        Args:
            trials: total number of configurations.
            why: reason to record.
            other: epochs (the total), priors (for the next trials), weight; budget, goal and plateau as in `tune`, or
                "off".
        """
        return self._steering.extend(argument(trials), why, **{name: argument(value) for name, value in other.items()})

    @property
    def commands(self) -> list[Command]:
        """Commands given to the study, with who gave them, when and why."""
        return self.store.commands(self.name)

    @property
    def _steering(self) -> Steering:
        return Steering(self.store, self.name)

    @checked()
    def report(self, path: str | Path) -> None:
        """Write an HTML report of the study; equal rows give equal bytes.

        Raises:
            ValueError: the file cannot be written.
        """
        write_report([report_view(self.store, self.name)], Path(path))

    def _call(self, callbacks: Sequence[Callback], number: int) -> None:
        if not callbacks or self._awaits_seeds(number):
            return
        [trial] = [trial for trial in self.trials if trial.number == number]
        for callback in callbacks:
            callback(self, trial)

    def _awaits_seeds(self, number: int) -> bool:
        """Return whether other seeds of a configuration still train to a rung."""
        rows = [row for row in self.store.segments(self.name) if row.configuration == number]
        reached = max((row.rung for row in rows if row.state == "done"), default=0)
        return any(row.rung == reached and row.state == "ready" for row in rows)

    def _view(self) -> StudyView:
        return study_view(self.store, self.name)

    def _trials(self, views: Sequence[TrialView]) -> list[StudyTrial]:
        names = list(objectives_of(self.config))
        return [StudyTrial.of(view, names) for view in views]


@with_keywords(StudyOptions)
@checked(BadConfig)
def tune(
    task: type[Task] | str,
    env: Any = None,
    *,
    storage: str | Store | None = None,
    epochs: int | str | Sequence[int] | None = None,
    study: str | None = None,
    progress: bool = True,
    device: str = "cpu",
    env_processes: int = 0,
    eval_envs: int = EVALUATION_ENVS,
    fixed: Mapping[str, Any] | None = None,
    priors: Mapping[str, str] | None = None,
    known: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
    warm_start: Any = None,
    demonstrations: Any = None,
    learn_from: str | Sequence[str] = (),
    callbacks: Callback | Sequence[Callback] = (),
    **options: Unpack[StudyOptions],
) -> Study:
    """Search for good hyperparameters in this process; the same call resumes.

    The study is the one that `rekindle tune` creates from the same options. This call trains it to the end. Workers
    elsewhere (`rekindle worker --study NAME`) can share it meanwhile. With the task "auto", `budget="30m"` alone gives
    the size of the study, and its winner is confirmed; `Study.answer` then writes the agent.

    Args:
        task: algorithm, such as PPO or "ppo", or a function decorated by `rekindle.task`.
        env: see `Task`.
        storage: URL or Store; by default $REKINDLE_STORAGE, or rekindle.db in the working directory.
        epochs: (low, high), (low, high, base) with base <= high, or a string such as "1:27". Every trial trains for
            `low` epochs, the best of them for `base` times as many, and so on up to `high`. A single number trains
            every trial that long. None means (1, 27), or up to the last epoch of a recorded table.
        study: name; by default made from the task's and the environment's names.
        progress: whether to show a progress bar, in a terminal or a notebook.
        device: see `Task`.
        env_processes: see `Task`.
        eval_envs: see `Task`.
        fixed: hyperparameters that are not searched, nested.
        warm_start: policy that every trial starts from, see `Task`; the storage keeps it.
        demonstrations: demonstrations for every trial, see `Task`; the storage keeps them.
        learn_from: earlier studies whose results guide the early trials: names, or URL#NAME for another storage.
        callbacks: see `Study.run`.
        priors: ranges to search by dotted name, in place of those of the task.
        known: hyperparameters of the first trials, nested or by dotted name.
        options: see `StudyOptions`.

    Returns:
        The study.

    Raises:
        BadConfig: the options contradict each other, or do not suit the task, or a source is no name.
        StudyMismatch: a study of this name was created with other options.
        TypeError: an option is unknown.
        KeyboardInterrupt: after Ctrl-C; everything is saved.
    """
    for name in options.keys() - STUDY.keys():
        keywords = sorted(signature(tune).parameters)
        cure = near(name, keywords) or "; a hyperparameter that is not searched goes into fixed={...}"
        raise TypeError(f"tune has no option {name!r}{cure}")
    epochs, fixed, known = argument(epochs), plain(by_name(fixed)), plain(by_name(known))
    options = cast("StudyOptions", {name: argument(value) for name, value in options.items()})
    flatten(fixed or {})  # raises WrongType for what is no dict
    functions = _functions(callbacks)  # before a study is stored, as all checks
    env_processes, eval_envs = (
        at_least("tune", name, value, least)
        for name, value, least in (("env_processes", env_processes, 0), ("eval_envs", eval_envs, 1))
    )
    storage = (
        storage if isinstance(storage, Store) else full_url(storage or os.environ.get(URL_VARIABLE) or DEFAULT_URL)
    )
    algorithm = load(task) if isinstance(task, str) else task
    if not (isinstance(algorithm, type) and hasattr(algorithm, "learner")):
        raise TypeError(
            f"tune: a task is an algorithm, such as PPO or 'ppo', or a function that is one, but got {task!r}"
        )
    names = SourceNames.of(warm_start, demonstrations)
    warm_start, demonstrations, sources = located(warm_start), located(demonstrations), all_located(learn_from)

    named_env = partial(with_stored_policies, opened=partial(opened, storage))
    env = [*map(named_env, env)] if isinstance(env, list | tuple) else named_env(env)
    if demonstrations is not None and "demonstrated_steps" not in (fixed or {}):
        fixed = {"demonstrated_steps": _demonstrated_steps(demonstrations, names, storage), **(fixed or {})}

    def make(settings: Mapping[str, Any], sized: Sized | None, decided: Mapping[str, Any]) -> Config:
        values = unflatten({**decided, **flatten(fixed or {})}) if decided else fixed
        return study_config(algorithm, env, fixed=values, priors=priors, known=known, sized=sized, **settings)

    settings = {"epochs": epochs, **options}
    config = make(settings, None, {})
    config.probe(algorithm, device)  # before the study is stored, so that one that cannot train is not
    name = check_name(config.default_name if study is None else study)
    store = storage if isinstance(storage, Store) else Store(storage)

    def read() -> Sources:
        examples = None if demonstrations is None else Demonstrations.load(demonstrations)
        return Sources(source_of(warm_start, names.policy), examples, names.demonstrations)

    def start(config: Config, remake: Remake) -> Config:
        searched = {*listed(options.get("search", ())), *(priors or {})}
        return started(store, name, config, algorithm, names, read, remake, searched)

    stored_config = create_study(
        store,
        name,
        algorithm,
        config,
        make,
        settings,
        priors=(priors or {}).keys(),
        given_options={key for key, value in options.items() if value is not None},
        sources=sources,
        start=start if warm_start is not None or demonstrations is not None else None,
    )
    for text in remarks(stored_config):
        warnings.warn(text, stacklevel=CALLER)
    how: dict[str, Any] = {"device": device, "env_processes": env_processes, "eval_envs": eval_envs}
    tuned = Study(name, store).run(progress=progress, **how, callbacks=functions)
    if is_given_time_alone(config, algorithm, options.get("trials"), epochs) and tuned.complete:
        try:
            tuned.confirm(candidates_of(stored_config), SEEDS, progress=progress, **how)
        except (BadConfig, StudyMismatch) as error:  # the search has ended well
            warnings.warn(f"study {name} is not confirmed: {error}", stacklevel=CALLER)
    return tuned


def _demonstrated_steps(demonstrations: Any, names: SourceNames, storage: str | Store) -> int:
    """Return the number of demonstrated steps, also if their file is gone.

    Raises:
        BadDemonstrations: it is, and no study of this storage began with it.
    """
    steps = None
    if isinstance(demonstrations, Path) and not demonstrations.exists():
        with opened(storage) as store:
            steps = stored_steps(store, names)
    return Demonstrations.load(demonstrations).steps if steps is None else steps


Callback = Callable[[Study, StudyTrial], None]


def _functions(callbacks: Callback | Sequence[Callback]) -> Sequence[Callback]:
    """Return callbacks as a list, or raise TypeError."""
    functions = [callbacks] if callable(callbacks) else callbacks
    if not isinstance(functions, Sequence) or not all(map(callable, functions)):
        raise TypeError(f"callbacks are functions of a study and a trial, but got {callbacks!r}")
    return functions


@contextmanager
def _bar(study: Study, visible: bool) -> Iterator[tqdm[Any]]:
    """Show a progress bar of the epochs, updated by a thread."""
    from tqdm.auto import tqdm  # a widget in a notebook, a line in a terminal

    done, state = threading.Event(), StudyProgress(study.store, study.name)

    def look(bar: tqdm[Any]) -> None:
        with suppress(StoreError):  # the worker waits for the database, and says so
            snapshot = state.look()
            bar.total, bar.n = snapshot.epochs_total, snapshot.epochs
            if best := snapshot.best:
                text = f"best {in_digits_alone(best.value)} ({best.name} at epoch {best.epochs})"
                bar.set_postfix_str(text, refresh=False)
            bar.refresh()  # also without a best trial, which a race has only at its end

    def watch(bar: tqdm[Any]) -> None:
        while not done.wait(LOOK_EVERY):
            look(bar)

    with tqdm(desc=printable(study.name), unit="epoch", disable=not visible) as bar:
        thread = threading.Thread(target=watch, args=(bar,), daemon=True)
        thread.start()
        try:
            yield bar
        finally:
            done.set()
            thread.join()
            look(bar)
