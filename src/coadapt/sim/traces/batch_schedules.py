"""When the jobs of the Shockwave artifact change their batch: Accordion and noise-scale
schedules by epoch.

Batches are per GPU; epochs count from 0. Facts of uw-mad-dash/shockwave,
scheduler/utils.py and scheduler.py.
"""

# Accordion (Agarwal et al., MLSys 2021) trains with a small batch while gradients
# change quickly (a critical regime) and with a large one elsewhere. A noise-scale job
# (McCandlish et al. 2018) doubles its batch whenever its gradient noise scale has
# grown. The artifact does not simulate either rule: it replays epochs that were
# extracted from real runs, per model, GPUs and initial batch. What is not listed never
# changes.
#
# The artifact has two versions of Accordion, and they differ. Its profiles, from which
# the scheduler's predictor and the fairness metric come, keep a job's small batch for
# the first 30 % of its epochs; its simulated jobs do not. Both are here, because a
# comparison with the artifact's figures needs both.

from collections.abc import Iterator

# The largest batch per GPU of each model.
LARGEST = {
    "ResNet-18": 256,
    "ResNet-50": 128,
    "Transformer": 128,
    "LM": 80,
    "Recommendation": 8192,
}

# Accordion: epochs [begin, end) that are critical; of ResNet-50 the first ten of every
# thirty.
_CRITICAL: dict[str, tuple[tuple[int, int], ...]] = {
    "LM": ((0, 10),),
    "ResNet-18": ((0, 10), (150, 160), (250, 260)),
}
_RECOMMENDATION_CRITICAL = {512: 30, 1024: 30, 2048: 40, 4096: 10, 8192: 10}
_RECOMMENDATION_CRITICAL_IN_PROFILE = ((60, 70), (80, 90))
_PROFILE_SMALL_SHARE = 0.3  # of the epochs, in the profile only

# Noise scale: (model, GPUs, initial batch) -> epochs from which the batch is twice,
# four times, … the initial one.
_DOUBLINGS: dict[tuple[str, int, int], tuple[int, ...]] = {
    ("ResNet-18", 1, 16): (31, 41, 51, 71),
    ("ResNet-18", 1, 32): (21, 31, 51),
    ("ResNet-18", 1, 64): (11, 31),
    ("ResNet-18", 1, 128): (11,),
    ("ResNet-18", 2, 16): (21, 31, 91, 111),
    ("ResNet-18", 2, 32): (11, 21, 41),
    ("ResNet-18", 2, 64): (21, 41),
    ("ResNet-18", 2, 128): (41,),
    ("ResNet-18", 4, 16): (11, 21, 81, 91),
    ("ResNet-18", 4, 32): (21, 31, 61),
    ("ResNet-18", 4, 64): (11, 61),
    ("ResNet-18", 4, 128): (11,),
    ("ResNet-50", 1, 64): (101,),
    ("ResNet-50", 2, 32): (101, 111),
    ("ResNet-50", 2, 64): (81,),
    ("ResNet-50", 4, 32): (131, 221),
    ("ResNet-50", 4, 64): (191,),
    ("LM", 1, 5): (31, 41, 61, 71),
    ("LM", 1, 10): (11, 21, 41),
    ("LM", 1, 20): (11, 41),
    ("LM", 1, 40): (11,),
    ("LM", 2, 5): (31, 51, 61, 71),
    ("LM", 2, 10): (11, 31, 41),
    ("LM", 2, 20): (31, 41),
    ("LM", 2, 40): (11,),
    ("LM", 4, 5): (11, 31, 71, 91),
    ("LM", 4, 10): (11, 31, 61),
    ("LM", 4, 20): (11, 61),
    ("LM", 4, 40): (61,),
    ("Recommendation", 1, 512): (21, 41, 71, 91),
    ("Recommendation", 1, 1024): (21, 51, 91),
    ("Recommendation", 1, 2048): (21, 41),
    ("Recommendation", 1, 4096): (41,),
}


def batches(
    mode: str,
    model: str,
    initial: int,
    *,
    num_gpus: int,
    num_epochs: int,
    profile: bool = False,
) -> tuple[int, ...]:
    """Return the batch per GPU of each epoch under `mode` (static, accordion or gns).

    profile: True for the artifact's profiles, False for its simulated jobs.
    """
    if mode == "accordion" and initial != LARGEST[model] and model != "Transformer":
        small = set(_critical(model, initial, num_epochs, profile=profile))
        return tuple(
            initial if epoch in small else LARGEST[model] for epoch in range(num_epochs)
        )
    if mode == "gns":
        doublings = _DOUBLINGS.get((model, num_gpus, initial), ())
        return tuple(
            min(initial << sum(epoch >= start for start in doublings), LARGEST[model])
            for epoch in range(num_epochs)
        )
    return (initial,) * num_epochs


def _critical(
    model: str, initial: int, num_epochs: int, *, profile: bool
) -> Iterator[int]:
    """Yield the epochs that Accordion trains with the initial batch."""
    if profile:
        yield from range(int(_PROFILE_SMALL_SHARE * num_epochs) + 1)
    if model == "ResNet-50":
        yield from (epoch for epoch in range(num_epochs) if epoch % 30 < 10)
        return
    regimes = _CRITICAL.get(model, ())
    if model == "ResNet-18" and initial == LARGEST[model]:
        regimes = ((0, 20), *regimes[1:])
    if model == "Recommendation":
        regimes = ((0, _RECOMMENDATION_CRITICAL.get(initial, 0)),)
        if profile:
            regimes += _RECOMMENDATION_CRITICAL_IN_PROFILE
    for begin, end in regimes:
        yield from range(begin, end)
