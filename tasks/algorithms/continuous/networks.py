"""Networks of actor-critics: a policy, critics and their targets.

Notation: P members, N environments, B batch, k continuous numbers and n choices in an action.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ...checkpoint.member_state import Stacked
from ...cuda.graphs import captured
from ...networks.distributions import log_softmax
from ...networks.fused.autograd import Autograd, Tape
from ...networks.fused.mlp import ActingMLP, FusedMLP
from ...networks.layer_norm import LayerNormMLP
from ...networks.mlp import (
    ACTIVATIONS,
    MLP,
    Network,
    Parameters,
    actor_layers,
    affine,
    critic_layers,
    initialize,
    shapes_of,
)
from ...networks.recurrent import ActingMemory, Core
from ...networks.residual import ResidualMLP
from ...rng import streams
from ...rng.streams import Bits
from .actions import Head, NormalizedActions, SoftHead
from .composed import ComposedMLP
from .noise import Noise

Batch = Mapping[str, Tensor]
FORMS = {"none": MLP, "layer": LayerNormMLP, "simba": ResidualMLP}  # by `critic.norm`, `critic.block` and `model.block`
USES = 3  # of critics in a gradient step: learning, as targets, and for the policy
Form = tuple[NDArray[np.int64], int]  # sizes of a network's layers and number of its activation, for kernels


class NetworkForm(NamedTuple):
    """Form of an algorithm's networks.

    Attributes:
        head: last layer of the policy.
        copies: critics of a member.
        values: outputs of a critic, such as one for each choice.
        target_actor: whether the policy has a target network, too.
        tape: whether all losses are differentiable by a `Tape`.
    """

    head: Head
    copies: int = 2
    values: int = 1
    target_actor: bool = False
    tape: bool = False


class ActorCritics(Stacked):
    """Policy π(a|s), critics qᵢ(s, a), and their targets.

    The c critics and targets of P members form one stack of 2cP networks, so they are computed together.

    Attributes:
        copies: c.
        actor: parameters of P policies.
        critics: parameters of 2cP critics: those of every member side by side, then all of their targets.
        actor_vector, critic_vector, target_vector: these parameters as (P, D), (P, cD) and (P, cD).
        actor_target: parameters of the policies' targets, (P, D), if the form has them.
        critic_vectors: vectors that the critics' loss is differentiated by, by network.
        autograd: computes the losses' gradients: torch's autograd or a tape.
        cores: recurrent cores of policy and critics, if any.
    """

    cores: Sequence[Core] = ()

    def __init__(
        self,
        inputs: int,
        actions: NormalizedActions,
        form: NetworkForm,
        hp: SimpleNamespace,
        seeds: list[int],
        device: torch.device,
    ):
        """Initialize the networks.

        Args:
            inputs: numbers in an observation.
            actions: action space.
            form: form of the networks.
            hp: hyperparameters, of which `model` and batch_size are used.
            seeds: seeds of the members.
            device: device of all tensors.
        """
        members, model, rows = len(seeds), hp.model, hp.batch_size
        self.head, self.copies = form.head, form.copies
        self.online = form.copies * members  # number of learning critics
        self.used_values = form.values
        self.padding = int(inputs == 1)  # see Exactness in networks/mlp.py
        numbers = inputs + self.padding
        of_pi = FORMS[model.block]
        pi = of_pi("actor", [numbers, *actor_layers(model), self.head.outputs], model.activation, self.head.gain)
        values = max(2, form.values) if form.copies == 1 else form.values  # see Exactness in networks/mlp.py
        q_sizes = [numbers + actions.continuous_dim, *critic_layers(model), values]
        of_q = FORMS[hp.critic.norm if hp.critic.block == "none" else hp.critic.block]
        q = of_q("critic", q_sizes, model.activation, last_gain=1.0)

        of_actor: list[Network] = [pi, *self.cores[:1], self.head]
        self.actor = initialize(of_actor, Parameters(shapes_of(of_actor), members, device), seeds)
        self.actor_vector = self.actor.vector
        of_critic: list[Network] = [q, *self.cores[1:]]
        critic_seeds = [streams.seed_of(seed, "critic", twin) for seed in seeds for twin in range(form.copies)]
        self.critics = initialize(of_critic, Parameters(shapes_of(of_critic), 2 * self.online, device), critic_seeds)
        self.critic_vector, self.target_vector = self.critics.vector.view(2, members, -1)  # of [2cP, D] twice [P, cD]
        self.target_vector.copy_(self.critic_vector)
        self.critic_vectors = {"critic": self.critic_vector}
        self.tensors = {"actor": self.actor_vector, "critic": self.critic_vector, "target": self.target_vector}

        if form.target_actor:
            self.tensors["actor_target"] = self.actor_target = self.actor_vector.clone()

        self._pi, self._pi_layers = pi, pi.layers(self.actor.views)
        self._q, self._q_layers = q, q.layers(self.critics.views)
        self._online_layers = [(weight[: self.online], bias[: self.online]) for weight, bias in self._q_layers]
        activation, fused = ACTIVATIONS[model.activation], of_q is MLP and not hp.critic.dropout
        plain = type(self) is ActorCritics and type(self.head) is SoftHead and of_pi is MLP and fused
        self.autograd: Autograd | Tape = Tape() if form.tape and plain else Autograd()  # a tape can do no more
        self._acting = ActingMLP.of(pi.sizes, activation, self.actor_vector) if of_pi is MLP else None
        self._online_vector = self.critics.vector[: self.online]
        self._fused_pi: FusedMLP | ComposedMLP
        self._fused_q: FusedMLP | ComposedMLP
        if of_pi is MLP:  # of a batch and its next observations
            self._fused_pi = FusedMLP(pi.sizes, activation, self.actor_vector, members, 2 * rows)
        else:
            self._fused_pi = ComposedMLP(pi, self.actor, self.actor_vector)
        if fused:
            self._fused_q = FusedMLP(q.sizes, activation, self._online_vector, 2 * self.online, rows)
        else:
            self._fused_q = ComposedMLP(q, self.critics, self._online_vector)

    # --- acting ---

    def memory(self, num_envs: int) -> ActingMemory:
        """Return the recurrent state of num_envs environments at the start of episodes."""
        return ActingMemory()

    def remembered(self, obs: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the policy's inputs for observations, and its next recurrent states.

        Observations are (P, N, ...).
        """
        return obs, None

    def hidden(self, obs: Tensor) -> Tensor:
        """Return the policy's last hidden activations, (P, N, width).

        Observations are (P, N, inputs), with any N.
        """
        return self._pi.hidden(self._pi_layers, self._padded(obs))

    def outputs(self, z: Tensor) -> Tensor:
        """Return the parameters of the action distributions, (P, N, outputs).

        z are the policy's last hidden activations, (P, N, width).
        """
        return self.head(self.actor.views, affine(z, *self._pi_layers[-1]), z)

    @property
    def capturable(self) -> bool:
        """Return whether acting can run as a CUDA graph."""
        return self.actor_vector.is_cuda

    @captured
    def act(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the action distributions' parameters, and the last hidden activations z.

        Observations are (P, N, inputs), with any N; the results are (P, N, ...).
        """
        rows = obs.shape[1]
        if self._acting is not None:
            out, z = map(torch.from_numpy, self._acting(self._padded(obs)))
            return self.head(self.actor.views, out, z), z
        if rows == 1:  # see Exactness in networks/mlp.py
            obs = torch.cat([obs, obs], 1)
        z = self.hidden(obs)
        return self.outputs(z)[:, :rows], z[:, :rows]

    def values(self, obs: Tensor, numbers: Tensor) -> Tensor:
        """Return the critics' values, (P, c, N, n), without gradients.

        Observations are (P, N, inputs) with any N, and the actions' continuous numbers (P, N, k).
        """
        x = torch.cat([self._padded(obs), numbers], -1).repeat_interleave(self.copies, 0)
        return self._used(self._q(self._online_layers, x).unflatten(0, (-1, self.copies)))

    def noise(self, keys: Callable[[str], Bits], num_envs: int) -> Noise:
        """Return the exploration noise, drawn from these random streams."""
        return self.head.noise(keys, num_envs, self.actor.views)

    # --- learning ---

    @property
    def forms(self) -> tuple[Form, Form] | None:
        """Forms of actor and critics, for kernels; None without."""
        pi, q = self._fused_pi.compiled, self._fused_q.compiled
        return None if pi is None or q is None else (pi, q)

    def encode(self, batch: Batch) -> Batch:
        """Return the batch in the form that the other methods take."""
        return batch

    def outputs_of(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return action parameters for a batch and for its next observations.

        Each is (P, B, outputs); only the first has gradients.
        """
        return self._outputs_of(batch["obs"].detach(), batch["next_obs"])

    def learning_outputs(self, batch: Batch) -> Tensor:
        """Return action parameters for a batch, (P, B, outputs), with gradients."""
        out, _, z = self._fused_pi(self.actor_vector, self._padded(batch["obs"].detach()))
        return self.head.learn(self.actor, self._fused_pi.leaf, out, out[:, :0], z)[0]

    def target_outputs(self, batch: Batch) -> Tensor:
        """Return the target policy's parameters for next observations, (P, B, outputs)."""
        out = self._fused_pi.evaluate(self.actor_target, self._padded(batch["next_obs"]))
        return self.head(self.actor.views, out, out)

    def q_and_target(self, batch: Batch, numbers: Tensor, next_numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return the critics' values of a batch, and the targets' next values.

        They are q(s, c, ·) for numbers c (P, B, k), and q'(s', c', ·) for the next numbers c', each (P, c, B, n).
        """
        obs, next_obs = self._padded(batch["obs"]), self._padded(batch["next_obs"])
        given = (obs, numbers, next_obs, next_numbers, self.copies)
        dropped = self._dropped(batch, factors=0, no_grad_factors=1)
        q, target, _ = self._fused_q(self.critics.vector, *given, **dropped)
        return self._used(q), self._used(target)

    def q(self, batch: Batch, numbers: Tensor) -> Tensor:
        """Return the critics' values of numbers c, (P, c, B, n).

        Gradients pass to c only.
        """
        more = {"num_copies": self.copies, "learn": False, **self._dropped(batch, factors=2)}
        return self._used(self._fused_q(self._online_vector, self._padded(batch["obs"]), numbers, **more)[0])

    def imitating_outputs(self, obs: Tensor) -> Tensor:
        """Return action parameters (P, B, outputs), with gradients in the actor's `leaves`."""
        tensors = self.actor.leaves
        layers = self._pi.layers(tensors)
        z = self._pi.hidden(layers, self.features(obs))
        return self.head(tensors, affine(z, *layers[-1]), z)

    def actor_gradient(self, losses: Tensor) -> Tensor:
        """Return the gradient (P, D) of losses with respect to the actor."""
        return self.autograd.gradient(losses, self._fused_pi.leaf)

    def critic_gradient(self, losses: Tensor) -> Tensor:
        """Return the gradient of losses with respect to `critic_vectors`, side by side."""
        return self.autograd.gradient(losses, self._fused_q.leaf).view_as(self.critic_vector)

    def _outputs_of(self, obs: Tensor, next_obs: Tensor) -> tuple[Tensor, Tensor]:
        out, next_out, z = self._fused_pi(self.actor_vector, self._padded(obs), no_grad_inputs=self._padded(next_obs))
        return self.head.learn(self.actor, self._fused_pi.leaf, out, next_out, z)

    def _dropped(self, batch: Batch, **uses: int) -> dict[str, Any]:
        """Return the critics' arguments for dropout, by number of the use."""
        return {name: batch["dropout"][:, use].flatten(0, 1) for name, use in uses.items() if "dropout" in batch}

    def _used(self, values: Tensor) -> Tensor:
        """Return the critics' values (P, c, B, n).

        Those of a lone critic have no axis c before, and outputs that pad them.
        """
        if self.copies > 1:
            return values
        return (values if values.ndim == 4 else values.unsqueeze(1))[..., : self.used_values]

    def features(self, obs: Tensor) -> Tensor:
        """Return the actor's inputs for observations (P, B, ...), without gradients."""
        return self._padded(obs)

    def _padded(self, obs: Tensor) -> Tensor:
        return functional.pad(obs, (0, 1)) if self.padding else obs

    @torch.no_grad()
    def move_target(self, tau: Tensor) -> None:
        """Move the targets: θ' ← θ' + tau (θ - θ').

        tau is (P, 1); 0 leaves the targets, 1 copies θ.
        """
        self.target_vector.lerp_(self.critic_vector, tau)
        if "actor_target" in self.tensors:
            self.actor_target.lerp_(self.actor_vector, tau)

    @property
    def parameters(self) -> ActorCritics:
        """The networks themselves, which return parameters by name."""
        return self

    def of(self, member: int) -> dict[str, Tensor]:
        """Return one member's parameters by name; views of the vectors."""
        names = self.actor.of(member)
        for copy in range(self.copies):
            critic = self.critics.of(self.copies * member + copy)
            names |= {name.replace("critic", f"critic{copy}", 1): tensor for name, tensor in critic.items()}
        return names

    def copy_target(self, member: int) -> None:
        """Copy one member's online networks into its targets."""
        self.target_vector[member].copy_(self.critic_vector[member])
        if "actor_target" in self.tensors:
            self.actor_target[member].copy_(self.actor_vector[member])


class ActorImitator:
    """A policy that learns from demonstrations.

    The loss is the squared error of the normalized means of numbers, and -log π of choices.
    """

    state_size = 0

    def __init__(self, policy: ActorCritics, actions: NormalizedActions):
        self.policy, self.actions, self.parameters, self.distribution = policy, actions, policy.actor, self

    def __call__(self, batch: Batch) -> tuple[Tensor, None]:
        """Return the parameters of the action distributions, (P, B, outputs), with gradients."""
        return self.policy.imitating_outputs(batch["obs"]), None

    def imitation_loss(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Return the losses (P, B) of imitating the environments' actions."""
        mean, logits = self.actions.greedy_outputs(outputs)
        numbers, choices = self.actions.normalize(actions)
        losses = [(torch.tanh(mean) - numbers).square().mean(-1)] if self.actions.continuous_dim else []
        if choices is not None and logits is not None:
            losses.append(-log_softmax(logits).gather(-1, choices.unsqueeze(-1)).squeeze(-1))
        return sum(losses[1:], losses[0])
