"""Records of arrays, which kernels take in place of long lists of arguments.

P members, B rows, D numbers in a member's parameter vector. A field's type is its type in a kernel's arguments; inside
of a kernel, the record of one member has the same fields without the member axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

Flag = Annotated[bool, "b1"]
Integer = Annotated[int, "i8"]
Integers = Annotated[NDArray[np.int64], "i8[::1]"]
IntegerMatrix = Annotated[NDArray[np.int64], "i8[:,::1]"]
IntegerCube = Annotated[NDArray[np.int64], "i8[:,:,::1]"]
IntegerBlock = Annotated[NDArray[np.int64], "i8[:,:,:,::1]"]
Vector = Annotated[NDArray[np.float32], "f4[::1]"]
Matrix = Annotated[NDArray[np.float32], "f4[:,::1]"]
Cube = Annotated[NDArray[np.float32], "f4[:,:,::1]"]
Block = Annotated[NDArray[np.float32], "f4[:,:,:,::1]"]
Doubles = Annotated[NDArray[np.float64], "f8[::1]"]
DoubleMatrix = Annotated[NDArray[np.float64], "f8[:,::1]"]
DoubleCube = Annotated[NDArray[np.float64], "f8[:,:,::1]"]
Words = Annotated[NDArray[np.uint64], "u8[::1]"]


class UpdateRule(NamedTuple):
    """An optimizer and its state.

    Attributes:
        form: `descent.ADAM` or `descent.RMSPROP`.
        steps: steps so far, (P, 1).
        square: means of squared gradients, (P, D).
        other: Adam's means of gradients or RMSprop's velocity, (P, D).
        settings: (P, 4): Adam's beta1 and beta2, or RMSprop's alpha and momentum; epsilon; decoupled weight decay.
    """

    form: Integer
    steps: Matrix
    square: Matrix
    other: Matrix
    settings: Matrix


class Clipping(NamedTuple):
    """Limits of gradients' norms.

    Attributes:
        active: whether there are limits.
        limits: (P, 1).
        factors: factors by which the gradients were scaled, (P, 1); filled in.
    """

    active: Flag
    limits: Matrix
    factors: Matrix


class PolicyNetworks(NamedTuple):
    """Networks of an actor-critic, and where they lie in a parameter vector.

    Attributes:
        vector: parameters, (P, D).
        actor_sizes, critic_sizes: sizes of the layers, from inputs to outputs.
        actor, critic, log_std: starts of the networks and of the log standard deviations.
        activation: number of the activation.
        gaussian: whether actions are numbers instead of a choice.
    """

    vector: Matrix
    actor_sizes: Integers
    critic_sizes: Integers
    actor: Integer
    critic: Integer
    log_std: Integer
    activation: Integer
    gaussian: Flag


class Actions(NamedTuple):
    """Actions as one choice (P, B, 1) or as numbers (P, B, n); the other array is empty."""

    choices: IntegerCube
    numbers: Cube


class Experience(NamedTuple):
    """Rows that a policy learns from: observations (P, B, inputs), actions, and numbers (P, B)."""

    obs: Cube
    choices: IntegerCube
    numbers: Cube
    log_probs: Matrix
    advantages: Matrix
    returns: Matrix
    values: Matrix


class LossTerms(NamedTuple):
    """Form of an actor-critic's loss.

    Attributes:
        coefficients: (P, 4): clip range, coefficients of the value loss and the entropy, clip range of values.
        standardized: whether advantages are standardized.
        ratios: whether the policy loss has ratios.
        clipping: form of the values' clipping: 0 for none, 1 for PPO's, 2 for PPO2's.
        huber: whether the critic's loss is Huber's.
    """

    coefficients: Matrix
    standardized: Flag
    ratios: Flag
    clipping: Integer
    huber: Flag


class Slope(NamedTuple):
    """Results of differentiating a loss: the gradient (P, D), and metrics (P, n)."""

    gradient: Matrix
    metrics: Matrix


class Pass(NamedTuple):
    """A pass over a batch.

    Attributes:
        order: random order of the rows, (P, B), cut into `parts` minibatches of one size.
        parts: number of minibatches.
        first: whether this is the first pass over the batch.
        moving: members that are updated, (P, 1); those that stop are taken out.
        stops: whether members stop above 1.5 times target_kl.
        target_kl: (P, 1).
    """

    order: IntegerMatrix
    parts: Integer
    first: Flag
    moving: Annotated[NDArray[np.bool_], "b1[:,::1]"]
    stops: Flag
    target_kl: Matrix


class Transitions(NamedTuple):
    """Stored transitions, and how returns follow from them.

    Attributes:
        numbers: (P, rows, numbers in each).
        columns: of each field, see `off_policy`.
        n_step: steps of a return.
        envs: rows between two steps of one environment.
        gamma: (P, 1).
    """

    numbers: Cube
    columns: IntegerMatrix
    n_step: Integer
    envs: Integer
    gamma: Matrix


class Draw(NamedTuple):
    """Rows drawn from a replay buffer, (P, B), with weights (P, B) if they are `weighted`."""

    rows: IntegerMatrix
    weighted: Flag
    weights: Matrix


class Scaling(NamedTuple):
    """Means and factors (P, inputs) that standardize observations, if `active`."""

    active: Flag
    mean: Matrix
    factor: Matrix


class QNetworks(NamedTuple):
    """Networks of deep Q-learning.

    Attributes:
        vector, target: parameters of the networks and of the target networks, (P, D).
        gradient: (P, D); filled in.
        sizes: sizes of the layers.
        activation: number of the activation.
        double: whether the online network chooses the next actions.
    """

    vector: Matrix
    target: Matrix
    gradient: Matrix
    sizes: Integers
    activation: Integer
    double: Flag


class QErrors(NamedTuple):
    """Results of a step: mean losses (P,), errors (P, B), and the largest action values (P, B)."""

    losses: Vector
    errors: Matrix
    values: Matrix


class EnvModel(NamedTuple):
    """Equations of environments, and the random streams of their initial states.

    Attributes:
        number: constant of `control`.
        limit: largest length of an episode.
        trig: addresses of NumPy's loops for cosine and sine.
        keys: random streams, (M,).
        ranges: lowest numbers and widths of uniform initial states, (components, 2).
        bounds: limits (2,) of numbers before they act.
    """

    number: Integer
    limit: Integer
    trig: Words
    keys: Words
    ranges: DoubleMatrix
    bounds: Vector


class RunningEpisodes(NamedTuple):
    """States (components, M) of environments, and their episodes' numbers, returns and lengths, (M,)."""

    state: DoubleMatrix
    number: Integers
    returns: Doubles
    elapsed: Integers


class Played(NamedTuple):
    """A whole rollout of T steps, as kernels fill it in.

    `obs`, `next_obs`, `rewards`, `terminated` and `ended` are those of `experience.rollout.Rollout`. Actions are in
    `choices` or `numbers`, (P, T, N, n). `returns` and `lengths` (T, P, N) are those of episodes that ended.
    """

    obs: Block
    choices: IntegerBlock
    numbers: Block
    next_obs: Block
    rewards: Cube
    terminated: Cube
    ended: Cube
    returns: DoubleCube
    lengths: IntegerCube

    @staticmethod
    def of(steps: int, members: int, num_envs: int, obs_shape: Sequence[int], numbers: bool) -> Played:
        """Return empty arrays for steps with one number or one choice each."""
        obs = [np.empty((members, t, num_envs, *obs_shape), np.float32) for t in (steps + 1, steps)]
        shapes = (members, steps, num_envs, 1), (0, 0, 0, 0)
        choices, number = shapes[::-1] if numbers else shapes
        by_time = [np.empty((steps, members, num_envs), kind) for kind in (*[np.float32] * 3, np.float64, np.int64)]
        return Played(obs[0], np.empty(choices, np.int64), np.empty(number, np.float32), obs[1], *by_time)
