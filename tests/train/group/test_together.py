"""All replicas must do the same steps, each with a backward; else the run ends and says
why.
"""

import contextlib
import itertools
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.model import RescaleContract
from coadapt.train.env import Times, read_config
from tests.train.replicas import run_replicas

pytestmark = [pytest.mark.train, pytest.mark.processes]

NUM_STEPS = 100
BATCH_SIZE = 8
SKIPPED = "not all of 2 replicas ran a backward in the same steps"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """skips: (rank, pass) without a backward. leaves: (rank, step) at which the loop is
    left. takes: (rank, passes) that this rank takes of each epoch. num_steps: of an
    epoch. raises: whether the loop is left by an exception that the script catches.
    rule: by which the job itself chooses its batch; "" for none.
    """

    skips: frozenset[tuple[int, int]] = frozenset()
    leaves: frozenset[tuple[int, int]] = frozenset()
    takes: frozenset[tuple[int, int]] = frozenset()
    max_atomic: int | None = None
    num_steps: int = NUM_STEPS
    raises: bool = False
    rule: str = ""


class SkippedError(Exception):
    """What a script may raise for a sample, and catch around its loop."""


def follow(plan: Plan) -> None:
    torch.set_num_threads(1)
    config = replace(read_config(), times=Times(skipped_wait_s=1.0))
    if plan.rule:
        config = replace(config, contract=RescaleContract.SELF)
    run = ct.Run(config)
    torch.manual_seed(3)
    net = nn.Linear(4, 1)
    model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
    data = TensorDataset(torch.randn(plan.num_steps * BATCH_SIZE, 4))
    loader = run.loader(
        data,
        batch_size=BATCH_SIZE,
        max_atomic=plan.max_atomic,
        max_batch_size=4 * BATCH_SIZE if plan.rule else None,
        batch_rule=plan.rule or None,
    )
    passes = dict(plan.takes).get(run.rank)
    for _ in run.epochs(2):
        taken = loader if passes is None else itertools.islice(loader, passes)
        with contextlib.suppress(SkippedError):
            for number, (x,) in enumerate(taken):
                if (run.rank, number) in plan.skips:
                    continue
                optimizer.zero_grad()
                loss = model(x).mean()
                loss.backward()
                optimizer.step()
                run.mean(loss=loss)
                if (run.rank, run.progress.step) in plan.leaves:
                    if plan.raises:
                        raise SkippedError
                    break
        if plan.takes:
            print(f"loss {run.totals()['loss']:.9f}", flush=True)
    total = sum(param.detach().double().sum() for param in net.parameters())
    if plan.takes:
        print(f"{run.progress.step} steps, {total:.9f}", flush=True)
    print("all steps done", flush=True)


def outputs(plan: Plan, folder: Path) -> str:
    """Return what two replicas printed, after both have ended."""
    run_replicas(follow, [plan, plan], folder)
    lines = [
        line
        for rank in range(2)
        for line in (folder / f"output-{rank}.txt").read_text().splitlines(True)
    ]
    return "".join(
        line for line in lines if not line.startswith("[Gloo]")
    )  # torch before 2.11 says who came


def test_backwards_left_out_in_different_steps_are_told(tmp_path: Path) -> None:
    """As many on both, and between two words: the steps after them would mix two steps'
    gradients.
    """
    text = outputs(Plan(skips=frozenset({(0, 75), (1, 76)})), tmp_path)
    assert SKIPPED in text
    assert "all steps done" not in text


def test_a_backward_left_out_in_the_last_of_several_passes_is_told(
    tmp_path: Path,
) -> None:
    text = outputs(Plan(skips=frozenset({(1, 19)}), max_atomic=2), tmp_path)
    assert SKIPPED in text
    assert "all steps done" not in text


def test_one_left_out_before_the_last_pass_mixes_nothing(tmp_path: Path) -> None:
    text = outputs(Plan(skips=frozenset({(1, 18)}), max_atomic=2), tmp_path)
    assert text == "all steps done\n" * 2


def test_a_step_that_all_leave_out_is_none(tmp_path: Path) -> None:
    skips = frozenset((rank, number) for rank in range(2) for number in range(60, 90))
    assert outputs(Plan(skips=skips), tmp_path) == "all steps done\n" * 2


def test_a_replica_that_leaves_out_all_further_backwards_is_ended(
    tmp_path: Path,
) -> None:
    """The other waits for it in the exchange of gradients, and so never says a word."""
    skips = frozenset((1, number) for number in range(60, NUM_STEPS))
    text = outputs(Plan(skips=skips), tmp_path)
    assert (
        "nothing from the other replicas within 1 s after a step without a backward"
        in text
    )
    assert "all steps done" not in text


def test_a_loop_that_one_replica_leaves_is_told(tmp_path: Path) -> None:
    text = outputs(Plan(leaves=frozenset({(1, 20)})), tmp_path)
    assert (
        "1 of 2 replicas left the loop over the loader before the epoch's end: all must "
        "leave it together" in text
    )
    assert "all steps done" not in text


@pytest.mark.parametrize("rank", [0, 1])
def test_so_is_one_that_is_left_between_two_words(rank: int, tmp_path: Path) -> None:
    """The other waits for its gradients, and so never says a word."""
    text = outputs(Plan(leaves=frozenset({(rank, 75)})), tmp_path)
    assert (
        "nothing from the other replicas within 1 s after this one left the loop "
        "over the loader" in text
    )
    assert "all steps done" not in text


def test_a_loop_that_all_leave_ends_the_epoch(tmp_path: Path) -> None:
    leaves = frozenset((rank, step) for rank in range(2) for step in (20, 75))
    assert outputs(Plan(leaves=leaves), tmp_path) == "all steps done\n" * 2


@pytest.mark.parametrize("num_steps", [35, 40])
def test_a_loop_that_one_replica_leaves_in_the_last_step_trains_on(
    num_steps: int, tmp_path: Path
) -> None:
    """All have done the same steps, whether or not flags are exchanged after the last
    one, as they are after step 40. Then all ask for the epoch's totals.
    """
    everywhere = frozenset((rank, num_steps) for rank in range(2))
    wholes = outputs(Plan(num_steps=num_steps, takes=everywhere), tmp_path)
    for path in tmp_path.glob("output-*.txt"):
        path.unlink()
    one = outputs(
        Plan(num_steps=num_steps, takes=frozenset({(1, num_steps)})),
        tmp_path,
    )
    assert one.count("all steps done") == 2
    assert set(one.splitlines()) == set(wholes.splitlines())


def test_a_loop_that_one_replica_leaves_by_an_exception_is_told(
    tmp_path: Path,
) -> None:
    text = outputs(Plan(leaves=frozenset({(1, 20)}), raises=True), tmp_path)
    assert "all must leave it together" in text
    assert "all steps done" not in text


def test_a_loop_that_one_replica_leaves_is_told_before_a_rule_chooses_the_batch(
    tmp_path: Path,
) -> None:
    plan = Plan(leaves=frozenset({(1, 20)}), rule="accordion(every=1)")
    text = outputs(plan, tmp_path)
    assert "all must leave it together" in text
    assert "all steps done" not in text
