"""Deep Q-learning: Mnih et al. (2015), doi:10.1038/nature14236, with the options of Rainbow that stand on their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...spaces import Space, categorical, integer, log_real, maybe, ordinal
from ..checkpoint.member_state import Stacked
from ..envs import EnvSpec, spaces_of
from ..errors import UnsupportedSpace
from ..evaluation import evaluation_keys
from ..experience.exploration import Epsilon, EpsilonGreedy, epsilon_space
from ..networks import backprop
from ..networks.encoders import Encoder, check_encoder, encoder_choice, encoder_for
from ..networks.mlp import MLP, Parameters
from ..networks.optimizers import EVERY, Optimizer, clip_norm, norms, optimizer_space, schedule_space
from ..task import Task
from .off_policy import OffPolicyLearner, off_policy_space


class QNetwork(Stacked):
    """q(s, ·) of P members; duelling: q = v + a - mean a, Wang et al. (2016), arXiv:1511.06581, eq. 9."""

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        actions: int,
        hp: SimpleNamespace,
        batch_size: int,
        seeds: list[int],
        device: torch.device,
    ):
        """obs_shape: (D,) of vectors or (H, W, C) of images; hp: the values of `model`."""
        self.encoder = encoder_for(hp, "features", obs_shape)
        hidden = [self.encoder.features, *[hp.width] * hp.layers]
        self.heads = [MLP("q", [*hidden, actions], hp.activation, last_gain=1.0)]
        if hp.duelling:
            self.heads.append(MLP("value", [*hidden, 1], hp.activation, last_gain=1.0))
        networks: list[Encoder | MLP] = [self.encoder, *self.heads]
        shapes = {name: shape for network in networks for name, shape in network.shapes.items()}
        self.parameters, self.target = (Parameters(shapes, len(seeds), device) for _ in range(2))
        for member, seed in enumerate(seeds):
            for network in networks:
                network.initialize(self.parameters, member, seed)
        self.target.vector.copy_(self.parameters.vector)
        plain = not self.encoder.shapes and not hp.duelling
        by_hand = plain and backprop.applies(self.heads[0].sizes, hp.activation, batch_size)
        self.derivative = backprop.DERIVATIVES[hp.activation] if by_hand else None
        self.tensors = {"vector": self.parameters.vector, "target": self.target.vector}
        self._views, self._leaves, self._target_views = (
            (tensors, [head.layers(tensors) for head in self.heads])
            for tensors in (self.parameters.views, self.parameters.leaves, self.target.views)
        )

    def __call__(self, obs: Tensor) -> Tensor:
        """q(s, ·) with gradients, (P, B, actions), of observations (P, B, ...)."""
        return self._q(*self._leaves, obs)

    def with_gradient(self, obs: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """q(s, ·), and what gives the gradient (P, D) of Σ slopes · q for slopes (P, B, actions)."""
        if self.derivative is None:
            q = self(obs)
            return q.detach(), lambda slopes: self.parameters.gradient((slopes * q).sum((1, 2)))
        derivative, layers = self.derivative, self._views[1][0]
        values = backprop.forward(self.heads[0], layers, self.encoder({}, obs))
        rest = self.parameters.vector.new_zeros(len(obs), self.parameters.padding)
        return values[-1], lambda slopes: torch.cat([*backprop.backward(layers, values, slopes, derivative), rest], 1)

    def values(self, obs: Tensor) -> Tensor:
        """q(s, ·) without gradients."""
        return self._q(*self._views, obs)

    def target_values(self, obs: Tensor) -> Tensor:
        """q(s, ·) of the target network."""
        return self._q(*self._target_views, obs)

    def _q(self, tensors, layers, obs: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        features = self.encoder(tensors, obs)
        q, *value = (head(weights, features) for head, weights in zip(self.heads, layers, strict=True))
        return value[0] + q - q.mean(-1, keepdim=True) if value else q

    def copy_target(self, member: int) -> None:
        """Makes one member's target network a copy of its online one."""
        self.target.vector[member].copy_(self.parameters.vector[member])

    def move_target(self, tau: Tensor, now: NDArray[np.bool_]) -> None:
        """θ' ← (1 - tau) θ' + tau θ, tau (P, 1), of the members whose time is `now` (P, 1); tau = 1 copies exactly."""
        moved = (1 - tau) * self.target.vector + tau * self.parameters.vector
        if not now.all():
            moved = torch.where(torch.from_numpy(now).to(moved.device), moved, self.target.vector)
        self.target.vector.copy_(moved)


class DQNLearner(OffPolicyLearner):
    """P members of DQN."""

    policy: QNetwork
    hyperparameters = Space(
        optimizer=optimizer_space(lr=1e-3, eps=1e-8),
        lr_schedule=schedule_space(),
        model=Space(
            width=ordinal(32, 64, 128, 256, default=64, accept=(1, 65536), structural=True),
            layers=integer(1, 3, default=2, accept=(1, 16), structural=True),
            activation=categorical("tanh", "relu", "silu", "elu", default="relu", structural=True, search=False),
            duelling=categorical(False, True, default=False, structural=True),
            encoder=encoder_choice(),
        ),
        exploration=epsilon_space(),
        double=categorical(False, True, default=True, structural=True),
        # Every `target_interval` gradient steps the target network moves by the fraction `tau` towards the online one:
        # tau = 1 copies it, as the paper does (with a target_interval of 100, say); the default is Polyak averaging.
        target_interval=integer(1, 1000, log=True, default=1, accept=(1, 10**9)),
        tau=log_real(0.003, 1.0, default=0.005, accept=(0.0, 1.0)),
        max_grad_norm=maybe(log_real(0.1, 20.0, accept=(1e-6, 1e6)), default=10.0),
        **off_policy_space(n_step=3),
    )
    parts = ("policy", "optimizer", "replay", "priorities", "progress", "obs_normalizer")

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
    def check_use(cls, env: EnvSpec, values: Mapping[str, Any]) -> None:
        super().check_use(env, values)
        check_encoder(values["model"], env, f"{cls.algorithm()} on {env.id}")

    def build(self) -> None:
        super().build()
        hp, actions = self.hp, self.uniform_actions.largest + 1
        self.policy = QNetwork(self.envs.obs_shape, actions, hp.model, hp.batch_size, self.seeds, self.device)
        self.optimizer = Optimizer(self.policy.parameters.vector, hp.optimizer)
        self.exploration = EpsilonGreedy(self.keys("explore"), actions, hp.num_envs)
        self.epsilon = Epsilon(hp.exploration)
        self.target_interval = hp.target_interval.long().cpu().numpy()

    def explore(self, obs: np.ndarray, position: int) -> np.ndarray:
        explores = self.exploration.explores(position, self.epsilon(self.env_steps))
        if not explores.any():
            return self._greedy(obs)
        uniform = self.exploration.uniform(position)
        return uniform if explores.all() else np.where(explores, uniform, self._greedy(obs))

    def update(self, batch: Mapping[str, Tensor], lr: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        q, gradient_of = self.policy.with_gradient(batch["obs"])
        errors = self.errors(batch, q)
        losses, slopes = huber(errors, batch.get("weight"))
        slopes = torch.zeros_like(q).scatter_(-1, batch["action"].unsqueeze(-1), -slopes.unsqueeze(-1))
        step = clip_norm(gradient_of(slopes), self.hp.max_grad_norm)
        self.optimizer.step(step.gradient, lr)
        due = self.progress.updates % self.target_interval == 0
        if due.any():
            self.policy.move_target(self.hp.tau, due)
        sizes = norms(step, "q") if self.tally.count % EVERY == 0 else {}
        return {"loss": losses, "q": q.amax(-1).mean(1), **sizes}, errors

    def loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Each member's loss (P,) on a batch (P, B, ...), and what to report of it."""
        q = self.policy.values(batch["obs"])
        return huber(self.errors(batch, q), batch.get("weight"))[0], {"q": q.amax(-1).mean(1)}

    def errors(self, batch: Mapping[str, Tensor], q: Tensor) -> Tensor:
        """Temporal-difference errors (P, B) of a batch (P, B, ...), where q is q(s, ·), without gradients.

            δ = r + discount q'(s', a') - q(s, a),   a' = argmax q'(s', ·), or argmax q(s', ·) if `double`

        where a is the action that was taken. Double: van Hasselt et al. (2016), arXiv:1509.06461, eq. 4.
        """
        next_q = self.policy.target_values(batch["next_obs"])
        if self.hp.double:
            chosen = self.policy.values(batch["next_obs"]).argmax(-1, keepdim=True)
            value = next_q.gather(-1, chosen).squeeze(-1)
        else:
            value = next_q.amax(-1)
        target = batch["reward"] + batch["discount"] * value
        return target - q.gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)

    def actor(self, episodes: int, deterministic: bool = True) -> Callable[[np.ndarray], np.ndarray]:
        if deterministic:
            return lambda obs: self._greedy(self.seen(obs))
        exploration = EpsilonGreedy(evaluation_keys(self.members, "explore"), self.exploration.actions, episodes)
        epsilon, steps = self.epsilon(self.env_steps), count()

        def act(obs: np.ndarray) -> np.ndarray:
            step = next(steps)
            explores, uniform = exploration.explores(step, epsilon), exploration.uniform(step)
            return np.where(explores, uniform, self._greedy(self.seen(obs)))

        return act

    def _greedy(self, obs: np.ndarray) -> np.ndarray:
        """The greedy actions for what is seen; nothing here has gradients, and to say so again would take a tenth."""
        rows = obs.shape[1]
        if rows == 1:
            obs = obs.repeat(2, 1)  # a single row takes another path through the matrix products, see `affine`
        seen = torch.from_numpy(np.ascontiguousarray(obs)).to(self.device)
        actions: np.ndarray = self.policy.values(seen)[:, :rows].argmax(-1).cpu().numpy()
        return actions


def huber(errors: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The mean over a batch (P, B) of δ²/2 for |δ| <= 1 and |δ| - 1/2 beyond, (P,), and its slopes in δ, (P, B).

    The slope is δ clipped to ±1, the paper's error clipping: Huber (1964).
    """
    clipped = errors.clamp(-1, 1)
    losses, slopes = clipped * (errors - 0.5 * clipped), clipped / errors.shape[1]
    if weights is not None:
        losses, slopes = weights * losses, weights * slopes
    return losses.mean(1), slopes


class DQN(Task):
    """Deep Q-learning on Discrete actions, with epsilon-greedy exploration.

    Mnih et al. (2015), doi:10.1038/nature14236, with Adam by default and the clipped error written as a Huber loss.
    By default double, with returns over three steps and a target network that follows slowly: it learns more reliably
    than by the paper's settings (double=False, n_step=1, target_interval=100, tau=1). Duelling and prioritized replay
    are options.
    """

    name = "dqn"
    version = 1
    learner = DQNLearner
