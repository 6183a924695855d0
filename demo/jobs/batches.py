"""A data set of tensors that hands over whole batches: row by row, cutting would take most of the time."""

from torch import Tensor
from torch.utils.data import Dataset


class Batches(Dataset[tuple[Tensor, ...]]):
    """Rows of equally long tensors. Give `collate` to the data loader: batches come in one piece."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitems__(self, rows: list[int]) -> tuple[Tensor, ...]:
        return tuple(tensor[rows] for tensor in self.tensors)

    @staticmethod
    def collate(batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return batch
