"""Jobs that share a GPU: real processes on one slot, which keeps its label over a
restart.
"""

from pathlib import Path

import pytest

from coadapt.core.commands import Start, Stop
from coadapt.core.events import Outcome
from coadapt.model import Allocation
from tests.contracts.executor_contract import NODES, Inbox, exited, spec, started, until
from tests.executors.test_local import LocalSite, site

__all__ = ["site"]

pytestmark = pytest.mark.processes

DEVICES = {NODES[0]: ("GPU-x", "GPU-y")}
SAYS_WHERE = (
    "echo $CUDA_VISIBLE_DEVICES > on-$COADAPT_JOB.new; mv on-$COADAPT_JOB.new "
    "on-$COADAPT_JOB; sleep 600"
)


def shared(site: LocalSite, job: str, label: int, sharers: int = 2) -> Start:
    allocation = Allocation(
        slots=((NODES[0], 1),), gpu_share=1.0 / sharers, shared=(label,)
    )
    return Start(
        job=job, generation=1, spec=spec(SAYS_WHERE, site.folder), allocation=allocation
    )


def whole(site: LocalSite, job: str) -> Start:
    allocation = Allocation(slots=((NODES[0], 1),))
    return Start(
        job=job, generation=1, spec=spec(SAYS_WHERE, site.folder), allocation=allocation
    )


def device(folder: Path, job: str) -> str:
    until((folder / f"on-{job}").exists)
    return (folder / f"on-{job}").read_text().strip()


def test_two_jobs_really_run_on_one_slot(site: LocalSite) -> None:
    executor = site.executor(devices=DEVICES)
    inbox = Inbox()
    for job, label in (("a", 7), ("b", 7), ("c", 3)):
        executor.execute(shared(site, job, label), inbox.post)
        inbox.wait(started(job, 1))
    assert [device(site.folder, job) for job in "abc"] == ["GPU-x", "GPU-x", "GPU-y"]
    assert site.pids("replica", "a")
    assert site.pids("replica", "b")
    # Both slots are shared ones now: a third sharer of a half, and a whole GPU, wait.
    executor.execute(shared(site, "d", 7), inbox.post)
    executor.execute(whole(site, "e"), inbox.post)
    inbox.stays_empty()
    executor.execute(Stop(job="a", generation=1), inbox.post)
    inbox.wait(exited("a", 1, Outcome.STOPPED), started("d", 1))
    assert device(site.folder, "d") == "GPU-x"
    executor.execute(Stop(job="c", generation=1), inbox.post)
    inbox.wait(exited("c", 1, Outcome.STOPPED), started("e", 1))
    assert device(site.folder, "e") == "GPU-y"


def test_a_label_keeps_its_slot_over_a_restart(site: LocalSite) -> None:
    executor = site.executor(devices=DEVICES)
    inbox = Inbox()
    for job, label in (("z", 1), ("a", 7)):
        executor.execute(shared(site, job, label), inbox.post)
        inbox.wait(started(job, 1))
    executor.execute(Stop(job="z", generation=1), inbox.post)
    inbox.wait(exited("z", 1, Outcome.STOPPED))
    executor = site.executor(devices=DEVICES)
    later = Inbox()
    assert executor.adopted() == [("a", 1)]
    executor.execute(shared(site, "b", 7), later.post)
    later.wait(started("b", 1))
    # The first free slot is another one: only who knows what runs puts it beside its
    # partner.
    assert [device(site.folder, job) for job in "ab"] == ["GPU-y", "GPU-y"]
