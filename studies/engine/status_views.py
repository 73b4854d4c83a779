"""View of a storage: its studies and the processes that train them."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

from ...tasks.checkpoint.storage import POLICY_PREFIX
from ..storage.locks.owner import Owner
from ..storage.store import MIRROR
from .study_views import summary_view
from .views import StatusView, SummaryView, TrainedView, WorkerView

if TYPE_CHECKING:
    from ..storage.store import Store


def status_view(store: Store, name: str | None = None) -> StatusView:
    """Return studies of a storage and the processes that train them.

    Args:
        store: the storage.
        name: of the only study to return; None for all.

    Raises:
        UnknownStudy: the storage has no study of this name.
    """
    names = [study.name for study in store.studies()] if name is None else [store.study(name).name]
    alive, of_studies = store.holders(), dict[str, set[str]]()
    in_training = cache(store.in_training)
    workers: dict[str, WorkerView] = {}
    for claim in store.claims():
        if claim.uid not in alive:
            continue
        owner = Owner.parse(claim.owner)
        new = WorkerView(host=owner.host, pid=owner.pid, trials=[], seconds=0.0, lease_left=math.inf)
        worker, trained = workers.get(claim.owner, new), []
        for study, trial in store.trials_of(claim.uid):
            if trial.number not in in_training(study):
                continue  # another study trains the task further
            of_studies.setdefault(study, set()).add(claim.owner)
            trained.append(TrainedView(study=study, number=trial.configuration))
        workers[claim.owner] = worker.replace(
            trials=[*worker.trials, *trained],
            seconds=max(worker.seconds, claim.age),
            lease_left=min(worker.lease_left, claim.left),
        )
    return StatusView(
        storage=store.url,
        studies=[_with_workers(summary_view(store, study), len(of_studies.get(study, ()))) for study in names],
        workers=[workers[owner] for owner in sorted(workers) if name is None or owner in of_studies.get(name, ())],
        tasks=store.count_tasks(without=[MIRROR, POLICY_PREFIX]),
    )


def _with_workers(study: SummaryView, workers: int) -> SummaryView:
    """Return a study with its number of workers; stalled without any."""
    stalled = study.state == "running" and not workers
    return study.replace(workers=workers, state="stalled" if stalled else study.state)
