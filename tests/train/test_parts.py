"""States with tensors that go apart from the rest: taken out, and put back in. None of them is cut here."""

import pytest
import torch

from coadapt.train.parts import cut_like, in_parts, make_room, own_parts, put_in, take_out

pytestmark = pytest.mark.train


def state() -> dict[str, object]:
    return {
        "model": {"a": torch.ones(2, 3), "b": torch.zeros(4, dtype=torch.bfloat16)},
        "plain": [1, (torch.tensor(2.0), None), "text"],
    }


def test_what_is_taken_out_can_be_put_back_in() -> None:
    taken: dict[str, torch.Tensor] = {}
    outline = take_out(state(), taken, which=lambda _, tensor: tensor.dim() > 0)
    assert {path: tensor.shape for path, tensor in taken.items()} == {"/model/a": (2, 3), "/model/b": (4,)}
    room = make_room(outline, {})
    assert {path: (t.shape, t.dtype) for path, t in room.items()} == {
        "/model/a": ((2, 3), torch.float32),
        "/model/b": ((4,), torch.bfloat16),
    }
    assert repr(put_in(outline, taken)) == repr(state())


def test_an_outline_is_plain_data(tmp_path: object) -> None:
    taken: dict[str, torch.Tensor] = {}
    outline = take_out(state(), taken, which=lambda path, _: path == "/model/b")
    torch.save(outline, f"{tmp_path}/outline.pt")
    assert repr(torch.load(f"{tmp_path}/outline.pt", weights_only=True)) == repr(outline)


def test_whole_tensors_stay_as_they_are() -> None:
    whole = torch.ones(3)
    assert not in_parts(whole)
    assert own_parts([whole])[0] is whole
    assert cut_like(whole, torch.zeros(3)) is whole
    assert repr(take_out(state(), {})) == repr(state())
