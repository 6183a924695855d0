"""The comparison of the replicas' coming training data. `samples/alike.py` explains how
and why.
"""

import copy
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from coadapt.model import InputError
from coadapt.train.group.group import gather_all
from coadapt.train.loading.fetch import Fetched
from coadapt.train.rng import restore_rng, rng_state
from coadapt.train.samples.alike import (
    LENGTH,
    NODESPLITTER,
    READ_AGAIN,
    Reading,
    Row,
    data_outline,
    differ_in_samples,
    rows_of,
    sample_outline,
    steady_parts,
    why_unlike,
)
from coadapt.train.session import Session

READ_AGAIN_S = 10.0
STREAM = "loader(dataset)"
WHOLE_DATA = (
    "the whole data set, the same on every replica, which run.loader deals out: no "
    "rank in Subset, shard or "
    "split_dataset_by_node; random_split with "
    "generator=torch.Generator().manual_seed(0)"
)


def compare_streams(session: Session, dataset: object, rows: Sequence[Row]) -> None:
    """Raise InputError unless all replicas are about to use the same samples. rows:
    this replica's. Collective.
    """
    all_rows = gather_all(session.group, rows)
    if all(other == all_rows[0] for other in all_rows):
        return
    readings = gather_all(session.group, read_again(session, dataset, rows))
    unlike = why_unlike(readings)
    if unlike is not None:
        raise InputError(STREAM, unlike.given, unlike.allowed)


def compare_data(session: Session, dataset: object) -> int | None:
    """Raise InputError unless the data sets of all replicas have the same outline.
    Collective.

    Return a replica whose samples in memory differ from those of replica 0 at equal
    indices, None if there is none.
    """
    gathered = gather_all(
        session.group, (data_outline(dataset), sample_outline(dataset))
    )
    first, first_samples = gathered[0]
    unlike = None
    for rank, (outline, samples) in enumerate(gathered):
        for name in sorted(outline.keys() | first.keys()):
            if outline.get(name) == first.get(name):
                continue
            given = f"replicas 0 and {rank} with different {name}"
            if name.startswith(LENGTH):
                given += f" ({first.get(name)} and {outline.get(name)})"
            raise InputError("loader(dataset)", given, WHOLE_DATA)
        if unlike is None and differ_in_samples(first_samples, samples):
            unlike = rank
    return unlike


def first_of(passes: Iterator[Fetched]) -> list[Fetched]:
    """Return the first pass of a stream, none if the stream is empty.

    Raises InputError if webdataset asks for a nodesplitter, because its usual one would
    split the data twice.
    """
    try:
        return list(itertools.islice(passes, 1))
    except ValueError as error:
        if NODESPLITTER not in str(error):
            raise
        allowed = (
            "nodesplitter=None: every replica reads all, and run.loader deals it out"
        )
        raise InputError("webdataset", "no nodesplitter", allowed) from error


def read_again(session: Session, dataset: object, rows: Sequence[Row]) -> Reading:
    """Return `rows`, and the common parts of two readings of the stream's beginning, on
    copies of it.
    """
    device = session.group.device
    generators = rng_state(device)
    try:
        one = _beginning(dataset, session.progress.epoch)
        other = _beginning(dataset, session.progress.epoch)
    except Exception:  # noqa: BLE001  # whatever the user's stream raises when it is copied or read once more
        return Reading(rows=rows)
    finally:
        restore_rng(generators, device)
    count = min(len(one), len(other))
    steady = steady_parts(one[:count], other[:count])
    return Reading(rows=rows, begins=one[:count], steady=steady)


def _beginning(dataset: object, epoch: int) -> list[Row]:
    """Return the rows of the first samples of an epoch, on a copy of the stream.

    Raises TypeError for a stream that can be read only once.
    """
    fresh = copy.deepcopy(dataset)
    if (set_epoch := getattr(fresh, "set_epoch", None)) is not None:
        set_epoch(epoch)
    samples = iter(cast("Iterable[object]", fresh))
    if samples is fresh:
        raise TypeError("an iterator is read once only")
    until = time.monotonic() + READ_AGAIN_S
    rows: list[Row] = []
    for sample in itertools.islice(samples, READ_AGAIN):
        rows += rows_of([sample])
        if time.monotonic() > until:
            break
    return rows
