"""Extensions of studies to more epochs and to other ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...spaces import SpaceError, unflatten
from ..engine.checked_config import load_task
from ..errors import BadConfig, CommandRefused
from ..methods import those
from ..samplers.registry import check_sampler
from ..schedulers.seeds import is_racing, seeds_of
from ..storage.studies import change_config, reopen_trials, trials
from ..study.config import Config
from ..study.searched import open_space

if TYPE_CHECKING:
    from sqlalchemy import Connection


def lengthen(connection: Connection, study: str, epochs: int) -> None:
    """Add rungs up to more epochs; complete trials compete for them.

    The existing rungs do not change.

    Raises:
        CommandRefused: the study already has that many epochs, or cannot have more.
    """

    def change(stored: Mapping[str, Any]) -> Mapping[str, Any]:
        config = Config.from_json(stored, study)
        return {**stored, "options": lengthened(config, study, epochs).options}

    change_config(connection, study, change)
    reopen_trials(connection, study)


def lengthened(config: Config, study: str, epochs: int) -> Config:
    """Return a study's configuration with further rungs, up to more epochs.

    Raises:
        CommandRefused: the study already has that many epochs, or cannot have more.
    """
    if not config.scheduling.lengthens or is_racing(config):
        raise CommandRefused(
            f"only schedulers that compare rung by rung ({those('lengthens')}, without --racing) can add rungs, "
            f"but {study!r} has {'a race' if is_racing(config) else config.scheduler}; start another study"
        )
    last = config.rungs[-1]
    most = config.most_epochs(load_task(config))
    if epochs <= last or (most is not None and epochs > most):
        ends = f", and {most} at most" if most is not None else ""
        raise CommandRefused(f"extend takes more epochs than {study!r} has, {last}{ends}, but got {epochs}")
    return replace(config, options={**config.options, "longer": [*config.options.get("longer", ()), epochs]})


def search_otherwise(connection: Connection, study: str, priors: Mapping[str, str]) -> None:
    """Change ranges of searched hyperparameters, from the next trials on.

    Raises:
        BadConfig: the study does not search a hyperparameter, or its sampler cannot combine the old and new ranges.
    """

    def change(stored: Mapping[str, Any]) -> Mapping[str, Any]:
        config = Config.from_json(stored, study)
        following = len(trials(connection, study)) // seeds_of(config)
        return {**stored, "options": with_changed_priors(config, study, priors, following).options}

    change_config(connection, study, change)


def with_changed_priors(config: Config, study: str, priors: Mapping[str, str], following: int) -> Config:
    """Return a study's configuration with other ranges for further trials.

    Raises:
        BadConfig: the study does not search a hyperparameter, or its sampler cannot combine the old and new ranges.
    """
    texts = {name: _prior(config, study, name, text) for name, text in priors.items()}
    spaces = [*config.options.get("spaces", ()), [following, texts]]
    changed = replace(config, options={**config.options, "spaces": spaces})
    check_sampler(changed)
    _check_kinds(config, changed)
    return changed


def _prior(config: Config, study: str, name: str, text: str) -> str:
    """Return the text of a new prior, as a study stores it."""
    if name not in config.open or not config.sampling.defaults:
        rule = "a grid keeps its points" if not config.sampling.defaults else "a study keeps searching the same names"
        raise BadConfig(f"{rule}, but --prior names {name!r}; {study!r} searches {', '.join(config.open)}")
    from ...tasks.envs import EnvSpec  # imports gymnasium

    space = open_space(load_task(config), EnvSpec.of(config.env), unflatten(config.fixed), {name: text})
    return str(space.priors()[name])


def _check_kinds(before: Config, after: Config) -> None:
    """Raise BadConfig if Optuna cannot combine the old and new ranges."""
    from optuna.distributions import check_distribution_compatibility

    from ...spaces.drivers.to_optuna import distributions

    try:
        old, new = distributions(before.searched), distributions(after.searched)
        for name in old.keys() & new.keys():
            check_distribution_compatibility(old[name], new[name])
    except (ValueError, SpaceError) as error:
        raise BadConfig(
            f"a changed --prior keeps its kind, such as loguniform, but {error}; start another study"
        ) from None
