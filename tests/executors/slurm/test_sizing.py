"""What is asked of Slurm, by the word of an sbatch of our own."""

from pathlib import Path

import pytest

from coadapt.executors.slurm.sizing import PoolHost, PoolSize
from coadapt.executors.slurm.terms import PoolTerms, SlurmRequest
from coadapt.executors.slurm.tools import Gpus, SlurmError, SlurmJob
from coadapt.model.offer import Offer
from tests.executors.slurm.test_tools import say

HELD = SlurmJob(
    id="1", state="RUNNING", hosts=("a", "b"), num_nodes=2, starts_at=1.0, ends_at=None
)
FIT = PoolHost(job="1", gpus=Gpus(), address="127.0.0.1", renew_at=float("inf"))


@pytest.fixture
def size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PoolSize:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    say(tmp_path, "squeue", "")
    say(tmp_path, "sbatch", "2")
    terms = PoolTerms(request=SlurmRequest(slots=2), nodes=2, max_nodes=3)
    return PoolSize(terms, "pool", lambda: 0, lambda _: None)


def asked(tmp_path: Path) -> list[str]:
    return (tmp_path / "sbatch.asked").read_text().split()


def test_a_machine_that_died_is_not_given_in_its_own_place(
    size: PoolSize, tmp_path: Path
) -> None:
    """Slurm may take it for sound yet, and has room there."""
    size.adjust([HELD], {"a": FIT}, set())
    assert {"--nodes=1", "--exclude=a,b"} <= set(asked(tmp_path))


def test_a_machine_that_leaves_may_be_given_again(
    size: PoolSize, tmp_path: Path
) -> None:
    size.adjust([HELD], {"a": FIT}, {("1", "b")})
    assert {"--nodes=1", "--exclude=a"} <= set(asked(tmp_path))


def test_what_slurm_refuses_at_first_is_raised_where_nothing_is_held(
    size: PoolSize, tmp_path: Path
) -> None:
    """Where something is, there may be no other machine for the moment."""
    say(tmp_path, "sbatch", "sbatch: error: no such node", code=1)
    size.adjust([HELD], {}, set())
    assert "--exclude=a,b" in asked(tmp_path)


def test_a_first_request_that_slurm_refuses_is_raised(
    size: PoolSize, tmp_path: Path
) -> None:
    say(tmp_path, "sbatch", "sbatch: error: invalid partition", code=1)
    with pytest.raises(SlurmError, match="invalid partition"):
        size.adjust([], {}, set())


@pytest.fixture
def bought(tmp_path: Path, size: PoolSize) -> PoolSize:
    """The same pool, with nodes that are bought."""
    del size
    offer = Offer(id="firm", num_gpus=2, price_per_h=1.0, most=3)
    request = SlurmRequest(slots=2)
    terms = PoolTerms(request=request, nodes=0, max_nodes=3, idle_s=0.0, offer=offer)
    return PoolSize(terms, "pool", lambda: 8, lambda _: None)


def test_bought_nodes_are_asked_for_as_ordered(
    bought: PoolSize, tmp_path: Path
) -> None:
    bought.adjust([HELD], {"a": FIT, "b": FIT}, set())
    assert not (tmp_path / "sbatch.asked").exists()  # nothing was ordered yet
    bought.num_wanted = 9
    bought.adjust([HELD], {"a": FIT, "b": FIT}, set())
    assert {"--nodes=1", "--exclude=a,b"} <= set(asked(tmp_path))


def test_a_bought_node_that_is_lost_is_not_replaced_without_an_order(
    bought: PoolSize, tmp_path: Path
) -> None:
    bought.num_wanted = 2
    bought.adjust([HELD], {"a": FIT, "b": FIT}, set())
    bought.adjust([HELD], {"a": FIT}, set())
    assert bought.num_wanted == 1
    assert not (tmp_path / "sbatch.asked").exists()


def test_bought_nodes_that_stand_idle_stay_until_they_are_given_back(
    bought: PoolSize, tmp_path: Path
) -> None:
    say(tmp_path, "scancel", "")
    bought.num_wanted = 2
    for _ in range(3):
        bought.adjust([HELD], {"a": FIT, "b": FIT}, set())
    assert not bought.given_up
    assert not (tmp_path / "scancel.asked").exists()
    gone = {("1", "a"), ("1", "b")}
    bought.given_up = set(gone)
    bought.num_wanted = 0
    for _ in range(2):
        bought.adjust([HELD], {}, gone)
    assert (tmp_path / "scancel.asked").read_text().split()[-1] == "1"
