"""What others hold of a Ray cluster is not offered: from answers in the shape of Ray
2.60's.
"""

from pathlib import Path

import pytest

pytest.importorskip("ray")

from coadapt.executors.ray.others import (
    WINDOW_S,
    Others,
    actor_name,
    notice_text,
    tag_of,
)
from coadapt.model.devices import PARTS

TAG = tag_of(Path("/state"))
NODES = [
    {"NodeID": "a", "Resources": {"GPU": 2.0}},
    {"NodeID": "b", "Resources": {"GPU": 2.0, "CPU": 4.0}},
]


def others() -> Others:
    return Others("GPU", TAG)


def ours(node: str, parts: int = PARTS, number: int = 0) -> dict:
    name = actor_name(TAG, parts, node, f"job-1-{number}")
    return {"Name": name, "State": "PENDING_CREATION", "Address": {"NodeID": "f" * 8}}


FOREIGN = {"Name": "", "ActorClassName": "Holder", "Address": {"NodeID": "a"}}


def test_what_others_hold_is_not_offered_from_the_first_look_on() -> None:
    seen = others()
    seen.take(NODES, {"a": {}, "b": {"GPU": 1.0}}, [FOREIGN, FOREIGN], 0.0)
    assert (seen.left("a", 2), seen.left("b", 2)) == (0, 1)


def test_what_ours_hold_or_are_about_to_is_theirs() -> None:
    seen = others()
    seen.take(
        NODES, {"a": {}, "b": {"GPU": 2.0}}, [ours("a"), ours("a", number=1)], 0.0
    )
    assert (seen.left("a", 2), seen.left("b", 2)) == (2, 2)


def test_answers_of_different_instants_take_nothing_away() -> None:
    """A daemon tells that a GPU is taken before the actor is known, or after it is
    gone.
    """
    seen = others()
    seen.take(NODES, {"a": {"GPU": 2.0}, "b": {}}, [], 0.0)
    seen.take(NODES, {"a": {"GPU": 1.0}, "b": {}}, [], 2.0)
    assert seen.left("a", 2) == 2
    seen.take(NODES, {"a": {"GPU": 1.0}, "b": {}}, [ours("a")], 4.0)
    assert seen.left("a", 2) == 2
    assert seen.left("b", 2) == 0


def test_a_job_of_others_is_seen_once_it_has_stayed() -> None:
    seen = others()
    seen.take(NODES, {"a": {"GPU": 2.0}}, [], 0.0)
    for at in range(2, int(WINDOW_S) + 4, 2):
        seen.take(NODES, {"a": {}}, [ours("a")], float(at))
    assert seen.left("a", 2) == 1
    seen.take(NODES, {"a": {"GPU": 1.0}}, [ours("a")], WINDOW_S + 6)
    assert seen.left("a", 2) == 2


@pytest.mark.parametrize(("free", "left"), [(0.5, 0), (1.5, 1), (2.0, 2), (0.0, 0)])
def test_a_part_of_a_gpu_takes_all_of_it(free: float, left: int) -> None:
    seen = others()
    seen.take(NODES, {"a": {"GPU": free}}, [], 0.0)
    assert seen.left("a", 2) == left


def test_a_node_is_never_smaller_than_what_ours_hold() -> None:
    seen = others()
    for at in (0.0, WINDOW_S, 2 * WINDOW_S):
        seen.take(NODES, {"a": {}}, [ours("a"), ours("a", PARTS // 2, 1)], at)
    assert seen.left("a", 2) == 2


def test_replicas_of_another_scheduler_are_others() -> None:
    seen = others()
    name = actor_name(tag_of(Path("/elsewhere")), PARTS, "a", "job-1-0")
    seen.take(
        NODES, {"a": {"GPU": 1.0}}, [{"Name": name, "Address": {"NodeID": "a"}}], 0.0
    )
    assert seen.left("a", 2) == 1


def test_replicas_of_a_version_without_names_are_ours() -> None:
    seen = others()
    old = {"Name": "", "ActorClassName": "Runner", "Address": {"NodeID": "a"}}
    seen.take(NODES, {"a": {"GPU": 1.0}}, [old], 0.0)
    assert seen.left("a", 2) == 2


def test_a_node_that_has_not_reported_is_whole() -> None:
    seen = others()
    assert seen.left("a", 2) == 2
    seen.take(NODES, {}, [], 0.0)
    assert seen.left("a", 2) == 2


def test_a_drain_notice_is_told_with_its_deadline() -> None:
    assert notice_text(0, 1000.0) == "drains: Ray takes it away, without a deadline"
    assert notice_text(1_600_000, 1000.0) == "drains: Ray takes it away in 600 s"
    assert (
        notice_text(2**63 - 1, 1000.0)
        == "drains: Ray takes it away, without a deadline"
    )
