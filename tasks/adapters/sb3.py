"""Algorithms of Stable-Baselines3 as tasks, in Rekindle's environments: ``sb3:PPO``.

An algorithm of sb3_contrib has its name, too (``sb3:TQC``), and a subclass of the user's ``sb3:package.module:Class``.
The model trains by its own ``learn``, which is called once per epoch and continues where it was. After any number of
epochs the parameters are those of one call of ``learn`` in these environments. The state is data: networks, optimizers,
buffers, counters, the last observations, moments of observations and rewards, random generators and the environments.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import random
import re
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from itertools import count
from operator import attrgetter
from typing import Any, ClassVar, overload

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

try:
    import stable_baselines3
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.buffers import ReplayBuffer
    from stable_baselines3.common.noise import NormalActionNoise
    from stable_baselines3.common.running_mean_std import RunningMeanStd
    from stable_baselines3.common.vec_env import VecEnv, VecNormalize
except ImportError as error:
    raise ImportError(f"sb3: tasks need Stable-Baselines3: pip install stable-baselines3 ({error})") from error

from ...spaces import Space, argument, categorical, integer, log_real, near_one, ordinal, real
from ...spaces.choices import Argument, name_of
from ...spaces.errors import near
from ...spaces.values import flatten
from ..base_learner import BaseLearner
from ..checkpoint.state import Tree
from ..envs import EnvSpec, make_envs, spaces_of
from ..envs.base.envs import Envs
from ..envs.base.masks import mask_in
from ..errors import Diverged, NotData, StateMismatch, UnsupportedSpace, is_lack_of_memory
from ..evaluation import evaluation_keys
from ..identity import EnvLike
from ..registry import load
from ..rng import streams
from ..task import Task
from .data import decode, encode

COMMON = Space(
    learning_rate=log_real(1e-5, 1e-2, default=3e-4),
    gamma=near_one(0.9, 0.9999, default=0.99),
    num_envs=integer(1, 64, default=1, structural=True, search=False),
    epoch_steps=integer(1, 10**7, default=4096, structural=True, search=False),
    total_steps=integer(
        1, 10**12, default=100_000, structural=True, search=False
    ),  # what `learn` is told, for schedules
)
ON_POLICY = Space(
    n_steps=ordinal(8, 32, 128, 512, 2048, accept=(1, 10**6), default=512, structural=True),
    ent_coef=log_real(1e-8, 0.1, default=1e-4),
    gae_lambda=real(0.8, 1.0, default=0.95),
    max_grad_norm=log_real(0.3, 5.0, default=0.5),
    vf_coef=real(0.0, 1.0, default=0.5),
)
PROXIMAL = Space(
    batch_size=ordinal(32, 64, 128, 256, 512, accept=(1, 10**6), default=64, structural=True),
    clip_range=real(0.1, 0.4, default=0.2),
    n_epochs=ordinal(1, 5, 10, 20, accept=(1, 100), default=10, structural=True),
)
OFF_POLICY = Space(
    batch_size=ordinal(32, 64, 128, 256, 512, accept=(1, 10**6), default=64, structural=True),
    buffer_size=integer(1, 10**7, default=100_000, structural=True, search=False),
    learning_starts=integer(0, 10**6, default=1000, structural=True, search=False),
    train_freq=ordinal(1, 4, 16, 64, accept=(1, 10**6), default=4, structural=True),
)
TARGETS = Space(tau=log_real(1e-3, 0.1, default=0.005))
NOISE = Space(noise_std=real(0.0, 1.0, default=0.1))
GREEDY = Space(
    exploration_fraction=real(0.0, 0.5, default=0.1),
    target_update_interval=integer(1, 100_000, default=1000, structural=True, search=False),
)
TRUST_REGION = Space(
    n_steps=ON_POLICY["n_steps"],
    batch_size=ordinal(8, 32, 128, 512, accept=(1, 10**6), default=128, structural=True),
    gae_lambda=ON_POLICY["gae_lambda"],
    n_critic_updates=ordinal(5, 10, 20, 30, accept=(1, 1000), default=10, structural=True),
    cg_max_steps=ordinal(5, 10, 20, 30, accept=(1, 1000), default=15, structural=True),
    target_kl=log_real(1e-3, 0.1, default=0.01),
)
RANDOM_SEARCH = Space(
    learning_rate=log_real(1e-4, 1.0, default=0.02),
    n_delta=ordinal(4, 6, 8, 32, 64, accept=(1, 10**4), default=8, structural=True),
    delta_std=log_real(0.01, 0.3, default=0.05),
)
# The ranges are those of rl-zoo's samplers, the defaults mostly those of Stable-Baselines3.
SPACES = {
    "PPO": [ON_POLICY, PROXIMAL],
    "A2C": [ON_POLICY],
    "DQN": [OFF_POLICY, GREEDY],
    "SAC": [OFF_POLICY, TARGETS],
    "TD3": [OFF_POLICY, TARGETS, NOISE],
    "DDPG": [OFF_POLICY, TARGETS, NOISE],
    "TQC": [OFF_POLICY, TARGETS, Space(top_quantiles_to_drop_per_net=integer(0, 24, default=2, structural=True))],
    "CrossQ": [OFF_POLICY, Space(policy_delay=integer(1, 10, default=3, structural=True, search=False))],
    "QRDQN": [OFF_POLICY, GREEDY],
    "TRPO": [TRUST_REGION],
    "ARS": [RANDOM_SEARCH],
    "RecurrentPPO": [ON_POLICY, PROXIMAL],
    "MaskablePPO": [ON_POLICY, PROXIMAL],
}
NORMALIZE = Space(
    normalize=categorical("none", "obs", "reward", "both", default="none", structural=True, search=False, silent=True)
)
POLICIES = {"ARS": ("LinearPolicy", ""), "RecurrentPPO": ("MlpLstmPolicy", "CnnLstmPolicy")}  # for vectors, images
OWN = ("num_envs", "epoch_steps", "total_steps", "noise_std", "normalize")  # hyperparameters that no algorithm takes
ELSEWHERE = {  # arguments of algorithms that a task decides, and how
    "env": "the environment of the task",
    "seed": "the seed of the task",
    "device": "the device of the task",
    "action_noise": "noise_std, the deviation of Gaussian noise",
    "tensorboard_log": "--log tensorboard:DIR",
    "verbose": "the progress of the task",
    "monitor_wrapper": "the task's environments, which report their episodes",
    "callback": "fit(until=...), or a subclass whose learn adds it",
    "_init_setup_model": "the task, which sets the model up",
}


class TaskVecEnv(VecEnv):
    """Rekindle's environments as Stable-Baselines3 sees them.

    Attributes:
        begun: whether their episodes have just begun, so that `reset` leaves them alone.
    """

    def __init__(self, envs: Envs, spec: EnvSpec):
        space = spaces_of(spec)
        low, high = (0, 255) if envs.obs_kind == "image" else (-np.inf, np.inf)
        dtype = np.uint8 if envs.obs_kind == "image" else np.float32
        observation = gym.spaces.Box(low, high, envs.obs_shape, dtype)
        self.envs, self.begun = envs, True
        self.returns, self.lengths = np.zeros(envs.num_envs), np.zeros(envs.num_envs, np.int64)
        super().__init__(envs.num_envs, observation, _from_zero(space.action))

    def reset(self) -> np.ndarray:
        if not self.begun:
            self.envs.reset()
        self.begun, self.returns[:], self.lengths[:] = True, 0.0, 0
        return self.envs.obs[0].copy()

    def step_async(self, actions: np.ndarray) -> None:
        self.actions = np.asarray(actions)

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        self.begun = False
        result = self.envs.step(self.actions[None])
        terminated, truncated, rewards = result.terminated[0], result.truncated[0], result.reward[0].copy()
        done = terminated | truncated
        self.returns += rewards
        self.lengths += 1
        infos: list[dict[str, Any]] = [{} for _ in done]
        for i in np.flatnonzero(done):
            infos[i] = {
                "terminal_observation": result.next_obs[0, i].copy(),
                "TimeLimit.truncated": bool(truncated[i] and not terminated[i]),
                "episode": {"r": float(self.returns[i]), "l": int(self.lengths[i])},
            }
        self.returns[done], self.lengths[done] = 0.0, 0
        return self.envs.obs[0].copy(), rewards, done.copy(), infos

    def close(self) -> None:
        self.envs.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError("the environments of a task have no attributes to set")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        if method_name == "action_masks" and (columns := mask_in(self.envs.obs_shape)):
            return [*(self.envs.obs[0][:, columns] > 0.5)]
        raise NotImplementedError(f"the environments of a task have no method {method_name}")

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        return [True] * self.num_envs  # each reports its episodes, as a Monitor does


def _from_zero(space: gym.Space[Any]) -> gym.Space[Any]:
    """Return an action space whose choices count from 0."""
    if isinstance(space, gym.spaces.Discrete):
        return gym.spaces.Discrete(int(space.n))
    if isinstance(space, gym.spaces.MultiDiscrete):
        return gym.spaces.MultiDiscrete(space.nvec)
    return copy.deepcopy(space)


def resumable(algorithm: type[BaseAlgorithm]) -> type[BaseAlgorithm]:
    """Return an algorithm whose `learn` continues where it was.

    Its argument is then the total to reach, and schedules depend on `horizon`, the whole training.
    """

    class Resumable(algorithm):  # type: ignore[misc,valid-type]  # a class made of another
        horizon = 0

        def _setup_learn(self, total_timesteps: int, *arguments: Any, **options: Any) -> tuple[int, Any]:
            _, callback = super()._setup_learn(self.horizon, *arguments, **options)
            self._total_timesteps = self.horizon
            return total_timesteps, callback

        def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
            super()._update_current_progress_remaining(num_timesteps, self.horizon)

    Resumable.__name__ = Resumable.__qualname__ = algorithm.__name__
    return Resumable


class SB3Learner(BaseLearner):
    """State of a model of Stable-Baselines3.

    Attributes:
        model_class: the algorithm.
        base: the algorithm of Stable-Baselines3 that it is or derives from.
        model: the model.
        envs: its environments.
    """

    parts, batched, needs_env = ("kept",), False, True
    objective, unit = "return", "env_steps"
    scratch = ("model", "venv", "task_envs", "evaluation_envs")
    particles = None
    evaluation_envs: Envs | None = None
    model_class: ClassVar[type[BaseAlgorithm]]
    base: ClassVar[str]
    place: ClassVar[str]
    env_steps: int

    def assemble(self, values: Sequence[Mapping[str, Any]]) -> None:
        self.values = flatten(values[0])
        super().assemble(values)

    @classmethod
    def algorithm(cls) -> str:
        return cls.place

    def build(self) -> None:
        self.epoch_size = self.values["epoch_steps"]
        self.envs = make_envs(self.env, self.seeds, self.values["num_envs"], processes=self.env_processes)
        self.masks = mask_in(self.envs.obs_shape)
        if self.base == "MaskablePPO" and self.masks is None:
            raise UnsupportedSpace(
                f"{self.place} needs an environment that tells an action mask, but {self.env.id} has none; take sb3:PPO"
            )
        self.task_envs = TaskVecEnv(self.envs, self.env)
        self.venv: VecEnv = self.task_envs
        if (normalize := self.values["normalize"]) != "none":
            what = {"norm_obs": normalize != "reward", "norm_reward": normalize != "obs"}
            self.venv = VecNormalize(self.venv, gamma=self.values.get("gamma", 0.99), **what)
        options, space = dict[str, Any](), self.hyperparameters.flat()
        for name, value in self.values.items():
            if not isinstance(dimension := space[name], Argument):
                options |= {} if name in OWN else {name: value}
            elif value is not None:
                options[name] = _with_classes(dimension.value(value), f"{self.place}: {name}")
        if "noise_std" in self.values:
            size = self.venv.action_space.shape or ()
            options["action_noise"] = NormalActionNoise(np.zeros(size), self.values["noise_std"] * np.ones(size))
        usual = POLICIES.get(self.base, ("MlpPolicy", "CnnPolicy"))[self.envs.obs_kind == "image"]
        policy = options.pop("policy", usual)
        before = self.generator_states()
        try:
            seed = streams.seed_of(self.seeds[0], "sb3")
            with warnings.catch_warnings():  # of the user's device, and of minibatches that a study tries
                for advice in ("You are trying to run .* on the GPU", "You have specified a mini-batch size of"):
                    warnings.filterwarnings("ignore", advice, UserWarning)
                self.model = self.model_class(policy, self.venv, seed=seed, device=self.device, **options)
            self.generators = self.generator_states()
        except (AssertionError, TypeError, ValueError, RuntimeError) as error:  # actions, images, their size
            if is_lack_of_memory(error):
                raise
            problem = str(error).partition("\n")[0]
            raise UnsupportedSpace(
                f"{self.algorithm()} cannot act in {self.env.id}{self._with()}: {problem}"
            ) from error
        finally:
            self.set_generator_states(before)
        self.model.horizon = self.values["total_steps"]  # type: ignore[attr-defined]
        self.kept = ModelPart(self)

    def _with(self) -> str:
        """Return the names of the user's arguments, for messages."""
        space = self.hyperparameters.flat()
        names = [name for name, value in self.values.items() if value is not None and isinstance(space[name], Argument)]
        return f" with its {' and '.join(names)}" if names else ""

    @contextmanager
    def own_generators(self) -> Iterator[None]:
        """Use the model's own states of the global random generators."""
        before = self.generator_states()
        self.set_generator_states(self.generators)
        try:
            yield
        finally:
            self.generators = self.generator_states()
            self.set_generator_states(before)

    def generator_states(self) -> list[Any]:
        """Return the states of the global random generators, as data."""
        states = [torch.get_rng_state(), list(np.random.get_state()), random.getstate()]
        return [*states, torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else states

    def set_generator_states(self, states: Sequence[Any]) -> None:
        torch.set_rng_state(states[0])
        np.random.set_state(tuple(states[1]))
        random.setstate(states[2])
        if self.device.type == "cuda" and len(states) > 3:  # a state from a CPU has none
            torch.cuda.set_rng_state(states[3].cpu(), self.device)

    def begin_epoch(self) -> None:
        self.open(self.envs)
        self.envs.begin_epoch(np.array([self.epochs]))
        if self.envs.mode == "restart":
            self._take_new_episodes()

    def with_new_episodes(self, tree: Mapping[str, Any], member: int = 0) -> Tree:
        with self.envs.restarts():
            self.load_member(member, tree)
        self._take_new_episodes()
        return self.member_state(member)

    def _take_new_episodes(self) -> None:
        """Let the model continue in episodes that have just begun."""
        self.task_envs.begun, self.model._last_obs = True, None  # it resets environments if it has no observation

    def iterate(self) -> Mapping[str, Tensor]:
        first = self.model.num_timesteps == 0
        with self.own_generators():
            try:
                self.model.learn((self.epochs + 1) * self.epoch_size, reset_num_timesteps=first, log_interval=None)  # type: ignore[arg-type]
            except TypeError as error:
                if not self._with():
                    raise
                raise UnsupportedSpace(f"{self.algorithm()} cannot train{self._with()}: {error}") from error
            except ValueError as error:
                if (fault := self.envs.faults.get(0)) is None:
                    raise
                raise Diverged(f"{self.algorithm()}: {fault}") from error  # torch refuses distributions of NaN
        self.env_steps = self.model.num_timesteps
        episodes = [info["r"] for info in self.model.ep_info_buffer or ()]
        metrics = {"episode_return": float(np.mean(episodes))} if episodes else {}
        return {name: torch.tensor([value], dtype=torch.float64) for name, value in metrics.items()}

    def score(self) -> None:
        """Return None, since `evaluation` measures episodes instead."""

    def actor(
        self, episodes: int, deterministic: bool = True, keys: streams.Keys | None = None
    ) -> Callable[[np.ndarray], np.ndarray]:
        """Return a function that acts, see `Learner.actor`."""
        draw, steps, memory = keys or partial(evaluation_keys, 1), count(), None
        explores = not deterministic and getattr(self.model, "use_sde", False)

        @torch.no_grad()
        def act(obs: np.ndarray) -> np.ndarray:
            nonlocal memory
            step, seen = next(steps), obs[0]
            options: dict[str, Any] = {"episode_start": np.full(len(seen), not step), "deterministic": deterministic}
            if self.base == "MaskablePPO":
                options["action_masks"] = seen[:, self.masks] > 0.5
            if isinstance(self.venv, VecNormalize):
                seen = self.venv.normalize_obs(seen)
            seed = int(draw(f"sb3 {step}")[0] >> np.uint64(33))
            with nullcontext() if deterministic else self.seeded(seed):
                if explores and not step:
                    self.model.policy.reset_noise(len(seen))  # type: ignore[operator]  # gSDE has it
                actions, memory = self.model.predict(seen, memory, **options)
            return np.asarray(actions)[None]

        return act

    @contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """Seed all that the model draws from, then restore it."""
        before, space = self.generator_states(), self.model.action_space
        drawn = space.np_random.bit_generator.state
        for seed_of in (torch.manual_seed, np.random.seed, random.seed, space.seed):
            seed_of(seed)
        try:
            yield
        finally:
            self.set_generator_states(before)
            space.np_random.bit_generator.state = drawn

    def surroundings(self, member: int) -> Tree:
        return {"envs": self.envs.member_state(member)}

    def load_surroundings(self, member: int, tree: Mapping[str, Any]) -> None:
        self.envs.load_member(member, tree["envs"])

    def inexact(self, member: int) -> list[str]:
        return self.envs.inexact(member)

    def cure(self, member: int) -> str:
        return self.envs.faults.get(member) or super().cure(member)

    def network_views(self, member: int) -> dict[str, Tensor]:
        return {name: x.detach() for name, x in self.model.policy.named_parameters()}

    def close(self) -> None:
        for envs in filter(None, (self.envs, self.evaluation_envs)):
            envs.close()


class ModelPart:
    """A model as a part of a learner."""

    checks_form = True

    def __init__(self, learner: SB3Learner):
        self.learner = learner

    def member_state(self, member: int) -> Tree:
        learner = self.learner
        episodes = [learner.task_envs.returns, learner.task_envs.lengths]
        parts = [_state(learner.model), learner.generators, episodes]
        return encode([*parts, _moments(learner.venv)] if learner.venv is not learner.task_envs else parts, "the model")

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        learner = self.learner
        model, generators, episodes, *moments = decode(tree)
        learner.task_envs.returns, learner.task_envs.lengths = episodes
        try:
            _load(learner.model, model)
            learner.task_envs.begun = learner.model._last_obs is None
            for name, values in (moments[0] if moments else {}).items():
                _set_moments(learner.venv, name, values)
        except (LookupError, RuntimeError, TypeError, ValueError) as error:
            raise StateMismatch(f"{learner.algorithm()}: the state is of another model: {error}") from None
        learner.generators = generators


def _moments(venv: VecEnv) -> dict[str, Any]:
    """Return what VecNormalize has learned, and its environments' running sums."""
    values: dict[str, Any] = {}
    for name, value in vars(venv).items():
        if isinstance(value, RunningMeanStd):
            values[name] = [value.mean, value.var, value.count]
        elif isinstance(value, np.ndarray):
            values[name] = value
    return values


def _set_moments(venv: VecEnv, name: str, values: Any) -> None:
    if isinstance(moments := getattr(venv, name, None), RunningMeanStd):
        moments.mean, moments.var, moments.count = values
    else:
        setattr(venv, name, values)


def _state(model: BaseAlgorithm) -> dict[str, Any]:
    """Return everything in a model that is data, by attribute."""
    options = {}
    # a branch has its own values of what it is given
    supplied = {"start_time", "horizon", *_parameters(type(model).__mro__)} - {"policy"}
    for name, value in vars(model).items():
        if name in supplied:
            continue
        if (content := _data(value)) is not ...:
            options[name] = content
    options["action_space"] = model.action_space.np_random.bit_generator.state
    return options


def _data(value: Any) -> Any:
    """Return an attribute's data; ... if it has none."""
    if isinstance(value, nn.Module):
        optimizers = {f"optimizer of {path}": x.state_dict() for path, x in _optimizers(value)}
        return {"module": value.state_dict(), **optimizers}
    if isinstance(value, torch.optim.Optimizer):
        return value.state_dict()
    if isinstance(value, ReplayBuffer):
        return _content(value)
    if isinstance(value, deque) or (isinstance(value, list) and all(isinstance(part, Mapping) for part in value)):
        return [*value]  # results of episodes
    if isinstance(value, tuple) and all(_data(part) is not ... for part in value):  # such as the states of an LSTM
        return tuple(_data(part) for part in value)
    if value is None or isinstance(value, Tensor | np.ndarray | bool | int | float):
        return value
    return ...


def _content(buffer: ReplayBuffer) -> dict[str, Any]:
    """Return what a replay buffer has gathered, by attribute.

    Raises:
        NotData: it holds something else than data.
    """
    content = {}
    for name, value in vars(buffer).items():
        if name in ("obs_shape", "action_dim", *_parameters(type(buffer).__mro__)):
            continue
        content[name] = _data(value)
        if content[name] is ...:
            raise NotData(
                f"a replay buffer holds arrays, numbers and tensors, but {type(buffer).__name__} has a "
                f"{type(value).__name__} as {name}; keep its numbers in arrays"
            )
    return content


def _parameters(line: Sequence[type]) -> set[str]:
    """Return the names of the arguments of a class and its bases."""
    signatures = [inspect.signature(part) for part in line if "__init__" in vars(part) and part is not object]
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name for one in signatures for name, x in one.parameters.items() if x.kind not in several}


def _optimizers(module: nn.Module) -> Iterator[tuple[str, torch.optim.Optimizer]]:
    """Yield the optimizers that a policy and its networks hold."""
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, torch.optim.Optimizer):
                yield f"{path}.{name}".lstrip("."), value


def _load(model: BaseAlgorithm, state: Mapping[str, Any]) -> None:
    for name, content in state.items():
        value = getattr(model, name, None)
        if name == "action_space":
            model.action_space.np_random.bit_generator.state = content
        elif isinstance(value, nn.Module):
            value.load_state_dict(content["module"])
            for path, optimizer in _optimizers(value):
                optimizer.load_state_dict(content[f"optimizer of {path}"])
        elif isinstance(value, torch.optim.Optimizer):
            value.load_state_dict(content)
        elif isinstance(value, ReplayBuffer):
            vars(value).update(content)
        elif isinstance(content, list) and name.startswith("ep_"):
            setattr(model, name, deque(content, maxlen=model._stats_window_size))
        elif isinstance(value, Tensor):
            with torch.no_grad():
                value.copy_(content)
        elif isinstance(value, tuple):
            setattr(model, name, _like(value, content))
        else:
            setattr(model, name, content)


def _like(value: Any, content: Any) -> Any:
    """Return data with the types of a nested tuple, and its devices."""
    if isinstance(value, tuple):
        parts = [_like(one, other) for one, other in zip(value, content, strict=True)]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return content.to(value.device) if isinstance(value, Tensor) else content


def __getattr__(name: str) -> Any:
    if name not in SPACES and ":" not in name:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load(f"sb3:{name}")


@overload
def SB3(model_class: type[BaseAlgorithm]) -> type[Task]: ...
@overload
def SB3(model_class: type[BaseAlgorithm], env: EnvLike, **options: Any) -> Task: ...
def SB3(  # noqa: N802
    model_class: type[BaseAlgorithm], env: EnvLike = None, **options: Any
) -> type[Task] | Task:
    """Return an algorithm or its subclass as a task class or task.

    Other processes import a subclass, and the classes among the options, such as a policy, so they must be at the top
    level of a module.

    Args:
        model_class: class of Stable-Baselines3 or sb3_contrib, or one that derives from it.
        env: environment of the task; None returns the class.
        options: arguments of the task, such as its seed and its storage, and of the algorithm, which are fixed
            hyperparameters, such as ``policy_kwargs={"net_arch": [64], "activation_fn": torch.nn.ReLU}``.

    Raises:
        ValueError: the class is none of these, or cannot be imported.
        TypeError: an option is an argument of the algorithm's that a task decides otherwise.
    """
    name = model_class.__name__ if model_class is _library(model_class.__name__) else name_of(model_class)
    task: type[Task] = load(f"sb3:{name}")
    if env is None and options:
        raise TypeError(f"{next(iter(options))} belongs to a task of sb3:{name}, but there is no env; give one")
    space = task.learner.hyperparameters.flat()
    for option, value in options.items():
        if option in ELSEWHERE and option not in inspect.signature(Task).parameters:
            raise TypeError(f"a task of sb3:{name} takes no {option}; it has {ELSEWHERE[option]}")
        if isinstance(dimension := space.get(option), Argument):
            options[option] = dimension.check(value, option)
    return task if env is None else task(env, **options)


def _library(name: str) -> type[BaseAlgorithm] | None:
    """Return the algorithm of Stable-Baselines3 or sb3_contrib with this name."""
    algorithm: type[BaseAlgorithm] | None = getattr(stable_baselines3, name, None)
    if algorithm is None:
        with suppress(ImportError):
            algorithm = getattr(importlib.import_module("sb3_contrib"), name, None)
    return algorithm


def _with_classes(value: Any, place: str) -> Any:
    """Return data with the classes that it names as package.module:Class."""
    if isinstance(value, Mapping):
        return {name: _with_classes(item, place) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_classes(item, place) for item in value]
    if not isinstance(value, str) or not re.fullmatch(r"\w+(\.\w+)*:\w+(\.\w+)*", value):
        return value
    module, _, name = value.partition(":")
    try:
        named = attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{place} names the class {value}, which cannot be imported: {error}") from error
    if not isinstance(named, type):
        raise ValueError(f"{place} names classes only, but {value} is {named!r}")
    return named


def _subclass(path: str) -> type[BaseAlgorithm]:
    module, _, name = path.partition(":")
    try:
        algorithm = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"the algorithm sb3:{path} cannot be imported: {error}") from error
    if not isinstance(algorithm, type) or not issubclass(algorithm, BaseAlgorithm):
        raise ValueError(
            f"sb3:{path} must be a class that derives from an algorithm of Stable-Baselines3, not {algorithm!r}"
        )
    return algorithm


def model(name: str) -> type[Task]:
    """Return the task class of an algorithm of Stable-Baselines3.

    Args:
        name: "sb3:" and the name of the algorithm.

    Raises:
        ValueError: there is no such algorithm, or it is not known to resume exactly.
    """
    short = name.removeprefix("sb3:")
    if ":" not in short and short not in SPACES:
        raise ValueError(f"sb3: has {', '.join(SPACES)}, but got {short!r}{near(short, [*SPACES])}")
    algorithm = _subclass(short) if ":" in short else _library(short)
    if algorithm is None:
        raise ValueError(f"{name} needs sb3_contrib: pip install sb3-contrib")
    base = next((part.__name__ for part in algorithm.__mro__ if _library(part.__name__) is part), "")
    if base not in SPACES:
        raise ValueError(f"{name} must derive from {', '.join(SPACES)}, but it derives from {base or 'none of them'}")
    space = {key: entry for part in (COMMON, *SPACES[base], NORMALIZE) for key, entry in part.items()}
    if base == "ARS":  # returns are not discounted
        del space["gamma"]
    line = algorithm.__mro__[: [part.__name__ for part in algorithm.__mro__].index(base) + 1]
    others = sorted(_parameters(line) - {*space, *ELSEWHERE})
    space |= {name: argument(silent=True, help="None for the algorithm's own default") for name in others}
    content = {
        "__module__": __name__,
        "model_class": resumable(algorithm),
        "base": base,
        "place": name,
        "hyperparameters": Space(**space),
    }
    learner = type(f"{algorithm.__name__}Learner", (SB3Learner,), content)
    about = {"name": name, "learner": learner, "__module__": __name__, "__doc__": f"{short} of Stable-Baselines3."}
    return type(short, (Task,), about)  # found by `__getattr__` under this name
