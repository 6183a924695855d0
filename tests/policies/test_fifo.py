from coadapt.model import BatchConfig, Plan, RescaleContract
from coadapt.policies.fifo import Fifo
from tests.policies.stage import counts, job, nodes, on, view


def test_jobs_start_in_order_of_arrival_on_what_they_requested() -> None:
    seen = view(nodes(4, 4), job("b", (1, 8), requested=5, at=1.0), job("a", 2, at=2.0))
    assert Fifo().allocate(seen) == Plan(
        allocations={"b": on(n0=4, n1=1), "a": on(n1=2)},
        batches={
            "b": BatchConfig(total=65, atomic=13),
            "a": BatchConfig(total=64, atomic=32),
        },
        reasons={"b": "starts on 5 GPUs", "a": "starts on 2 GPUs"},
    )


def test_a_job_that_does_not_fit_stops_those_behind_it() -> None:
    seen = view(nodes(4), job("a", 3), job("b", 2), job("c", 1))
    plan = Fifo().allocate(seen)
    assert counts(plan) == {"a": 3}
    assert plan.reasons == {
        "a": "starts on 3 GPUs",
        "b": "1 job that came earlier goes first",
        "c": "behind b, which needs 2 GPUs",
    }


def test_with_backfill_later_jobs_may_pass_it() -> None:
    seen = view(nodes(4), job("a", 3), job("b", 2), job("c", 1))
    assert counts(Fifo(backfill=True).allocate(seen)) == {"a": 3, "c": 1}


def test_a_running_job_keeps_its_gpus_whoever_came_earlier() -> None:
    """Also a count that it did not request: another policy may have given it."""
    seen = view(
        nodes(4),
        job("early", 2),
        job("late", (1, 4), requested=4, held=on(n0=3), at=1.0),
    )
    plan = Fifo().allocate(seen)
    assert plan.allocations == {"late": on(n0=3)}


def test_a_job_larger_than_the_cluster_stops_nobody() -> None:
    plan = Fifo().allocate(view(nodes(4), job("a", 5), job("b", 1)))
    assert counts(plan) == {"b": 1}
    assert plan.reasons["a"] == ""


def test_a_job_without_quota_stops_nobody() -> None:
    seen = view(nodes(4), job("a", 2, tenant="poor"), job("b", 1), quotas={"poor": 1})
    plan = Fifo().allocate(seen)
    assert counts(plan) == {"b": 1}
    assert plan.reasons["a"] == ""


def test_a_job_that_lost_a_node_starts_again_in_its_turn_and_stops_no_running_job() -> (
    None
):
    hurt = job("a", 3, held=on(gone=1, n0=2))
    seen = view(nodes(4), hurt, job("b", 2, held=on(n0=2)), job("c", 1))
    plan = Fifo().allocate(seen)
    assert plan.allocations == {"b": on(n0=2)}


def test_a_frozen_job_on_a_lost_node_stops_nobody() -> None:
    hurt = job("a", 2, held=on(gone=1, n0=1), contract=RescaleContract.FROZEN)
    plan = Fifo().allocate(view(nodes(2), hurt, job("b", 2)))
    assert counts(plan) == {"b": 2}
    assert plan.reasons["a"].startswith("its contract is frozen")


def test_gpu_types_are_not_mixed_to_make_room() -> None:
    seen = view(
        nodes(2, kind="small", name="s") + nodes(2, kind="big", name="b"),
        job("a", 2),
        job("b", 1),
        job("c", 2),
    )
    plan = Fifo(backfill=True).allocate(seen)
    assert plan.allocations == {"a": on(s0=2), "b": on(b0=1)}
    assert plan.reasons["c"] == "2 jobs that came earlier go first"


def test_a_move_is_said() -> None:
    plan = Fifo().allocate(view(nodes(4), job("a", 3, held=on(gone=1, n0=2))))
    assert plan.reasons == {
        "a": "moves with its 3 GPUs: it could not stay where it was"
    }
