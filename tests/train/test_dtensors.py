"""States with tensors that go apart from the rest: taken out, and put back in. None of
them is cut here.
"""

import pytest
import torch

from coadapt.train.dtensors import (
    empty_shards,
    flatten,
    is_sharded,
    local_shards,
    shard_like,
    unflatten,
)

pytestmark = pytest.mark.train


def state() -> dict[str, object]:
    return {
        "model": {"a": torch.ones(2, 3), "b": torch.zeros(4, dtype=torch.bfloat16)},
        "plain": [1, (torch.tensor(2.0), None), "text"],
    }


def test_what_is_taken_out_can_be_put_back_in() -> None:
    taken: dict[str, torch.Tensor] = {}
    outline = flatten(state(), taken, which=lambda _, tensor: tensor.dim() > 0)
    assert {path: tensor.shape for path, tensor in taken.items()} == {
        "/model/a": (2, 3),
        "/model/b": (4,),
    }
    targets = empty_shards(outline, {})
    assert {path: (t.shape, t.dtype) for path, t in targets.items()} == {
        "/model/a": ((2, 3), torch.float32),
        "/model/b": ((4,), torch.bfloat16),
    }
    assert repr(unflatten(outline, taken)) == repr(state())


def test_an_outline_is_plain_data(tmp_path: object) -> None:
    taken: dict[str, torch.Tensor] = {}
    outline = flatten(state(), taken, which=lambda path, _: path == "/model/b")
    torch.save(outline, f"{tmp_path}/outline.pt")
    assert repr(torch.load(f"{tmp_path}/outline.pt", weights_only=True)) == repr(
        outline
    )


def test_whole_tensors_stay_as_they_are() -> None:
    whole = torch.ones(3)
    assert not is_sharded(whole)
    assert local_shards([whole])[0] is whole
    assert shard_like(whole, torch.zeros(3)) is whole
    assert repr(flatten(state(), {})) == repr(state())
