"""What Shockwave knows and predicts of each job: the modes of its epochs so far, and
its run time left.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from coadapt.model import BatchMode, ClusterView, JobId, JobView
from coadapt.policies.predictors.dirichlet import Phase, Rule, epochs_left

# Profiled and measured samples may differ by this share before epochs are rescaled
# (released code).
CALIBRATION_MIN = 0.4
# A job without modes is taken as so many epochs, all alike.
EPOCHS_UNKNOWN = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """Predictions of one job, in seconds of running. share: its progress. whole_s: at
    its mean pace so far.

    elapsed_s: of its finished epochs, by their profile. admitted_at: the round that saw
    it first.
    """

    share: float
    whole_s: float
    left_s: float
    elapsed_s: float
    admitted_at: float


@dataclass(slots=True)
class _Record:
    """One job's past. rates: (round, samples per second) at each round's end in which
    it ran.

    profile: the phases of all its epochs, if they are known in advance.
    """

    admitted_at: float
    profile: list[Phase] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    current: int = 0
    done: int = 0
    rates: list[tuple[int, float]] = field(default_factory=list)
    factor: float = 1.0


class Ledger:
    """Follows the epochs of all jobs from round to round, and predicts from them.

    A job that is first seen in the middle (the scheduler was restarted) counts as
    having trained in its present mode so far: predictions are coarser then, nothing
    else.

    profiles: the total batch of each epoch, of jobs of which this is believed and not
    what they do.
    """

    def __init__(
        self,
        *,
        rule: Rule,
        calibrate: bool,
        whole_seconds: bool,
        round_s: float,
        profiles: Mapping[JobId, Sequence[int]] | None = None,
    ) -> None:
        self._rule = rule
        self._calibrate = calibrate
        self._whole_seconds = whole_seconds
        self._round_s = round_s
        self._profiles = profiles or {}
        self._records: dict[JobId, _Record] = {}

    def observe(self, view: ClusterView, now: int) -> None:
        """Note what each job has done since the last round, and forget those that are
        gone.
        """
        present = {job.id for job in view.jobs}
        for gone in set(self._records) - present:
            del self._records[gone]
        for job in view.jobs:
            known = job.id in self._records
            record = self._records.setdefault(
                job.id, _Record(admitted_at=now * self._round_s)
            )
            modes = _modes(job)
            if not modes:
                continue
            current = _mode_of(job, modes)
            done = int(_share(job) * _num_epochs(job) + 1e-9)
            if job.id in self._profiles:
                # Whatever the job does: so the released code takes what it has seen for
                # observed.
                record.profile = record.profile or _phases(
                    self._profiles[job.id], modes
                )
                record.phases, current = _seen(record.profile, done)
                record.done = done
            elif done > record.done:
                # The epochs since the last round are taken to be of the mode that was
                # seen then.
                mode = record.current if known else current
                record.phases = _extended(
                    record.phases, Phase(mode, done - record.done)
                )
                record.done = done
            record.current = current
            measured = job.measured
            if job.allocation and measured.step_time_s and measured.batch is not None:
                record.rates.append((now, measured.batch.total / measured.step_time_s))

    def ahead(self, job: JobView, looks: int = 1) -> Ahead | None:
        """Return the predictions for `job`; None where neither modes nor a forecast are
        known.

        looks: how often its epochs are compared with what was measured, as the outcome
        depends on it.
        """
        forecast = job.measured.forecast
        if forecast is None:
            return None
        record = self._records[job.id]
        modes = _modes(job)
        share = _share(job)
        if not modes:
            left_s = max(forecast.remaining_s(job.spec.replicas.requested), 1.0)
            elapsed_s = left_s * share / max(1.0 - share, 1.0 / EPOCHS_UNKNOWN)
            return Ahead(
                share=share,
                whole_s=left_s + elapsed_s,
                left_s=left_s,
                elapsed_s=elapsed_s,
                admitted_at=record.admitted_at,
            )
        num_epochs = _num_epochs(job)
        rest = epochs_left(
            num_epochs, len(modes), record.phases, record.current, self._rule
        )
        for _ in range(looks if self._calibrate and record.rates else 0):
            self._rescale_epochs(job, record, rest)
        epoch_s = [self._profiled_s(mode) * record.factor for mode in modes]
        left_s = sum(epochs * each for epochs, each in zip(rest, epoch_s, strict=True))
        elapsed_s = sum(
            phase.num_epochs * epoch_s[phase.mode] for phase in record.phases
        )
        # The mean epoch so far, the present one counted (released code).
        mean_s = (elapsed_s + epoch_s[record.current]) / (record.done + 1)
        return Ahead(
            share=min(record.done / num_epochs, 1.0),
            whole_s=num_epochs * mean_s,
            left_s=max(left_s, self._least_s(record.done, num_epochs)),
            elapsed_s=elapsed_s,
            admitted_at=record.admitted_at,
        )

    def _least_s(self, done: int, num_epochs: int) -> float:
        # The last epoch of a job of one mode takes no time in this count (released
        # code).
        return 0.0 if self._rule is Rule.COUNTS and done < num_epochs else 1.0

    def _profiled_s(self, mode: BatchMode) -> float:
        return max(round(mode.epoch_s), 1.0) if self._whole_seconds else mode.epoch_s

    def _rescale_epochs(self, job: JobView, record: _Record, rest: list[float]) -> None:
        """Compare the samples measured so far with those of the profile, and scale its
        epochs by that.

        As the released code does: rounds are counted from instant 0 for every job,
        whenever it came, each rate holds back to the one before, and the profile runs
        through where the job waited. A factor stays until another one is far enough
        from the profile.
        """
        before = 0
        measured = 0.0
        for at, rate in record.rates:
            measured += rate * self._round_s * (at - before)
            before = at
        profiled = self._profiled_samples(job, record, rest, self._round_s * before)
        if (
            min(measured, profiled) > 0.0
            and abs(measured - profiled) > CALIBRATION_MIN * profiled
        ):
            record.factor = profiled / measured

    def _profiled_samples(
        self, job: JobView, record: _Record, rest: list[float], seconds: float
    ) -> float:
        """Return the samples that the profile has after `seconds`, its last epoch going
        on for ever.

        The epoch that `seconds` end in is taken at its present, rescaled pace, the ones
        before as profiled.
        """
        modes = _modes(job)
        known = record.profile or record.phases
        to_come = [] if record.profile else [*enumerate(rest)]
        epochs = 0.0
        left_s = seconds
        epoch_s = self._profiled_s(modes[record.current])
        for mode, num_epochs in [
            *((phase.mode, phase.num_epochs) for phase in known),
            *to_come,
        ]:
            epoch_s = self._profiled_s(modes[mode])
            run = min(num_epochs, left_s // epoch_s)
            epochs += run
            left_s -= run * epoch_s
            if run < num_epochs:
                break
        epochs += left_s / (epoch_s * record.factor)
        target = job.measured.progress_target or 0.0
        return epochs * target / _num_epochs(job)


def _extended(phases: list[Phase], phase: Phase) -> list[Phase]:
    if phases and phases[-1].mode == phase.mode:
        return [
            *phases[:-1],
            Phase(phase.mode, phases[-1].num_epochs + phase.num_epochs),
        ]
    return [*phases, phase]


def _phases(batches: Sequence[int], modes: Sequence[BatchMode]) -> list[Phase]:
    """Return the phases of epochs with these total batches."""
    nearest = (_nearest(total, modes) for total in batches)
    return [Phase(mode, len(list(epochs))) for mode, epochs in groupby(nearest)]


def _seen(profile: Sequence[Phase], done: int) -> tuple[list[Phase], int]:
    """Return the phases of the first `done` epochs, and the mode of the next, else the
    last, one.
    """
    phases: list[Phase] = []
    for phase in profile:
        if done < phase.num_epochs:
            return [*phases, Phase(phase.mode, done)] if done else phases, phase.mode
        phases.append(phase)
        done -= phase.num_epochs
    return phases, profile[-1].mode


def _modes(job: JobView) -> tuple[BatchMode, ...]:
    forecast = job.measured.forecast
    return forecast.modes if forecast is not None else ()


def _num_epochs(job: JobView) -> int:
    forecast = job.measured.forecast
    return forecast.num_epochs if forecast is not None else EPOCHS_UNKNOWN


def _mode_of(job: JobView, modes: tuple[BatchMode, ...]) -> int:
    """Return the mode of the batch in use, the nearest one if it is none of them."""
    total = (
        job.measured.batch.total
        if job.measured.batch is not None
        else job.spec.batch.requested
    )
    return _nearest(total, modes)


def _nearest(total: int, modes: Sequence[BatchMode]) -> int:
    return min(range(len(modes)), key=lambda mode: abs(modes[mode].total - total))


def _share(job: JobView) -> float:
    target = job.measured.progress_target
    return min(job.measured.progress / target, 1.0) if target else 0.0
