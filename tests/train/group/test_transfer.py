"""A state that goes from one replica to others, with real processes."""

import json
from pathlib import Path

import pytest
import torch

from coadapt.train.env import read_config
from coadapt.train.group.group import form_group
from coadapt.train.group.transfer import (
    make_room,
    receive_state,
    send_state,
    tensor_kinds,
)
from tests.train.replicas import run_replicas

pytestmark = [pytest.mark.train, pytest.mark.processes]

SENDER = 1


def state() -> dict[str, object]:
    """Return tensors of many kinds, small and large, in nested values."""
    large = torch.arange(6000, dtype=torch.float32).reshape(60, 100)
    return {
        "plain": [1, 2.5, "three", None, (True,)],
        "small": torch.tensor(3, dtype=torch.int64),
        "view": large[3, :4],
        "nested": {
            0: {"average": large, "turned": large.t()},
            1: [large.double(), {"empty": torch.empty(0)}],
        },
        "half": large.to(torch.bfloat16),
    }


def exchange(folder: str) -> None:
    group = form_group(read_config())
    if group.rank == SENDER:
        send_state(group, state(), [0, 2])
    else:
        own = torch.zeros(60, 100)
        # In the place of "turned", a tensor of its kind that does not lie in memory in
        # one piece.
        places = {0: {"average": own, "turned": torch.zeros(60, 100).t()}}
        own_state = {"half": own, "nested": places}
        room = make_room(own_state, tensor_kinds(state()))
        got = receive_state(group, SENDER, own_state, room)
        torch.save(
            {"overwritten": own, "room": room, **got}, Path(folder) / f"{group.rank}.pt"
        )  # type: ignore[dict-item]


def test_all_receivers_get_the_state_as_it_is(tmp_path: Path) -> None:
    assert run_replicas(exchange, [str(tmp_path)] * 3, tmp_path) == [0, 0, 0]
    wanted = state()
    for rank in (0, 2):
        got = torch.load(tmp_path / f"{rank}.pt")
        # Of its own tensors a receiver uses the one of the same place and kind.
        overwritten = got.pop("overwritten")
        assert torch.equal(overwritten, got["nested"][0]["average"])
        # What it lacks comes into the room that it made; "half" and the small ones have
        # none.
        room = got.pop("room")
        assert list(room) == ["/nested/1/0"]
        assert room["/nested/1/0"].data_ptr() == got["nested"][1][0].data_ptr()
        assert json.dumps(got, default=shape) == json.dumps(wanted, default=shape)
        assert torch.equal(got["nested"][0]["turned"], wanted["nested"][0]["turned"])  # type: ignore[index]
        assert torch.equal(got["half"], wanted["half"])  # type: ignore[arg-type]
    # A small view does not take its base along.
    assert torch.load(tmp_path / "0.pt")["view"].untyped_storage().nbytes() == 16


def shape(value: torch.Tensor) -> list[object]:
    return [str(value.dtype), list(value.shape), value.double().sum().item()]
