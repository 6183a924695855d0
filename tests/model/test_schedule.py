"""Batch schedules: Megatron's syntax, what is in force when, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.model import (
    BatchLimits,
    BatchSchedule,
    InputError,
    JobSpec,
    RescaleContract,
)
from coadapt.model.schedule import STEPS_MAX
from coadapt.model.wire import from_json, to_json
from tests.model.strategies import schedules


@pytest.mark.parametrize(
    ("text", "tokens_per_sample", "steps"),
    [
        ("0:768 250B:1536", 1, ((0, 768), (250 * 10**9, 1536))),
        (
            "0:768 250B:1536",
            4096,
            ((0, 768), (61_035_157, 1536)),
        ),  # 61,035,156.25 samples
        ("0:8", 1, ((0, 8),)),
        (
            "  0:8\n1K:16\t2M:4 3T:1 ",
            1,
            ((0, 8), (1000, 16), (2 * 10**6, 4), (3 * 10**12, 1)),
        ),
        ("0K:8 1.5K:16", 1, ((0, 8), (1500, 16))),
        ("0:8 4096:16", 2048, ((0, 8), (2, 16))),
        ("0:8 4097:16", 2048, ((0, 8), (3, 16))),
    ],
)
def test_megatrons_syntax(
    text: str, tokens_per_sample: int, steps: tuple[tuple[int, int], ...]
) -> None:
    assert BatchSchedule.parse(text, tokens_per_sample=tokens_per_sample).steps == steps


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", "''"),
        ("100:8", "'100:8'"),
        ("0:8 0:16", "'0:8 0:16'"),
        ("0:8 2K:16 1K:32", "'0:8 2K:16 1K:32'"),
        ("0:8 1k:16", "'1k:16'"),
        ("0:8 1K", "'1K'"),
        ("0:8,1K:16", "'0:8,1K:16'"),
        ("0:8 -5:16", "'-5:16'"),
        ("0:0", "'0:0'"),
        ("0:8.5", "'0:8.5'"),
        ("0:8 1.5:16", "'1.5:16'"),
        ("0:8 \u0661K:16", "'\u0661K:16'"),
        ("0:8 1000T:16", "'0:8 1000T:16'"),
        (" ".join(f"{key}:1" for key in range(STEPS_MAX + 1)), "'0:1 1:1"),
    ],
)
def test_what_is_wrong_is_named_with_what_is_allowed(text: str, value: str) -> None:
    with pytest.raises(InputError) as raised:
        BatchSchedule.parse(text)
    assert str(raised.value).startswith(f"batch.schedule: got {value}")
    assert "FROM:BATCH pairs" in str(raised.value)


def test_tokens_may_be_too_few_to_tell_two_steps_apart() -> None:
    with pytest.raises(InputError, match=r"batch\.schedule: got '0:8 3:16 4:32'"):
        BatchSchedule.parse("0:8 3:16 4:32", tokens_per_sample=100)
    with pytest.raises(
        InputError, match="tokens per sample: got 0; allowed: a whole number >= 1"
    ):
        BatchSchedule.parse("0:8", tokens_per_sample=0)


@given(schedules())
def test_a_step_holds_from_its_key_to_just_before_the_next(
    schedule: BatchSchedule,
) -> None:
    ends = [begin for begin, _ in schedule.steps[1:]]
    for (begin, total), end in zip(schedule.steps, [*ends, None], strict=True):
        assert schedule.total_at(begin) == total
        assert schedule.next_change(begin) == end
        if end is not None:
            assert schedule.total_at(end - 1) == total
            assert schedule.total_at(end - 0.25) == total
            assert schedule.next_change(end - 1) == end


@given(schedules(), st.floats(0, 1e15), st.floats(0, 1e15))
def test_a_ramp_that_ascends_never_falls(
    schedule: BatchSchedule, one: float, other: float
) -> None:
    totals = sorted(schedule.totals)
    keys = [begin for begin, _ in schedule.steps]
    ramp = BatchSchedule(steps=tuple(zip(keys, totals, strict=True)))
    assert ramp.total_at(min(one, other)) <= ramp.total_at(max(one, other))


@given(schedules())
def test_written_out_it_is_read_back(schedule: BatchSchedule) -> None:
    text = " ".join(f"{begin}:{total}" for begin, total in schedule.steps)
    assert BatchSchedule.parse(text) == schedule
    assert from_json(BatchSchedule, to_json(schedule)) == schedule


def test_the_limits_follow_from_it() -> None:
    ramp = BatchSchedule.parse("0:16 100:64 200:32")
    limits = BatchLimits(initial=8, schedule=ramp)
    assert (limits.requested, limits.max_total) == (16, 64)
    with pytest.raises(
        ValueError, match=r"batch\.schedule: at most batch\.max \(32\), got 64"
    ):
        BatchLimits(initial=8, max_total=32, schedule=ramp)
    with pytest.raises(
        ValueError, match=r"requested must be the first of batch\.schedule, 16, got 8"
    ):
        BatchLimits(initial=8, requested=8, schedule=ramp)


@pytest.mark.parametrize("contract", RescaleContract)
def test_schedule_and_contract_go_together(contract: RescaleContract) -> None:
    scheduled = contract is RescaleContract.SCHEDULE
    ramp = BatchSchedule.parse("0:8")
    with pytest.raises(ValueError, match="goes with contract schedule only"):
        JobSpec(
            name="a",
            batch=BatchLimits(initial=8, schedule=None if scheduled else ramp),
            contract=contract,
        )
    spec = JobSpec(
        name="a",
        batch=BatchLimits(initial=8, schedule=ramp if scheduled else None),
        contract=contract,
    )
    assert spec.batch_is_own is (
        contract in (RescaleContract.SELF, RescaleContract.SCHEDULE)
    )
