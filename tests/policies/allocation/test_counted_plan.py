from dataclasses import replace

import pytest

from coadapt.model import BatchConfig, BatchLimits, RescaleContract
from coadapt.policies.allocation.counted_plan import requested_batch
from tests.policies.stage import job

LIMITS = BatchLimits(initial=10, requested=25, max_total=40, max_atomic=10)
NO_ACCUMULATION = replace(LIMITS, accumulation=False)
ADAPTIVE = RescaleContract.ADAPTIVE
FIXED = RescaleContract.FIXED
FROZEN = RescaleContract.FROZEN
SELF = RescaleContract.SELF


@pytest.mark.parametrize(
    ("contract", "limits", "num_replicas", "batch"),
    [
        (ADAPTIVE, LIMITS, 2, BatchConfig(total=28, atomic=7, accumulation=1)),
        (
            ADAPTIVE,
            replace(LIMITS, max_atomic=None),
            1,
            BatchConfig(total=26, atomic=13, accumulation=1),
        ),
        (FIXED, LIMITS, 2, BatchConfig(total=25, atomic=7, accumulation=1)),
        (FIXED, NO_ACCUMULATION, 2, BatchConfig(total=25, atomic=7, accumulation=1)),
        (FROZEN, LIMITS, 4, BatchConfig(total=25, atomic=7)),
        (FROZEN, NO_ACCUMULATION, 4, BatchConfig(total=25, atomic=7)),
        (FROZEN, NO_ACCUMULATION, 2, None),
        (SELF, LIMITS, 2, None),
        (ADAPTIVE, LIMITS, 40, BatchConfig(total=40, atomic=1)),
        (ADAPTIVE, LIMITS, 41, None),
    ],
)
def test_the_requested_batch_is_dictated_where_that_is_lawful(
    contract: RescaleContract,
    limits: BatchLimits,
    num_replicas: int,
    batch: BatchConfig | None,
) -> None:
    """A single replica above the initial batch takes two passes: one cannot measure the
    noise.
    """
    assert (
        requested_batch(
            job("a", (1, 64), contract=contract, batch=limits), num_replicas
        )
        == batch
    )
