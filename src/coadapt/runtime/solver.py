"""Where a policy runs: here, inside the loop. (A live host runs it in another process:
process_solver.py.)
"""

from collections.abc import Callable

from coadapt.core.commands import Solve
from coadapt.core.events import PlanFailed, PlanReady
from coadapt.model import ClusterView, Plan
from coadapt.policies.allocation.unavailable_gpus import without_unavailable_gpus
from coadapt.policies.base import Policy
from coadapt.runtime.ports import Post

OnDecided = Callable[[Policy, ClusterView], None]


class InlineSolver:
    """Answers each Solve at once. `decision_s` keeps what each decision took by `timer`
    (seconds).

    on_decided: called after each that succeeded, with what was decided on.
    """

    def __init__(
        self,
        policy: Policy,
        timer: Callable[[], float],
        on_decided: OnDecided | None = None,
    ) -> None:
        self.policy = policy
        self.decision_s: list[float] = []
        self._timer = timer
        self._on_decided = on_decided

    def __call__(self, command: Solve, post: Post) -> None:
        try:
            plan = self._decide_timed(command.view)
            if self._on_decided is not None:
                self._on_decided(self.policy, command.view)
        except Exception as error:  # noqa: BLE001 - a policy is outside: whatever it raises is its failure
            post(
                PlanFailed(
                    at=command.view.at, round=command.round, error=describe(error)
                )
            )
            return
        post(PlanReady(at=command.view.at, round=command.round, plan=plan))

    def _decide_timed(self, view: ClusterView) -> Plan:
        started = self._timer()
        try:
            return decide(self.policy, view)
        finally:
            self.decision_s.append(self._timer() - started)


def decide(policy: Policy, view: ClusterView) -> Plan:
    """Return what the policy gives of the GPUs that it may give."""
    shown = without_unavailable_gpus(view)
    return policy.allocate(shown)


def describe(error: BaseException) -> str:
    """Return one line that names the error."""
    return f"{type(error).__name__}: {error}".splitlines()[0]
