"""What is wrong with a journal, and a new one of what can be kept: `coadapt doctor`
tells and does it.
"""

# Everything that can be read is read first, then judged, and a repair writes a new file
# beside the old one:
# so a repair that is cut off has changed nothing, and one rule mends whatever was
# wrong.
#
# A row is sound if its checksum follows from the row before. Where only a checksum was
# harmed, the row after it says so. A row that was altered is kept and set aside: what
# it said cannot be relied on. Where rows are missing, empty ones that are set aside
# take their place, because numbers are how everything else is found. A snapshot that
# was bound to its row stays, whatever is wrong before it: it holds the state of its
# time, so nothing is lost.

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import sqlalchemy as sa

from coadapt.core.events import TimerFired
from coadapt.core.state import SchedulerState
from coadapt.model import InputError
from coadapt.model.errors import StoreError
from coadapt.model.wire import dumps, loads
from coadapt.runtime.journal import (
    EVENT_KINDS,
    checksum,
    link_after,
    metadata,
)
from coadapt.runtime.upkeep.schema_version import SCHEMA_VERSION

FILES = ("", "-wal", "-shm")  # of one SQLite database
MISSING_WHY = "was missing; `coadapt doctor --repair` put an empty event in its place"
ALTERED_WHY = "was altered; `coadapt doctor --repair` set it aside"


class Row(NamedTuple):
    """A row of the events, as it was found."""

    seq: int
    at: float
    kind: str
    job: str | None
    payload: str
    link: str


@dataclass(slots=True, kw_only=True)
class Found:
    """All that could be read of a journal. head: the number of the last event by its
    own word, -1 if lost.

    anchor: number and checksum of the last event that was pruned; where that was
    altered, what the rows say.
    """

    rows: dict[int, Row] = field(default_factory=dict)
    snapshots: list[tuple[int, str, str]] = field(default_factory=list)
    refusals: list[tuple[int, str, str]] = field(default_factory=list)
    head: int = -1
    head_link: str = ""
    anchor: tuple[int, str] = (0, "")
    anchor_altered: bool = False
    errors: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Judgement:
    """altered, missing, relinked (sound but for their checksum): numbers of events;
    kept, unfit: snapshots.

    foreign: events whose checksum fits, but that cannot be read: another version of
    Coadapt wrote them. lost_tail: how many of the last events are missing; end: what
    else is wrong there. errors: of reading. anchor_altered: what says where the journal
    begins was altered.
    """

    altered: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    unfit: list[int] = field(default_factory=list)
    relinked: list[int] = field(default_factory=list)
    foreign: list[int] = field(default_factory=list)
    lost_tail: int = 0
    end: str = ""
    anchor_altered: bool = False
    errors: list[str] = field(default_factory=list)

    def findings(self) -> list[str]:
        """Return a line for each thing that is wrong."""
        lines = [f"the file cannot be read in whole: {error}" for error in self.errors]
        lines += [
            "what says where the journal begins was altered"
        ] * self.anchor_altered
        lines += [
            f"{_events(first, last)} missing" for first, last in _runs(self.missing)
        ]
        lines += [
            f"{_events(first, last)} altered" for first, last in _runs(self.altered)
        ]
        lines += [
            f"{_events(first, last)} of another version of Coadapt"
            for first, last in _runs(self.foreign)
        ]
        lines += [
            f"the checksum of event {number} was altered" for number in self.relinked
        ]
        if self.lost_tail:
            lines.append(f"the last {self.lost_tail} events are missing")
        if self.end:
            lines.append(self.end)
        return lines + [
            f"the snapshot after event {upto} does not fit the events"
            for upto in self.unfit
        ]


def read_all(path: Path) -> Found:
    """Return what can be read of the journal at `path`, harmed or not."""
    found = Found()
    # As a writer, which is what a reader of a write-ahead log has to be; nothing is
    # created.
    with closing(
        sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True)
    ) as database:
        try:
            head = database.execute("SELECT head_seq, head_link FROM meta").fetchone()
            found.head = int(head[0])
            found.head_link = str(head[1])
        except (sqlite3.Error, TypeError, ValueError) as error:
            found.errors.append(str(error))
        for row in _readable(
            database, found, "SELECT seq, at, kind, job, payload, link FROM events"
        ):
            found.rows[row[0]] = _row(*row)
        _read_anchor(database, found)
        query = "SELECT upto, payload, link FROM snapshots"
        found.snapshots = [
            (row[0], row[1], row[2]) for row in _readable(database, found, query)
        ]
        query = "SELECT seq, why, trace FROM refusals"
        found.refusals = [
            (row[0], row[1], row[2]) for row in _readable(database, found, query)
        ]
    return found


def _read_anchor(database: sqlite3.Connection, found: Found) -> None:
    """Find out where the journal begins, and leave out what a prune did not come to
    delete.
    """
    tables = {
        row[0] for row in _readable(database, found, "SELECT name FROM sqlite_master")
    }
    query = 'SELECT seq, link, "check" FROM anchor'
    for number, its_link, check in (
        _readable(database, found, query) if "anchor" in tables else ()
    ):
        found.anchor = (number, its_link)
        if check != checksum(number, its_link):
            found.anchor_altered = True
            found.anchor = (min(found.rows, default=1) - 1, "")
    found.rows = {
        number: row for number, row in found.rows.items() if number > found.anchor[0]
    }


def _row(seq: int, *rest: object) -> Row:
    """Return a row of the types that it should have; what has others counts as altered
    by that.
    """
    at, kind, job, payload, link = rest
    number = float(at) if isinstance(at, int | float) else 0.0
    return Row(
        seq,
        number,
        str(kind),
        None if job is None else str(job),
        str(payload),
        str(link),
    )


def judge(found: Found) -> Judgement:
    """Return what is wrong with it."""
    judgement = Judgement(errors=list(found.errors))
    begin, begin_link = found.anchor
    judgement.anchor_altered = found.anchor_altered
    last = max(found.rows, default=begin)
    judgement.lost_tail = max(found.head - last, 0)
    if 0 <= found.head < last:
        judgement.end = (
            f"by its own word it ends at event {found.head}, but there are "
            f"{last - found.head} more"
        )
    elif (
        found.head == last
        and last in found.rows
        and found.head_link != found.rows[last].link
    ):
        judgement.end = "the checksum of its end was altered"
    refused = {number for number, _, _ in found.refusals}
    before: str | None = None if judgement.anchor_altered else begin_link
    for number in range(begin + 1, last + 1):
        row = found.rows.get(number)
        if row is None:
            judgement.missing.append(number)
            before = None
            continue
        right = row.link if before is None else link_after(before, row)
        before = row.link
        if row.link != right and _follows(found.rows.get(number + 1), right):
            judgement.relinked.append(number)
            before = right
        elif row.link != right:
            judgement.altered.append(number)
        elif number not in refused and not _is_event(row):
            judgement.foreign.append(number)
    for upto, payload, link in sorted(found.snapshots):
        there = None
        if upto == begin:
            there = begin_link
        elif upto in found.rows:
            there = found.rows[upto].link
        bound = there is not None and link == checksum(there, payload)
        (judgement.kept if bound and _is_state(payload) else judgement.unfit).append(
            upto
        )
    return judgement


def rewrite(path: Path, found: Found, judgement: Judgement) -> None:
    """Put a sound journal of what was found in place of the one at `path`.

    Raises StoreError if it cannot be written; then nothing has changed.
    """
    beside = path.with_name(f"{path.name}.repaired")
    beside.unlink(missing_ok=True)
    refused = {number: (why, trace) for number, why, trace in found.refusals}
    refused |= dict.fromkeys(judgement.altered, (ALTERED_WHY, ""))
    refused |= dict.fromkeys(judgement.missing, (MISSING_WHY, ""))
    try:
        beside.touch(0o600)
        with closing(sqlite3.connect(beside)) as database:
            _create(database)
            links = _write_events(database, found)
            for upto, payload, _ in found.snapshots:
                if upto in judgement.kept:
                    row = (upto, payload, checksum(links[upto], payload))
                    database.execute(
                        "INSERT INTO snapshots (upto, payload, link) VALUES (?, ?, ?)",
                        row,
                    )
            for number, (why, trace) in sorted(refused.items()):
                if number in found.rows or number in judgement.missing:
                    entry = (number, why, trace, checksum(links[number], why, trace))
                    database.execute(
                        "INSERT INTO refusals (seq, why, trace, link) VALUES (?, ?, "
                        "?, ?)",
                        entry,
                    )
            begin, begin_link = found.anchor
            if begin:
                pruned = (begin, begin_link, checksum(begin, begin_link))
                database.execute(
                    'INSERT INTO anchor (seq, link, "check") VALUES (?, ?, ?)', pruned
                )
            head = max(links)
            end = (SCHEMA_VERSION, head, links[head])
            database.execute(
                "INSERT INTO meta (schema_version, head_seq, head_link) VALUES (?, "
                "?, ?)",
                end,
            )
            database.commit()
    except (sqlite3.Error, OSError) as error:
        raise StoreError(
            f"{beside} cannot be written ({error}); nothing was changed"
        ) from None
    for suffix in FILES[1:]:
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    beside.replace(path)


def _write_events(database: sqlite3.Connection, found: Found) -> dict[int, str]:
    begin, before = found.anchor
    links = {begin: before}
    at = 0.0
    for number in range(begin + 1, max(found.rows, default=begin) + 1):
        row = found.rows.get(number)
        if row is None:
            empty = TimerFired(at=at)
            row = Row(number, at, "TimerFired", None, dumps(empty), "")
        before = link_after(before, (number, *row[1:5]))
        links[number] = before
        at = row.at
        database.execute(
            "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", (*row[:5], before)
        )
    return links


def _create(database: sqlite3.Connection) -> None:
    for table in metadata.sorted_tables:
        database.execute(str(sa.schema.CreateTable(table)))
        for index in table.indexes:
            database.execute(str(sa.schema.CreateIndex(index)))


def _follows(row: Row | None, before: str) -> bool:
    """Return whether the checksum of `row` says that the one before it was `before`."""
    return row is not None and row.link == link_after(before, row)


def _is_event(row: Row) -> bool:
    try:
        loads(EVENT_KINDS, row.payload)
    except (InputError, TypeError):
        return False
    return True


def _is_state(payload: str) -> bool:
    try:
        loads({"SchedulerState": SchedulerState}, payload)
    except (InputError, TypeError):
        return False
    return True


def _readable(
    database: sqlite3.Connection, found: Found, query: str
) -> Iterator[tuple[Any, ...]]:
    """Yield rows until the database cannot give another one."""
    try:
        yield from database.execute(query)
    except sqlite3.Error as error:
        if str(error) not in found.errors:
            found.errors.append(str(error))


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def _events(first: int, last: int) -> str:
    return f"event {first} is" if first == last else f"events {first} to {last} are"
