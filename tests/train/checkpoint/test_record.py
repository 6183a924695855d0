"""The run's own part of a checkpoint goes through the wire and back, and knows its own
run.
"""

from dataclasses import replace

import pytest

from coadapt.model import (
    BatchConfig,
    BatchLimits,
    InputError,
    Placement,
    RescaleContract,
    ThroughputParams,
)
from coadapt.model.wire import from_json, to_json
from coadapt.train.checkpoint.record import RunRecord, make_record, resume
from coadapt.train.env import TrainConfig
from coadapt.train.group.consensus import NormSums, StepConsensus, StepFlags
from coadapt.train.group.group import Group
from coadapt.train.noise.noise_scale import GradNorms, NoiseScale
from coadapt.train.samples.order import SampleOrder
from coadapt.train.session import Progress, Sampling, Session

pytestmark = pytest.mark.train

NORMS = GradNorms(small_sqr=3.0, inverse=0.5, count=2, big_sqr=1.0, samples=8)
LAYERS = GradNorms(small_sqr=9.0, inverse=8.0, count=8.0, big_sqr=0.5, samples=8.0)


def session(
    contract: RescaleContract = RescaleContract.FIXED, num_replicas: int = 1
) -> Session:
    return Session(
        config=TrainConfig(contract=contract),
        group=Group(size=num_replicas),
        sampling=Sampling(
            limits=BatchLimits(initial=8),
            order=SampleOrder(num_samples=100, shuffle=True, drop_last=False, seed=1),
            batch=BatchConfig(total=8, atomic=8),
            noise=NoiseScale(8),
        ),
    )


def trained(contract: RescaleContract = RescaleContract.FIXED) -> Session:
    one = session(contract)
    one.progress = Progress(epoch=2, index=40, step=30, samples=240, progress=240.0)
    one.data.batch = BatchConfig(total=16, atomic=8, accumulation=1)
    one.data.noise.add(replace(NORMS, layers=LAYERS), 240.0)
    one.profiles.of("cpu").add(Placement((2, 1)), 8, 0.5, 0.75)
    one.profiles.params["cpu"] = ThroughputParams(alpha_c=0.1, beta_c=0.01)
    return one


def through_the_wire(record: RunRecord) -> RunRecord:
    return from_json(RunRecord, to_json(record))


def test_everything_comes_back() -> None:
    before = trained()
    after = session()
    resume(after, through_the_wire(make_record(before, last_step_at=5.0, stopped=True)))
    assert after.progress == before.progress
    assert after.data == before.data
    assert after.profiles == before.profiles


def test_the_length_of_a_stream_that_was_found_comes_back() -> None:
    order = SampleOrder(
        num_samples=None, shuffle=False, drop_last=False, seed=1, stream=True
    )
    before = trained()
    after = session()
    before.data.order, after.data.order = replace(order, num_samples=77), order
    resume(after, through_the_wire(make_record(before, last_step_at=5.0, stopped=True)))
    assert after.data.order.num_samples == 77


def test_a_record_does_not_change_with_the_run() -> None:
    one = trained()
    record = make_record(one, last_step_at=5.0, stopped=True)
    one.progress.step += 1
    one.data.noise.add(replace(NORMS, layers=LAYERS), 300.0)
    assert record.progress.step == 30
    assert record.noise.at_samples == 240.0
    assert record.noise.layers is not None
    assert record.noise.layers.num_compared == 1


def test_frozen_is_refused_at_another_number_of_replicas() -> None:
    record = make_record(
        trained(RescaleContract.FROZEN), last_step_at=0.0, stopped=False
    )
    resume(session(RescaleContract.FROZEN), record)
    with pytest.raises(
        InputError, match="replicas: got 2; allowed: 1: the contract is frozen"
    ):
        resume(session(RescaleContract.FROZEN, num_replicas=2), record)
    resume(session(RescaleContract.FIXED, num_replicas=2), record)


def test_records_of_an_earlier_version_may_lack_what_has_a_default() -> None:
    data = to_json(make_record(trained(), last_step_at=5.0, stopped=True))
    assert isinstance(data, dict)
    for name in ("profile", "params", "last_step_at", "stopped"):
        del data[name]
    assert from_json(RunRecord, data).last_step_at == 0.0


def test_alone_one_agrees_with_oneself() -> None:
    agreement = StepConsensus(60.0)
    assert agreement.collect() is None
    said = StepFlags(stop=1.0, batch=BatchConfig(total=6, atomic=2, accumulation=2))
    agreement.post(Group(), said, [NORMS])
    heard = agreement.collect()
    assert heard == replace(said, norms=NormSums.of(NORMS))
    assert heard is not None
    assert heard.batch == BatchConfig(total=6, atomic=2, accumulation=2)
    assert agreement.norms(heard) == [NORMS]
    assert agreement.collect() is None
    assert StepFlags().batch is None


def test_flags_go_through_the_sum_as_they_are() -> None:
    batch = BatchConfig(total=6, atomic=2, accumulation=2)
    for flags in (
        StepFlags(),
        StepFlags(
            stop=2.0, step=7.0, skipped=5.0, batch=batch, norms=NormSums.of(NORMS)
        ),
        StepFlags(
            norms=NormSums.of(replace(NORMS, layers=LAYERS)), rescale=3.0, stride=8.0
        ),
        StepFlags(norms=NormSums.of(NORMS), computed=(0.1, 0.0, 0.3)),
    ):
        assert StepFlags.from_numbers(flags.numbers(), len(flags.computed)) == flags


def test_norms_that_are_not_finite_spoil_no_sum() -> None:
    for bad in (
        replace(NORMS, small_sqr=float("inf")),
        replace(NORMS, big_sqr=float("nan")),
    ):
        assert NormSums.of(bad) == NormSums(unusable=1.0)
        assert heard_norms(bad) is None
    assert heard_norms(NORMS) == NORMS
    assert heard_norms(replace(NORMS, count=1.0)) is None
    assert heard_norms(None) is None


def test_normalisation_layers_count_if_all_examples_do() -> None:
    """In two successive steps that are compared, those of the last one; also where
    nothing is compared.
    """
    seen = replace(NORMS, layers=LAYERS)
    assert heard_norms(seen) == seen
    assert heard_norms(replace(seen, samples=9)) == replace(NORMS, samples=9)
    pair = replace(seen, samples=16, differenced=True)
    assert heard_norms(pair) == pair
    first = replace(seen, small_sqr=0.0, inverse=0.0, count=0.0, big_sqr=0.0)
    assert heard_norms(first) == first
    assert (
        heard_norms(replace(seen, layers=replace(LAYERS, big_sqr=float("inf")))) is None
    )


def heard_norms(norms: GradNorms | None) -> GradNorms | None:
    agreement = StepConsensus(60.0)
    agreement.post(Group(), StepFlags(), [norms])
    heard = agreement.collect()
    assert heard is not None
    return agreement.norms(heard)[0]
