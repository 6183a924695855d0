"""The state of the random generators that a training loop draws from, as plain values
and tensors.
"""

import random
from typing import cast

import numpy as np
import torch
from numpy import random as numpy_random
from numpy.typing import NDArray

# NumPy's legacy generator takes 32 bits.
NUMPY_SEEDS = 2**32


def rng_state(device: torch.device) -> dict[str, object]:
    """Return the state of Python's, NumPy's and torch's global generators."""
    legacy = numpy_random.get_state(legacy=True)  # noqa: NPY002  # the user's code may draw from it
    kind, keys, position, has_gauss, gauss = cast(
        "tuple[str, NDArray[np.uint32], int, int, float]", legacy
    )
    state: dict[str, object] = {
        "python": random.getstate(),
        "numpy": (kind, keys.tolist(), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def seed_rng(seed: int) -> None:
    """Let Python's, NumPy's and torch's global generators begin from `seed`, of at most
    63 bits.
    """
    random.seed(seed)
    numpy_random.seed(seed % NUMPY_SEEDS)  # noqa: NPY002  # as above
    torch.manual_seed(seed)


def seed_for_data(seed: int) -> None:
    """As `seed_rng`, but without generators of GPUs: torch.manual_seed takes 0.2 ms to
    look for them.
    """
    random.seed(seed)
    numpy_random.seed(seed % NUMPY_SEEDS)  # noqa: NPY002  # as above
    torch.default_generator.manual_seed(seed)


def draw_as_iterators_do() -> None:
    """Take the number that torch's DataLoader takes from the global generator each time
    it is iterated over.

    So a loop over a loader of ours draws what a loop over torch's own does.
    """
    torch.empty((), dtype=torch.int64).random_()


def restore_rng(state: dict[str, object], device: torch.device) -> None:
    """Set the global generators to a state that `rng_state` returned."""
    random.setstate(state["python"])  # type: ignore[arg-type]  # as saved
    numpy_random.set_state(state["numpy"])  # type: ignore[arg-type]  # noqa: NPY002  # as saved
    torch.set_rng_state(state["torch"])  # type: ignore[arg-type]  # as saved
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)  # type: ignore[arg-type]  # as saved
