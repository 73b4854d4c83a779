"""The face of an algorithm: what is trained and how, and the contract of resuming it."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ..spaces import Space, unflatten
from .checkpoint.policy_files import write_policy
from .checkpoint.retention import Keep
from .checkpoint.storage import Metrics, Storage
from .cohort import Cohort, Context, EpochEvent, one_thread
from .envs import spaces_of
from .envs.base.encode import Actions, Observations
from .errors import StateMismatch
from .evaluation import EVALUATION_EPISODES, evaluate, evaluate_episodes
from .identity import EnvLike, device_of
from .record import Kept
from .runtime.guard import BadResumeGuard
from .runtime.observers import Until
from .signals.demonstrations import Demonstrations, Recorder
from .task_state import Seat
from .warm_start import WarmStart, networks_of, policy_of

FIDELITY = "epochs"


class Task(Kept):
    """A resumable training of one algorithm, on one environment, with one seed.

        task = PPO("CartPole-v1", seed=1, storage=Store("sqlite:///studies.db"))
        task.init(gamma=0.98, optimizer={"lr": 1e-3})
        task.fit(epochs=9)      # up to 9 epochs in all
        task.fit(epochs=27)     # 18 more

    Attributes:
        name, version: of the algorithm; a version changes when the same hyperparameters would give other results.
        learner: the algorithm's mathematics.
        hyperparameters: the complete nested values, None before `init`.
        uid: names the result: a hash of everything that it depends on but the number of epochs.
        resumed: whether `init` found a checkpoint to carry on from.
        inexact: versions or hardware that changed since it was written, so that the last bits may differ from then on.
        history: (epoch, metrics) of every epoch done.
        bad: the exception that broke the task, or None.
    """

    def __init__(
        self,
        env: EnvLike,
        *,
        seed: int = 0,
        device: str = "cpu",
        env_processes: int = 0,
        storage: Storage | None = None,
        snapshots: str | int | Keep | None = None,
        warm_start: Any = None,
        demonstrations: Any = None,
        logger: Callable[[EpochEvent], None] | None = None,
        **fixed: Any,
    ):
        """*What* is trained.

        Args:
            env: a Gymnasium id, or an EnvSpec, or its JSON.
            seed: of all randomness; 0 to 2**63 - 1.
            device: a torch device.
            env_processes: how many processes step the environments, 0 for this one alone; it changes no result.
            storage: keeps checkpoints, metrics and events under the uid.
            snapshots: which checkpoints it keeps: "latest"; "best", which evaluates at each epoch's end and keeps the
                best one too ("best:5": each fifth); "every:5", which keeps each fifth too; "all"; "no", after which a
                task that stopped starts anew; how many of the latest; or a Keep. None leaves it to the storage. No part
                of the identity: it changes no state.
            warm_start: a policy that its networks begin with, from a task, a state, a stored checkpoint, a vector or a
                file, see `WarmStart`. Optimizers, counters and statistics of rewards begin anew. The identity has its
                digest, and the storage the policy itself, so that the source is needed once.
            demonstrations: what is shown to it, a file or `Demonstrations`, for cloning and GAIL. They are in the
                identity and in the storage as a warm start's policy is.
            logger: is called with an EpochEvent at each epoch's end.
            fixed: hyperparameters to take out of the space, nested like it.
        """
        super().__init__(env, seed, device, fixed, storage, snapshots)
        if isinstance(env_processes, bool) or not isinstance(env_processes, int) or env_processes < 0:
            raise ValueError(f"{self}: env_processes must be an integer of at least 0, but got {env_processes!r}")
        self.env_processes, self.logger = env_processes, logger
        self.warm_start, self.demonstrations = warm_start, demonstrations
        self.suggested_epochs: int | None = None

    def init(self, *, uid: str | None = None, start: str | None = None, **hyperparameters: Any) -> Self:
        """*How* it is trained. Missing hyperparameters take their defaults; None for a group means all its defaults.

        Errors name the parameter, its range and the nearest known name. With a storage that holds a checkpoint of this
        uid the task carries on from it, and `resumed` is true. `start` makes it a branch of another task: it names the
        digest of the state that it starts from, which the storage holds as its first checkpoint, or `load_state_dict`
        brings; or of the policy of a warm start, whose source is not needed then.
        """
        with BadResumeGuard(self):
            pass
        if self.hyperparameters is not None:
            raise StateMismatch(f"{self} is initialized already; build a new task to train with other hyperparameters")
        given = {
            name: value
            for name, value in hyperparameters.items()
            if not (value is None and isinstance(self.learner.hyperparameters.get(name), Space))
        }
        self.suggested_epochs = given.pop(FIDELITY, None)
        shown = None if self.demonstrations is None else Demonstrations.given(self.demonstrations)
        if shown is not None:
            if "demonstrated_steps" not in self.learner.hyperparameters:
                raise ValueError(
                    f"{self}: on-policy tasks learn from demonstrations, and {self.name} does not; leave "
                    "demonstrations out"
                )
            given.setdefault("demonstrated_steps", shown.steps)
        self.hyperparameters, self._start = self._complete(given), start
        try:
            warm = self.warm_start if isinstance(self.warm_start, WarmStart | None) else WarmStart(self.warm_start)
            policy = None if warm is None and shown is None else self._begin_with(warm, shown)
            self.uid = uid or self._hash()
            self._open(policy, warm.name if warm else "")
            self.warm_start = self.demonstrations = None  # they are in the state now
        except BaseException:
            self.release()  # another try, or another process, shall find the task free
            self.hyperparameters, self.uid, self._start, self.seat = None, "", None, None
            raise
        return self

    # --- training ---

    @property
    def metrics(self) -> Metrics:
        """Those of the last epoch; empty before the first."""
        return self.history[-1][1] if self.history else {}

    def fit(self, epochs: int | None = None, context: Context | None = None, until: Until | None = None) -> Metrics:
        """Trains until `epochs` epochs are done in all, which may need nothing; returns the last epoch's metrics.

        `until` ends it earlier: it says of the history so far whether that is enough, see `observers`.

        Without `epochs` it takes those that `init` was given with the sampled space. `context` is called with an
        EpochEvent at each epoch's end. SIGTERM and SIGINT are obeyed between two steps, after the state is saved.
        """
        if epochs is None:
            epochs = self.suggested_epochs
        if epochs is None:
            raise ValueError(f"{self}: fit needs epochs, the total to reach, unless init(epochs=...) gave them")
        self._values()
        Cohort([self]).fit(epochs, context, until)
        return self.metrics

    def evaluate(self, episodes: int = EVALUATION_EPISODES, deterministic: bool = True) -> float:
        """Mean undiscounted return of episodes on seeds that no training uses; changes no state.

        They are greedy, or act at random as in training unless `deterministic`, with random numbers that are the same
        each time.
        """
        if not deterministic:
            return statistics.fmean(self.returns(episodes, deterministic))
        place = self._seated_for(episodes)
        with one_thread():
            return float(evaluate(place.learner, episodes)[place.member])

    def returns(self, episodes: int = EVALUATION_EPISODES, deterministic: bool = True) -> list[float]:
        """The return of each episode that `evaluate` takes the mean of; of SVPG those of one particle after another."""
        place = self._seated_for(episodes)
        with one_thread():
            found: list[float] = evaluate_episodes(place.learner, episodes, deterministic)[place.member].tolist()
        return found

    def record(self, episodes: int = EVALUATION_EPISODES, deterministic: bool = True) -> Demonstrations:
        """What is seen and done in the episodes that `evaluate` plays, for other tasks; `save` writes it to a file."""
        place = self._seated_for(episodes)
        recorder = Recorder(place.member, place.learner.envs.action_space)
        with one_thread():
            evaluate_episodes(place.learner, episodes, deterministic, recorder)
        return recorder.demonstrations()

    def _seated_for(self, episodes: int) -> Seat:
        if episodes < 1:
            raise ValueError(f"{self}: episodes must be at least 1, but got {episodes!r}")
        return self._seated()

    def act(self, observation: Any) -> Any:
        """The greedy action for one observation, both as the Gymnasium environment gives and takes them."""
        return self.player()(observation)

    def player(self) -> Callable[[Any], Any]:
        """What acts greedily, like `act`, through one episode from its beginning; a recurrent policy remembers."""
        return self._player(self._seated())

    def _player(self, place: Seat) -> Callable[[Any], Any]:
        spaces = spaces_of(self.env)
        seen, actions = Observations(spaces.observation, self.env.id), Actions(spaces.action, self.env.id)
        batch = np.empty((place.learner.members, 1, *seen.shape), seen.dtype)
        play = place.learner.actor(1)

        def act(observation: Any) -> Any:
            for row in batch:  # the other members' actions are thrown away
                seen.write(observation, row[0])
            with one_thread():
                return actions.decode(play(batch)[place.member])[0]

        return act

    def eval_loss(self, batch: Mapping[str, Tensor]) -> dict[str, float]:
        """The loss and its parts on a batch of (B, ...) tensors, as the algorithm's `loss` takes them."""
        place = self._seated()
        stacked = {name: x.unsqueeze(0).expand(place.learner.members, *x.shape) for name, x in batch.items()}
        with torch.no_grad(), one_thread():
            losses, report = place.learner.loss(stacked)
        return {name: float(x[place.member]) for name, x in {"loss": losses, **report}.items()}

    # --- looking ---

    @property
    def model(self) -> dict[str, Tensor]:
        """The networks' parameters by name; copies."""
        seat = self._seated()
        return {name: view.detach().clone() for name, view in networks_of(*seat).items()}

    def parameters(self) -> list[Tensor]:
        """The networks' parameters; copies."""
        return list(self.model.values())

    def policy(self) -> dict[str, Tensor]:
        """What acts and estimates, by name, for a warm start: `model`, and the statistics of observations; copies."""
        return self._policy(self._seated())

    def _policy(self, place: Seat) -> dict[str, Tensor]:
        views = policy_of(*place)
        return {name: view.detach().to("cpu", copy=True) for name, view in views.items()}

    def save_policy(self, path: str | os.PathLike[str]) -> Path:
        """Writes `policy` as safetensors, for a warm start or other programs: weights only, not resumable."""
        return write_policy(path, self.policy(), self._about())

    def _about(self) -> dict[str, Any]:
        """What is written down with a policy."""
        return {"task": self.name, "env": self.env.id, "uid": self.uid, "epochs": self.epochs, "state": self.digest}

    def set_device(self, device: str) -> None:
        """Moves the task to another torch device; across device types it resumes, but not bit for bit."""
        self._values()
        found, state = device_of(device, str(self)), self._member_state()
        self.device, self.seat, self._state = found, None, state

    def report(self) -> dict[str, Any]:
        """What is known of the task, as JSON."""
        initialized = self.hyperparameters is not None
        return {
            "uid": self.uid,
            "task": self.name,
            "env": self.env.to_json(),
            "seed": self.seed,
            "epochs": self.epochs,
            "env_steps": self.env_steps,
            "resumed": self.resumed,
            "inexact": self.inexact,
            "bad": str(self.bad) if self.bad else None,
            "hyperparameters": unflatten(self.identity["hyperparameters"]) if initialized else None,
            "metrics": self.metrics,
        }

    def summary(self) -> str:
        """A few lines for people."""
        identity = self.identity if self.hyperparameters is not None else {"hyperparameters": {}}
        lines = [f"{self}: {self.epochs} epochs, {self.env_steps} env steps" + (", resumed" if self.resumed else "")]
        lines += [f"  not bit-exact since {change}" for change in self.inexact]
        lines += [f"  {name} = {value}" for name, value in identity["hyperparameters"].items()]
        lines += [f"  {name}: {value:.6g}" for name, value in self.metrics.items()]
        return "\n".join(lines)
