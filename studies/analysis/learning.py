"""Results of earlier studies as rows of a new one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...spaces import flatten
from ..engine.ranking import distinct, rank
from ..engine.study_views import study_view
from ..errors import BadConfig, UnknownStudy
from ..redact import masked
from ..samplers.registry import LEARNED
from ..storage.sql.database import full_url, sqlite_file
from ..storage.store import Store
from ..study.config import Config
from ..study.objectives import CONSTRAINT, objectives_of

FEWEST = 8  # configurations with a result; fewer say nothing
MOST = 64  # configurations copied from a source: half are its best, half are spread evenly over the rest
MOST_SOURCES = 16


def with_learned(store: Store, name: str, config: Config, sources: Sequence[str]) -> Config:
    """Return the configuration of a study that learns from earlier ones.

    A study that exists keeps the results that it copied when it was created.

    Args:
        store: store of the new study.
        name: name of the new study.
        config: configuration of the new study, without sources.
        sources: names of studies, written URL#NAME for a study in another storage.

    Raises:
        BadConfig: a source does not fit, e.g. has another task or too few results, or the study has other sources.
        UnknownStudy: a source does not exist.
    """
    stored = _stored(store, name)
    if stored is not None:
        if not sources and not stored:
            return config
        before, now = ([masked(located(name)) for name in names] for names in ([s["study"] for s in stored], sources))
        if now and now != before:
            raise BadConfig(
                f"a study keeps the sources it was created with, {', '.join(before) or 'none'}, but --learn-from names "
                f"{', '.join(now)}; give the new study another name"
            )
        return replace(config, options={**config.options, LEARNED: stored})
    if not sources:
        return config
    if not config.sampling.defaults:
        raise BadConfig("a grid has its own trials, but --learn-from would choose others; leave it out")
    if not config.open:
        raise BadConfig(
            f"--learn-from chooses among values that a study searches, but {name} searches none; leave it out"
        )
    if len(sources) > MOST_SOURCES:
        raise BadConfig(f"a study learns from at most {MOST_SOURCES} others, but got {len(sources)}; leave some out")
    identities = [_study_identity(store, source) for source in sources]
    if twice := [
        source for source, identity in zip(sources, identities, strict=True) if identities.count(identity) > 1
    ]:
        raise BadConfig(f"a source is named once, but {' and '.join(map(masked, twice))} are one; leave one out")
    rows = [_copied(store, source, config) for source in sources]
    return replace(config, options={**config.options, LEARNED: rows})


def _stored(store: Store, name: str) -> list[dict[str, Any]] | None:
    try:
        return list(Config.from_json(store.study(name).config, name).options.get(LEARNED, []))
    except UnknownStudy:
        return None


def located(source: str) -> str:
    """Return a source with the whole path of its storage's file."""
    url, name = _split(source)
    return f"{full_url(url)}#{name}" if url else name


def all_located(sources: Any) -> list[str]:
    """Return one source or several with the whole paths of their storages.

    Raises:
        BadConfig: a source is no text.
    """
    names: list[Any] = (
        [sources] if not isinstance(sources, Iterable) or isinstance(sources, str | bytes) else list(sources)
    )
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise BadConfig(
            f"learn_from names a study, such as 'cartpole' or 'sqlite:///old.db#cartpole', or lists several, but has "
            f"{wrong[0]!r}; give its name"
        )
    return [*map(located, names)]


def _split(source: str) -> tuple[str, str]:
    """Return a source's URL, "" for the own storage, and its name."""
    url, _, name = source.rpartition("#") if "://" in source else ("", "", source)
    return url, name


def _study_identity(store: Store, source: str) -> tuple[str, str]:
    """Return what only sources of the same study share."""
    url, name = _split(source)
    url = url or store.database.url.render_as_string(hide_password=False)
    path = sqlite_file(url)
    return url if path is None else str(path.resolve()), name


def _copied(store: Store, source: str, config: Config) -> dict[str, Any]:
    """Return a source's results in the form that the option stores."""
    url, name = _split(source)
    if not url:
        return _rows(store, name, name, config)
    path = sqlite_file(url)
    if path is not None and not path.exists():
        raise BadConfig(f"a source is a study, or URL#STUDY, but there is no database {path}; correct --learn-from")
    with Store(url) as other:
        return _rows(other, name, masked(source), config)


def _rows(store: Store, name: str, label: str, config: Config) -> dict[str, Any]:
    """Return a study's results as a source; `label` names it in messages."""
    try:
        old = Config.from_json(store.study(name).config, name)
    except UnknownStudy as error:
        raise UnknownStudy(f"a source of --learn-from is a study, or URL#STUDY, but {error}") from None
    if old.task != config.task:
        raise BadConfig(
            f"a study learns from studies of its own task, {config.task}, but {label} trains {old.task}; leave it out"
        )
    if objectives_of(old) != objectives_of(config):
        raise BadConfig(
            f"a study learns from studies of its own objective, {', '.join(objectives_of(config))}, but {label} has "
            f"{', '.join(objectives_of(old))}; leave it out"
        )
    if old.options.get(CONSTRAINT) != config.options.get(CONSTRAINT):
        ours, theirs = (", ".join(side.options.get(CONSTRAINT, ())) or "none" for side in (config, old))
        raise BadConfig(
            f"a study learns from studies of its own constraints, {ours}, but {label} has {theirs}; leave it out"
        )
    if old.scheduling.population:
        raise BadConfig(
            f"a source has fixed hyperparameters, but those of {label} change ({old.scheduler}); leave it out"
        )
    ranked = distinct(rank(study_view(store, name).trials, objectives_of(old)))  # without repeats
    if len(ranked) < FEWEST:
        raise BadConfig(
            f"a source needs at least {FEWEST} configurations with a result, but {label} has {len(ranked)}; train it "
            "further, or leave it out"
        )
    origin = source_of(name, [flatten(trial.hyperparameters) for trial in ranked])
    values = [{name: values_of[name] for name in config.open if name in values_of} for values_of in origin["values"]]
    if all(values_of == values[0] for values_of in values):
        raise BadConfig(
            f"a source needs different values of what the study searches, such as {config.open[0]}, but {label} has "
            "none; leave it out"
        )
    return {"study": label, "values": values, "scores": origin["scores"]}


def source_of(name: str, ranked: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a source in the form that the option stores.

    Args:
        name: name of the study.
        ranked: configurations, best first.
    """
    total, best = len(ranked), min(MOST // 2, len(ranked))
    others = range(best, total) if total <= MOST else [best + n * (total - best) // best for n in range(best)]
    places = [*range(best), *others]
    return {
        "study": name,
        "values": [dict(ranked[at]) for at in places],
        "scores": [1 - (at + 0.5) / total for at in places],
    }
