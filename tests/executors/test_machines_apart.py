"""A job over two machines trains whatever their host names mean: on network name
spaces, with real replicas.
"""

import sys
from pathlib import Path

import pytest

from tests.executors.machines import Machines, missing
from tests.ports import free_ports

pytestmark = [
    pytest.mark.engine("machines"),
    pytest.mark.processes,
    pytest.mark.skipif(bool(missing()), reason=f"machines apart need {missing()}"),
]

SCRIPT = """
import os
import torch
from torch.utils.data import TensorDataset
import coadapt.train as ct

run = ct.init()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
loader = run.loader(data, batch_size=8)
model, optimizer = run.prepare(model, optimizer)
for _ in run.epochs(1):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
print("trained by", os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"])
"""
TRAIN_S = 150.0


@pytest.mark.parametrize(
    ("names", "ipv6", "decoy", "tells_address"),
    [
        ("debian", False, False, True),
        ("unknown", False, True, True),
        ("debian", True, True, True),
        ("debian", False, True, False),  # as under torchrun: the route to MASTER_ADDR
    ],
)
def test_two_machines_train_together(
    tmp_path: Path, names: str, ipv6: bool, decoy: bool, tells_address: bool
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    machines = Machines(2, names, ipv6=ipv6, decoy=decoy)
    (port,) = free_ports(1)
    try:
        replicas = []
        for rank in range(2):
            envs = {
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": machines.addresses[0],
                "MASTER_PORT": str(port),
                "COADAPT_PLACEMENT": "1,1",
                "OMP_NUM_THREADS": "1",
            }
            if tells_address:
                envs["COADAPT_NODE_ADDRESS"] = machines.addresses[rank]
            command = [sys.executable, str(tmp_path / "train.py")]
            replicas.append(machines.start(rank, command, envs))
        said = [replica.communicate(timeout=TRAIN_S)[0] for replica in replicas]
    finally:
        for replica in replicas:
            replica.kill()
        machines.close()
    assert [replica.returncode for replica in replicas] == [0, 0], said
    assert all("trained by eth0 =eth0" in each for each in said), said
