"""A worker: claims segments of a study that can train together, trains them as a cohort, writes down what came of it.

Workers know nothing of each other. They come and go, are killed and paused; the leases of the store see to it that each
trial is trained by one of them at a time, and carried on by another one from its last checkpoint.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NamedTuple

from ...tasks.checkpoint.storage import Write
from ...tasks.errors import DamagedState, Stopped
from ...tasks.runtime.guard import is_control_flow
from ...tasks.runtime.interrupts import Interrupts
from ..engine.engine import Engine, Ready
from ..errors import LeaseLost, StoreError, TaskBusy
from ..failures import FAILED, Decision, Killed, classify, decide, note, report
from ..storage.locks.leases import StoreLease
from ..storage.locks.owner import Owner
from ..storage.store import Store
from ..storage.troubles import History
from .training import TaskStorage as TaskStorage
from .training import Training

LARGEST_COHORT = 32
_RANDOM = random.SystemRandom()  # an environment may use the global stream
POLL = (0.05, 0.5)  # seconds between two looks for work: at first, and at most


class Claimed(NamedTuple):
    """A segment to be trained, the lease of its task, and the recent failures of the task, if it had any."""

    item: Ready
    lease: StoreLease
    history: History | None


class Worker:
    """Trains a study until it is complete, or until it is asked to stop.

    Args:
        store, study: where, and which.
        workers: how many workers share the study, as far as is known; cohorts are made small enough for all of them.
        use_previous: whether a damaged checkpoint may be replaced by the sound one before it.
        env_processes: how many processes step the environments, 0 for this one alone; it changes no result.
        say: is told in a line what went wrong, and what is done about it.
    """

    def __init__(
        self,
        store: Store,
        study: str,
        *,
        workers: int = 1,
        use_previous: bool = False,
        env_processes: int = 0,
        say: Callable[[str], None] = lambda text: None,
    ):
        self.store, self.study, self.workers, self.env_processes = store, study, workers, env_processes
        self.engine = Engine(store, study)
        self.use_previous, self.say = use_previous, say
        self.blocked: dict[str, StoreError] = {}  # by uid: what nobody but the user can decide

    def run(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Works until the study is complete, and says whether it is; raises the StoreError that leaves no way on."""
        pause = POLL[0]
        while not stop():
            ready = [item for item in self.engine.advance() if item.trial.uid not in self.blocked]
            if self.engine.complete:
                return True
            if not ready and self.blocked:
                raise next(iter(self.blocked.values()))
            if self._work(ready):
                pause = POLL[0]
                continue
            time.sleep(pause)  # others train what there is, and the schedule waits for them
            pause = min(2 * pause, POLL[1])
        return False

    def _work(self, ready: Sequence[Ready]) -> bool:
        """Trains one cohort of what is ready; False if nothing was to be had."""
        if not ready:
            return False
        with self._claim(ready) as claimed:
            if claimed and (doom := self._doom(claimed)) is not None:
                self._failed(claimed[0].item, claimed[0].lease, *doom)
            elif claimed:
                self._train(claimed)
            return bool(claimed)

    def _doom(self, claimed: Sequence[Claimed]) -> tuple[Killed, Decision] | None:
        """Why a trial is not tried once more: all who did were killed."""
        history = claimed[0].history
        doom = history.after_kills() if history is not None else None
        return doom if doom is not None and not doom[1].retry else None

    @contextmanager
    def _claim(self, ready: Sequence[Ready]) -> Iterator[list[Claimed]]:
        """This worker's share of the most urgent segments that can train together and that nobody else trains."""
        me = str(Owner.current())
        held = {uid: owner for uid, owner in self.store.holders().items() if owner != me}
        present = len(set(held.values())) + 1
        workers = max(self.workers, present)
        share = min(LARGEST_COHORT, max(1, -(-len(ready) // workers)))
        groups: dict[tuple[str, int, int], dict[str, Ready]] = {}
        for item in ready:  # trials with the same hyperparameters are one task: the second waits for the first
            if item.trial.uid in held:
                continue
            groups.setdefault(self.engine.structure(item), {}).setdefault(item.trial.uid, item)
        for group in groups.values():
            leases = self.store.claim(self.study, _apart(list(group), share, present), limit=share)
            claimed = [Claimed(group[lease.uid], lease, history) for lease, history in leases]
            if not claimed:
                continue
            try:
                still_open = self.engine.ready()
                own = [each for each in claimed if (each.item.segment.number, each.item.segment.rung) in still_open]
                self.store.release([each.lease for each in claimed if each not in own])
                if own:
                    yield own
                    return
            finally:
                self.store.release([each.lease for each in claimed])
        yield []

    def _train(self, claimed: Sequence[Claimed]) -> None:
        items = [each.item for each in claimed]
        leases = {each.lease.uid: each.lease for each in claimed}
        training = Training(self.engine, items, leases, self.use_previous, self.env_processes)
        try:
            training.run()
        except (LeaseLost, TaskBusy):
            pass  # another worker has what we had; whatever we did was not written
        except StoreError as error:
            if not isinstance(error, DamagedState):
                raise
            if len(items) == 1:
                self.blocked[items[0].trial.uid] = error
            else:
                self._train_alone(claimed)
        except Stopped:
            raise
        except (Exception, SystemExit) as raised:  # an environment may raise anything; it belongs to the trial
            cause = _Exited(raised) if isinstance(raised, SystemExit) else raised
            if training.storage.busy and classify(cause) != "memory":
                raise
            if len(items) == 1:
                self._failed(*claimed[0][:2], cause)
            else:
                self._train_alone(claimed)
        for item, lease, _ in claimed:
            uid = item.trial.uid
            if uid in training.failed:
                self._failed(item, lease, training.failed[uid])
            elif uid in training.late:
                self.say(
                    f"trial {item.trial.number} ({uid[:8]}) was taken over by another process; "
                    "what this one wrote too late was refused"
                )

    def _train_alone(self, claimed: Sequence[Claimed]) -> None:
        """Trains the segments one by one, to find out whose error it was; results do not depend on the company."""
        for each in claimed:
            self._train([each])

    def _failed(self, item: Ready, claimed: StoreLease, error: BaseException, decision: Decision | None = None) -> None:
        """Writes down that a trial failed: it is tried again later, or that is its end, as the policies say."""
        uid, number = item.trial.uid, item.trial.number
        with suppress(LeaseLost, TaskBusy), self.store.open(uid, self._identity(item), claimed) as lease:
            [row] = self.store.tasks([uid])
            if decision is None:
                tried = self.store.histories([uid]).get(uid, History()).failed
                decision = decide(error, tried[classify(error)])
            event = note(error, decision, row.epochs)
            if decision.retry:
                self.store.save([Write(lease, row.epochs, events=[(FAILED, event)])])
                self.say(f"trial {number} ({uid[:8]}) is tried again in {decision.pause:.0f} s: {_last_line(error)}")
            else:
                self.store.fail_trial(lease, self.study, number, item.segment.rung, report(error), event)
                self.say(f"trial {number} ({uid[:8]}) failed: {_last_line(error)}")

    def _identity(self, item: Ready) -> dict[str, Any] | None:
        try:
            return self.engine.task(item.trial, None).identity
        except Exception:  # noqa: BLE001 - a trial of which no task can be made has failed because of that
            return None


class _Exited(RuntimeError):
    """An environment tried to end the process, as if it were its own."""

    def __init__(self, error: SystemExit):
        super().__init__(f"the environment ended the process with {error!r}")
        self.__traceback__ = error.__traceback__


def _apart(uids: list[str], share: int, workers: int) -> list[str]:
    """The same from another worker's share on: workers that look at the same moment do not all want the same ones."""
    shares = min(workers, -(-len(uids) // share))
    first = _RANDOM.randrange(shares) * share
    return uids[first:] + uids[:first]


def _last_line(error: BaseException) -> str:
    return report(error).strip().splitlines()[-1]


class StopSignals:
    """While entered, SIGTERM and SIGINT ask the worker to stop; so does the end of stdin, a parent's pipe, if asked."""

    def __init__(self, until_stdin_ends: bool = False):
        self.asked: signal.Signals | None = None
        if until_stdin_ends:
            threading.Thread(target=self._wait_for_parent, daemon=True).start()

    def __enter__(self) -> StopSignals:
        self._before = {number: signal.signal(number, self._ask) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = signal.Signals(number)

    def _wait_for_parent(self) -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)


def run_worker(
    store: Store,
    study: str,
    *,
    workers: int,
    use_previous: bool,
    with_parent: bool,
    env_processes: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> int:
    """The exit status of a worker process: 0 when the study is complete, 128 + the signal when it was asked to stop."""
    with StopSignals(with_parent) as signals:
        store.wait_until(lambda: signals.asked is not None or Interrupts.asked())
        try:
            worker = Worker(
                store, study, workers=workers, use_previous=use_previous, env_processes=env_processes, say=say
            )
            worker.engine.check()
            if worker.run(lambda: signals.asked is not None):
                return 0
        except BaseException as error:
            if not is_control_flow(error) and not (isinstance(error, StoreError) and signals.asked):
                raise
            signals.asked = signals.asked or (signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
    assert signals.asked is not None
    return 128 + signals.asked
