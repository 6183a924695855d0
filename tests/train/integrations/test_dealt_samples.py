"""Which samples a Trainer's loader deals to a replica, as `coadapt check` is told."""

from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

pytestmark = pytest.mark.train


@pytest.fixture(autouse=True)
def installed() -> None:
    """Skip where they are not installed; they take seconds to import, so no module
    does.
    """
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers")


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("skipped", [0, 3])
def test_each_batch_is_told_at_its_place(num_workers: int, skipped: int) -> None:
    """Also where some are skipped, as after a restart, and where fetch processes run
    ahead.
    """
    from accelerate import data_loader as accelerate

    from coadapt.train.integrations.transformers import note_batches

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
    from coadapt.train.integrations.transformers import note_batches

    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(())

    assert note_batches(DataLoader(Stream())) is None
