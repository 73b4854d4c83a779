"""Workers: claim segments, train them as a cohort, write the results.

Workers do not communicate and may be started, stopped, killed or paused at any time. Leases ensure that only one worker
at a time trains a trial; another worker can resume it from its last checkpoint.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from types import FrameType
from typing import Any, NamedTuple

from ...tasks.checkpoint.storage import Write
from ...tasks.errors import DamagedState, EnvironmentFailed, Stopped, class_and_text, environment_of
from ...tasks.identity import device_of
from ...tasks.runtime import EVALUATION_ENVS
from ...tasks.runtime.interrupts import in_this_process
from ...tasks.runtime.progress import at_work
from ...tasks.task import Task
from ..engine.probes import probe_if_asked
from ..engine.runner import ReadySegment, StudyRunner
from ..errors import LeaseLost, StoreError, StudyReplaced, TaskBusy
from ..failures import FAILED, Decision, classify, decide, describe, event_data, one_line
from ..options.study_options import BOUNDS
from ..redact import masked
from ..schedulers.seeds import seeds_of
from ..storage.commands import CANCELLED, STOP, Command
from ..storage.failure_history import FailureHistory
from ..storage.locks.leases import StoreLease
from ..storage.locks.owner import Owner
from ..storage.rows import Trial
from ..storage.store import Store
from ..study.environments import labels
from ..study.number_text import counted
from .training import Held, Training

LARGEST_COHORT = 32
LARGEST_ON_GPU = 256  # further members cost little until they fill the GPU
_RANDOM = random.SystemRandom()  # environments may use or seed the global generator
POLL = (0.05, 0.5)  # seconds between searches for work, at first and at most
LONGER = 1.25  # factor between pauses, so that new work waits at most a quarter of the time a worker was idle
LOOK = 0.05  # seconds between checks, during a pause, whether to stop


class Claimed(NamedTuple):
    """A segment with its task's lease and recent failures."""

    item: ReadySegment
    lease: StoreLease
    history: FailureHistory | None


class Turn(Enum):
    """Outcome of a worker's turn at a study."""

    TRAINED = "trained"
    BUSY = "busy"  # other workers train all ready segments
    PAUSED = "paused"
    STOPPED = "stopped"
    COMPLETE = "complete"


def take_turns(turn: Callable[[], Turn], stop: Callable[[], bool]) -> Turn:
    """Take turns until the work is complete or stopped, or ``stop()``.

    Returns:
        The outcome of the last turn.
    """
    last, pause = Turn.BUSY, POLL[0]
    try:
        while not stop():
            last = turn()
            if last in (Turn.COMPLETE, Turn.STOPPED):
                break
            if last is Turn.TRAINED:
                pause = POLL[0]
                continue
            _rest(POLL[1] if last is Turn.PAUSED else pause, stop)
            pause = min(LONGER * pause, POLL[1])
    except Stopped:
        if not stop():
            raise
    return last


def _rest(seconds: float, stop: Callable[[], bool]) -> None:
    """Wait unless ``stop()`` is true; signals do not end a sleep."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not stop():
        time.sleep(min(left, LOOK))


class Worker:
    """Worker that trains a study until completion or a stop request.

    Args:
        store: store with the study.
        study: name of the study.
        workers: expected number of workers on the study; cohorts are kept small enough to leave work for all of them.
        use_previous: whether a damaged checkpoint may be replaced by the last intact one.
        env_processes: number of processes that step the environments; 0 to step them in this process. Results do not
            depend on it.
        eval_envs: most environments that an evaluation steps at the same time, see `Task`.
        device: device of the trainings, see `Task`.
        say: called with a line for each failure and the reaction to it.
        tell: called with a line for each result.
        ended: called with a configuration's number after each rung of its trials, when everything is saved.
    """

    def __init__(
        self,
        store: Store,
        study: str,
        *,
        workers: int = 1,
        use_previous: bool = False,
        env_processes: int = 0,
        eval_envs: int = EVALUATION_ENVS,
        device: str = "cpu",
        say: Callable[[str], None] = lambda text: None,
        tell: Callable[[str], None] = lambda text: None,
        ended: Callable[[int], None] = lambda number: None,
    ):
        self.store, self.study, self.workers = store, study, workers
        self.env_processes, self.eval_envs = env_processes, eval_envs
        self.runner = StudyRunner(store, study, device)
        self.use_previous, self.say, self.tell, self.ended = use_previous, say, tell, ended
        self.hold: Command | None = None  # the command that stopped or paused the study
        self.blocked: dict[str, StoreError] = {}  # errors that only the user can resolve, by uid
        self._changes: set[str] = set()  # of versions and code, and other labels of tasks, each said once

    def run(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Train until the study is complete or stopped, or ``stop()`` is true.

        Returns:
            Whether the study is complete.

        Raises:
            StoreError: the store failed, or the remaining trials need a decision of the user.
        """
        return take_turns(lambda: self.turn(stop), stop) is Turn.COMPLETE

    def turn(self, stop: Callable[[], bool] = lambda: False) -> Turn:
        """Plan, then train one cohort if any segment is ready.

        Raises:
            Stopped: ``stop()`` became true during planning or an evaluation.
            StoreError: the store failed, or the remaining trials need a decision of the user.
        """
        self.runner.stop = stop
        probe_if_asked(self.runner)
        ready = [item for item in self.runner.advance() if item.trial.uid not in self.blocked]
        if self.runner.complete:
            return Turn.COMPLETE
        self.hold = self.runner.rows.hold
        if self.hold is not None:
            ready = self._trained(ready) if self.hold.who in BOUNDS else []
            if not ready:
                return Turn.STOPPED if self.hold.kind == STOP else Turn.PAUSED
        if not ready and self.blocked:
            raise next(iter(self.blocked.values()))
        if ready:
            self.runner.check_machine()
        with at_work():
            trained = self._train_next_cohort(ready)
        return Turn.TRAINED if trained else Turn.BUSY

    def _trained(self, ready: Sequence[ReadySegment]) -> list[ReadySegment]:
        """Return the segments that are trained, and lack only the result.

        When a study reaches a bound, a process may be evaluating some, or have died before it could.
        """
        reached = self.store.reached([item.trial.uid for item in ready])
        return [item for item in ready if reached.get(item.trial.uid) == item.segment.epochs]

    def _train_next_cohort(self, ready: Sequence[ReadySegment]) -> bool:
        """Train one cohort; return False if other workers hold all segments."""
        if not ready:
            return False
        with self._claim(ready) as claimed:
            if claimed and (history := claimed[0].history) and (verdict := history.final()):
                self._failed(claimed[0].item, claimed[0].lease, *verdict)
            elif claimed:
                self._train(claimed)
            return bool(claimed)

    @contextmanager
    def _claim(self, ready: Sequence[ReadySegment]) -> Iterator[list[Claimed]]:
        """Claim a share of the most urgent segments that can train together."""
        own_id = str(Owner.current())
        owners = {uid: owner for uid, owner in self.store.holders().items() if owner != own_id}
        num_workers = len(set(owners.values())) + 1
        cohort_size = min(self._largest_cohort(), max(1, -(-len(ready) // max(self.workers, num_workers))))
        for group in self._groups(ready, owners):
            uids = _rotated(list(group), cohort_size, num_workers)
            with self._claim_group(group, uids, cohort_size) as claimed:
                if claimed:
                    yield claimed
                    return
        yield []

    def _largest_cohort(self) -> int:
        """Return the maximum number of segments in a cohort.

        On a GPU it is larger, but not for learners with a replay buffer, which is kept in main memory.
        """
        learner = self.runner.algorithm.learner
        if not learner.batched:
            return 1
        on_gpu = device_of(self.runner.device, self.runner.algorithm.name).type == "cuda"
        return LARGEST_ON_GPU if on_gpu and not learner.refillable else LARGEST_COHORT

    def _groups(self, ready: Sequence[ReadySegment], leased: Collection[str]) -> list[dict[str, ReadySegment]]:
        """Return the segments of free tasks, grouped by structure.

        Each group maps uids to segments.
        """
        groups: dict[tuple[str, int, int], dict[str, ReadySegment]] = {}
        for item in ready:  # trials with equal hyperparameters share a task: the second waits for the first
            if item.trial.uid not in leased:
                groups.setdefault(self.runner.structure(item), {}).setdefault(item.trial.uid, item)
        return list(groups.values())

    @contextmanager
    def _claim_group(
        self, group: Mapping[str, ReadySegment], uids: Sequence[str], limit: int
    ) -> Iterator[list[Claimed]]:
        """Claim segments that are still ready; release them on exit."""
        leases = self.store.claim(self.study, uids, limit=limit)
        claimed = [Claimed(group[lease.uid], lease, history) for lease, history in leases]
        try:
            still_open = self.runner.ready() if claimed else ()
            open_claims = [
                claim for claim in claimed if (claim.item.segment.number, claim.item.segment.rung) in still_open
            ]
            self.store.release([claim.lease for claim in claimed if claim not in open_claims])
            yield open_claims
        finally:
            self.store.release([claim.lease for claim in claimed])

    def _train(self, claimed: Sequence[Claimed]) -> None:
        items, leases = [claim.item for claim in claimed], {claim.lease.uid: claim.lease for claim in claimed}
        training = Training(self.runner, items, leases, self.use_previous, self.env_processes, self.eval_envs)
        try:
            training.run()
        except (LeaseLost, TaskBusy):
            pass  # another worker holds the lease now, and nothing was written here
        except Held:
            pass  # everything is saved; the next turn sees the command
        except Stopped:
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - an environment may raise anything
            failure = error if isinstance(error, Exception) else _ended(error)
            self._find_the_failing(claimed, failure, training.storage.busy)
        for claim in claimed:
            self._report(claim, training)
        saved = (item.trial.configuration for item in items if item.trial.uid in training.results)
        for number in dict.fromkeys(saved):  # once for all of its seeds
            self.ended(number)

    def _find_the_failing(self, claimed: Sequence[Claimed], error: Exception, busy: bool) -> None:
        """Fail or block the segment at fault, training several one by one.

        The failed training has released all leases; each further training takes a new one.

        Args:
            claimed: segments that trained together.
            error: the error that ended their training.
            busy: whether the error came from the store, so that no trial is at fault.

        Raises:
            Exception: the error itself, if no trial is at fault.
        """
        if isinstance(error, StoreError):
            if not isinstance(error, DamagedState):
                raise error
        elif busy and classify(error) != "memory":
            raise error
        if len(claimed) > 1:
            for claim in claimed:
                self._train([claim])
        elif isinstance(error, StoreError):
            self.blocked[claimed[0].item.trial.uid] = error
        else:
            self._failed(claimed[0].item, claimed[0].lease, error)

    def _report(self, claimed: Claimed, training: Training) -> None:
        """Report the end of a segment, and record its failure."""
        uid, name = claimed.item.trial.uid, self._name(claimed.item.trial)
        if (task := training.tasks.get(uid)) is not None:
            self._say_labels(name, task)
        if uid in training.results:
            self.tell(f"{name} has {counted(training.epochs, 'epoch')}: {training.results[uid]}")
        if uid in training.failed:
            self._failed(claimed.item, claimed.lease, training.failed[uid])
        elif uid in training.lost and not self._is_cancelled(claimed.item):
            self.say(f"{name} is held by another process now; the late writes of this one were refused")

    def _say_labels(self, name: str, task: Task) -> None:
        """Say once why trainings are not exact, and advice about environments."""
        texts = {*task.inexact, *task.advice} - self._changes
        self._changes |= texts
        if changes := sorted(texts & {*task.stored.inexact}):
            self.say(f"{name} resumed, not bit-exact from there on: {'; '.join(changes)}")
        for text in sorted(texts.difference(changes)):
            self.say(f"{name}{'' if text in task.advice else ' is not bit-exact'}: {text}")

    def _name(self, trial: Trial) -> str:
        """Return a trial's name in messages.

        It has the number that `rekindle trials` shows, and environment and seed where a configuration has several.
        """
        config = self.runner.config
        names, seeds = labels(config.environments), seeds_of(config)
        env = f", {names[trial.replicate % len(names)]}" if len(names) > 1 else ""
        seed = f", seed {trial.seed}" if seeds > len(names) else ""
        return f"trial {trial.configuration}{env}{seed} ({trial.uid[:8]})"

    def _is_cancelled(self, item: ReadySegment) -> bool:
        """Return whether a command has ended a trial, and say so.

        Raises:
            UnknownStudy: the study was deleted, which a worker learns late that was paused meanwhile.
        """
        rows = self.store.trials(self.study, of=[item.trial.number])
        if not rows:
            self.store.study(self.study)  # raises the error
            raise StudyReplaced(f"study {masked(self.study)!r} was deleted, and another one has its name now")
        [row] = rows
        if row.state != CANCELLED:
            return False
        self.say(f"{self._name(row)} was ended by the command {row.error}")
        return True

    def _failed(
        self, item: ReadySegment, claimed: StoreLease, error: BaseException, decision: Decision | None = None
    ) -> None:
        """Record a failure; retry or end the trial according to its rule.

        A command may have cancelled the trial while it trained; then its failure does not count. Nor does it where the
        machine no longer has what the trial needs.
        """
        self.runner.check_machine()
        uid, number, name = item.trial.uid, item.trial.number, self._name(item.trial)
        if self._is_cancelled(item):
            return
        with suppress(LeaseLost, TaskBusy), self.store.open(uid, self._identity(item), claimed) as lease:
            [row] = self.store.tasks([uid])
            if decision is None:
                tried = self.store.histories([uid]).get(uid, FailureHistory()).failed
                decision = decide(error, tried[classify(error)])
            event = event_data(error, decision, row.epochs)
            if decision.retry:
                self.store.save([Write(lease, row.epochs, events=[(FAILED, event)])])
                self.say(f"{name} is tried again in {decision.pause:.0f} s: {one_line(describe(error))}")
            else:
                self.store.fail_trial(lease, self.study, number, item.segment.rung, describe(error), event)
                self.say(f"{name} failed: {one_line(describe(error))}")

    def _identity(self, item: ReadySegment) -> dict[str, Any] | None:
        try:
            return self.runner.task(item.trial, None).identity.to_json()
        except Exception:  # noqa: BLE001 - the failure may be that the task cannot be created
            return None


def _ended(error: BaseException) -> Exception:
    """Return the error for code, usually an environment's, that ends the process."""
    action = f"called sys.exit({error.code!r})" if isinstance(error, SystemExit) else f"raised {class_and_text(error)}"
    code, failure = ("environment", EnvironmentFailed) if environment_of(error) else ("training", RuntimeError)
    return failure(f"the {code} {action}, which would end this process").with_traceback(error.__traceback__)


def _rotated(uids: list[str], share: int, workers: int) -> list[str]:
    """Rotate uids by a random number of shares.

    Workers that claim at the same time then rarely compete for the same tasks.
    """
    shares = min(workers, -(-len(uids) // share))
    first = _RANDOM.randrange(shares) * share
    return uids[first:] + uids[:first]


class StopSignals:
    """Records stop requests: signals, and the end of stdin if asked for."""

    def __init__(self, until_stdin_ends: bool = False):
        self.received: signal.Signals | None = None
        if until_stdin_ends:
            threading.Thread(target=self._wait_for_parent, daemon=True).start()

    def __enter__(self) -> StopSignals:
        ask = in_this_process(self._ask)
        self._before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)

    def _wait_for_parent(self) -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
