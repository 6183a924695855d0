"""What is carried for each sample of a step finds its sample again, however steps are
dealt.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.train.checkpoint import per_sample
from coadapt.train.checkpoint.per_sample import PerSample, explain_carried
from coadapt.train.group.group import Group
from coadapt.train.samples.order import cut_step
from coadapt.train.session import Progress, Session

pytestmark = pytest.mark.train


def fresh(count: int) -> dict[str, object]:
    return {"h": (torch.zeros(2, count), torch.zeros(1, count, 3))}


def holder(rank: int, size: int) -> PerSample:
    session = SimpleNamespace(
        group=Group(rank=rank, size=size), progress=Progress(), current=None
    )
    return PerSample(cast("Session", session), "hidden", fresh, 1)


@settings(deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.integers(1, 4),  # replicas
            st.integers(1, 13),  # samples of the step
            st.integers(1, 5),  # samples of a pass
            st.booleans(),  # by a restart
        ),
        min_size=1,
        max_size=12,
    )
)
def test_the_state_of_a_place_is_what_the_step_before_left_there(
    steps: list[tuple[int, int, int, bool]],
) -> None:
    replicas = [holder(0, 1)]
    left: dict[int, int] = {}  # place -> the step that used it last
    with pytest.MonkeyPatch.context() as patch:
        for number, (size, num_samples, atomic, restarts) in enumerate(steps, 1):
            if size != len(replicas) or restarts:
                patch_gathering(patch, replicas)
                for replica in replicas:
                    replica.gather()
                state = replicas[-1].state_dict()
                stay = [] if restarts else replicas[:size]
                replicas = [*stay, *(holder(0, 1) for _ in range(size - len(stay)))]
                for replica in replicas[len(stay) :]:
                    replica.load_state_dict(state)
            patch_gathering(patch, replicas)
            for rank, replica in enumerate(replicas):
                session: Any = replica._session
                session.group = Group(rank=rank, size=size)
                session.progress = Progress(index=100 * number, step=number)
                session.data = SimpleNamespace(batch=SimpleNamespace(atomic=atomic))
            passes = [
                cut_step(
                    100 * number, num_samples, atomic, rank=rank, num_replicas=size
                )
                for rank in range(size)
            ]
            for together in zip(*passes, strict=True):
                for replica, current in zip(replicas, together, strict=True):
                    cast("Any", replica._session).current = current
                    value: Any = replica.get()
                    places = range(
                        current.start - 100 * number, current.stop - 100 * number
                    )
                    if places:
                        expected = [float(left.get(place, 0)) for place in places]
                        assert value["h"][0][0].tolist() == expected
                        assert value["h"][1][0, :, 2].tolist() == expected
                    count = value["h"][0].shape[1]
                    replica.set(
                        {
                            "h": (
                                torch.full((2, count), float(number)),
                                torch.full((1, count, 3), float(number)),
                            )
                        }
                    )
            left.update(dict.fromkeys(range(num_samples), number))
            for replica in replicas:
                cast("Any", replica._session).current = None


def patch_gathering(patch: pytest.MonkeyPatch, replicas: list[PerSample]) -> None:
    parts = [list(replica._parts) for replica in replicas]
    own = {id(replica): parts for replica in replicas}

    def gather_all(group: Group, _own: object) -> object:
        # As of the end of the step before, as all replicas call it at the same place.
        return own[id(replicas[0])] if group.distributed else [_own]

    patch.setattr(per_sample, "gather_all", gather_all)


def begin(
    folder: Path | None = None,
) -> tuple[ct.Run, ct.ElasticLoader, PerSample, Any]:
    run = ct.init(checkpoint_dir=folder)
    net = nn.Linear(1, 1)
    model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=1e-3))
    with pytest.raises(RuntimeError, match=r"call run\.loader\(...\) before"):
        run.per_sample("sum", torch.zeros)
    loader = run.loader(TensorDataset(torch.arange(24.0).reshape(-1, 1)), batch_size=4)
    kept = run.per_sample("sum", torch.zeros)

    def body(x: Tensor) -> None:
        value = kept.get()
        assert isinstance(value, Tensor)
        model(x).mean().backward()
        optimizer.step()
        kept.set(value + x[:, 0])

    return run, loader, kept, body


def test_it_comes_back_from_a_checkpoint_and_begins_with_the_epoch(
    tmp_path: Path,
) -> None:
    run, loader, kept, body = begin(tmp_path)
    for _ in run.epochs(1):
        kept.reset()
        for number, (x,) in enumerate(loader):  # type: ignore[misc]  # one tensor
            if number == 2:
                break
            body(x)
        break
    run._session.current = None
    run._saver.save(stopped=True)
    run._training = False
    run.close()
    run, loader, kept, body = begin(tmp_path)
    sums = []
    for _ in run.epochs(2):
        kept.reset()  # within the first epoch there is nothing to begin
        for (x,) in loader:  # type: ignore[misc]  # one tensor
            body(x)
        assert isinstance(kept._parts[0].value, Tensor)
        sums.append(kept._parts[0].value.tolist())
    column = [float(sum(range(place, 24, 4))) for place in range(4)]
    assert sums == [column, column]
    run.close()


def test_what_does_not_fit_is_refused_in_one_line() -> None:
    run, loader, kept, _ = begin()
    with pytest.raises(RuntimeError, match="inside of the loop"):
        kept.get()
    epochs = run.epochs(1)
    next(epochs)
    next(iter(loader))
    run._session.current = replace(cut_step(0, 4, 4, rank=0, num_replicas=1)[0], stop=3)
    with pytest.raises(ct.InputError, match=r"per_sample\(sum\): got '4 entries'"):
        kept.set(torch.zeros(4))
    with pytest.raises(ct.InputError, match="got 'no tensor'"):
        kept.set(3)
    with pytest.raises(ct.InputError, match="a name that is not taken"):
        run.per_sample("sum", torch.zeros)
    error = RuntimeError("Expected hidden[0] size (2, 4, 24), got [2, 6, 24]")
    said = explain_carried(error, run._session, changed=True)
    assert said is not None
    assert "run.per_sample(name, initial)" in said
    assert "\n" not in said
    assert explain_carried(error, run._session, changed=False) is None
    assert explain_carried(KeyError("size"), run._session, changed=True) is None
    run._session.current = None
    run._training = False
    run.close()
