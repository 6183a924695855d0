"""The files between an executor and running replicas: what is read, when, and what is
not taken for it.
"""

import json
import os
import time
from pathlib import Path

import pytest

from coadapt.model.rescale import ORDER_FILE, RescaleOrder, decided_file, member_name
from coadapt.model.wire import to_json
from coadapt.train.exits.stop import StopSignal
from coadapt.train.rescale.control_dir import ControlDir
from coadapt.train.rescale.pause import Pause, PauseClock
from coadapt.train.rescale.rendezvous import Rendezvous
from tests.train.replicas import start

pytestmark = pytest.mark.train


def order(generation: int, *members: str) -> RescaleOrder:
    return RescaleOrder(
        generation=generation, members=members, placement=(len(members),)
    )


def give(folder: Path, value: RescaleOrder) -> None:
    beside = folder / "order.new"
    beside.write_text(json.dumps(to_json(value)))
    beside.replace(folder / ORDER_FILE)
    # Two orders may be written within one tick of the file system's clock.
    os.utime(folder / ORDER_FILE, ns=(1, 1))


def test_the_newest_order_counts(tmp_path: Path) -> None:
    control_dir = ControlDir(tmp_path)
    assert control_dir.order() is None
    give(tmp_path, order(2, "1-0", "2-1"))
    assert control_dir.order() == order(2, "1-0", "2-1")
    give(tmp_path, order(3, "2-1"))
    assert control_dir.order() == order(3, "2-1")


def test_the_first_replica_says_where_its_store_is(tmp_path: Path) -> None:
    control_dir = ControlDir(tmp_path)
    assert control_dir.store_address(2) is None
    control_dir.publish_store(2, "127.0.0.1", 4711)
    assert control_dir.store_address(2) == ("127.0.0.1", 4711)
    assert control_dir.store_address(3) is None


def test_ready_and_capable_are_said_by_name(tmp_path: Path) -> None:
    control_dir = ControlDir(tmp_path / "rescale")
    control_dir.announce()
    control_dir.mark_ready("2-1")
    assert (control_dir.ready("2-1"), control_dir.ready("2-2")) == (True, False)
    assert sorted(path.name for path in (tmp_path / "rescale").iterdir()) == [
        "2-1.ready",
        "capable",
    ]


def test_an_order_stands_unless_it_was_taken_back_before(tmp_path: Path) -> None:
    control_dir = ControlDir(tmp_path)
    (tmp_path / decided_file(2)).touch()  # by the executor
    assert (control_dir.claim(2), control_dir.claim(3), control_dir.claim(3)) == (
        False,
        True,
        False,
    )


def test_joiners_are_those_of_the_order_s_own_generation() -> None:
    assert order(4, "1-0", "4-1", "3-2").joiners == ("4-1",)
    # A name of another rank cannot have been started by this order.
    assert order(4, "4-1", "1-0").joiners == ()
    assert member_name(4, 1) == "4-1"


@pytest.mark.parametrize(
    ("members", "placement"),
    [((), ()), (("1-0", "1-0"), (2,)), (("1-0",), (2,)), (("1-0", "1-1"), (2, 0))],
)
def test_an_order_that_makes_no_sense_cannot_be_made(
    members: tuple[str, ...], placement: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match="RescaleOrder"):
        RescaleOrder(generation=2, members=members, placement=placement)


def test_the_parts_of_a_pause_add_up_from_the_last_step_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = PauseClock(10.0)
    for part, now in (("agree", 10.5), ("form", 12.0), ("first_step", 11.0)):
        monkeypatch.setattr("time.time", lambda now=now: now)
        clock.mark(part)
    clock.add("destroy", 0.25)
    pause = clock.pause()
    # A clock that was set back counts for nothing.
    assert pause == Pause(agree_s=0.5, destroy_s=0.25, form_s=1.5)
    assert pause.total_s == 2.25
    assert (
        str(pause)
        == "2.250 s (agree 500, destroy 250, form 1500, transfer 0, wrap 0, first "
        "step 0 ms)"
    )


def keep_a_store(folder: str) -> None:
    """What the first replica does until the other is ready, and then it is gone."""
    control_dir = ControlDir(Path(folder))
    meeting = Rendezvous(control_dir, "1-0", dict)
    while not meeting.prepare(order(2, "1-0", "2-1")):
        time.sleep(0.01)


def no_step(_notes: bytes, _order: RescaleOrder) -> None:
    """A dry step that tries nothing."""


@pytest.mark.processes
def test_who_waits_to_join_others_that_have_ended_ends_well(tmp_path: Path) -> None:
    keeper = start(keep_a_store, str(tmp_path), {}, tmp_path / "output")
    stop = StopSignal(1.0)
    with pytest.raises(SystemExit) as end:
        Rendezvous(ControlDir(tmp_path), "2-1", dict).await_call(
            order(2, "1-0", "2-1"), stop, no_step
        )
    assert (end.value.code, stop.exit_code) == (0, 0)
    keeper.join()


def test_who_waits_to_join_may_be_told_that_it_is_not_needed(tmp_path: Path) -> None:
    stop = StopSignal(1.0)
    stop.request()
    with pytest.raises(SystemExit) as end:
        Rendezvous(ControlDir(tmp_path), "2-0", dict).await_call(
            order(2, "2-0"), stop, no_step
        )
    assert (end.value.code, stop.exit_code) == (0, 0)
