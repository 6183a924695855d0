"""Which device a replica trains on."""

import pytest
import torch

from coadapt.model import InputError
from coadapt.train.env import Job, Place, TrainConfig
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
    ("count", "local_rank", "asked", "message"),
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
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    local_rank: int,
    asked: str,
    message: str,
) -> None:
    """A second replica that fell back to the CPU would wait for ever for a first one on
    a GPU.
    """
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(InputError, match=message):
        choose_device(
            TrainConfig(place=Place(world_size=2, local_rank=local_rank), device=asked)
        )


@pytest.mark.parametrize("gpu_type", ["a100", "gpu-mig-1g.10gb", "amd-gpu"])
def test_a_replica_that_was_given_a_gpu_and_sees_none_ends_with_one_line(
    monkeypatch: pytest.MonkeyPatch, gpu_type: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1")
    config = TrainConfig(job=Job(gpu_type=gpu_type))
    with pytest.raises(
        InputError, match=f"type {gpu_type}, CUDA_VISIBLE_DEVICES='MIG-1'"
    ):
        choose_device(config)
    assert choose_device(TrainConfig(job=Job(gpu_type="cpu"))).type == "cpu"
    asked = TrainConfig(job=Job(gpu_type=gpu_type), device="cpu")
    assert choose_device(asked).type == "cpu"


def test_a_build_of_torch_without_gpus_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    assert choose_device(TrainConfig(job=Job(gpu_type="a100"))).type == "cpu"
    assert "given a GPU of type a100" in caplog.text
