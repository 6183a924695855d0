"""The traces of the Sia artifact (SOSP'23): workload files, and profiles of seven
models on six GPU types.

Format and semantics: siasosp23/artifacts, directory sia-simulator. Files and workloads
are those of the Pollux artifact, with a placements-TYPE.csv and a scalability-TYPE.csv
for each GPU type.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from coadapt.model import BatchLimits, InputError
from coadapt.sim.applications import Setting, UnmeasuredError
from coadapt.sim.colocation import kept_speed
from coadapt.sim.traces.measured import StepTimes, Times, Validation
from coadapt.sim.traces.tally import ReadOptions
from coadapt.sim.traces.tuned_jobs import (
    application_folders,
    has_columns,
    read_jobs,
    tuned_spec,
)
from coadapt.sim.workload import Workload

PROFILE = "placements-*.csv"

# Nodes of the largest measured cluster, by GPU type. Step times on more nodes are those
# on this number.
NUM_NODES_MAX = {"azure": 5, "aws": 16, "dgx": 2, "dgx-ext": 2, "quad": 1, "rtx": 3}
# The artifact's own exception: profiled up to 80 samples per GPU, of which 57 are used.
MAX_ATOMIC = {("deepspeech2", "rtx"): 57}
# Seconds that a start or a rescale costs, and the factor by which training is slower
# than its steps.
RESCALE_S = {
    "cifar10": 50.0,
    "deepspeech2": 25.0,
    "bert": 120.0,
    "yolov3": 80.0,
    "imagenet": 250.0,
    "ncf": 15.0,
}
STRETCH = {"cifar10": 1.8, "ncf": 1.5}
STRETCH_DEFAULT = 1.2
# This model scales in pipelines of several GPUs, which no job here does.
HYBRID_PARALLEL = "gpt_pmp"


class TypedApplication(Validation):
    """One model of the artifact, as measured; see sim.applications.Application for the
    methods.
    """

    load = 1.0  # not measured: the most careful guess

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._directory = directory
        self._stretch = STRETCH.get(self.name, STRETCH_DEFAULT)
        self._steps: dict[str, StepTimes] = {}
        names = sorted(path.stem.partition("-")[2] for path in directory.glob(PROFILE))
        unknown = [name for name in names if name not in NUM_NODES_MAX]
        if unknown:
            allowed = f"{PROFILE} of the types {', '.join(NUM_NODES_MAX)}"
            raise InputError(f"{directory}", f"placements-{unknown[0]}.csv", allowed)
        self.gpu_types = tuple(names)
        ranges = [self._on(name).atomic_range for name in names]
        self.limits = BatchLimits(
            initial=self.totals[0],
            max_total=self.totals[-1],
            min_atomic=min(low for low, _ in ranges),
            max_atomic=max(high for _, high in ranges),
        )

    def step_time(self, setting: Setting, atomic: int) -> Times:
        """Return the measured times, multiplied by the artifact's factor. The slowdown
        by neighbours is our own model.
        """
        if setting.placement.num_racks > 1:
            raise UnmeasuredError(
                f"{self.name}: measured in one rack, not on {setting.placement}"
            )
        step_s, sync_s = self._on(setting.gpu_type)(
            setting.placement.replicas_per_node, atomic
        )
        factor = self._stretch
        if setting.neighbours:
            factor /= kept_speed(self.load, setting.neighbours)
        return step_s * factor, sync_s * factor

    def max_atomic(self, setting: Setting) -> int | None:
        """Return the largest pass, in samples, that was measured in this setting,
        multiplied by the share of the GPU's memory.

        On many GPUs the artifact measured passes only up to the largest total batch,
        with gaps below it. Steps of more passes fill these gaps.
        """
        largest = self._on(setting.gpu_type).most_on(
            setting.placement.replicas_per_node
        )
        most = min(MAX_ATOMIC.get((self.name, setting.gpu_type), largest), largest)
        return max(int(most * setting.gpu_share), self.limits.min_atomic)

    def own_batch(self, epoch: int) -> int | None:  # noqa: ARG002  # the signature is that of Application
        """Return None: no script of the artifact changes its batch by itself."""
        return None

    def _on(self, gpu_type: str) -> StepTimes:
        steps = self._steps.get(gpu_type)
        if steps is None:
            if gpu_type not in self.gpu_types:
                measured = ", ".join(self.gpu_types)
                raise UnmeasuredError(
                    f"{self.name}: measured on {measured}, not on GPU type {gpu_type!r}"
                )
            files = [
                self._directory / f"{kind}-{gpu_type}.csv"
                for kind in ("placements", "scalability")
            ]
            steps = StepTimes(
                f"{self.name} on {gpu_type}",
                files[0],
                files[1],
                NUM_NODES_MAX[gpu_type],
            )
            self._steps[gpu_type] = steps
        return steps


def recognises(lines: Sequence[str], profiles: Path | None) -> bool:
    """Return whether a file with these first lines, beside these profiles, is a
    workload of this format.
    """
    return (
        has_columns(lines)
        and profiles is not None
        and any(profiles.glob(f"*/{PROFILE}"))
    )


def load(
    path: Path, profiles: Path | None, options: ReadOptions | None = None
) -> tuple[Workload, dict[str, TypedApplication]]:
    """Return the workload of `path`, and the applications that it uses from the
    directory `profiles`.

    Raises InputError for anything that the format does not allow, in either.
    """
    del options  # a trace of an artifact has no bad rows
    workload, applications = read_jobs(
        path,
        applications_in(profiles),
        lambda row, application: tuned_spec(row, application.limits),
    )
    jobs = tuple(
        replace(job, rescale_s=RESCALE_S.get(job.application)) for job in workload.jobs
    )
    return replace(workload, jobs=jobs), applications


def applications_in(profiles: Path | None) -> dict[str, Callable[[], TypedApplication]]:
    """Return how to read each application of the directory `profiles`, by name. Raises
    InputError if none.
    """
    folders = application_folders(profiles, PROFILE)
    return {
        name: partial(_application, path)
        for name, path in folders.items()
        if name != HYBRID_PARALLEL
    }


@cache
def _application(directory: Path) -> TypedApplication:
    # All workloads of a process share these objects and the step times that they have
    # interpolated.
    return TypedApplication(directory)
