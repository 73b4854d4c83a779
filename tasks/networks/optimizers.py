"""First-order optimizers of P members, on parameter vectors (P, D).

Each member has its own learning rate. The rate is an argument of each step and not part of the optimizer's state, so a
new rate takes effect on a loaded state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...spaces import Space, categorical, curve, integer, log_real, near_one, real
from ..checkpoint.member_state import Stacked
from ..compiled.loading import kernels_of
from ..compiled.records import OPTIMIZER_NUMBERS, Clipping, Descent, UpdateRule
from ..runtime.progress import tick
from .mlp import Parameters

GRAD_NORM_INTERVAL = 16  # iterations between two measurements of gradient norms, for algorithms of short iterations
SCHEDULED = ("ent_coef", "clip_coef", "clip_value")  # each with a hyperparameter <name>_schedule
LARGEST = torch.finfo(torch.float32).max
Spans = Mapping[str, Sequence[tuple[int, int]]]
SETTINGS = {  # columns of `UpdateRule.settings`; those without a name are 0
    "adam": ("beta1", "beta2", "eps", ""),
    "adamw": ("beta1", "beta2", "eps", "weight_decay"),
    "rmsprop": ("alpha", "momentum", "eps", ""),
    "sgd": ("", "momentum", "", ""),
}

ADAM = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-5}


def optimizer_space(lr: float, eps: float = 1e-5, name: str = "adam", beta1: float = 0.9) -> Space:
    """Return the hyperparameters of an optimizer.

    Args:
        lr: default learning rate.
        eps: default epsilon.
        name: default optimizer.
        beta1: default of Adam's first beta.
    """
    momentum, betas = {"name": ("sgd", "rmsprop")}, {"name": ("adam", "adamw")}
    return Space(
        name=categorical("adam", "adamw", "sgd", "rmsprop", default=name, structural=True, search=False),
        lr=log_real(3e-5, 1e-2, default=lr, accept=(0.0, 100.0)),
        beta1=near_one(min(beta1, 0.8), 0.99, default=beta1, accept=(0.0, 0.9999999), when=betas),
        beta2=near_one(0.9, 0.9999, default=0.999, accept=(0.0, 0.9999999), when=betas),
        alpha=near_one(0.9, 0.999, default=0.99, accept=(0.0, 0.9999999), when={"name": "rmsprop"}),
        momentum=real(0.0, 0.99, default=0.0, when=momentum),
        weight_decay=log_real(1e-6, 1e-1, default=1e-2, accept=(0.0, 1.0), when={"name": "adamw"}),
        eps=log_real(1e-12, 1.0, default=eps, search=False, when={"name": ("adam", "adamw", "rmsprop")}),
    )


def schedule_space() -> Space:
    """Return the hyperparameters of the learning rate's schedule.

    It spans a fixed horizon of environment steps, with an optional warmup.
    """
    return decay_space(("exponential", "cosine")).extend(warmup=integer(0, 10**12, default=0, search=False))


def decay_space(with_final: tuple[str, ...] = ("linear", "exponential", "cosine")) -> Space:
    """Return the hyperparameters of a coefficient's schedule.

    A schedule gives factors for the coefficient, from 1 to `final` over a fixed horizon of environment steps. `points`
    are [[environment steps, factor], ...].

    Args:
        with_final: schedules that end at `final` instead of 0.
    """
    names = ("constant", "linear", "exponential", "cosine", "piecewise")
    return Space(
        name=categorical(*names, default="constant", structural=True, search=False),
        horizon=integer(1, 10**12, default=100_000, search=False, when={"name": ("linear", "exponential", "cosine")}),
        final=log_real(1e-3, 1.0, default=0.1, accept=(1e-12, 1.0), when={"name": with_final}),
        points=curve(0.0, 1000.0, default=[[0, 1.0], [100_000, 0.1]], when={"name": "piecewise"}),
    )


def schedule(hp: SimpleNamespace, env_steps: Tensor) -> Tensor:
    """Return the factor of a learning rate or coefficient, (P, 1).

    The horizon is a hyperparameter, so training for longer than planned does not change the schedule.

    Args:
        hp: values of `schedule_space` or `decay_space`.
        env_steps: environment steps, (P, 1).
    """
    progress = None if hp.horizon is None else (env_steps / hp.horizon).clamp(max=1.0)
    if hp.name == "piecewise":
        steps, factors = zip(*hp.points, strict=True)
        factor = torch.from_numpy(np.interp(env_steps.cpu().numpy(), steps, factors)).to(env_steps)
    elif progress is None:  # constant
        factor = torch.ones_like(env_steps)
    elif hp.name == "linear":
        factor = 1 - (1 - (0.0 if hp.final is None else hp.final)) * progress  # a linear lr_schedule ends at 0
    elif hp.name == "exponential":
        factor = (progress * hp.final.log()).exp()
    else:
        factor = hp.final + (1 - hp.final) * 0.5 * (1 + torch.cos(math.pi * progress))
    if (warmup := vars(hp).get("warmup")) is not None:
        factor = factor * ((env_steps + 1) / (warmup + 1)).clamp(max=1.0)
    return factor


class Clipped(NamedTuple):
    """A gradient after clipping.

    Attributes:
        gradient: the clipped gradient, (P, D).
        factor: factor by which it was scaled, (P, 1); None without a limit.
    """

    gradient: Tensor
    factor: Tensor | None

    def copy(self) -> Clipped:
        """Return a copy of both tensors."""
        return Clipped(self.gradient.clone(), None if self.factor is None else self.factor.clone())

    def where(self, mask: Tensor, other: Clipped) -> Clipped:
        """Return this gradient where the mask (P, 1) is true, else another."""
        factor = None
        if self.factor is not None and other.factor is not None:
            factor = torch.where(mask, self.factor, other.factor)
        return Clipped(torch.where(mask, self.gradient, other.gradient), factor)


def network_spans(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, list[tuple[int, int]]]:
    """Return the spans of each network's parameters in their vector.

    A network's name is the part of its parameters' names before the first dot.
    """
    spans: dict[str, list[tuple[int, int]]] = {}
    start = 0
    for name, shape in shapes.items():
        stop = start + torch.Size(shape).numel()
        runs = spans.setdefault(name.partition(".")[0], [])
        if runs and runs[-1][1] == start:
            start = runs.pop()[0]
        runs.append((start, stop))
        start = stop
    return spans


def network_mask(parameters: Parameters, network: str) -> Tensor:
    """Return a mask (1, D) of one network's numbers in parameter vectors."""
    mask = torch.zeros_like(parameters.vector[:1], dtype=torch.bool)
    for start, stop in network_spans(parameters.shapes).get(network, []):
        mask[:, start:stop] = True
    return mask


@torch.no_grad()
def norms(step: Clipped, of: Spans | str) -> dict[str, Tensor]:
    """Return `grad_norm.<network>` and, if clipped, `grad_norm_clipped.<network>`.

    Each is (P,). A norm too large for a float counts as the largest float, since that alone does not break training.

    Args:
        step: a clipped gradient.
        of: spans of each network's numbers, or the name of the only network.
    """
    values: dict[str, Tensor] = {}
    spans = {of: [(0, step.gradient.shape[1])]} if isinstance(of, str) else of
    for name, runs in spans.items():
        squares = [step.gradient[:, start:stop].square().sum(1) for start, stop in runs]
        norm = sum(squares[1:], squares[0]).sqrt()
        values[f"grad_norm.{name}"] = norm if step.factor is None else norm / step.factor.squeeze(1)
        if step.factor is not None:
            values[f"grad_norm_clipped.{name}"] = norm
    return {name: norm.nan_to_num(nan=LARGEST, posinf=LARGEST) for name, norm in values.items()}


class LearningRates(NamedTuple):
    """Learning rates of P members at one moment.

    Attributes:
        policy: (P, 1).
        parameters: learning rate of every parameter, (P, 1), or (P, D) if the critic's differ.
        metrics: each (P,).
    """

    policy: Tensor
    parameters: Tensor
    metrics: dict[str, Tensor]


def learning_rates(hp: SimpleNamespace, env_steps: int, parameters: Parameters) -> LearningRates:
    """Return the scheduled learning rates; the critic's parameters may have their own."""
    factor = schedule(hp.lr_schedule, torch.full_like(hp.optimizer.lr, env_steps))
    lr = hp.optimizer.lr * factor
    if hp.critic_lr is None:
        return LearningRates(lr, lr, {"lr": lr.squeeze(1)})
    critic_lr = hp.critic_lr * factor
    rates = torch.where(network_mask(parameters, "critic"), critic_lr, lr)
    return LearningRates(lr, rates, {"critic_lr": critic_lr.squeeze(1), "lr": lr.squeeze(1)})


class FlushedDenormals:
    """Context in which numbers below 1e-38 count as zero.

    Processors compute with them up to a hundred times slower than with others.
    """

    tiny = 5e-324

    def __enter__(self) -> None:
        self._before = self.tiny * 1.0 == 0.0  # already so for this thread
        torch.set_flush_denormal(True)

    def __exit__(self, *exception: object) -> None:
        torch.set_flush_denormal(self._before)


class Optimizer(Stacked):
    """Adam, AdamW, RMSprop or SGD of P members.

    Kingma and Ba (2015), arXiv:1412.6980; Loshchilov and Hutter (2019), arXiv:1711.05101.

    Attributes:
        vector: parameters (P, D), changed in place.
    """

    def __init__(self, vector: Tensor, hp: SimpleNamespace):
        """Set the moments to 0.

        Args:
            vector: parameters (P, D), changed in place by `step`.
            hp: values of `optimizer_space`.
        """
        self.vector, self.hp = vector, hp
        self._direction: Callable[[Tensor], Tensor] = getattr(self, f"_{hp.name}")
        moments = {"sgd": ("velocity",), "rmsprop": ("square", "velocity")}.get(hp.name, ("mean", "square"))
        self.tensors = {name: torch.zeros_like(vector) for name in moments}
        self.tensors["steps"] = torch.zeros(len(vector), 1, device=vector.device)
        if "mean" in self.tensors:  # computed once, since it shows in short steps
            self._betas = [(1 - beta, beta.log()) for beta in (hp.beta1, hp.beta2)]

    def descend(
        self, gradient: Tensor, lr: Tensor, limit: Tensor | None = None, active: Tensor | None = None
    ) -> Clipped:
        """Clip gradients in place, and take one step; return the clipped gradients.

        The arguments are those of `clip` and `step`.
        """
        clipped = self.clip(gradient, limit)
        self.step(clipped.gradient, lr, active)
        return clipped

    def clip(self, gradient: Tensor, limit: Tensor | None) -> Clipped:
        """Scale each member's gradient to a Euclidean norm of at most `limit`.

        The gradient (P, D) is changed in place; the limit is (P, 1), or None for no limit.
        """
        if limit is None:
            return Clipped(gradient, None)
        norm = gradient.square().sum(1, keepdim=True).sqrt()
        factor = (limit / (norm + 1e-6)).clamp(max=1.0)
        return Clipped(gradient.mul_(factor), factor)

    def step(self, gradient: Tensor, lr: Tensor, active: Tensor | None = None) -> None:
        """Take one step down the gradient (P, D).

        Args:
            gradient: (P, D).
            lr: learning rates, (P, 1) or (P, D).
            active: members to update, (P, 1); None for all. Others stay untouched.
        """
        tick()
        # The moments of a dead unit decay to denormal numbers, and stay there. (As a decorator, this takes longer than
        # Adam itself.)
        with FlushedDenormals():
            self._step_active(gradient, lr, active)

    @torch.no_grad()
    def _step_active(self, gradient: Tensor, lr: Tensor, active: Tensor | None) -> None:
        if active is None:
            self._step(gradient, lr)
            return
        before = [self.vector.clone(), *(tensor.clone() for tensor in self.tensors.values())]
        self._step(gradient, lr)
        for tensor, old in zip([self.vector, *self.tensors.values()], before, strict=True):
            tensor.copy_(torch.where(active, tensor, old))

    def _step(self, gradient: Tensor, lr: Tensor) -> None:
        self.tensors["steps"] += 1
        if self.hp.name == "adamw":
            self.vector.mul_(1 - lr * self.hp.weight_decay)
        self.vector.sub_(self._direction(gradient).mul_(lr))

    def _adam(self, gradient: Tensor) -> Tensor:
        mean, square, steps = self.tensors["mean"], self.tensors["square"], self.tensors["steps"]
        (part_1, log_1), (part_2, log_2) = self._betas
        mean.lerp_(gradient, part_1)
        square.lerp_(gradient.square(), part_2)
        correction_1 = 1 - (steps * log_1).exp()  # 1 - beta1 ** steps
        correction_2 = 1 - (steps * log_2).exp()
        scale = correction_2.sqrt()
        return mean / (square.sqrt().add_(self.hp.eps * scale)).mul_(correction_1 / scale)

    _adamw = _adam

    def _sgd(self, gradient: Tensor) -> Tensor:
        velocity = self.tensors["velocity"]
        return velocity.mul_(self.hp.momentum).add_(gradient).clone()

    def _rmsprop(self, gradient: Tensor) -> Tensor:
        square, velocity = self.tensors["square"], self.tensors["velocity"]
        square.lerp_(gradient.square(), 1 - self.hp.alpha)
        velocity.mul_(self.hp.momentum).add_(gradient / square.sqrt().add_(self.hp.eps))
        return velocity.clone()


class CompiledOptimizer(Optimizer):
    """An `Optimizer` computed by kernels.

    Attributes:
        rule: the optimizer as kernels take it.
    """

    scratch = ("rule", "_run", "_all", "_vector")

    def __init__(self, run: ModuleType, vector: Tensor, hp: SimpleNamespace):
        """Set the moments to 0; `run` are the kernels."""
        super().__init__(vector, hp)
        self._run, self._vector, self._all = run, vector.numpy(), np.ones((len(vector), 1), np.bool_)
        tensors, absent = self.tensors, torch.zeros_like(self.tensors["steps"])
        settings = torch.cat([vars(hp).get(name, absent) for name in SETTINGS[hp.name]], 1)
        other = tensors["mean"] if "mean" in tensors else tensors["velocity"]
        state = tensors["steps"], tensors.get("square", other), other
        self.rule = UpdateRule(OPTIMIZER_NUMBERS[hp.name], *(x.numpy() for x in (*state, settings)))

    def clip(self, gradient: Tensor, limit: Tensor | None) -> Clipped:
        if limit is None:
            return Clipped(gradient, None)
        factor = torch.empty_like(limit)
        self._run.clip(gradient.numpy(), limit.numpy(), factor.numpy())
        return Clipped(gradient, factor)

    def _step_active(self, gradient: Tensor, lr: Tensor, active: Tensor | None) -> None:
        if lr.shape[1] > 1:  # kernels have one rate for all parameters
            super()._step_active(gradient, lr, active)
            return
        moving = self._all if active is None else active.numpy()
        rates = lr.contiguous().numpy()
        self._run.optimize(moving, self._vector, gradient.contiguous().numpy(), rates, self.rule)


def optimizer_of(vector: Tensor, hp: SimpleNamespace) -> Optimizer:
    """Return an `Optimizer`, computed by kernels where there are any.

    The arguments are those of the class.
    """
    run = kernels_of(vector)
    return Optimizer(vector, hp) if run is None else CompiledOptimizer(run, vector, hp)


class CompiledDescent:
    """Gradients and optimizer steps of P members, as kernels take them.

    Attributes:
        gradient: last gradient, (P, D).
        clipped: the same after clipping.
    """

    def __init__(self, optimizer: Optimizer, limit: Tensor | None, gradient: Tensor | None = None):
        """Take or allocate the gradient; `limit` (P, 1) clips its norm."""
        assert isinstance(optimizer, CompiledOptimizer)
        self.gradient = torch.zeros_like(optimizer.vector) if gradient is None else gradient
        factors = torch.ones(len(self.gradient), 1)
        self.clipped = Clipped(self.gradient, None if limit is None else factors)
        self._clipping = Clipping(limit is not None, (factors if limit is None else limit).numpy(), factors.numpy())
        self._rule = optimizer.rule

    def at(self, lr: Tensor) -> Descent:
        """Return the steps with these learning rates, (P, 1)."""
        return Descent(lr.contiguous().numpy(), self._clipping, self._rule)


def adam(vector: Tensor) -> Optimizer:
    """Return Adam with fixed constants, for parameters besides the policy's."""
    constants = {name: torch.full_like(vector[:, :1], value) for name, value in ADAM.items()}
    return optimizer_of(vector, SimpleNamespace(name="adam", **constants))
