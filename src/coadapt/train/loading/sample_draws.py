"""A data set whose random numbers (augmentation) follow from each sample's place in the
run.
"""

# A fetch process sets Python's, NumPy's and torch's global generators before each
# sample, by the run's seed, the epoch and the sample's place in it: 16 us. So the same
# sample is augmented alike whichever process and replica fetches it, and after a
# restart. A data set that fetches a whole batch at once (`__getitems__`) is set by the
# place of the batch's first sample, so its draws depend on how a step is cut.

from collections.abc import Sequence

from torch.utils.data import Dataset, TensorDataset, get_worker_info

from coadapt.train.rng import seed_for_data

# Data sets of torch's that draw nothing.
DRAW_NOTHING = (TensorDataset,)

Keyed = tuple[int, int]


class SampleDraws(Dataset[object]):
    """Items are asked for by a pair: the index in the data set, and the key of what is
    drawn for it.
    """

    def __init__(self, dataset: "Dataset[object]") -> None:
        self.dataset = dataset

    def __getitem__(self, item: Keyed) -> object:
        index, key = item
        seed_for_data(key)
        return self.dataset[index]


class BatchedSampleDraws(SampleDraws):
    """As `SampleDraws`, of a data set that fetches several samples at once."""

    def __getitems__(self, items: Sequence[Keyed]) -> object:
        seed_for_data(items[0][1])
        return self.dataset.__getitems__([index for index, _ in items])  # type: ignore[attr-defined]  # it has it


def with_draws(dataset: "Dataset[object]") -> SampleDraws | None:
    """Return `dataset` with draws by sample; None where it draws nothing."""
    if type(dataset) in DRAW_NOTHING:
        return None
    batched = callable(getattr(dataset, "__getitems__", None))
    return BatchedSampleDraws(dataset) if batched else SampleDraws(dataset)


def show_inner_dataset() -> None:
    """In a fetch process: let the user's code see its own data set there."""
    info = get_worker_info()
    if info is not None and isinstance(info.dataset, SampleDraws):
        object.__setattr__(info, "dataset", info.dataset.dataset)  # it is frozen
