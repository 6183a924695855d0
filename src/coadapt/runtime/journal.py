"""The durable journal: every event in an SQL database before it is handled, and
snapshots beside it.

SQLite in WAL mode with synchronous=FULL by default; any SQLAlchemy URL will do. One
writer at a time.
"""

# How damage of the journal is found
#
# A scheduler that replays a journal with a missing row decides something else than it
# did: jobs that ended run again. So each row has a checksum over its own content and
# the checksum of the row before it: a row that is altered, missing or out of order
# breaks this chain at its place. The last checksum is also in `meta`, written in the
# same transaction, since a chain alone does not show that its end was cut off.
#
# Opening checks what costs nothing: that rows 1 to the last are all there, and that the
# last is the one in `meta`. Reading checks the chain of the rows that it reads: a start
# those after the snapshot, `coadapt doctor` all of them. A snapshot is bound to the
# chain by the checksum of its row. A snapshot that does not fit is ignored, because the
# rows before it give the same state; a row that does not fit is never ignored.
#
# Checksums find accidents. They are no signature: any user with the right to write the
# file can write a chain that fits.
#
# The beginning may be pruned, up to the older of two snapshots: nothing before it is
# ever replayed. `anchor` then holds the number and the checksum of the last event that
# is gone, and the chain goes on from there. It is written before any row goes: a prune
# that is cut off leaves rows that count no more, for the next one.
#
# An event that the core refuses stays in its row. A row in `refusals` says that a
# replay leaves it out, so the state is as if it had never come, and the event can still
# be looked at.

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

import sqlalchemy as sa

from coadapt.core.events import Event, PlanReady
from coadapt.core.state import SchedulerState
from coadapt.model import InputError
from coadapt.model.errors import StoreAwayError, StoreError
from coadapt.model.wire import dumps, dumps_in_pieces, loads
from coadapt.runtime.ports import Store
from coadapt.runtime.upkeep.journal_retry import JournalRetry
from coadapt.runtime.upkeep.schema_version import SCHEMA_VERSION
from coadapt.runtime.wall_clock import give_way

SNAPSHOTS_KEPT = 2  # the one before stays until the next is safely written
ROWS_PER_FETCH = 1_000
BUSY_MS = 1_000  # for which SQLite itself waits for another writer
ROWS_PER_PRUNE = 2_000  # in one transaction: events that come meanwhile wait for it
CHECK_BYTES = 16  # of a checksum: an accident passes it once in 3e38
DOCTOR = "see what is wrong with: coadapt doctor"

T = TypeVar("T")

EVENT_KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}

metadata = sa.MetaData()
meta = sa.Table(
    "meta",
    metadata,
    sa.Column("schema_version", sa.Integer, nullable=False),
    sa.Column("head_seq", sa.Integer, nullable=False),
    sa.Column("head_link", sa.String(40), nullable=False),
)
events = sa.Table(
    "events",
    metadata,
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("kind", sa.String(40), nullable=False),
    sa.Column("job", sa.String(200), nullable=True, index=True),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("link", sa.String(40), nullable=False),
)
snapshots = sa.Table(
    "snapshots",
    metadata,
    sa.Column("upto", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("link", sa.String(40), nullable=False),
)
anchor = sa.Table(
    "anchor",
    metadata,
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("link", sa.String(40), nullable=False),
    sa.Column("check", sa.String(40), nullable=False),
)
refusals = sa.Table(
    "refusals",
    metadata,
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("why", sa.Text, nullable=False),
    sa.Column("trace", sa.Text, nullable=False),
    sa.Column("link", sa.String(40), nullable=False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An event that the core could not handle: its number, its kind, the error in one
    line and in whole.
    """

    number: int
    kind: str
    job: str | None
    why: str
    trace: str


def allowed_schema(version: object) -> str:
    """Return what to do with a journal of another version, as the allowed value of an
    InputError.
    """
    if isinstance(version, int) and version > SCHEMA_VERSION:
        return f"up to {SCHEMA_VERSION}: a newer coadapt wrote it; use that one"
    return f"{SCHEMA_VERSION}: an earlier coadapt wrote it; `coadapt up` brings it over"


def link_after(before: str, row: Sequence[object]) -> str:
    """Return the checksum of an event's row that follows the one with checksum
    `before`.
    """
    seq, at, kind, job, payload = row[:5]
    return _digest(f"{before}\n{seq}\n{at!r}\n{kind}\n{job}\n{payload}")


def checksum(*parts: object) -> str:
    return _digest("\n".join(str(part) for part in parts))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=CHECK_BYTES).hexdigest()


class Journal(Store):
    """The Store port on a database. `append` returns once the group is committed to
    disk.

    Every method raises StoreError where the database cannot be read or written, or is
    damaged.
    """

    def __init__(
        self,
        url: str,
        name: str = "the journal",
        *,
        path: Path | None = None,
        retry: JournalRetry | None = None,
    ) -> None:
        """Open or create the journal at an SQLAlchemy URL; errors call it `name`.

        path: its file, which every write looks for. retry: waits while the journal
        cannot be used; None: StoreAwayError is raised then. Raises InputError for a
        journal of another version.
        """
        self._name = name
        self._path = path
        self._retry = retry
        self._open = False
        self._engine = sa.create_engine(url)
        if self._engine.dialect.name == "sqlite":
            sa.event.listen(self._engine, "connect", _configure_sqlite)
        self._work(self._begin_or_check, patient=True)
        self._inode = None if path is None else path.stat().st_ino
        self._anchor = self._checked_anchor()
        self._tip = self._checked_tip()
        self._refused = frozenset(refusal.number for refusal in self.refusals())
        self._open = True

    @classmethod
    def at_path(cls, path: Path, retry: JournalRetry | None = None) -> "Journal":
        """Open or create a SQLite journal in a file that only its owner can read."""
        try:
            path.touch(mode=0o600, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror}") from None
        return cls(f"sqlite:///{path}", str(path), path=path, retry=retry)

    def _begin_or_check(self, connection: sa.Connection) -> None:
        """Begin a new journal in an empty database, or look whether the one that is
        there can be read.
        """
        tables = sa.inspect(connection).get_table_names()
        if "meta" in tables:
            version = connection.scalar(sa.text("SELECT schema_version FROM meta"))
            if version is not None and version != SCHEMA_VERSION:
                raise InputError("journal schema", version, allowed_schema(version))
        metadata.create_all(connection)
        if connection.scalar(sa.select(meta.c.schema_version)) is None:
            first = {"schema_version": SCHEMA_VERSION, "head_seq": 0, "head_link": ""}
            connection.execute(meta.insert().values(first))

    @property
    def last_number(self) -> int:
        return self._tip[0]

    @property
    def first_number(self) -> int:
        """The number of the first event that is there, or will be; 1 unless earlier
        ones were pruned.
        """
        return self._anchor[0] + 1

    def append(self, events: Sequence[Event]) -> None:
        rows = []
        (last, before) = self._tip
        for number, event in enumerate(events, start=last + 1):
            job = getattr(event, "job", None)
            kind = type(event).__name__
            payload = (
                dumps_in_pieces(event) if isinstance(event, PlanReady) else dumps(event)
            )
            before = link_after(before, (number, event.at, kind, job, payload))
            row = {
                "seq": number,
                "at": event.at,
                "kind": kind,
                "job": job,
                "payload": payload,
            }
            rows.append({**row, "link": before})
        if not rows:
            return
        tip = last + len(rows), before

        def write(connection: sa.Connection) -> None:
            head = {"head_seq": tip[0], "head_link": tip[1]}
            update = meta.update().where(meta.c.head_seq == last).values(head)
            if connection.execute(update).rowcount:
                connection.execute(_INSERT_EVENT, rows)
                return
            # A try before this one may have been committed although its answer was lost
            # on the way.
            found = connection.execute(sa.select(meta.c.head_seq, meta.c.head_link))
            if tuple(found.one()) != tip:
                raise StoreError(f"{self._name} was written by another process")

        self._work(write, writes=True, patient=True)
        self._tip = tip

    def events(self, after: int = 0) -> Iterator[Event]:
        for _, event in self.numbered_events(after):
            yield event

    def numbered_events(self, after: int = 0) -> Iterator[tuple[int, Event]]:
        after = max(after, self._anchor[0])
        before = self._link_of(after)
        while after < self._tip[0]:
            query = (
                sa.select(events)
                .where(events.c.seq > after)
                .order_by(events.c.seq)
                .limit(ROWS_PER_FETCH)
            )
            rows = self._rows(query)
            if not rows:
                raise self._damaged(after + 1, "is missing")
            for row in rows:
                number = row.seq
                if number != after + 1:
                    raise self._damaged(after + 1, "is missing")
                if row.link != link_after(before, row):
                    raise self._damaged(number, "was altered")
                after = number
                before = row.link
                if number not in self._refused:
                    yield number, self._loaded(number, row.payload)

    def whole(self) -> Iterator[tuple[int, Event]] | None:
        """Return all events with their numbers, None if the first ones were pruned."""
        return self.numbered_events() if self.first_number == 1 else None

    def refuse(self, number: int, why: str, trace: str = "") -> None:
        row = {
            "seq": number,
            "why": why,
            "trace": trace,
            "link": checksum(self._link_of(number), why, trace),
        }

        def write(connection: sa.Connection) -> None:
            connection.execute(refusals.delete().where(refusals.c.seq == number))
            connection.execute(refusals.insert().values(row))

        self._work(write, writes=True, patient=True)
        self._refused |= {number}

    def refusals(self) -> list[Refusal]:
        """Return the events that were set aside, in order."""
        query = (
            sa.select(
                refusals, events.c.kind, events.c.job, events.c.link.label("event_link")
            )
            .join(events, events.c.seq == refusals.c.seq, isouter=True)
            .order_by(refusals.c.seq)
        )
        rows = self._rows(query)
        for row in rows:
            if row.link != checksum(row.event_link, row.why, row.trace):
                raise self._damaged(row.seq, "is set aside by a row that was altered")
        return [
            Refusal(
                number=row.seq, kind=row.kind, job=row.job, why=row.why, trace=row.trace
            )
            for row in rows
        ]

    def save_snapshot(self, state: SchedulerState, upto: int) -> None:
        payload = dumps_in_pieces(state, give_way)
        row = {
            "upto": upto,
            "payload": payload,
            "link": checksum(self._link_of(upto), payload),
        }

        def write(connection: sa.Connection) -> None:
            connection.execute(snapshots.delete().where(snapshots.c.upto == upto))
            connection.execute(snapshots.insert().values(row))
            kept = connection.scalars(
                sa.select(snapshots.c.upto)
                .order_by(snapshots.c.upto.desc())
                .limit(SNAPSHOTS_KEPT)
            ).all()
            connection.execute(snapshots.delete().where(snapshots.c.upto.not_in(kept)))

        self._work(write, writes=True)

    def latest_snapshot(self) -> tuple[SchedulerState, int] | None:
        """Return the newest snapshot that fits the events; any other is passed over for
        the one before.
        """
        found = self._first_that_fits(snapshots.c.upto.desc())
        if found is None and self.first_number > 1:
            raise StoreError(
                f"{self._name} was harmed: no snapshot fits its events, and those "
                f"before event "
                f"{self.first_number} were pruned; bring back the file from a backup"
            )
        return found

    def earlier_snapshot(self) -> tuple[SchedulerState, int] | None:
        """Return the oldest snapshot that is kept, the one before the latest; None
        where none is needed, as all events since the beginning are there and are few.
        """
        count = self._scalar(sa.select(sa.func.count()).select_from(snapshots)) or 0
        if count < SNAPSHOTS_KEPT and self.first_number <= 1:
            return None
        return self._first_that_fits(snapshots.c.upto.asc())

    def _first_that_fits(
        self, order: sa.ColumnElement[int]
    ) -> tuple[SchedulerState, int] | None:
        for row in self._rows(sa.select(snapshots).order_by(order)):
            if not 0 < row.upto <= self._tip[0] or row.link != checksum(
                self._link_of(row.upto), row.payload
            ):
                continue
            try:
                return loads({"SchedulerState": SchedulerState}, row.payload), row.upto
            except InputError:
                continue
        return None

    def prunable(self, before_at: float) -> int:
        """Return how many events a prune may delete: those before `before_at` (s) that
        no restart needs.
        """
        rows = self._rows(sa.select(snapshots.c.upto).order_by(snapshots.c.upto))
        if len(rows) < SNAPSHOTS_KEPT:
            return 0
        # In the order of their numbers: the clock may have gone back once.
        later = sa.select(sa.func.min(events.c.seq)).where(
            events.c.seq > self._anchor[0], events.c.at >= before_at
        )
        first_kept = self._scalar(later) or self._tip[0]
        return max(min(first_kept - 1, int(rows[0].upto)) - self._anchor[0], 0)

    def prune(self, count: int) -> Iterator[int]:
        """Delete the first `count` events, as `prunable` allowed; yield now and then
        how many are gone.
        """
        upto = self._anchor[0] + count
        if count:
            link_there = self._link_of(upto)
            row = {"seq": upto, "link": link_there, "check": checksum(upto, link_there)}

            def write(connection: sa.Connection) -> None:
                connection.execute(anchor.delete())
                connection.execute(anchor.insert().values(row))

            self._work(write, writes=True)
            self._anchor = upto, link_there
        gone = 0
        while True:
            few = (
                sa.select(events.c.seq)
                .where(events.c.seq <= upto)
                .order_by(events.c.seq)
                .limit(ROWS_PER_PRUNE)
            )
            delete = events.delete().where(events.c.seq.in_(few))

            def remove(connection: sa.Connection, delete: sa.Delete = delete) -> int:
                num_rows = connection.execute(delete).rowcount
                connection.execute(refusals.delete().where(refusals.c.seq <= upto))
                return num_rows

            done = self._work(remove, writes=True)
            self._give_back_room()
            if not done:
                return
            gone += done
            yield gone

    def _give_back_room(self) -> None:
        def give_back(connection: sa.Connection) -> None:
            # Not `execute`: the statement gives back one page per step, and that takes
            # one only.
            driver = connection.connection.dbapi_connection
            driver.executescript("PRAGMA incremental_vacuum")  # type: ignore[union-attr]  # sqlite3's

        if self._engine.dialect.name == "sqlite":
            self._work(give_back, writes=True)

    def close(self) -> None:
        self._engine.dispose()

    def _checked_anchor(self) -> tuple[int, str]:
        """Return number and checksum of the last event that was pruned."""
        rows = self._rows(sa.select(anchor))
        row = rows[0] if rows else None
        if row is None:
            return 0, ""
        if row.check != checksum(row.seq, row.link):
            raise self._damaged(
                row.seq + 1, "is the first, but what says so was altered:"
            )
        return row.seq, row.link

    def _checked_tip(self) -> tuple[int, str]:
        """Return number and checksum of the last event. Raises StoreError if rows are
        missing before it.
        """
        count = sa.func.count(events.c.seq)
        last = sa.func.max(events.c.seq)
        begin = self._anchor[0]
        # One statement sees one moment, also while another process writes.
        query = sa.select(
            meta.c.head_seq,
            meta.c.head_link,
            sa.select(count)
            .where(events.c.seq > begin)
            .scalar_subquery()
            .label("count"),
            sa.select(last).scalar_subquery().label("last"),
            sa.select(events.c.link)
            .where(events.c.seq == meta.c.head_seq)
            .scalar_subquery()
            .label("link"),
        )
        (row,) = self._rows(query)
        if (row.last or 0) != row.head_seq:
            number = min(row.last or 0, row.head_seq) + 1
            raise self._damaged(
                number, "is missing" if number <= row.head_seq else "is one too many"
            )
        if (row.link or "") != row.head_link:
            raise self._damaged(
                row.head_seq, "is not the one that the journal ended with"
            )
        if row.count != row.head_seq - begin:
            raise self._damaged(self._first_gap(), "is missing")
        return row.head_seq, row.head_link

    def _first_gap(self) -> int:
        follower = events.alias()
        followed = sa.exists().where(follower.c.seq == events.c.seq + 1)
        there = events.c.seq > self._anchor[0]
        least = sa.select(sa.func.min(events.c.seq))
        first = self._scalar(least.where(there))
        last = self._scalar(least.where(there, ~followed))
        return self.first_number if first != self.first_number else int(last or 0) + 1

    def _link_of(self, number: int) -> str:
        last, its_link = self._tip  # at once: another thread may append
        if number == last:
            return its_link
        if number == self._anchor[0]:
            return self._anchor[1]
        found = self._scalar(sa.select(events.c.link).where(events.c.seq == number))
        if number and found is None:
            raise self._damaged(number, "is missing")
        return str(found or "")

    def _loaded(self, number: int, payload: str) -> Event:
        try:
            return loads(EVENT_KINDS, payload)
        except InputError as error:
            # Its checksum fits: it was written so.
            raise StoreError(
                f"{self._name}: event {number} is of another version of Coadapt "
                f"({error}); use that version"
            ) from None

    def _damaged(self, number: int, what: str) -> StoreError:
        return StoreError(f"{self._name} was harmed: event {number} {what}; {DOCTOR}")

    def _rows(self, query: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        return self._work(lambda connection: connection.execute(query).all())

    def _scalar(self, query: sa.Select[Any]) -> Any:
        return self._work(lambda connection: connection.scalar(query))

    def _work(
        self,
        work: Callable[[sa.Connection], T],
        *,
        writes: bool = False,
        patient: bool = False,
    ) -> T:
        """Do `work` in one transaction, and return its result.

        While the journal cannot be used, it waits if it is `patient` or reads:
        snapshots and prunes can be left out, what happened cannot. Then `work` may be
        done more than once; only the last one is kept.
        """
        retry = self._retry if patient or not writes else None
        waited = False
        while True:
            try:
                if writes:
                    self._check_there()
                with self._engine.begin() as connection:
                    result = work(connection)
            except sa.exc.DBAPIError as error:
                text = str(error.orig)
                failure = self._failure(text)
                if "disk I/O error" in text:
                    self._engine.dispose()  # its handles may be of a disk that was away
            except StoreAwayError as error:
                failure = error
            else:
                # A reader gets through where another process keeps all writers out.
                if retry is not None and (writes or waited):
                    retry.over()
                return result
            if retry is None or not isinstance(failure, StoreAwayError):
                raise failure from None
            retry.wait(failure)
            waited = True

    def _failure(self, text: str) -> StoreError:
        """Return the error to raise for what the database said, in one line."""
        message = f"{self._name} {_explained(text)}"
        passes = "locked" in text or (
            self._open and any(words in text for words in _MAY_PASS)
        )
        return StoreAwayError(message) if passes else StoreError(message)

    def _check_there(self) -> None:
        """Raise StoreError where the journal's file does not have its name any more.

        What is written to a file that was moved or replaced would not be found by the
        next start.
        """
        if self._path is None or not self._open:
            return
        try:
            inode = self._path.stat().st_ino
        except OSError as error:
            raise StoreAwayError(
                f"{self._name} is not there ({error.strerror}): bring it back to its "
                f"place"
            ) from None
        if inode != self._inode:
            raise StoreError(
                f"{self._name} was replaced by another file while the scheduler ran: "
                f"what it wrote since is "
                "not in that file"
            )


_INSERT_EVENT = events.insert()


def _explained(error: str) -> str:
    """Return what the database's error means here, and what to do."""
    for words, meaning in _MEANINGS.items():
        if words in error:
            return f"{meaning} ({error})"
    return f"cannot be read or written ({error}); {DOCTOR}"


# What a disk says that is away for a while; a file of another user says so as well,
# while it is opened.
_MAY_PASS = ("unable to open", "readonly", "disk I/O error", "disk is full")

_MEANINGS = {
    "disk is full": "cannot be written: the disk is full; free some space",
    "readonly": "cannot be written: this user needs write access to it and its directory",
    "unable to open": "cannot be opened: this user needs access to it and its directory",
    "locked": "is in use by another process",
    "malformed": f"was harmed; {DOCTOR}",
    "not a database": f"is no journal, or was harmed; {DOCTOR}",
}


def _configure_sqlite(
    connection: sa.engine.interfaces.DBAPIConnection, _record: object
) -> None:
    cursor = connection.cursor()
    # auto_vacuum counts for a new file only, and before anything is in it.
    for pragma in (
        "auto_vacuum=INCREMENTAL",
        "journal_mode=WAL",
        "synchronous=FULL",
        f"busy_timeout={BUSY_MS}",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
