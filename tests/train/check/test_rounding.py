"""What rounding explains of the distance between two runs, by step."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from coadapt.train.check.causes import not_alike
from coadapt.train.check.compare import Compared, Finding
from coadapt.train.check.rounding import LEAST, MOST, Rounding, distance
from coadapt.train.check.rows import Steps
from coadapt.train.wrappers.drift import Watched
from coadapt.train.wrappers.recorder import Sketch, StepRow
from coadapt.train.wrappers.script_check import Use

pytestmark = pytest.mark.train

NUM_STEPS = 60
ROW = StepRow(
    step=1,
    epoch=0,
    rank=0,
    num_replicas=1,
    generation=1,
    ids=(0,),
    rates=((0.1,),),
    updates=(1,),
    checksum=0.0,
    norm=1.0,
)


def run(apart: Callable[[int], float], **values: Any) -> Steps:
    """Return a run that is so far from the origin in each step."""
    return {
        step: [replace(ROW, step=step, sketch=(apart(step), 0.0), **values)]
        for step in range(1, NUM_STEPS + 1)
    }


def growing(at_first: float, factor: float = 1.6) -> Callable[[int], float]:
    return lambda step: min(at_first * factor**step, 0.5)


ALONE = run(lambda _: 0.0)


def compared(changed: Steps, *references: Steps, **values: Any) -> dict[str, Finding]:
    """Return the findings; the models end as far apart as the runs do."""

    def end(steps: Steps) -> dict[str, object]:
        # Of norm 1, as in the rows.
        off = steps[NUM_STEPS][0].sketch[0]
        weight = torch.tensor([off, math.sqrt(1.0 - off**2)])
        return {"model": {"w": weight}, "state": {"best": 1.0 + off}}

    last = [reference[NUM_STEPS][0].sketch[0] for reference in references]
    one = Compared(
        alone=ALONE,
        changed=changed,
        state_alone=end(ALONE),
        state_changed=end(changed),
        rounding=Rounding.measured(ALONE, references, last),
        fixed=True,
        references=[end(reference) for reference in references],
    )
    return {finding.what: finding for finding in replace(one, **values).findings()}


def test_a_sketch_has_the_distance_of_the_parameters() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 7))
    other = nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 7))
    sketch = Sketch()
    rows = []
    for one in (model, other):
        pair = Watched(
            name="",
            parameters=lambda one=one: list(one.parameters()),  # type: ignore[misc]
            optimizer=torch.optim.SGD(one.parameters(), lr=0.1),
            use=Use(),
        )
        rows.append(replace(ROW, sketch=sketch.of([pair])))
    parameters = [
        nn.utils.parameters_to_vector(one.parameters()) for one in (model, other)
    ]
    exact = float((parameters[0] - parameters[1]).norm().detach())
    assert distance(*rows) == pytest.approx(exact, rel=0.3)
    assert distance(rows[0], rows[0]) == 0.0


def test_what_is_always_allowed_and_what_references_allow() -> None:
    rounding = Rounding.measured(ALONE, [run(lambda _: 1e-9)])
    assert rounding.explains(NUM_STEPS) == LEAST
    assert rounding.horizon is None
    rounding = Rounding.measured(ALONE, [run(lambda _: 1e-4)])
    assert rounding.explains(1) == pytest.approx(1e-3)
    assert rounding.parting(ALONE, run(lambda _: 0.9e-3)).apart is None
    assert rounding.parting(ALONE, run(lambda _: 1.1e-3)).apart == 1


def test_two_references_apart_show_what_one_does_not() -> None:
    """The run alone may lie beside the references by chance."""
    above = run(lambda _: 1e-4)
    below = run(lambda _: -1e-4)
    assert Rounding.measured(ALONE, [above, below]).explains(1) == pytest.approx(2e-3)


def test_a_run_whose_rounding_grows_is_compared_as_far_as_that_can_tell() -> None:
    references = [run(growing(1e-8)), run(growing(1e-9))]
    found = compared(run(growing(3e-9)), *references)
    assert found["parameters"].same is None
    assert (
        "the same up to step 31; from step 32 on rounding" in found["parameters"].text
    )
    assert found["learning rates"].text == "the same in each step up to step 31"
    assert found["checkpoint"].same, found["checkpoint"]
    assert not any(finding.same is False for finding in found.values())


def test_two_runs_alone_that_differ_at_once_are_not_compared() -> None:
    found = compared(run(lambda _: 0.1), run(lambda _: 0.3))
    for what in ("learning rates", "optimiser steps", "parameters"):
        assert found[what].same is None
        assert found[what].text.startswith("not compared: two runs alone differ from")


def test_rates_and_lengths_may_follow_where_rounding_has_grown() -> None:
    references = [run(growing(1e-8))]
    changed = run(growing(1e-8))
    for step in range(40, NUM_STEPS + 1):
        changed[step] = [replace(changed[step][0], rates=((0.05,),))]
    found = compared(changed, *references)
    assert found["learning rates"].same
    early = {**changed, 20: [replace(changed[20][0], rates=((0.05,),))]}
    assert compared(early, *references)["learning rates"].same is False
    shorter = {step: rows for step, rows in changed.items() if step < 50}
    longer = {NUM_STEPS: changed[NUM_STEPS]}
    length = compared(shorter | longer, *references)["length"]
    assert length.same
    alone = {**ALONE, NUM_STEPS + 1: [replace(ROW, step=NUM_STEPS + 1)]}
    length = compared(changed, *references, alone=alone)["length"]
    assert length.same is None
    assert length.text == "60 steps, alone 61, which may follow from step 30"


def test_a_fault_in_a_run_whose_rounding_grows_shows_before_it_has() -> None:
    references = [run(growing(1e-9)), run(growing(1e-8))]
    faulty = run(lambda step: 1e-3 if step > 8 else growing(1e-9)(step))
    found = compared(faulty, *references)
    assert found["parameters"].same is True  # it ends within what is the same training
    faulty = run(lambda step: 3e-2 if step > 8 else growing(1e-9)(step))
    found = compared(faulty, *references)
    assert found["parameters"].same is False
    assert ", since step 9; allowed 3.0e-04" in found["parameters"].text


def test_a_fault_is_no_rounding_where_references_stay_together() -> None:
    found = compared(
        run(lambda step: 2 * MOST if step > 30 else 0.0), run(lambda _: 1e-7)
    )
    assert found["parameters"].same is False
    assert found["checkpoint"].same is False


def test_what_is_drawn_anew_in_an_equal_run_is_not_repeatable() -> None:
    assert not_alike(ALONE, {}) is None
    assert not_alike(ALONE, ALONE) is None
    # Threads may add up in another order: that is rounding, whatever it grows to.
    assert not_alike(ALONE, run(growing(1e-9))) is None
    cause = not_alike(ALONE, run(lambda step: 1e-2 if step > 20 else 0.0))
    assert cause is not None
    assert cause.kind == "not-repeatable"
    assert "part in step 21" in cause.text
