"""Tables, their version, and the migrations from older versions.

Everything is data: identities, parameters, metrics and events are JSON text, states are manifests (JSON) and blobs
(bytes named by their sha256). Times are seconds since 1970 by the database's clock.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy import Column, Connection, ForeignKey, Index, MetaData, Table

from ....tasks.checkpoint.manifests import is_within_epoch
from ...errors import SchemaMismatch
from .columns import Attributes, Double, Integer, Json, LargeBinary, Numbers, Text
from .columns import Now as Now

VERSION = 9
CHUNK = 500  # rows per statement
_LOCK = 0x72656B69  # arbitrary id of the advisory lock that a process holds while it creates or upgrades the tables


metadata = MetaData()


def _table(name: str, *parts: sa.schema.SchemaItem) -> Table:
    return Table(name, metadata, *parts)


BLOB_IN_USE = "rk_blob_in_use"  # constraint: no blob is deleted while a checkpoint uses it

schema = _table("rk_schema", Column("version", Integer, nullable=False))

task = _table(
    "rk_task",
    Column("uid", Text, primary_key=True),
    Column("identity", Json),  # null until the task is first opened
    Column("lease_owner", Text),  # process that holds the lease; null if the task is free
    Column("lease_epoch", Integer, nullable=False),  # fencing token; incremented each time the lease is taken
    Column("lease_expires", Double, nullable=False),
    Column("epochs", Integer, nullable=False),  # of the last checkpoint
    Column("created", Double, nullable=False),
    Column("trained", Double, nullable=False, server_default="0"),  # seconds that workers have trained it for studies
    Index("rk_task_owner", "lease_owner"),
)

blob = _table(
    "rk_blob",
    Column("digest", Text, primary_key=True),  # sha256 of data
    Column("size", Integer, nullable=False),  # bytes; -1 if data is damaged, so that the next writer replaces it
    Column("data", LargeBinary, nullable=False),
)

checkpoint = _table(
    "rk_checkpoint",
    Column("id", Integer, primary_key=True),
    Column("uid", ForeignKey("rk_task.uid"), nullable=False),
    Column("epochs", Integer, nullable=False),
    Column("digest", Text, nullable=False),  # sha256 of manifest: the digest of the state
    Column("manifest", LargeBinary, nullable=False),
    Column("lease_epoch", Integer, nullable=False),  # fencing token of the lease under which it was written
    Column("created", Double, nullable=False),
    Column("within_epoch", Integer, nullable=False, server_default="0"),  # 1 if written during the epoch after `epochs`
    Index("rk_checkpoint_uid", "uid", "epochs"),
)

checkpoint_blob = _table(
    "rk_checkpoint_blob",
    Column("checkpoint", ForeignKey("rk_checkpoint.id"), primary_key=True),
    Column("digest", ForeignKey("rk_blob.digest", name=BLOB_IN_USE), primary_key=True),
    Index("rk_checkpoint_blob_digest", "digest"),
)

metric = _table(
    "rk_metric",
    Column("uid", ForeignKey("rk_task.uid"), primary_key=True),
    Column("epoch", Integer, primary_key=True),
    Column("data", Numbers, nullable=False),
)

event = _table(
    "rk_event",
    Column("id", Integer, primary_key=True),
    Column("uid", ForeignKey("rk_task.uid"), nullable=False),
    Column("created", Double, nullable=False),
    Column("kind", Text, nullable=False),
    Column("data", Json, nullable=False),
    Index("rk_event_uid", "uid"),
)

study = _table(
    "rk_study",
    Column("name", Text, primary_key=True),
    Column("config", Json, nullable=False),
    Column("created", Double, nullable=False),
    Column("revision", Integer, nullable=False, server_default="0"),  # incremented by each write of the study's rows
    Column("rewritten", Integer, nullable=False, server_default="0"),  # last revision that removed rows
    Column("planner", Text),  # process that holds the planning lock; null if none
    Column("planner_until", Double),  # when the planning lock expires
)

trial = _table(
    "rk_trial",
    Column("study", ForeignKey("rk_study.name"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("uid", Text, nullable=False),
    Column("params", Json, nullable=False),
    Column("attrs", Attributes, nullable=False),
    Column("state", Text, nullable=False),
    Column("error", Text),
    Column("created", Double, nullable=False),
    Column("finished", Double),
    Column("revision", Integer, nullable=False, server_default="0"),  # revision of the study that last wrote the row
    Index("rk_trial_revision", "study", "revision"),
    Index("rk_trial_uid", "uid"),
)

segment = _table(
    "rk_segment",
    Column("study", Text, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("rung", Integer, primary_key=True),
    Column("epochs", Integer, nullable=False),  # total epochs of the trial at its end
    Column("state", Text, nullable=False),
    Column("score", Double),
    Column("digest", Text),  # digest of the state at its end
    Column("revision", Integer, nullable=False, server_default="0"),  # revision of the study that last wrote the row
    Column("objectives", Numbers),  # values by name, unless the return is the only objective
    Column("eval_steps", Integer),  # environment steps that measured the result; null if unknown
    Column("eval_error", Double),  # standard error of the return over its episodes; null if unknown
    sa.ForeignKeyConstraint(["study", "number"], ["rk_trial.study", "rk_trial.number"]),
    Index("rk_segment_revision", "study", "revision"),
)

command = _table(
    "rk_command",
    Column("study", ForeignKey("rk_study.name"), primary_key=True),
    Column("number", Integer, primary_key=True),  # index among the study's commands
    Column("kind", Text, nullable=False),
    Column("data", Json, nullable=False),
    Column("who", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("created", Double, nullable=False),
)

Migration = Callable[[Connection], None]


def _statements(*statements: str) -> Migration:
    def migrate(connection: Connection) -> None:
        for statement in statements:
            connection.execute(sa.text(statement))

    return migrate


_REVISIONS = _statements(
    "ALTER TABLE rk_study ADD COLUMN revision INTEGER DEFAULT '0' NOT NULL",
    "ALTER TABLE rk_study ADD COLUMN rewritten INTEGER DEFAULT '0' NOT NULL",
    "ALTER TABLE rk_trial ADD COLUMN revision INTEGER DEFAULT '0' NOT NULL",
    "ALTER TABLE rk_segment ADD COLUMN revision INTEGER DEFAULT '0' NOT NULL",
    "DROP INDEX rk_segment_state",
    "CREATE INDEX rk_task_owner ON rk_task (lease_owner)",
    "CREATE INDEX rk_trial_revision ON rk_trial (study, revision)",
    "CREATE INDEX rk_trial_uid ON rk_trial (uid)",
    "CREATE INDEX rk_segment_revision ON rk_segment (study, revision)",
)


def _planners(connection: Connection) -> None:
    number = Double().compile(connection.dialect)  # each database has its own word for it
    for column in ("planner TEXT", f"planner_until {number}"):
        connection.execute(sa.text(f"ALTER TABLE rk_study ADD COLUMN {column}"))


def _trained(connection: Connection) -> None:
    number = Double().compile(connection.dialect)
    connection.execute(sa.text(f"ALTER TABLE rk_task ADD COLUMN trained {number} DEFAULT '0' NOT NULL"))


def _eval_error(connection: Connection) -> None:
    number = Double().compile(connection.dialect)
    connection.execute(sa.text(f"ALTER TABLE rk_segment ADD COLUMN eval_error {number}"))


def _within_epoch(connection: Connection) -> None:
    connection.execute(sa.text("ALTER TABLE rk_checkpoint ADD COLUMN within_epoch INTEGER DEFAULT '0' NOT NULL"))
    for id, manifest in connection.execute(sa.text("SELECT id, manifest FROM rk_checkpoint")).all():
        if isinstance(manifest, bytes | memoryview) and is_within_epoch(bytes(manifest)):
            connection.execute(sa.text("UPDATE rk_checkpoint SET within_epoch = 1 WHERE id = :id"), {"id": id})


# The n-th turns schema n + 1 into n + 2; append only, never change one.
MIGRATIONS: tuple[Migration, ...] = (
    _REVISIONS,
    _statements("ALTER TABLE rk_segment ADD COLUMN objectives TEXT"),
    _planners,
    lambda connection: metadata.create_all(connection, [command]),
    _trained,
    _within_epoch,
    _statements("ALTER TABLE rk_segment ADD COLUMN eval_steps INTEGER"),
    _eval_error,
)


def version_of(connection: Connection, table: Table = schema) -> int:
    """Return the version of the tables, 0 if none exist."""
    if not sa.inspect(connection).has_table(table.name):
        return 0
    return connection.scalar(sa.select(sa.func.max(table.c.version))) or 0


def check(version: int, database: str) -> None:
    """Raise SchemaMismatch for tables that a newer Rekindle made."""
    if version > VERSION:
        raise SchemaMismatch(
            f"the tables of {database} have schema {version}, but this Rekindle knows schemas up to {VERSION}: "
            "upgrade it (pip install --upgrade rekindle-rl), or use another database"
        )


def upgrade(connection: Connection, database: str) -> None:
    """Create the tables, or migrate older ones, within the given write transaction."""
    if connection.dialect.name == "postgresql":  # SQLite's write transaction is exclusive anyway
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    version = version_of(connection)
    check(version, database)
    if version == VERSION:
        return  # another process was quicker
    if version == 0:
        metadata.create_all(connection)
    for migrate in MIGRATIONS[version - 1 :] if version else ():
        migrate(connection)
    connection.execute(schema.delete())
    connection.execute(schema.insert().values(version=VERSION))
