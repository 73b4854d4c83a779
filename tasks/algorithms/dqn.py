"""Deep Q-learning (DQN): Mnih et al. (2015), doi:10.1038/nature14236.

Of Rainbow, Hessel et al. (2018), arXiv:1710.02298, double and dueling networks, prioritized replay and n-step returns
are independent options.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...spaces import Space, categorical, integer, log_real, maybe, ordinal, sizes
from ..checkpoint.member_state import Stacked
from ..checkpoint.storage import Metrics
from ..envs import EnvSpec, spaces_of
from ..errors import UnsupportedSpace
from ..evaluation import evaluation_keys
from ..experience.exploration import Epsilon, EpsilonGreedy, epsilon_space
from ..experience.returns import critic_loss_choice
from ..learner import Learner
from ..networks.encoders import encoder_choice, encoder_for, unused_width
from ..networks.fused import Autograd, FusedMLP, Tape, huber
from ..networks.mlp import ACTIVATIONS, MLP, PRODUCT_RULE_TANH, Network, Parameters, actor_layers, initialize, shapes_of
from ..networks.optimizers import GRAD_NORM_INTERVAL, Optimizer, clip_norm, norms, optimizer_space, schedule_space
from ..rng.streams import Keys
from ..signals.replay_guidance import ReplayGuidance
from ..task import Task
from .off_policy import REFILLABLE, ReplayLoop, check_replay, check_replay_in_env, off_policy_space

FUSED = {"relu": ACTIVATIONS["relu"], "tanh": PRODUCT_RULE_TANH}  # other derivatives round as autograd's


class QNetwork(Stacked):
    """Action values q(s, ·) of P members, with their target networks.

    Dueling: q = v + a - mean a, Wang et al. (2016), arXiv:1511.06581, eq. 9.
    """

    def __init__(
        self, obs_shape: tuple[int, ...], actions: int, hp: SimpleNamespace, seeds: list[int], device: torch.device
    ):
        """Initialize the networks, and copy them to the targets.

        Args:
            obs_shape: (D,) of vectors or (H, W, C) of images.
            actions: number of actions.
            hp: the values of `model` and batch_size.
            seeds: of the members.
            device: of all tensors.
        """
        model = hp.model
        self.encoder = encoder_for(model, "features", obs_shape)
        hidden = [self.encoder.features, *actor_layers(model)]
        self.heads = [MLP("q", [*hidden, actions], model.activation, last_gain=1.0)]
        if model.dueling:
            self.heads.append(MLP("value", [*hidden, 1], model.activation, last_gain=1.0))
        networks: list[Network] = [self.encoder, *self.heads]
        self.parameters, self.target = (Parameters(shapes_of(networks), len(seeds), device) for _ in range(2))
        initialize(networks, self.parameters, seeds)
        self.target.vector.copy_(self.parameters.vector)
        self.tensors = {"vector": self.parameters.vector, "target": self.target.vector}
        self._views, self._leaves, self._target_views = (
            (tensors, [head.layers(tensors) for head in self.heads])
            for tensors in (self.parameters.views, self.parameters.leaves, self.target.views)
        )
        sizes, plain = self.heads[0].sizes, not self.encoder.shapes and not model.dueling
        self.fused: FusedMLP | None = None
        self.graph: Autograd | Tape = Autograd()
        if plain and model.activation in FUSED and min(*sizes, hp.batch_size) > 1:  # see Exactness in networks/mlp.py
            self.fused = FusedMLP(sizes, FUSED[model.activation], self.parameters.vector, len(seeds), hp.batch_size)
            self.graph = Tape()

    def __call__(self, obs: Tensor) -> Tensor:
        """Return q(s, ·) of observations, with gradients.

        Observations are (P, B, ...), values (P, B, actions).
        """
        if self.fused is None:
            return self._q(*self._leaves, obs)
        return self.fused(self._views[1][0], self.encoder({}, obs))[0]

    def gradient(self, losses: Tensor) -> Tensor:
        """Return the gradient (P, D) of each member's loss (P,)."""
        if self.fused is None:
            return self.parameters.gradient(losses)
        return self.graph.gradient(losses, self.fused.leaf)

    def values(self, obs: Tensor) -> Tensor:
        """Return q(s, ·) without gradients."""
        return self._q(*self._views, obs)

    def target_values(self, obs: Tensor) -> Tensor:
        """Return q(s, ·) of the target network."""
        return self._q(*self._target_views, obs)

    def _q(self, tensors, layers, obs: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        features = self.encoder(tensors, obs)
        q, *value = (head(weights, features) for head, weights in zip(self.heads, layers, strict=True))
        return value[0] + q - q.mean(-1, keepdim=True) if value else q

    def copy_target(self, member: int) -> None:
        """Make one member's target network a copy of its online one."""
        self.target.vector[member].copy_(self.parameters.vector[member])

    @torch.no_grad()
    def move_target(self, tau: Tensor, due: NDArray[np.bool_]) -> None:
        """Move the targets: θ' ← (1 - tau) θ' + tau θ.

        tau is (P, 1), and tau = 1 copies θ. Only members that are due (P, 1) move.
        """
        moved = (1 - tau) * self.target.vector + tau * self.parameters.vector
        if not due.all():
            moved = torch.where(torch.from_numpy(due).to(moved.device), moved, self.target.vector)
        self.target.vector.copy_(moved)


class QImitator:
    """A Q-network that imitates by a margin.

    Hester et al. (2018), arXiv:1704.03732, section 4:

    J = max over a of [q(s, a) + margin where a is not a_E] - q(s, a_E)
    """

    state_size = 0
    margin = 0.8

    def __init__(self, policy: QNetwork):
        self.policy, self.parameters, self.distribution = policy, policy.parameters, self

    def __call__(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, None]:
        """Return q(s, ·), with gradients."""
        return self.policy._q(*self.policy._leaves, batch["obs"]), None

    def imitation_loss(self, q: Tensor, actions: Tensor) -> Tensor:
        """Return J, (P, B)."""
        index = actions.unsqueeze(-1)
        others = torch.full_like(q, self.margin).scatter(-1, index, 0.0)
        return (q + others).amax(-1) - q.gather(-1, index).squeeze(-1)


class DQNLearner(Learner):
    """P members of DQN."""

    policy: QNetwork
    hyperparameters = Space(
        optimizer=optimizer_space(lr=1e-3, eps=1e-8),
        lr_schedule=schedule_space(),
        model=Space(
            width=ordinal(32, 64, 128, 256, default=64, accept=(1, 65536), structural=True),
            hidden=sizes(1, 65536, silent=True),  # the widths of layers, if they differ
            layers=integer(1, 3, default=2, accept=(1, 16), structural=True, when={"hidden": None}),
            activation=categorical("tanh", "relu", "silu", "elu", default="relu", structural=True, search=False),
            dueling=categorical(False, True, default=False, structural=True),
            encoder=encoder_choice(),
        ),
        exploration=epsilon_space(),
        double=categorical(False, True, default=True, structural=True),
        # Every `target_interval` gradient steps the target network moves by the fraction `tau` towards the online one:
        # tau = 1 copies it, as the paper does (with a target_interval of 100, say); the default is Polyak averaging.
        target_interval=integer(1, 1000, log=True, default=1, accept=(1, 10**9)),
        tau=log_real(0.003, 1.0, default=0.005, accept=(0.0, 1.0)),
        critic_loss=critic_loss_choice("huber"),
        max_grad_norm=maybe(log_real(0.1, 20.0, accept=(1e-6, 1e6)), default=10.0),
        **off_policy_space(n_step=3),
    )
    parts = ("policy", "optimizer", "replay", "priorities", "progress", "obs_normalizer", "guidance")
    refillable = REFILLABLE
    check = classmethod(check_replay)
    check_values_in_env = classmethod(check_replay_in_env)

    @classmethod
    def check_env(cls, env: EnvSpec) -> None:
        super().check_env(env)
        space = spaces_of(env).action
        if not isinstance(space, gym.spaces.Discrete):
            raise UnsupportedSpace(
                f"{cls.algorithm()} on {env.id} chooses among the actions of a Discrete space, but got {space}; "
                "use PPO, or wrap the environment in a gymnasium.ActionWrapper that offers a Discrete space"
            )

    @classmethod
    def without_effect(cls, env: EnvSpec, fixed: Mapping[str, Any]) -> list[str]:
        return unused_width(fixed)

    def build(self) -> None:
        hp, loop = self.hp, ReplayLoop(self)
        self.loop, self.replay, self.progress, self.priorities = loop, loop.replay, loop.progress, loop.sampler
        self.obs_normalizer, actions = loop.obs_normalizer, loop.uniform_actions.largest + 1
        self.policy = QNetwork(self.envs.obs_shape, actions, hp, self.seeds, self.device)
        self.optimizer = Optimizer(self.policy.parameters.vector, hp.optimizer)
        self.guidance = ReplayGuidance.of(self, QImitator(self.policy))
        self.demonstrations = self.guidance.examples
        self.exploration = EpsilonGreedy(self.keys("explore"), actions, hp.num_envs)
        self.epsilon = Epsilon(hp.exploration)
        self.limit = 1.0 if hp.critic_loss == "huber" else math.inf  # of an error's square
        self.target_interval = hp.target_interval.long().cpu().numpy()

    def iterate(self) -> dict[str, Tensor]:
        filling = self.loop.filling(self.env_steps)
        self.env_steps += self.loop.collect(self.env_steps, self.explore)
        return {} if filling else self.loop.learn(self.env_steps, self.update, self.guide)

    def explore(self, obs: np.ndarray, position: int) -> np.ndarray:
        """Return epsilon-greedy actions (P, N) for normalized observations.

        Random numbers are those of this position in the members' streams.
        """
        return self.exploration(position, self.epsilon(position * self.hp.num_envs), partial(self._greedy, obs))

    def update(self, batch: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Take one gradient step on a batch.

        Returns metrics, each (P,), and the temporal-difference errors (P, B).
        """
        with self.policy.graph:
            q = self.policy(batch["obs"])
            losses, errors = huber(q, batch["action"], self.targets(batch), batch.get("weight"), self.limit)
            step = clip_norm(self.policy.gradient(losses), self.hp.max_grad_norm)
            self.optimizer.step(step.gradient, self.loop.scheduled(self.hp.optimizer.lr, self.env_steps))
            due = self.progress.updates % self.target_interval == 0
            if due.any():
                self.policy.move_target(self.hp.tau, due)
            sizes = norms(step, "q") if self.tally.count % GRAD_NORM_INTERVAL == 0 else {}
            return {"loss": losses.detach(), "q": q.detach().amax(-1).mean(1), **sizes}, errors

    def loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return each member's loss (P,) on a batch, and metrics.

        The batch is (P, B, ...).
        """
        q = self.policy.values(batch["obs"])
        losses, _ = huber(q, batch["action"], self.targets(batch), batch.get("weight"), self.limit)
        return losses, {"q": q.amax(-1).mean(1)}

    def targets(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the targets (P, B) of a batch (P, B, ...).

            y = r + discount q'(s', a'),   a' = argmax q'(s', ·), or argmax q(s', ·) if `double`

        Double: van Hasselt et al. (2016), arXiv:1509.06461, eq. 4.
        """
        next_q = self.policy.target_values(batch["next_obs"])
        if self.hp.double:
            chosen = self.policy.values(batch["next_obs"]).argmax(-1, keepdim=True)
            value = next_q.gather(-1, chosen).squeeze(-1)
        else:
            value = next_q.amax(-1)
        return self.guidance.total(batch["reward"], batch) + batch["discount"] * value

    def guide(self, batch: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
        """Train signals and clone, after a gradient step, and return metrics."""
        return self.guidance.update(self, batch, number, self.loop.scheduled(self.hp.optimizer.lr, self.env_steps))

    def actor(
        self, episodes: int, deterministic: bool = True, keys: Keys | None = None, memory: Any = None
    ) -> Callable[[np.ndarray], np.ndarray]:
        keys = keys or partial(evaluation_keys, self.members)
        exploration = EpsilonGreedy(keys("explore"), self.exploration.actions, episodes)
        epsilon, steps = self.epsilon(self.env_steps), count()

        def act(obs: np.ndarray) -> np.ndarray:
            greedy = partial(self._greedy, self.loop.normalize(obs))
            return greedy() if deterministic else exploration(next(steps), epsilon, greedy)

        return act

    def greedy(self, obs: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self.policy.values(self.loop.normalize_batch(obs)).argmax(-1), None

    @torch.inference_mode()
    def state_values(self, obs: np.ndarray, memory: Any = None) -> np.ndarray:
        values: np.ndarray = self._q(self.loop.normalize(obs)).amax(-1).cpu().numpy()
        return values

    def _greedy(self, obs: np.ndarray) -> np.ndarray:
        """Return greedy actions (P, N).

        Callers disable gradients: `no_grad` here would cost a tenth of the time.
        """
        actions: np.ndarray = self._q(obs).argmax(-1).cpu().numpy()
        return actions

    def _q(self, obs: np.ndarray) -> Tensor:
        """Return q(s, ·), (P, N, actions), of normalized observations."""
        rows = obs.shape[1]
        if rows == 1:
            obs = obs.repeat(2, 1)  # see Exactness in networks/mlp.py
        features = torch.from_numpy(np.ascontiguousarray(obs)).to(self.device)
        return self.policy.values(features)[:, :rows]

    # --- epochs ---

    def run_epoch(self, stop: Callable[[], bool] = lambda: False) -> list[Metrics] | None:
        return self.loop.end_epoch(self, super().run_epoch(stop))

    def updates(self, member: int) -> int:
        return self.progress.updates

    def warm_started(self, member: int) -> None:
        self.progress.fills[member] = 2

    def refill(self, member: int) -> None:
        self.loop.refill_member(self.env_steps, member)

    def truncate_all(self) -> None:
        self.replay.truncate_all()


class DQN(Task):
    """Deep Q-learning on Discrete actions, with epsilon-greedy exploration.

    Mnih et al. (2015), doi:10.1038/nature14236, with Adam by default and the clipped error written as a Huber loss.
    By default double, with returns over three steps and a target network that follows slowly: it learns more reliably
    than by the paper's settings (double=False, n_step=1, target_interval=100, tau=1). Dueling and prioritized replay
    are options.
    """

    name = "dqn"
    version = 1
    learner = DQNLearner
