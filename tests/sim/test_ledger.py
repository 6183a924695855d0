"""The world's own books refuse what must never be."""

import pytest

from coadapt.model import Allocation, Node
from coadapt.sim.ledger import Ledger
from tests.sim.stage import on


def ledger() -> Ledger:
    books = Ledger()
    books.add(Node(id="n0", num_gpus=4))
    books.add(Node(id="n1", num_gpus=2))
    return books


def test_takes_and_releases() -> None:
    books = ledger()
    books.take("a", on(n0=3, n1=1))
    books.take("b", on(n0=1))
    assert books.held == {"n0": {"a": 3.0, "b": 1.0}, "n1": {"a": 1.0}}
    books.release("a")
    assert books.held == {"n0": {"b": 1.0}, "n1": {}}


def test_shares_of_a_gpu_add_up() -> None:
    books = ledger()
    for job in range(10):
        books.take(str(job), Allocation(slots=(("n1", 2),), gpu_share=0.1))
    with pytest.raises(AssertionError, match="n1 has 2 GPUs"):
        books.take("one more", Allocation(slots=(("n1", 1),), gpu_share=0.1))


def test_refuses_more_than_a_node_has() -> None:
    books = ledger()
    books.take("a", on(n0=3))
    with pytest.raises(AssertionError, match="n0 has 4 GPUs"):
        books.take("b", on(n0=2))


def test_refuses_a_job_that_holds_already() -> None:
    books = ledger()
    books.take("a", on(n0=1))
    with pytest.raises(AssertionError, match="a runs twice"):
        books.take("a", on(n0=1))


def test_nodes_come_once_and_leave_empty() -> None:
    books = ledger()
    with pytest.raises(AssertionError, match="joined twice"):
        books.add(Node(id="n0", num_gpus=4))
    books.take("a", on(n0=1))
    with pytest.raises(AssertionError, match="while"):
        books.remove("n0")
    books.release("a")
    books.remove("n0")
    assert books.missing(on(n0=1, n1=1)) == ["n0"]
