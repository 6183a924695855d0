"""The durable journal: every event in an SQL database before it is handled, and snapshots beside it.

SQLite in WAL mode with synchronous=FULL by default; any SQLAlchemy URL will do. One writer at a time.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

import sqlalchemy as sa

from coadapt.core.events import Event
from coadapt.core.state import SchedulerState
from coadapt.model import InputError
from coadapt.model.wire import dumps, loads
from coadapt.runtime.ports import Store

SCHEMA_VERSION = 1
SNAPSHOTS_KEPT = 2  # the one before stays until the next is safely written
ROWS_PER_FETCH = 1_000

EVENT_KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}

_metadata = sa.MetaData()
_meta = sa.Table("meta", _metadata, sa.Column("schema_version", sa.Integer, nullable=False))
_events = sa.Table(
    "events",
    _metadata,
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("kind", sa.String(40), nullable=False),
    sa.Column("job", sa.String(200), nullable=True, index=True),
    sa.Column("payload", sa.Text, nullable=False),
)
_snapshots = sa.Table(
    "snapshots",
    _metadata,
    sa.Column("upto", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("payload", sa.Text, nullable=False),
)


class Journal(Store):
    """The Store port on a database. `append` returns once the group is committed to disk."""

    def __init__(self, url: str) -> None:
        """Open or create the journal at an SQLAlchemy URL. Raises InputError for one of a newer version."""
        self._engine = sa.create_engine(url)
        if self._engine.dialect.name == "sqlite":
            sa.event.listen(self._engine, "connect", _configure_sqlite)
        _metadata.create_all(self._engine)
        with self._engine.begin() as connection:
            version = connection.scalar(sa.select(_meta.c.schema_version))
            if version is None:
                connection.execute(_meta.insert().values(schema_version=SCHEMA_VERSION))
            elif version != SCHEMA_VERSION:
                raise InputError(
                    "journal schema", version, f"version {SCHEMA_VERSION}; use the coadapt it is of"
                )
            self._seq = connection.scalar(sa.select(sa.func.max(_events.c.seq))) or 0

    @classmethod
    def at_path(cls, path: Path) -> "Journal":
        """Open or create a SQLite journal in a file that only its owner can read."""
        path.touch(mode=0o600, exist_ok=True)
        return cls(f"sqlite:///{path}")

    def append(self, events: Sequence[Event]) -> None:
        rows = [
            {
                "seq": self._seq + offset,
                "at": event.at,
                "kind": type(event).__name__,
                "job": getattr(event, "job", None),
                "payload": dumps(event),
            }
            for offset, event in enumerate(events, start=1)
        ]
        if not rows:
            return
        with self._engine.begin() as connection:
            connection.execute(_events.insert(), rows)
        self._seq += len(rows)

    def events(self, after: int = 0) -> Iterator[Event]:
        while True:
            query = (
                sa.select(_events.c.seq, _events.c.payload)
                .where(_events.c.seq > after)
                .order_by(_events.c.seq)
                .limit(ROWS_PER_FETCH)
            )
            with self._engine.connect() as connection:
                rows = connection.execute(query).all()
            if not rows:
                return
            for seq, payload in rows:
                after = seq
                yield loads(EVENT_KINDS, payload)

    def save_snapshot(self, state: SchedulerState, upto: int) -> None:
        with self._engine.begin() as connection:
            connection.execute(_snapshots.delete().where(_snapshots.c.upto == upto))
            connection.execute(_snapshots.insert().values(upto=upto, payload=dumps(state)))
            kept = connection.scalars(
                sa.select(_snapshots.c.upto).order_by(_snapshots.c.upto.desc()).limit(SNAPSHOTS_KEPT)
            ).all()
            connection.execute(_snapshots.delete().where(_snapshots.c.upto.not_in(kept)))

    def latest_snapshot(self) -> tuple[SchedulerState, int] | None:
        """Return the newest snapshot that can be read; a damaged one is passed over for the one before."""
        query = sa.select(_snapshots.c.upto, _snapshots.c.payload).order_by(_snapshots.c.upto.desc())
        with self._engine.connect() as connection:
            rows = connection.execute(query).all()
        for upto, payload in rows:
            try:
                return loads({"SchedulerState": SchedulerState}, payload), upto
            except InputError:
                continue
        return None

    def close(self) -> None:
        self._engine.dispose()


def _configure_sqlite(connection: sa.engine.interfaces.DBAPIConnection, _record: object) -> None:
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=5000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
