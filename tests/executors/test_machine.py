"""Slots and GPUs of a machine become nodes. NVML is a fake with NVML's own names."""

import socket
import sys
from types import ModuleType

import pytest

from coadapt.executors.machine import Machine, cpu_machine, nvidia_machine
from coadapt.model import InputError, Node

HOST = socket.gethostname()


def fake_nvml(*devices: tuple[str, str], driver: bool = True) -> ModuleType:
    """Return a module that answers as pynvml does on a machine with these (UUID,
    name).
    """
    nvml = ModuleType("pynvml")

    class NVMLError(Exception):
        pass

    def init() -> None:
        if not driver:
            raise NVMLError("Driver Not Loaded")

    nvml.__dict__.update(
        NVMLError=NVMLError,
        nvmlInit=init,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(devices),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda handle: devices[handle][0],
        nvmlDeviceGetName=lambda handle: devices[handle][1],
    )
    return nvml


H100 = "NVIDIA H100 80GB HBM3"


def test_cpu_slots_are_one_node_named_after_the_host() -> None:
    assert cpu_machine(4) == Machine(nodes=(Node(id=HOST, num_gpus=4, gpu_type="cpu"),))


@pytest.mark.parametrize("num_slots", [0, -1, 1025])
def test_an_impossible_number_of_slots_is_refused(num_slots: int) -> None:
    with pytest.raises(InputError, match=r"--slots: got .*; allowed: 1\.\.1024"):
        cpu_machine(num_slots)


def test_equal_gpus_are_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules, "pynvml", fake_nvml(("GPU-a", H100), ("GPU-b", H100))
    )
    assert nvidia_machine() == Machine(
        nodes=(Node(id=HOST, num_gpus=2, gpu_type="nvidia-h100-80gb-hbm3"),),
        devices={HOST: ("GPU-a", "GPU-b")},
    )


def test_each_kind_of_gpu_is_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = fake_nvml(("GPU-a", "Tesla T4"), ("GPU-b", H100), ("GPU-c", "Tesla T4"))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert nvidia_machine() == Machine(
        nodes=(
            Node(
                id=f"{HOST}-nvidia-h100-80gb-hbm3",
                num_gpus=1,
                gpu_type="nvidia-h100-80gb-hbm3",
            ),
            Node(id=f"{HOST}-tesla-t4", num_gpus=2, gpu_type="tesla-t4"),
        ),
        devices={
            f"{HOST}-nvidia-h100-80gb-hbm3": ("GPU-b",),
            f"{HOST}-tesla-t4": ("GPU-a", "GPU-c"),
        },
    )


@pytest.mark.parametrize("visible", ["1", "GPU-b"])
def test_only_visible_gpus_are_used(
    monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    monkeypatch.setitem(
        sys.modules, "pynvml", fake_nvml(("GPU-a", H100), ("GPU-b", H100))
    )
    assert nvidia_machine(visible).devices == {HOST: ("GPU-b",)}


def test_a_machine_without_a_driver_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(driver=False))
    assert nvidia_machine() == Machine(nodes=())


def test_a_machine_without_the_binding_has_no_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvidia_machine() == Machine(nodes=())
