"""The simulated executor: orders and their answers, time, and the things that break."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.core.events import (
    Event,
    NodeJoined,
    NodeLost,
    Outcome,
    ReplicasExited,
    ReplicasKept,
    ReplicasStarted,
    TrainingReported,
    TrainingResumed,
)
from coadapt.sim.world_config import WorldConfig
from tests.sim.stage import NODES, Stage, on


def started(at: float, generation: int, job: str = "a") -> ReplicasStarted:
    return ReplicasStarted(at=at, job=job, generation=generation)


def rescaled(at: float, generation: int, job: str = "a") -> TrainingResumed:
    return TrainingResumed(at=at, job=job, generation=generation, rescale_s=30.0)


def exited(
    at: float, generation: int, outcome: Outcome, detail: str = ""
) -> ReplicasExited:
    return ReplicasExited(
        at=at, job="a", generation=generation, outcome=outcome, detail=detail
    )


def progress(events: list[Event]) -> list[tuple[float, float]]:
    """Return (instant, progress in steps at the initial batch) of the reports among
    `events`.
    """
    return [
        (e.at, e.report.progress / 8) for e in events if isinstance(e, TrainingReported)
    ]


def test_a_job_starts_pays_the_delay_reports_and_ends() -> None:
    stage = Stage()
    stage.start("a", 1, on(n0=1))
    told = stage.until(1000.0)
    # 300 steps of 1 s after 30 s of start: the end comes at 330 s, between two reports.
    assert [e for e in told if not isinstance(e, TrainingReported)] == [
        started(0.0, 1),
        rescaled(30.0, 1),
        exited(330.0, 1, Outcome.SUCCEEDED),
    ]
    assert progress(told) == [
        (60.0, 30.0),
        (120.0, 90.0),
        (180.0, 150.0),
        (240.0, 210.0),
        (300.0, 270.0),
    ]
    assert stage.clock.idle
    assert stage.world.alive() == {}
    assert stage.world.ledger.held == {"n0": {}, "n1": {}, "n2": {}}


def test_the_clock_rests_when_nothing_runs() -> None:
    stage = Stage()
    stage.start("a", 1, on(n0=1))
    stage.clock.run()
    assert stage.clock.now() <= 360.0


def test_a_job_that_ends_at_the_instant_of_a_report_only_ends() -> None:
    stage = Stage(WorldConfig(rescale_s=0.0))
    stage.start("a", 1, on(n0=1))
    told = stage.until(1000.0)
    assert progress(told)[-1] == (240.0, 240.0)
    assert told[-1] == exited(300.0, 1, Outcome.SUCCEEDED)


class TestOrders:
    """Idempotent per (job, generation): a repeat is answered with the fate, an old
    order ignored.
    """

    def test_a_repeated_start_changes_nothing(self) -> None:
        stage = Stage()
        stage.start("a", 3, on(n0=1))
        stage.until(45.0)
        stage.start("a", 3, on(n0=1))
        assert stage.told == [started(45.0, 3)]
        assert stage.exits() == [exited(330.0, 3, Outcome.SUCCEEDED)]

    def test_an_old_order_is_ignored(self) -> None:
        stage = Stage()
        stage.start("a", 3, on(n0=1))
        stage.until(45.0)
        stage.start("a", 2, on(n1=1))
        stage.rescale("a", 2, on(n1=1))
        stage.stop("a", 2)
        assert stage.told == []
        assert stage.world.ledger.held["n0"] == {"a": 1.0}

    def test_a_repeat_after_the_end_tells_the_end(self) -> None:
        stage = Stage()
        stage.start("a", 1, on(n0=1))
        stage.until(400.0)
        stage.start("a", 1, on(n0=1))
        stage.stop("a", 1)
        stage.rescale("a", 2, on(n0=2))
        assert stage.told == [
            exited(400.0, generation, Outcome.SUCCEEDED) for generation in (1, 1, 2)
        ]

    def test_a_stop_saves_what_was_done(self) -> None:
        stage = Stage()
        stage.start("a", 1, on(n0=1))
        stage.until(100.0)
        stage.stop("a", 1)
        assert stage.until(500.0) == [exited(100.0, 1, Outcome.STOPPED)]
        stage.start("a", 2, on(n1=1))
        # 70 of 300 steps were done; 230 remain after another start of 30 s.
        assert stage.exits()[-1] == exited(760.0, 2, Outcome.SUCCEEDED)

    def test_a_stop_before_the_start_came_forbids_the_start(self) -> None:
        stage = Stage()
        stage.stop("a", 1)
        stage.start("a", 1, on(n0=1))
        assert stage.told == [exited(0.0, 1, Outcome.STOPPED)] * 2
        assert stage.world.alive() == {}

    def test_a_rescale_keeps_the_training_and_pays_the_delay(self) -> None:
        stage = Stage()
        stage.start("a", 1, on(n0=1))
        stage.until(90.0)
        stage.rescale("a", 2, on(n0=2, n1=1))
        told = stage.until(130.0)
        assert told[0] == started(90.0, 2)
        assert progress(told) == [(120.0, 60.0)]
        assert told[-1] == rescaled(120.0, 2)
        # 240 of 300 steps are left, at 2 s each on two nodes.
        assert stage.exits() == [exited(600.0, 2, Outcome.SUCCEEDED)]

    def test_a_rescale_during_the_delay_pays_it_anew(self) -> None:
        stage = Stage()
        stage.start("a", 1, on(n0=1))
        stage.until(20.0)
        stage.rescale("a", 2, on(n1=1))
        told = stage.until(340.0)
        assert [e for e in told if isinstance(e, TrainingResumed)] == [
            rescaled(50.0, 2)
        ]
        assert stage.exits() == [exited(350.0, 2, Outcome.SUCCEEDED)]

    def test_a_change_of_batch_alone_costs_nothing(self) -> None:
        stage = Stage()
        stage.start("a", 1, on(n0=1))
        stage.until(130.0)
        stage.rescale("a", 2, on(n0=1), total=16)
        # 100 of 300 were done; batch 16 makes 4/3 steps of progress per second.
        assert stage.exits() == [exited(280.0, 2, Outcome.SUCCEEDED)]
        assert not [e for e in stage.told if isinstance(e, TrainingResumed)]

    def test_a_change_of_batch_alone_keeps_the_rest_of_the_delay(self) -> None:
        stage = Stage()
        stage.start("a", 1, on(n0=1))
        stage.until(20.0)
        stage.rescale("a", 2, on(n0=1), total=8)
        assert stage.until(30.0) == [started(20.0, 2), rescaled(30.0, 2)]

    def test_two_generations_at_once_are_a_bug(self) -> None:
        stage = Stage()
        stage.start("a", 1, on(n0=1))
        with pytest.raises(AssertionError, match="two generations"):
            stage.start("a", 2, on(n1=1))

    def test_a_node_beyond_its_gpus_is_a_bug(self) -> None:
        stage = Stage()
        stage.start("a", 1, on(n0=3))
        with pytest.raises(AssertionError, match="n0 has 4 GPUs"):
            stage.start("b", 1, on(n0=2))


def kept(at: float, generation: int, detail: str = "") -> ReplicasKept:
    return ReplicasKept(at=at, job="a", generation=generation, detail=detail)


class TestPreparing:
    """Changes that take 40 s to come about while the training goes on, and may be taken
    back meanwhile.
    """

    CONFIG = WorldConfig(prepare_s=40.0)

    def preparing(self) -> Stage:
        """Return job a at 90 s, with 60 of 300 steps done, told to go from n0 to n1."""
        stage = Stage(self.CONFIG)
        stage.start("a", 1, on(n0=1))
        stage.until(90.0)
        stage.rescale("a", 2, on(n0=1, n1=1))
        return stage

    def test_both_allocations_are_held_until_the_change(self) -> None:
        stage = self.preparing()
        assert stage.world.ledger.held == {"n0": {"a": 1.0}, "n1": {"a": 1.0}, "n2": {}}
        stage.rescale("a", 2, on(n0=1, n1=1))
        told = stage.until(129.0)
        assert [(type(event), event.generation) for event in told] == [
            (TrainingReported, 1)
        ]  # type: ignore[union-attr]
        assert stage.world.alive() == {"a": 1}
        assert stage.until(130.0) == [started(130.0, 2)]
        # 100 steps were done at 130 s; 200 are left, at 2 s each after 30 s.
        assert stage.exits() == [exited(560.0, 2, Outcome.SUCCEEDED)]

    def test_one_that_is_taken_back_leaves_no_trace(self) -> None:
        stage = self.preparing()
        stage.until(100.0)
        for _ in range(2):
            stage.retract("a", 2)
        stage.rescale("a", 2, on(n0=1, n1=1))
        assert stage.told == [kept(100.0, 2)] * 3
        assert stage.world.ledger.held == {"n0": {"a": 1.0}, "n1": {}, "n2": {}}
        told = stage.until(1000.0)
        assert {
            event.generation for event in told if isinstance(event, TrainingReported)
        } == {1}
        assert told[-1] == exited(330.0, 2, Outcome.SUCCEEDED)
        stage.retract("a", 2)
        assert stage.told == [exited(1000.0, 2, Outcome.SUCCEEDED)]

    def test_one_that_comes_too_late_is_told_what_became_of_the_order(self) -> None:
        stage = self.preparing()
        stage.until(131.0)
        stage.retract("a", 2)
        assert stage.told == [started(131.0, 2)]

    def test_one_that_overtakes_its_order_forbids_it(self) -> None:
        stage = Stage(self.CONFIG)
        stage.start("a", 1, on(n0=1))
        stage.until(90.0)
        stage.retract("a", 2)
        stage.rescale("a", 2, on(n1=1))
        assert stage.told == [kept(90.0, 2)] * 2

    def test_who_fails_to_join_costs_no_training(self) -> None:
        stage = Stage(self.CONFIG)
        stage.world.joiners_fail.add("a")
        stage.start("a", 1, on(n0=1))
        stage.until(90.0)
        stage.rescale("a", 2, on(n1=1))
        why = "a replica that was to join failed"
        assert stage.until(110.0) == [kept(110.0, 2, why)]
        stage.world.joiners_fail.clear()
        stage.rescale("a", 3, on(n1=1))
        stage.retract("a", 3)
        assert stage.told == [kept(110.0, 3)]
        assert stage.exits() == [exited(330.0, 3, Outcome.SUCCEEDED)]

    def test_a_node_that_is_lost_meanwhile_ends_the_change_or_the_training(
        self,
    ) -> None:
        stage = self.preparing()
        stage.told.clear()
        stage.world.lose_node("n1", stage.told.append)
        assert stage.told == [
            NodeLost(at=90.0, node="n1"),
            kept(90.0, 2, "node n1 went away"),
        ]
        assert stage.world.ledger.held == {"n0": {"a": 1.0}, "n2": {}}
        stage.rescale("a", 3, on(n2=1))
        stage.told.clear()
        stage.world.lose_node("n0", stage.told.append)
        assert stage.told[1:] == [exited(90.0, 3, Outcome.LOST, "node n0 went away")]
        assert stage.world.ledger.held == {"n2": {}}

    def test_a_stop_meanwhile_saves_what_was_done(self) -> None:
        stage = self.preparing()
        stage.until(100.0)
        stage.stop("a", 2)
        assert stage.told == [exited(100.0, 2, Outcome.STOPPED)]
        assert stage.world.ledger.held == {"n0": {}, "n1": {}, "n2": {}}


class TestBreaking:
    """Crashes and lost nodes, at any time."""

    def test_a_crash_goes_back_to_the_last_report(self) -> None:
        stage = Stage()
        stage.start("a", 1, on(n0=1))
        stage.until(100.0)
        assert stage.world.crash("a", Outcome.FAILED, "exit code 1")
        assert stage.until(200.0) == [exited(100.0, 1, Outcome.FAILED, "exit code 1")]
        stage.start("a", 2, on(n0=1))
        # 30 steps were saved at 60 s.
        assert stage.exits()[-1] == exited(500.0, 2, Outcome.SUCCEEDED)

    def test_a_crash_before_the_end_prevents_it(self) -> None:
        stage = Stage()
        stage.start("a", 1, on(n0=1))
        stage.until(310.0)
        stage.world.crash("a")
        assert stage.exits() == [exited(310.0, 1, Outcome.LOST, "crashed")]

    def test_checkpoints_may_be_rarer_than_reports(self) -> None:
        stage = Stage(WorldConfig(checkpoint_s=100.0))
        stage.start("a", 1, on(n0=1))
        stage.until(230.0)
        stage.world.crash("a")
        stage.start("a", 2, on(n0=1))
        # Reports at 60, 120 and 180 s; the one at 120 s made the only checkpoint, with
        # 90 steps.
        assert stage.exits()[-1] == exited(230.0 + 30.0 + 210.0, 2, Outcome.SUCCEEDED)

    def test_a_crash_of_nothing_is_none(self) -> None:
        stage = Stage()
        assert not stage.world.crash("a")
        assert stage.told == []

    def test_a_lost_node_takes_whole_jobs_with_it(self) -> None:
        stage = Stage()
        stage.start("a", 1, on(n0=1, n1=1))
        stage.start("b", 1, on(n1=1))
        stage.until(70.0)
        stage.world.lose_node("n0", stage.told.append)
        assert stage.told == [
            NodeLost(at=70.0, node="n0"),
            exited(70.0, 1, Outcome.LOST, "node n0 went away"),
        ]
        assert stage.world.alive() == {"b": 1}
        assert stage.world.ledger.held == {"n1": {"b": 1.0}, "n2": {}}

    def test_a_node_that_comes_back_is_empty(self) -> None:
        stage = Stage()
        stage.start("a", 1, on(n0=4))
        stage.world.lose_node("n0", stage.told.append)
        stage.until(5.0)
        stage.world.restore_node(NODES[0], stage.told.append)
        assert stage.told == [NodeJoined(at=5.0, node=NODES[0])]
        stage.start("b", 1, on(n0=4))
        assert stage.world.alive() == {"b": 1}

    def test_orders_for_a_lost_node_come_to_nothing(self) -> None:
        stage = Stage()
        stage.start("a", 1, on(n1=1))
        stage.world.lose_node("n0", stage.told.append)
        stage.told.clear()
        stage.start("b", 1, on(n0=1))
        stage.rescale("a", 2, on(n0=1, n1=1))
        down = "node n0 is down"
        assert stage.told == [
            ReplicasExited(
                at=0.0, job="b", generation=1, outcome=Outcome.LOST, detail=down
            ),
            ReplicasKept(at=0.0, job="a", generation=2, detail=down),
        ]
        assert stage.world.alive() == {"a": 1}

    @given(st.lists(st.floats(0.1, 400.0), max_size=6))
    def test_stops_at_any_time_neither_lose_nor_make_progress(
        self, instants: list[float]
    ) -> None:
        stage = Stage(WorldConfig(rescale_s=0.0))
        stage.start("a", 1, on(n0=1))
        for generation, at in enumerate(sorted(instants), start=2):
            stage.clock.run(until=at)
            if stage.world.alive():
                stage.stop("a", generation - 1)
                stage.start("a", generation, on(n1=1))
        (end,) = (e for e in stage.exits() if e.outcome is Outcome.SUCCEEDED)
        # A step takes a second and stopping costs none here; epochs are rounded to
        # whole seconds.
        assert 300.0 - 1.5 <= end.at <= 300.0 + 1.5


class TestInterference:
    """Distributed jobs that share a node slow each other down (25 %)."""

    CONFIG = WorldConfig(interference=0.25, rescale_s=0.0)

    def reported(self, *allocations: dict[str, int]) -> list[float]:
        stage = Stage(self.CONFIG)
        for job, slots in zip("abc", allocations, strict=False):
            stage.start(job, 1, on(**slots))
        return [steps for _, steps in progress(stage.until(60.0))]

    def test_two_distributed_jobs_on_a_node(self) -> None:
        # 2 s per step on several nodes: 30 steps in a minute, 22.5 under interference.
        assert self.reported({"n0": 1, "n1": 1}, {"n1": 1, "n2": 1}) == [22.5, 22.5]

    def test_a_job_on_one_node_neither_suffers_nor_disturbs(self) -> None:
        assert self.reported({"n0": 1, "n1": 1}, {"n1": 1}) == [30.0, 60.0]

    def test_a_job_on_one_node_does_not_suffer_from_two(self) -> None:
        shapes = ({"n0": 1, "n1": 1}, {"n1": 1, "n2": 1}, {"n1": 2})
        assert self.reported(*shapes) == [22.5, 22.5, 60.0]

    def test_it_ends_when_the_other_goes(self) -> None:
        stage = Stage(self.CONFIG)
        stage.start("a", 1, on(n0=1, n1=1))
        stage.start("b", 1, on(n1=1, n2=1))
        stage.until(30.0)
        stage.stop("b", 1)
        assert progress(stage.until(60.0)) == [(60.0, 11.25 + 15.0)]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("report_s", 0.0),
        ("rescale_s", -1.0),
        ("prepare_s", -1.0),
        ("checkpoint_s", float("inf")),
        ("interference", 1.0),
    ],
)
def test_settings_have_limits(setting: str, value: float) -> None:
    with pytest.raises(ValueError, match=setting):
        WorldConfig(**{setting: value})
