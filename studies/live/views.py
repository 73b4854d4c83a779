"""Views of a study: running trials, workers, progress and failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from ..engine.snapshots import Snapshot, Speed, StudyProgress
from ..engine.study_views import HELD
from ..engine.trial_views import origins
from ..engine.views import View
from ..schedulers.seeds import replicate_seed
from ..storage.locks.owner import Owner
from ..storage.rows import Claim, Event, Trial
from ..study.environments import labels
from ..study.objectives import objectives_of

if TYPE_CHECKING:
    from ..storage.store import Store

EPISODE_RETURN = "episode_return"  # training metric, reported at each epoch
OF_BEHAVIOUR = f"{EPISODE_RETURN}."  # prefix of a behaviour's
POINTS = 24  # shown of a running trial's curve
FAILURES = 5  # shown
DIED, SILENT, ALIVE = "died", "silent", "trains"


class RunningView(View):
    """A trial in training."""

    trial: Annotated[int, "number of its configuration"]
    candidate: Annotated[str | None, "trial of the confirmed study, if this is a confirmation"]
    seed: Annotated[int | None, "seed; null if trials have one"]
    env: Annotated[str | None, "environment; null if there is one"]
    uid: Annotated[str, "uid of its task"]
    epochs: Annotated[int, "epochs trained"]
    target: Annotated[int, "epochs at the end of its rung"]
    curve: Annotated[Sequence[float], "last values of its learning curve"]
    curves: Annotated[Mapping[str, Sequence[float]], "last values of each behaviour's learning curve, by its name"]
    worker: Annotated[str, "name of the process that trains it"]
    seconds: Annotated[float, "time since that took it"]

    @property
    def name(self) -> str:
        """Number or candidate, environment and seed."""
        return f"{self.candidate or self.trial}{'' if self.env is None else f' {self.env}'}" + (
            "" if self.seed is None else f" seed {self.seed}"
        )


class HolderView(View):
    """A process that holds trials."""

    name: Annotated[str, "name of the process"]
    state: Annotated[str, "trains, silent or died"]
    trials: Annotated[Sequence[int], "numbers of their configurations"]
    seconds: Annotated[float, "time since it took the first"]


class FailureView(View):
    """A failure of a trial."""

    time: Annotated[float, "time"]
    trial: Annotated[int | None, "number of its configuration"]
    kind: Annotated[str | None, "kind of failure"]
    retry: Annotated[bool, "whether the trial is tried again"]
    text: Annotated[str, "message"]

    @property
    def outcome(self) -> str:
        """Kind of failure, and whether the trial is tried again."""
        return f"{self.kind}, {'retried' if self.retry else 'for good'}"


class ReachedView(View):
    """A rung of a running study."""

    epochs: Annotated[int, "total epochs at the rung"]
    done: Annotated[int, "number of trials that finished it"]
    expected: Annotated[int, "number of trials that will"]


class BestView(View):
    """Best result of a running study."""

    value: Annotated[float, "first objective"]
    trial: Annotated[int, "number of its configuration"]
    epochs: Annotated[int, "epochs trained"]
    name: Annotated[str, "what tables call the configuration: its trial, in a confirmation that of the confirmed study"]


class WatchView(View):
    """A study at one moment."""

    study: Annotated[str, "name"]
    title: Annotated[str, "task and environment"]
    seed: Annotated[int, "seed of all randomness"]
    state: Annotated[str, "as in `status`"]
    counts: Annotated[Mapping[str, int], "number of trials by state, those not suggested yet as open"]
    rungs: Annotated[Sequence[ReachedView], "rungs"]
    epochs: Annotated[int, "epochs trained"]
    epochs_total: Annotated[int, "epochs to be trained in all"]
    env_steps: Annotated[int, "environment steps trained"]
    eval_steps: Annotated[int, "environment steps of evaluations"]
    env_steps_per_second: Annotated[float, "environment steps a second"]
    epochs_per_second: Annotated[float, "epochs a second"]
    seconds_left: Annotated[float | None, "estimated time to the end"]
    best: Annotated[BestView | None, "best result"]
    running: Annotated[Sequence[RunningView], "trials in training"]
    workers: Annotated[Sequence[HolderView], "processes that hold trials"]
    failures: Annotated[Sequence[FailureView], "latest failures"]


class LiveStudy:
    """Source of views that reads only the rows that have changed.

    Attributes:
        snapshot: progress at the last look.

    Args:
        store: store of the study; it may be read-only.
        name: name of the study.

    Raises:
        UnknownStudy: the study does not exist.
    """

    snapshot: Snapshot

    def __init__(self, store: Store, name: str):
        self.store, self.name = store, name
        self.progress, self.speed = StudyProgress(store, name), Speed()
        self._trials: dict[str, Trial] = {}
        self._curves: dict[str, dict[str, dict[int, float]]] = {}  # values by uid, behaviour ("" for all) and epoch
        self._read: dict[str, int] = {}  # last epoch read, by uid
        self._event, self._failures = 0, list[FailureView]()

    def look(self) -> WatchView:
        """Return a view of the present state."""
        revision = self.progress.rows.revision
        now = self.snapshot = self.progress.look()
        if not self._trials or revision != self.progress.rows.revision:
            self._trials = {trial.uid: trial for trial in self.progress.rows.trials.values()}
        self.speed.add(now)
        ready = {self.progress.rows.trials[number].uid for number, _ in self.progress.rows.ready}
        claims = [claim for claim in self.store.claims() if claim.uid in ready]  # others train it for another study
        self._read_curves(claims)
        workers = self._workers(claims)
        if now.complete:
            state = "complete"
        elif now.hold:
            state = HELD[now.hold.kind]
        else:
            state = "running" if any(worker.state == ALIVE for worker in workers) else "stalled"
        return WatchView(
            study=self.name,
            title=now.config.title,
            seed=now.config.seed,
            state=state,
            counts=now.counts,
            rungs=[ReachedView(epochs=epochs, done=done, expected=total) for epochs, done, total in now.rungs],
            epochs=now.epochs,
            epochs_total=now.epochs_total,
            env_steps=now.env_steps,
            eval_steps=now.eval_steps,
            env_steps_per_second=self.speed.steps(),
            epochs_per_second=self.speed.epochs(),
            seconds_left=None if now.complete else self.speed.left(now),
            best=BestView(**now.best._asdict()) if now.best else None,
            running=[self._running(claim) for claim in claims],
            workers=workers,
            failures=self._failed(),
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
                reported = sorted({name for _, row in rows for name in row})
                first = [name for name in (EPISODE_RETURN, objective) if name in reported][:1]
                for name in (*first, *(name for name in reported if name.startswith(OF_BEHAVIOUR))):
                    curve = self._curves[uid].setdefault("" if name in first else name.removeprefix(OF_BEHAVIOUR), {})
                    curve.update((epoch, row[name]) for epoch, row in rows if name in row)

    def _running(self, claim: Claim) -> RunningView:
        trial, rows = self._trials[claim.uid], self.progress.rows
        target = max((rows.config.rungs[r] for n, r in rows.ready if n == trial.number), default=claim.epochs)
        names = labels(rows.config.environments)
        curves = {name: [x for _, x in sorted(of.items())[-POINTS:]] for name, of in self._curves[claim.uid].items()}
        return RunningView(
            trial=trial.configuration,
            candidate=origins(rows.config)[trial.configuration].name if rows.config.scheduling.confirms else None,
            seed=replicate_seed(rows.config, trial.replicate) if trial.seeds > len(names) else None,
            env=names[trial.replicate % len(names)] if len(names) > 1 else None,
            uid=claim.uid,
            epochs=max(claim.epochs, self._read.get(claim.uid, 0)),
            target=target,
            curve=curves.pop("", []),
            curves=curves,
            worker=_name(claim.owner),
            seconds=claim.age,
        )

    def _workers(self, claims: list[Claim]) -> list[HolderView]:
        of_owner: dict[str, list[Claim]] = {}
        for claim in claims:
            of_owner.setdefault(claim.owner, []).append(claim)
        return [
            HolderView(
                name=_name(owner),
                state=DIED if Owner.parse(owner).is_dead() else SILENT if claims_of_owner[0].left < 0 else ALIVE,
                trials=sorted({self._trials[claim.uid].configuration for claim in claims_of_owner}),
                seconds=claims_of_owner[0].age,
            )
            for owner, claims_of_owner in of_owner.items()
        ]

    def _failed(self) -> list[FailureView]:
        self._event, events = self.store.failures(self.name, self._event, FAILURES)
        self._failures = [*self._failures, *map(self._failure, events)][-FAILURES:]
        return self._failures

    def _failure(self, event: Event) -> FailureView:
        lines = str(event.data.get("report") or "").strip().splitlines()
        trial = self._trials.get(event.uid)
        return FailureView(
            time=event.created,
            trial=trial.configuration if trial else None,
            kind=event.data.get("kind"),
            retry=bool(event.data.get("retry")),
            text=lines[-1] if lines else "",
        )


def _name(owner: str) -> str:
    parsed = Owner.parse(owner)
    return f"{parsed.pid} on {parsed.host}"
