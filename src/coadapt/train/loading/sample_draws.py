"""A data set whose random numbers (for augmentation) follow from each sample's place in
the run.
"""

# A fetch process seeds Python's, NumPy's and torch's global generators before each
# sample, by the run's seed, the epoch and the sample's place in it. This takes 16 us.
# So a sample is augmented in the same way in any process, on any replica and after a
# restart. For a data set that fetches a whole batch at once (`__getitems__`), the seed
# follows from the place of the batch's first sample, so its random numbers depend on
# how a step is cut.

from collections.abc import Sequence

from torch.utils.data import Dataset, TensorDataset, get_worker_info

from coadapt.train.rng import seed_for_data

# torch's data sets that draw no random numbers.
DRAW_NOTHING = (TensorDataset,)

Keyed = tuple[int, int]


class SampleDraws(Dataset[object]):
    """A data set whose items are requested by a pair: the index in the user's data set,
    and the key of the random numbers.
    """

    def __init__(self, dataset: "Dataset[object]") -> None:
        self.dataset = dataset

    def __getitem__(self, item: Keyed) -> object:
        index, key = item
        seed_for_data(key)
        return self.dataset[index]


class BatchedSampleDraws(SampleDraws):
    """As `SampleDraws`, for a data set that fetches several samples at once."""

    def __getitems__(self, items: Sequence[Keyed]) -> object:
        seed_for_data(items[0][1])
        return self.dataset.__getitems__([index for index, _ in items])  # type: ignore[attr-defined]  # it has it


def with_draws(dataset: "Dataset[object]") -> SampleDraws | None:
    """Return `dataset` with random numbers by sample, None if it draws none."""
    if type(dataset) in DRAW_NOTHING:
        return None
    batched = callable(getattr(dataset, "__getitems__", None))
    return BatchedSampleDraws(dataset) if batched else SampleDraws(dataset)


def show_inner_dataset() -> None:
    """In a fetch process, show the user's code its own data set."""
    info = get_worker_info()
    if info is not None and isinstance(info.dataset, SampleDraws):
        object.__setattr__(info, "dataset", info.dataset.dataset)  # it is frozen
