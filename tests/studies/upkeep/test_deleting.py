"""Deleting studies and tasks: everything goes but what others need; what is being trained is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import optuna
import pytest
import rekindle
import sqlalchemy as sa
from rekindle.studies.engine.confirmation_views import confirmation_view
from rekindle.studies.engine.runner import StudyRunner, start_study
from rekindle.studies.errors import UnknownStudy
from rekindle.studies.storage.rows import Trial
from rekindle.studies.storage.sql.schema import CHUNK, checkpoint, command, segment, task, trial
from rekindle.studies.storage.sql.schema import study as study_table
from rekindle.studies.storage.store import Store
from rekindle.studies.upkeep import deleting
from rekindle.studies.upkeep.deleting import Deletion, StillNeeded, delete
from rekindle.studies.upkeep.fsck import check
from rekindle.studies.workers.worker import Worker
from studying import TINY, bits, run, sqlite_first, surrogate, tiny, undisturbed

Cli = Callable[..., tuple[int, str, str]]
SMALL, LARGE = tiny(2, (1, 2, 2)), tiny(4, (1, 2, 2))
SETTINGS = [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]


def trained(url: str) -> None:
    """Two studies that share two tasks."""
    run(url, LARGE, "large")
    run(url, SMALL, "small")


@sqlite_first
def test_deleting_a_study_keeps_tasks_that_another_study_trains(url: str) -> None:
    trained(url)
    with Store(url) as store:
        small, others = bits(store, "small"), {trial.uid for trial in store.trials("large")}
        shared = others & {trial.uid for trial in store.trials("small")}
        assert shared
        result = delete(store, "large")
        assert (set(result.tasks), set(result.kept)) == (others - shared, shared)
        assert len(store.studies()) == 2  # a dry run
        assert delete(store, "large", dry_run=False) == result
        assert [row.name for row in store.studies()] == ["small"]
        assert {row.uid for row in store.tasks()} == shared
        assert bits(store, "small") == small
        assert check(store) == []
        start_study(store, "large", LARGE)
        assert Worker(store, "large").run()
        assert bits(store, "large") == undisturbed(LARGE)


def test_a_worker_claims_nothing_of_a_study_that_is_gone(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = Store.claim

    def too_late(store: Store, *arguments: Any, **options: Any) -> Any:
        delete(store, "s", dry_run=False)
        return claim(store, *arguments, **options)

    monkeypatch.setattr(Store, "claim", too_late)
    with Store(url) as store:
        start_study(store, "s", surrogate(2))
        with pytest.raises(UnknownStudy, match="there is no study 's'"):
            Worker(store, "s").run()
        assert (store.tasks(), check(store)) == ([], [])


@pytest.mark.parametrize("again", [False, True])
def test_a_worker_that_was_paused_learns_that_its_study_is_gone(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    finish = Store.finish_segments

    def too_late(store: Store, *arguments: Any) -> None:
        silent = task.update().values(lease_owner="elsewhere:boot:1:1", lease_expires=0)  # it is taken for dead
        store.database.write(lambda c: c.execute(silent))
        delete(store, "s", dry_run=False)
        if again:
            start_study(store, "s", surrogate(2))
        finish(store, *arguments)

    monkeypatch.setattr(Store, "finish_segments", too_late)
    with Store(sqlite_url) as store:
        start_study(store, "s", surrogate(2))
        with pytest.raises(UnknownStudy, match="'s' was deleted, and another" if again else "there is no study 's'"):
            Worker(store, "s").run()


def test_a_study_whose_tasks_are_claimed_while_it_is_deleted_stays(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SQLite, nobody writes meanwhile."""
    with Store(postgres_url) as store, Store(postgres_url) as other:
        start_study(store, "s", surrogate(2))
        uids = [item.trial.uid for item in StudyRunner(store, "s").advance()]
        leases = []

        def claimed_first(*arguments: Any) -> Deletion:
            leases.extend(other.claim("s", uids))
            return Deletion(*arguments)

        monkeypatch.setattr(deleting, "Deletion", claimed_first)
        with pytest.raises(
            StillNeeded, match=r"a task that a process trains cannot be deleted, but task .* is held by one"
        ):
            delete(store, "s", dry_run=False)
        assert len(leases) == len(uids)
        other.release([lease for lease, _ in leases])
        assert Worker(store, "s").run()
        assert bits(store) == undisturbed(surrogate(2))


def test_the_confirmation_of_a_study_is_deleted_with_it(sqlite_url: str, cli: Cli) -> None:
    made: dict[str, Any] = {"storage": sqlite_url, "study": "s", "epochs": 1, "trials": 2, "progress": False}
    study = rekindle.tune("surrogate", seed=1, **made)
    assert study.confirm(top=1, seeds=3, progress=False)["state"] == "complete"
    with Store(sqlite_url) as store:
        first = {trial.uid for trial in store.trials("s")}
        _delete_only(store, "s")  # as a Rekindle did that left confirmations behind
        other = rekindle.tune("surrogate", seed=2, **made)
        assert confirmation_view(store, "s") is None  # that of another study
        delete(store, "s:confirmation", dry_run=False)
        other.confirm(top=1, seeds=3, progress=False)
        both = len(store.trials("s")) + len(store.trials("s:confirmation"))
        status, out, _ = cli("delete", "s", "--yes", "--storage", sqlite_url)
        assert (status, f"study s and its confirmation, s:confirmation: their {both} trials, " in out) == (0, True)
        assert {row.uid for row in store.tasks()} == first
        assert (store.studies(), check(store)) == ([], [])


def test_a_confirmation_after_a_deleted_one_has_other_seeds(sqlite_url: str) -> None:
    """What the deleted one said may be why the study was changed, so its seeds have taken part in a choice."""
    made: dict[str, Any] = {"epochs": 1, "trials": 2, "scheduler": "none", "progress": False}
    with Store(sqlite_url) as store:
        study = rekindle.tune("surrogate", storage=store, study="s", **made)
        seeds = []
        for _ in range(3):
            study.confirm(top=1, seeds=3, progress=False)
            seeds.append({trial.attrs["seed"] for trial in store.trials("s:confirmation")})
            delete(store, "s:confirmation", dry_run=False)
            study = rekindle.tune("surrogate", storage=store, study="s", **made)  # the same study
        assert len(set.union(*seeds)) == sum(map(len, seeds)) == 18
        delete(store, "s", dry_run=False)
        assert (store.studies(), check(store)) == ([], [])


def _delete_only(store: Store, name: str) -> None:
    for table in (segment, trial, command, study_table):
        column = table.c.name if table is study_table else table.c.study
        store.database.write(lambda c, table=table, column=column: c.execute(table.delete().where(column == name)))


def test_a_task_is_deleted_once_nothing_needs_it(sqlite_url: str, cli: Cli) -> None:
    command = ["train", "ppo", "CartPole-v1", "--epochs", "2", "--snapshots", "all", *SETTINGS, "--storage", sqlite_url]
    uid = json.loads(cli(*command, "--json")[1])["uid"]
    fork = ["fork", uid, "--at", "1", "--set", "gamma=0.9", "--storage", sqlite_url, "--json"]
    branch = json.loads(cli(*fork)[1])["uid"]
    with Store(sqlite_url) as store:
        with pytest.raises(StillNeeded, match=f"{uid} is where task {branch} starts"):
            delete(store, uid, dry_run=False)
        with store.open(branch, None), pytest.raises(StillNeeded, match=f"task {branch} is held by one; end its"):
            delete(store, branch, dry_run=False)
        for task_uid in (branch, uid):
            delete(store, task_uid[:8], dry_run=False)
            assert check(store) == []
        assert store.tasks() == []
        with pytest.raises(ValueError, match=r"no task of .* begins with 'nothing'"):
            delete(store, "nothing")
        run(sqlite_url, SMALL)
        with pytest.raises(StillNeeded, match="is trial 0 of study 's'"):
            delete(store, store.trials("s")[0].uid)
        rekindle.tune("surrogate", study="two", trials=2, seeds=2, epochs=1, storage=store, progress=False)
        with pytest.raises(StillNeeded, match="is trial 1 of study 'two'"):  # as `rekindle trials` has it
            delete(store, store.trials("two")[3].uid)


def test_the_command_changes_nothing_before_one_agrees(
    sqlite_url: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["tune", "ppo", "CartPole-v1", "--trials", "2", "--epochs", "1:2:2", "--generation", "4", "--cohort", "2"]
    run(sqlite_url, SMALL)
    assert cli(*words, *SETTINGS, "--study", "s", "--storage", sqlite_url)[0] == 0  # it is in Optuna's tables too
    command = ["delete", "s", "--storage", sqlite_url]
    status, out, _ = cli(*command)
    assert status == 0
    assert "study s, its 2 trials, 2 tasks and" in out
    assert "nothing was changed; the same command with --yes deletes" in out
    assert json.loads(cli(*command, "--json")[1])["dry_run"]
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for answer, rest in (("n", ["s"]), ("y", [])):
        monkeypatch.setattr("builtins.input", lambda prompt, answer=answer: answer)
        assert cli(*command)[0] == 0
        with Store(sqlite_url) as store:
            assert [row.name for row in store.studies()] == rest
    assert optuna.get_all_study_names(sqlite_url) == []
    status, _, errors = cli(*command)
    assert (status, "there is no study 's', and no task of" in errors) == (2, True)


def test_no_statement_names_more_rows_than_a_database_takes(sqlite_url: str) -> None:
    many = 3 * CHUNK  # PostgreSQL takes 65,535 parameters, and SQLite 32,766 in its usual build
    with Store(sqlite_url) as store:
        start_study(store, "s", surrogate(many))
        uids = [f"u{n}" for n in range(many)]
        columns: dict[str, Any] = {"lease_epoch": 0, "lease_expires": 0, "epochs": 1, "created": 0}
        tasks = [{"uid": uid, "identity": {}, **columns} for uid in uids]
        state = {"epochs": 1, "digest": "d", "manifest": b"{}", "lease_epoch": 0, "created": 0}
        store.database.write(lambda c: c.execute(task.insert(), tasks))
        store.add_rows("s", trials=[Trial(n, uid, {}) for n, uid in enumerate(uids)])
        store.database.write(lambda c: c.execute(checkpoint.insert(), [{"uid": uid, **state} for uid in uids]))
        most = 0

        def note(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
            nonlocal most
            most = max(most, 0 if many else len(parameters))

        sa.event.listen(store.database.engine, "before_cursor_execute", note)
        assert [row.uid for row in store.tasks(uids)] == sorted(uids)
        assert [row.number for row in store.trials("s", of=range(many))] == [*range(many)]
        store.add_rows("s", finished=[(n, "complete") for n in range(many)])
        result = delete(store, "s", dry_run=False)
        assert (result.trials, result.tasks, result.checkpoints) == (many, sorted(uids), many)
        assert store.tasks() == []
        assert check(store) == []
        assert 0 < most < 2 * CHUNK
