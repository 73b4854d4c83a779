"""Base of actor-critics that learn from replay, such as SAC.

A gradient step updates critics, actor and targets, in this order; the actor sees the updated critics, and the targets
follow them. A subclass says how its policy acts, and gives the step and its losses. Losses are given for each row of a
batch, (P, B); gradients are those of their mean.

Notation: P members, N environments, B batch, c critics of a member, k continuous numbers and n choices in an action.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ....spaces import Dimension, Space, categorical, integer, log_real, maybe, ordinal, real, sizes
from ...checkpoint.member_state import Stacked
from ...cuda.graphs import captured
from ...envs import EnvSpec, spaces_of
from ...envs.base.observations import Observations
from ...errors import UnsupportedSpace
from ...experience.replay_buffer import Index
from ...experience.returns import clipped_square, critic_loss_choice
from ...experience.sequence_replay import Sequences, sequence_space
from ...networks.dropout import Dropout
from ...networks.encoders import ENCODERS, encoder_space, needs_encoder
from ...networks.mlp import MLP, actor_layers, critic_layers
from ...networks.optimizers import Clipped, network_spans, norms, optimizer_of, optimizer_space, schedule_space
from ...rng.draws import Normals
from ...rng.streams import Keys
from ...signals.replay_guidance import make_replay_guidance
from ..off_policy import off_policy_space, updates_choice
from ..off_policy_learner import OffPolicyLearner
from .actions import NormalizedActions, SoftSample
from .entropy import forbidden_entropy
from .image_networks import ImageActorCritics, RecurrentImageActorCritics
from .networks import USES, ActorCritics, ActorImitator, Batch, NetworkForm
from .noise import CorrelatedNoise, Noise, no_noise
from .recurrent_networks import PolicyMemory, RecurrentActorCritics

Loss = tuple[Tensor, Clipped]
UNSEARCHED: dict[str, Any] = {"structural": True, "search": False}
UNTUNED: dict[str, Any] = {**UNSEARCHED, "silent": True}


def actor_critic_space(lr: float, **more: Dimension | Space | str) -> Space:
    """Return the hyperparameters of every actor-critic that learns from replay.

    Every `target_update_interval` gradient steps, the targets take the fraction `tau` from the online networks.

    Args:
        lr: default learning rate.
        more: further hyperparameters of the algorithm, or others in place of those of the same name; the reason why
            there is none leaves one out.
    """
    first: dict[str, Dimension | Space] = {
        "optimizer": optimizer_space(lr=lr, eps=1e-8),
        "lr_schedule": schedule_space(),
        "model": model_space(block=block_choice("residual blocks in place of the policy's hidden layers")),
        "critic": critic_space(),
    }
    last: dict[str, Dimension | Space] = {
        # None: the optimizer's
        "critic_lr": maybe(log_real(3e-5, 1e-2, accept=(0.0, 100.0)), default=None, search=False),
        "tau": log_real(0.001, 0.1, default=0.005, accept=(0.0, 1.0)),
        "target_update_interval": integer(1, 10, default=1, accept=(1, 10**9)),
        "critic_loss": critic_loss_choice(),
        "max_grad_norm": maybe(log_real(0.1, 20.0, accept=(1e-6, 1e6)), default=None),
        "scale_reward": categorical(False, True, default=False, structural=True, search=False),
        **off_policy_space(),
        "buffer_size": integer(1, 10**9, default=1_000_000, structural=True, search=False),
        "batch_size": ordinal(64, 128, 256, 512, default=256, accept=(2, 65536), structural=True),
        "num_steps": ordinal(1, 2, 4, 8, default=1, accept=(1, 1_000_000), structural=True),
        "num_updates": updates_choice(1),
    }
    entries = {**first, **more, **last, **more}
    reasons = {name: entry for name, entry in more.items() if isinstance(entry, str)}
    return Space(**{name: entry for name, entry in entries.items() if not isinstance(entry, str)}).without(**reasons)


def critic_space(**more: Dimension) -> Space:
    """Return the hyperparameters of the critics' form, and further ones.

    - `dropout` and `norm` are those of Hiraoka et al. (2022), arXiv:2110.02034 (DroQ): after each hidden layer's linear
      function, units are dropped, then normalized.
    - `block` is that of Lee et al. (2024), arXiv:2410.09754 (SimBa), see `residual`; dropout then is of what blocks
      add.
    """
    norm: dict[str, Any] = {"when": {"block": "none"}, "help": "normalization of hidden layers"}
    space = Space(
        dropout=real(0.0, 0.1, default=0.0, accept=(0.0, 0.99), help="probability that a unit is dropped", **UNTUNED),
        block=block_choice("residual blocks in place of hidden layers"),
        norm=categorical("none", "layer", default="none", **norm, **UNTUNED),
        **more,
    )
    reason = "ensembles whose least values count are those of sac; use it, or tqc with other critics"
    return space.without(**{name: reason for name in ("ensemble", "subset", "mean") if name not in more})


def delay_choice(default: int, largest: int, of: str, silent: bool = False) -> Dimension:
    """Return the hyperparameter of the actor's delay; `largest` ends its range."""
    help = f"gradient steps of the critics for each of {of}"
    return integer(1, largest, default=default, accept=(1, 1000), silent=silent, help=help, **UNSEARCHED)


def block_choice(help: str) -> Dimension:
    """Return the hyperparameter of a network's form."""
    return categorical("none", "simba", default="none", help=help, **UNTUNED)


def model_space(**more: Dimension) -> Space:
    """Return the hyperparameters of policy and critics, and further ones."""
    return Space(
        width=ordinal(32, 64, 128, 256, default=256, accept=(1, 65536), structural=True),
        hidden=sizes(2, 65536, silent=True),  # widths of the hidden layers, if they differ; below, the critics'
        critic_hidden=sizes(2, 65536, silent=True),
        layers=integer(1, 3, default=2, accept=(1, 16), structural=True, when={"hidden": None}),
        activation=categorical("tanh", "relu", "elu", default="relu", structural=True, search=False),
        memory=categorical("none", "lstm", "gru", default="none", structural=True, search=False),
        **encoder_space(),  # for images; policy and critics share it, see `image_networks`
        **sequence_space(),
        **more,
    )


class ActorCriticLearner(OffPolicyLearner):
    """P members of an actor with critics, trained on replayed transitions.

    Attributes:
        actions: the action space.
        noise: exploration noise.
        update_noise: standard normal numbers for the actions of a gradient step, (P, rows, k).
        noise_rows: rows of `update_noise` for each row of a batch.
        networks: class of the networks for vectors.
        action_form: class of `actions`.
        only_vectors: reason why the algorithm has neither memory nor encoder, if so.
        dropout: factors of the critics' units in a gradient step, (P, USES, c, B, units), or None.
    """

    in_kernel: ClassVar[tuple[str, ...]] = (
        *("draw", "update", "step", "critic_loss", "actor_loss", "total_reward", "guide", "network_form"),
        *("next_sample", "actor_values"),
    )
    parts: ClassVar[tuple[str, ...]] = (
        *OffPolicyLearner.parts,
        *("actor_optimizer", "critic_optimizer", "encoder_optimizer", "rewards", "noise"),
    )
    noise_rows: ClassVar[int] = 1
    networks: ClassVar[type[ActorCritics]] = ActorCritics
    action_form: ClassVar[type[NormalizedActions]]
    only_vectors: ClassVar[str] = ""
    policy: ActorCritics
    actions: NormalizedActions
    dropout: Dropout | None = None

    @classmethod
    def describe_actions(cls, env: EnvSpec, device: torch.device | str = "cpu") -> NormalizedActions:
        """Return the action space of an environment.

        Raises:
            UnsupportedSpace: the algorithm cannot act in it.
        """
        return cls.action_form(spaces_of(env).action, f"{cls.algorithm()} on {env.id}", device)

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        super().check(values)
        model = SimpleNamespace(**{"hidden": None, "layers": 1, **values["model"]})
        for space, layers in (("model", actor_layers(model)), ("critic", critic_layers(model))):
            if values.get(space, {}).get("block", "none") != "none" and len(set(layers)) > 1:
                raise ValueError(
                    f"{cls.algorithm()}: residual blocks add to what they get, so they have equal widths, but "
                    f"{space}.block is {values[space]['block']} and the hidden layers have {layers}; give equal widths"
                )

    @classmethod
    def check_values_in_env(cls, env: EnvSpec, values: Mapping[str, Any]) -> None:
        super().check_values_in_env(env, values)
        model, observations = SimpleNamespace(**values["model"]), Observations(spaces_of(env).observation, env.id)
        reason, cure = cls.only_vectors, "use SAC or TQC"
        if observations.mask is not None:
            reason, cure = "a memory or an encoder hides the action mask from the policy", "leave them out, or use ppo"
        if reason and (model.memory != "none" or observations.kind != "vector" or model.encoder not in ENCODERS):
            raise UnsupportedSpace(
                f"{cls.algorithm()} on {env.id}: {reason}, but model.memory is {model.memory!r}, "
                f"model.encoder {model.encoder!r} and the shape of observations {observations.shape}; {cure}"
            )

    @classmethod
    def check_env(cls, env: EnvSpec) -> None:
        super().check_env(env)
        cls.describe_actions(env)

    def network_form(self) -> NetworkForm:
        """Return the form of the networks."""
        raise NotImplementedError

    def build(self) -> None:
        super().build()
        hp = self.hp
        self.actions = self.describe_actions(self.env, self.device)
        self.policy = self.new_policy(self.seeds)
        if isinstance(self.policy, RecurrentActorCritics):
            state_size = (1 + self.policy.copies) * self.policy.state_size
            self.sequences = Sequences(self.replay, self.keys("replay"), state_size, hp)
            self.memory = PolicyMemory(self.policy, hp.num_envs, self.sequences)
        self.guidance = make_replay_guidance(self, ActorImitator(self.policy, self.actions))
        self.demonstrations = self.guidance.examples
        self.actor_optimizer = optimizer_of(self.policy.actor_vector, hp.optimizer)
        vectors = self.policy.critic_vectors  # side by side in the critics' gradient
        self.critic_optimizers = {name: optimizer_of(vector, hp.optimizer) for name, vector in vectors.items()}
        self.critic_optimizer = self.critic_optimizers["critic"]
        self.encoder_optimizer = self.critic_optimizers.get("encoder")
        self.critic_spans = network_spans({name: vector.shape[1:] for name, vector in vectors.items()})
        self.critic_lr = hp.optimizer.lr if hp.critic_lr is None else hp.critic_lr
        shape = (self.noise_rows * hp.batch_size, max(1, self.actions.continuous_dim))
        self.update_noise = Normals(self.keys("policy"), shape, self.device)
        self.noise = self.policy.noise(self.keys, hp.num_envs)
        interval, self.tau = (vars(hp).get(name) for name in ("target_update_interval", "tau"))
        self.targets_always_move = interval is None or bool((interval == 1).all())
        if rate := vars(hp).get("critic", SimpleNamespace(dropout=0.0)).dropout:
            units = (USES, self.policy.copies, hp.batch_size, sum(critic_layers(hp.model)))
            self.dropout = Dropout(self.keys("dropout"), rate, units, self.device)
        # Error beyond which the critics' losses are linear.
        self.limit = 1.0 if vars(hp).get("critic_loss") == "huber" else math.inf

    def new_policy(self, seeds: list[int]) -> ActorCritics:
        """Return networks for vectors, images or sequences, drawn from seeds."""
        model, shape = self.hp.model, self.envs.obs_shape
        plain, recurrent = self.networks, RecurrentActorCritics
        if self.mask is None and needs_encoder(model, shape):
            plain, recurrent = ImageActorCritics, RecurrentImageActorCritics
        return (plain if model.memory == "none" else recurrent)(shape, self.network_form(), seeds, self.device)

    def new_parts(self, seeds: list[int]) -> dict[str, Stacked]:
        vectors = {"actor": self.policy.actor_vector, **self.policy.critic_vectors}
        optimizers = {f"{name}_optimizer": optimizer_of(vector, self.hp.optimizer) for name, vector in vectors.items()}
        return {"policy": self.new_policy(seeds), **optimizers}

    # --- acting ---

    def explore(self, features: Tensor, position: int, noise: Noise | None = None) -> np.ndarray:
        """Return actions (P, N, ...); without a noise, with that of training."""
        outputs, z = self.policy.act(features)
        drawn, uniforms = (noise or self.noise)(position, outputs, z)
        actions = self.actions.greedy(outputs) if drawn is None else self.actions.act(outputs, drawn, uniforms)
        return actions.cpu().numpy().astype(self.actions.row_type, copy=False)

    def end_episodes(self, ended: np.ndarray) -> None:
        super().end_episodes(ended)
        if isinstance(self.noise, CorrelatedNoise):
            self.noise.reset(ended)

    def acting(self, episodes: int, deterministic: bool, keys: Keys) -> Callable[[Tensor, int], np.ndarray]:
        noise = no_noise if deterministic else self.policy.noise(keys, episodes)
        return lambda features, step: self.explore(features, step, noise)

    def greedy(self, obs: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        features, state = self.policy.remembered(self.normalize_batch(obs), state)
        return self.actions.greedy(self.policy.outputs(features)), state

    @torch.inference_mode()
    def state_values(self, obs: np.ndarray, memory: Any = None) -> np.ndarray:
        """Return the values of greedy actions, (P, N)."""
        if self.policy.cores:
            raise UnsupportedSpace(
                f"{self.algorithm()} on {self.env.id}: with model.memory, critics have recurrent states of their own, "
                "which acting does not advance, so that they give no value; use PPO, or leave model.memory out"
            )
        features = self.tensor(self.normalize(obs))
        numbers, logits = self.actions.greedy_outputs(self.policy.act(features)[0])
        q = self.actor_values(self.policy.values(features, torch.tanh(numbers)))  # (P, N, n)
        values = q if logits is None else q.gather(-1, logits.argmax(-1, True))
        return values[..., 0].cpu().numpy()

    # --- learning ---

    def draw(self) -> tuple[Index, dict[str, Tensor]]:
        rows, batch = super().draw()
        return rows, batch if self.dropout is None else {**batch, "dropout": self.dropout(self.progress.updates)}

    def alpha(self) -> Tensor:
        """Return the coefficients of the policy's entropies, (P, terms)."""
        return self.hp.gamma[:, :0]

    def due(self, number: int) -> tuple[bool, Tensor | None]:
        """Return whether the actor moves in a gradient step, and tau.

        Steps are numbered from 1. The targets move by tau, (P, 1); None leaves them.
        """
        moves_actor = number % vars(self.hp).get("policy_delay", 1) == 0
        if self.targets_always_move:
            return moves_actor, self.tau
        return moves_actor, self.hp.tau * (number % self.hp.target_update_interval.long() == 0)

    def subset(self, number: int) -> Tensor | None:
        """Return the target critics of a gradient step, (P, m).

        Their least values count; None stands for all.
        """
        return None

    def follow(self, entropies: Tensor | None, tau: Tensor | None) -> None:
        """Move entropy coefficients and targets after actor and critics.

        Args:
            entropies: mean entropies of the batch, (P, terms); None if the actor has not moved.
            tau: fraction by which the targets move, (P, 1); None leaves them.
        """
        if tau is not None:
            self.policy.move_target(tau)

    def update(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        number = self.progress.updates
        if (subset := self.subset(number)) is not None:
            batch = {**batch, "subset": subset}
        moves_actor, tau = self.due(number)
        return self.step(batch, self.update_noise(number), tau, moves_actor, self.measured)

    @captured
    def step(
        self, batch: Batch, noise: Tensor, tau: Tensor | None, moves_actor: bool, measured: bool
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Take the gradient step of `update`.

        Args:
            batch: tensors (P, B, ...).
            noise: standard normal numbers for the actions, those for the next observations last, (P, rows, k).
            tau: fraction by which the targets move, (P, 1); 0 or None leaves them.
            moves_actor: whether actor and entropy coefficients move, too.
            measured: whether metrics include the gradients' norms.
        """
        policy, rows, mask = self.policy, self.hp.batch_size, batch.get("mask")
        reward, batch, alpha = self.total_reward(batch), policy.encode(batch), self.alpha()
        with torch.set_grad_enabled(moves_actor):
            outputs, next_outputs = policy.outputs_of(batch)  # of the actor before its step
            sample = self.actions.sample(outputs, noise[:, :rows])
        next_sample = self.next_sample(next_outputs, noise[:, -rows:])

        critic_loss, errors, q = self.critic_loss(batch, reward, next_sample, alpha)
        critics, actor, entropies = self.descend_critics(critic_loss), None, None
        if moves_actor:
            actor_loss = masked(self.actor_loss(batch, sample, alpha), mask)
            actor = actor_loss.detach().mean(1), self.descend_actor(actor_loss)
            entropies = masked(sample.entropies.detach(), mask).mean(1)
        report = self.report((critic_loss.detach().mean(1), critics), q, alpha, actor, entropies, measured)
        if entropies is not None and policy.mask:
            entropies = entropies + forbidden_entropy(self.hp, self.actions, batch["obs"], policy.mask)
        self.follow(entropies, tau)
        return report, errors[:, 0]

    def report(
        self, critics: Loss, q: Tensor, alpha: Tensor, actor: Loss | None, entropies: Tensor | None, measured: bool
    ) -> dict[str, Tensor]:
        """Return the metrics of a gradient step, each (P,).

        Args:
            critics: mean loss of the critics, (P,), and their clipped gradient.
            q: mean value, (P,).
            alpha: entropy coefficients, (P, terms).
            actor: the same as `critics`, or None if the actor has not moved.
            entropies: mean entropies of the batch, (P, terms), with an `actor`.
            measured: whether to include the gradients' norms.
        """
        report, is_soft = {"critic_loss": critics[0], "q": q}, alpha.shape[1] > 0
        report |= {"alpha": alpha.mean(1)} if is_soft else {}
        report |= norms(critics[1], self.critic_spans) if measured else {}
        if actor is not None:
            report["actor_loss"] = actor[0]
            report |= {"entropy": entropies.sum(1)} if is_soft and entropies is not None else {}
            report |= norms(actor[1], "actor") if measured else {}
        return report

    def next_sample(self, outputs: Tensor, noise: Tensor) -> SoftSample:
        """Return the actions a' for the policy's outputs (P, B, outputs)."""
        return self.actions.sample(outputs, noise)

    def actor_values(self, q: Tensor) -> Tensor:
        """Return the least values (P, B, n), which the actor follows.

        Those of all critics are (P, c, B, n).
        """
        return q.min(1).values

    def critic_loss(
        self, batch: Batch, reward: Tensor, next_sample: SoftSample, alpha: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the critics' losses, errors and mean values.

            J = mean Σᵢ ½ (y - qᵢ(s, a))²,   y = r + discount V'(s')

        arXiv:1812.05905, eq. 5. V' is the soft value of the target critics; without entropies it is their least value:
        arXiv:1802.09477, eq. 10. `critic_loss` may replace the square.

        Args:
            batch: tensors (P, B, ...) with the actions that were taken.
            reward: r, the `total_reward`, (P, B).
            next_sample: actions for the next observations.
            alpha: entropy coefficients, (P, terms).

        Returns:
            Losses (P, B), errors y - qᵢ(s, a), (P, c, B), and the mean of q, (P,).
        """
        numbers, choices = self.actions.normalize(batch["action"])
        q, next_q = self.policy.q_and_target(batch, numbers, next_sample.continuous)
        if "subset" in batch:  # of the target critics
            next_q = next_q.gather(1, batch["subset"][..., None, None].expand(-1, -1, *next_q.shape[2:]))
        targets = reward + batch["discount"] * soft_value(next_q.min(1).values, next_sample, alpha)
        mask = batch.get("mask")
        losses, errors, q = squares(q, choices, targets, batch.get("weight", mask), self.limit)
        return losses, errors, q.mean((1, 2)) if mask is None else masked(q.mean(1), mask).mean(1)

    def actor_loss(self, batch: Batch, sample: SoftSample, alpha: Tensor) -> Tensor:
        """Return the policy's losses (P, B).

            J = mean α log π(c|s) - minᵢ qᵢ(s, c)

        arXiv:1812.05905, eq. 9. `actor_values` may replace the least qᵢ. The action c is a function of the policy's
        outputs and of noise, which lets the gradient pass; none passes to the critics.
        """
        return -soft_value(self.actor_values(self.policy.q(batch, sample.continuous)), sample, alpha)

    @torch.no_grad()
    def loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return each member's critic loss (P,) and metrics on a batch.

        The batch's tensors are (P, B, ...). The next actions are the medians of their distribution, without noise.
        """
        reward, batch = self.total_reward(batch), self.policy.encode(batch)
        _, next_outputs = self.policy.outputs_of(batch)
        noise = torch.zeros(*next_outputs.shape[:2], self.actions.continuous_dim, device=self.device)
        next_sample = self.actions.sample(next_outputs, noise)
        rows = {name: x for name, x in batch.items() if name != "weight"}
        if (subset := self.subset(0)) is not None:
            rows["subset"] = subset
        losses, _, q = self.critic_loss(rows, reward, next_sample, self.alpha())
        return losses.mean(1), {"q": q}

    @property
    def perceptrons(self) -> list[MLP | None]:
        """Perceptrons of policy and critics; None in place of other networks."""
        plain = type(self.policy) is self.networks and not (self.dropout or self.mask)
        return [self.policy.pi, self.policy.critic_form] if plain else [None]

    def descend_critics(self, losses: Tensor) -> Clipped:
        """Take one step of the critics and, if any, of the encoder.

        Return the clipped gradient, which has their parts side by side.
        """
        gradient, lr = self.policy.critic_gradient(losses), self.scheduled(self.critic_lr)
        step, optimizers = self.critic_optimizer.clip(gradient, self.hp.max_grad_norm), self.critic_optimizers.values()
        parts = step.gradient.split([optimizer.vector.shape[1] for optimizer in optimizers], 1)
        for optimizer, part in zip(optimizers, parts, strict=True):
            optimizer.step(part.contiguous(), lr)
        return step

    def descend_actor(self, losses: Tensor) -> Clipped:
        """Take one step of the actor, and return the clipped gradient."""
        gradient, lr = self.policy.actor_gradient(losses), self.scheduled(self.hp.optimizer.lr)
        return self.actor_optimizer.descend(gradient, lr, self.hp.max_grad_norm)


def masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return x (P, B, ...) times a mask (P, B).

    Take means over the batch after it, not before.
    """
    return x if mask is None else x * mask.reshape(*mask.shape, *[1] * (x.ndim - 2))


def soft_value(q: Tensor, sample: SoftSample, alpha: Tensor) -> Tensor:
    """Return the soft value (P, B) for values q (P, B, n).

        V = Σ_d π(d|s) q(s, c, d) - α_c log π(c|s) + α_d H(π(·|s))

    Both entropies are added: arXiv:1812.05905, eq. 3, and arXiv:1910.07207, eq. 10.

    Args:
        q: values, such as the lesser ones of two critics.
        sample: actions.
        alpha: entropy coefficients α, (P, terms).
    """
    value = q.squeeze(-1) if sample.probs is None else (sample.probs * q).sum(-1)
    return value + (sample.entropies * alpha.unsqueeze(1)).sum(-1)


def squares(
    q: Tensor, choices: Tensor | None, targets: Tensor, weight: Tensor | None, limit: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return critics' losses Σᵢ w l(y - qᵢ), their errors and values.

    l(δ) is δ²/2, and linear for |δ| beyond `limit`.

    Args:
        q: values of all choices, (P, c, B, n).
        choices: choices taken, (P, B); None if n = 1.
        targets: y, (P, B).
        weight: w, (P, B); None for equal weights.
        limit: error beyond which the loss is linear.

    Returns:
        Losses (P, B); errors y - qᵢ and values qᵢ of the choices, each (P, c, B), without gradients.
    """
    if choices is not None:
        q = q.gather(-1, choices[:, None, :, None].expand(-1, q.shape[1], -1, 1))
    values = q.squeeze(-1)
    errors = targets.unsqueeze(1) - values
    losses = clipped_square(errors, limit).sum(1)
    return losses if weight is None else losses * weight, errors.detach(), values.detach()
