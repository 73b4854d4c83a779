"""Task: the public interface of one resumable training."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..spaces import flatten, unflatten
from ..spaces.arguments import checked
from .base_learner import BaseLearner, MemberRef
from .checkpoint.manifests import canonical_json
from .checkpoint.policy_files import write_policy
from .checkpoint.storage import Metrics
from .cohort import Cohort
from .deployment.exporting import ExportError, format_of, write_program
from .deployment.predicting import Predictor, player
from .deployment.video import film
from .envs import Envs
from .errors import LARGEST, LOWER_RATES, Diverged
from .evaluation.episodes import OnStep
from .evaluation.measuring import measure_episodes, record
from .evaluation.objective import check_finite, evaluate
from .evaluation.players import other_env, playing
from .identity import EnvLike, check_seed
from .learner import Learner
from .resumable import Resumable
from .runtime import EVALUATION_SEED
from .runtime.interrupts import Interrupts
from .runtime.notebook import html_table
from .runtime.observers import Context, Until
from .runtime.progress import at_work
from .runtime.threads import one_thread
from .signals.demonstrations import Demonstrations, Recorder

SHOWN = ("return", "episode_return", "env_steps")  # metrics shown in a notebook


class Task(Resumable):
    """A resumable training with one seed.

    A task usually trains one algorithm in one environment, but it can train anything that learns.

        task = PPO("CartPole-v1", seed=1, storage=Store("sqlite:///studies.db"))
        task.init(gamma=0.98, optimizer={"lr": 1e-3})
        task.fit(epochs=9)      # up to 9 epochs in all
        task.fit(epochs=27)     # 18 more

    Attributes:
        name: name of the algorithm.
        version: version of the algorithm; it changes when the same hyperparameters would give other results.
        learner: class that implements the algorithm's mathematics.
        env: environment with its wrappers; falsy for a task without one.
        seed: seed of all random streams.
        device: torch device that holds the tensors.
        fixed: hyperparameters that the constructor took out of the space, by dotted name.
        uid: hash of everything the result depends on except the number of epochs; empty before `init`.
        stored: history, events and checkpoints.
        ref: learner that holds the task's state, and the task's index in it; None until one is needed.
        load_report: names of the parts that a warm start loaded; None without one.
        bad: exception that broke the task, or None.
        between_steps: whether the state is consistent right now, that is, no step is in progress.
    """

    _acting: Predictor | None = None
    _recorders: Sequence[Recorder] = ()

    def _repr_html_(self) -> str:
        values = self._identity.values if self._identity else {}
        facts = {"epochs": self.epochs, **{name: self.metrics.get(name) for name in SHOWN if name in self.metrics}}
        return html_table(str(self), facts | dict(values))

    @classmethod
    def chosen(cls, env: EnvLike, values: Mapping[str, Any]) -> tuple[type[Task], dict[str, Any]]:
        """Return the class that hyperparameters choose, and its own hyperparameters.

        These are by dotted name. It is this class, unless a study chooses among several, see `algorithms.auto`.
        """
        return cls, flatten(values)

    @classmethod
    def starts(cls, env: EnvLike) -> list[dict[str, Any]]:
        """Return hyperparameters for a study's first trials, by dotted name."""
        return []

    @classmethod
    def named(cls, algorithm: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return hyperparameters of the chosen class as this one names them.

        Args:
            algorithm: name of the chosen class.
            values: its own hyperparameters, by dotted name.
        """
        return dict(values)

    def fit(self, epochs: int | None = None, context: Context | None = None, until: Until | None = None) -> Metrics:
        """Train until `epochs` epochs are done, and return the last metrics.

        A call that asks for no more epochs than are done changes nothing. SIGTERM and SIGINT take effect between two
        steps, after the state is saved.

        Args:
            epochs: total to reach; None for the epochs that `init` got with a sampled space.
            context: function called with an EpochEvent at the end of each epoch, or a mapping that is passed to
                the logger as `EpochEvent.context`. An exception from it, or from the logger, ends training; the state
                is saved and the task stays usable.
            until: function of the history so far that returns true to end training early, see `runtime.observers`.

        Raises:
            ValueError: neither `fit` nor `init` got epochs.
            NotInitialized: `init` was not called yet.
            BadResume: the task broke earlier.
            Diverged: a loss or a parameter became NaN or infinite.
            TaskError: the task no longer holds its lease.
            Stopped: SIGTERM arrived; the state is saved.
            KeyboardInterrupt: SIGINT arrived; the state is saved.
        """
        total = self.suggested_epochs if epochs is None else epochs
        if total is None:
            raise ValueError(f"{self}: fit needs epochs, the total to reach, unless init(epochs=...) gave them")
        _ = self.identity
        Cohort([self]).fit(total, context, until)
        return self.metrics

    @property
    def recent_returns(self) -> list[float]:
        """Training returns of the last `stats_window_size` episodes, oldest first.

        For SVPG, the particles' returns follow one another.

        Raises:
            ValueError: `stats_window_size` is None.
        """
        learner, member = self.member_ref()
        acting: Any = getattr(learner, "particles", None) or learner
        if getattr(acting, "window", None) is None:
            raise ValueError(
                f"{self}: recent_returns are those of the last stats_window_size episodes, but it is None; set it, to "
                "100 for instance"
            )
        count = acting.members // learner.members
        return [value for i in range(member * count, (member + 1) * count) for value in acting.window.recent(i)]

    @checked()
    def evaluate(
        self,
        episodes: int | None = None,
        deterministic: bool = True,
        env: EnvLike | None = None,
        seed: int | None = None,
        on_step: OnStep | None = None,
    ) -> float:
        """Return the mean undiscounted return over evaluation episodes with fixed seeds.

        Training never uses these seeds, and evaluation does not change the state. A task without episodes returns its
        own objective.

        Args:
            episodes: number of episodes; None for the task's `eval_episodes`.
            deterministic: greedy actions; False samples them as in training, with the same random numbers in every
                call.
            env: another environment with the same spaces. A mapping without an id changes the task's own environment,
                such as ``{"parameters": {"gravity": 5.0}}``.
            seed: seed of the episodes; None for the standard ones.
            on_step: called at each step; it may raise to stop (see `measure_episodes`).

        Raises:
            ValueError: `episodes` is below 1, or the seed is invalid.
            UnsupportedSpace: `env` has other spaces, or the task has no environment.
        """
        if not deterministic:
            return statistics.fmean(self.returns(episodes, deterministic, env, seed, on_step))
        learner, member, count = self._evaluated(episodes)
        mean = float(evaluate(learner, count, **self._elsewhere(env, seed), on_step=on_step)[member])
        check_finite(learner, member, [mean], str(self))
        return mean

    def score_epoch(self) -> float:
        """Return the last epoch's objective, measured unless its metrics have it.

        It becomes one of them, in the storage, too. SIGTERM and SIGINT take effect between two steps.

        Raises:
            Diverged: it is no finite number.
            Stopped: SIGTERM arrived.
            KeyboardInterrupt: SIGINT arrived.
        """
        if (score := self.score_in(self.metrics)) is not None:
            return self.finite(score)
        with Interrupts(), at_work():
            score = self.finite(self.evaluate(on_step=Interrupts.raise_if_asked))
        if self.history and self.history[-1][0] == self.epochs:
            self.stored.add_metrics(self.score_metrics(score))
        return score

    def finite(self, score: float) -> float:
        """Return a measured objective; raise Diverged if it is no finite number."""
        if abs(score) <= LARGEST:
            return score
        cure = self.ref.learner.cure(self.ref.member) if self.ref else LOWER_RATES
        raise Diverged(f"{self}: the evaluation {self.objective} became {score}; {cure}")

    @checked()
    def returns(
        self,
        episodes: int | None = None,
        deterministic: bool = True,
        env: EnvLike | None = None,
        seed: int | None = None,
        on_step: OnStep | None = None,
    ) -> list[float]:
        """Return the return of each evaluation episode.

        The arguments are those of `evaluate`. For SVPG, the particles' episodes follow one another. `on_step` is called
        at each step and may raise to stop (see `measure_episodes`).
        """
        learner, member, count = self._evaluated(episodes)
        measured = measure_episodes(learner, count, deterministic, on_step, **self._elsewhere(env, seed))
        returns: list[float] = measured.returns[member].tolist()
        check_finite(learner, member, returns, str(self))
        return returns

    @checked()
    def measure(
        self,
        episodes: int | None = None,
        deterministic: bool = True,
        env: EnvLike | None = None,
        seed: int | None = None,
    ) -> dict[str, list[float]]:
        """Return the `return` of each evaluation episode, and each reported `info.NAME`.

        The arguments are those of `evaluate`. An info entry is NaN for episodes that did not report it.
        """
        learner, member, count = self._evaluated(episodes)
        measured = measure_episodes(learner, count, deterministic, **self._elsewhere(env, seed))
        check_finite(learner, member, measured.returns[member].tolist(), str(self))
        info = {f"info.{name}": values[member].tolist() for name, values in measured.info.items()}
        return {"return": measured.returns[member].tolist(), **info}

    def _elsewhere(self, env: EnvLike | None, seed: int | None) -> dict[str, Any]:
        """Return keyword arguments for evaluation with another environment or seed."""
        if seed is not None:
            seed = check_seed(str(self), seed)
        options = {"env": None if env is None else other_env(self.env, env, str(self)), "seed": seed}
        return {name: value for name, value in options.items() if value is not None}

    @checked()
    def record(
        self,
        episodes: int | None = None,
        deterministic: bool = True,
        env: EnvLike | None = None,
        seed: int | None = None,
    ) -> Demonstrations:
        """Record observations and actions of evaluation episodes as demonstrations.

        The arguments are those of `evaluate`.
        """
        return record(*self._evaluated(episodes), deterministic, **self._elsewhere(env, seed))

    @checked()
    def film(
        self, path: str | Path, deterministic: bool = True, env: EnvLike | None = None, seed: int | None = None
    ) -> float:
        """Film one evaluation episode (.mp4), and return its return.

        A warning says if the film ends before the episode, after 3,000 frames.

        Args:
            path: file to write.
            deterministic: see `evaluate`.
            env: see `evaluate`.
            seed: see `evaluate`.

        Raises:
            NoVideo: the file cannot be written, a library is missing, or the environment cannot be rendered.
        """
        predictor = Predictor(*self.member_ref(), str(self))
        options = {"env": self.env, "seed": EVALUATION_SEED, **self._elsewhere(env, seed)}
        spec = replace(options["env"], state=predictor.learner.env.state)
        predict = partial(predictor, episode_start=None, deterministic=deterministic)
        return film(spec, options["seed"], predict, Path(path))

    def recorder(self) -> Recorder:
        """Start recording the policy's observations and actions during training.

        The recorder's `demonstrations()` returns all steps so far, for cloning, GAIL and `Replayed`. It records this
        task only, not its cohort.
        """
        recorder = Recorder(*self._recorded(*self.member_ref()))
        self._recorders = (*self._recorders, recorder)
        return recorder

    @staticmethod
    def _recorded(learner: BaseLearner, member: int) -> tuple[Envs, slice]:
        """Return a learner's environments, and the rows of a member in them."""
        envs = playing(learner).envs
        count = envs.num_members // learner.members  # several with particles
        return envs, slice(member * count, (member + 1) * count)

    def moved(self) -> None:
        self._acting = None  # it keeps the learner, with its replay buffer, in memory
        if self.ref is not None:
            for recorder in self._recorders:
                recorder.follow(*self._recorded(*self.ref))

    def _evaluated(self, episodes: int | None) -> tuple[BaseLearner, int, int]:
        """Return the learner, the task's index, and the number of episodes."""
        count = self.eval_episodes if episodes is None else episodes
        if count < 1:
            raise ValueError(f"{self}: episodes must be at least 1, but got {count!r}")
        return *self.member_ref(), count

    def act(self, observation: Any) -> Any:
        """Return the greedy action for one observation.

        Observation and action have the form that the Gymnasium environment uses. A recurrent policy acts as at the
        start of an episode; use `player` or `predict` to keep its memory.
        """
        return self.player()(observation)

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[Any, Any]:
        """Return actions and recurrent states, like `predict` in Stable-Baselines3.

        Args:
            observation: one observation as the Gymnasium environment gives it, or a batch with one more leading axis
                (in each part of a Dict or Tuple).
            state: recurrent states (N, S) that the previous call returned; None at the start of all episodes.
            episode_start: (N,), true where an episode starts, which resets that row's state.
            deterministic: greedy actions; False samples them as in training, with new random numbers in every call.

        Returns:
            The actions as the environment takes them (a batch for a batch), and the next recurrent states, None for a
                policy without a memory.
        """
        return self._predictor(self.member_ref())(observation, state, episode_start, deterministic)

    def value(self, observation: Any, state: Any = None) -> Any:
        """Return v(s) for one observation, or (N,) for a batch.

        The value comes from the critic. DQN returns the largest q(s, a); algorithms of continuous actions return what
        their actor maximizes, such as the smaller value of SAC's two critics, for the greedy action. With
        `normalize_reward`, values are in units of the scaled reward.

        Args:
            observation: see `predict`.
            state: recurrent states (N, S) before the observation, from `predict`; None at the start of episodes.

        Raises:
            UnsupportedSpace: the algorithm estimates no values here.
        """
        return self._predictor(self.member_ref()).value(observation, state)

    def _predictor(self, ref: MemberRef) -> Predictor:
        if self._acting is None or self._acting.ref != ref:
            self._acting = Predictor(*ref, str(self))
        return self._acting

    def player(self) -> Callable[[Any], Any]:
        """Return a function that plays one episode greedily: observation in, action out.

        For a recurrent policy the function keeps the memory between calls, so use a new one for each episode.
        """
        return player(Predictor(*self.member_ref(), str(self)))

    @checked()
    def eval_loss(self, batch: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the loss and its parts on a batch.

        Args:
            batch: tensors (B, ...) by name, as the algorithm's `loss` takes them.
        """
        learner, member = self.member_ref()
        stacked = {name: x.unsqueeze(0).expand(learner.members, *x.shape) for name, x in batch.items()}
        with torch.no_grad(), one_thread():
            losses, report = learner.loss(stacked)
        return {name: float(x[member]) for name, x in {"loss": losses, **report}.items()}

    @property
    def model(self) -> dict[str, Tensor]:
        """Parameters of the networks by name; copies."""
        learner, member = self.member_ref()
        return {name: view.detach().clone() for name, view in learner.network_views(member).items()}

    def parameters(self) -> list[Tensor]:
        """Return copies of the networks' parameters."""
        return list(self.model.values())

    def policy(self) -> dict[str, Tensor]:
        """Return `model` plus the observation statistics, by name; copies."""
        learner, member = self.member_ref()
        return {name: view.detach().to("cpu", copy=True) for name, view in learner.policy_views(member).items()}

    @checked()
    def save_policy(self, path: str | os.PathLike[str]) -> Path:
        """Write `policy` as safetensors: weights only, so training cannot resume from it."""
        return write_policy(path, self.policy(), self.about())

    @checked()
    def export_policy(
        self, path: str | os.PathLike[str], format: str | None = None, particle: int = 0, behaviour: str | None = None
    ) -> Path:
        """Export the policy to a file, and return its path.

        Args:
            path: file to write.
            format: "safetensors" for the weights alone, as `save_policy` writes them; "torchscript" or "onnx" for a
                program from observations to greedy actions that runs without Rekindle, see `deployment.exporting`. None
                picks the format by the suffix: .safetensors, .pt or .onnx.
            particle: index of the SVPG particle that the program runs; "safetensors" writes all of them.
            behaviour: name of the behaviour that the program plays, of a task with several; "safetensors" takes none.
        """
        form = format_of(path, format, str(self))
        if form == "safetensors":
            if behaviour is not None:
                raise ExportError(
                    f"weights (.safetensors) are of all behaviours, but got {behaviour!r}; leave it out, or write a "
                    "program (.pt, .onnx)"
                )
            return self.save_policy(path)
        policy = self.policy()
        alone = self.learner(self.env, [self.seed], [self.identity.hyperparameters])  # on the CPU, outside any cohort
        with closing(alone):  # what torch records holds it
            alone.adopt(0, policy)
            actor = alone.of_behaviour(behaviour) if isinstance(alone, Learner) else alone
            about = self.about() | ({} if behaviour is None else {"behaviour": behaviour})
            return write_program(path, form, actor, particle, about)

    def about(self) -> dict[str, Any]:
        """Return the metadata that is written with a policy."""
        about = {"task": self.name, "env": self.env.id, "uid": self.uid, "epochs": self.epochs, "state": self.digest}
        return about | {"identity": canonical_json(self.identity.to_json()).decode()}

    def report(self) -> dict[str, Any]:
        """Return everything known about the task, as JSON."""
        return {
            "uid": self.uid,
            "task": self.name,
            "env": self.env.to_json(),
            "seed": self.seed,
            "epochs": self.epochs,
            self.learner.unit: self.work,
            "resumed": self.resumed,
            "inexact": self.inexact,
            "advice": self.advice,
            "bad": str(self.bad) if self.bad else None,
            "hyperparameters": None if self._identity is None else unflatten(self._identity.values),
            "metrics": self.metrics,
        }

    def summary(self) -> str:
        """Return a short summary for people."""
        lines = [
            f"{self}: {self.epochs} epochs, {self.work} {self.learner.unit.replace('_', ' ')}"
            + (", resumed" if self.resumed else "")
        ]
        lines += [f"  not bit-exact since {change}" for change in self.stored.inexact]
        lines += [f"  not bit-exact: {reason}" for reason in self.inexact[len(self.stored.inexact) :]]
        lines += [f"  {text}" for text in self.advice]
        lines += [f"  {name} = {value}" for name, value in (self._identity.values if self._identity else {}).items()]
        lines += [f"  {name}: {value:.6g}" for name, value in self.metrics.items()]
        return "\n".join(lines)
