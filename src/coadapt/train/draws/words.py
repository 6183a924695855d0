"""Random words, uniform and normal numbers as a function of a key and an index, in
plain tensor operations.
"""

# SplitMix64 (Steele, Lea and Flood 2014): word i of the stream with key k is mix(k + i
# * GOLDEN), where `mix` is a bijection of 64 bits. So any part of any stream can be had
# without what comes before it, on every device, in a few operations on whole tensors.
# torch has no unsigned 64-bit arithmetic, but signed products and sums wrap in the same
# bits; a shift to the right copies the sign, which a mask takes away again.

import torch
from torch import Tensor


def _signed(word: int) -> int:
    """Return the signed number that has the same 64 bits as `word`."""
    return word - (1 << 64) if word >> 63 else word


GOLDEN = _signed(0x9E3779B97F4A7C15)
_MULTIPLY_1 = _signed(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = _signed(0x94D049BB133111EB)
# Random bits that a float of each type takes, as torch's own uniform numbers.
_UNIFORM_BITS = {
    torch.float64: 53,
    torch.float32: 24,
    torch.float16: 11,
    torch.bfloat16: 8,
}


def mix(words: Tensor) -> Tensor:
    """Scramble int64 `words` in place, and return them."""
    words.bitwise_xor_(_shifted(words, 30)).mul_(_MULTIPLY_1)
    words.bitwise_xor_(_shifted(words, 27)).mul_(_MULTIPLY_2)
    return words.bitwise_xor_(_shifted(words, 31))


def mixed(*parts: int) -> int:
    """Return one key of 63 bits from whole numbers, such as a seed, a step and a
    place.
    """
    key = 0
    for part in parts:
        key = _mixed(key ^ _mixed(part + 0x9E3779B97F4A7C15))
    return key >> 1


def _mixed(word: int) -> int:
    """Return what `mix` makes of one word, as an unsigned number."""
    word &= (1 << 64) - 1
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & ((1 << 64) - 1)
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & ((1 << 64) - 1)
    return word ^ (word >> 31)


def keys_of(key: int, places: range, device: torch.device) -> Tensor:
    """Return the keys (len(places),) of the streams of `places`, which must be
    consecutive.
    """
    first = places.start
    stop = places.stop
    found = torch.arange(first, stop, dtype=torch.int64, device=device)
    return mix(found.mul_(GOLDEN).add_(key))


def words_of(keys: Tensor, count: int) -> Tensor:
    """Return the first words (len(keys), count) of the streams with these `keys`, as
    signed numbers.
    """
    index = torch.arange(1, count + 1, dtype=torch.int64, device=keys.device)
    return mix(index.mul_(GOLDEN) + keys.unsqueeze(1))


def below(words: Tensor, probability: float) -> Tensor:
    """Return for each word whether it is among the lowest share `probability` of all
    words.
    """
    if probability >= 1.0:
        return torch.ones_like(words, dtype=torch.bool)
    return words < int(probability * 2.0**64) - 2**63


def uniform(words: Tensor, dtype: torch.dtype) -> Tensor:
    """Return numbers in [0, 1) of `dtype`, each from one word."""
    bits = _UNIFORM_BITS.get(dtype, 24)
    wide = dtype if dtype == torch.float64 else torch.float32
    return _shifted(words, 64 - bits).to(wide).mul_(2.0**-bits)


def normal(words: Tensor, dtype: torch.dtype) -> Tensor:
    """Return standard normal numbers, each from one word; float32 unless `dtype` is
    float64.
    """
    wide = dtype if dtype == torch.float64 else torch.float32
    bits = _UNIFORM_BITS[wide]
    # Signed, and shifted by a half: symmetric in (-1, 1), and never an end of it.
    inside = (words >> (64 - bits)).to(wide).add_(0.5).mul_(2.0 ** (1 - bits))
    scaled: Tensor = torch.special.erfinv(inside).mul_(2.0**0.5)
    return scaled


def _shifted(words: Tensor, bits: int) -> Tensor:
    """Return `words` shifted to the right by `bits`, with zeros from the left."""
    return (words >> bits).bitwise_and_((1 << (64 - bits)) - 1)
