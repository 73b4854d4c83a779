"""Samplers spelled ``package.module:Class(argument=value)``, of Optuna or of the user.

Such a sampler is made anew for each trial, with a seed of its own, and reads the earlier trials from the study that it
is given. What it would keep between trials elsewhere (in the instance, or in Optuna's attributes) starts anew; a
self-test tells whether two that are made alike suggest alike. The global generators of Python, NumPy and torch are
seeded while it draws. The source of its class belongs to the study: another source suggests other trials.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import random
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, create_trial

from ...plugins import PluginError
from ...spaces.drivers.to_optuna import distributions
from ...tasks.errors import Stopped
from ..errors import BadConfig
from ..methods import Sampling
from ..study.config import Config
from ..study.objectives import constraints_of, objectives_of
from .draw import Draw, constrained
from .instances import KEPT
from .registry import SOURCE
from .suggest import quiet

HUB = "optunahub_registry.package."  # beginning of the names of the modules that OptunaHub loads
LIBRARIES = ("optuna", "optunahub", "builtins", "abc", "typing")  # a new version of one is no other sampler
FORM = "package.module:Class or package.module:Class(argument=value)"
TOLD = 12  # earlier trials of the self-test


class Spelled:
    """A sampler's class and arguments, read from its spelling.

    Args:
        text: ``package.module:Class`` or ``package.module:Class(argument=value)``, with Python's literals as values.

    Raises:
        PluginError: the text has another form, or names no class of samplers that takes these arguments.
    """

    def __init__(self, text: str):
        target, parenthesis, rest = text.strip().partition("(")
        module, _, name = target.partition(":")
        self.arguments = _arguments(text, parenthesis + rest)
        self.sampler = _imported(text, module, name)
        if (kept := KEPT.get(name)) and self.sampler is getattr(optuna.samplers, name):
            raise PluginError(
                f"sampler {target} counts or remembers in attributes of an Optuna study, which a trial cannot resume "
                f"from; take --sampler {kept}, which derives it from the results"
            )
        seeded = "seed" in inspect.signature(self.sampler).parameters
        if seeded and "seed" in self.arguments:
            raise PluginError(f"the sampler {text} must leave out seed, which each trial gets from the study's --seed")
        self.seeded = seeded
        arguments = ", ".join(f"{key}={value!r}" for key, value in self.arguments.items())
        self.name = f"{module}:{name}({arguments})" if arguments else f"{module}:{name}"

    @property
    def facts(self) -> Sampling:
        """Facts that its class states, or that follow from Optuna's classes."""
        stated = getattr(self.sampler, "facts", None)
        return stated if isinstance(stated, Sampling) else Sampling(pruned=issubclass(self.sampler, TPESampler))

    @cached_property
    def source(self) -> str:
        """Digest of the source of its class and its bases.

        A class of OptunaHub has that of its whole package. Optuna's own classes are left out.
        """
        digest = hashlib.sha256()
        for part in self.sampler.__mro__:
            if part.__module__.startswith(HUB):
                for file in sorted(_hub_folder(part.__module__).rglob("*.py")):
                    digest.update(file.read_bytes())
            elif part.__module__.partition(".")[0] not in LIBRARIES:
                try:
                    digest.update(inspect.getsource(importlib.import_module(part.__module__)).encode())
                except (OSError, TypeError):  # compiled
                    digest.update(f"{part.__module__}.{part.__qualname__}".encode())
        return digest.hexdigest()[:16]

    def instance(self, draw: Draw) -> BaseSampler:
        """Return a sampler for a draw.

        Raises:
            BadConfig: its class refuses the arguments.
        """
        constraints = draw.constraints if self.sampler.__module__.startswith("optuna.") else draw.constraints_func
        more = {"seed": draw.seed % 2**32} if self.seeded else {}
        takes = inspect.signature(self.sampler).parameters
        more |= {name: value for name, value in constraints.items() if name in takes and name not in self.arguments}
        try:
            with _seeded(draw.seed):
                sampler: BaseSampler = self.sampler(**self.arguments, **more)
        except Exception as error:  # a constructor may raise anything
            raise BadConfig(f"the sampler {self.name} cannot be made: {_cause(error)}") from error
        return sampler

    def check(self, config: Config) -> None:
        """Raise BadConfig unless the study can make the sampler."""
        with quiet(optuna.logging.ERROR):
            self.instance(Draw(config, 0))

    def check_source(self, config: Config) -> None:
        """Raise BadConfig unless the source is that of the study."""
        if (stored := config.options.get(SOURCE)) != self.source:
            file = inspect.getsourcefile(self.sampler)
            raise BadConfig(
                f"the source of sampler {self.name} must be that of the study, whose digest is {stored}, but {file} "
                f"gives {self.source}; restore the source, or begin a study of another name with the new one"
            )

    def of(self, draw: Draw) -> BaseSampler:
        """Return the sampler of a draw."""
        self.check_source(draw.config)
        return _Seeded(self.instance(draw), draw.seed, self.name)

    def remark(self, config: Config) -> str:
        """Return the self-test's warning, or ""."""
        with quiet(optuna.logging.ERROR):
            first, second = _suggested(self, config), _suggested(self, config)
        if first == second:
            return ""
        return (
            f"sampler {self.name} is not reproducible: two that were made alike suggested {first} and {second}; trials "
            "keep their results, but another run of this study would try others"
        )


class _Seeded(BaseSampler):
    """A sampler that draws with seeded global generators.

    Args:
        sampler: the sampler.
        seed: seed of Python's and NumPy's generators.
        name: name of the sampler.
    """

    def __init__(self, sampler: BaseSampler, seed: int, name: str):
        self.sampler, self.seed, self.name, self.drawn = sampler, seed, name, 0

    def reseed_rng(self) -> None:
        """Do nothing: the seed belongs to the trial."""

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the hyperparameters that the sampler models together."""
        with self._next():
            return self.sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Draw the hyperparameters that the sampler models together."""
        with self._next():
            values = self.sampler.sample_relative(study, trial, search_space)
            for name in values.keys() & search_space.keys():
                self._check(name, search_space[name], values[name])
        return values

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Draw one hyperparameter."""
        with self._next():
            value = self.sampler.sample_independent(study, trial, param_name, param_distribution)
            self._check(param_name, param_distribution, value)
        return value

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Let the sampler prepare itself for a trial."""
        with self._next():
            self.sampler.before_trial(study, trial)

    @contextmanager
    def _next(self) -> Iterator[None]:
        self.drawn += 1
        try:
            with _seeded(self.seed + self.drawn):
                yield
        except (BadConfig, Stopped):
            raise
        except Exception as error:  # it may raise anything
            raise BadConfig(f"the sampler {self.name} cannot draw: {_cause(error)}") from error

    def _check(self, name: str, distribution: BaseDistribution, value: Any) -> None:
        """Raise BadConfig unless a value is one of the hyperparameter's."""
        try:
            is_one = distribution._contains(distribution.to_internal_repr(value))
        except (ValueError, TypeError):
            is_one = False
        if not is_one:
            raise BadConfig(
                f"the sampler {self.name} must draw {name} from {distribution}, but drew {value!r}; correct the sampler"
            )


@lru_cache(maxsize=64)
def spelled(text: str) -> Spelled:
    """Return the sampler with this spelling, made once per process."""
    return Spelled(text)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of Python, NumPy and torch, then restore them."""
    before = random.getstate(), np.random.get_state()
    with ExitStack() as stack:
        if torch := sys.modules.get("torch"):
            stack.enter_context(torch.random.fork_rng(devices=[]))
            torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


def _arguments(text: str, call: str) -> dict[str, Any]:
    """Return the arguments in a spelling's parentheses."""
    try:
        tree = ast.parse(f"f{call or '()'}", mode="eval").body
        if not isinstance(tree, ast.Call) or tree.args or any(word.arg is None for word in tree.keywords):
            raise ValueError("arguments have names")
        return {str(word.arg): ast.literal_eval(word.value) for word in tree.keywords}
    except (SyntaxError, ValueError) as error:
        raise PluginError(
            f"a sampler must have the form {FORM}, with literals as values, but got {text!r}: {error}"
        ) from None


def _imported(text: str, module: str, name: str) -> type[BaseSampler]:
    if not module or not name.isidentifier():
        raise PluginError(f"a sampler must have the form {FORM}, but got {text!r}")
    try:
        if module.startswith(HUB) and module not in sys.modules:
            importlib.import_module("optunahub").load_module("/".join(module.removeprefix(HUB).split(".")[:2]))
        sampler = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # importing runs the package's code
        raise PluginError(f"the sampler {text!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(sampler, type) or not issubclass(sampler, BaseSampler):
        raise PluginError(
            f"a sampler must be a class derived from optuna.samplers.BaseSampler, but {text!r} is {sampler!r}"
        )
    return sampler


def _suggested(spelling: Spelled, config: Config) -> dict[str, Any]:
    """Return what a sampler suggests after some made-up trials of a study."""
    space, several, draw = distributions(config.searched), len(objectives_of(config)), Draw(config, TOLD)
    drawn = optuna.create_study(sampler=RandomSampler(seed=config.seed))
    sampler = _Seeded(spelling.instance(draw), draw.seed, spelling.name)
    study = optuna.create_study(directions=["maximize"] * several, sampler=sampler)
    for number in range(TOLD):
        infeasible = constrained([number % 3 - 1.0] * len(constraints_of(config)))
        params, values = drawn.ask(space).params, [float(number * 7 % TOLD)] * several
        study.add_trial(create_trial(params=params, distributions=space, values=values, system_attrs=infeasible))
    return study.ask(space).params


def _hub_folder(module: str) -> Path:
    """Return the folder of the package of a module of OptunaHub."""
    package = ".".join(module.removeprefix(HUB).split(".")[:2])
    return Path(str(sys.modules[HUB + package].__file__)).parent


def _cause(error: Exception) -> str:
    """Return an error's kind and text, or else its place."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"{type(error).__name__}: {error}" if str(error) else f"{type(error).__name__} in {last.filename}:{last.lineno}"
    )
