"""Training without a data set: each sample is a seed, from which the loop makes what it
trains on.
"""

# Reinforcement learning and simulations draw their batches themselves. Were that left
# to each replica's generators, another number of replicas would be another training. So
# what is dealt out is not data but seeds, as if they were samples of a data set: sample
# i has the same seed on whichever replica it comes to, and all else (weights, passes,
# position, checkpoints, changes in place) is that of any data set.

from torch.utils.data import Dataset

from coadapt.model import InputError

# Their order is held in memory, eight bytes each.
SAMPLES_MAX = 100_000_000
SEEDS = 2**63  # more than generators of torch take


class SeedSamples(Dataset[int]):
    """The seeds of all samples of a run, whole numbers below 2^63."""

    def __init__(self, num_steps: int, batch_size: int, seed: int) -> None:
        """Raises InputError for less than a step, or more samples than SAMPLES_MAX."""
        for name, value in (("num_steps", num_steps), ("batch_size", batch_size)):
            if value < 1:
                raise InputError(f"steps({name})", value, "at least 1")
        if num_steps * batch_size > SAMPLES_MAX:
            allowed = f"{SAMPLES_MAX // batch_size} of {batch_size} samples each"
            raise InputError("steps(num_steps)", num_steps, allowed)
        self._num_samples = num_steps * batch_size
        self._seed = seed

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> int:
        # With seed 0 what a plain loop counts by itself; generators hash what they are
        # seeded with.
        return (self._seed * SAMPLES_MAX + index) % SEEDS


def as_list(seeds: list[int]) -> list[int]:
    """Collate seeds: a list, not a tensor, since generators take plain numbers."""
    return seeds
