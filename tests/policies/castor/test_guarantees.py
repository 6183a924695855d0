"""What a round owes to jobs that are late by their fair clocks."""

import numpy as np

from coadapt.policies.castor.fairness import OVERDUE, Fair
from coadapt.policies.castor.guarantees import ANY_TYPE, NO_TYPE, Owed


def test_a_late_job_is_owed_its_share_and_an_overdue_one_what_its_clock_runs_at() -> (
    None
):
    """The last two are overdue; the clock of the very last runs at what its share
    does.
    """
    rho_max = 0.8
    least_J = np.array([0.99, 1.01, 0.99 * OVERDUE, OVERDUE, OVERDUE]) * rho_max
    goodput_J = np.full(5, 10.0)
    rate_J = np.array([16.0, 16.0, 16.0, 16.0, 10.0])
    fair = Fair(
        np.full(5, 2), np.full(5, 1), goodput_J, rate_J, np.full(5, 900.0), least_J
    )
    shares = Owed.nothing(5).with_shares(fair, rho_max)
    assert shares.replicas_J.tolist() == [0, 2, 2, 2, 2]
    assert shares.type_J.tolist() == [ANY_TYPE, 1, 1, NO_TYPE, 1]
    assert shares.goodput_J.tolist() == [np.inf, 10.0, 10.0, 16.0, 10.0]
