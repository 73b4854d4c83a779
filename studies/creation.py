"""Creation of studies from options, the same for commands and for Python."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from .analysis.learning import with_learned
from .engine.probes import request_probe
from .engine.runner import start_study, with_kept
from .engine.sizing import Sized, described, size_of_budget

if TYPE_CHECKING:
    from ..tasks.task import Task
    from .storage.store import Store
    from .study.config import Config

Remake = Callable[[Mapping[str, Any]], "Config"]  # of values by dotted name that a warm start decides
Start = Callable[["Config", Remake], "Config"]


class Make(Protocol):
    """A function of options that returns the configuration of a study."""

    def __call__(self, options: Mapping[str, Any], sized: Sized | None, decided: Mapping[str, Any], /) -> Config: ...


def create_study(
    store: Store,
    name: str,
    algorithm: type[Task],
    config: Config,
    make: Make,
    options: Mapping[str, Any],
    *,
    priors: Collection[str],
    given_options: Collection[str],
    sources: Sequence[str] = (),
    start: Start | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Config:
    """Create a study, or extend it; return its configuration as stored.

    What follows from the store comes one after the other, as each makes the configuration anew: options that a stored
    study keeps, the size that a time pays, a warm start, earlier studies.

    Args:
        store: store of the study.
        name: its name.
        algorithm: class of its tasks.
        config: configuration that follows from the options alone.
        make: function that makes it from other options, a size and hyperparameters that a warm start decides.
        options: epochs and options; None where they are absent.
        priors: see `start_study`.
        given_options: see `start_study`.
        sources: see `with_learned`.
        start: function that stores the common start of the trials, and returns the configuration with it; None for
            trials that start untrained.
        say: function that takes a line for the user.

    Raises:
        BadConfig: the start or a source does not suit the study.
        StudyMismatch: see `start_study`.
    """
    size = [options.get(key) for key in ("trials", "epochs", "env_steps")]
    if (kept := with_kept(store, name, options)) != options:
        config = make(kept, None, {})
    if (sized := size_of_budget(store, name, config, algorithm, *size)) is not None:
        say(described(sized))
        config = make(kept, sized, {})
    if start is not None:
        config = start(config, partial(make, kept, sized))
    config = with_learned(store, name, config, sources)
    stored = start_study(store, name, config, priors, given_options)
    request_probe(store, name, stored, algorithm)
    return stored
