"""The part of a checkpoint that is the run's own: plain values that go through the wire
codec and back.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from coadapt.goodput.profile import ProfileKey
from coadapt.model import BatchConfig, InputError, RescaleContract, ThroughputParams
from coadapt.train.memory_ceiling import MemoryCeiling
from coadapt.train.noise.noise_scale import NoiseScale
from coadapt.train.samples.order import SampleOrder
from coadapt.train.session import Progress, Session


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRow:
    """Mean times of `count` measured steps of one kind."""

    gpu_type: str
    num_nodes: int
    num_racks: int
    num_replicas: int
    atomic: int
    count: int
    compute_s: float
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The progress of a run and what it has learnt. last_step_at: wall clock. stopped:
    saved due to a stop.

    random_seed, noise_wanted: see `Session`. decide_at, batches: see `Sampling`.
    """

    contract: RescaleContract
    num_replicas: int
    batch: BatchConfig
    progress: Progress
    order: SampleOrder
    noise: NoiseScale
    further_noise: Mapping[str, NoiseScale] = field(default_factory=dict)
    profile: tuple[ProfileRow, ...] = ()
    params: Mapping[str, ThroughputParams] = field(default_factory=dict)
    memory_ceilings: Mapping[str, MemoryCeiling] = field(default_factory=dict)
    last_step_at: float = 0.0
    stopped: bool = False
    random_seed: int = 0
    decide_at: int = 0
    batches: tuple[tuple[int, int], ...] = ()
    noise_wanted: bool = False


def make_record(session: Session, *, last_step_at: float, stopped: bool) -> RunRecord:
    """Return the record of `session`, between two steps."""
    rows = [
        ProfileRow(
            gpu_type=gpu_type,
            **key._asdict(),
            count=times[0],
            compute_s=times[1],
            step_s=times[2],
        )
        for gpu_type, measured in sorted(session.profiles.times.items())
        for key, times in measured.means.items()
    ]
    return RunRecord(
        contract=session.config.contract,
        num_replicas=session.group.size,
        batch=session.data.batch,
        progress=replace(session.progress),
        order=session.data.order,
        noise=copy.deepcopy(session.data.noise),
        further_noise=copy.deepcopy(session.data.further_noise),
        profile=tuple(rows),
        params=dict(session.profiles.params),
        memory_ceilings=dict(session.memory_ceilings),
        last_step_at=last_step_at,
        stopped=stopped,
        random_seed=session.random_seed,
        decide_at=session.data.decide_at,
        batches=tuple(session.data.batches),
        noise_wanted=session.noise_wanted,
    )


def resume(session: Session, record: RunRecord) -> None:
    """Bring `session` to where `record` left off. Raises InputError if this is not the
    same run.
    """
    data = session.data
    if not data.order.same_run(record.order):
        raise InputError(
            "loader", data.order, f"what the checkpoint was made with: {record.order}"
        )
    if record.order.num_samples is not None:
        session.set_length(record.order.num_samples)
    frozen = RescaleContract.FROZEN
    if session.config.contract is frozen and session.group.size != record.num_replicas:
        raise InputError(
            "replicas",
            session.group.size,
            f"{record.num_replicas}: the contract is frozen",
        )
    session.progress = replace(record.progress)
    session.random_seed = record.random_seed
    session.noise_wanted = session.noise_wanted or record.noise_wanted
    data.decide_at = record.decide_at
    data.batches = list(record.batches)
    data.noise = replace(record.noise, initial=data.noise.initial)
    data.further_noise = {
        name: replace(noise, initial=data.noise.initial)
        for name, noise in record.further_noise.items()
    }
    data.batch = record.batch
    recall_times(session, record)
    # What this process has read from the file is newer: a start that ran out of memory
    # saved nothing else.
    session.memory_ceilings = {**record.memory_ceilings, **session.memory_ceilings}


def recall_times(session: Session, record: RunRecord) -> None:
    """Let `session` know the step times that the run has measured so far."""
    for row in record.profile:
        key = ProfileKey(row.num_nodes, row.num_racks, row.num_replicas, row.atomic)
        session.profiles.of(row.gpu_type).means[key] = (
            row.count,
            row.compute_s,
            row.step_s,
        )
    session.profiles.params.update(record.params)
