"""What a policy is. A policy is outside the core: its plans are checked, its errors are caught."""

from typing import Protocol

from coadapt.model import ClusterView, Plan


class Policy(Protocol):
    """A pure function of the view, deterministic given its constructor and the sequence of views so far.

    Constructors take keyword arguments with defaults, among them `seed: int = 0` where the policy draws.
    A policy may keep state between calls (queues, a population); losing it must only cost quality.
    """

    def allocate(self, view: ClusterView) -> Plan:
        """Return what each job of `view` gets now. Must not modify or keep references into `view`."""
        ...
