"""What a job's declared length says where its own reports say nothing yet."""

# A forecast needs a length and a speed. A job's reports tell both, once its steps were
# timed and its end is known; a loop that knows no end of its own never tells the
# length. The declared length is used then, with a speed, the first of these that there
# is:
#
#   1. the step-time model that the job reported, on as many replicas as it can use;
#   2. the step time that it reported last, on what it holds, and in proportion on other
#      counts;
#   3. a second per step on the GPUs that it requested, and in proportion on other
#      counts.
#
# Under 2 and 3 the forecast ends at the count that the job holds or requested: no
# policy gives more GPUs because of a speed that was not measured. Declared `epochs` say
# nothing before the first report, and a job that reports the samples of an epoch also
# reports its end.
#
# The word may be wrong. A job that has trained on more than HONEST_TIMES of it is one
# of unknown length again, so no job goes first for ever by declaring little.

from coadapt.goodput.batch import limits_in_use
from coadapt.goodput.forecast import packed_step_times
from coadapt.model import Forecast, JobView
from coadapt.policies.allocation.capacity import useful_span
from coadapt.policies.allocation.queue import requested_gpus

HONEST_TIMES = 1.1  # of what was declared; up to there a job is about to end
STEP_S = 1.0  # of a job that nothing was timed of
COUNTS_MAX = 1024  # replicas that a forecast of ours goes up to


def forecast_of(job: JobView) -> Forecast | None:
    """Return the forecast of `job`: its own, else one by its declared length; None if
    it has neither.
    """
    if job.measured.forecast is not None:
        return job.measured.forecast
    left = declared_steps_left(job)
    return (
        None
        if left is None
        else Forecast(remaining_steps=left, step_time_s=_step_times(job))
    )


def declared_samples(job: JobView) -> float | None:
    """Return how many samples `job` is to train on by its user's word; None where it
    says nothing.
    """
    length = job.spec.length
    batch = job.spec.batch
    if length is None or length.epochs is not None:
        return None
    if length.samples is not None:
        return length.samples
    steps = length.steps or 0.0
    return (
        steps * batch.requested
        if batch.schedule is None
        else batch.schedule.samples_after(steps)
    )


def declared_steps_left(job: JobView) -> float | None:
    """Return the steps left by the user's word, at the batch in force, at least one.

    None where nothing was declared, and for a job that was to have ended long ago.
    """
    whole = declared_samples(job)
    done = job.measured.samples
    if whole is None or done > HONEST_TIMES * whole:
        return None
    return max((whole - done) / limits_in_use(job).requested, 1.0)


def _step_times(job: JobView) -> tuple[float, ...]:
    profiles = job.measured.by_type
    held = job.allocation
    if profiles:
        name = max(
            sorted(profiles), key=lambda each: profiles[each].num_replicas_profiled
        )
        most = min(useful_span(job)[1], COUNTS_MAX)
        # As the trainer does: what stands on one node is taken to fit on one.
        per_node = (
            most if held.num_nodes <= 1 else max(count for _, count in held.slots)
        )
        return packed_step_times(
            profiles[name].params, limits_in_use(job, name), most, per_node
        )
    timed_s = job.measured.step_time_s
    count = requested_gpus(job)
    alone_s = timed_s * held.num_replicas if timed_s and held else STEP_S * count
    most = min(max(held.num_replicas, count), COUNTS_MAX)
    return tuple(alone_s / each for each in range(1, most + 1))
