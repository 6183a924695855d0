"""Training without a data set: each sample is a seed, from which the loop makes its
training data.
"""

# Reinforcement learning and simulations draw their batches by themselves. If each
# replica used its own generators for this, training would differ with the number of
# replicas. So seeds are divided over the replicas, as if they were samples of a data
# set. Sample i has the same seed on any replica. Weights, passes, the position,
# checkpoints and changes in place work as for any data set.

from torch.utils.data import Dataset

from coadapt.model import InputError

# Their order is held in memory, eight bytes each.
SAMPLES_MAX = 100_000_000
SEEDS = 2**63  # more than torch's generators accept


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
        # With seed 0 these are the numbers 0, 1, 2, … of a plain loop. That is enough,
        # because generators hash their seed.
        return (self._seed * SAMPLES_MAX + index) % SEEDS


def as_list(seeds: list[int]) -> list[int]:
    """Collate seeds: a list, not a tensor, since generators take plain numbers."""
    return seeds
