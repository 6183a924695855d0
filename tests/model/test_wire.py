"""The wire codec: every value of floor 0 survives the trip, and what is wrong is named
by its path.
"""

import json
import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.model import (
    Allocation,
    BatchConfig,
    BatchLimits,
    ClusterView,
    Forecast,
    GradStats,
    InputError,
    JobSpec,
    Launch,
    Plan,
    ReplicaLimits,
    RescaleContract,
    Tenant,
    ThroughputParams,
    TrainingReport,
    TypeProfile,
)
from coadapt.model.wire import (
    ENTRIES_BETWEEN,
    WIRE_VERSION,
    dumps,
    dumps_in_pieces,
    from_json,
    loads,
    to_json,
)
from tests.model.strategies import allocations, cluster_views, job_specs

REPORT = TrainingReport(
    progress=1.5e6,
    progress_target=None,
    samples=12.0,
    batch=BatchConfig(total=64, atomic=16, accumulation=1),
    by_type={
        "gpu": TypeProfile(
            params=ThroughputParams(alpha_c=0.1, beta_c=0.002, gamma=1.4),
            num_replicas_profiled=4,
            max_atomic=96,
        )
    },
    grad=GradStats(sqr=0.1, var=2.0, noise_scale_stderr=3.0),
    forecast=Forecast(remaining_steps=9.5, step_time_s=(0.5, 0.3)),
    metrics={"loss": 0.25, "accuracy": 0.9},
)
SPEC = JobSpec(
    name="mnist",
    batch=BatchLimits(initial=32, max_total=128, max_atomic=64),
    replicas=ReplicaLimits(min=1, max=4),
    contract=RescaleContract.ADAPTIVE,
    tenant="vision",
    launch=Launch(run="python train.py", envs=(("A", "1"), ("B", "x=y"))),
)
PLAN = Plan(
    allocations={"j": Allocation(slots=(("b", 2), ("a", 1)))},
    batches={"j": BatchConfig(total=9, atomic=3)},
    reasons={"j": "it is alone"},
    diagnostics={"gap": math.inf},
)


@pytest.mark.parametrize(
    "value", [REPORT, SPEC, PLAN], ids=lambda value: type(value).__name__
)
def test_whole_values_survive_the_trip(value: object) -> None:
    assert loads({type(value).__name__: type(value)}, dumps(value)) == value


@given(job_specs() | allocations() | cluster_views())
def test_any_value_survives_the_trip(value: JobSpec | Allocation | ClusterView) -> None:
    text = dumps(value)
    assert "\n" not in text
    assert from_json(type(value), json.loads(text)["data"]) == value


@given(st.floats(allow_nan=False))
def test_a_float_survives_bit_by_bit(number: float) -> None:
    plan = from_json(
        Plan, json.loads(json.dumps(to_json(Plan(diagnostics={"gap": number}))))
    )
    assert plan.diagnostics["gap"] == number
    assert math.copysign(1, plan.diagnostics["gap"]) == math.copysign(1, number)


def test_nan_survives_too() -> None:
    plan = from_json(Plan, to_json(Plan(diagnostics={"gap": math.nan})))
    assert math.isnan(plan.diagnostics["gap"])


def test_a_derived_field_is_not_written() -> None:
    assert to_json(Allocation(slots=(("a", 2),))) == {
        "slots": [["a", 2]],
        "gpu_share": 1.0,
        "shared": [],
    }


def test_an_older_writer_may_lack_keys_that_have_a_default() -> None:
    assert from_json(TrainingReport, {"progress": 2}) == TrainingReport(progress=2.0)


BAD: list[tuple[type, object, str]] = [
    (
        JobSpec,
        {"name": "a"},
        "JobSpec.batch: got None; allowed: a value; the key is missing",
    ),
    (
        ReplicaLimits,
        {"min": "1"},
        "ReplicaLimits.min: got '1'; allowed: a whole number",
    ),
    (
        ReplicaLimits,
        {"min": 1.5},
        "ReplicaLimits.min: got 1.5; allowed: a whole number",
    ),
    (
        ReplicaLimits,
        {"min": True},
        "ReplicaLimits.min: got True; allowed: a whole number",
    ),
    (
        ReplicaLimits,
        {"most": 1},
        "ReplicaLimits.most: got 1; allowed: only the keys min, max, requested",
    ),
    (
        ReplicaLimits,
        [],
        "ReplicaLimits: got []; allowed: an object with min, max, requested",
    ),
    (
        ReplicaLimits,
        {"min": 8, "max": 2},
        "the maximum must be >= the minimum, got 8..2",
    ),
    (Tenant, {"weight": "2"}, "Tenant.weight: got '2'; allowed: a number"),
    (Tenant, {"weight": False}, "Tenant.weight: got False; allowed: a number"),
    (Tenant, {"id": 3}, "Tenant.id: got 3; allowed: text"),
    (
        Tenant,
        {"quota_gpus": "many"},
        "Tenant.quota_gpus: got 'many'; allowed: a whole number",
    ),
    (
        BatchLimits,
        {"initial": 1, "accumulation": 1},
        "BatchLimits.accumulation: got 1; allowed: true or false",
    ),
    (
        JobSpec,
        {"name": "a", "batch": {"initial": 1}, "contract": "loose"},
        "JobSpec.contract: got 'loose'; allowed: fixed, adaptive, self, frozen",
    ),
    (
        JobSpec,
        {"name": "a", "batch": {"initial": 0}},
        "batch.initial must be >= 1, got 0",
    ),
    (
        Allocation,
        {"slots": [["a"]]},
        "Allocation.slots[0]: got ['a']; allowed: a list of 2",
    ),
    (
        Allocation,
        {"slots": [["a", 1], ["b", "2"]]},
        "Allocation.slots[1][1]: got '2'; allowed: a whole number",
    ),
    (Allocation, {"slots": 4}, "Allocation.slots: got 4; allowed: a list"),
    (Plan, {"reasons": []}, "Plan.reasons: got []; allowed: an object"),
    (Plan, {"reasons": {"j": 1}}, "Plan.reasons.j: got 1; allowed: text"),
]


@pytest.mark.parametrize(
    ("kind", "data", "message"), BAD, ids=[message for _, _, message in BAD]
)
def test_bad_data_is_named_by_its_path(kind: type, data: object, message: str) -> None:
    with pytest.raises(InputError) as caught:
        from_json(kind, data)
    assert message in str(caught.value)


KINDS: dict[str, type] = {"Tenant": Tenant}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "allowed: JSON"),
        ("[]", "an object with wire, type and data"),
        (
            '{"wire": "1", "type": "Tenant", "data": {}}',
            "an object with wire, type and data",
        ),
        (
            f'{{"wire": {WIRE_VERSION + 1}, "type": "Tenant", "data": {{}}}}',
            "upgrade coadapt to read this",
        ),
        (
            f'{{"wire": {WIRE_VERSION}, "type": "Node", "data": {{}}}}',
            "type: got 'Node'; allowed: Tenant",
        ),
        (f'{{"wire": {WIRE_VERSION}, "type": "Tenant"}}', "Tenant: got None"),
    ],
)
def test_a_bad_envelope_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        loads(KINDS, text)
    assert message in str(caught.value)


def test_what_has_no_wire_form_is_our_own_mistake() -> None:
    @dataclass(frozen=True)
    class Odd:
        when: complex = 1j
        either: int | str = field(default=1)

    with pytest.raises(TypeError, match="complex has no wire form"):
        to_json(Odd())
    with pytest.raises(TypeError, match="has no wire form"):
        from_json(Odd, {})


@pytest.mark.parametrize("wrong", [True, 1.0, "1", [1]])
def test_what_passed_once_is_looked_at_again_when_its_type_is_another(
    wrong: object,
) -> None:
    assert from_json(ReplicaLimits, {"min": 1, "max": 2}) == ReplicaLimits(min=1, max=2)
    with pytest.raises(
        InputError, match=r"ReplicaLimits.min: got .*; allowed: a whole number"
    ):
        from_json(ReplicaLimits, {"min": wrong, "max": 2})


def test_what_stands_behind_a_value_is_refused_unless_it_is_white_space() -> None:
    text = dumps(Tenant())
    assert loads(KINDS, f" {text} \n") == Tenant()
    with pytest.raises(InputError, match="allowed: JSON"):
        loads(KINDS, f"{text}x")


@given(cluster_views())
def test_in_pieces_it_is_the_same_text(view: ClusterView) -> None:
    reasons = {job.id: 'says "no" — twice' for job in view.jobs}
    plan = Plan(
        allocations={job.id: job.allocation for job in view.jobs},
        reasons=reasons,
        diagnostics={"gap": math.inf},
        set_aside=dict.fromkeys(reasons, 1.5),
    )
    for value in (plan, view, REPORT, Plan()):
        assert dumps_in_pieces(value) == dumps(value)
    pauses = list[int]()
    dumps_in_pieces(
        Plan(reasons={f"j{n}": "" for n in range(45)}), lambda: pauses.append(1)
    )
    assert len(pauses) == 45 // ENTRIES_BETWEEN


def test_a_plan_of_an_older_writer_is_read_by_its_old_name() -> None:
    written = to_json(Plan(reasons={"j": "waits"}))
    assert isinstance(written, dict)
    old = {
        ("kin_times" if k == "application_times" else k): written[k] for k in written
    }
    assert "kin_times" in old
    assert from_json(Plan, old) == Plan(reasons={"j": "waits"})
    with pytest.raises(InputError, match="kins_times"):
        from_json(Plan, {"kins_times": {}})
