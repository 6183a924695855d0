"""Streams of libraries that know of ranks: webdataset and mosaicml-streaming. Where a
library is not installed, a stand-in splits in the same way.
"""

import itertools
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

import coadapt.train as ct
from tests.train.replicas import run_replicas

pytestmark = [pytest.mark.train, pytest.mark.processes]

NUM_SHARDS = 4
NUM_SAMPLES = 96
PER_SHARD = NUM_SAMPLES // NUM_SHARDS
Splitter = Callable[[Iterable[str]], Iterator[str]]


def rank_and_size() -> tuple[int, int]:
    """Both libraries read them from the environment when the stream is opened."""
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def split_by_node(shards: Iterable[str]) -> Iterator[str]:
    rank, size = rank_and_size()
    return itertools.islice(shards, rank, None, size)


def single_node_only(shards: Iterable[str]) -> Iterator[str]:
    """webdataset's default."""
    _, size = rank_and_size()
    if size > 1:
        raise ValueError(
            "you need to add an explicit nodesplitter to your input pipeline for "
            "multi-node training"
        )
    return iter(shards)


class ShardPipeline(IterableDataset[tuple[Tensor, Tensor]]):
    """As a pipeline of webdataset: a splitter chooses shards, their samples follow."""

    def __init__(self, shards: list[str], splitter: Splitter | None) -> None:
        self.shards = shards
        self.splitter = splitter

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        shards = iter(self.shards) if self.splitter is None else None
        chosen = shards or self.splitter(self.shards)  # type: ignore[misc]  # one of both
        for shard in chosen:
            with tarfile.open(shard) as tar:
                for member in tar:
                    file = tar.extractfile(member)
                    assert file is not None
                    yield torch.ones(2), torch.tensor(float(file.read()))


class Streaming(IterableDataset[tuple[Tensor, Tensor]]):
    """As mosaicml's StreamingDataset: iterated over, each rank has its part; an index
    gives any sample.
    """

    def __len__(self) -> int:
        _, size = rank_and_size()
        return NUM_SAMPLES // size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        rank, size = rank_and_size()
        part = NUM_SAMPLES // size
        return (self[index] for index in range(rank * part, (rank + 1) * part))

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.ones(2), torch.tensor(float(index))


class ByIndex(Dataset[tuple[Tensor, Tensor]]):
    """What the message of a refused stream asks for."""

    def __init__(self, stream: Streaming) -> None:
        self.stream = stream

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.stream[index]


def write_shards(folder: Path) -> None:
    for shard in range(NUM_SHARDS):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for number in range(shard * PER_SHARD, (shard + 1) * PER_SHARD):
                content = str(number).encode()
                info = tarfile.TarInfo(f"{number:04}.txt")
                info.size = len(content)
                tar.addfile(info, BytesIO(content))


def from_webdataset(shards: list[str], splitter: str) -> Iterable[object]:
    import webdataset

    chosen = {
        "split_by_node": {"nodesplitter": webdataset.split_by_node},
        "default": {},
        "none": {"nodesplitter": None},
    }[splitter]
    stream = webdataset.WebDataset(shards, shardshuffle=False, **chosen).decode()
    return stream.map(  # type: ignore[no-any-return]  # the library has no types
        lambda sample: (torch.ones(2), torch.tensor(float(sample["txt"])))
    )


def data_of(case: str, folder: str) -> object:
    library, _, way = case.partition(" ")
    shards = [f"{folder}/{shard}.tar" for shard in range(NUM_SHARDS)]
    splitters: dict[str, Splitter | None] = {
        "split_by_node": split_by_node,
        "default": single_node_only,
        "none": None,
    }
    match library:
        case "webdataset":
            return from_webdataset(shards, way)
        case "pipeline":
            return ShardPipeline(shards, splitters[way])
    return ByIndex(Streaming()) if way == "index" else Streaming()


def train_on(job: tuple[str, str]) -> None:
    case, folder = job
    torch.set_num_threads(1)
    run = ct.init()
    net = nn.Linear(2, 1)
    model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=1e-3))
    loader = run.loader(data_of(case, folder), batch_size=12)  # type: ignore[arg-type]  # of several kinds
    seen: list[int] = []
    for _ in run.epochs(1):
        for x, ids in loader:  # type: ignore[misc]  # a pair
            seen += ids.int().tolist()
            model(x).mean().backward()
            optimizer.step()
    Path(folder, f"seen-{run.rank}").write_text(" ".join(map(str, seen)))


def needs(case: str) -> None:
    if case.startswith("webdataset") and find_spec("webdataset") is None:
        pytest.skip("webdataset is not installed")


def trained_on(folder: Path) -> list[int]:
    texts = [path.read_text() for path in folder.glob("seen-*")]
    return sorted(int(number) for text in texts for number in text.split())


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("pipeline split_by_node", "webdataset: nodesplitter=None"),
        ("webdataset split_by_node", "webdataset: nodesplitter=None"),
        ("pipeline default", "nodesplitter=None"),
        ("webdataset default", "nodesplitter=None"),
        ("streaming", "mosaicml: a Dataset that returns stream[index]"),
    ],
)
def test_a_stream_that_splits_itself_is_refused_with_what_to_write(
    case: str, said: str, tmp_path: Path
) -> None:
    needs(case)
    write_shards(tmp_path)
    codes = run_replicas(train_on, [(case, str(tmp_path))] * 2, tmp_path)
    output = "".join(path.read_text() for path in tmp_path.glob("output-*.txt"))
    assert 0 not in codes, output
    assert said in output
    assert trained_on(tmp_path) == []


@pytest.mark.parametrize(
    "case", ["pipeline none", "webdataset none", "streaming index"]
)
def test_what_the_message_asks_for_trains_on_each_sample_once(
    case: str, tmp_path: Path
) -> None:
    needs(case)
    write_shards(tmp_path)
    codes = run_replicas(train_on, [(case, str(tmp_path))] * 2, tmp_path)
    assert codes == [0, 0]
    assert trained_on(tmp_path) == list(range(NUM_SAMPLES))
