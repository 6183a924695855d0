"""`coadapt check`: it passes a sound script, finds each mistake, and says which it
is.
"""

import json
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coadapt.train.check.__main__ import Outcome, main
from coadapt.train.check.compare import Compared, Finding
from coadapt.train.check.rounding import Rounding
from coadapt.train.check.rows import Steps, sizes
from coadapt.train.check.schedule import (
    STEPS_PER_CHANGE,
    STEPS_PER_FULL_RESCALE,
    draw_anew,
    draw_changes,
)
from coadapt.train.wrappers.recorder import SHARES_FILE, StepRow

pytestmark = [
    pytest.mark.train,
    pytest.mark.processes,
    pytest.mark.usefixtures("forked_replicas"),
]

# What shows at the first change, in place to a second replica: those tests do not pay
# for four.
ONE_CHANGE = ("--changes", "1", "--replicas", "2")
SCRIPTS = Path(__file__).parent / "scripts"


def check(
    mistake: str, *options: str, script: str = "regression"
) -> tuple[int, dict[str, Any]]:
    """Return the exit code of the check and its outcome. It runs in this process, which
    has torch loaded.
    """
    printed = StringIO()
    with redirect_stdout(printed):
        code = main(
            [
                "--json",
                "--timeout",
                "400",
                *options,
                str(SCRIPTS / f"{script}.py"),
                mistake,
            ]
        )
    return code, json.loads(printed.getvalue())


def by_name(outcome: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {finding["what"]: finding for finding in outcome["findings"]}


def test_a_sound_script_is_the_same_training() -> None:
    code, outcome = check("none")
    assert code == 0, outcome
    assert outcome["num_steps"] == 40
    assert len(outcome["changes"]) == 4
    assert sum("by a restart" in change for change in outcome["changes"]) >= 1
    assert sum("in place" in change for change in outcome["changes"]) >= 1
    assert all(finding["same"] for finding in outcome["findings"]), outcome
    assert {"samples", "learning rates", "parameters", "checkpoint"} <= set(
        by_name(outcome)
    )


def test_the_verb_starts_replicas_as_fresh_processes() -> None:
    verb = [
        sys.executable,
        "-c",
        "from coadapt.cli.main import main; main()",
        "check",
        "--json",
    ]
    script = [str(SCRIPTS / "regression.py"), "none"]
    done = subprocess.run(
        [*verb, *ONE_CHANGE, *script],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    outcome = json.loads(done.stdout)
    assert done.returncode == 0, outcome
    assert ["in place" in change for change in outcome["changes"]] == [True]
    assert all(finding["same"] for finding in outcome["findings"]), outcome


@pytest.mark.slow
def test_many_short_steps_are_the_same_training() -> None:
    """Changes come after a hundred steps of milliseconds, when replicas that train by
    themselves exchange flags after every eighth step only.
    """
    code, outcome = check("none, longer", "--steps", "200")
    assert code == 0, outcome
    assert outcome["num_steps"] == 200
    assert len(outcome["changes"]) == 4


def test_a_sharded_model_is_put_together_at_the_end() -> None:
    code, outcome = check("none, sharded", *ONE_CHANGE)
    assert code == 0, outcome
    found = by_name(outcome)
    assert found["parameters"]["same"], found
    assert "a part of the parameters" in found["replicas"]["text"]


def test_a_rate_that_follows_a_count_of_the_loop_is_found() -> None:
    code, outcome = check("rate", *ONE_CHANGE)
    assert code == 1
    found = by_name(outcome)
    assert found["samples"]["same"]
    assert found["replicas"]["same"] is False
    assert "learning rate of group 0" in found["replicas"]["text"]
    assert outcome["cause"]["kind"] == "starts-again-rate"
    assert "`iter_num` is" in outcome["cause"]["text"]
    assert "run.state(iter_num=...)" in outcome["cause"]["remedy"]
    assert found["parameters"]["same"] is False


def test_accumulation_by_hand_is_found() -> None:
    code, outcome = check("accumulation")
    assert code == 1
    assert by_name(outcome)["optimiser steps"]["same"] is False
    assert outcome["cause"]["kind"] == "own-accumulation"
    assert "max_atomic" in outcome["cause"]["remedy"]


def test_figures_that_depend_on_the_number_of_replicas_are_found_in_the_checkpoint() -> (
    None
):
    code, outcome = check("state", *ONE_CHANGE)
    assert code == 1
    assert by_name(outcome)["parameters"]["same"]
    assert by_name(outcome)["checkpoint"]["text"].startswith("state.seen is ")


def test_dropout_is_named_where_parameters_cannot_be_equal() -> None:
    code, outcome = check("dropout")
    assert code == 0
    assert by_name(outcome)["parameters"]["same"] is None
    assert by_name(outcome)["parameters"]["by_design"]
    assert outcome["cause"]["text"].startswith("the model has dropout")


def test_of_an_adaptive_job_only_what_it_promises_is_compared() -> None:
    code, outcome = check("adaptive", "--steps", "30", *ONE_CHANGE)
    assert code == 0, outcome
    assert by_name(outcome)["parameters"]["same"] is None
    assert by_name(outcome)["samples"]["text"] == "each at most once in each epoch"


def test_a_replica_that_fails_as_it_joins_is_shown_with_its_last_lines() -> None:
    code, outcome = check("fails when it joins", *ONE_CHANGE)
    assert code == 1
    assert "ended with code 1 in the change" in outcome["problem"]
    assert any("only where it joins" in line for line in outcome["lines"])


def test_what_cannot_be_checked_is_said(tmp_path: Path) -> None:
    code, outcome = check("elsewhere")
    assert code == 2
    assert "run.epochs" in outcome["problem"]
    command = [sys.executable, "-m", "coadapt.train.check", str(tmp_path / "gone.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    allowed = "a Python file that exists"
    assert done.stderr == f"error: SCRIPT: got {command[-1]!r}; allowed: {allowed}\n"


def test_a_plain_accelerator_is_refused_before_anything_changes() -> None:
    pytest.importorskip("accelerate")
    code, outcome = check("plain accelerator")
    assert code == 2
    assert any("CoadaptAccelerator(run)" in line for line in outcome["lines"]), outcome


def test_a_batch_that_no_two_replicas_of_another_librarys_loop_share_is_told() -> None:
    code, outcome = check("", "--replicas", "4", script="hosted")
    assert code == 2
    assert outcome["num_steps"] == 20
    assert (
        outcome["problem"]
        == "a batch that 2 to 4 replicas cannot share equally: the loop is a library's"
    )


@given(st.integers(1, 500), st.integers(1, 9), st.integers(2, 6), st.integers(0, 999))
def test_schedules_fit_into_the_run(
    num_steps: int, num_changes: int, most: int, seed: int
) -> None:
    first, changes = draw_changes(num_steps, num_changes, most, seed)
    assert (first, changes) == draw_changes(num_steps, num_changes, most, seed)
    assert len(changes) <= num_changes
    assert 1 <= first <= most
    count = first
    at = 1 - STEPS_PER_CHANGE
    for change in changes:
        assert change.before == count
        assert 1 <= change.after <= most
        assert change.step - at >= STEPS_PER_CHANGE or len(changes) == 1
        assert change.step + STEPS_PER_CHANGE <= num_steps + 1
        assert change.keep is None or len(change.keep) <= min(
            change.before, change.after
        )
        assert str(change).startswith(f"{change.before} -> {change.after}")
        count = change.after
        at = change.step
    if changes:
        assert changes[0].after > changes[0].before
        assert changes[0].keep is not None


@given(
    st.integers(1, 500),
    st.integers(1, 9),
    st.sampled_from([(1, 2), (1, 3), (1, 2, 4)]),
    st.integers(0, 999),
)
def test_restarts_are_to_numbers_that_share_the_batch(
    num_steps: int, num_changes: int, fitting: tuple[int, ...], seed: int
) -> None:
    count, changes = draw_anew(num_steps, num_changes, fitting, seed)
    assert (count, changes) == draw_anew(num_steps, num_changes, fitting, seed)
    assert bool(changes) is (num_steps > STEPS_PER_FULL_RESCALE)
    at = 0
    for change in changes:
        assert change.before == count
        assert change.after in fitting
        assert change.keep is None
        assert change.step > at
        assert change.step < num_steps
        count = change.after
        at = change.step
    if changes:
        assert changes[0].after > changes[0].before


def test_only_numbers_that_share_a_trainers_batch_are_tried(tmp_path: Path) -> None:
    assert sizes(tmp_path, 3) == []
    for num_shares, fitting in ((24, [1, 2, 3]), (32, [1, 2]), (25, [1])):
        (tmp_path / SHARES_FILE).write_text(str(num_shares))
        assert sizes(tmp_path, 3) == fitting


ROW = StepRow(
    step=1,
    epoch=0,
    rank=0,
    num_replicas=1,
    generation=1,
    ids=(0, 1, 2, 3),
    rates=((0.1,),),
    updates=(1,),
    checksum=3.0,
    norm=2.0,
)


def compared(changed: Steps, **values: Any) -> dict[str, Finding]:
    """Return the findings of one step; parameters and checkpoints are alike."""
    state: dict[str, object] = {"model": {"w": torch.ones(4)}, "state": {"iter_num": 1}}
    one = Compared(
        alone={1: [ROW]},
        changed=changed,
        state_alone=state,
        state_changed=state,
        rounding=Rounding(),
        fixed=True,
    )
    return {finding.what: finding for finding in replace(one, **values).findings()}


def shares(*ids: tuple[int, ...], **values: Any) -> Steps:
    return {
        1: [replace(ROW, rank=rank, ids=own, **values) for rank, own in enumerate(ids)]
    }


def test_shares_of_a_step_are_the_whole() -> None:
    assert all(finding.same for finding in compared(shares((0, 1), (2, 3))).values())
    lost = compared(shares((0, 1), (2, 2)))["samples"]
    assert lost.same is False
    assert lost.text == "step 1 (epoch 0): 1 samples missing, 1 too many"


def test_a_run_that_ends_earlier_is_told_and_not_for_missing_samples() -> None:
    both = {1: [ROW], 2: [replace(ROW, step=2)]}
    found = compared({1: [ROW]}, alone=both)
    assert found["length"].text == "1 steps, alone 2"
    assert found["length"].same is False
    assert found["samples"].same


def test_a_small_drift_and_another_rate_are_told() -> None:
    drifted = shares((0, 1), (2, 3))
    drifted[1][1] = replace(drifted[1][1], checksum=3.001)
    assert compared(drifted)["replicas"].text == "step 1: parameters differ"
    assert (
        compared(shares((0, 1, 2, 3), rates=((0.2,),)))["learning rates"].text
        == "step 1: 0.2, alone 0.1"
    )
    other = compared(
        {1: [ROW]},
        state_changed={"model": {"w": torch.ones(4) * 1.001}, "state": {"iter_num": 1}},
    )
    assert other["parameters"].same is False
    behind = compared(
        {1: [ROW]},
        state_changed={"model": {"w": torch.ones(4)}, "state": {"iter_num": 0}},
    )
    assert behind["checkpoint"].text == "state.iter_num is 0, alone 1"


@pytest.mark.parametrize(
    ("kind", "dtype", "blamed"),
    [
        (torch.optim.LBFGS, torch.float32, True),
        (torch.optim.LBFGS, torch.float64, False),
        (torch.optim.SGD, torch.float32, False),
    ],
)
def test_what_rounding_makes_of_lbfgs_is_said(
    kind: type[torch.optim.LBFGS | torch.optim.SGD], dtype: torch.dtype, blamed: bool
) -> None:
    weights = torch.ones(4, dtype=dtype, requires_grad=True)
    trained = {"optimizer": kind([weights], lr=0.1).state_dict()}
    alone = {"model": {"w": weights.detach()}, **trained}
    changed = {"model": {"w": weights.detach() * 1.001}, **trained}
    found = compared({1: [ROW]}, state_alone=alone, state_changed=changed)["parameters"]
    assert found.same is False
    assert ("LBFGS may be led elsewhere by rounding" in found.text) is blamed


def test_exit_codes() -> None:
    same = Finding(what="a", same=True, text="")
    other = Finding(what="a", same=False, text="")
    assert Outcome(changes=("1 -> 2",), findings=(same,)).code == 0
    assert Outcome(changes=("1 -> 2",), findings=(same, other)).code == 1
    assert Outcome(changes=("1 -> 2",), problem="failed").code == 1
    assert Outcome(problem="no step was recorded").code == 2


def test_what_is_kept_for_each_sample_goes_over_to_other_replicas() -> None:
    code, outcome = check("kept", "--steps", "40", script="carried")
    assert code == 0, outcome
    assert any("in place" in change for change in outcome["changes"])
    assert all(finding["same"] for finding in outcome["findings"]), outcome
    code, outcome = check("plain", *ONE_CHANGE, script="carried")
    assert code != 0
