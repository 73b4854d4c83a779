"""Text of ``rekindle status --prometheus``, in Prometheus' exposition format, version 0.0.4.

The text is for the textfile collector of the node exporter, or any other scraper. Rekindle itself opens no port.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...engine.views import StatusView

Sample = tuple[Mapping[str, object], float]

METRICS = {  # help by name
    "rekindle_study_state": "1 for the state that a study is in",
    "rekindle_study_trials": "trials of a study by state",
    "rekindle_study_best": "best result among a study's longest-trained trials",
    "rekindle_study_workers": "processes that train a study",
    "rekindle_worker_trials": "trials that a process trains",
    "rekindle_worker_seconds": "seconds since a process took the first of them",
    "rekindle_worker_lease_seconds": "seconds until others may take its trials, unless its heartbeat renews its lease",
}


def prometheus(status: StatusView) -> str:
    """Return the result of `status` as metrics, one per line."""
    lines = []
    for name, meaning in METRICS.items():
        samples = [f"{name}{{{_labels(labels)}}} {value:.12g}" for labels, value in _samples(name, status)]
        if samples:
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} gauge", *samples]
    return "".join(f"{line}\n" for line in lines)


def _samples(name: str, status: StatusView) -> Iterator[Sample]:
    for study in status.studies:
        of = {"study": study.study}
        match name.removeprefix("rekindle_study_"):
            case "state":
                yield {**of, "state": study.state}, 1
            case "trials":
                yield from (({**of, "state": state}, count) for state, count in study.counts.items())
            case "best" if (best := study.best_result()) is not None:
                yield of, best
            case "workers" if study.workers is not None:
                yield of, study.workers
    for worker in status.workers:
        process: dict[str, object] = {"host": worker.host, "pid": worker.pid}
        match name.removeprefix("rekindle_worker_"):
            case "trials":
                yield process, len(worker.trials)
            case "seconds":
                yield process, worker.seconds
            case "lease_seconds":
                yield process, worker.lease_left


def _labels(labels: Mapping[str, object]) -> str:
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}
    return ",".join(
        f'{name}="{"".join(escapes.get(character, character) for character in str(value))}"'
        for name, value in labels.items()
    )
