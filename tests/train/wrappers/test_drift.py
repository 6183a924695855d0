"""Replicas that drift apart are told of it: the step, what differs, and where that
comes from.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.train.wrappers.drift import by_replica
from tests.train.replicas import run_replicas

pytestmark = [pytest.mark.train, pytest.mark.processes]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """count: at which a variable of the loop begins, lower in a replica that has just
    joined.

    mistake: what the loop does with it.
    """

    mistake: str
    count: int = 0
    num_steps: int = 40


def follow(plan: Plan) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    run = ct.init()
    net = nn.Linear(4, 1)
    model, optimizer = run.prepare(net, torch.optim.AdamW(net.parameters(), lr=0.01))
    data = TensorDataset(torch.randn(plan.num_steps * 8, 4))
    loader = run.loader(data, batch_size=8)
    count = plan.count
    for _ in run.epochs(1):
        for (x,) in loader:
            if plan.mistake == "rate":
                for group in optimizer.param_groups:
                    group["lr"] = 0.1 / (1 + count)
            model(x).square().mean().backward()
            count += 1
            if plan.mistake != "accumulation" or count % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
            if plan.mistake == "weights" and count == 20:
                with torch.no_grad():
                    net.weight.add_(1e-3)
    print("trained to the end", flush=True)


def warnings(folder: Path, *plans: Plan) -> list[str]:
    """Return what the first replica says of drift; all train to the end."""
    assert run_replicas(follow, list(plans), folder) == [0] * len(plans)
    texts = [(folder / f"output-{rank}.txt").read_text() for rank in range(len(plans))]
    assert all("trained to the end" in text for text in texts)
    assert not any("drifted" in text for text in texts[1:]), (
        "only the first replica says it"
    )
    return [line for line in texts[0].splitlines() if "drifted" in line]


def test_a_rate_that_follows_a_count_of_the_loop_is_told(tmp_path: Path) -> None:
    plans = [
        Plan(mistake="rate", count=9),
        Plan(mistake="rate"),
        Plan(mistake="rate", count=9),
    ]
    (line,) = warnings(tmp_path, *plans)
    assert "step 1: replicas have drifted apart since step 0" in line
    assert "learning rate of group 0: 0.01 on replicas 0, 2, 0.1 on replica 1" in line
    assert "`count` is" in line
    assert "run.state" in line


def test_accumulation_by_hand_that_begins_anew_in_one_replica_is_told(
    tmp_path: Path,
) -> None:
    (line,) = warnings(
        tmp_path, Plan(mistake="accumulation", count=2), Plan(mistake="accumulation")
    )
    assert re.search(
        r"calls of optimizer.step\(\) since then: 1 on replica 0, 0 on replica 1", line
    ), line
    assert "max_atomic" in line


def test_weights_that_one_replica_changes_are_told(tmp_path: Path) -> None:
    """It moves them by less than a thousandth."""
    (line,) = warnings(tmp_path, Plan(mistake="weights"), Plan(mistake=""))
    found = re.search(
        r"step (\d+): replicas have drifted apart since step 0: parameters", line
    )
    assert found
    assert 20 <= int(found[1]) <= 33
    assert "No variable of the script is seen to differ" in line, line


def test_replicas_that_stay_together_hear_nothing(tmp_path: Path) -> None:
    plans = [Plan(mistake="accumulation", num_steps=150)] * 3
    assert warnings(tmp_path, *plans) == []


def test_replicas_with_equal_values_are_named_together() -> None:
    assert (
        by_replica([0.1, 0.1 + 1e-9, 0.1])
        == "0.1 on replicas 0, 2, 0.100000001 on replica 1"
    )
    assert by_replica([1, 2]) == "1 on replica 0, 2 on replica 1"
