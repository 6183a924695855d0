"""The step times that a simulated job has measured on each GPU type, and the model that
it fits to them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from coadapt.goodput.profile import ProfileBuilder, ProfileKey
from coadapt.model import Placement, ThroughputParams, TypeProfile
from coadapt.sim.applications import Application, Neighbour, Setting, UnmeasuredError
from coadapt.sim.fit_cache import fitted

ONE_GPU = Placement((1,))
NUM_FIRST_BATCHES = 10  # batches timed before a job starts (Sia, SOSP'23)


@dataclass(frozen=True)
class TimedSteps:
    """The steps that a job has timed, the first of each kind. The model is fitted when
    it is first needed.
    """

    profile: ProfileBuilder = field(default_factory=ProfileBuilder)

    def knows(self, placement: Placement, atomic: int) -> bool:
        return ProfileKey.of(placement, atomic) in self.profile.rows

    def with_step(
        self, placement: Placement, atomic: int, compute_s: float, step_s: float
    ) -> "TimedSteps":
        """Return the measurements with one more kind of step."""
        profile = ProfileBuilder(rows={**self.profile.rows})
        profile.add(placement, atomic, compute_s, step_s)
        return TimedSteps(profile)

    @cached_property
    def params(self) -> ThroughputParams:
        return fitted(tuple(self.profile.rows.items()))

    @cached_property
    def type_profile(self) -> TypeProfile:
        """The job's profile of this GPU type."""
        return TypeProfile(
            params=self.params, num_replicas_profiled=self.profile.num_replicas_profiled
        )

    @cached_property
    def _profiles(self) -> dict[int, TypeProfile]:
        return {}

    def profile_within(self, max_atomic: int | None) -> TypeProfile:
        """Return `type_profile` with the largest pass that fits into memory. Each call
        returns the same object.
        """
        if max_atomic is None:
            return self.type_profile
        if max_atomic not in self._profiles:
            self._profiles[max_atomic] = replace(
                self.type_profile, max_atomic=max_atomic
            )
        return self._profiles[max_atomic]


UNTIMED = TimedSteps()


@dataclass(frozen=True, slots=True)
class Learned:
    """The steps that a job has timed, by GPU type and by the neighbours on its GPUs.

    Steps beside neighbours say little about steps alone, so both are never fitted
    together.
    """

    timed: Mapping[tuple[str, tuple[Neighbour, ...]], TimedSteps] = field(
        default_factory=dict
    )

    def on(self, setting: Setting) -> TimedSteps:
        """Return the steps timed on the GPU type and beside the neighbours of
        `setting`.
        """
        return self.timed.get((setting.gpu_type, setting.neighbours), UNTIMED)

    def with_step(
        self, setting: Setting, atomic: int, compute_s: float, step_s: float
    ) -> "Learned":
        """Return the measurements with one more kind of step."""
        key = (setting.gpu_type, setting.neighbours)
        return Learned(
            {
                **self.timed,
                key: self.on(setting).with_step(
                    setting.placement, atomic, compute_s, step_s
                ),
            }
        )

    def by_type(self) -> dict[str, TimedSteps]:
        """Return the steps to report for each GPU type: those without neighbours, else
        the first ones.
        """
        reported: dict[str, TimedSteps] = {}
        for (gpu_type, neighbours), steps in self.timed.items():
            if not neighbours:
                reported[gpu_type] = steps
            else:
                reported.setdefault(gpu_type, steps)
        return reported


def first_look(application: Application, gpu_types: Iterable[str]) -> Learned:
    """Return step times of some batches on one GPU of each type, measured before the
    job starts.

    Sia measures each new job in this way, in under 20 s per type (SOSP'23). That time
    is not counted here. Types without a measurement of one GPU are left out.
    """
    timed: dict[tuple[str, tuple[Neighbour, ...]], TimedSteps] = {}
    limits = application.limits
    for gpu_type in gpu_types:
        setting = Setting(ONE_GPU, gpu_type)
        profile = ProfileBuilder()
        try:
            most = application.max_atomic(setting) or limits.max_total
            for size in np.geomspace(limits.min_atomic, most, NUM_FIRST_BATCHES):
                whole_s, sync_s = application.step_time(setting, int(size))
                profile.add(setting.placement, int(size), whole_s - sync_s, whole_s)
        except UnmeasuredError:
            continue
        timed[gpu_type, ()] = TimedSteps(profile)
    return Learned(timed)
