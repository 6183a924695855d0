"""Brings a journal that an earlier version of Coadapt wrote over to the schema of this
one.

The file as it was is kept beside it. A journal of a later version is left alone.
"""

# What changed between the versions
#
# 1 to 2 (22 November 2026): rows got checksums, `meta` the number of the last event,
# and some values other names. The values are given their names of today, and the rows
# are rewritten with checksums. Snapshots of version 1 are dropped: its books were built
# otherwise, and it never pruned, so all events are there.
#
# Fields that were added since version 2 began have defaults, so its events are read as
# they are.

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from coadapt.model import InputError
from coadapt.model.errors import StoreError
from coadapt.model.wire import loads
from coadapt.runtime.journal import EVENT_KINDS
from coadapt.runtime.journal_check import Found, Judgement, Row, rewrite
from coadapt.runtime.upkeep.schema_version import SCHEMA_VERSION

BUSY_S = 60.0

Fields = dict[str, Any]


def schema_of(path: Path) -> int | None:
    """Return the version of the journal at `path`, None where there is none or it says
    none.

    Raises StoreError where it is locked.
    """
    if not path.exists() or path.stat().st_size == 0:
        return None
    try:
        with closing(_opened(path)) as database:
            row = database.execute("SELECT schema_version FROM meta").fetchone()
    except sqlite3.Error as error:
        if "locked" in str(error):
            raise StoreError(f"{path} is in use by another process ({error})") from None
        return None
    return int(row[0]) if row and isinstance(row[0], int) else None


def upgrade(path: Path) -> Path | None:
    """Bring the journal at `path` over, if it is of an earlier version; return where
    the old file is kept.

    Raises StoreError, and nothing is changed, where an event of it cannot be read.
    """
    version = schema_of(path)
    if version is None or version >= SCHEMA_VERSION:
        return None
    kept = path.with_name(f"{path.name}.version-{version}")
    rows = _rows_of_version_1(path)
    with closing(_opened(path)) as source:
        kept.touch(mode=0o600)
        with closing(sqlite3.connect(kept)) as copy:
            source.backup(copy)
    rewrite(path, Found(rows=rows), Judgement())
    return kept


def _opened(path: Path) -> sqlite3.Connection:
    # As a writer, which is what a reader of a write-ahead log has to be; nothing is
    # created.
    address = f"file:{quote(str(path))}?mode=rw"
    return sqlite3.connect(address, uri=True, timeout=BUSY_S)


def _rows_of_version_1(path: Path) -> dict[int, Row]:
    rows: dict[int, Row] = {}
    query = "SELECT seq, at, kind, job, payload FROM events ORDER BY seq"
    with closing(_opened(path)) as database:
        found = database.execute(query).fetchall()
    for seq, at, _, job, payload in found:
        if seq != len(rows) + 1:
            raise StoreError(f"{path} was harmed: event {len(rows) + 1} is missing")
        try:
            kind, text = _event_of_version_1(payload)
            loads(EVENT_KINDS, text)
        except (InputError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(
                f"{path}: event {seq} of version 1 cannot be read ({error}); let its "
                f"jobs end under the "
                "coadapt that wrote it, or begin with another state directory"
            ) from None
        rows[seq] = Row(seq, float(at), kind, job, text, "")
    return rows


def _event_of_version_1(payload: str) -> tuple[str, str]:
    """Return kind and payload of an event under their names of today."""
    envelope = json.loads(payload)
    kind = str(envelope["type"])
    if kind == "ReplicasRescaled":
        kind = envelope["type"] = "TrainingResumed"
    change = _CHANGES_OF_1.get(kind)
    if change is not None:
        change(envelope["data"])
    return kind, json.dumps(envelope, separators=(",", ":"))


def _submitted(data: Fields) -> None:
    tenant = data["spec"].get("tenant")
    if isinstance(tenant, dict):
        data["spec"]["tenant"] = tenant.get("id", "default")


def _reported(data: Fields) -> None:
    report = data["report"]
    num_profiled = report.pop("num_replicas_profiled", None)
    profiled = {} if num_profiled is None else {"num_replicas_profiled": num_profiled}
    report["by_type"] = {
        gpu_type: {"params": params, **profiled}
        for gpu_type, params in report.pop("throughput", {}).items()
    }


def _configured(data: Fields) -> None:
    if "resize_in_place" in data["config"]:
        data["config"]["rescale_in_place"] = data["config"].pop("resize_in_place")


def _planned(data: Fields) -> None:
    """Name the GPUs of a job that has a share of each; version 1 counted them only."""
    for allocation in data["plan"].get("allocations", {}).values():
        if allocation.get("gpu_share", 1.0) < 1.0:
            counts = [count for _, count in allocation["slots"]]
            allocation["shared"] = [gpu for count in counts for gpu in range(count)]


_CHANGES_OF_1: dict[str, Callable[[Fields], None]] = {
    "JobSubmitted": _submitted,
    "TrainingReported": _reported,
    "SchedulerConfigured": _configured,
    "PlanReady": _planned,
}
