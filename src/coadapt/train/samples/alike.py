"""Checks whether all replicas get the same data, by digests of the samples that each
one reads, and says how to fix the script if not.

Nothing here talks to other replicas; `loading/comparison.py` does.
"""

# A replica trains on its part of each step. That is right only if all replicas read the
# same step. A stream that splits itself by RANK and WORLD_SIZE (webdataset, datasets,
# mosaicml, or by hand) would be split twice. A stream that is shuffled without a seed
# would give some samples twice and others never. Neither causes an error. So before the
# first pass of an epoch, and of a group, the replicas compare the first samples of the
# step that they are about to share.
#
# What may differ. If a stream augments, its images differ between replicas, and its
# labels do not. So samples are compared part by part (`Row`). If a part differs, each
# replica reads the beginning of the stream twice more, on copies. Parts that differ
# between these two readings are random and do not count. If at least one other part
# varies from sample to sample, and all other parts are equal, the streams are alike.

import hashlib
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset

# The numbers of samples that are compared, and that are read again if they differ.
COMPARED = 8
READ_AGAIN = 64
# The depth to which the parts of a sample are compared one by one.
DEPTH_MAX = 4
# If streams differ only in order, at least this share of samples is in both beginnings.
COMMON_MIN = 0.2

# The parts of a sample: the digest of each part by its place in the sample.
Row = Mapping[str, str]

WHOLE = (
    "the whole stream, the same on every replica, which run.loader deals out "
    "(webdataset: nodesplitter=None; "
    "datasets: no split_dataset_by_node; your own: no RANK and WORLD_SIZE; mosaicml: "
    "a Dataset that returns "
    "stream[index]), or coadapt.train.ShardedStream, of which each replica opens its "
    "own files"
)
SEED = (
    "an order that follows from a seed, the same on every replica, and the epoch "
    "(set_epoch)"
)
TRUST = (
    "or run.loader(..., compare=False) if all replicas get the same samples in the "
    "same order, and only what "
    "is drawn at random for a sample differs"
)
LENGTH = "length"
# The number of samples that are compared of a data set with indices, if it has as many.
SAMPLES_OUTLINED = 8
LEAST_COMPARED = 8
NODESPLITTER = "nodesplitter"  # webdataset's own error asks for one on several replicas


@dataclass(frozen=True, slots=True)
class Unlike:
    """What the replicas get, and what they should get."""

    given: str
    allowed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one replica reads. rows: the digests of the first samples of its coming
    step.

    begins: the digests of the first samples of the epoch. steady: the parts that were
    equal when these were read again; None: they could not be read again.
    """

    rows: Sequence[Row]
    begins: Sequence[Row] = ()
    steady: frozenset[str] | None = None


def rows_of(samples: Sequence[object]) -> list[Row]:
    """Return the digests of the parts of each of the first samples."""
    return [_row(sample) for sample in samples[:COMPARED]]


def why_unlike(readings: Sequence[Reading]) -> Unlike | None:
    """Return how the replicas' streams differ and how to fix the script, None if they
    are alike.
    """
    first = readings[0]
    if all(reading.rows == first.rows for reading in readings):
        return None
    split = (
        "a part of the samples on each replica, of which only a part would be "
        "trained on"
    )
    if any(reading.steady is None for reading in readings):
        return Unlike(f"{split}, or another order on each", f"{WHOLE}; {SEED}; {TRUST}")
    steady = frozenset.intersection(
        *(reading.steady or frozenset() for reading in readings)
    )
    count = min(len(reading.begins) for reading in readings)
    dealt = [_only(reading.rows, steady) for reading in readings]
    begins = [_only(reading.begins[:count], steady) for reading in readings]
    begin_alike = all(rows == begins[0] for rows in begins)
    if begin_alike and all(rows == dealt[0] for rows in dealt) and _varies(begins[0]):
        return None
    if not any(_varies(rows) for rows in begins):
        return Unlike(
            "an order drawn at random without a seed: some samples would come twice, "
            "others never",
            f"{SEED}; {TRUST}",
        )
    if begin_alike:
        return Unlike(
            "streams that begin alike but lead to different samples where training "
            "goes on",
            'a stream that repeats itself; try run.loader(..., resume="reading")',
        )
    if _common(begins) >= COMMON_MIN:
        return Unlike(
            "another order on each replica: some samples would come twice, others "
            "never",
            SEED,
        )
    return Unlike(split, f"{WHOLE}; {SEED}")


def why_later_unlike(
    seen: Sequence[tuple[Sequence[Row], frozenset[str] | None]],
) -> Unlike | None:
    """Return how streams differ that began alike, None if only random parts differ.

    seen: for each replica, rows of one step, and the steady parts as in `Reading`.
    """
    given = "other samples of a stream that began alike"
    if any(parts is None for _, parts in seen):
        return Unlike(given, f"{SEED}; {WHOLE}; {TRUST}")
    steady = frozenset.intersection(*(parts or frozenset() for _, parts in seen))
    rows = [_only(own, steady) for own, _ in seen]
    if steady and all(own == rows[0] for own in rows):
        return None
    return Unlike(given, f"{SEED}; {WHOLE}")


def only_parts(rows: Sequence[Row], names: frozenset[str] | None) -> Sequence[Row]:
    """Return `rows` with only the parts of these names; None: with all parts."""
    return rows if names is None else _only(rows, names)


def steady_parts(one: Sequence[Row], other: Sequence[Row]) -> frozenset[str]:
    """Return the parts that are equal in two readings of the same samples."""
    if len(one) != len(other):
        return frozenset()
    names = {name for row in (*one, *other) for name in row}
    return frozenset(
        name
        for name in names
        if all(a.get(name) == b.get(name) for a, b in zip(one, other, strict=True))
    )


def data_outline(dataset: object) -> dict[str, str]:
    """Return digests of the properties of a data set with indices that show which
    samples it has, without reading samples.

    These are its length, the indices of subsets, the parts of a concatenation, and two
    rows of a Hugging Face data set, which reads only a few bytes of a table.
    """
    found: dict[str, str] = {}
    _outline(dataset, "data set", found)
    return found


def _outline(dataset: object, where: str, found: dict[str, str]) -> None:
    length = len(dataset) if hasattr(dataset, "__len__") else -1
    found[f"{LENGTH} of the {where}"] = str(length)
    if isinstance(dataset, Subset):
        found[f"indices of the {where}"] = digest(np.asarray(dataset.indices))
        _outline(dataset.dataset, f"{where}'s base", found)
    elif isinstance(dataset, ConcatDataset):
        for number, part in enumerate(dataset.datasets):
            _outline(part, f"{where}'s part {number}", found)
    elif (
        length > 0 and hasattr(dataset, "with_format") and hasattr(dataset, "features")
    ):
        plain = dataset.with_format(None)
        found[f"rows of the {where}"] = digest([plain[0], plain[length // 2]])


def sample_outline(dataset: object) -> dict[str, list[str]]:
    """Return digests of the values that a data set with indices holds in memory for
    some of its samples, by their place in it. No sample is read from the data set
    itself.

    These are tensors, arrays and lists as long as the data set: the tensors of a
    `TensorDataset`, or file names and labels of a folder of images. Only the name of a
    file counts, not its folder.
    """
    found: dict[str, list[str]] = {}
    _outline_samples(dataset, "", found)
    return found


def differ_in_samples(
    one: Mapping[str, list[str]], other: Mapping[str, list[str]]
) -> bool:
    """Return whether two data sets of equal length have different samples at equal
    indices. They have if all values that they hold of the samples, and that vary, are
    different.

    Values drawn at random for each sample may differ while names or labels are equal.
    """
    varies = [
        name
        for name in one.keys() & other.keys()
        if len(set(one[name])) > 1 or len(set(other[name])) > 1
    ]
    return bool(varies) and all(one[name] != other[name] for name in varies)


def _outline_samples(dataset: object, where: str, found: dict[str, list[str]]) -> None:
    if isinstance(dataset, Subset):
        _outline_samples(dataset.dataset, f"{where}/base", found)
        return
    if isinstance(dataset, ConcatDataset):
        for number, part in enumerate(dataset.datasets):
            _outline_samples(part, f"{where}/{number}", found)
        return
    length = len(dataset) if hasattr(dataset, "__len__") else 0
    if length < LEAST_COMPARED:
        return
    places = [length * part // SAMPLES_OUTLINED for part in range(SAMPLES_OUTLINED)]
    parts = dict(getattr(dataset, "__dict__", {}))
    tensors = parts.pop("tensors", None)
    if isinstance(tensors, tuple):
        parts |= {f"tensors/{number}": each for number, each in enumerate(tensors)}
    for name, value in parts.items():
        if not isinstance(value, list | tuple | np.ndarray | Tensor):
            continue
        if (isinstance(value, np.ndarray | Tensor) and not value.ndim) or (
            len(value) != length
        ):
            continue
        samples = [_plain(value[place]) for place in places]
        if all(sample is not None for sample in samples):
            found[f"{where}/{name}"] = [digest(sample) for sample in samples]


def _plain(sample: object, depth: int = 0) -> object:
    """Return a value that is equal in all processes for equal samples. None for other
    values, and for a single number that may be random.
    """
    if isinstance(sample, str):
        return sample.rpartition("/")[2]
    if isinstance(sample, np.ndarray | np.generic | Tensor):
        return _plain_array(sample)
    if isinstance(sample, bytes | bool | int):
        return sample
    if isinstance(sample, list | tuple) and depth < DEPTH_MAX:
        parts = [_plain(each, depth + 1) for each in sample]
        return None if any(each is None for each in parts) else parts
    return None


def _plain_array(sample: np.ndarray | np.generic | Tensor) -> object:
    if isinstance(sample, Tensor):
        odd = sample.is_sparse or sample.is_quantized
        return (
            None if odd or (not sample.ndim and sample.is_floating_point()) else sample
        )
    if sample.dtype.kind == "O" or (not sample.ndim and sample.dtype.kind == "f"):
        return None
    return np.asarray(sample)


def digest(value: object) -> str:
    """Return a digest of a value: equal in all processes for equal plain values, arrays
    and tensors.
    """
    return hashlib.blake2b(_content(value), digest_size=8).hexdigest()


def _row(sample: object) -> dict[str, str]:
    parts: dict[str, str] = {}
    _take_apart("", sample, parts, 0)
    return parts


def _take_apart(where: str, value: object, parts: dict[str, str], depth: int) -> None:
    inner: Mapping[object, object] = {}
    if depth < DEPTH_MAX:
        inner = _inside(value)
    if not inner:
        parts[where] = digest(value)
        return
    for name, item in inner.items():
        _take_apart(f"{where}/{name}", item, parts, depth + 1)


def _inside(value: object) -> Mapping[object, object]:
    """Return the named parts of a container, none if it is compared as a whole."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, list | tuple):
        plain = all(isinstance(item, int | float | str | bytes) for item in value)
        # A list of tokens is one part; a pair of an image's name and its label is two.
        return {} if plain and len(value) > COMPARED else dict(enumerate(value))
    if isinstance(value, Tensor | np.ndarray | np.generic) or hasattr(value, "tobytes"):
        return {}
    return dict(getattr(value, "__dict__", {}))


def _content(value: object) -> bytes:
    """Return bytes that are equal for equal values. For other kinds of values, the name
    of the type.
    """
    kind = type(value).__name__.encode()
    if value is None or isinstance(value, bool | int | float | complex | str):
        return kind + repr(value).encode(errors="replace")
    if isinstance(value, bytes | bytearray | memoryview):
        return kind + bytes(value)
    if isinstance(value, Mapping):
        items = sorted((repr(key), digest(item)) for key, item in value.items())
        return kind + repr(items).encode(errors="replace")
    if isinstance(value, set | frozenset):
        return kind + repr(sorted(map(digest, value))).encode()
    if isinstance(value, list | tuple):
        return kind + b"".join(digest(item).encode() for item in value)
    try:
        return kind + _raw(value)
    except Exception:  # noqa: BLE001  # a sample may be anything, also what cannot be written
        return kind


def _raw(value: object) -> bytes:
    if isinstance(value, Tensor):
        if value.is_sparse or value.is_quantized:
            return repr(value).encode()
        numbers = value.detach().cpu().contiguous().reshape(-1)
        raw = bytes(numbers.view(torch.uint8).numpy().tobytes())
        return f"{tuple(value.shape)}{value.dtype}".encode() + raw
    tobytes = getattr(value, "tobytes", None)
    if callable(tobytes):
        shape = getattr(value, "shape", getattr(value, "size", ""))
        return f"{shape}".encode() + bytes(tobytes())
    return pickle.dumps(value)


def _only(rows: Sequence[Row], names: frozenset[str]) -> list[dict[str, str]]:
    return [{name: row[name] for name in sorted(names & row.keys())} for row in rows]


def _varies(rows: Sequence[Row]) -> bool:
    """Return whether the samples differ from each other. A single sample counts as
    different if it has a part.
    """
    if len(rows) < 2:
        return any(rows)
    return any(row != rows[0] for row in rows)


def _common(begins: Sequence[Sequence[Row]]) -> float:
    """Return the share of the first replica's first samples that another replica has
    among its first samples.
    """
    first, *others = [{tuple(sorted(row.items())) for row in rows} for rows in begins]
    if not first:
        return 0.0
    return max((len(first & other) / len(first) for other in others), default=0.0)
