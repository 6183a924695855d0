"""What replicas write of a model that is cut, and read at another cut:
torch.distributed.checkpoint, safely.

A file per replica and torch's index of them, in a folder. Nothing that is read runs
code: torch's own reader unpickles the index, this one lets it name only what an index
is made of.
"""

import pickle
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

INDEX = ".metadata"
# What torch 2.13 puts into an index; dtypes besides.
ALLOWED = {
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.metadata": {
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "pathlib": {"PosixPath", "WindowsPath"},
    "pathlib._local": {"PosixPath", "WindowsPath"},
}


def write_shards(
    folder: Path, parts: Mapping[str, Tensor], group: dist.ProcessGroup
) -> list[Path]:
    """Write this replica's `parts` into `folder`, durably, and return its own files.
    Collective.

    Raises OSError on every replica if one cannot write.
    """
    try:
        save(dict(parts), storage_writer=FileSystemWriter(folder), process_group=group)
    except CheckpointException as error:  # which is no Exception
        raise OSError(f"no checkpoint in {folder}: {error}") from None
    rank = dist.get_rank(group)
    return [*folder.glob(f"__{rank}_*"), *([folder / INDEX] if rank == 0 else [])]


def read_shards(
    folder: Path,
    targets: dict[str, Tensor],
    *,
    fetch: Callable[[str], object] = lambda _name: None,
) -> dict[str, Tensor]:
    """Fill `targets` with what `folder` has under their names, however that was
    sharded; return them.

    fetch: brings a file of that name there, before it is read. Each replica reads for
    itself. Raises pickle.UnpicklingError if the index is not one, OSError if it has not
    what is asked for, and what `fetch` raises.
    """
    if targets:
        fetch(INDEX)
        reader = _Reader(folder, fetch)
        with warnings.catch_warnings():
            # That no other process takes part, which is meant.
            warnings.filterwarnings(
                "ignore", category=UserWarning, message="torch.distributed is disabled"
            )
            try:
                load(targets, storage_reader=reader, no_dist=True)
            except CheckpointException as error:
                raise reader.error or OSError(
                    f"{folder} cannot be read: {error}"
                ) from None
    return targets


class _Reader(FileSystemReader):
    """Reads as torch's does, after it has read the index as ours is read, and fetched
    what it needs.
    """

    def __init__(self, folder: Path, fetch: Callable[[str], object]) -> None:
        super().__init__(folder)
        self._fetch = fetch
        self.error: Exception | None = None
        with open(folder / INDEX, "rb") as file:
            index = _IndexUnpickler(file).load()
        if not isinstance(index, Metadata):
            raise pickle.UnpicklingError(f"{folder} has no index of tensors")
        self._index = index

    def read_metadata(self, *_args: object, **_kwargs: object) -> Metadata:
        self._index.storage_meta = StorageMeta(load_id=self.load_id)
        return self._index

    def read_data(
        self, plan: LoadPlan, planner: LoadPlanner
    ) -> torch.futures.Future[None]:
        try:
            for name in sorted(
                {
                    self.storage_data[item.storage_index].relative_path
                    for item in plan.items
                }
            ):
                self._fetch(name)
        except Exception as error:
            self.error = error  # torch makes an error of its own of it
            raise
        return super().read_data(plan, planner)


class _IndexUnpickler(pickle.Unpickler):
    """Makes descriptions of tensors only: no other class, no function, nothing that
    holds an object.
    """

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)

    def find_class(self, module: str, name: str) -> object:
        found = super().find_class(module, name) if module in ALLOWED else None
        if found is None or not (
            name in ALLOWED[module] or isinstance(found, torch.dtype)
        ):
            raise pickle.UnpicklingError(
                f"an index of tensors does not name {module}.{name}"
            )
        return found
