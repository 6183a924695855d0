"""Random numbers by the sample's place: `init(random="per-sample")`. Replaces torch's
own random operators.
"""

# The rule. What is drawn in a pass for its samples follows from the seed, the step, the
# number of the draw in the pass, and the place of the sample in the epoch. So a sample
# gets the same dropout mask and the same noise on whichever replica and in whichever
# pass it is.
#
# How it is done. When a pass begins, torch's, NumPy's and Python's generators are set
# by seed and step, alike in every pass of the step. Each operator that draws takes one
# number from torch's generator, the key of the draw. Where the tensor has a row for
# each sample of the pass, row i is filled from the key and the place of sample i.
# Anything else (a number for the whole step, a permutation) is torch's own draw, and
# the same on all replicas, since all have the same generator. As the key comes from the
# generator, activation checkpoints, which set the generator back, find the same masks
# again.
#
# Where it is done. All random operators of torch, from Python or C++, end in a few
# kernels of the dispatcher (`aten::bernoulli_`, `aten::normal_`, ...), so these are
# replaced, and nothing else gets slower. A mode of torch (TorchFunctionMode) would be
# asked for each operator; replaced functions of the module would miss what was imported
# from it by name.
#
# Which dimension has the samples: the first where its length is the number of samples
# of the pass, else the second, else the first where it is a multiple (batch x heads,
# batch x tokens). A tensor that has the length by chance is drawn by rows as well.

import functools
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from coadapt.model import InputError
from coadapt.train.draws.words import (
    below,
    keys_of,
    mixed,
    normal,
    uniform,
    words_of,
)

# Operators whose rows are filled from words.
_FILLS = (
    "bernoulli_.float",
    "bernoulli_.Tensor",
    "uniform_",
    "normal_",
    "exponential_",
    "random_",
    "random_.from",
    "random_.to",
)
# Operators that torch itself does, row by row, each with a generator of its own.
_ROW_BY_ROW = (
    "geometric_",
    "log_normal_",
    "cauchy_",
    "poisson",
    "binomial",
    "multinomial",
    "normal.Tensor_float",
    "normal.float_Tensor",
    "normal.Tensor_Tensor",
    "_standard_gamma",
    "_sample_dirichlet",
    "rrelu_with_noise",
)
_FUSED_DROPOUT = "native_dropout"
NEEDS = (
    "torch 2.10 or later, whose operators can be replaced (torch.library.get_kernel)"
)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The samples of a pass: their places in the epoch, and whether the pass still
    runs.
    """

    places: range
    runs: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where a tensor has its samples. dim: 0 or 1. per_sample: numbers of each."""

    dim: int
    per_sample: int


_rows: _Rows | None = None


@contextmanager
def no_rows() -> Iterator[None]:
    """Within it, torch draws as it always does."""
    global _rows  # noqa: PLW0603  # the kernels of torch are global, too
    before = _rows
    _rows = None
    try:
        yield
    finally:
        _rows = before


def draw_for(places: range, runs: Callable[[], bool]) -> None:
    """Let draws from here on be those of the samples at `places`, as long as the pass
    `runs`.
    """
    global _rows  # noqa: PLW0603  # as above
    _rows = _Rows(places, runs)


def draw_for_none() -> None:
    """Let draws from here on be torch's own."""
    global _rows  # noqa: PLW0603  # as above
    _rows = None


@functools.cache
def replace_operators(device_type: str) -> None:
    """Replace torch's random operators on that kind of device, for as long as the
    process lives.

    They are torch's own wherever no pass runs. Raises InputError where torch is too
    old.
    """
    if not hasattr(torch.library, "get_kernel"):
        raise InputError("init(random)", "per-sample", NEEDS)
    key = device_type.upper()
    library = torch.library.Library(  # type: ignore[no-untyped-call]  # torch's own
        "aten", "IMPL"
    )
    _libraries.append(library)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*verrid")  # that is the purpose
        for name in (*_FILLS, *_ROW_BY_ROW, _FUSED_DROPOUT):
            _replace(library, name, key)


_libraries: list[torch.library.Library] = []


def _replace(library: torch.library.Library, name: str, key: str) -> None:
    own = _OWN_DRAWS[name]
    original = torch.library.get_kernel(f"aten::{name}", key)

    def kernel(keyset: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> object:
        def torchs_own(*own_args: Any, **own_kwargs: Any) -> object:
            return original.call_boxed(keyset, *own_args, **own_kwargs)

        rows = _rows
        if rows is None or not rows.runs() or kwargs.get("generator") is not None:
            return torchs_own(*args, **kwargs)
        layout = _layout(_first_tensor(args), len(rows.places))
        if layout is None:
            return torchs_own(*args, **kwargs)
        draw = _Draw(rows.places, layout, torchs_own)
        return own(draw, *args, **kwargs)

    library.impl(  # type: ignore[no-untyped-call]  # torch's own
        name, kernel, key, with_keyset=True
    )


def _first_tensor(args: tuple[object, ...]) -> Tensor:
    return next(item for item in args if isinstance(item, Tensor))


def _layout(tensor: Tensor, num_samples: int) -> _Layout | None:
    """Return where `tensor` has its samples, None if it has no row for each of them."""
    shape = tensor.shape
    if not shape or not tensor.numel():
        return None
    per_sample = tensor.numel() // num_samples
    if shape[0] == num_samples:
        return _Layout(0, per_sample)
    if len(shape) > 1 and shape[1] == num_samples:
        return _Layout(1, per_sample)
    if shape[0] % num_samples == 0:
        return _Layout(0, per_sample)
    return None


class _Draw:
    """One draw for the samples of a pass."""

    def __init__(
        self, places: range, layout: _Layout, torchs_own: Callable[..., object]
    ) -> None:
        self._places = places
        self._layout = layout
        self._torchs_own = torchs_own
        with no_rows():
            self._key = int(torch.empty((), dtype=torch.int64).random_().item())

    def words(self, like: Tensor) -> Tensor:
        """Return random words (as `like`, int64)."""
        keys = keys_of(self._key, self._places, like.device)
        return self._shaped(words_of(keys, self._layout.per_sample), like)

    def _shaped(self, rows: Tensor, like: Tensor) -> Tensor:
        """Return `rows` (samples, numbers of each) in the shape of `like`."""
        if self._layout.dim == 0:
            return rows.view(like.shape)
        first, second, *rest = like.shape
        return rows.view(second, first, *rest).transpose(0, 1)

    def row_by_row(self, *args: Any, **kwargs: Any) -> object:
        """Let torch draw each sample's part with a generator of its own."""
        num_samples = len(self._places)
        dim = self._layout.dim
        generator = torch.Generator(_first_tensor(args).device)
        results = []
        for number, place in enumerate(self._places):
            generator.manual_seed(mixed(self._key, place))
            part = [_part(item, dim, number, num_samples) for item in args]
            with no_rows():
                results.append(
                    self._torchs_own(*part, **{**kwargs, "generator": generator})
                )
        return torch.cat([cast("Tensor", item) for item in results], dim)


def _part(item: object, dim: int, number: int, num_samples: int) -> object:
    """Return the part of an argument that belongs to one sample: a view; what is no
    tensor, whole.
    """
    if not isinstance(item, Tensor) or item.dim() <= dim:
        return item
    if item.shape[dim] % num_samples:
        return item
    length = item.shape[dim] // num_samples
    return item.narrow(dim, number * length, length)


def _bernoulli(draw: _Draw, out: Tensor, p: float = 0.5, **_kwargs: object) -> Tensor:
    return out.copy_(below(draw.words(out), p))


def _bernoulli_tensor(draw: _Draw, out: Tensor, p: Tensor, **_kwargs: object) -> Tensor:
    return out.copy_(uniform(draw.words(out), torch.float64) < p)


def _uniform(
    draw: _Draw,
    out: Tensor,
    begin: float = 0.0,
    end: float = 1.0,
    **_kwargs: object,
) -> Tensor:
    found = uniform(draw.words(out), out.dtype)
    if (begin, end) != (0.0, 1.0):
        found = found.mul_(end - begin).add_(begin)
    return out.copy_(found)


def _normal(
    draw: _Draw, out: Tensor, mean: float = 0.0, std: float = 1.0, **_kwargs: object
) -> Tensor:
    found = normal(draw.words(out), out.dtype)
    if (mean, std) != (0.0, 1.0):
        found = found.mul_(std).add_(mean)
    return out.copy_(found)


def _exponential(
    draw: _Draw, out: Tensor, rate: float = 1.0, **_kwargs: object
) -> Tensor:
    found = uniform(draw.words(out), out.dtype)
    return out.copy_(found.neg_().log1p_().div_(-rate))


def _random(draw: _Draw, out: Tensor, **_kwargs: object) -> Tensor:
    bits = 63 if out.dtype == torch.int64 else _whole_bits(out.dtype)
    return out.copy_(draw.words(out).bitwise_and_((1 << bits) - 1))


def _random_from(
    draw: _Draw, out: Tensor, begin: int, end: int | None, **_kwargs: object
) -> Tensor:
    if end is None:
        end = 1 << (63 if out.dtype == torch.int64 else _whole_bits(out.dtype))
    return out.copy_(draw.words(out).remainder_(end - begin).add_(begin))


def _random_to(draw: _Draw, out: Tensor, end: int, **_kwargs: object) -> Tensor:
    return _random_from(draw, out, 0, end)


def _whole_bits(dtype: torch.dtype) -> int:
    """Return the bits of the whole numbers from 0 that a type can hold, all of them."""
    if dtype.is_floating_point:
        return int(-math.log2(torch.finfo(dtype).eps)) + 1
    if dtype == torch.bool:
        return 1
    return torch.iinfo(dtype).max.bit_length()


def _native_dropout(
    draw: _Draw, tensor: Tensor, p: float, train: bool | None = True
) -> tuple[Tensor, Tensor]:
    if train is False or p == 0.0:
        return tensor.clone(), torch.ones_like(tensor, dtype=torch.bool)
    kept = below(draw.words(tensor), 1.0 - p)
    scale = 0.0 if p == 1.0 else 1.0 / (1.0 - p)
    return tensor * kept * scale, kept.contiguous()


def _by_row(draw: _Draw, *args: Any, **kwargs: Any) -> object:
    return draw.row_by_row(*args, **kwargs)


def _in_place_by_row(draw: _Draw, out: Tensor, *args: Any, **kwargs: Any) -> object:
    draw.row_by_row(out, *args, **kwargs)  # its parts are views of `out`
    return out


_OWN_DRAWS: dict[str, Callable[..., object]] = {
    "bernoulli_.float": _bernoulli,
    "bernoulli_.Tensor": _bernoulli_tensor,
    "uniform_": _uniform,
    "normal_": _normal,
    "exponential_": _exponential,
    "random_": _random,
    "random_.from": _random_from,
    "random_.to": _random_to,
    _FUSED_DROPOUT: _native_dropout,
    **{
        name: _in_place_by_row if name.endswith("_") else _by_row
        for name in _ROW_BY_ROW
    },
}
