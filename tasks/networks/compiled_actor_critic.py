"""Actor-critics computed by kernels, and their losses as kernels take them."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from ..compiled.loading import kernels
from ..compiled.records import (
    ACTIVATION_NUMBERS,
    Actions,
    EnvModel,
    Experience,
    LossTerms,
    Played,
    PolicyNetworks,
    RunningEpisodes,
    Slope,
)
from ..envs.base.masks import actor_columns_in
from ..runtime.progress import tick
from .actor_critic import ActorCritic, ActorCriticForm
from .distributions import Categorical, Gaussian, distribution_for
from .encoders import ENCODERS, Unlearned, encoder_for
from .mlp import actor_layers, critic_layers

CLIPPING = {"ppo": 1, "ppo2": 2}  # of values; 0 is none
METRICS = ("policy_loss", "entropy", "approx_kl", "clip_fraction", "value_loss")
STEPS_AT_ONCE = 4096  # steps between two ticks, which show that this process makes progress


def actor_critic(form: ActorCriticForm, seeds: list[int], device: torch.device | str = "cpu") -> ActorCritic:
    """Return an `ActorCritic`, computed by kernels if they cover it."""
    run = kernels() if torch.device(device).type == "cpu" and is_covered(form) else None
    return ActorCritic(form, seeds, device) if run is None else CompiledActorCritic(run, form, seeds)


def is_covered(form: ActorCriticForm) -> bool:
    """Return whether kernels compute an actor-critic.

    They cover vectors and actions that are one choice or normal numbers.
    """
    obs_shape, hp, distribution = form.obs_shape, form.hp, distribution_for(form.action_space, form.subject)
    return (
        not (form.sde or form.goal or hp.shared_critic)
        and actor_columns_in(obs_shape) is None
        and hp.encoder in ENCODERS
        and type(encoder_for(hp, "features", obs_shape)) is Unlearned
        and type(distribution) in (Categorical, Gaussian)
        and getattr(distribution, "units", None) is None
        and hp.activation in ACTIVATION_NUMBERS
        and min(obs_shape[0], *actor_layers(hp), *critic_layers(hp)) > 1  # see Exactness in mlp.py
    )


class CompiledActorCritic(ActorCritic):
    """An `ActorCritic` computed by kernels.

    Attributes:
        run: module of kernels.
        networks: the networks as kernels take them.
        gradient: last gradient, (P, D).
        slope: the last gradient and its metrics, filled in.
    """

    scratch = ("run", "networks", "gradient", "slope")

    def __init__(self, run: ModuleType, form: ActorCriticForm, seeds: list[int]):
        """Build the networks, see `ActorCritic`, for the kernels `run`."""
        super().__init__(form, seeds)
        vector, spans = self.parameters.vector, self.parameters.spans
        gaussian = isinstance(self.distribution, Gaussian)
        self.run = run
        self.networks = PolicyNetworks(
            vector.numpy(),
            np.array(self.actor.sizes, np.int64),
            np.array(self.critic.sizes, np.int64),
            spans["actor.0.weight"].start,
            spans["critic.0.weight"].start,
            spans["actor.log_std"].start if gaussian else 0,
            ACTIVATION_NUMBERS[self.actor.activation_name],
            gaussian,
        )
        self.gradient = torch.zeros_like(vector)
        self.slope = Slope(self.gradient.numpy(), np.zeros((len(vector), len(METRICS)), np.float32))

    def sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        members, rows, outputs = noise.shape
        numbers = self.networks.gaussian
        dtype = torch.float32 if numbers else torch.int64
        actions = torch.empty(members, rows, outputs if numbers else 1, dtype=dtype)
        self.run.act(obs.contiguous().numpy(), self.networks, noise.numpy(), self.split(actions))
        return actions.view(members, rows, *self.distribution.action_shape)

    def log_probs(self, obs: Tensor, actions: Tensor) -> Tensor:
        if obs.shape[1] == 1:
            return super().log_probs(obs, actions)
        result = torch.empty(obs.shape[:2])
        self.run.log_probs(obs.contiguous().numpy(), self.networks, self.split(actions), result.numpy())
        return result

    def value(self, obs: Tensor) -> Tensor:
        if obs.shape[1] == 1:
            return super().value(obs)
        result = torch.empty(obs.shape[:2])
        self.run.values(obs.contiguous().numpy(), self.networks, result.numpy())
        return result

    def play(self, noise: Tensor, model: EnvModel, episodes: RunningEpisodes) -> Played:
        """Act in environments for a whole rollout.

        Args:
            noise: noise of the actions, (T, P, N, n).
            model: equations of the environments.
            episodes: their running episodes, changed in place.
        """
        steps, members, num_envs, _ = noise.shape
        (size,), (one, none) = self.obs_shape, ((members, steps, num_envs, 1), (members, steps, 0, 0))
        choices, numbers = (none, one) if self.networks.gaussian else (one, none)  # kernels take rows of both
        played = Played(
            np.empty((members, steps + 1, num_envs, size), np.float32),
            np.empty(choices, np.int64),
            np.empty(numbers, np.float32),
            np.empty((members, steps, num_envs, size), np.float32),
            *(np.empty((steps, members, num_envs), dtype) for dtype in (*[np.float32] * 3, np.float64, np.int64)),
        )
        for first in range(0, steps, STEPS_AT_ONCE):
            last = min(first + STEPS_AT_ONCE, steps)
            self.run.play(self.networks, noise.numpy(), first, last, model, episodes, played)
            tick()
        return played

    def experience(self, batch: Mapping[str, Tensor]) -> Experience:
        """Return a batch (P, B, ...) as kernels take it."""
        weighted, names = "weights" in batch, ("log_probs", "advantages", "returns", "values")
        weights = batch["weights" if weighted else "values"].numpy()  # without weights, none are read
        log_probs, advantages, returns, values = (batch[name].numpy() for name in names)
        obs, actions = batch["obs"].contiguous().numpy(), self.split(batch["actions"])
        return Experience(obs, *actions, log_probs, advantages, returns, values, weighted, weights)

    def split(self, actions: Tensor) -> Actions:
        """Return actions (P, B, ...) as choices or as numbers."""
        members, rows = actions.shape[:2]
        if self.networks.gaussian:
            return Actions(np.empty((members, rows, 0), np.int64), actions.flatten(2).numpy())
        return Actions(actions.view(members, rows, 1).numpy(), np.empty((members, rows, 0), np.float32))

    def metrics(self, terms: LossTerms) -> dict[str, Tensor]:
        """Return the metrics of the last minibatch, (P,) each."""
        columns = torch.from_numpy(self.slope.metrics.copy()).unbind(1)
        absent = () if terms.ratios else ("approx_kl", "clip_fraction")
        return {name: x for name, x in zip(METRICS, columns, strict=True) if name not in absent}


def loss_terms(
    vf_coef: Tensor,
    ent_coef: Tensor,
    clip_coef: Tensor | None = None,
    clip_value: Tensor | None = None,
    clipping: str = "ppo",
    standardized: bool = False,
    critic_loss: str = "mse",
) -> LossTerms:
    """Return the form of a loss, which the algorithms' `loss` functions explain.

    Args:
        vf_coef: coefficients (P,) of the value loss.
        ent_coef: coefficients (P,) of the entropy.
        clip_coef: clip range (P,) of ratios; None if the policy loss uses log-probabilities instead of ratios.
        clip_value: clip range (P,) of values; None for no clipping.
        clipping: form of the value clipping, "ppo" or "ppo2".
        standardized: whether to standardize each minibatch's advantages.
        critic_loss: "mse" or "huber".
    """
    absent = torch.ones_like(vf_coef)
    clip, of_values = (absent if x is None else x for x in (clip_coef, clip_value))
    coefficients = torch.stack([clip, vf_coef, ent_coef, of_values], 1).numpy()
    number = 0 if clip_value is None else CLIPPING[clipping]
    return LossTerms(coefficients, standardized, clip_coef is not None, number, critic_loss == "huber")
