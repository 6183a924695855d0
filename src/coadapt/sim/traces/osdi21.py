"""The traces of the Pollux artifact (OSDI'21): workload files, and measured profiles of
six models.

Format and semantics: petuum/adaptdl, branch osdi21-artifact, directory simulator. Step
times are interpolated, never extrapolated; gradient statistics and iterations are
linear between measured batch sizes.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from coadapt.model import (
    DEFAULT_GPU_TYPE,
    BatchLimits,
    JobSpec,
    ReplicaLimits,
    RescaleContract,
)
from coadapt.sim.applications import Setting, UnmeasuredError
from coadapt.sim.colocation import kept_speed
from coadapt.sim.traces.measured import StepTimes, Times, Validation
from coadapt.sim.traces.table import Row
from coadapt.sim.traces.tally import ReadOptions
from coadapt.sim.traces.tuned_jobs import (
    application_folders,
    has_columns,
    read_jobs,
    tuned_spec,
)
from coadapt.sim.workload import Workload

# The artifact's own exceptions: yolov3 was profiled up to 16 samples per GPU, of which
# 8 are used; ncf keeps one batch size and one GPU.
MAX_ATOMIC = {"yolov3": 8}
FIXED_TOTAL = {"ncf": 32768}
NUM_NODES_MAX = 16  # nodes of the largest measured cluster; more are timed as 16


class MeasuredApplication(Validation):
    """One model of the artifact, as measured; see sim.applications.Application for the
    methods.
    """

    gpu_types = (DEFAULT_GPU_TYPE, "t4")
    load = 1.0  # not measured: the most careful guess

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        placements = directory / "placements.csv"
        scalability = directory / "scalability.csv"
        self._steps = StepTimes(self.name, placements, scalability, NUM_NODES_MAX)
        smallest, largest = self._steps.atomic_range
        self.limits = BatchLimits(
            initial=self.totals[0],
            max_total=self.totals[-1],
            min_atomic=smallest,
            max_atomic=MAX_ATOMIC.get(self.name, largest),
        )

    def step_time(self, setting: Setting, atomic: int) -> Times:
        """Return the measured times, on T4 in one rack. The slowdown by neighbours is
        our own model.
        """
        if setting.placement.num_racks > 1:
            raise UnmeasuredError(
                f"{self.name}: measured in one rack, not on {setting.placement}"
            )
        if setting.gpu_type not in self.gpu_types:
            raise UnmeasuredError(
                f"{self.name}: measured on T4, not on GPU type {setting.gpu_type!r}"
            )
        times = self._steps(setting.placement.replicas_per_node, atomic)
        if not setting.neighbours:
            return times
        kept = kept_speed(self.load, setting.neighbours)
        return times[0] / kept, times[1] / kept

    def max_atomic(self, setting: Setting) -> int | None:
        """Return the largest pass in samples: the largest measured one, multiplied by
        the share of the GPU's memory.
        """
        most = self.limits.max_atomic
        return (
            None
            if most is None
            else max(int(most * setting.gpu_share), self.limits.min_atomic)
        )

    def own_batch(self, epoch: int) -> int | None:  # noqa: ARG002  # the signature is that of Application
        """Return None: no script of the artifact changes its batch by itself."""
        return None


def recognises(lines: Sequence[str], profiles: Path | None) -> bool:  # noqa: ARG001  # the signature is that of Importer
    """Return whether a file with these first lines is a workload of this format."""
    return has_columns(lines)


def load(
    path: Path, profiles: Path | None, options: ReadOptions | None = None
) -> tuple[Workload, dict[str, MeasuredApplication]]:
    """Return the workload of `path`, and the applications that it uses from the
    directory `profiles`.

    Raises InputError for anything that the format does not allow, in either.
    """
    del options  # a trace of an artifact has no bad rows
    return read_jobs(path, applications_in(profiles), _spec)


def applications_in(
    profiles: Path | None,
) -> dict[str, Callable[[], MeasuredApplication]]:
    """Return how to read each application of the directory `profiles`, by name. Raises
    InputError if none.
    """
    folders = application_folders(profiles, "placements.csv")
    return {name: partial(_application, folder) for name, folder in folders.items()}


def _spec(row: Row, application: MeasuredApplication) -> JobSpec:
    spec = tuned_spec(row, application.limits)
    if application.name not in FIXED_TOTAL:
        return spec
    return JobSpec(
        name=spec.name,
        application=spec.application,
        batch=replace(spec.batch, requested=FIXED_TOTAL[application.name]),
        replicas=ReplicaLimits(),
        contract=RescaleContract.FIXED,
    )


@cache
def _application(directory: Path) -> MeasuredApplication:
    # All workloads of a process share these objects and the step times that they have
    # interpolated.
    return MeasuredApplication(directory)
