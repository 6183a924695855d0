"""What a policy is. A policy is outside the core: its plans are checked, its errors are
caught.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from coadapt.model import ClusterView, InputError, JobId, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCard:
    """What `coadapt policies` tells of a policy that has it as its class attribute
    `card`.

    paper: authors, system, venue and year. decides: what it chooses in a round. oracle:
    what it must be told that nobody knows beforehand: true in simulation, the job's own
    estimate live; empty: nothing.
    """

    paper: str
    decides: str
    oracle: str = ""


class Policy(Protocol):
    """A pure function of the view, deterministic given its constructor and the sequence
    of views so far.

    Constructors take keyword arguments with defaults, among them `seed: int = 0` where
    the policy draws.
    A policy may keep state between calls (queues, a population); losing it must only
    cost quality. One whose kernels take long to compile may have a method
    `rehearse_beside()` that calls those which its first round calls last: `coadapt
    simulate` compiles them beside the others (sim/warm_up.py). One that foretells when
    jobs end has that as `predictions`, a Prediction by job (foretold_by); one that is
    to be asked at arrivals and exits, too, says as `reaction_s` how long after
    (reaction_of).
    """

    def allocate(self, view: ClusterView) -> Plan:
        """Return what each job of `view` gets now. Must not modify or keep references
        into `view`.
        """
        ...


class Prediction(NamedTuple):
    """Instants, s: when a job will have ended, and the interval of that which holds
    nine times of ten.
    """

    end_at: float
    low_at: float
    high_at: float


def reaction_of(policy: Policy) -> float | None:
    """Return how long after an arrival or an exit a policy wants a round, s; None: it
    wants periodic ones.

    Raises InputError for what is no such time.
    """
    reaction_s = getattr(policy, "reaction_s", None)
    if reaction_s is None:
        return None
    if not isinstance(reaction_s, int | float) or not 0.0 <= reaction_s < math.inf:
        raise InputError(
            f"{type(policy).__name__}.reaction_s",
            reaction_s,
            "finite and >= 0, or None",
        )
    return float(reaction_s)


def foretold_by(policy: Policy) -> Mapping[JobId, Prediction]:
    """Return what a policy said in the last round of when jobs end; nothing of one that
    does not foretell.
    """
    predictions: Mapping[JobId, Prediction] = getattr(policy, "predictions", {})
    return predictions
