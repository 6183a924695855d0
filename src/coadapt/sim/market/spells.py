"""Spot availability drawn from a seed, where no trace is at hand."""

# Public traces of spot availability (SkyPilot's, 2022-23) switch between spells with
# nodes and spells without; what is published of them in figures is the share of the
# time with nodes. Here both kinds of spells are exponential, their means add up to a
# period, and all begin at whole multiples of the traces' gap.

import numpy as np

GAP_S = 600.0
PERIOD_S = 8 * 3600.0


def draw_spells(
    share: float, most: int, length_s: float, seed: int, *, period_s: float = PERIOD_S
) -> tuple[tuple[float, int], ...]:
    """Return (instant, nodes that can be had from then on), ascending: `most` or 0.

    share: the expected part of the time with nodes, in 0..1 without both ends.
    length_s: up to where spells are drawn, s. period_s: mean length of a spell of each
    kind together, s. Raises ValueError for a share that is not allowed.
    """
    if not 0.0 < share < 1.0:
        raise ValueError(f"share must be between 0 and 1, got {share}")
    rng = np.random.default_rng((seed, round(1e6 * share)))
    there = bool(rng.random() < share)
    steps: list[tuple[float, int]] = [(0.0, most if there else 0)]
    at = 0.0
    while at < length_s:
        mean_s = period_s * (share if there else 1.0 - share)
        at += max(round(rng.exponential(mean_s) / GAP_S), 1) * GAP_S
        there = not there
        steps.append((at, most if there else 0))
    return tuple(steps)
