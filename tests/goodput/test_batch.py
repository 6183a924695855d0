"""How totals are split, and which batches an adaptive job may choose from
(docs/goodput.md).
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.goodput.batch import (
    NUM_CANDIDATES,
    adaptive_grid,
    candidates,
    requested_grid,
    split_total,
)
from coadapt.model import BatchConfig, BatchLimits
from tests.goodput.strategies import batch_limits

replicas = st.integers(1, 64)
flags = st.booleans()

BERT = BatchLimits(initial=12, max_total=384, min_atomic=4, max_atomic=12)
CIFAR = BatchLimits(initial=128, max_total=4096, min_atomic=32, max_atomic=1024)


@pytest.mark.parametrize(
    ("total", "num_replicas", "batch"),
    [
        (384, 16, BatchConfig(total=384, atomic=12, accumulation=1)),
        (
            384,
            6,
            BatchConfig(total=360, atomic=10, accumulation=5),
        ),  # 11 would be 396, above the maximum
        (12, 1, BatchConfig(total=12, atomic=12)),
        (25, 2, BatchConfig(total=28, atomic=7, accumulation=1)),  # rounded up
    ],
)
def test_every_pass_is_full_and_the_maximum_holds(
    total: int, num_replicas: int, batch: BatchConfig
) -> None:
    assert split_total(total, num_replicas, BERT) == batch


def test_an_exact_total_leaves_the_last_shard_smaller() -> None:
    assert split_total(384, 6, BERT, exact=True) == BatchConfig(
        total=384, atomic=11, accumulation=5
    )


def test_one_replica_accumulates_to_measure_the_noise_of_a_grown_batch() -> None:
    grown = BatchConfig(total=256, atomic=128, accumulation=1)
    assert split_total(256, 1, CIFAR, accumulate_alone=True) == grown
    assert split_total(256, 1, CIFAR) == BatchConfig(total=256, atomic=256)
    assert split_total(128, 1, CIFAR, accumulate_alone=True) == BatchConfig(
        total=128, atomic=128
    )
    assert split_total(256, 2, CIFAR, accumulate_alone=True) == BatchConfig(
        total=256, atomic=128
    )


def test_a_job_that_forbids_accumulation_gets_a_smaller_total_unless_the_total_is_a_promise() -> (
    None
):
    limits = BatchLimits(initial=64, max_total=256, max_atomic=32, accumulation=False)
    assert split_total(256, 2, limits, accumulate_alone=True) == BatchConfig(
        total=64, atomic=32
    )
    assert split_total(256, 2, limits, exact=True) == BatchConfig(
        total=256, atomic=32, accumulation=3
    )
    assert split_total(128, 1, limits, accumulate_alone=True) == BatchConfig(
        total=32, atomic=32
    )


@pytest.mark.parametrize(("total", "num_replicas"), [(0, 1), (1, 0), (-4, 2)])
def test_splitting_nothing_is_an_error(total: int, num_replicas: int) -> None:
    with pytest.raises(ValueError, match="must be >= 1"):
        split_total(total, num_replicas, BERT)


@given(batch_limits(), replicas, st.data(), flags, flags)
def test_a_split_keeps_the_limits(
    limits: BatchLimits,
    num_replicas: int,
    data: st.DataObject,
    alone: bool,
    exact: bool,
) -> None:
    total = data.draw(st.integers(1, limits.max_total))
    batch = split_total(
        total, num_replicas, limits, accumulate_alone=alone, exact=exact
    )
    held = num_replicas * batch.atomic * (batch.accumulation + 1)
    if limits.max_atomic is not None:
        assert batch.atomic <= limits.max_atomic
    if exact:
        assert batch.total == total <= held
    else:
        assert batch.total == held
        assert held <= limits.max_total or batch.atomic == 1
        assert limits.accumulation or batch.accumulation == 0


@given(batch_limits(), replicas)
def test_candidates_are_lawful_and_ascend(
    limits: BatchLimits, num_replicas: int
) -> None:
    found = candidates(limits, num_replicas)
    held = num_replicas * found.atomic * (found.accumulation + 1)
    np.testing.assert_array_equal(found.total, held)
    assert (found.total <= limits.max_total).all()
    assert (found.atomic >= limits.min_atomic).all()
    assert (found.atomic <= (limits.max_atomic or math.inf)).all()
    assert limits.accumulation or not found.accumulation.any()
    if num_replicas == 1:
        assert ((found.accumulation > 0) | (found.total <= limits.initial)).all()
    assert len({*zip(found.atomic, found.accumulation, strict=True)}) == len(
        found.atomic
    )


@given(batch_limits().filter(lambda limits: limits.accumulation), replicas)
def test_candidates_are_those_of_the_artifact(
    limits: BatchLimits, num_replicas: int
) -> None:
    expected = list(dict.fromkeys(_artifact_candidates(limits, num_replicas)))
    found = candidates(limits, num_replicas)
    assert list(zip(found.atomic, found.accumulation, strict=True)) == expected


def _artifact_candidates(
    limits: BatchLimits, num_replicas: int
) -> list[tuple[int, int]]:
    """Pollux's artifact, one candidate at a time; its simulator cuts to max_total
    afterwards.
    """
    smallest = max(limits.initial, limits.min_atomic * num_replicas)
    if smallest > limits.max_total:
        return []
    max_atomic = limits.max_atomic or math.inf
    chosen = []
    for total in np.geomspace(smallest, limits.max_total, 50):
        local = total / num_replicas
        accumulation = (
            math.ceil(local / max_atomic - 1e-8) - 1 if limits.max_atomic else 0
        )
        if num_replicas == 1 and local > limits.initial + 1e-8:
            accumulation = max(accumulation, 1)
        atomic = math.ceil(local / (accumulation + 1) - 1e-8)
        atomic = min(atomic, limits.max_total // (num_replicas * (accumulation + 1)))
        if limits.min_atomic <= atomic <= max_atomic:
            chosen.append((atomic, accumulation))
    return chosen


@given(batch_limits(), st.lists(replicas, min_size=1, max_size=5))
def test_a_grid_holds_the_candidates_of_each_replica_count(
    limits: BatchLimits, counts: list[int]
) -> None:
    grid = adaptive_grid(limits, tuple(counts))
    assert grid.total_CB.shape == (len(counts), NUM_CANDIDATES)
    for row, num_replicas in enumerate(counts):
        lawful = grid.total_CB[row] > 0
        pairs = zip(
            grid.atomic_CB[row][lawful], grid.accumulation_CB[row][lawful], strict=True
        )
        found = candidates(limits, num_replicas)
        assert list(dict.fromkeys(pairs)) == list(
            zip(found.atomic, found.accumulation, strict=True)
        )


@given(batch_limits(), st.lists(replicas, min_size=1, max_size=5))
def test_the_requested_batch_is_split_exactly(
    limits: BatchLimits, counts: list[int]
) -> None:
    grid = requested_grid(limits, tuple(counts))
    for row, num_replicas in enumerate(counts):
        batch = split_total(limits.requested, num_replicas, limits, exact=True)
        assert (grid.atomic_CB[row, 0], grid.accumulation_CB[row, 0]) == (
            batch.atomic,
            batch.accumulation,
        )
        filled = num_replicas * limits.min_atomic <= limits.requested
        assert grid.total_CB[row, 0] == (limits.requested if filled else 0)


def test_a_batch_too_small_for_the_replicas_leaves_no_candidate() -> None:
    assert candidates(BERT, 97).total.size == 0
    assert candidates(BERT, 96).total.tolist() == [384.0]


def test_totals_beyond_32_bits_are_kept() -> None:
    found = candidates(BatchLimits(initial=2**33, max_total=2**40), 2)
    assert found.total[[0, -1]].tolist() == [2.0**33, 2.0**40]


def test_what_is_kept_for_later_calls_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        candidates(CIFAR, 4).atomic[0] = 1.0


def test_without_an_upper_bound_only_the_total_binds() -> None:
    found = candidates(BatchLimits(initial=32, max_total=1024), 4)
    assert found.accumulation.max() == 0
    assert found.total[[0, -1]].tolist() == [32.0, 1024.0]


def test_one_replica_without_accumulation_stays_at_the_initial_batch() -> None:
    limits = BatchLimits(initial=64, max_total=1024, max_atomic=128, accumulation=False)
    assert candidates(limits, 1).total.tolist() == [64.0]
    assert candidates(limits, 2).total[[0, -1]].tolist() == [64.0, 256.0]
