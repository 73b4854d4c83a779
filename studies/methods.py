"""Facts of schedulers, samplers and sinks, by name.

Each of them is its file and a row here; that of another package has these facts as its attribute `facts`.
All code that treats some of them differently, and all help, reads the facts. Importing this imports nothing slow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ..plugins import PluginError, Registry


@dataclass(frozen=True)
class Scheduling:
    """Facts of a scheduler.

    Attributes:
        home: ".module:Class"; the class takes a `Config` and is a `Scheduler`, see `study.plan`.
        text: clause for the help of --scheduler, after its name.
        base: default factor between rungs: one of `base` trials is promoted, to `base` times the epochs.
        generation: trials suggested together, by default; None for the study's default.
        good: one in how many trials TPE takes as good; None for Optuna's default.
        least_rungs: rungs that it needs.
        promotes: whether trials that fall behind end before the last rung.
        adapts: whether the study's own rungs decide how many trials are promoted.
        races: whether seeds may race; the class then derives from `Halving`.
        across: whether it may search for several environments; likewise.
        lengthens: whether a study can get more rungs.
        population: whether trials continue from each other's states, with other hyperparameters.
        confirms: whether it estimates the candidates of a confirmation, and is no search.
    """

    home: str = ""
    text: str = ""
    base: int = 3
    generation: int | None = None
    good: int | None = None
    least_rungs: int = 1
    promotes: bool = True
    adapts: bool = False
    races: bool = False
    across: bool = False
    lengthens: bool = False
    population: bool = False
    confirms: bool = False


SCHEDULERS = {
    "adaptive": Scheduling(
        ".studies.schedulers.adaptive:Adaptive",
        " (default), which costs as much as training a third of --trials to the end, and prunes more cautiously where "
        "early rungs do not predict later ones",
        base=2,  # it decides more often
        generation=12,
        good=24,  # about a sixth of the trials reach the end, and not all are good
        adapts=True,
        across=True,
        lengthens=True,
    ),
    "halving": Scheduling(
        ".studies.schedulers.halving:Halving", " (default with --racing)", races=True, across=True, lengthens=True
    ),
    "hyperband": Scheduling(
        ".studies.schedulers.hyperband:Hyperband",
        ", whose brackets start on different rungs",
        least_rungs=2,
        races=True,
        across=True,
    ),
    "asha": Scheduling(
        ".studies.schedulers.asha:ASHA",
        ", which promotes a trial as soon as it is among the best that have finished its rung: no worker waits, but "
        "promotions depend on timing (each trial's own result does not)",
        lengthens=True,
    ),
    "none": Scheduling(
        ".studies.schedulers.halving:Halving",  # with a single rung
        ", which trains every trial to the end",
        promotes=False,
        races=True,
        across=True,
        lengthens=True,
    ),
    "pbt": Scheduling(
        ".studies.schedulers.pbt:PBT",
        ", which trains a population to --epochs, whose members copy and change each other's hyperparameters",
        promotes=False,
        population=True,
    ),
    "confirm": Scheduling(".studies.schedulers.confirming:Confirming", confirms=True),
}
CONFIRM = next(name for name, facts in SCHEDULERS.items() if facts.confirms)
POPULATION = next(name for name, facts in SCHEDULERS.items() if facts.population)


def _problem(name: str, offered: Any, origin: str) -> str:
    lacks = [method for method in ("observe", "plan", "priority", "entrants") if not hasattr(offered, method)]
    if not isinstance(offered, type) or lacks:
        return f"a scheduler must be a class with the methods of rekindle's Scheduler, but {origin} is {offered!r}" + (
            f" without {', '.join(lacks)}" if lacks else ""
        )
    if not isinstance(facts := getattr(offered, "facts", Scheduling()), Scheduling):
        return f"the facts of a scheduler must be a Scheduling, but those of {origin} are {facts!r}"
    return ""


OF_SCHEDULERS = Registry(
    "scheduler", "rekindle.schedulers", {name: facts.home for name, facts in SCHEDULERS.items()}, _problem
)


@dataclass(frozen=True)
class Sampling:
    """Facts of a sampler.

    Attributes:
        home: ".module:Class", see `samplers.registry`.
        learns: whether suggestions depend on earlier trials.
        pruned: whether it learns from trials that have not reached the end, and takes `Scheduling.good`.
        structures: whether a trial may be given the structure of its cohort.
        objectives: whether several objectives are supported.
        defaults: whether trials may take values that are not the sampler's own, such as the defaults.
        enumerates: whether it tries each of a number of points once.
        points: whether it can be told only of points of the searched space.
        options: stored options that belong to it alone.
        library: module that it needs besides Optuna; the extra that installs it has the sampler's name.
    """

    home: str = ""
    learns: bool = True
    pruned: bool = False
    structures: bool = True
    objectives: bool = True
    defaults: bool = True
    enumerates: bool = False
    points: bool = False
    options: frozenset[str] = frozenset()
    library: str = ""


SAMPLERS = {
    "tpe": Sampling(".studies.samplers.tpe:TPE", pruned=True),
    "random": Sampling(".studies.samplers.independent:Random", learns=False),
    "gp": Sampling(".studies.samplers.independent:GaussianProcessSampler", library="scipy"),
    "cmaes": Sampling(".studies.samplers.cmaes:CMAES", objectives=False, library="cmaes"),
    "qmc": Sampling(".studies.samplers.qmc:QMC", learns=False, library="scipy"),
    "nsgaii": Sampling(".studies.samplers.nsga:NSGAII"),
    "nsgaiii": Sampling(".studies.samplers.nsga:NSGAIII"),
    "bruteforce": Sampling(".studies.samplers.bruteforce:BruteForce", structures=False, enumerates=True, points=True),
    "grid": Sampling(
        ".studies.samplers.grid:Grid",
        learns=False,
        structures=False,
        defaults=False,
        enumerates=True,
        options=frozenset({"grid_points"}),
    ),
}


def _problem_of_sampler(name: str, offered: Any, origin: str) -> str:
    if not callable(getattr(offered, "of", None)):
        return f"a sampler must be a class with a method of(draw), but {origin} is {offered!r}"
    if not isinstance(facts := getattr(offered, "facts", Sampling()), Sampling):
        return f"the facts of a sampler must be a Sampling, but those of {origin} are {facts!r}"
    return ""


OF_SAMPLERS = Registry(
    "sampler",
    "rekindle.samplers",
    {name: facts.home for name, facts in SAMPLERS.items()},
    _problem_of_sampler,
    ".studies.samplers.spelled:spelled",
)


def sampling(name: str) -> Sampling:
    """Return a sampler's facts, or the defaults if it is missing."""
    if name in SAMPLERS:
        return SAMPLERS[name]
    try:
        facts: Sampling = getattr(OF_SAMPLERS.load(name), "facts", Sampling())
    except PluginError:  # whoever suggests says so
        return Sampling()
    return facts


@dataclass(frozen=True)
class Exporting:
    """Facts of a sink, a tool to which curves are exported.

    Attributes:
        home: ".module:Class"; the class takes a place and a key of `curves.names.TABLES`, and is a `curves.sinks.Sink`.
        text: its form in the help of --log.
        place: form of the output: a "folder" of many files; a "table", one file that is always written whole; or a
            "database", a file or a URL.
        names: names of metrics that its users expect, a key of `curves.names.TABLES`.
        library: module that it needs; the extra that installs it has the sink's name.
    """

    home: str = ""
    text: str = ""
    place: Literal["folder", "table", "database"] = "folder"
    names: str = "rekindle"
    library: str = ""


SINKS = {
    "tensorboard": Exporting(
        ".studies.curves.tensorboard:TensorBoard", "tensorboard:DIR", "folder", "sb3", "tensorboard"
    ),
    "wandb": Exporting(".studies.curves.wandb:WandB", "wandb:DIR (offline runs)", "folder", "sb3", "wandb"),
    "mlflow": Exporting(".studies.curves.mlflow:MLflow", "mlflow:FILE.db or mlflow:URL", "database", "sb3", "mlflow"),
    "csv": Exporting(".studies.curves.table_files:CSV", "csv:FILE", "table"),
    "parquet": Exporting(".studies.curves.table_files:Parquet", "parquet:FILE", "table", library="pyarrow"),
}


def _problem_of_sink(name: str, offered: Any, origin: str) -> str:
    if lacks := [method for method in ("last", "write", "end", "flush", "close") if not hasattr(offered, method)]:
        return f"a sink must be a class with the methods of rekindle's Sink, but {origin} lacks {', '.join(lacks)}"
    if not isinstance(facts := getattr(offered, "facts", Exporting()), Exporting):
        return f"the facts of a sink must be an Exporting, but those of {origin} are {facts!r}"
    return ""


OF_SINKS = Registry("sink", "rekindle.sinks", {name: facts.home for name, facts in SINKS.items()}, _problem_of_sink)


def scheduling(name: str) -> Scheduling:
    """Return a scheduler's facts, or the defaults if it is missing."""
    if name in SCHEDULERS:
        return SCHEDULERS[name]
    try:
        facts: Scheduling = getattr(OF_SCHEDULERS.load(name), "facts", Scheduling())
    except PluginError:  # whoever plans the study says so
        return Scheduling()
    return facts


def searches() -> list[str]:
    """Return the names of the schedulers that a user may choose."""
    return [name for name in OF_SCHEDULERS.names() if name != CONFIRM]


def those(property_: str) -> str:
    """Return the names of the schedulers with a property, as a text."""
    return ", ".join(name for name in searches() if getattr(scheduling(name), property_))


def samplers_described() -> str:
    """Return the help of --sampler."""
    *names, last = SAMPLERS
    return (
        f"sampler of Optuna: {', '.join(names)} or {last} (default: tpe; random for a population); or one that derives "
        "from optuna.samplers.BaseSampler, as package.module:Class(argument=value)"
    )


def schedulers_described() -> str:
    """Return the help of --scheduler."""
    *clauses, last = [f"{name}{facts.text}" for name, facts in SCHEDULERS.items() if not facts.confirms]
    return f"{'; '.join(clauses)}; or {last}"


def sinks_described() -> str:
    """Return the places to which curves go, for help."""
    *texts, last = [facts.text for facts in SINKS.values()]
    return f"{', '.join(texts)} or {last}"
