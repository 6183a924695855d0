"""The traces of the Shockwave artifact (NSDI'23): jobs that change their own batch, and
Gavel's tables.

Format and semantics: uw-mad-dash/shockwave, directory scheduler; docs/traces.md. The
batch does not affect convergence here: a job has the same number of epochs at any
batch, and a larger batch only makes the epochs shorter.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path

from coadapt.model import (
    BatchLimits,
    BatchMode,
    Forecast,
    GradStats,
    InputError,
    JobSpec,
    ReplicaLimits,
    RescaleContract,
)
from coadapt.sim.applications import Setting, UnmeasuredError
from coadapt.sim.traces.batch_schedules import LARGEST, batches
from coadapt.sim.traces.table import Row, read_headless_rows, trace_name
from coadapt.sim.traces.tally import ReadOptions
from coadapt.sim.workload import ARRIVAL_MAX_S, TraceJob, Workload

# The columns have no header; these are our names of the twelve.
COLUMNS = (
    "job type",
    "command",
    "working directory",
    "steps flag",
    "needs data",
    "total steps",
    "scale factor",
    "mode",
    "priority",
    "SLO",
    "duration",
    "arrival",
)
MODES = ("static", "accordion", "gns")
GPU_TYPE = "v100"  # the only one that the artifact simulates
# Samples of an epoch (the artifact's constants).
DATASET = {
    "ResNet-18": 50_000,
    "ResNet-50": 100_000,
    "Transformer": 10_000,
    "LM": 59_675,
    "Recommendation": 117_907,
}
ROUND_S = 120.0  # of the artifact: batches change at the ends of rounds
FORCED_END = 1.5  # times its profiled run time, after which a job counts as done
EFFICIENCY_ONE = GradStats(sqr=0.0, var=1.0)  # at any batch

_JOB_TYPE = re.compile(r"(\S+) \(batch size (\d+)\)")
# Some models of the table, which no trace uses, have no batch size.
_TABLE_KEY = re.compile(r"\('(\S+)(?: \(batch size (\d+)\))?', (\d+)\)")

# (model, batch per GPU, GPUs) -> steps per second of all its GPUs together, each step
# one batch on one GPU.
Throughputs = Mapping[tuple[str, int, int], float]


@dataclass(frozen=True, slots=True)
class Phase:
    """Training with one batch per GPU: epochs (not always whole ones), and the seconds
    that they take.
    """

    batch: int
    num_epochs: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The contents of a job's line, without the arrival. total_steps: steps at the
    initial batch. batch: the initial batch per GPU.
    """

    model: str
    batch: int
    mode: str
    num_gpus: int
    total_steps: int

    @property
    def name(self) -> str:
        return f"{self.model}-b{self.batch}-x{self.num_gpus}-{self.mode}-{self.total_steps}".lower()

    @property
    def num_epochs(self) -> int:
        return -(-self.total_steps // self.steps_per_epoch(self.batch))

    def steps_per_epoch(self, batch: int) -> int:
        return -(-DATASET[self.model] // batch)

    def batch_by_epoch(self, *, profile: bool) -> tuple[int, ...]:
        """Return the batch per GPU of each epoch, from the artifact's profile or from
        its simulation of training.
        """
        # The simulation of training reads the table a little past its end.
        num_epochs = self.num_epochs if profile else self.num_epochs + 2
        return batches(
            self.mode,
            self.model,
            self.batch,
            num_gpus=self.num_gpus,
            num_epochs=num_epochs,
            profile=profile,
        )


def profiled_phases(kind: Kind, throughputs: Throughputs) -> list[Phase]:
    """Return the phases of the artifact's profile, in which each epoch has its
    scheduled batch.
    """
    phases = []
    for batch, epochs in groupby(kind.batch_by_epoch(profile=True)):
        num_epochs = len(list(epochs))
        epoch_s = (
            DATASET[kind.model] / batch / throughputs[kind.model, batch, kind.num_gpus]
        )
        phases.append(Phase(batch, num_epochs, num_epochs * epoch_s))
    return phases


def trained_phases(
    kind: Kind, throughputs: Throughputs, longest_s: float
) -> list[Phase]:
    """Return the phases of a job that trains alone in the artifact's simulation.

    A round has 120 s. At its end, the change takes effect that the job requested at the
    end of the previous round. Then the schedule gives the next request. A noise-scale
    job doubles its batch at most once per round. A change completes the present epoch
    at once. A job that has run for more than `longest_s` counts as done.
    """
    by_epoch = kind.batch_by_epoch(profile=False)
    batch = kind.batch
    wanted = kind.batch
    done = 0
    total = kind.total_steps
    begin = 0.0
    spent_s = 0.0
    whole_s = 0.0
    phases: list[Phase] = []
    while done < total and whole_s <= longest_s:
        rate = throughputs[kind.model, batch, kind.num_gpus]
        each = kind.steps_per_epoch(batch)
        steps = min(max(int(rate * ROUND_S), 1), total - done)
        done += steps
        spent_s += steps / rate
        whole_s += steps / rate
        if done < total and wanted != batch:
            epochs = -(-done // each)
            phases.append(Phase(batch, epochs - begin, spent_s))
            begin = epochs
            spent_s = 0.0
            batch = wanted
            each = kind.steps_per_epoch(wanted)
            done = epochs * each
            total = kind.num_epochs * each
        wanted = _wanted(kind, by_epoch, batch, -(-done // each))
    if spent_s > 0.0:
        phases.append(
            Phase(batch, total / kind.steps_per_epoch(batch) - begin, spent_s)
        )
    return phases


def _wanted(kind: Kind, by_epoch: Sequence[int], batch: int, epoch: int) -> int:
    """Return the batch per GPU that the job asks for in `epoch`."""
    now, soon = (by_epoch[min(each, len(by_epoch) - 1)] for each in (epoch, epoch + 1))
    if kind.mode == "gns":
        return 2 * batch if max(now, soon) > batch else batch
    return now


class SelfPacedApplication:
    """One kind of job's truth, by phases of constant batch. See
    sim.applications.Application for the methods.

    An epoch of the simulator is one phase here, because all values are linear within a
    phase. The values are known for the job's own number of GPUs only. exclusive_s: the
    run time alone in the artifact's profile, on which the artifact's fairness is based.
    """

    gpu_types: tuple[str, ...] = ()
    load = 1.0

    def __init__(self, kind: Kind, throughputs: Throughputs) -> None:
        self.name = kind.name
        self.kind = kind
        self.throughputs = throughputs
        self._dataset = DATASET[kind.model]
        profile = profiled_phases(kind, throughputs)
        self.exclusive_s = sum(phase.seconds for phase in profile)
        longest_s = FORCED_END * int(self.exclusive_s)
        self._phases = trained_phases(kind, throughputs, longest_s)
        self._modes = tuple(
            BatchMode(
                total=batch * kind.num_gpus,
                epoch_s=self._dataset
                / batch
                / throughputs[kind.model, batch, kind.num_gpus],
            )
            for batch in sorted({phase.batch for phase in profile + self._phases})
        )
        sizes = [phase.batch for phase in self._phases]
        self.limits = BatchLimits(
            initial=kind.batch * kind.num_gpus,
            max_total=max(sizes) * kind.num_gpus,
            min_atomic=min(sizes),
            max_atomic=max(sizes),
            accumulation=False,
        )
        self._samples_at = [
            0.0,
            *accumulate(phase.num_epochs * self._dataset for phase in self._phases),
        ]
        self._ends_s = [0.0, *accumulate(phase.seconds for phase in self._phases)]
        self._rates = [self._rate(phase.batch) for phase in self._phases]

    @property
    def num_epochs(self) -> int:
        return len(self._phases)

    def step_time(self, setting: Setting, atomic: int) -> tuple[float, float]:
        num_gpus = setting.placement.num_replicas
        if num_gpus != self.kind.num_gpus or all(
            phase.batch != atomic for phase in self._phases
        ):
            raise UnmeasuredError(
                f"{self.name}: {atomic} samples per GPU on {num_gpus} GPUs were not "
                f"measured"
            )
        return atomic * num_gpus / self._rate(atomic), 0.0

    def _rate(self, batch: int) -> float:
        """Return samples per second at `batch` per GPU. Epochs that a change completes
        at once are included.
        """
        alike = [phase for phase in self._phases if phase.batch == batch]
        epochs = sum(phase.num_epochs for phase in alike)
        seconds = sum(phase.seconds for phase in alike)
        return epochs * self._dataset / seconds

    def max_atomic(self, setting: Setting) -> int | None:  # noqa: ARG002  # the signature is that of Application
        return self.limits.max_atomic

    def own_batch(self, epoch: int) -> int:
        return (
            self._phases[min(epoch, len(self._phases) - 1)].batch * self.kind.num_gpus
        )

    def grad_stats(self, total: int, epoch: int) -> GradStats:  # noqa: ARG002  # as above
        return EFFICIENCY_ONE

    def progress_at(self, epoch: int) -> float:
        return self._samples_at[epoch] / self.limits.initial

    def steps(self, total: int, epoch: int) -> float:
        return self._samples_at[epoch] / total

    def forecast(self, progress: float) -> Forecast:
        """Return what an oracle knows at `progress` (steps at the initial batch): the
        time left, the modes.

        remaining_steps times step_time_s is the true run time left, with all coming
        changes of the batch.
        """
        samples = progress * self.limits.initial
        index = min(bisect_right(self._samples_at, samples), len(self._phases)) - 1
        run_s = (
            self._ends_s[index]
            + (samples - self._samples_at[index]) / self._rates[index]
        )
        left_s = max(self._ends_s[-1] - run_s, 0.0)
        step_s = self.own_batch(index) / self._rates[index]
        return Forecast(
            remaining_steps=left_s / step_s,
            step_time_s=(step_s,) * self.kind.num_gpus,
            num_epochs=self.kind.num_epochs,
            modes=self._modes,
        )


def recognises(lines: Sequence[str], profiles: Path | None) -> bool:  # noqa: ARG001  # the signature is that of Importer
    """Return whether a file with these first lines is a trace of this format."""
    cells = lines[0].split("\t") if lines else []
    return (
        len(cells) == len(COLUMNS) and _JOB_TYPE.fullmatch(cells[0].strip()) is not None
    )


def load(
    path: Path, profiles: Path | None, options: ReadOptions | None = None
) -> tuple[Workload, dict[str, SelfPacedApplication]]:
    """Return the trace of `path` with its applications. profiles: a throughput table,
    or its directory.

    Raises InputError for anything that the format does not allow, in either.
    """
    del options  # a trace of an artifact has no bad rows
    throughputs = read_throughputs(_table(profiles))
    applications: dict[str, SelfPacedApplication] = {}
    rows = list(read_headless_rows(path, COLUMNS))
    width = len(str(len(rows) - 1))
    jobs = []
    before = 0.0
    for index, row in enumerate(rows):
        kind = _kind(row, throughputs)
        if kind.name not in applications:
            applications[kind.name] = SelfPacedApplication(kind, throughputs)
        at = row.number("arrival", ARRIVAL_MAX_S)
        if at < before:
            raise row.error(
                "arrival", at, f"no less than that of the line before, {before}"
            )
        before = at
        job_id = f"{index:0{width}d}-{kind.model.lower()}"
        spec = JobSpec(
            name=job_id,
            application=kind.name,
            batch=applications[kind.name].limits,
            replicas=ReplicaLimits(min=kind.num_gpus, max=kind.num_gpus),
            contract=RescaleContract.SELF,
        )
        jobs.append(TraceJob(id=job_id, at=at, application=kind.name, spec=spec))
    return Workload(name=trace_name(path), jobs=tuple(jobs)), applications


def _kind(row: Row, throughputs: Throughputs) -> Kind:
    job_type = row.text("job type")
    match = _JOB_TYPE.fullmatch(job_type)
    if match is None or match[1] not in DATASET:
        models = ", ".join(DATASET)
        raise row.error(
            "job type", job_type, f"'MODEL (batch size B)', MODEL one of {models}"
        )
    model = match[1]
    batch = int(match[2])
    mode = row.text("mode")
    num_gpus = row.integer("scale factor", at_least=1)
    if mode not in MODES:
        raise row.error("mode", mode, ", ".join(MODES))
    if not 1 <= batch <= LARGEST[model]:
        raise row.error(
            "job type", job_type, f"a batch size within 1..{LARGEST[model]}"
        )
    total_steps = row.integer("total steps", at_least=1)
    kind = Kind(
        model=model, batch=batch, mode=mode, num_gpus=num_gpus, total_steps=total_steps
    )
    for each in sorted(
        {*kind.batch_by_epoch(profile=True), *kind.batch_by_epoch(profile=False)}
    ):
        if throughputs.get((model, each, num_gpus), 0.0) <= 0.0:
            allowed = (
                f"a job type with a throughput > 0 at batch size {each} on "
                f"{num_gpus} GPUs"
            )
            raise row.error("job type", job_type, allowed)
    return kind


def _table(profiles: Path | None) -> Path:
    """Return the throughput table: the file itself, or the only one in the
    directory.
    """
    if profiles is None:
        raise InputError(
            "--profiles", "nothing", "a throughput table, or its directory"
        )
    if not profiles.is_dir():
        return profiles
    found = sorted(profiles.glob("*_throughputs.json"))
    if len(found) != 1:
        shown = ", ".join(each.name for each in found) or "none"
        raise InputError(
            "--profiles",
            f"{profiles}: {shown}",
            "one file *_throughputs.json, or a path to one",
        )
    return found[0]


def read_throughputs(path: Path) -> dict[tuple[str, int, int], float]:
    """Return the rates of jobs that are alone on their GPUs. Rates of jobs that share
    GPUs are left out.
    """
    try:
        tables = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}", str(error), "a readable JSON file") from None
    except json.JSONDecodeError as error:
        place = f"{path} line {error.lineno} column {error.colno}"
        raise InputError(place, error.msg, "a JSON object") from None
    table = tables.get(GPU_TYPE) if isinstance(tables, dict) else None
    if not isinstance(table, dict):
        raise InputError(
            f"{path}", "no such table", f"an object with a table {GPU_TYPE!r}"
        )
    rates = {}
    for key, entry in table.items():
        match = _TABLE_KEY.fullmatch(key)
        if match is None:
            raise InputError(
                f"{path}, {GPU_TYPE}", key, "\"('MODEL (batch size B)', GPUS)\""
            )
        rate = entry.get("null") if isinstance(entry, dict) else None
        if (
            isinstance(rate, bool)
            or not isinstance(rate, int | float)
            or not 0.0 <= rate < float("inf")
        ):
            raise InputError(
                f"{path}, {GPU_TYPE}, {key}, null", rate, "steps per second >= 0"
            )
        if match[2] is not None:
            rates[match[1], int(match[2]), int(match[3])] = float(rate)
    return rates
