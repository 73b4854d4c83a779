"""Views of a study: running trials, workers, progress and failures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..engine.json_views import HELD, Json
from ..engine.progress import Snapshot, Speed, StudyProgress
from ..schedulers.seeds import replicate_seed
from ..storage.locks.owner import Owner
from ..storage.rows import Claim, Event, Trial
from ..study.environments import labels
from ..study.objectives import objectives_of

if TYPE_CHECKING:
    from ..storage.store import Store

EPISODE_RETURN = "episode_return"  # training metric, reported at each epoch
POINTS = 24  # shown of a running trial's curve
FAILURES = 5  # shown
DIED, SILENT, ALIVE = "died", "silent", "trains"


@dataclass(frozen=True)
class View:
    """A study at one moment.

    Attributes:
        snapshot: progress of the study.
        speed: environment steps and epochs per second.
        left: estimated seconds to the end; None while unknown.
        running: {trial, seed, env, uid, epochs, target, curve [values], worker, seconds} of each trial in training.
        workers: {name, state, trials [numbers], seconds (since it took the first)} of each process that holds trials.
        failures: {time, trial, kind, retry, text} of the latest failures.
    """

    snapshot: Snapshot
    speed: tuple[float, float]
    left: float | None
    running: list[Json]
    workers: list[Json]
    failures: list[Json]

    @property
    def state(self) -> str:
        """State as in `rekindle status`: complete, running, stalled, ..."""
        if self.snapshot.complete or self.snapshot.held:
            return HELD[self.snapshot.held.kind] if self.snapshot.held and not self.snapshot.complete else "complete"
        return "running" if any(worker["state"] == ALIVE for worker in self.workers) else "stalled"

    def to_json(self) -> Json:
        """Return the view in the form that `cli` documents."""
        now = self.snapshot
        best = dict(zip(("value", "trial", "epochs"), now.best, strict=True)) if now.best else None
        rungs = [{"epochs": epochs, "done": done, "expected": total} for epochs, done, total in now.rungs]
        return {
            "title": now.config.title,
            "seed": now.config.seed,
            "state": self.state,
            "counts": now.counts,
            "rungs": rungs,
            "epochs": now.epochs,
            "epochs_total": now.epochs_total,
            "env_steps": now.env_steps,
            "env_steps_per_second": self.speed[0],
            "epochs_per_second": self.speed[1],
            "seconds_left": self.left,
            "best": best,
            "running": self.running,
            "workers": self.workers,
            "failures": self.failures,
        }


class LiveStudy:
    """Source of views that reads only the rows that have changed.

    Args:
        store: store of the study; it may be read-only.
        name: name of the study.

    Raises:
        UnknownStudy: the study does not exist.
    """

    def __init__(self, store: Store, name: str):
        self.store, self.name = store, name
        self.progress, self.speed = StudyProgress(store, name), Speed()
        self._trials: dict[str, Trial] = {}
        self._curves: dict[str, dict[int, float]] = {}  # values by uid and epoch
        self._read: dict[str, int] = {}  # last epoch read, by uid
        self._event, self._failures = 0, list[Json]()

    def look(self) -> View:
        """Return a view of the present state."""
        known = self.progress.rows.revision
        snapshot = self.progress.look()
        if not self._trials or known != self.progress.rows.revision:
            self._trials = {trial.uid: trial for trial in self.progress.rows.trials.values()}
        self.speed.add(snapshot)
        claims = [claim for claim in self.store.claims() if claim.uid in self._trials]
        self._read_curves(claims)
        return View(
            snapshot,
            (self.speed.steps(), self.speed.epochs()),
            None if snapshot.complete else self.speed.left(snapshot),
            [self._running(claim) for claim in claims],
            self._workers(claims),
            self._failed(),
        )

    def _read_curves(self, claims: list[Claim]) -> None:
        """Read the new points of running trials' curves."""
        at: dict[int, dict[str, int]] = {}
        for claim in claims:
            epoch = self._read.get(claim.uid, max(-1, claim.epochs - POINTS))
            at.setdefault(epoch, {})[claim.uid] = epoch
        objective = next(iter(objectives_of(self.progress.rows.config)))
        self._curves = {claim.uid: self._curves.get(claim.uid, {}) for claim in claims}
        self._read = {uid: epoch for uid, epoch in self._read.items() if uid in self._curves}
        for together in at.values():
            for uid, rows in self.store.metrics_after(together).items():
                self._read[uid] = rows[-1][0]
                names = [name for name in (EPISODE_RETURN, objective) if any(name in row for _, row in rows)]
                self._curves[uid] |= {epoch: row[names[0]] for epoch, row in rows if names and names[0] in row}

    def _running(self, claim: Claim) -> Json:
        trial, rows = self._trials[claim.uid], self.progress.rows
        target = max((rows.config.rungs[r] for n, r in rows.ready if n == trial.number), default=claim.epochs)
        points, names = sorted(self._curves[claim.uid].items())[-POINTS:], labels(rows.config.environments)
        return {
            "trial": trial.configuration,
            "seed": replicate_seed(rows.config, trial.replicate) if trial.seeds > len(names) else None,
            "env": names[trial.replicate % len(names)] if len(names) > 1 else None,
            "uid": claim.uid,
            "epochs": max(claim.epochs, self._read.get(claim.uid, 0)),
            "target": target,
            "curve": [value for _, value in points],
            "worker": _name(claim.owner),
            "seconds": claim.age,
        }

    def _workers(self, claims: list[Claim]) -> list[Json]:
        of_owner: dict[str, list[Claim]] = {}
        for claim in claims:
            of_owner.setdefault(claim.owner, []).append(claim)
        return [
            {
                "name": _name(owner),
                "state": DIED if Owner.parse(owner).is_dead() else SILENT if own[0].left < 0 else ALIVE,
                "trials": sorted({self._trials[claim.uid].configuration for claim in own}),
                "seconds": own[0].age,
            }
            for owner, own in of_owner.items()
        ]

    def _failed(self) -> list[Json]:
        self._event, events = self.store.failures(self.name, self._event, FAILURES)
        self._failures = [*self._failures, *(self._failure(event) for event in events)][-FAILURES:]
        return self._failures

    def _failure(self, event: Event) -> Json:
        lines = str(event.data.get("report") or "").strip().splitlines()
        trial = self._trials.get(event.uid)
        return {
            "time": event.created,
            "trial": trial.configuration if trial else None,
            "kind": event.data.get("kind"),
            "retry": bool(event.data.get("retry")),
            "text": lines[-1] if lines else "",
        }


def trial_name(row: Json) -> str:
    """Return the name of a running trial: its number, environment and seed."""
    env = "" if row["env"] is None else f" {row['env']}"
    return f"{row['trial']}{env}" + ("" if row["seed"] is None else f" seed {row['seed']}")


def _name(owner: str) -> str:
    parsed = Owner.parse(owner)
    return f"{parsed.pid} on {parsed.host}"
