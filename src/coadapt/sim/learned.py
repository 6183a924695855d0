"""What a job has timed of its own steps, on each GPU type, and the model that it fits
to them.
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
NUM_FIRST_BATCHES = 10  # of a first look at a GPU type (Sia, SOSP'23)


@dataclass(frozen=True)
class TimedSteps:
    """The steps that a job has timed, the first of each kind; the model is fitted to
    them when asked for.
    """

    profile: ProfileBuilder = field(default_factory=ProfileBuilder)

    def knows(self, placement: Placement, atomic: int) -> bool:
        return ProfileKey.of(placement, atomic) in self.profile.rows

    def with_step(
        self, placement: Placement, atomic: int, compute_s: float, step_s: float
    ) -> "TimedSteps":
        """Return what is known after one more kind of step."""
        profile = ProfileBuilder(rows={**self.profile.rows})
        profile.add(placement, atomic, compute_s, step_s)
        return TimedSteps(profile)

    @cached_property
    def params(self) -> ThroughputParams:
        return fitted(tuple(self.profile.rows.items()))

    @cached_property
    def type_profile(self) -> TypeProfile:
        """What the job tells of itself on its GPU type."""
        return TypeProfile(
            params=self.params, num_replicas_profiled=self.profile.num_replicas_profiled
        )

    @cached_property
    def _told(self) -> dict[int, TypeProfile]:
        return {}

    def told(self, max_atomic: int | None) -> TypeProfile:
        """Return `type_profile` with the memory's ceiling; the same value in each
        report.
        """
        if max_atomic is None:
            return self.type_profile
        if max_atomic not in self._told:
            self._told[max_atomic] = replace(self.type_profile, max_atomic=max_atomic)
        return self._told[max_atomic]


UNTIMED = TimedSteps()


@dataclass(frozen=True, slots=True)
class Learned:
    """The steps that a job has timed, apart for each GPU type, and for each set of
    neighbours on its GPUs.

    Steps beside neighbours say little about a GPU of one's own: they never enter the
    same fit.
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
        """Return what is known after one more kind of step."""
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
        """Return what to tell of each GPU type: steps on GPUs of its own, else the
        first beside others.
        """
        told: dict[str, TimedSteps] = {}
        for (gpu_type, neighbours), steps in self.timed.items():
            if not neighbours:
                told[gpu_type] = steps
            else:
                told.setdefault(gpu_type, steps)
        return told


def first_look(application: Application, gpu_types: Iterable[str]) -> Learned:
    """Return what a job knows that was timed on one GPU of each type before it starts,
    at some batches each.

    Sia does so with each job that comes, in under 20 s per type (SOSP'23); that time is
    not counted here. A type on which one GPU was not measured is left out.
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
