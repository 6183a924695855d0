"""Which batches this run may use: the loop's own numbers, the job file's, and that they
agree.
"""

import logging
import math
from dataclasses import dataclass

from coadapt.goodput.batch import split_total
from coadapt.goodput.efficiency import efficiency
from coadapt.goodput.throughput import ThroughputModel, step_time
from coadapt.model import (
    BatchConfig,
    BatchLimits,
    BatchRule,
    BatchSchedule,
    GradStats,
    InputError,
    JobSpec,
    Placement,
    RescaleContract,
    ThroughputParams,
)
from coadapt.model.contract_env import ENV_BATCH
from coadapt.train.group.group import gather_all
from coadapt.train.memory_ceiling import lowered
from coadapt.train.noise.noise_scale import NoiseScale
from coadapt.train.samples.order import SampleOrder
from coadapt.train.session import Sampling, Session

logger = logging.getLogger(__name__)

# A change of batch costs a few slow steps and unsettles the optimiser (Pollux's product
# version).
GAIN_MIN = 1.05
# One in the other direction than the last must promise more: estimates of noise waver
# by some percent, and a batch that follows them to and fro pays for each change.
REVERSAL_GAIN_MIN = 1.10
# A batch grows by this factor at most per decision (the first time on one replica: its
# passes do), and the learning rate with it (by 2 at most, AdaScale's gain): in one leap
# from 32 to 1024 the rate rose tenfold at once, and the loss by 0.1 for 20,000 samples.
# Doubling is what Smith et al. 2018 and Merrill et al.
# 2025 do.
GROWTH_MAX = 2.0
# How much faster a larger batch is counts in powers of this, half a doubling: measured
# times waver.
SPEEDUP_STEP = 2.0**0.5
ROUNDED = 1.1
RULE_FIELD = "loader(batch_rule)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the loop says of its batch; None: nothing. As the arguments of `Run.loader`.

    batch_size is the one that the loop's learning rate is meant for: the job file's
    `requested`, or its `initial` if adaptive.
    """

    batch_size: int | None = None
    max_batch_size: int | None = None
    max_atomic: int | None = None
    batch_rule: str | None = None


def resolve_limits(
    spec: JobSpec | None,
    contract: RescaleContract,
    wanted: Wanted,
) -> BatchLimits:
    """Return the limits that arguments of `Run.loader` and job file give together.

    What only one of them says counts. Raises InputError where they contradict each
    other.
    """
    batch_size = wanted.batch_size
    max_atomic = wanted.max_atomic
    rule = (
        None
        if wanted.batch_rule is None
        else BatchRule.parse(wanted.batch_rule, field=RULE_FIELD)
    )
    if rule is not None and contract is not RescaleContract.SELF:
        raise InputError(
            RULE_FIELD,
            wanted.batch_rule,
            f"only under contract self; this job's is {contract}",
        )
    if spec is None:
        if contract is RescaleContract.SCHEDULE:
            raise InputError(
                "contract",
                str(contract),
                "a job file whose batch.schedule declares the batches",
            )
        if batch_size is None:
            raise InputError(
                "loader(batch_size)", None, "a number of samples; no job file names one"
            )
        return _limits(
            initial=batch_size,
            max_total=wanted.max_batch_size or 0,
            max_atomic=max_atomic,
            rule=rule,
        )
    declared = spec.batch
    own = (
        declared.initial if contract is RescaleContract.ADAPTIVE else declared.requested
    )
    name = "batch.initial" if own == declared.initial else "batch.requested"
    if declared.schedule is not None:
        name = "first of batch.schedule"
    _agree("batch_size", batch_size, own, name)
    _agree("max_batch_size", wanted.max_batch_size, declared.max_total, "batch.max")
    if rule is not None and rule != declared.rule:
        raise InputError(
            RULE_FIELD,
            wanted.batch_rule,
            f"{declared.rule or 'none'}, the job file's batch.rule",
        )
    if declared.max_atomic is None:
        return _limits(
            initial=declared.initial,
            requested=declared.requested,
            max_total=declared.max_total,
            min_atomic=declared.min_atomic,
            max_atomic=max_atomic,
            accumulation=declared.accumulation,
            schedule=declared.schedule,
            rule=declared.rule,
        )
    _agree("max_atomic", max_atomic, declared.max_atomic, "batch.max_atomic")
    return declared


def begin_sampling(session: Session, limits: BatchLimits, order: SampleOrder) -> None:
    """Let `session` train on data of that order. Raises InputError where it has less
    than one batch.
    """
    begin = own = limits.initial if session.adaptive else limits.requested
    num_samples = order.num_samples
    if num_samples is not None and not order.stream:
        if limits.schedule is not None:
            own = max(limits.schedule.totals)
        if num_samples < own:
            allowed = f"at least one batch of {own} samples"
            raise InputError("loader(dataset)", f"{num_samples} samples", allowed)
    session.sampling = Sampling(
        limits=limits,
        order=order,
        batch=split_total(begin, session.group.size, limits, exact=True),
        noise=NoiseScale(limits.initial),
        max_total=limits.max_total,
    )
    session.fit_largest_batch()


def settle_batch(session: Session) -> None:
    """Let all begin with the first one's batch, in passes that fit into each one's
    memory. Collective.
    """
    data = session.data
    caps = (session.memory_ceiling.most, data.limits.max_atomic)
    own = min((most for most in caps if most is not None), default=None)
    parts = gather_all(session.group, (first_batch(session), own))
    data.batch = parts[0][0]
    most = min((most for _, most in parts if most is not None), default=None)
    limits = lowered(data.limits, most)
    if limits != data.limits:
        logger.info(
            "at most %s samples per pass: more did not fit into the memory of a %s "
            "before",
            most,
            session.gpu_type,
        )
        data.limits = limits
    if limits.max_atomic is not None and data.batch.atomic > limits.max_atomic:
        data.batch = split_total(
            data.batch.total, session.group.size, limits, exact=True
        )


def first_batch(session: Session) -> BatchConfig:
    """Return the batch to begin this generation with.

    Dictated by the scheduler, or kept (fixed, frozen, self), or the scheduled one, or
    for an adaptive job:
    the best for its present placement, as far as it has measured itself. Raises
    InputError if what is dictated breaks the contract.
    """
    limits = session.data.limits
    group = session.group
    dictated = session.config.job.batch
    before = session.data.batch
    if limits.schedule is not None:
        return scheduled_batch(session)
    if session.config.contract is RescaleContract.SELF:
        return split_total(before.total, group.size, limits, exact=True)
    if not session.adaptive:
        if dictated is not None and dictated.total != limits.requested:
            raise InputError(
                ENV_BATCH, dictated.total, f"{limits.requested}: the contract is fixed"
            )
        return dictated or split_total(limits.requested, group.size, limits, exact=True)
    if dictated is None:
        dictated = split_total(before.total, group.size, limits)
        params = session.profiles.params.get(session.gpu_type)
        grad = session.grad_stats()
        if params is not None and grad is not None:
            cautious = session.data.noise.cautious()
            better = better_batch(
                limits, params, grad, group.placement, dictated, cautious=cautious
            )
            dictated = better or dictated
    if dictated.total > limits.max_total:
        raise InputError(
            "batch",
            dictated.total,
            f"at most {limits.max_total} on {group.size} replicas",
        )
    return dictated


def scheduled_batch(session: Session) -> BatchConfig:
    """Return the batch of a step that begins now, under a declared schedule; the
    present one without.

    It follows from what all replicas know alike: the samples trained on, their number,
    their limits.
    """
    limits = session.data.limits
    present = session.data.batch
    if limits.schedule is None:
        return present
    total = limits.schedule.total_at(session.progress.samples)
    return split_total(total, session.group.size, limits, exact=True)


def better_batch(
    limits: BatchLimits,
    params: ThroughputParams,
    grad: GradStats,
    placement: Placement,
    current: BatchConfig,
    *,
    cautious: GradStats | None,
    trend: int = 0,
    model: ThroughputModel = step_time,
) -> BatchConfig | None:
    """Return the batch of highest goodput if it promises over 5 % more than `current`,
    else None.

    Looked at are the initial batch times powers of two, and the largest one allowed,
    and how much faster a larger one is counts in steps of SPEEDUP_STEP: else small
    errors of measured times would decide, and two runs of one script would part. It is
    at most GROWTH_MAX times as large as `current`, up to rounding. trend: 1 or -1 where
    the last change made the batch larger or smaller; then one in the other direction
    must promise over 10 % more. model: of step times.

    A batch grows only as far as `cautious` supports it, the noise scale at the low end
    of its interval: what is lost by growing too far are samples. None, not enough
    known, supports no growth.
    """

    def throughput(batch: BatchConfig) -> float:
        seconds = float(model(params, placement, batch.atomic, batch.accumulation))
        return batch.total / seconds

    def share(batch: BatchConfig, noise: GradStats) -> float:
        initial = float(limits.initial)
        total = max(float(batch.total), initial)
        return efficiency(total, initial, noise.sqr, noise.var)

    def gain(batch: BatchConfig, noise: GradStats) -> float:
        faster = throughput(batch) / throughput(current)
        if batch.total > current.total:
            faster = _stepped(faster)
        return faster * share(batch, noise) / share(current, noise)

    allowed = _rungs(limits, current, placement)
    if not allowed:
        return None
    choice = max(allowed, key=lambda batch: gain(batch, grad))
    if choice.total > current.total:
        if cautious is None:
            return None
        grad = cautious
        choice = max(allowed, key=lambda batch: gain(batch, cautious))
        if choice.total <= current.total:
            return None
    reverses = trend * (choice.total - current.total) < 0
    least = REVERSAL_GAIN_MIN if reverses else GAIN_MIN
    return choice if gain(choice, grad) > least else None


def _stepped(ratio: float) -> float:
    """Return the nearest power of SPEEDUP_STEP."""
    steps = round(math.log(ratio) / math.log(SPEEDUP_STEP))
    return float(SPEEDUP_STEP**steps)


def _rungs(
    limits: BatchLimits, current: BatchConfig, placement: Placement
) -> list[BatchConfig]:
    """Return the batches that may follow `current`, ascending: at most GROWTH_MAX times
    as large.

    One replica takes a batch above the initial one in two passes, to measure its noise.
    Twice the batch would be two passes of the present size, which nothing is gained by:
    there it is the pass that doubles.
    """
    num_replicas = placement.num_replicas
    in_two = num_replicas == 1 and not current.accumulation and limits.accumulation
    grown = max(current.total, limits.initial) * (2 if in_two else 1)
    # Shares are whole samples, so a batch may be a little below its rung.
    most = min(int(GROWTH_MAX * grown * ROUNDED), limits.max_total)
    totals = [limits.initial]
    while totals[-1] * 2 <= most:
        totals.append(totals[-1] * 2)
    if totals[-1] < limits.max_total == most:
        totals.append(limits.max_total)
    found = [
        split_total(
            max(total - total % num_replicas, num_replicas),
            num_replicas,
            limits,
            accumulate_alone=True,
        )
        for total in totals
    ]
    return [batch for batch in found if _lawful(batch, limits, num_replicas)]


def _lawful(batch: BatchConfig, limits: BatchLimits, num_replicas: int) -> bool:
    """Return whether an adaptive job may choose `batch` by itself."""
    if batch.atomic < limits.min_atomic:
        return False
    return limits.accumulation or num_replicas > 1 or batch.total <= limits.initial


def _agree(argument: str, given: int | None, declared: int, name: str) -> None:
    if given is not None and given != declared:
        raise InputError(
            f"loader({argument})", given, f"{declared}, the job file's {name}"
        )


def _limits(**values: "int | bool | BatchSchedule | BatchRule | None") -> BatchLimits:
    try:
        return BatchLimits(**values)  # type: ignore[arg-type]  # by name, as listed by both callers
    except ValueError as error:
        raise InputError("loader", values, str(error)) from None
