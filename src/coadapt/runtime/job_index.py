"""The history of jobs on disk: an SQLite file beside the journal, from which describe,
ls, story and report read. It is a fold of the journal and may be thrown away: then it
is rebuilt from it.
"""

# Why there is an index, and when it is right.
#
# The scheduler's state holds live jobs only, so what became of others must be found
# elsewhere, and not by replaying the journal at each request: 1,000,000 events take
# minutes. An observer (`IndexWriter`) therefore writes rows as events arrive: the lines
# of a job's story, changes of its allocation, and its reports; and one row for each job
# that ended. All are found by the job's id.
#
# Rows are named by (job, number of the event, counter within the event), so a replay
# after a crash, which begins at the last snapshot, writes rows that are there already
# again, and changes nothing. `upto` is the last event whose rows are in the file,
# written in the same transaction. It is flushed before each snapshot of the scheduler,
# so that a replay from that snapshot leaves no gap. Where `upto` lies before the
# snapshot all the same (the file was removed, or the machine lost power), the index is
# rebuilt from the journal.
#
# A reader writes nothing but jobs that have just ended: the rows of a plan that moves
# thousands of jobs are for the loop to write, a part at a time, and are found in memory
# until then.
#
# What may grow without end is thinned while it is written: the gaps between points and
# between sentences that differ in their figures only grow with the job's age, so a job
# leaves some thousand rows whatever its length. (To thin afterwards, every other row,
# was tried in memory: on disk it costs a rewrite.)

import json
import sqlite3
import threading
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from coadapt.core.lifecycle import ENDED, JobState
from coadapt.model import JobId
from coadapt.model.wire import Json
from coadapt.runtime.wall_clock import give_way

SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rows (
    job TEXT NOT NULL, seq INTEGER NOT NULL, n INTEGER NOT NULL, kind TEXT NOT NULL,
    at REAL NOT NULL, payload TEXT NOT NULL, PRIMARY KEY (job, seq, n)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ended (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, tenant TEXT NOT NULL, state TEXT NOT NULL,
    submitted_at REAL NOT NULL, ended_at REAL NOT NULL, payload TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS ended_by_submission ON ended (submitted_at, id);
DROP INDEX IF EXISTS ended_by_state;
CREATE INDEX IF NOT EXISTS ended_by_state_and_submission
    ON ended (state, submitted_at, id);
CREATE INDEX IF NOT EXISTS ended_by_end ON ended (ended_at);
"""
SCHEMA_VERSION = 1
# Rows that wait in memory; a busy scheduler writes them a few times a second.
BUFFER_MAX = 500
# Rows of the cluster itself, beside those of jobs.
CLUSTER = ""

# Rows about plans that failed, and that came again: a job's story looks for those of
# its time.
PLANS = " "

# Kinds of rows. A decision is a line that says why as well.
LINE = "line"
DECISION = "decision"
SPAN = "span"
POINT = "point"
RESCALE = "rescale"
ROUND = "round"
CAPACITY = "capacity"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Something that happened at `at` (s) in event number `seq`; n: its place among the
    rows of the event.
    """

    job: JobId
    seq: int
    n: int
    kind: str
    at: float
    payload: Json


_Values = tuple[JobId, int, int, str, float, str]
"""A Row as the database has it, its payload as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """A job that has ended. picture: as `job_snapshot` gave it then; spec, measured,
    usage: in wire form.
    """

    id: JobId
    name: str
    tenant: str
    state: JobState
    submitted_at: float
    ended_at: float
    picture: dict[str, Json]
    spec: Json
    measured: Json
    usage: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedOwner:
    """The owner of a job that ended at `ended_at` (s)."""

    job: JobId
    ended_at: float
    tenant: str
    application: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedQuery:
    """Which ended jobs; after: (submitted_at, id) of the last one that was seen, in the
    order asked for.
    """

    states: frozenset[JobState] = ENDED
    tenant: str = ""
    limit: int = 1_000
    after: tuple[float, JobId] | None = None
    newest: bool = False


class JobIndex:
    """Reads and writes the index. `add` is for one thread, everything else for any."""

    def __init__(self, path: Path | str) -> None:
        """Open or create the index at `path`; ":memory:" for one that is gone with this
        object.

        A file that is no index, or one of another version, is replaced by an empty one:
        it can be rebuilt.
        """
        self._path = str(path)
        self._lock = threading.RLock()
        self._buffer: list[_Values] = []
        self._ended: list[EndedJob] = []
        self._upto = 0
        try:
            self._database = self._open()
        except sqlite3.DatabaseError:
            Path(path).unlink()
            self._database = self._open()
        found = self._database.execute(
            "SELECT value FROM meta WHERE name = 'upto'"
        ).fetchone()
        self._upto = found[0] if found else 0
        self._counts = self._counted()

    @property
    def upto(self) -> int:
        """The number of the last event whose rows are here."""
        return self._upto

    def add(
        self, seq: int, rows: Sequence[Row], ended: Sequence[EndedJob] = ()
    ) -> None:
        """Take in what event number `seq` brought. Readers see it at once; a crash
        loses it until `flush`.
        """
        if not (rows or ended):
            self._upto = max(
                self._upto, seq
            )  # most events bring nothing: no lock for them
            return
        values = [
            (row.job, row.seq, row.n, row.kind, row.at, json.dumps(row.payload))
            for row in rows
        ]
        with self._lock:
            self._buffer.extend(values)
            self._ended.extend(ended)
            self._upto = max(self._upto, seq)
        while len(self._buffer) >= BUFFER_MAX:
            self._write(BUFFER_MAX)
            give_way()  # to readers that wait for the lock

    def flush(self) -> None:
        """Write what waits in memory."""
        self._write(len(self._buffer))

    def _write(self, count: int) -> None:
        """Write the first `count` rows, and all jobs that ended."""
        with self._lock:
            rows = self._buffer[:count]
            ended = [_values(job) for job in self._ended]
            with self._database:
                self._database.executemany(
                    "INSERT OR REPLACE INTO rows VALUES (?,?,?,?,?,?)", rows
                )
                self._database.executemany(
                    "INSERT OR REPLACE INTO ended VALUES (?,?,?,?,?,?,?)", ended
                )
                if len(rows) == len(self._buffer):
                    self._database.execute(
                        "INSERT OR REPLACE INTO meta VALUES ('upto', ?)", (self._upto,)
                    )
            if ended:
                self._counts = self._counted()
            del self._buffer[: len(rows)]
            self._ended.clear()

    def _write_ended(self) -> None:
        """Write the jobs that ended, so that queries find them; rows wait on."""
        if self._ended:
            self._write(0)

    def follow_journal(self, last_number: int) -> None:
        """Forget all if there are rows of events after `last_number`, the journal's
        last: it is another.
        """
        if self.upto > last_number:
            self.clear()

    def clear(self) -> None:
        """Forget everything, to be rebuilt."""
        with self._lock, self._database:
            self._buffer.clear()
            self._ended.clear()
            self._counts.clear()
            self._upto = 0
            for table in ("rows", "ended", "meta"):
                self._database.execute(f"DELETE FROM {table}")
            self._stamp(self._database)

    def copy_from(self, source: sqlite3.Connection) -> None:
        """Take over what another index has."""
        with self._lock:
            source.backup(self._database)
            found = self._database.execute(
                "SELECT value FROM meta WHERE name = 'upto'"
            ).fetchone()
            self._upto = found[0] if found else 0
            self._counts = self._counted()

    def rows(
        self, job: JobId, *kinds: str, latest: int | None = None, after: int = -1
    ) -> list[Row]:
        """Return rows of a job in order, of all kinds or of some; latest: only the last
        so many.

        after: only those of events after this number.
        """
        chosen = " AND seq > ?" + (
            f" AND kind IN ({','.join('?' * len(kinds))})" if kinds else ""
        )
        order = "DESC LIMIT ?" if latest is not None else "ASC"
        query = f"SELECT * FROM rows WHERE job = ?{chosen} ORDER BY seq {order}"
        query = query.replace("seq DESC", "seq DESC, n DESC").replace(
            "seq ASC", "seq, n"
        )
        given = (job, after, *kinds, *([] if latest is None else [latest]))
        with self._lock:
            found = self._database.execute(query, given).fetchall()
            wait = [row for row in self._buffer if row[0] == job and row[1] > after]
        chosen_rows = [row for row in (*found, *wait) if not kinds or row[3] in kinds]
        in_order = _in_order(chosen_rows)
        return (
            in_order if latest is None else in_order[max(len(in_order) - latest, 0) :]
        )

    def rows_of(self, jobs: Collection[JobId], kind: str) -> list[Row]:
        """Return the rows of one kind of some jobs, in order of job, event and
        place.
        """
        marks = ",".join("?" * len(jobs))
        query = f"SELECT * FROM rows WHERE job IN ({marks}) AND kind = ?"
        with self._lock:
            found = self._database.execute(query, (*jobs, kind)).fetchall()
            wait = [row for row in self._buffer if row[0] in jobs and row[3] == kind]
        return _in_order([*found, *wait])

    def ended(self, job: JobId) -> EndedJob | None:
        """Return the ended job with this id, None if there is none."""
        found = self._ended_where("id = ?", [job], "", 1)
        return found[0] if found else None

    def ended_page(self, query: EndedQuery) -> list[EndedJob]:
        """Return ended jobs in the order of their submission."""
        where: list[str] = []
        given: list[object] = []
        if query.states != ENDED:
            where.append("state IN (" + ",".join("?" * len(query.states)) + ")")
            given += sorted(state.value for state in query.states)
        if query.tenant:
            where.append("tenant = ?")
            given.append(query.tenant)
        if query.after is not None:
            where.append(f"(submitted_at, id) {'<' if query.newest else '>'} (?, ?)")
            given += list(query.after)
        down = " DESC" if query.newest else ""
        return self._ended_where(
            " AND ".join(where) or "1",
            given,
            f"submitted_at{down}, id{down}",
            query.limit,
        )

    def ended_latest(self, limit: int) -> list[EndedJob]:
        """Return the jobs that ended last, the latest first."""
        return self._ended_where("1", [], "ended_at DESC, id", limit)

    def ended_before(self, at: float) -> list[EndedJob]:
        """Return the jobs that ended before `at` (s), the oldest first."""
        return self._ended_where("ended_at < ?", [at], "ended_at, id", -1)

    def ended_owners(self, after: tuple[float, JobId], limit: int) -> list[EndedOwner]:
        """Return whose the jobs were whose (ended_at, id) comes after `after`, in this
        order.
        """
        query = (
            "SELECT id, ended_at, tenant, json_extract(payload, '$.spec.application') "
            "FROM ended WHERE (ended_at, id) > (?, ?) ORDER BY ended_at, id LIMIT ?"
        )
        with self._lock:
            self._write_ended()
            found = self._database.execute(query, (*after, limit)).fetchall()
        return [
            EndedOwner(
                job=job, ended_at=ended_at, tenant=tenant, application=application or ""
            )
            for job, ended_at, tenant, application in found
        ]

    def ended_use(self, since: float) -> list[tuple[str, int, float]]:
        """Return of each tenant how many jobs ended since `since` (s), and their
        GPU-seconds.
        """
        query = (
            "SELECT tenant, COUNT(*), "
            "SUM(json_extract(payload, '$.picture.attained_service_gpu_s')) "
            "FROM ended WHERE ended_at >= ? GROUP BY tenant ORDER BY tenant"
        )
        with self._lock:
            self._write_ended()
            found = self._database.execute(query, (since,)).fetchall()
        return [(tenant, number, gpu_s or 0.0) for tenant, number, gpu_s in found]

    def ids_beginning(self, text: str, limit: int) -> list[JobId]:
        """Return ids of ended jobs that begin so, in order."""
        with self._lock:
            self._write_ended()
            query = "SELECT id FROM ended WHERE id >= ? AND id < ? ORDER BY id LIMIT ?"
            return [
                row[0]
                for row in self._database.execute(
                    query, (text, f"{text}\U0010ffff", limit)
                )
            ]

    def counts(self) -> dict[str, int]:
        """Return the number of ended jobs by state."""
        with self._lock:
            self._write_ended()
            return dict(self._counts)

    def remove(self, jobs: Sequence[JobId]) -> None:
        """Forget ended jobs, and all their rows."""
        with self._lock:
            self.flush()
            with self._database:
                for job in jobs:
                    self._database.execute("DELETE FROM rows WHERE job = ?", (job,))
                    self._database.execute("DELETE FROM ended WHERE id = ?", (job,))
            self._counts = self._counted()

    def remove_rounds(self, before_at: float) -> None:
        """Forget rounds before `before_at` (s), and plans that failed then."""
        with self._lock:
            self.flush()
            with self._database:
                query = (
                    "DELETE FROM rows WHERE job IN (?, ?) AND kind IN (?, ?) AND at < ?"
                )
                self._database.execute(query, (CLUSTER, PLANS, ROUND, LINE, before_at))

    def close(self) -> None:
        with self._lock, closing(self._database):
            self.flush()

    def _open(self) -> sqlite3.Connection:
        if self._path != ":memory:":
            Path(self._path).touch(mode=0o600, exist_ok=True)
        database = sqlite3.connect(self._path, check_same_thread=False, timeout=5.0)
        # The journal is what must survive a loss of power; this file can be rebuilt
        # from it.
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, SCHEMA_VERSION):
            database.close()
            raise sqlite3.DatabaseError(f"version {version}")
        database.executescript(SCHEMA)
        self._stamp(database)
        return database

    def _counted(self) -> dict[str, int]:
        return dict(
            self._database.execute(
                "SELECT state, COUNT(*) FROM ended GROUP BY state"
            ).fetchall()
        )

    def _stamp(self, database: sqlite3.Connection) -> None:
        database.execute(f"PRAGMA user_version={SCHEMA_VERSION}")

    def _ended_where(
        self, where: str, given: Sequence[object], order: str, limit: int
    ) -> list[EndedJob]:
        by = f" ORDER BY {order}" if order else ""
        query = f"SELECT * FROM ended WHERE {where}{by} LIMIT ?"
        with self._lock:
            self._write_ended()
            found = self._database.execute(query, (*given, limit)).fetchall()
        return [
            EndedJob(
                id=row[0],
                name=row[1],
                tenant=row[2],
                state=JobState(row[3]),
                submitted_at=row[4],
                ended_at=row[5],
                **json.loads(row[6]),
            )
            for row in found
        ]


def _in_order(values: Iterable[_Values]) -> list[Row]:
    """Return rows in order of job, event and place; one for those that are in the file
    and still in memory.
    """
    rows = {
        (job, seq, n): Row(
            job=job, seq=seq, n=n, kind=kind, at=at, payload=json.loads(payload)
        )
        for job, seq, n, kind, at, payload in values
    }
    return [rows[place] for place in sorted(rows)]


def _values(job: EndedJob) -> tuple[object, ...]:
    times = (job.submitted_at, job.ended_at)
    payload = {
        "picture": job.picture,
        "spec": job.spec,
        "measured": job.measured,
        "usage": job.usage,
    }
    return (job.id, job.name, job.tenant, job.state.value, *times, json.dumps(payload))
