"""How many samples of a pass fit into the memory of a GPU type: what is known of it,
and how it is kept.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from coadapt.durable import write_whole
from coadapt.model import BatchLimits, InputError
from coadapt.model.wire import from_json, to_json

logger = logging.getLogger(__name__)

# Beside the checkpoints. By hand: what is removed from it may still stand in a
# checkpoint.
MEMORY_CEILINGS_FILE = "memory.json"
CUT_OVER = " cut over "
# A ceiling is found to one part in this many: each further halving costs a trial.
PRECISION = 16
# Of errors that are no torch.OutOfMemoryError: torch's CPU allocator, cuBLAS and cuDNN.
OUT_OF_MEMORY_SIGNS = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCeiling:
    """What is known of one GPU type: the most samples of a pass that fit, the fewest
    that do not.

    0 and None: nothing known.
    """

    fits: int = 0
    fails: int | None = None

    @property
    def most(self) -> int | None:
        """Return the samples per pass to try at most, None without a limit: half of
        what failed, at least.
        """
        return None if self.fails is None else max(self.fits, self.fails // 2, 1)

    def after_failure(self, num_samples: int) -> "MemoryCeiling":
        """Return what is known once a pass of `num_samples` has failed; it may have
        fitted before.
        """
        return MemoryCeiling(
            fits=self.fits if self.fits < num_samples else 0, fails=num_samples
        )

    def weakest(self, other: "MemoryCeiling") -> "MemoryCeiling":
        """Return what holds on both of two GPUs of one type."""
        fails = [
            ceiling.fails for ceiling in (self, other) if ceiling.fails is not None
        ]
        return MemoryCeiling(
            fits=min(self.fits, other.fits), fails=min(fails, default=None)
        )


def on_replicas(known: Mapping[int, MemoryCeiling], num_replicas: int) -> MemoryCeiling:
    """Return what `known`, by number of replicas, says of a model that is cut over
    `num_replicas`.

    The more replicas, the smaller the part of the model that each has, and the more
    samples fit beside it.
    """
    fits = max(
        (ceiling.fits for count, ceiling in known.items() if count <= num_replicas),
        default=0,
    )
    fails = [ceiling.fails for count, ceiling in known.items() if count >= num_replicas]
    fewest = min((count for count in fails if count is not None), default=None)
    return MemoryCeiling(
        fits=fits if fewest is None or fits < fewest else 0, fails=fewest
    )


def search(
    fits: Callable[[int], bool], known: MemoryCeiling, largest: int
) -> MemoryCeiling:
    """Return the ceiling, sought up to `largest`: by doubling, then by bisection to one
    part in 16.

    The result may say that `largest` fits, or that not even one sample does (fits 0,
    fails 1).
    """
    low = min(known.fits, largest)
    high = known.fails
    while low < largest and (high is None or high > 2 * low + 1):
        # Not 1: batch normalisation refuses a single sample.
        size = min(max(2 * low, 2), largest)
        if not fits(size):
            high = size
            break
        low = size
    top = min(high or largest + 1, largest + 1)
    while top - low > max(low // PRECISION, 1):
        size = (low + top) // 2
        if fits(size):
            low = size
        else:
            top = high = size
    return MemoryCeiling(fits=max(low, known.fits), fails=high)


def lowered(limits: BatchLimits, most: int | None) -> BatchLimits:
    """Return `limits` with passes of at most `most` samples, but not below its own
    smallest.
    """
    if most is None or (limits.max_atomic is not None and limits.max_atomic <= most):
        return limits
    return replace(limits, max_atomic=max(most, limits.min_atomic))


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a device or the machine had too little memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(
        sign in str(error) for sign in OUT_OF_MEMORY_SIGNS
    )


def signature(model: nn.Module) -> str:
    """Return a name for what a model holds: parameters and buffers, their shapes and
    kinds.
    """
    tensors = (*model.named_parameters(), *model.named_buffers())
    rows = [f"{name} {tuple(value.shape)} {value.dtype}" for name, value in tensors]
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]


class MemoryCeilingFile:
    """The ceilings of one job: signature of the model -> GPU type -> ceiling. No
    folder: nothing is kept.

    Those of a model that is cut over replicas stand under its signature and their
    number.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / MEMORY_CEILINGS_FILE

    def read(self, model: str) -> dict[str, MemoryCeiling]:
        """Return GPU type -> ceiling; nothing, with a warning, where the file is
        damaged.
        """
        return self._all().get(model, {})

    def read_cut(self, model: str, num_replicas: int) -> dict[str, MemoryCeiling]:
        """Return what `read` does, for a model that is cut over `num_replicas`."""
        known: dict[str, dict[int, MemoryCeiling]] = {}
        for name, ceilings in self._all().items():
            signature_of, _, count = name.partition(CUT_OVER)
            if signature_of == model and count.isdecimal():
                for gpu_type, ceiling in ceilings.items():
                    known.setdefault(gpu_type, {})[int(count)] = ceiling
        return {
            gpu_type: on_replicas(ceilings, num_replicas)
            for gpu_type, ceilings in known.items()
        }

    def write(
        self,
        model: str,
        ceilings: Mapping[str, MemoryCeiling],
        *,
        cut_over: int | None = None,
    ) -> None:
        """Keep `ceilings`, and what is known of other models and GPU types.

        cut_over: the number of replicas over which the model is cut.
        """
        if self._path is None:
            return
        everything = self._all()
        name = model if cut_over is None else f"{model}{CUT_OVER}{cut_over}"
        everything[name] = {**everything.get(name, {}), **ceilings}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._path, json.dumps(to_json(everything), indent=1))

    def _all(self) -> dict[str, dict[str, MemoryCeiling]]:
        if self._path is None or not self._path.exists():
            return {}
        try:
            data = json.loads(self._path.read_text(encoding="utf-8"))
            return {
                model: {
                    gpu_type: from_json(MemoryCeiling, item, gpu_type)
                    for gpu_type, item in rows.items()
                }
                for model, rows in data.items()
            }
        except (ValueError, AttributeError, InputError) as error:
            logger.warning("%s is damaged and is ignored: %s", self._path.name, error)
            return {}
