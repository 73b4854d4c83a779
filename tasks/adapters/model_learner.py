"""Learner whose members are models of Stable-Baselines3 or sbx."""

from __future__ import annotations

import copy
import importlib
import random
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import count
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from torch import Tensor

from ...spaces.choices import Argument
from ..base_learner import statistics_of
from ..checkpoint.state import Tree
from ..envs import make_envs
from ..envs.base.envs import Envs
from ..envs.base.masks import mask_in
from ..errors import Diverged, StateMismatch, UnsupportedSpace, is_lack_of_memory
from ..evaluation.seeds import evaluation_keys
from ..rng import streams
from .adapted_learner import AdaptedLearner
from .data import decode, encode
from .model_envs import TaskVecEnv, as_taken
from .model_spaces import OWN, POLICIES, SMALLEST
from .model_state import load_state, lost_from, moments_of, set_moments, state_of
from .subclass_state import arguments_of

MOMENTS = "obs_normalizer."  # names of the statistics that scale observations begin with it


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


class SB3Learner(AdaptedLearner):
    """State of a model of Stable-Baselines3.

    Attributes:
        functions: whether arguments may name functions, as they may classes.
        model_class: the algorithm, made `resumable`.
        base: the algorithm of Stable-Baselines3 that it is or derives from.
        model: the model.
        envs: its environments.
    """

    parts, needs_env = ("kept",), True
    objective, unit = "return", "env_steps"
    scratch = ("model", "venv", "task_envs", "evaluation_envs")
    particles, functions = None, False
    evaluation_envs: Envs | None = None
    model_class: ClassVar[type[BaseAlgorithm]]
    base: ClassVar[str]
    env_steps: int

    def build(self) -> None:
        self.epoch_size = self.values["epoch_steps"]
        self.envs = make_envs(self.env, self.seeds, self.values["num_envs"], processes=self.env_processes)
        try:
            if self.envs.obs_kind == "mixed":
                raise UnsupportedSpace(
                    f"{self.title} sees numbers or one image, but {self.env.id} shows images beside other parts; take "
                    "an algorithm of Rekindle's, such as ppo, or add a wrapper that leaves one of them"
                )
            self.masks = mask_in(self.envs.obs_shape)
            if self.base == "MaskablePPO" and self.masks is None:
                raise UnsupportedSpace(
                    f"{self.title} needs an environment that tells an action mask, but {self.env.id} has none; take "
                    "sb3:PPO"
                )
            self.task_envs = TaskVecEnv(self.envs, self.env)
            self.venv: VecEnv = self.task_envs
            if (normalize := self.values["normalize"]) != "none":
                flags = {"norm_obs": normalize != "reward", "norm_reward": normalize != "obs"}
                self.venv = VecNormalize(self.venv, gamma=self.values.get("gamma", 0.99), **flags)
            self.model = self._new_model(self._arguments())
        except BaseException:
            self.envs.close()
            raise
        self.model.horizon = self.values["total_steps"]  # type: ignore[attr-defined]
        self.kept = ModelPart(self)

    def _arguments(self) -> dict[str, Any]:
        """Return the arguments of the model's class that hyperparameters name."""
        arguments, space = dict[str, Any](), self.hyperparameters.flat()
        for name, value in self.values.items():
            if not isinstance(dimension := space[name], Argument):
                arguments |= {} if name in OWN else {name: value}
            elif value is not None:
                arguments[name] = _with_named(dimension.value(value), f"{self.title}: {name}", self.functions)
        if "noise_std" in self.values:
            size = self.venv.action_space.shape or ()
            arguments["action_noise"] = NormalActionNoise(np.zeros(size), self.values["noise_std"] * np.ones(size))
        return arguments

    def _usual_policy(self) -> str:
        """Return the name of the policy for the observations."""
        sides = sorted(self.venv.observation_space.shape or ())[-2:]
        shows_images = self.envs.obs_kind == "image" and min(sides) >= SMALLEST  # smaller ones are flattened
        return POLICIES.get(self.base, ("MlpPolicy", "CnnPolicy"))[shows_images]

    def _new_model(self, arguments: dict[str, Any]) -> BaseAlgorithm:
        """Return an untrained model, and keep the generators' states after it.

        Raises:
            UnsupportedSpace: it cannot act in the environment.
        """
        usual = self._usual_policy()
        if "policy" not in arguments and usual not in self.model_class.policy_aliases:
            raise UnsupportedSpace(
                f"{self.title} has no policy for images, but {self.env.id} shows them; take another algorithm, or give "
                "it a policy that sees them"
            )
        policy = arguments.pop("policy", usual)
        before = self.generator_states()
        try:
            seed = streams.seed_of(self.seeds[0], "sb3")
            with warnings.catch_warnings():  # of the user's device, and of minibatches that a study tries
                for advice in ("You are trying to run .* on the GPU", "You have specified a mini-batch size of"):
                    warnings.filterwarnings("ignore", advice, UserWarning)
                model = self.model_class(policy, self.venv, seed=seed, device=self.device, **arguments)
            self.arguments = arguments_of(model)
            self.generators = self.generator_states()
        except (ArithmeticError, AssertionError, TypeError, ValueError, RuntimeError) as error:  # actions, images
            if is_lack_of_memory(error):
                raise
            problem = str(error).partition("\n")[0]
            raise UnsupportedSpace(
                f"{self.algorithm()} cannot act in {self.env.id}{self._with()}: {problem}"
            ) from error
        finally:
            self.set_generator_states(before)
        return model

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
        # The stored tallies count the episodes of the whole training.
        first, before = self.model.num_timesteps == 0, copy.deepcopy(self.envs.episodes)
        self.envs.info.take_metrics()  # states of earlier versions hold those of all epochs before
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
        self.envs.end_epoch()
        metrics = self.envs.episodes.since(before).metrics(0)
        if recent := [(info["r"], info["l"]) for info in self.model.ep_info_buffer or ()]:  # the last 100
            metrics |= zip(("recent_return", "recent_length"), np.mean(recent, axis=0).tolist(), strict=True)
        metrics |= self.envs.info.take_metrics()[0] | self.envs.member_metrics(0)
        return {name: torch.tensor([value], dtype=torch.float64) for name, value in metrics.items()}

    def score(self) -> None:
        """Return None, since `evaluation` measures episodes instead."""

    def actor(
        self, episodes: int, deterministic: bool = True, keys: streams.Keys | None = None, memory: Any = None
    ) -> Callable[[np.ndarray], np.ndarray]:
        """Return a function that acts, see `Learner.actor`."""
        draw, steps = keys or partial(evaluation_keys, 1), count()
        explores = not deterministic and getattr(self.model, "use_sde", False)

        @torch.no_grad()
        def act(obs: np.ndarray) -> np.ndarray:
            nonlocal memory
            step, inputs = next(steps), obs[0]
            options: dict[str, Any] = {"episode_start": np.full(len(inputs), not step), "deterministic": deterministic}
            if self.base == "MaskablePPO":
                options["action_masks"] = inputs[:, self.masks] > 0.5
            if isinstance(self.venv, VecNormalize):
                inputs = self.venv.normalize_obs(inputs)
            seed = int(draw(f"sb3 {step}")[0] >> np.uint64(33))
            with nullcontext() if deterministic else self.seeded(seed):
                if explores and not step:
                    self.model.policy.reset_noise(len(inputs))  # type: ignore[operator]  # gSDE has it
                actions, memory = self.model.predict(inputs, memory, **options)
            return as_taken(actions, self.venv.action_space)[None]

        return act

    def acting_memory(self, episodes: int) -> None:
        """Return None: a model without a memory acts on any observation."""
        if self.base == "RecurrentPPO":
            raise UnsupportedSpace(
                f"{self.title} remembers whole episodes, so single steps are not offered; evaluate it"
            )

    def state_values(self, obs: np.ndarray, memory: Any = None) -> np.ndarray:
        raise UnsupportedSpace(f"values of {self.title} are not offered, only its actions")

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
        lost = [
            f"{self.title} may resume otherwise: it has {name}, a {type(value).__name__}, which no state keeps; keep "
            "numbers, texts, arrays, lists, dicts or generators of random numbers in the model instead"
            for name, value in lost_from(self.model).items()
        ]
        return [*self.envs.inexact(member), *lost]

    def advice(self) -> tuple[str, ...]:
        return self.envs.advice

    def cure(self, member: int) -> str:
        return self.envs.faults.get(member) or super().cure(member)

    def network_views(self, member: int) -> dict[str, Tensor]:
        return {name: x.detach() for name, x in self.model.policy.named_parameters()}

    def policy_views(self, member: int) -> dict[str, Tensor]:
        moments = {f"{MOMENTS}{name}": torch.tensor(x, dtype=torch.float64) for name, x in self._moments().items()}
        return self.network_views(member) | dict(statistics_of(self.model.policy)) | moments

    def _moments(self) -> dict[str, Any]:
        """Return the statistics that scale observations, by attribute."""
        moments = getattr(self.venv, "obs_rms", None)
        return {} if moments is None else {name: getattr(moments, name) for name in ("mean", "var", "count")}

    def adopt(self, member: int, policy: Mapping[str, Tensor]) -> None:
        super().adopt(member, policy)
        for name, before in self._moments().items():
            if (x := policy.get(f"{MOMENTS}{name}")) is not None:  # the views of them are copies
                setattr(self.venv.obs_rms, name, x.numpy().copy() if np.ndim(before) else x.item())  # type: ignore[attr-defined]

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
        parts = [state_of(learner.model, learner.arguments), learner.generators, episodes]
        return encode(
            [*parts, moments_of(learner.venv)] if learner.venv is not learner.task_envs else parts, "the model"
        )

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        learner = self.learner
        model, generators, episodes, *moments = decode(tree)
        learner.task_envs.returns, learner.task_envs.lengths = episodes
        try:
            load_state(learner.model, model, learner.arguments)
            learner.task_envs.begun = learner.model._last_obs is None
            for name, values in (moments[0] if moments else {}).items():
                set_moments(learner.venv, name, values)
        except (LookupError, RuntimeError, TypeError, ValueError) as error:
            raise StateMismatch(f"{learner.algorithm()}: the state is of another model: {error}") from None
        learner.generators = generators


def _with_named(value: Any, place: str, functions: bool) -> Any:
    """Return data with the classes and functions that it names."""
    if isinstance(value, Mapping):
        return {name: _with_named(item, place, functions) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_named(item, place, functions) for item in value]
    if not isinstance(value, str) or not re.fullmatch(r"\w+(\.\w+)*:\w+(\.\w+)*", value):
        return value
    module, _, name = value.partition(":")
    try:
        named = attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{place} names the class {value}, which cannot be imported: {error}") from error
    if not isinstance(named, type) and not (functions and callable(named)):
        raise ValueError(f"{place} names classes{' and functions' * functions} only, but {value} is {named!r}")
    return named
