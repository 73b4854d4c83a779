"""Kernels of classic control: steps, and whole rollouts.

They have the bits of `envs.classic.dynamics`, which explains the equations. Nothing is contracted or reordered here,
and sines and cosines are NumPy's: on processors with wide vectors, NumPy rounds them differently from the C library.
States `s` are (components, M), `i` is the index of an environment, and `trig` holds the addresses of NumPy's loops.
"""

from __future__ import annotations

import ctypes
import math
from functools import cache
from math import pi
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .decorators import inner, kernel
from .layers import ONE, ZERO, F, weights_of
from .perceptrons import head_of, perceptron
from .policies import choose, deviations, outputs
from .records import EnvModel, Played, PolicyNetworks, RunningEpisodes

CARTPOLE, PENDULUM, ACROBOT, MOUNTAIN_CAR, MOUNTAIN_CAR_CONTINUOUS = range(5)
GRAVITY, POLE_MASS, TOTAL_MASS, HALF_LENGTH, FORCE, DT = 9.8, 0.1, 0.1 + 1.0, 0.5, 10.0, 0.02
POLE_MASS_LENGTH = POLE_MASS * HALF_LENGTH
X_LIMIT, THETA_LIMIT = 2.4, 12 * 2 * pi / 360
TURN = 2 * pi
Addresses = tuple[int, int]  # of NumPy's loops for cosine and sine
# void loop(char **args, npy_intp const *dimensions, npy_intp const *steps, void *data)
_LOOP = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)


@cache
def cosine_and_sine() -> Addresses | None:
    """Return the addresses of NumPy's loops; None if they are unusable."""
    addresses = [_address(ufunc) for ufunc in (np.cos, np.sin)]
    return (addresses[0], addresses[1]) if all(addresses) else None


def _address(ufunc: np.ufunc) -> int:
    """Return the address of a ufunc's loop over float64, or 0.

    PyUFuncObject begins with four ints and then the arrays of loops and of their data (see NumPy's C API). The address
    is used only if the loop gives the ufunc's bits.
    """
    at = id(ufunc) + object.__basicsize__ + 4 * ctypes.sizeof(ctypes.c_int)
    size, number = ctypes.sizeof(ctypes.c_void_p), ufunc.types.index("d->d")
    loop, data = (
        ctypes.c_void_p.from_address(ctypes.c_void_p.from_address(at + k * size).value + number * size).value  # type: ignore[operator]
        for k in range(2)
    )
    x = np.linspace(-7.0, 7.0, 97)
    y = np.empty_like(x)
    if loop is None or data is not None:
        return 0
    arguments = ((ctypes.c_void_p * 2)(x.ctypes.data, y.ctypes.data), (ctypes.c_ssize_t * 1)(len(x)))
    _LOOP(loop)(*arguments, (ctypes.c_ssize_t * 2)(x.itemsize, x.itemsize), None)
    return loop if np.array_equal(y, ufunc(x)) else 0


@intrinsic
def call(typing: Any, loop: Any, x: Any) -> Any:
    """Apply the loop at an address to one number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word, number, pointer = ir.IntType(64), ir.DoubleType(), ir.IntType(8).as_pointer()
        numbers, places = (cgutils.alloca_once(builder, element_type, 2) for element_type in (number, pointer))
        sizes = cgutils.alloca_once(builder, word, 3)  # count of 1, and two strides
        builder.store(arguments[1], numbers)
        for k, size in enumerate((1, 8, 8)):
            builder.store(word(size), builder.gep(sizes, [word(k)]))
        for k in range(2):
            at = builder.bitcast(builder.gep(numbers, [word(k)]), pointer)
            builder.store(at, builder.gep(places, [word(k)]))
        loop_type = ir.FunctionType(ir.VoidType(), [pointer] * 4)
        pointers = [builder.bitcast(x, pointer) for x in (places, sizes, builder.gep(sizes, [word(1)]))]
        builder.call(builder.inttoptr(arguments[0], loop_type.as_pointer()), [*pointers, ir.Constant(pointer, None)])
        return builder.load(builder.gep(numbers, [word(1)]))

    return types.float64(types.uint64, types.float64), generate


@inner()
def cartpole(s, i, action, trig):
    """Step a pole on a cart; return whether the episode terminated."""
    x, x_dot, theta, theta_dot = s[0, i], s[1, i], s[2, i], s[3, i]
    force, cos, sin = action * (2 * FORCE) - FORCE, call(trig[0], theta), call(trig[1], theta)
    temp = (force + POLE_MASS_LENGTH * (theta_dot * theta_dot) * sin) / TOTAL_MASS
    theta_acc = (GRAVITY * sin - cos * temp) / (HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * (cos * cos) / TOTAL_MASS))
    x_acc = temp - POLE_MASS_LENGTH * theta_acc * cos / TOTAL_MASS
    s[0, i], s[2, i] = x + DT * x_dot, theta + DT * theta_dot
    s[1, i], s[3, i] = x_dot + DT * x_acc, theta_dot + DT * theta_acc
    return abs(s[0, i]) > X_LIMIT or abs(s[2, i]) > THETA_LIMIT


@inner()
def pendulum(s, i, torque, trig):
    """Step a pendulum; return the reward."""
    theta, theta_dot = s[0, i], s[1, i]
    angle = (theta + pi) % TURN - pi
    cost = angle * angle + 0.1 * (theta_dot * theta_dot) + F(0.001) * (torque * torque)
    theta_dot = theta_dot + (15.0 * call(trig[1], theta) + F(3.0) * torque) * 0.05
    s[1, i] = min(max(theta_dot, -8.0), 8.0)
    s[0, i] = theta + s[1, i] * 0.05
    return -cost


@inner()
def derivative(theta_1, theta_2, speed_1, speed_2, torque, trig):
    """Return the time derivative of Acrobot's state."""
    cos, sin = call(trig[0], theta_2), call(trig[1], theta_2)
    d1 = 0.25 + (1.25 + cos) + 1.0 + 1.0
    d2 = 0.25 + 0.5 * cos + 1.0
    phi_2 = 0.5 * 9.8 * call(trig[0], theta_1 + theta_2 - pi / 2)
    weight = 1.5 * 9.8 * call(trig[0], theta_1 - pi / 2)
    phi_1 = -0.5 * (speed_2 * speed_2) * sin - speed_2 * speed_1 * sin + weight + phi_2
    acc_2 = (torque + d2 / d1 * phi_1 - 0.5 * (speed_1 * speed_1) * sin - phi_2) / (1.25 - d2 * d2 / d1)
    acc_1 = -(d2 * acc_2 + phi_1) / d1
    return speed_1, speed_2, acc_1, acc_2


@inner()
def wrap(angle):
    """Return the angle in [-pi, pi], wrapped one turn at a time."""
    while abs(angle) > pi:
        angle -= math.copysign(TURN, angle)
    return angle


@inner()
def acrobot(s, i, action, trig):
    """Step a double pendulum; return whether it swung up."""
    torque, h, half = action - 1.0, 0.2, 0.1
    w, x, y, z = s[0, i], s[1, i], s[2, i], s[3, i]
    a = derivative(w, x, y, z, torque, trig)
    b = derivative(w + half * a[0], x + half * a[1], y + half * a[2], z + half * a[3], torque, trig)
    c = derivative(w + half * b[0], x + half * b[1], y + half * b[2], z + half * b[3], torque, trig)
    d = derivative(w + h * c[0], x + h * c[1], y + h * c[2], z + h * c[3], torque, trig)
    for k in range(4):
        s[k, i] += h / 6.0 * (a[k] + 2 * b[k] + 2 * c[k] + d[k])
    s[0, i], s[1, i] = wrap(s[0, i]), wrap(s[1, i])
    s[2, i] = min(max(s[2, i], -4 * pi), 4 * pi)
    s[3, i] = min(max(s[3, i], -9 * pi), 9 * pi)
    return -call(trig[0], s[0, i]) - call(trig[0], s[1, i] + s[0, i]) > 1.0


@inner()
def mountain_car(s, i, action, trig):
    """Step a car in a valley; return whether it reached the goal."""
    position, velocity = s[0, i], s[1, i]
    velocity = velocity + ((action - 1) * 0.001 + call(trig[0], 3 * position) * -0.0025)
    velocity = min(max(velocity, -0.07), 0.07)
    position = min(max(position + velocity, -1.2), 0.6)
    velocity = 0.0 if position <= -1.2 and velocity < 0.0 else velocity
    s[0, i], s[1, i] = position, velocity
    return position >= 0.5 and velocity >= 0.0


@inner()
def mountain_car_continuous(s, i, force, trig):
    """Step the car of `mountain_car` with a continuous force, in float32."""
    position, velocity = F(s[0, i]), F(s[1, i])
    slope = 0.0025 * call(trig[0], np.float64(F(3.0) * position))
    velocity = velocity + (force * F(0.0015) - F(slope))
    velocity = min(max(velocity, F(-0.07)), F(0.07))
    position = min(max(position + velocity, F(-1.2)), F(0.6))
    velocity = F(0.0) if position <= F(-1.2) and velocity < F(0.0) else velocity
    s[0, i], s[1, i] = position, velocity
    return position >= F(0.45) and velocity >= F(0.0)


@inner()
def advance(model, s, i, choice, number, trig):
    """Step an environment; return the reward and whether it terminated."""
    if model == CARTPOLE:
        return 1.0, cartpole(s, i, choice, trig)
    if model == PENDULUM:
        return pendulum(s, i, number, trig), False
    if model == ACROBOT:
        up = acrobot(s, i, choice, trig)
        return 0.0 if up else -1.0, up
    if model == MOUNTAIN_CAR:
        return -1.0, mountain_car(s, i, choice, trig)
    up = mountain_car_continuous(s, i, number, trig)
    force = np.float64(number)
    return (100.0 if up else 0.0) - force * force * 0.1, up


@inner()
def observe(model, s, i, obs, r, trig):
    """Fill in row r of the observations with environment i's."""
    if model == PENDULUM:
        obs[r, 0], obs[r, 1], obs[r, 2] = F(call(trig[0], s[0, i])), F(call(trig[1], s[0, i])), F(s[1, i])
    elif model == ACROBOT:
        obs[r, 0], obs[r, 1] = F(call(trig[0], s[0, i])), F(call(trig[1], s[0, i]))
        obs[r, 2], obs[r, 3] = F(call(trig[0], s[1, i])), F(call(trig[1], s[1, i]))
        obs[r, 4], obs[r, 5] = F(s[2, i]), F(s[3, i])
    else:
        for k in range(len(s)):
            obs[r, k] = F(s[k, i])


@kernel("i8, u8[::1], f8[:,::1], i8[::1], f4[::1], f4[:,::1], f8[::1], b1[::1]")
def step(model, trig, s, choices, numbers, obs, rewards, terminated):
    """Step all environments; fill in observations, rewards and terminations.

    Actions (M,) are in `choices`, or clipped in `numbers`; the other array is empty.
    """
    for i in range(len(rewards)):
        choice = choices[i] if len(choices) else 0
        number = numbers[i] if len(numbers) else F(0.0)
        rewards[i], terminated[i] = advance(model, s, i, choice, number, trig)
        observe(model, s, i, obs, i, trig)


@inner()
def mixed(z):
    """Apply the finalizer of SplitMix64 to 64 bits, see `rng.streams`."""
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@inner()
def uniform(key, position):
    """Return the number in [0, 1) at a position of a stream."""
    z = mixed((np.uint64(position) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + key)
    return np.float64(mixed(z + key) >> np.uint64(11)) * 2.0**-53


@kernel(PolicyNetworks, "f4[:,:,:,::1], i8, i8", EnvModel, RunningEpisodes, Played)
def play(networks, noise, first, last, model, episodes, played):
    """Play the steps from `first` to `last` (exclusive) of a rollout.

    One member is played after the other. The noise is (T, P, N, n). The running episodes change in place; `returns` and
    `lengths` of what is played are filled in where an episode ends.
    """
    members, _, rows, width = played.obs.shape
    s, parts, trig = episodes.state, len(episodes.state), model.trig
    actor, sizes, gaussian = networks.actor, networks.actor_sizes, networks.gaussian
    n = sizes[-1]
    out = np.empty(n, F)
    for p in range(members):
        vector = networks.vector[p]
        w, b = weights_of(vector, head_of(sizes, actor), sizes[-2], n)
        _, std = deviations(vector, networks, n)
        before = played.obs[p, first]
        for r in range(rows):
            observe(model.number, s, p * rows + r, before, r, trig)
        for t in range(first, last):
            h = perceptron(before, vector, actor, sizes, networks.activation)
            drawn, choices, numbers = noise[t, p], played.choices[p, t], played.numbers[p, t]
            after, following = played.next_obs[p, t], played.obs[p, t + 1]
            for r in range(rows):
                i, choice, number = p * rows + r, 0, ZERO
                outputs(r, h, w, b, out)
                choose(r, out, drawn, std, choices, numbers, gaussian)
                if gaussian:
                    number = min(max(numbers[r, 0], model.bounds[0]), model.bounds[1])
                else:
                    choice = choices[r, 0]
                reward, over = advance(model.number, s, i, choice, number, trig)
                episodes.returns[i] += reward
                episodes.elapsed[i] += 1
                played.rewards[t, p, r], played.terminated[t, p, r] = reward, ONE if over else ZERO
                observe(model.number, s, i, after, r, trig)
                if over or episodes.elapsed[i] >= model.limit:
                    played.ended[t, p, r], played.returns[t, p, r] = ONE, episodes.returns[i]
                    played.lengths[t, p, r] = episodes.elapsed[i]
                    episodes.number[i] += 1
                    episodes.returns[i], episodes.elapsed[i] = 0.0, 0
                    for k in range(parts):
                        draw = uniform(model.keys[i], episodes.number[i] * parts + k)
                        s[k, i] = model.ranges[k, 0] + model.ranges[k, 1] * draw
                    observe(model.number, s, i, following, r, trig)
                else:
                    played.ended[t, p, r] = ZERO
                    for k in range(width):
                        following[r, k] = after[r, k]
            before = following
