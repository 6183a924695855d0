"""What `coadapt check` notes of a step besides its row: losses, gradients, chance, and
the script's own variables.
"""

# It looks, and changes nothing. Losses are read where `backward` begins; gradients just
# before the optimiser steps; random numbers by the state of the global generators
# before and after the loop's body. The script's variables are those of the frames that
# called the loader, and of the main module: what a name holds is reduced to one number
# (a sum, a hash), which is enough to ask whether two replicas hold the same.
#
# All of it costs as much as the script has state. A check may be slower than training;
# training never pays.

import math
import random
import sys
import sysconfig
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import numpy as np
import torch
from numpy import random as numpy_random
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

# [kind, number, shape]: what a name holds.
Note = list[object]

OWN = str(Path(__file__).parents[2])
LIBRARIES = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "purelib")})
NAMES_MAX = 400
# Of the data set, before training: which samples are compared between starts and
# replicas.
SAMPLES_LOOKED_AT = 5


class Evidence:
    """Gathers what happens from one step to the next, on one replica."""

    def __init__(self) -> None:
        self.parameters: Callable[[], Sequence[Tensor]] = list
        # What comes back after a stop and goes over to a replica that joins, as the
        # script knows it.
        self.kept: Callable[[], Sequence[object]] = list
        self.num_samples: Callable[[], int] = int
        # Called with the gradients that a step is about to use.
        self.change_gradients: Callable[[Sequence[Tensor]], None] = lambda _: None
        self._losses: list[tuple[int, float]] = []
        self._gradient = (0.0, 0.0)
        self._draws: set[str] = set()
        self._drawn: dict[str, int] = {}
        self._others = 0
        self._after_update: float | None = None
        self._touched = False
        _note_backwards(self._on_backward)
        register_optimizer_step_pre_hook(self._before_any_optimizer)
        register_optimizer_step_post_hook(self._after_any_optimizer)

    def body_begins(self) -> None:
        """The loop's body is about to run on a pass."""
        self._drawn = generator_states()

    def body_ended(self) -> None:
        """It has run; or this was said already."""
        if self._drawn:
            now = generator_states()
            self._draws |= {
                name for name, state in now.items() if state != self._drawn.get(name)
            }
        self._drawn = {}

    def take(self) -> dict[str, object]:
        """Return what was seen since this was asked last: fields of a StepRow."""
        self.body_ended()
        if self._after_update is not None:
            self._touched |= self._after_update != _total(self.parameters())
        found: dict[str, object] = {
            "losses": tuple(self._losses),
            "gradient": self._gradient,
            "draws": tuple(sorted(self._draws)),
            "others": self._others,
            "touched": self._touched,
            "hooks": _hooked(self.parameters()),
            "seen": variables(self.kept()),
        }
        self._losses = []
        self._gradient = (0.0, 0.0)
        self._draws = set()
        self._others = 0
        self._after_update = _total(self.parameters())
        self._touched = False
        return found

    def _on_backward(self, loss: float) -> None:
        self._losses.append((self.num_samples(), loss))

    def _own(self, optimizer: torch.optim.Optimizer) -> bool:
        own = {id(item) for item in self.parameters()}
        groups = optimizer.param_groups
        return any(id(item) in own for group in groups for item in group["params"])

    def _before_any_optimizer(
        self, optimizer: torch.optim.Optimizer, _args: object, _kwargs: object
    ) -> None:
        if not self._own(optimizer):
            self._others += 1
            return
        if self._after_update is not None:
            self._touched |= self._after_update != _total(self.parameters())
        grads = [item.grad for item in self.parameters() if item.grad is not None]
        self._gradient = (_mixed(grads), _norm(grads))
        with torch.no_grad():
            self.change_gradients(grads)

    def _after_any_optimizer(
        self, optimizer: torch.optim.Optimizer, _args: object, _kwargs: object
    ) -> None:
        if self._own(optimizer):
            self._after_update = _total(self.parameters())


def variables(kept: Sequence[object]) -> dict[str, Note]:
    """Return what the variables of the script hold that calls, but for what is kept, by
    name.

    kept: what comes back after a stop and goes over to a replica that joins. Of an
    optimiser among it, what its state_dict leaves out.
    """
    known = {id(item) for item in _all_kept(kept)}
    found: dict[str, Note] = {}
    for name, value in _names():
        for full, note in _notes_of(name, value, known):
            found[full] = note
            if len(found) == NAMES_MAX:
                return found
    return found


def _all_kept(kept: Sequence[object]) -> Iterator[object]:
    """Yield all that is kept, what that wraps, and what it consists of."""
    for item in kept:
        yield item
        for name in ("_inner", "module"):
            if (inner := getattr(item, "__dict__", {}).get(name)) is not None:
                yield inner
        if isinstance(item, nn.Module):
            yield from item.modules()
            yield from item.parameters()
            yield from item.buffers()


def generator_states() -> dict[str, int]:
    """Return a hash of the state of each global random generator."""
    legacy = numpy_random.get_state(legacy=False)  # noqa: NPY002  # the user's code may draw from it
    assert isinstance(legacy, dict)
    inner = legacy["state"]
    states = {
        "torch": zlib.crc32(torch.get_rng_state().numpy().tobytes()),
        "numpy": hash((int(inner["pos"]), zlib.crc32(inner["key"].tobytes()))),
        "python": hash(random.getstate()),
    }
    if torch.cuda.is_available():
        states["cuda"] = zlib.crc32(torch.cuda.get_rng_state().numpy().tobytes())
    return states


def contents(dataset: object) -> tuple[tuple[int, float, float], ...]:
    """Return some samples of a data set with indices: index, number it comes to, the
    same once more.

    Empty for others. Generators are as before; where both numbers differ, a sample is
    not always the same.
    """
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        return ()
    python = random.getstate()
    numbers = numpy_random.get_state(legacy=False)  # noqa: NPY002  # as above
    tensors = torch.get_rng_state()
    try:
        size = len(dataset)
        step = max(size // SAMPLES_LOOKED_AT, 1)
        return tuple(
            (index, _number(dataset[index]), _number(dataset[index]))
            for index in range(0, size, step)
        )
    except Exception:  # noqa: BLE001  # the user's code may raise anything; training will show it
        return ()
    finally:
        random.setstate(python)
        numpy_random.set_state(numbers)  # noqa: NPY002  # as above
        torch.set_rng_state(tensors)


def _note_backwards(note: Callable[[float], None]) -> None:
    """Let `note` have the value of each loss that a backward begins from."""
    backward = torch.autograd.backward

    def _noted(tensors: Any, *args: Any, **kwargs: Any) -> None:
        roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        whole = [float(root.detach().sum()) for root in roots]
        note(sum(whole))
        backward(tensors, *args, **kwargs)

    torch.autograd.backward = _noted


def _names() -> Iterator[tuple[str, object]]:
    """Yield the variables of the script once each: those of the calling frames,
    innermost first, then those of its main module.
    """
    seen = set()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_script(frame):
            for name, value in list(frame.f_locals.items()):
                if name not in seen:
                    seen.add(name)
                    yield name, value
        frame = frame.f_back
    for name, value in list(vars(sys.modules["__main__"]).items()):
        if name not in seen:
            seen.add(name)
            yield name, value


def _is_script(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return not file.startswith(("<", OWN, *LIBRARIES))


def _notes_of(name: str, value: object, kept: set[int]) -> Iterator[tuple[str, Note]]:
    """Yield what a variable holds; of what is kept, only what an optimiser has beside
    its state_dict.
    """
    inner = getattr(value, "__dict__", {}).get("_inner", value)
    if id(value) not in kept:
        yield from _notes(name, value, kept)
    elif isinstance(inner, torch.optim.Optimizer):
        for key, item in _parts_beside(inner):
            held = (
                item.state_dict() if isinstance(item, torch.optim.Optimizer) else item
            )
            yield f"{name}.{key}", ["optimizer", _number(held), None]


def _parts_beside(optimizer: torch.optim.Optimizer) -> list[tuple[str, object]]:
    """Return the attributes of an optimiser that its state_dict does not have."""
    of_torch = vars(torch.optim.SGD([torch.zeros(1)], lr=0.1))
    return [(key, item) for key, item in vars(optimizer).items() if key not in of_torch]


def _notes(
    name: str, value: object, kept: set[int], depth: int = 0
) -> Iterator[tuple[str, Note]]:
    """Yield what a name holds; of the script's own objects, what their attributes hold,
    two levels deep.
    """
    if name.startswith("__") or isinstance(value, type | ModuleType):
        return
    if (note := _note(value)) is not None:
        yield name, note
        return
    if isinstance(value, torch.optim.Optimizer) or depth < 2:
        if callable(value) and not isinstance(value, torch.optim.Optimizer):
            return
        for key, item in _parts(value):
            if id(item) not in kept:
                yield from _notes(f"{name}.{key}", item, kept, depth + 1)


def _parts(value: object) -> list[tuple[str, object]]:
    if type(value).__module__.split(".")[0] in ("torch", "coadapt", "numpy"):
        return []
    if isinstance(value, Mapping):
        return [(str(key), item) for key, item in list(value.items())[:20]]
    if isinstance(value, list | tuple):
        return [(str(index), item) for index, item in enumerate(value[:20])]
    return list(getattr(value, "__dict__", {}).items())


def _note(value: object) -> Note | None:
    """Return what `value` is reduced to; None for what has no number."""
    if isinstance(value, bool | int | float):
        kind = "number" if isinstance(value, float) else "count"
        return [kind, float(value), None]
    if isinstance(value, str):
        return ["text", float(zlib.crc32(value.encode())), None]
    if isinstance(value, Tensor):
        return ["tensor", _mixed([value]), list(value.shape)]
    if isinstance(value, nn.Module):
        tensors = [*value.parameters(), *value.buffers()]
        return ["module", _mixed(tensors), None] if tensors else None
    if isinstance(value, torch.optim.Optimizer):
        return ["optimizer", _number(value.state_dict()["state"]), None]
    if isinstance(value, LRScheduler):
        return ["scheduler", float(value.last_epoch), None]
    if isinstance(value, torch.Generator):
        state = value.get_state().numpy().tobytes()
        return ["generator", float(zlib.crc32(state)), None]
    if isinstance(value, random.Random):
        return ["generator", float(hash(value.getstate()) % 2**31), None]
    if isinstance(value, np.random.Generator):
        state = repr(value.bit_generator.state).encode()
        return ["generator", float(zlib.crc32(state)), None]
    return None


def _number(value: object) -> float:
    """Return one number that says what a nest of plain values holds."""
    if isinstance(value, Tensor):
        return _mixed([value])
    if isinstance(value, bool | int | float):
        return float(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "bifu":
        return _mixed([torch.from_numpy(np.ascontiguousarray(value))])
    if isinstance(value, Mapping):
        return sum(
            (_number(item) * (1 + i) for i, item in enumerate(value.values())), 0.0
        )
    if isinstance(value, list | tuple):
        return sum((_number(item) * (1 + i) for i, item in enumerate(value)), 0.0)
    if isinstance(value, str | bytes):
        text = value.encode() if isinstance(value, str) else value
        return float(zlib.crc32(text))
    return 0.0


@torch.no_grad()
def _mixed(tensors: Sequence[Tensor]) -> float:
    """Return a sum with unlike weights, so that values that change places show."""
    total = 0.0
    for item in tensors:
        if item.is_sparse or item.is_complex() or item.is_quantized:
            continue
        flat = item.detach().double().flatten()
        weights = torch.arange(flat.numel(), dtype=torch.float64, device=flat.device)
        total += float((flat * (1.0 + torch.cos(weights))).sum())
    return total


@torch.no_grad()
def _norm(tensors: Sequence[Tensor]) -> float:
    squares = [
        float(item.detach().double().square().sum())
        for item in tensors
        if not item.is_sparse
    ]
    return math.sqrt(sum(squares))


@torch.no_grad()
def _total(parameters: Sequence[Tensor]) -> float:
    return sum((float(item.detach().double().sum()) for item in parameters), 0.0)


def _hooked(parameters: Sequence[Tensor]) -> int:
    """Return how many parameters have hooks of the script's that change their
    gradient.
    """
    return sum(bool(item._backward_hooks) for item in parameters)
