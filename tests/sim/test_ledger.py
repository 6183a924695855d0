"""The world's own books refuse what must never be."""

from fractions import Fraction

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


def shared(node: str, sharers: int, *labels: int) -> Allocation:
    return Allocation(
        slots=((node, len(labels)),), gpu_share=1 / sharers, shared=labels
    )


def test_shares_of_a_gpu_add_up() -> None:
    books = ledger()
    for job in range(6):
        books.take(str(job), shared("n1", 6, 0, 1))
    with pytest.raises(AssertionError, match="of the GPU with label 1 are given"):
        books.take("one more", shared("n1", 6, 1))


def test_a_label_is_one_gpu_while_anybody_is_on_it() -> None:
    books = ledger()
    books.take("a", shared("n1", 2, 7))
    books.take("b", shared("n1", 2, 7))
    assert books.neighbours("a", shared("n1", 2, 7)) == [("b",)]
    books.take("c", on(n1=1))
    with pytest.raises(AssertionError, match="n1 has 2 GPUs, none is left for d"):
        books.take("d", shared("n1", 2, 8))
    books.release("d")
    books.release("a")
    # The half that "a" left is on the GPU of "b": only its label gives it.
    with pytest.raises(AssertionError, match="n1 has 2 GPUs, none is left for e"):
        books.take("e", shared("n1", 2, 8))
    books.release("e")
    books.take("f", shared("n1", 2, 7))
    books.release("b")
    books.release("f")
    books.take("g", on(n1=1))


def test_two_allocations_of_one_job_hold_each_gpu_once() -> None:
    books = ledger()
    books.take("a", shared("n0", 4, 0, 1))
    books.take_more("a", shared("n0", 2, 1, 2))
    assert books.shared_gpus("a") == {
        ("n0", 0): Fraction(1, 4),
        ("n0", 1): Fraction(1, 2),
        ("n0", 2): Fraction(1, 2),
    }
    books.take("b", on(n0=1))
    with pytest.raises(AssertionError, match="n0 has 4 GPUs"):
        books.take("c", on(n0=1))


def test_refuses_more_than_a_node_has() -> None:
    books = ledger()
    books.take("a", on(n0=3))
    with pytest.raises(AssertionError, match="n0 has 4 GPUs, none is left for b"):
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
