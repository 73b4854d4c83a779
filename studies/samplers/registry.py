"""Optuna's samplers by name, as pure functions.

A suggestion is a function of seed, trial number and rows. Optuna's samplers may keep state in attributes of the study
and its trials; here that state is derived from the trial's number or recomputed from the rows. What other code must
know of a sampler is its row in `studies.methods`; its class makes it for one draw:

    of(draw)              the sampler of a `Draw`
    check(config)         optional: raises BadConfig if it does not fit the study
    size(config, most)    if it enumerates: the number of points, or `most`; `exhausted` is the message for more trials
"""

from __future__ import annotations

import warnings
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

from ...plugins import PluginError
from ...spaces import SpaceError
from ...tasks.runtime.warning_filters import changed_filters
from ..errors import BadConfig
from ..methods import OF_SAMPLERS, SAMPLERS
from ..study.config import Config, choose
from .draw import Draw

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

LEARNED = "learned"  # key in a configuration's options, see the module `learned`
SOURCE = "sampler_source"  # key in a configuration's options: digest of the source, see the module `spelled`


def sampler_name(sampler: object) -> str:
    """Return a sampler's stored name from any spelling, such as CMA-ES.

    Args:
        sampler: name; or "package.module:Class(argument=value)", a class of samplers, a partial of one, or an instance,
            whose seed does not count.

    Raises:
        BadConfig: the name is unknown; the message suggests the nearest one.
    """
    text = sampler if isinstance(sampler, str) else _spelling(sampler)
    if ":" in text:
        return str(_named(text).name)
    names = OF_SAMPLERS.names()
    if text in names:
        return text
    name = text.lower().replace("-", "").replace("_", "").removesuffix("sampler")
    if name == "partialfixed":
        raise BadConfig("sampler partialfixed is not available; fix a hyperparameter with --set NAME=VALUE")
    return choose("sampler", name, names)


def check_sampler(config: Config) -> None:
    """Raise BadConfig if the sampler does not fit the study.

    It is also raised if a required package is not installed.
    """
    _check_drawn(config)
    if (library := config.sampling.library) and find_spec(library) is None:
        raise BadConfig(
            f"sampler {config.sampler} needs the package {library}, which is not installed: pip install "
            f"'rekindle-rl[{config.sampler}]'"
        )
    for name, facts in SAMPLERS.items():
        if name != config.sampler and (wrong := sorted(config.options.keys() & facts.options)):
            flag = f"--{wrong[0].replace('_', '-')}"
            raise BadConfig(f"{flag} needs --sampler {name}, but the sampler is {config.sampler}; add --sampler {name}")
    if (check := getattr(_class_of(config), "check", None)) is not None:
        check(config)


def check_exhausted(config: Config) -> None:
    """Raise BadConfig if a sampler that enumerates has more trials than points."""
    if not config.sampling.enumerates or "spaces" in config.options:  # a changed space has other points as well
        return
    if (points := size_of(config, most=config.trials[-1])) < config.trials[-1]:
        raise BadConfig(_class_of(config).exhausted.format(points=points, trials=config.trials[-1]))


def size_of(config: Config, most: int) -> int:
    """Return how many points a sampler that enumerates has.

    Args:
        config: the study's configuration.
        most: number that may be returned for all larger ones.
    """
    size: int = _class_of(config).size(config, most)
    return size


def _check_drawn(config: Config) -> None:
    """Raise BadConfig if Optuna cannot draw from a prior of the study."""
    from ...spaces.drivers.to_optuna import distributions  # imports optuna

    try:
        distributions(config.searched)
    except SpaceError as error:
        raise BadConfig(
            f"the priors of a study are those that Optuna has, but {error}; write a range, such as loguniform(1e-5, "
            "1e-2), or choices"
        ) from None


def learns(config: Config) -> bool:
    """Return whether the study's suggestions depend on earlier trials."""
    return config.sampling.learns


def make_sampler(config: Config, number: int, attempt: int = 0, bracket: int = 0) -> BaseSampler:
    """Return the study's sampler, seeded for one trial of a bracket."""
    with changed_filters():
        warnings.simplefilter("ignore")  # hides Optuna's warnings about experimental samplers
        sampler: BaseSampler = _class_of(config).of(Draw(config, number, attempt, bracket))
    return sampler


def source_options(sampler: str) -> dict[str, str]:
    """Return the option that names the source of a sampler."""
    return {SOURCE: _named(sampler).source} if ":" in sampler else {}


def check_source(config: Config) -> None:
    """Raise BadConfig if a spelled sampler has another source here."""
    if ":" in config.sampler:
        _class_of(config).check_source(config)


def sampler_remark(config: Config) -> str:
    """Return the self-test's warning about a spelled sampler, or ""."""
    return str(_class_of(config).remark(config)) if ":" in config.sampler else ""


def _spelling(sampler: object) -> str:
    """Return the spelling of a class, a partial or an instance."""
    if hasattr(sampler, "sample_relative") and not isinstance(sampler, type):
        from .instances import arguments_of, derived  # imports optuna

        keywords = arguments_of(cast("BaseSampler", sampler))
        if name := derived(type(sampler), keywords):
            return name
        sampler = partial(type(sampler), **keywords)
    sampler_class = sampler.func if isinstance(sampler, partial) else sampler
    if not isinstance(sampler_class, type) or (isinstance(sampler, partial) and sampler.args):
        raise BadConfig(
            "a sampler must be a name, 'package.module:Class(argument=value)', a class, or functools.partial(Class, "
            f"argument=value), from which each worker makes its own, but got {sampler!r}"
        )
    if sampler_class.__module__ == "__main__" or "<locals>" in sampler_class.__qualname__:
        raise BadConfig(
            f"a sampler's class must be one that workers can import, but {sampler_class!r} is not in a module; move it "
            "to a file of its own and import it"
        )
    keywords = sampler.keywords if isinstance(sampler, partial) else {}
    arguments = ", ".join(f"{name}={value!r}" for name, value in keywords.items())
    module = "optuna.samplers" if sampler_class.__module__.startswith("optuna.samplers.") else sampler_class.__module__
    return f"{module}:{sampler_class.__qualname__}" + (f"({arguments})" if arguments else "")


def _class_of(config: Config) -> Any:
    return _named(config.sampler)


def _named(name: str) -> Any:
    try:
        return OF_SAMPLERS.load(name)
    except PluginError as error:
        raise BadConfig(str(error)) from None
