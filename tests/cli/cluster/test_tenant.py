"""`coadapt tenant`: quotas are set, kept, lifted and listed."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.live_cluster import LiveCluster, call_cli


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    cluster = LiveCluster(tmp_path)
    cluster.up(slots=2)
    yield cluster
    cluster.close()


@pytest.mark.processes
def test_tenants_are_set_and_listed(cluster: LiveCluster) -> None:
    state = cluster.state
    done = call_cli(
        "tenant",
        "set",
        "vision",
        "--quota",
        "4",
        "--weight",
        "2",
        "--priority",
        "1",
        state=state,
    )
    assert done.stdout == "vision: 0 GPUs of 4, weight 2, priority 1, 0 jobs\n", done
    # What is not named stays.
    assert (
        call_cli("tenant", "set", "vision", "--quota", "1", state=state).returncode == 0
    )
    listed = json.loads(call_cli("tenant", "ls", "--json", state=state).stdout)[
        "tenants"
    ]
    assert [(each["id"], each["quota_gpus"], each["weight"]) for each in listed] == [
        ("vision", 1, 2.0)
    ]
    lifted = call_cli("tenant", "set", "vision", "--quota", "none", state=state)
    assert (
        lifted.stdout
        == "vision: 0 GPUs without a quota, weight 2, priority 1, 0 jobs\n"
    )
    refused = call_cli("tenant", "set", "vision", "--quota", "many", state=state)
    assert (refused.returncode, refused.stderr) == (
        2,
        "error: --quota: got 'many'; allowed: a number of GPUs >= 0, or none\n",
    )
    # It is in the journal.
    cluster.kill()
    cluster.up(slots=2)
    assert (
        json.loads(call_cli("tenant", "ls", "--json", state=state).stdout)["tenants"][
            0
        ]["weight"]
        == 2.0
    )
