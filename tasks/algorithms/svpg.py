"""Stein variational policy gradient (SVPG): Liu et al. (2017), arXiv:1704.02399.

n particles of A2C, PPO or PPO2 descend Stein's gradient, which couples their policies: Liu and Wang (2016),
arXiv:1608.04471.

Notation: P trials, n particles, D numbers in a particle.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...spaces import Space, integer, log_real, maybe
from ..base_learner import MemberRef
from ..checkpoint.policy_files import write_policy
from ..checkpoint.state import Tree, check_same_form, materialized
from ..checkpoint.storage import Metrics
from ..deployment.predicting import Predictor, player
from ..errors import StateMismatch
from ..evaluation.objective import evaluate
from ..learner import Learner
from ..networks.mlp import affine
from ..networks.optimizers import network_spans
from ..rng import streams
from ..runtime.guard import BadResumeGuard
from ..runtime.threads import one_thread
from ..task import Task
from .a2c import A2CLearner
from .on_policy import check_actions, check_model, units, without_effect
from .on_policy_learner import OnPolicyLearner
from .ppo import PPOLearner
from .ppo2 import PPO2Learner

COUPLING = ("num_particles", "temperature", "horizon")


class Kernel(NamedTuple):
    """The kernel k(θᵢ, θⱼ) = exp(-|θᵢ - θⱼ|² / h).

    Attributes:
        values: k, (P, n, n).
        bandwidth: h, (P, 1, 1).
        squares: squared distances, (P, n, n).
    """

    values: Tensor
    bandwidth: Tensor
    squares: Tensor


def kernel(particles: Tensor) -> Kernel:
    """Return the radial basis kernel of particles (P, n, D).

    The bandwidth follows the median heuristic of Liu and Wang (2016), section 5:

        h = median of |θᵢ - θⱼ|² over i < j, divided by log(n + 1)

    A particle's kernel values then sum to about 1 + (n - 1) / (n + 1). The diagonal, which is always 0, is left out of
    the median. The paper's log n is replaced by log(n + 1), which is also defined for a single particle. If the median
    is 0 because particles coincide, the mean replaces it; if all coincide, any bandwidth is right and 1 replaces it.
    """
    count = particles.shape[1]
    # Computed from differences: |a|² + |b|² - 2 a·b loses all digits where particles are close.
    squares = torch.stack([(particles - particles[:, i : i + 1]).square().sum(-1) for i in range(count)], 1)
    if count == 1:
        return Kernel(torch.ones_like(squares), torch.ones_like(squares), squares)
    pairs = squares[:, *torch.triu_indices(count, count, 1)]
    scale = pairs.median(-1).values
    scale = torch.where(scale > 0, scale, pairs.mean(-1))
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    bandwidth = (scale / math.log(count + 1)).view(-1, 1, 1)
    return Kernel((-squares / bandwidth).exp(), bandwidth, squares)


def stein_gradient(particles: Tensor, gradients: Tensor, temperature: Tensor | float) -> Tensor:
    """Return the descent directions of particles, (P, n, D).

        gᵢ = 1/n Σⱼ [k(θⱼ, θᵢ) ∇L(θⱼ) - α ∂k(θⱼ, θᵢ)/∂θⱼ],   ∂k(θⱼ, θᵢ)/∂θⱼ = 2/h (θᵢ - θⱼ) k(θⱼ, θᵢ)

    The first term averages the gradients of similar particles, the second drives particles apart. In the limit of many
    steps and particles they are distributed as exp(-L/α).

    This is -α times the paper's eq. 8 for log p = -L/α. With that factor a learning rate means the same at every
    temperature, and a single particle descends its own gradient.

    Args:
        particles: θ, (P, n, D).
        gradients: ∇L of each particle, (P, n, D).
        temperature: α, (P, 1, 1) or a number.
    """
    count = particles.shape[1]
    if count == 1:
        return gradients
    k = kernel(particles)
    centered = particles - particles[:, :1]  # only differences matter, and small numbers lose fewer digits in the sums
    weighted = affine(k.values, centered, torch.zeros_like(centered[:, :1]))
    repulsion = (centered * k.values.sum(-1, keepdim=True) - weighted) * (2 * temperature / k.bandwidth)
    return affine(k.values, gradients, -repulsion) / count


def svpg_space(base: type[OnPolicyLearner]) -> Space:
    """Return the base algorithm's hyperparameters and those of the coupling.

    All particles share the base's. The temperature falls linearly to 0 over `horizon` environment steps of a particle;
    None keeps it constant.
    """
    return base.hyperparameters.extend(
        num_particles=integer(1, 16, default=4, accept=(1, 1024), structural=True, search=False),
        temperature=log_real(0.1, 100.0, default=1.0, accept=(0.0, 1e6)),
        horizon=maybe(integer(1, 10**12), default=None, search=False),
    )


class SVPGLearner(Learner):
    """P trials of n particles each.

    The particles are a learner of P * n members with coupled gradients. Particle j of trial i is member i * n + j of
    `particles`, the base learner, which acts, learns and counts steps. Particle 0 has the trial's own seed, so a single
    particle equals the base algorithm.
    """

    base: ClassVar[type[OnPolicyLearner]] = A2CLearner
    hyperparameters = svpg_space(A2CLearner)
    particles: OnPolicyLearner

    # --- the algorithm ---

    def assemble(self, values: Sequence[Mapping[str, Any]]) -> None:
        n = self.num_particles = self.hp.num_particles
        seeds = [particle_seed(seed, j) for seed in self.seeds for j in range(n)]
        shared = [{name: value for name, value in trial.items() if name not in COUPLING} for trial in values]
        every = [trial for trial in shared for _ in range(n)]
        self.particles = self.base(self.env, seeds, every, self.device, self.env_processes)
        self.particles.mix_gradients = self.mix_gradients
        self.particles.group = n
        self.envs = self.particles.envs
        spans = network_spans(self.particles.policy.parameters.shapes)
        runs = [torch.arange(*run) for name, runs in spans.items() if name != "critic" for run in runs]
        self.columns = torch.cat(runs).to(self.device)  # the policies' columns of the parameter vectors, no critics

    def iterate(self) -> Mapping[str, Tensor]:
        return self.particles.iterate()

    @torch.no_grad()
    def mix_gradients(self, gradients: Tensor) -> Tensor:
        """Replace the policies' gradients by Stein's, for each trial.

        Gradients are (P * n, D); the critics' parts are left alone.
        """
        if self.num_particles > 1:
            parts = gradients[:, self.columns].unflatten(0, (self.members, self.num_particles))
            gradients[:, self.columns] = stein_gradient(self.policies(), parts, self.temperature()).flatten(0, 1)
        return gradients

    def policies(self) -> Tensor:
        """Return the policies' parameters, without critics, (P, n, D)."""
        return self.particles.policy.parameters.vector[:, self.columns].unflatten(0, (self.members, self.num_particles))

    def temperature(self) -> Tensor:
        """Return the current temperature α of each trial, (P, 1, 1)."""
        temperature: Tensor = self.hp.temperature.unsqueeze(-1)
        if self.hp.horizon is None:
            return temperature
        return temperature * (1 - self.env_steps / self.hp.horizon.unsqueeze(-1)).clamp(min=0.0)

    def loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the particles' mean losses and metrics, each (P,)."""

        def mean(x: Tensor) -> Tensor:
            return x.view(self.members, -1).mean(1)

        losses, metrics = self.particles.loss(
            {name: x.repeat_interleave(self.num_particles, 0) for name, x in batch.items()}
        )
        return mean(losses), {name: mean(x) for name, x in metrics.items()}

    # --- trials are groups of particles ---

    # Counters are those of one particle, not sums.
    env_steps = property(lambda self: self.particles.env_steps)
    iterations = property(lambda self: self.particles.iterations)
    epochs = property(lambda self: self.particles.epochs)

    def particle_indices(self, member: int) -> range:
        """Return the members of `particles` that belong to a trial."""
        return range(member * self.num_particles, (member + 1) * self.num_particles)

    def run_epoch(self, stop: Callable[[], bool] = lambda: False) -> list[Metrics] | None:
        rows, n = self.particles.run_epoch(stop), self.num_particles
        if rows is None:
            return None
        metrics = [merge_metrics([rows[i] for i in self.particle_indices(member)]) for member in range(self.members)]
        if n > 1:
            distances = (kernel(self.policies()).squares.sum((1, 2)) / (n * (n - 1))).sqrt()
            for row, distance in zip(metrics, distances, strict=True):
                row["particle_distance"] = float(distance)
        return metrics

    @property
    def within_epoch(self) -> bool:
        return self.particles.within_epoch

    def member_state(self, member: int) -> Tree:
        counters = {name: getattr(self, name) for name in self.counters()}
        states = {str(j): self.particles.member_state(i) for j, i in enumerate(self.particle_indices(member))}
        return {"counters": counters, "particles": states}

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        states = tree.get("particles", {})
        if states.keys() != {str(j) for j in range(self.num_particles)}:
            raise StateMismatch(
                f"{self.algorithm()}: a state must have particles 0 to {self.num_particles - 1}, "
                f"but has {', '.join(sorted(states)) or 'none'}"
            )
        for j, i in enumerate(self.particle_indices(member)):
            self.particles.load_member(i, states[str(j)])

    def cure(self, member: int) -> str:
        faulty = [i for i in self.particle_indices(member) if i in self.envs.faults]
        return self.particles.cure((faulty or self.particle_indices(member))[0])

    def find_nonfinite(self, metrics: Sequence[Metrics]) -> list[str | None]:
        of_particles = self.particles.find_nonfinite([row for row in metrics for _ in range(self.num_particles)])
        reasons_of = ([of_particles[i] for i in self.particle_indices(member)] for member in range(self.members))
        return [next(filter(None, reasons), None) for reasons in reasons_of]

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        try:
            cls.base.check(values)
        except ValueError as error:
            raise type(error)(f"{cls.algorithm()} of {error}") from None

    check_env = classmethod(check_actions)
    units = classmethod(units)
    check_values_in_env = classmethod(check_model)
    without_effect = classmethod(without_effect)


class SVPGPPOLearner(SVPGLearner):
    """P trials of n PPO particles each."""

    base = PPOLearner
    hyperparameters = svpg_space(PPOLearner)


class SVPGPPO2Learner(SVPGLearner):
    """P trials of n PPO2 particles each."""

    base = PPO2Learner
    hyperparameters = svpg_space(PPO2Learner)


def particle_seed(seed: int, particle: int) -> int:
    """Return a particle's seed; the first particle has the trial's."""
    return seed if particle == 0 else int(streams.key(seed, "particle", particle) >> np.uint64(1))


def merge_metrics(rows: Sequence[Metrics]) -> Metrics:
    """Return a trial's metrics: means over its particles.

    Episodes are summed, and the best particle's mean return is added.
    """
    if len(rows) == 1:
        return rows[0]
    columns = {name: [row[name] for row in rows if name in row] for name in {n: None for row in rows for n in row}}
    metrics = {name: sum(values) / len(values) for name, values in columns.items()}
    if "episodes" in columns:
        metrics |= {"episodes": sum(columns["episodes"]), "best_episode_return": max(columns["episode_return"])}
    return metrics


class SVPG(Task):
    """Stein variational policy gradient with particles of A2C.

    Liu et al. (2017), arXiv:1704.02399, for discrete and Box actions, and for Dicts and Tuples of both. It departs from
    the paper in three ways: the prior is flat, the gradient is multiplied by the temperature (see `stein_gradient`),
    and each particle's critic learns on its own. `evaluate` returns the mean over particles.
    """

    name = "svpg"
    version = 4
    learner: ClassVar[type[Learner]] = SVPGLearner

    def particle_state(self, particle: int) -> Tree:
        """Return a copy of one particle's state, for `load_particle`."""
        learner, member = self._particle(particle)
        return materialized({"structure": self.identity.structure, "learner": learner.member_state(member)})

    def load_particle(self, particle: int, state: Mapping[str, Any]) -> None:
        """Replace a particle by one of this or another task.

        The new particle continues with the random streams of the replaced one. The task becomes a branch with a new
        uid, as with `load_state_dict(perturb=True)`.

        Args:
            particle: index of the particle to replace.
            state: state as `particle_state` returns it.

        Raises:
            StateMismatch: the given particle has another structure, or was trained for another number of steps. Nothing
                changes then.
        """
        learner, member = self._particle(particle)
        if state.get("structure") != self.identity.structure:
            raise StateMismatch(f"{self}: the particle is of another structure, {state.get('structure')}")
        present, loaded = learner.member_state(member), state["learner"]
        if present["counters"] != loaded["counters"]:
            raise StateMismatch(
                f"{self}: particles must be at the same point, but this one is at {loaded['counters']} "
                f"and the others at {present['counters']}"
            )
        check_same_form(present["policy"], loaded["policy"], str(self))
        with BadResumeGuard(self):
            learner.load_member(member, loaded)
            self.branch_from(self.state_dict())

    def act(self, observation: Any, particle: int = 0) -> Any:
        """Return one particle's greedy action; `evaluate_particles` compares particles."""
        return self.player(particle)(observation)

    def player(self, particle: int = 0) -> Callable[[Any], Any]:
        """Return a function that plays one episode greedily as one particle."""
        return player(Predictor(*self._particle(particle), str(self)))

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        particle: int = 0,
    ) -> tuple[Any, Any]:
        """Return one particle's actions and recurrent states; see `Task.predict`."""
        return self._predictor(self._particle(particle))(observation, state, episode_start, deterministic)

    def value(self, observation: Any, state: Any = None, particle: int = 0) -> Any:
        """Return one particle's v(s); see `Task.value`."""
        return self._predictor(self._particle(particle)).value(observation, state)

    def policy(self, particle: int | None = None) -> dict[str, Tensor]:
        """Return the networks and statistics of one particle or all, by name.

        None stands for all. Those of all fit a warm start of SVPG, those of one a warm start of its base algorithm.
        """
        if particle is None:
            return super().policy()
        learner, member = self._particle(particle)
        return {name: view.detach().to("cpu", copy=True) for name, view in learner.policy_views(member).items()}

    def save_policy(self, path: str | os.PathLike[str], particle: int | None = None) -> Path:
        """Write `policy` as safetensors: weights only, so training cannot resume from it."""
        notes = {} if particle is None else {"particle": particle}
        return write_policy(path, self.policy(particle), {**self.about(), **notes})

    def evaluate_particles(self, episodes: int | None = None) -> list[float]:
        """Return each particle's mean return, measured as by `evaluate`."""
        learner, member = self.member_ref()
        assert isinstance(learner, SVPGLearner)
        with one_thread():
            means = evaluate(learner.particles, episodes or self.eval_episodes).reshape(learner.members, -1)
        return [float(value) for value in means[member]]

    def _particle(self, particle: int) -> MemberRef:
        """Return the learner of all particles, and this particle's index in it."""
        learner, member = self.member_ref()
        assert isinstance(learner, SVPGLearner)
        if not 0 <= particle < learner.num_particles:
            raise ValueError(
                f"{self}: a particle must be one of 0 to {learner.num_particles - 1}, but got {particle!r}"
            )
        return MemberRef(learner.particles, learner.particle_indices(member)[particle])


class SVPGPPO(SVPG):
    """Stein variational policy gradient with particles of PPO."""

    name = "svpg-ppo"
    learner = SVPGPPOLearner


class SVPGPPO2(SVPG):
    """Stein variational policy gradient with particles of PPO2."""

    name = "svpg-ppo2"
    learner = SVPGPPO2Learner
