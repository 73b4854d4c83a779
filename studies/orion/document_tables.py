"""Orion's collections in tables, as one transaction sees them.

All documents are rows of one table, so no collection needs a table of its own. The keys that Orion queries most are
copied into indexed columns. SQL selects the rows that can match, and the query is then evaluated on the documents. The
values of unique indexes are rows of a second table, whose primary key makes them unique.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Connection, Index, MetaData, String, Table, Text

from ..storage.sql.schema import version_of
from ..storage.sql.writes import chunks, insert
from .documents import Document, DocumentError, Query, assign, decode, encode, index_text, key_text, select

VERSION = 1
COLUMNS = ("experiment", "id", "status", "heartbeat", "name", "version")

_metadata = MetaData()
_text = Text().with_variant(Text(collation="C"), "postgresql")  # compared byte by byte, as SQLite does

_schema = Table("rk_orion_schema", _metadata, Column("version", BigInteger, primary_key=True, autoincrement=False))
_collections = Table(
    "rk_orion_collection",
    _metadata,
    Column("name", String(200), primary_key=True),
    Column("last", BigInteger, nullable=False),  # largest number given to a document; no number is reused
    Column("indexes", Text, nullable=False),
)
_documents = Table(
    "rk_orion_document",
    _metadata,
    Column("collection", String(200), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),  # order of insertion
    Column("key", _text, nullable=False),  # _id
    *(Column(name, _text) for name in COLUMNS),
    Column("body", Text, nullable=False),
    Column("blob", sa.LargeBinary),
    sa.UniqueConstraint("collection", "key"),
    Index("rk_orion_document_status", "collection", "experiment", "status", "number"),
    Index("rk_orion_document_id", "collection", "experiment", "id", "status"),
    Index("rk_orion_document_name", "collection", "name"),
)
_keys = Table(
    "rk_orion_key",
    _metadata,
    Column("collection", String(200), primary_key=True),
    Column("name", String(200), primary_key=True),
    Column("digest", String(64), primary_key=True),
    Column("number", BigInteger, nullable=False),
    Index("rk_orion_key_number", "collection", "number"),
)


Asked = Mapping[str, Any] | None  # a query or projection of Orion's; None for everything


class DuplicateKey(Exception):
    """Another document has the same values of a unique index."""


class UnknownIndex(Exception):
    """The index does not exist."""


class _Row(NamedTuple):
    number: int
    document: Document


def create_tables(connection: Connection) -> None:
    """Create the tables unless they exist.

    Several processes may do this at the same time.
    """
    if connection.dialect.name == "postgresql":  # where IF NOT EXISTS alone has a race
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(7295041936)"))
    _metadata.create_all(connection)
    connection.execute(insert(connection, _schema).values(version=VERSION).on_conflict_do_nothing())


def schema_version(connection: Connection) -> int:
    """Return the version of Orion's tables; 0 if none exist."""
    return version_of(connection, _schema)


class Collections:
    """The collections, inside one transaction."""

    def __init__(self, connection: Connection):
        self._connection = connection
        self._locks = connection.dialect.name == "postgresql"  # SQLite has one writer at a time anyway

    def now(self) -> datetime:
        """Return the database's time, which all workers share.

        It is in UTC without a time zone, as Orion writes times.
        """
        clock = "clock_timestamp() AT TIME ZONE 'UTC'" if self._locks else "strftime('%Y-%m-%dT%H:%M:%f', 'now')"
        now = self._connection.scalar(sa.text(f"SELECT {clock}"))
        return now if isinstance(now, datetime) else datetime.fromisoformat(str(now))

    def insert(self, collection: str, documents: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Add documents and return their ``_id``s.

        A document without an ``_id`` gets its insertion number.
        """
        last, unique = self._reserve(collection, len(documents))
        numbers: list[Any] = []
        for number, document in enumerate(documents, last - len(documents) + 1):
            body = {"_id": number} | dict(document)
            row, body = _columns(body)
            statement = insert(self._connection, _documents).values(collection=collection, number=number, **row)
            if not self._inserted(statement, _documents.c.number):
                raise DuplicateKey(f"two documents of {collection} cannot have one _id: {body['_id']!r}")
            self._claim(collection, number, body, unique)
            numbers.append(body["_id"])
        largest = max((n for n in numbers if isinstance(n, int)), default=0)
        if largest > last:  # numbers that callers chose must not be given again
            self._connection.execute(_one(sa.update(_collections), collection).values(last=largest))
        return numbers

    def find(self, collection: str, query: Asked = None, selection: Asked = None) -> list[Document]:
        """Return the documents that match, in insertion order."""
        return [select(row.document, selection) for row in self._rows(collection, query)]

    def count(self, collection: str, query: Asked = None) -> int:
        """Count the documents that match.

        Documents are not read if the indexed columns decide the query.
        """
        conditions, exact = _conditions(collection, Query(query))
        if exact:
            return self._connection.scalar(sa.select(sa.func.count()).select_from(_documents).where(*conditions)) or 0
        return sum(1 for _ in self._rows(collection, query, with_blobs=False))

    def update(self, collection: str, query: Asked, data: Mapping[str, Any]) -> int:
        """Set keys of all documents that match; return their number."""
        rows = list(self._rows(collection, query, lock="all"))
        for row in rows:
            self._write(collection, row, data)
        return len(rows)

    def update_first(
        self, collection: str, query: Asked, data: Mapping[str, Any], selection: Asked = None
    ) -> Document | None:
        """Set keys of the first document that matches; return it, or None.

        Documents that another transaction is changing are skipped if others match; otherwise the call waits for them.
        """
        for lock in ("free", "all") if self._locks else ("all",):
            for row in self._rows(collection, query, lock=lock, first=True):
                self._write(collection, row, data)
                return select(row.document, selection)
        return None

    def lock(self, collection: str, query: Mapping[str, Any]) -> None:
        """Lock the documents that match until the transaction ends."""
        for _ in self._rows(collection, query, lock="all", with_blobs=False):
            pass

    def remove(self, collection: str, query: Asked) -> int:
        """Delete all documents that match; return their number."""
        numbers = [row.number for row in self._rows(collection, query, lock="all", with_blobs=False)]
        for some in chunks(numbers):
            for table in (_keys, _documents):
                conditions = (table.c.collection == collection, table.c.number.in_(some))
                self._connection.execute(sa.delete(table).where(*conditions))
        return len(numbers)

    def indexes(self, collection: str) -> dict[str, dict[str, Any]]:
        """Return the indexes by name, each with ``fields`` and ``unique``."""
        text = self._connection.scalar(_one(sa.select(_collections.c.indexes), collection))
        return dict(json.loads(text)) if text else {}

    def ensure_index(self, collection: str, name: str, fields: Sequence[str], unique: bool) -> None:
        """Add an index unless one has this name.

        Raises:
            DuplicateKey: existing documents violate a unique index.
        """
        if name in self.indexes(collection):
            return
        self._reserve(collection, 0)  # creates the collection, and blocks other insertions
        rows = list(self._rows(collection, None, lock="all", with_blobs=False)) if unique else []
        indexes = self.indexes(collection) | {name: {"fields": list(fields), "unique": unique}}
        self._connection.execute(_one(sa.update(_collections), collection).values(indexes=json.dumps(indexes)))
        for row in rows:
            self._claim(collection, row.number, row.document, {name: fields})

    def drop_index(self, collection: str, name: str) -> None:
        """Remove an index; raise UnknownIndex if it does not exist."""
        self._reserve(collection, 0)
        indexes = self.indexes(collection)
        if name not in indexes:
            raise UnknownIndex(
                f"index not found with name {name} in collection {collection}; it has: {', '.join(indexes) or 'none'}"
            )
        del indexes[name]
        self._connection.execute(_one(sa.update(_collections), collection).values(indexes=json.dumps(indexes)))
        conditions = (_keys.c.collection == collection, _keys.c.name == name)
        self._connection.execute(sa.delete(_keys).where(*conditions))

    def _reserve(self, collection: str, count: int) -> tuple[int, dict[str, Sequence[str]]]:
        """Reserve numbers for new documents, and lock the collection.

        The lock makes insertions sequential.
        """
        take = _one(sa.update(_collections), collection).values(last=_collections.c.last + count)
        take = take.returning(_collections.c.last, _collections.c.indexes)
        row = self._connection.execute(take).first()
        if row is None:
            new = insert(self._connection, _collections).values(name=collection, last=0, indexes="{}")
            self._connection.execute(new.on_conflict_do_nothing())
            row = self._connection.execute(take).one()
        return row.last, _unique(json.loads(row.indexes))

    def _rows(
        self, collection: str, query: Asked, *, lock: str = "", first: bool = False, with_blobs: bool = True
    ) -> Iterator[_Row]:
        """Yield the rows that match.

        Args:
            collection: name of the collection.
            query: query in Orion's form; None for all.
            lock: "" to lock no row, "all" to lock each, "free" to lock those that no other transaction has locked.
            first: whether the caller takes only the first row. If SQL alone decides the query, no other row is read or
                locked.
            with_blobs: whether to read the bytes.
        """
        parsed = Query(query)
        conditions, exact = _conditions(collection, parsed)
        table = _documents.c
        chosen = sa.select(table.number, table.body, table.blob.is_not(None).label("with_blob"))
        # Sort by a sum, which no index has: SQLite would otherwise scan the whole collection in order of its number.
        chosen = chosen.where(*conditions).order_by(table.number + 0)
        if lock and self._locks:
            chosen = chosen.with_for_update(skip_locked=lock == "free")
        if first and exact:
            chosen = chosen.limit(1)
        needs_bytes = any(isinstance(value, bytes) for _, _, value in parsed.conditions)
        for number, body, with_blob in self._connection.execute(chosen).all():
            document = decode(body, self._blob(collection, number) if with_blob and needs_bytes else None)
            if "_id" not in document:
                raise DocumentError(f"document {number} of {collection} has no _id: it is damaged")
            if parsed.matches(document):
                if with_blob and with_blobs:
                    document = decode(body, self._blob(collection, number))
                yield _Row(number, document)

    def _blob(self, collection: str, number: int) -> bytes:
        conditions = (_documents.c.collection == collection, _documents.c.number == number)
        return bytes(self._connection.scalar(sa.select(_documents.c.blob).where(*conditions)) or b"")

    def _write(self, collection: str, row: _Row, data: Mapping[str, Any]) -> None:
        """Set keys of a document that this transaction has locked.

        Both the given row and the table change.
        """
        unique = _unique(self.indexes(collection))  # must be read after the row is locked: see ensure_index
        before = {name: key_text(row.document, fields) for name, fields in unique.items()}
        blob = encode(row.document)[1]
        assign(row.document, data)
        columns, body = _columns(row.document)
        if (columns["blob"] or b"") == blob:  # spares writing an algorithm's megabytes of state to set its lock
            del columns["blob"]
        row.document.update(body)
        conditions = (_documents.c.collection == collection, _documents.c.number == row.number)
        self._connection.execute(sa.update(_documents).where(*conditions).values(**columns))
        changed = {name: fields for name, fields in unique.items() if key_text(body, fields) != before[name]}
        if changed:
            outdated = (_keys.c.collection == collection, _keys.c.number == row.number, _keys.c.name.in_(changed))
            self._connection.execute(sa.delete(_keys).where(*outdated))
            self._claim(collection, row.number, body, changed)

    def _claim(self, collection: str, number: int, document: Document, unique: Mapping[str, Sequence[str]]) -> None:
        for name, fields in unique.items():
            key = {"collection": collection, "name": name, "digest": key_text(document, fields), "number": number}
            if not self._inserted(insert(self._connection, _keys).values(**key), _keys.c.number):
                values = {field: document.get(field) for field in fields}
                raise DuplicateKey(f"two documents of {collection} cannot have one value of {name}: {values}")

    def _inserted(self, statement: Any, column: sa.ColumnElement[Any]) -> bool:
        """Run an INSERT; return False if its key exists.

        If another transaction has inserted the key, the call waits for that transaction to end.
        """
        return self._connection.execute(statement.on_conflict_do_nothing().returning(column)).first() is not None


def _one(statement: Any, collection: str) -> Any:
    return statement.where(_collections.c.name == collection)


def _unique(indexes: Mapping[str, Mapping[str, Any]]) -> dict[str, Sequence[str]]:
    return {name: index["fields"] for name, index in indexes.items() if index["unique"]}


def _columns(document: Document) -> tuple[dict[str, Any], Document]:
    """Return a document's row, and the document as read back."""
    text, blob = encode(document)
    body = decode(text, blob)
    key = index_text(body["_id"])
    if key is None or key == "null":
        raise DocumentError(f"an _id is a number or text, but got {body['_id']!r}")
    copied = {name: index_text(body[name]) if name in body else None for name in COLUMNS}
    return {"key": key, **copied, "body": text, "blob": blob or None}, body


def _conditions(collection: str, query: Query) -> tuple[list[sa.ColumnElement[bool]], bool]:
    """Return SQL that all matching rows satisfy, and whether only they do."""
    columns = {"_id": _documents.c.key} | {name: _documents.c[name] for name in COLUMNS}
    conditions: list[sa.ColumnElement[bool]] = [_documents.c.collection == collection]
    for key, operator, value in query.conditions:
        clause = _clause(columns[key], operator, value) if key in columns else None
        conditions += [] if clause is None else [clause]
    return conditions, len(conditions) == 1 + len(query.conditions)


def _clause(column: sa.ColumnElement[Any], operator: str, value: Any) -> sa.ColumnElement[bool] | None:
    if operator == "$in":
        texts = [index_text(item) for item in value]
        return None if None in texts or len(texts) > 500 else column.in_(texts)
    text = index_text(value)
    if text is None:
        return None
    if operator == "$eq":
        return column == text
    if operator == "$ne":
        return column != text
    if not (isinstance(value, datetime) and value.tzinfo is None):
        return None
    compare = {"$gte": column >= text, "$gt": column > text, "$lte": column <= text, "$lt": column < text}[operator]
    return sa.and_(compare, column >= "t", column < "u")  # only datetimes, whose text begins with t
