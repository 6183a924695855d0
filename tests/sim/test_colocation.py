"""Neighbours on one GPU slow each other: as the published extremes say, while both are
there.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.core.events import TrainingReported
from coadapt.model import Allocation
from coadapt.sim.applications import Neighbour
from coadapt.sim.colocation import kept_speed
from coadapt.sim.world_config import WorldConfig
from tests.sim.stage import Stage

loads = st.floats(0.01, 1.0)


def beside(*others: float) -> list[Neighbour]:
    return [Neighbour(f"n{index}", load) for index, load in enumerate(others)]


def total(*all_loads: float) -> float:
    """Return the throughput of all of them on one GPU, in GPUs that each would have had
    alone.
    """
    return sum(
        kept_speed(load, beside(*all_loads[:index], *all_loads[index + 1 :]))
        for index, load in enumerate(all_loads)
    )


def test_the_extremes_are_those_that_gandiva_measured() -> None:
    assert total(1.0, 1.0) == pytest.approx(1.0 - 0.16)  # -16 %
    assert 1.0 + 3.0 < total(*[0.2] * 5) < 1.0 + 4.12  # up to +412 %


@given(loads, st.lists(loads, max_size=7), loads)
def test_one_more_neighbour_never_helps(
    load: float, others: list[float], one_more: float
) -> None:
    kept = kept_speed(load, beside(*others))
    assert 0.0 < kept_speed(load, beside(*others, one_more)) <= kept <= 1.0
    assert (kept == 1.0) is (not others)


def half(*labels: int) -> Allocation:
    return Allocation(slots=(("n0", len(labels)),), gpu_share=0.5, shared=labels)


def progress(stage: Stage, at: float) -> dict[str, float]:
    reports = [
        event for event in stage.until(at) if isinstance(event, TrainingReported)
    ]
    return {event.job: event.report.progress / 8 for event in reports}


def test_in_the_world_they_slow_each_other_while_both_are_there() -> None:
    stage = Stage(WorldConfig(rescale_s=0.0))
    stage.start("a", 1, half(0))
    assert progress(stage, 60.0) == {"a": 60.0}
    stage.start("b", 1, half(0))
    stage.start("c", 1, half(1))
    # Both have load 1: each keeps 0.84 / 2 of its speed. The third is on a GPU of its
    # own.
    assert progress(stage, 120.0) == pytest.approx(
        {"a": 60.0 + 25.2, "b": 25.2, "c": 60.0}
    )
    stage.until(150.0)
    stage.stop("b", 1)
    # An epoch ends at 100: that takes whole seconds.
    assert progress(stage, 180.0) == pytest.approx(
        {"a": 85.2 + 12.6 + 30.0, "c": 120.0}, abs=0.5
    )


def test_a_job_on_several_gpus_is_as_slow_as_on_the_most_crowded() -> None:
    stage = Stage(WorldConfig(rescale_s=0.0))
    stage.start("a", 1, half(0, 1))
    stage.start("b", 1, half(1))
    assert progress(stage, 60.0) == pytest.approx({"a": 25.2, "b": 25.2})


def test_whoever_prepares_to_join_is_a_neighbour_already_and_no_more_when_it_is_taken_back() -> (
    None
):
    stage = Stage(WorldConfig(rescale_s=0.0, prepare_s=1000.0))
    stage.start("a", 1, half(0))
    stage.start("b", 1, half(1))
    stage.rescale("b", 2, half(0))
    assert progress(stage, 60.0) == pytest.approx({"a": 25.2, "b": 60.0})
    stage.retract("b", 2)
    assert progress(stage, 120.0) == pytest.approx({"a": 85.2, "b": 120.0})
