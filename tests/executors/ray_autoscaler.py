"""A Ray cluster on this machine whose own autoscaler starts and ends nodes: Ray's
provider for tests.
"""

# Ray's AutoscalingCluster begins with `ray stop --force`, which ends every Ray process
# of the machine, those of other tests among them. So the head is started here, and
# ended by its session.

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.ports import free_ports

START_S = 120.0


def config(address: str, slots_per_node: int, max_nodes: int) -> dict[str, object]:
    worker = {
        "resources": {"CPU": slots_per_node},
        "node_config": {},
        "min_workers": 0,
        "max_workers": max_nodes,
    }
    lists = (
        "initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands",
        "head_start_ray_commands", "worker_start_ray_commands", "cluster_synced_files", "rsync_exclude",
        "rsync_filter",
    )  # fmt: skip
    return {
        "cluster_name": "coadapt-test",
        "max_workers": max_nodes,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 0.05,
        "provider": {
            "type": "fake_multinode",
            "gcs_address": address,
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {
                "resources": {"CPU": 0},
                "node_config": {},
                "max_workers": 0,
            },
            "worker": worker,
        },
        "auth": {},
        "docker": {},
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
        **{name: [] for name in lists},
    }


@contextmanager
def autoscaling_cluster(
    folder: Path, slots_per_node: int, max_nodes: int
) -> Iterator[str]:
    """Run a head without slots that can have so many nodes; give its address."""
    from ray.util import get_node_ip_address

    file = folder / "autoscaler.json"
    [port] = free_ports(1)
    address = f"{get_node_ip_address()}:{port}"
    file.write_text(json.dumps(config(address, slots_per_node, max_nodes)))
    command = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--head",
        "--block",
        "--num-cpus=0",
    ]
    options = [
        f"--port={port}",
        f"--autoscaling-config={file}",
        "--include-dashboard=false",
    ]
    envs = {
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_FAKE_CLUSTER": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": "/tmp",
    }
    with (folder / "head.log").open("wb") as log:
        head = subprocess.Popen(
            [*command, *options],
            env={**os.environ, **envs},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_S
        while b"Ray runtime started" not in (folder / "head.log").read_bytes():
            assert head.poll() is None, (folder / "head.log").read_text()
            assert time.monotonic() < deadline, (folder / "head.log").read_text()
            time.sleep(0.1)
        yield address
    finally:
        _end(head)


def _end(head: "subprocess.Popen[bytes]") -> None:
    """End the head, which ends what it has started, and what is left of its session."""
    head.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        head.wait(30)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _session(entry) == head.pid:
            os.kill(int(entry.name), signal.SIGKILL)
    head.wait(30)


def _session(process: Path) -> int:
    try:
        return os.getsid(int(process.name))
    except (ProcessLookupError, PermissionError):
        return 0
