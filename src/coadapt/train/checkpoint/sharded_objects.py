"""What replicas write of a model that is cut, into an object store: an object for each,
and an index.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemBase, FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from coadapt.objects import HashingFile, ObjectFolder
from coadapt.train.checkpoint.sharded_files import INDEX

# torch has a writer for fsspec too. Ours hashes while it writes, so that the data need
# not be read again, and never renames, which a store does by copying: the manifest says
# which index counts.
BESIDE = ".tmp"


def write_shards(
    objects: ObjectFolder,
    folder: str,
    parts: Mapping[str, Tensor],
    group: dist.ProcessGroup,
) -> dict[str, str]:
    """Write this replica's `parts` into `folder`; return its objects' names -> SHA-256.
    Collective.

    Raises OSError on every replica if one cannot write.
    """
    writer = _Writer(objects, folder)
    try:
        save(dict(parts), storage_writer=writer, process_group=group)
    except CheckpointException as error:  # which is no Exception
        raise OSError(f"no checkpoint in {objects.url}/{folder}: {error}") from None
    return writer.into.digests


class _Writer(FileSystemWriter):
    def __init__(self, objects: ObjectFolder, folder: str) -> None:
        super().__init__(folder, sync_files=False)
        self.into = _Objects(objects)
        self.fs = self.into  # type: ignore[assignment]  # torch's own, for fsspec, does so
        self.path = folder


class _Objects(FileSystemBase):
    """What torch's writer asks of a file system. digests: of the objects that were
    written, by name.
    """

    def __init__(self, objects: ObjectFolder) -> None:
        self._objects = objects
        self.digests: dict[str, str] = {}

    @contextmanager
    def create_stream(  # type: ignore[override]  # it has what torch asks of a stream
        self, path: str | os.PathLike[str], mode: str
    ) -> Iterator[HashingFile]:
        assert mode == "wb", f"a writer opens nothing with {mode}"
        path = str(path).removesuffix(BESIDE)
        written: HashingFile
        with self._objects.create(path) as written:
            yield written
        self.digests[path.rpartition("/")[2]] = written.digest()

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        return f"{path}/{suffix}"

    def init_path(self, path: str | os.PathLike[str]) -> str:
        return str(path)

    def rename(
        self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]
    ) -> None:
        """Nothing: the index was written under its own name."""
        assert str(new_path).endswith(INDEX), (
            f"{path} is not to be renamed to {new_path}"
        )

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Nothing: a store has no folders."""

    def exists(self, path: str | os.PathLike[str]) -> bool:  # noqa: ARG002  # the form of torch's
        return False

    def ls(self, path: str | os.PathLike[str]) -> list[str]:
        raise NotImplementedError(f"a writer lists nothing, not {path}")

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        raise NotImplementedError(f"a writer removes nothing, not {path}")

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003  # as above
        return True
