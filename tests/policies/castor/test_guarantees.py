"""What a round reserves for jobs that are late by their fair clocks."""

import numpy as np

from coadapt.policies.castor.fairness import Fair
from coadapt.policies.castor.guarantees import fair_share_reservations


def test_its_share_is_reserved_for_a_late_job() -> None:
    rho_max = 0.8
    fair = Fair(
        np.full(3, 2),
        np.full(3, 10.0),
        np.full(3, 16.0),
        np.full(3, 900.0),
        np.array([0.99, 1.0, 1.5]) * rho_max,
    )
    shares = fair_share_reservations(fair, rho_max)
    assert shares.gpus.tolist() == [0, 2, 2]
    assert shares.goodput.tolist() == [np.inf, 10.0, 10.0]
