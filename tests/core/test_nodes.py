"""Nodes that are lost, and those that are set aside: what their jobs say."""

import pytest

from coadapt.core.commands import Stop
from coadapt.core.events import NodeLost
from coadapt.core.lifecycle import Reason
from tests.core.stage import Stage


@pytest.mark.parametrize("why", ["was lost", "was set aside: it fails jobs"])
def test_a_job_says_what_became_of_its_node(why: str) -> None:
    stage = Stage()
    stage.running()
    event = (
        NodeLost(at=stage.at, node="n0") if why == "was lost" else NodeLost(at=stage.at, node="n0", why=why)
    )
    assert Stop(job="a", generation=1) in stage.handle(event)
    assert (stage.job().reason, stage.job().explanation) == (Reason.NODE_LOST, f"stopped: node n0 {why}")
