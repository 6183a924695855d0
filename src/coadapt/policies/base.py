"""The interface of policies and its optional hooks.

A policy runs outside the core: the core checks its plans and catches its errors.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from coadapt.model import ClusterView, InputError, JobId, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCard:
    """What `coadapt policies` prints about a policy; the class attribute `card`.

    paper: authors, system, venue and year. decides: what it chooses in a round. oracle:
    the input that is exact in a simulation and the job's own estimate live; empty:
    none. needs_scipy: whether it solves its programs with scipy, which is an extra.
    """

    paper: str
    decides: str
    oracle: str = ""
    needs_scipy: bool = False


class Policy(Protocol):
    """A pure function of the view, deterministic given its constructor and the views so
    far.

    Constructors take keyword arguments with defaults, with `seed: int = 0` if the
    policy draws random numbers. A policy may keep state between calls (queues, a
    population). If the state is lost, plans may be worse but must be valid. Optional
    members are those of `SupportsReaction` and `SupportsPredictions`; the class
    attribute `card` is a PolicyCard.
    """

    def allocate(self, view: ClusterView) -> Plan:
        """Return what each job of `view` gets now.

        Must not modify `view` or keep references into it.
        """
        ...


@runtime_checkable
class SupportsReaction(Protocol):
    """A policy that wants extra rounds after arrivals and exits."""

    @property
    def reaction_s(self) -> float | None:
        """Seconds from an arrival or exit to the extra round; None: periodic rounds
        only.
        """


class Prediction(NamedTuple):
    """The predicted end of a job: instants in s. low_at, high_at: the 90 % interval."""

    end_at: float
    low_at: float
    high_at: float


@runtime_checkable
class SupportsPredictions(Protocol):
    """A policy that predicts when jobs end."""

    @property
    def predictions(self) -> Mapping[JobId, Prediction]:
        """The predictions of the last round."""


def reaction_of(policy: Policy) -> float | None:
    """Return the policy's `reaction_s`, None without that hook.

    Raises InputError for a value that is negative, not finite or no number.
    """
    if not isinstance(policy, SupportsReaction):
        return None
    reaction_s: object = policy.reaction_s  # third parties may not be type-checked
    if reaction_s is None:
        return None
    if not isinstance(reaction_s, int | float) or not 0.0 <= reaction_s < math.inf:
        raise InputError(
            f"{type(policy).__name__}.reaction_s",
            reaction_s,
            "finite and >= 0, or None",
        )
    return float(reaction_s)


def predictions_of(policy: Policy) -> Mapping[JobId, Prediction]:
    """Return the policy's predictions of the last round, none without that hook."""
    return policy.predictions if isinstance(policy, SupportsPredictions) else {}
