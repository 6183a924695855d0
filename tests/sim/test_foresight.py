"""Words on when jobs end, held against when they ended."""

from coadapt.core.commands import Solve
from coadapt.core.events import PlanFailed
from coadapt.model import ClusterView, JobId, Plan
from coadapt.policies.base import Prediction
from coadapt.runtime.history import JobHistory
from coadapt.runtime.solver import InlineSolver
from coadapt.sim.experiment import ExperimentConfig, simulate
from coadapt.sim.foresight import Foresight, Foretold
from coadapt.sim.library.builtin import builtin_workload
from tests.policies.stage import job
from tests.sim.stage import NODES


class Says:
    """A policy that says of one job when it ends: whatever `end_at` is, 10 s more or
    less.
    """

    def __init__(self) -> None:
        self.end_at = 0.0

    def allocate(self, view: ClusterView) -> Plan:
        return Plan()

    @property
    def predictions(self) -> dict[JobId, Prediction]:
        return {"a": Prediction(self.end_at, self.end_at - 10.0, self.end_at + 10.0)}


class Silent:
    def allocate(self, view: ClusterView) -> Plan:
        return Plan()


def history_of(name: str, ended_at: float | None) -> dict[JobId, JobHistory]:
    return {
        name: JobHistory(
            id=name, spec=job(name).spec, submitted_at=0.0, ended_at=ended_at
        )
    }


def test_a_word_is_noted_anew_when_half_of_the_last_has_passed() -> None:
    foresight = Foresight()
    policy = Says()
    for at, end_at in (
        (0.0, 1000.0),
        (400.0, 950.0),
        (500.0, 900.0),
        (690.0, 800.0),
        (705.0, 790.0),
    ):
        policy.end_at = end_at
        foresight.note(policy, ClusterView(at=at, nodes=(), jobs=()))
    found = foresight.fell_due(history_of("a", 805.0))
    assert found == (
        Foretold(1000.0, 990.0, 1010.0, 805.0),
        Foretold(400.0, 390.0, 410.0, 305.0),
        Foretold(85.0, 75.0, 95.0, 100.0),
    )
    assert not any(word.within for word in found)
    assert Foretold(100.0, 90.0, 110.0, 110.0).within


def test_nothing_falls_due_of_a_job_that_has_not_ended_or_a_policy_that_is_silent() -> (
    None
):
    foresight = Foresight()
    foresight.note(Says(), ClusterView(at=0.0, nodes=(), jobs=()))
    assert foresight.fell_due(history_of("a", None)) == ()
    silent = Foresight()
    silent.note(Silent(), ClusterView(at=0.0, nodes=(), jobs=()))
    assert silent.fell_due({}) == ()


def test_a_run_keeps_what_its_policy_foretold() -> None:
    workload, applications = builtin_workload(num_jobs=8, seed=1, num_gpus=12)

    def foretold(policy: str, *, figures_only: bool = False) -> tuple[Foretold, ...]:
        config = ExperimentConfig(figures_only=figures_only)
        return simulate(workload, applications, NODES, policy, config=config).foretold

    words = foretold("castor")
    assert len(words) >= 8
    assert sum(word.within for word in words) > 0.7 * len(words)
    assert foretold("pollux") == foretold("castor", figures_only=True) == ()


def test_a_policy_whose_predictions_are_none_fails_and_no_simulation_with_it() -> None:
    class Wrong(Silent):
        predictions = "soon"

    posted: list[object] = []
    solver = InlineSolver(Wrong(), lambda: 0.0, on_decided=Foresight().note)
    solver(Solve(round=1, view=ClusterView(at=0.0, nodes=(), jobs=())), posted.append)
    (failed,) = posted
    assert isinstance(failed, PlanFailed)
    assert "items" in failed.error
