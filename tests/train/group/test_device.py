"""Which device a replica trains on."""

import pytest
import torch

from coadapt.model import InputError
from coadapt.train.env import Place, TrainConfig
from coadapt.train.group.group import choose_device

pytestmark = pytest.mark.train


@pytest.mark.parametrize(
    ("count", "local_rank", "asked", "chosen"),
    [
        (0, 3, "", "cpu"),
        (2, 1, "", "cuda:1"),
        (2, 1, "cuda", "cuda:1"),
        (2, 1, "cuda:0", "cuda:0"),
        (2, 0, "cpu", "cpu"),
    ],
)
def test_a_replica_has_the_device_asked_for_or_its_own_gpu(
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    local_rank: int,
    asked: str,
    chosen: str,
) -> None:
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    device = choose_device(
        TrainConfig(place=Place(world_size=4, local_rank=local_rank), device=asked)
    )
    assert device == torch.device(chosen)
    assert current == ([device] if device.type == "cuda" else [])


@pytest.mark.parametrize(
    ("count", "local_rank", "asked", "told"),
    [
        (1, 1, "", r'LOCAL_RANK: got 1; .*GPUs that it sees, 1; init\(device="cpu"\)'),
        (0, 0, "cuda", "LOCAL_RANK: got 0; .*sees, 0"),
        (
            1,
            0,
            "cuda:1",
            r"init\(device\): got 'cuda:1.; .*below that of the GPUs here, 1",
        ),
        (1, 0, "gpu", r"init\(device\): got 'gpu.; .*cuda for this replica's own GPU"),
    ],
)
def test_what_is_not_there_is_said(
    monkeypatch: pytest.MonkeyPatch, count: int, local_rank: int, asked: str, told: str
) -> None:
    """A second replica that fell back to the CPU would wait for ever for a first one on a GPU."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(InputError, match=told):
        choose_device(
            TrainConfig(place=Place(world_size=2, local_rank=local_rank), device=asked)
        )
