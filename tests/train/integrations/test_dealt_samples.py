"""Which samples a Trainer's loader deals to a replica, as `coadapt check` is told."""

from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

accelerate = pytest.importorskip("accelerate.data_loader")
pytest.importorskip("transformers")

from coadapt.train.integrations.transformers import note_batches  # noqa: E402  # where it is installed

pytestmark = pytest.mark.train


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("skipped", [0, 3])
def test_each_batch_is_told_at_its_place(num_workers: int, skipped: int) -> None:
    """Also where some are skipped, as after a restart, and where fetch processes run ahead."""
    data = TensorDataset(torch.arange(40))
    plain = DataLoader(data, batch_size=2, shuffle=True, num_workers=num_workers)
    loader = accelerate.prepare_data_loader(
        plain, num_processes=2, process_index=1, put_on_device=False
    )
    noted = note_batches(loader)
    assert noted is not None
    if skipped:
        loader = accelerate.skip_first_batches(loader, skipped)
    for _ in range(2):
        seen = []
        for place, (x,) in enumerate(loader, skipped):
            assert noted.samples(place, 1) == x.tolist()
            seen += x.tolist()
        assert len(seen) == len(set(seen)) == 20 - 2 * skipped


def test_a_stream_has_no_indices() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(())

    assert note_batches(DataLoader(Stream())) is None
