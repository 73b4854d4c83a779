"""The base of every algorithm: P members with the same structure, trained as one batched computation.

An algorithm declares `hyperparameters` and `parts`, makes its parts in `build`, and does one iteration of its paper's
box in `iterate`. Seeds, environments, counters, tallies, evaluation and state are here.

What is reported of an epoch, by member: `env_steps` and `updates` (gradient steps) are totals; `episodes` ended in it,
with the means `episode_return` and `episode_length`; and means over its iterations, of what each algorithm knows:

    policy_loss, value_loss, entropy, value, explained_variance, approx_kl, clip_fraction, lr    on-policy
    rollouts                                of A2C that waits for whole episodes: how many its updates were on
    loss, q, lr; critic_loss, actor_loss, q, alpha, entropy, lr                                  DQN; SAC
    icm_reward, icm_value, icm_loss, icm_value_loss, ...; cloning_loss    of what is beside the environment's reward: of
                                            each signal (icm, rnd, gail), rewards times strength; and of cloning
    grad_norm.NET, grad_norm_clipped.NET    of each network's gradient, before and after max_grad_norm, where there is
                                            one; an algorithm of many short iterations measures every 16th

`return`, of greedy episodes on seeds that no training uses, stands beside those of epochs that were evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..spaces import Space, flatten
from .checkpoint.member_state import Part
from .checkpoint.state import Tree, check_same_form
from .checkpoint.storage import Metrics
from .envs import Envs, EnvSpec, make_envs, spaces_of
from .errors import StateMismatch
from .rng import streams
from .runtime.episode_window import EpisodeWindow
from .runtime.metric_means import Tally
from .warm_start import check_fits

Watch = Callable[[np.ndarray, np.ndarray, np.ndarray], None]
EVALUATION_SEED = 0x5EED  # of every trial, so that all are measured on the same episodes; never a training stream
EVALUATION_EPISODES = 20
EVALUATION_STEPS = 100_000  # an episode of an environment without a time limit is cut here


def stack_hyperparameters(
    space: Space, values: Sequence[Mapping[str, Any]], device: torch.device | str
) -> SimpleNamespace:
    """Nested hyperparameters of P members: structural ones as plain values, all others as tensors (P, 1)."""
    columns = [space.dynamic(member) for member in values]
    flat: dict[str, Any] = {name: value for name, value in flatten(values[0]).items() if name not in columns[0]}
    for name in columns[0]:
        flat[name] = torch.tensor([column[name] for column in columns], dtype=torch.float32, device=device).unsqueeze(1)
    root = SimpleNamespace()
    for name, value in flat.items():
        *parents, leaf = name.split(".")
        node = root
        for parent in parents:
            if not hasattr(node, parent):
                setattr(node, parent, SimpleNamespace())
            node = getattr(node, parent)
        setattr(node, leaf, value)
    return root


COUNTERS = ("env_steps", "iterations", "epochs")


def check_counters(tree: Any, where: str) -> None:
    """Raises StateMismatch unless a member's state says how far it is."""
    counters = tree.get("counters") if isinstance(tree, Mapping) else None
    for name in COUNTERS:
        count = counters.get(name) if isinstance(counters, Mapping) else None
        if not isinstance(count, int) or not 0 <= count < 2**62:
            raise StateMismatch(f"{where}: counters/{name} must be a int of at least 0, but got {str(count)[:40]}")


class Learner:
    """P members of one structure.

    Attributes:
        hyperparameters: the algorithm's space, with its defaults.
        parts: names of the attributes that hold state; each answers `member_state` and `load_member`.
        hp: the members' values: structural ones plain, the others (P, 1) tensors.
        env_steps, iterations, epochs: done so far; members of one learner are always at the same point.
        reporting: whose metrics of this iteration count, (P,), where not all members are updated in each.
    """

    hyperparameters: ClassVar[Space]
    parts: ClassVar[tuple[str, ...]] = ()
    scratch: ClassVar[tuple[str, ...]] = ("_evaluation", "reporting")  # what no future depends on
    reporting: np.ndarray | None = None

    def __init__(
        self,
        env: EnvSpec,
        seeds: Sequence[int],
        values: Sequence[Mapping[str, Any]],
        device: torch.device | str = "cpu",
        env_processes: int = 0,
    ):
        """values: the complete hyperparameters of each member, equal in their structural part."""
        self.env, self.seeds, self.device = env, list(seeds), torch.device(device)
        self.members, self.env_processes = len(self.seeds), env_processes
        self.hp = stack_hyperparameters(self.hyperparameters, values, self.device)
        self.assemble(values)

    def assemble(self, values: Sequence[Mapping[str, Any]]) -> None:
        """Makes the environments, the counters and the parts; values: as the constructor is given them."""
        self.envs: Envs = make_envs(self.env, self.seeds, self.hp.num_envs, processes=self.env_processes)
        self.env_steps = self.iterations = self.epochs = 0
        self.tally = Tally(self.members)  # since the epoch began
        self._at_epoch_start = True
        self._evaluation: Envs | None = None
        size = getattr(self.hp, "stats_window_size", None)
        self.window = EpisodeWindow(self.members, size) if size else None
        if self.window is not None:
            self.envs.witness = self.window.add
        self.build()

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        """Raises ValueError for hyperparameters that are each in range but do not go together."""

    @classmethod
    def check_env(cls, env: EnvSpec) -> None:
        """Raises UnsupportedSpace for an environment that the algorithm cannot act in, and what `spaces_of` raises."""
        spaces_of(env)

    @classmethod
    def check_use(cls, env: EnvSpec, values: Mapping[str, Any]) -> None:
        """Raises UnsupportedSpace for hyperparameters that need another environment than this one."""

    @classmethod
    def algorithm(cls) -> str:
        """How messages name the algorithm."""
        return cls.__name__.removesuffix("Learner")

    def build(self) -> None:
        """Makes the parts, from the members' own streams."""
        raise NotImplementedError

    def iterate(self) -> Mapping[str, Tensor]:
        """One iteration; advances `env_steps`. Returns what to report of it, each (P,)."""
        raise NotImplementedError

    def loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Each member's loss (P,) on a batch (P, B, ...), and what to report of it, each (P,)."""
        raise NotImplementedError

    def act(self, obs: np.ndarray) -> np.ndarray:
        """The greedy actions (P, N, ...) for observations (P, N, ...) as the environments give them."""
        raise NotImplementedError

    def player(self, episodes: int) -> Callable[[np.ndarray], np.ndarray]:
        """What acts greedily, like `act`, through so many episodes at once from their beginnings."""
        return self.act

    def explorer(self, episodes: int) -> Callable[[np.ndarray], np.ndarray]:
        """What acts as training does, at random, with numbers that are the same for every member and every call."""
        raise ValueError(f"{self.algorithm()} says how it acts greedily only; leave deterministic=False out")

    def evaluation_keys(self, purpose: str) -> streams.Bits:
        """Keys (P,) of the random stream with this purpose, of evaluation alone."""
        return streams.keys([EVALUATION_SEED] * self.members, "evaluation", purpose)

    def keys(self, purpose: str) -> streams.Bits:
        """The members' keys (P,) of the random stream with this purpose."""
        return streams.keys(self.seeds, purpose)

    def run_epoch(self, stop: Callable[[], bool] = lambda: False) -> list[Metrics] | None:
        """Trains to the end of the epoch; each member's metrics, or None if asked to stop at a step before it."""
        if self._at_epoch_start:
            self.envs.begin_epoch(np.full(self.members, self.epochs))
            self._at_epoch_start = False
        while self.env_steps < (self.epochs + 1) * self.hp.epoch_steps:
            self.tally.add(self.iterate(), self.reporting)
            self.iterations += 1
            if stop() and self.envs.mode != "restart":  # that mode's environments can be saved at epoch ends only
                return None
        self.epochs += 1
        self._at_epoch_start = True
        if self.envs.mode == "restart":
            self.cut()
        return self._take_metrics()

    def updates(self, member: int) -> int | None:
        """Gradient steps of a member so far; None if nobody counts them."""
        return None

    def cut(self) -> None:
        """Takes note that all environments are made anew, so that their episodes ended with the last step."""

    def _take_metrics(self) -> list[Metrics]:
        episodes = self.envs.take_episodes()
        rows = []
        for i, means in enumerate(self.tally.take()):
            updates = self.updates(i)
            row = {
                "env_steps": float(self.env_steps),
                **({} if updates is None else {"updates": float(updates)}),
                **means,
            }
            if count := int(episodes.count[i]):
                row |= {
                    "episodes": float(count),
                    "episode_return": float(episodes.return_sum[i]) / count,
                    "episode_length": float(episodes.length_sum[i]) / count,
                }
            if self.window is not None:
                row |= self.window.metrics(i)
            rows.append(row | self.envs.member_metrics(i))
        return rows

    def evaluate(self, episodes: int = EVALUATION_EPISODES) -> np.ndarray:
        """Mean undiscounted return (P,) of greedy episodes on fixed seeds that no training uses; changes no state."""
        means: np.ndarray = self.evaluate_episodes(episodes).mean(1)
        return means

    def evaluate_episodes(
        self, episodes: int = EVALUATION_EPISODES, deterministic: bool = True, watch: Watch | None = None
    ) -> np.ndarray:
        """The return of each of them (P, episodes); at random, as in training, unless `deterministic`.

        watch: is shown each step: what is seen (P, N, ...), what is done, and which episodes have not ended, (P, N).
        """
        envs = self._evaluation
        if envs is None or envs.num_envs != episodes:
            envs = make_envs(self.env, [EVALUATION_SEED] * self.members, episodes, "evaluation", self.env_processes)
        self._evaluation = None  # if this is interrupted, nobody knows how far they are
        envs.reset()
        envs.begin_epoch(np.zeros(self.members, dtype=np.int64))
        act = self.player(episodes) if deterministic else self.explorer(episodes)
        returns = np.zeros((self.members, episodes))
        running = np.ones((self.members, episodes), dtype=bool)
        for _ in range(EVALUATION_STEPS):
            if not running.any():
                break
            actions = act(envs.obs)
            if watch is not None:
                watch(envs.obs, actions, running)
            step = envs.step(actions)
            returns += step.reward * running
            running &= ~(step.terminated | step.truncated)
        self._evaluation = envs
        return returns

    def member_state(self, member: int) -> Tree:
        """Everything that one member's future depends on; copies."""
        tree: Tree = {
            "counters": {name: getattr(self, name) for name in ("env_steps", "iterations", "epochs")},
            "tally": self.tally.member_state(member),
            "envs": self.envs.member_state(member),
        }
        return tree | {name: part.member_state(member) for name, part in self.live_parts.items()}

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        """Puts a state in one member's place; StateMismatch if it does not fit: the learner is to be dropped then."""
        expected = self.member_state(member)
        if missing := [name for name in expected if name not in tree]:
            raise StateMismatch(f"{type(self).__name__}: the state lacks {', '.join(missing)}")
        for name in ("counters", *self.live_parts):
            check_same_form({name: expected[name]}, {name: tree[name]}, type(self).__name__)
        check_counters(tree, type(self).__name__)
        counters = tree["counters"]
        if member > 0 and counters["env_steps"] != self.env_steps:
            raise StateMismatch(
                f"members must be at the same point, but got {counters['env_steps']} and {self.env_steps} env_steps"
            )
        self.env_steps, self.iterations, self.epochs = (counters[name] for name in COUNTERS)
        self.tally.load_member(member, tree["tally"])
        self._at_epoch_start = self.tally.count == 0
        try:
            self.envs.load_member(member, tree["envs"])
        except StateMismatch:
            raise
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise StateMismatch(f"the state of {self.env.id} has another form: {error!r}") from None
        for name, part in self.live_parts.items():
            part.load_member(member, tree[name])

    def networks_of(self, member: int) -> dict[str, Tensor]:
        """One member's networks' parameters by name; views of the live data."""
        policy = getattr(self, "policy")  # noqa: B009 - every learner of this package names its networks so
        views: dict[str, Tensor] = policy.parameters.of(member)
        return views

    def policy_of(self, member: int) -> dict[str, Tensor]:
        """What one member acts and estimates by: its networks, and the statistics that scale what they see; views."""
        normalizer = getattr(self, "obs_normalizer", None)
        moments = {} if normalizer is None else normalizer.moments.of(member)
        return self.networks_of(member) | {f"obs_normalizer.{name}": view for name, view in moments.items()}

    def shown_to(self, member: int) -> dict[str, Tensor]:
        """What one member is given to begin with beside a policy: demonstrations by name; views."""
        return {}

    @torch.no_grad()
    def adopt(self, member: int, policy: Mapping[str, Tensor]) -> None:
        """Gives a new member these parts of a policy, and what is shown to it.

        Its target networks become copies, all else stays as it is.
        """
        mine = {**self.policy_of(member), **self.shown_to(member)}
        check_fits(policy, mine, self.algorithm())
        for name, tensor in policy.items():
            mine[name].copy_(tensor)
        if (copy_target := getattr(getattr(self, "policy", None), "copy_target", None)) is not None:
            copy_target(member)

    @property
    def live_parts(self) -> dict[str, Part]:
        """The parts that hold state with these hyperparameters; the others are None or null objects."""
        parts = {name: getattr(self, name) for name in (*self.parts, "window")}
        return {name: part for name, part in parts.items() if isinstance(part, Part)}

    def broken(self, member: int, metrics: Metrics) -> str | None:
        """What of a member is no longer a finite number, or None."""
        for name, value in metrics.items():
            if not math.isfinite(value):
                return f"{name} became {value}"
        for name, part in self.live_parts.items():
            for path, tensor in getattr(part, "tensors", {}).items():
                if tensor.is_floating_point() and not bool(tensor[member].isfinite().all()):
                    return f"{name}.{path} holds a number that is not finite"
        return None
