"""Records of arrays, the arguments of kernels.

P members, B rows, D numbers in a member's parameter vector. The annotations are numba's types. Inside of a kernel, the
record of one member has the same fields without the member axis.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

ACTIVATION_NUMBERS = {"tanh": 0, "relu": 1, "elu": 2, "silu": 3}  # constants of `layers`
OPTIMIZER_NUMBERS = {"adam": 0, "adamw": 0, "rmsprop": 1, "sgd": 2}  # of `descent`; AdamW is Adam with a decay

Flag = Annotated[bool, "b1"]
Integer = Annotated[int, "i8"]
Flags = Annotated[NDArray[np.bool_], "b1[:,::1]"]
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
    """An optimizer and its state."""

    form: Integer  # constant of `descent`
    steps: Matrix  # steps so far, (P, 1)
    square: Matrix  # means of squared gradients, (P, D)
    other: Matrix  # Adam's means of gradients, else the velocity, (P, D)
    settings: Matrix  # (P, 4): Adam's betas, or alpha and momentum; epsilon; decoupled weight decay


class Clipping(NamedTuple):
    """Limits (P, 1) of gradients' norms, if `active`.

    Kernels fill in the factors (P, 1) by which gradients were scaled.
    """

    active: Flag
    limits: Matrix
    factors: Matrix


class Descent(NamedTuple):
    """A step down a gradient, with learning rates (P, 1)."""

    lr: Matrix
    clipping: Clipping
    rule: UpdateRule


class PolicyNetworks(NamedTuple):
    """Networks of an actor-critic, and their places in parameter vectors."""

    vector: Matrix  # (P, D)
    actor_sizes: Integers  # sizes of the layers, from inputs to outputs
    critic_sizes: Integers
    actor: Integer  # starts of the networks, and of the log standard deviations
    critic: Integer
    log_std: Integer
    activation: Integer
    gaussian: Flag  # whether actions are numbers instead of a choice


class Actions(NamedTuple):
    """Actions: one choice (P, B, 1) or numbers (P, B, n).

    The other array is empty.
    """

    choices: IntegerCube
    numbers: Cube


class Experience(NamedTuple):
    """Rows that a policy learns from.

    Observations are (P, B, inputs), actions those of `Actions`, and the other numbers (P, B). If `weighted`, rows of
    weight 0 do not count, and all others equally.
    """

    obs: Cube
    choices: IntegerCube
    numbers: Cube
    log_probs: Matrix
    advantages: Matrix
    returns: Matrix
    values: Matrix
    weighted: Flag
    weights: Matrix


class LossTerms(NamedTuple):
    """Form of an actor-critic's loss."""

    coefficients: Matrix  # (P, 4): clip range, coefficients of value loss and entropy, clip range of values
    standardized: Flag  # whether advantages are standardized
    ratios: Flag  # whether the policy loss has ratios
    clipping: Integer  # of values: 0 for none, 1 for PPO's, 2 for PPO2's
    huber: Flag  # whether the critic's loss is Huber's


class Slope(NamedTuple):
    """A loss's gradient (P, D) and metrics (P, n), filled in."""

    gradient: Matrix
    metrics: Matrix


class Pass(NamedTuple):
    """A pass over a batch, in `parts` minibatches of one size."""

    order: IntegerMatrix  # random order of the rows, (P, B)
    parts: Integer
    first: Flag  # whether this is the first pass over the batch
    moving: Flags  # members that are updated, (P, 1); those that stop are taken out
    stops: Flag  # whether members stop above 1.5 times target_kl, (P, 1)
    target_kl: Matrix


class Transitions(NamedTuple):
    """Stored transitions (P, rows, ...), and how returns follow from them."""

    numbers: Cube
    columns: IntegerMatrix  # of each field, see `off_policy`
    n_step: Integer
    envs: Integer  # rows between two steps of one environment
    gamma: Matrix  # (P, 1)


class Draw(NamedTuple):
    """Rows (P, B) drawn from a replay buffer, with weights if `weighted`."""

    rows: IntegerMatrix
    weighted: Flag
    weights: Matrix


class Scaling(NamedTuple):
    """Means and factors (P, inputs) that standardize observations, if `active`."""

    active: Flag
    mean: Matrix
    factor: Matrix


class GivenBatch(NamedTuple):
    """A batch of n-step transitions, if `active`; else the arrays are empty.

    Observations and actions are (P, B, numbers), rewards and discounts (P, B).
    """

    active: Flag
    obs: Cube
    next_obs: Cube
    action: Cube
    reward: Matrix
    discount: Matrix


class QNetworks(NamedTuple):
    """Networks of deep Q-learning, their targets and gradient, each (P, D)."""

    vector: Matrix
    target: Matrix
    gradient: Matrix
    sizes: Integers
    activation: Integer
    double: Flag  # whether the online network chooses the next actions


class Returns(NamedTuple):
    """Form of the values that a Q-network gives each action."""

    number: Integer  # constant of `replay_descent`
    atoms: Integer  # quantiles or probabilities; 1 for means
    returns: Matrix  # returns that have probabilities, (P, atoms)


class QErrors(NamedTuple):
    """Results of a step of deep Q-learning.

    Mean losses are (P,), errors and the largest action values (P, B).
    """

    losses: Vector
    errors: Matrix
    values: Matrix


class RunningMoments(NamedTuple):
    """Running moments of layers' inputs in M networks, if these are renormalized."""

    active: Flag
    numbers: Matrix  # means of all layers, then their variances, (M, ...)
    steps: Matrix  # batches that were learned from, (M, 1)


class Perceptrons(NamedTuple):
    """M perceptrons of equal sizes, and their gradients, each (M, D)."""

    vector: Matrix
    gradient: Matrix
    sizes: Integers
    activation: Integer
    moments: RunningMoments


class ActorCritics(NamedTuple):
    """Networks of an actor and c critics, side by side."""

    actor: Perceptrons  # P
    next_actor: Perceptrons  # that act in next observations: the actors or their targets
    critics: Perceptrons  # cP
    targets: Perceptrons  # of the critics; renormalized ones are their own
    critic_vector: Matrix  # the critics as (P, cD'), which share their memory
    critic_gradient: Matrix


class ActionForm(NamedTuple):
    """Actions of k numbers and one of n choices, by columns."""

    middle: Vector  # middle and half width of the numbers, (k,)
    half: Vector
    numbers: Integers  # columns
    choices: Integers
    sizes: Integers  # of the choices, whose combinations are one choice
    n: Integer


class HeadForm(NamedTuple):
    """Form of a policy's last layer.

    Deviations are outputs, or state-dependent: they follow from the last hidden units.
    """

    state_dependent: Flag
    start: Integer  # places of log σ (units * k,) in parameter vectors, if they are
    stop: Integer
    limits: Matrix  # largest absolute means, (P, 1)


class CriticForm(NamedTuple):
    """Form of critics' values, targets and influence on the actor."""

    soft: Flag  # whether the policy is a distribution
    limit: Annotated[np.float32, "f4"]  # error beyond which losses of means are linear
    kept: Integer  # quantiles that targets keep; 0 for means
    heard: Integer  # critics that the actor hears, from the first on
    mean: Flag  # whether it hears their mean instead of the least value
    smoothing: Matrix  # standard deviation and limit of noise in a deterministic target policy, (P, 2)


class SoftErrors(NamedTuple):
    """Results of a step of an actor with c critics."""

    critic_losses: Matrix  # (P, B)
    actor_losses: Matrix
    errors: Cube  # (P, c, B)
    values: Cube
    entropies: Cube  # -log π of numbers, entropy of choices, (P, B, terms)


class EnvModel(NamedTuple):
    """Equations of environments, and random streams (M,) of initial states."""

    number: Integer  # constant of `control`
    limit: Integer  # largest length of an episode
    trig: Words  # addresses of NumPy's loops for cosine and sine
    keys: Words
    ranges: DoubleMatrix  # lowest numbers and widths of uniform initial states, (components, 2)
    bounds: Vector  # limits (2,) of numbers before they act


class RunningEpisodes(NamedTuple):
    """States (components, M) of environments, and their running episodes (M,)."""

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
