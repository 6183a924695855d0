"""The state of the random generators that a training loop draws from, as plain values and tensors."""

import random
from typing import cast

import numpy as np
import torch
from numpy import random as numpy_random
from numpy.typing import NDArray


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
    """Let Python's, NumPy's and torch's global generators begin from `seed`."""
    random.seed(seed)
    numpy_random.set_state(numpy_random.RandomState(seed).get_state())  # noqa: NPY002  # as above
    torch.manual_seed(seed)


def restore_rng(state: dict[str, object], device: torch.device) -> None:
    """Set the global generators to a state that `rng_state` returned."""
    random.setstate(state["python"])  # type: ignore[arg-type]  # as saved
    numpy_random.set_state(state["numpy"])  # type: ignore[arg-type]  # noqa: NPY002  # as saved
    torch.set_rng_state(state["torch"])  # type: ignore[arg-type]  # as saved
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)  # type: ignore[arg-type]  # as saved
