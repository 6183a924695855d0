"""What the shell offers after `coadapt describe <TAB>`: ids of jobs, states,
policies.
"""

import contextlib

from coadapt.cli.jobs.job_states import STATES

# A shell that hangs on <TAB> is worse than one that offers nothing.
TIMEOUT_S = 1.0
OFFERED_MAX = 200


def complete_job(incomplete: str) -> list[str]:
    """Return ids of jobs that begin so, the latest first; none where no scheduler
    answers.
    """
    from coadapt.cli.client import RefusedError, UnreachableError, find_client
    from coadapt.model import InputError

    with contextlib.suppress(
        UnreachableError, RefusedError, InputError, OSError, ValueError
    ):
        client = find_client(None, timeout_s=TIMEOUT_S)
        jobs = client.jobs(name=f"{incomplete}*", newest=True, most=OFFERED_MAX)
        return [str(job["id"]) for job in jobs if str(job["id"]).startswith(incomplete)]
    return []


def complete_states(incomplete: str) -> list[str]:
    """Return the states that may follow in a list with commas."""
    before, comma, last = incomplete.rpartition(",")
    given = before.split(",")
    return [
        f"{before}{comma}{state}"
        for state in STATES
        if state.startswith(last) and state not in given
    ]


def complete_policy(incomplete: str) -> list[str]:
    """Return names of policies that begin so."""
    from coadapt.policies import policy_names

    return [name for name in policy_names() if name.startswith(incomplete)]


def complete_format(incomplete: str) -> list[str]:
    """Return names of trace formats that begin so."""
    from coadapt.sim.traces import FORMATS

    return [name for name in FORMATS if name.startswith(incomplete)]
