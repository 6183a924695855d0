"""From parts of the time to rounds: which jobs run now, so that over time each has its
part (Gavel, §5).
"""

# A policy says which part of the time each job is to run on each GPU type. In each
# round, per type, those jobs go first that have had least of their part:
#
#   priority = part / time received on the type since the parts were decided
#
# ties by what they missed under the parts before (the deficit), then by the part. A job
# that does not fit is passed over. Counters begin at half a round, so that a job
# without any time is urgent, not infinitely so.
# When all jobs with a part had their turn, GPUs that are still free go to jobs that can
# use them.
#
# A turn of this mechanism lasts `round_s`, whatever the scheduler's own round is:
# within it those that run keep their GPUs, and only what is free is given. Were turns
# as short as a rescale takes, jobs would spend them on changing places: in rounds of 60
# s a job whose rescale takes 250 s and whose parts lie on two types never ended at all.

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from coadapt.model import ClusterView, JobId, JobView, Plan
from coadapt.policies.allocation.capacity import Capacity, gpu_type_held
from coadapt.policies.allocation.counted_plan import counted_plan
from coadapt.policies.allocation.queue import requested_gpus
from coadapt.policies.allocation.reasons import go_first, waits
from coadapt.policies.allocation.turns import GAVEL_ROUND_S, Turns

# Part of the time (0 to 1) per GPU type, per job; what is left out is 0.
Parts = Mapping[JobId, Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOptions:
    """round_s: how long those that run keep their GPUs before it is asked again whose
    turn it is; where the scheduler's round is longer, that. resolve_s: least time
    between two decisions on the parts.

    hold_back: GPUs that fall to a job that came after the parts were decided stay idle
    (the released code of Shockwave's comparison); without it, it may use what is free.
    """

    round_s: float = GAVEL_ROUND_S
    resolve_s: float = 0.0
    hold_back: bool = False

    def __post_init__(self) -> None:
        if not self.round_s > 0:
            raise ValueError(f"round_s must be > 0, got {self.round_s}")
        if not self.resolve_s >= 0:
            raise ValueError(f"resolve_s must be >= 0, got {self.resolve_s}")


@dataclass(slots=True)
class _Book:
    """One job. received_s, deficit_s: per GPU type. given: the type that the last plan
    gave it.
    """

    received_s: dict[str, float] = field(default_factory=dict)
    deficit_s: dict[str, float] = field(default_factory=dict)
    service_gpu_s: float = 0.0
    num_changes: int = 0
    given: str | None = None


@dataclass(frozen=True, slots=True)
class _Decided:
    """The parts in force, since when, and for which jobs and GPUs."""

    parts: Parts = field(default_factory=dict)
    at: float = 0.0
    due_for: tuple[object, ...] = ()


class TimeShareRounds:
    """The mechanism. Losing its state costs what jobs have missed so far, nothing
    else.
    """

    def __init__(self, options: RoundOptions | None = None) -> None:
        self._options = options or RoundOptions()
        self._books: dict[JobId, _Book] = {}
        self._decided = _Decided()
        self._turns = Turns(self._options.round_s)

    def plan(
        self,
        view: ClusterView,
        decide: Callable[[], Parts],
        types: Sequence[str],
        notes: Mapping[JobId, str] | None = None,
    ) -> Plan:
        """Return the round's plan. decide: called where new parts are due; types: GPU
        types, fastest first.

        notes: what to add to the reasons of jobs. New parts are due when a job came or
        went or GPUs did, and `resolve_s` passed since the last ones.
        """
        self._book_time(view)
        due_for = (tuple(job.id for job in view.jobs), tuple(view.nodes))
        last = self._decided
        # Instant 0 is taken for "never", as in the released code: it counts in
        # simulations only.
        if due_for != last.due_for and (
            last.at == 0.0 or view.at - last.at >= self._options.resolve_s
        ):
            self._settle(view.at - last.at)
            self._decided = _Decided(decide(), view.at, due_for)
        stay = [] if self._turns.begins(view.at) else self._stayers(view)
        capacity = Capacity(view)
        order = [*stay, *self._by_priority(view, types)]
        held_back: set[JobId] = set()
        for job, gpu_type in order:
            if job.id in capacity.counts or not capacity.give(
                job, requested_gpus(job), gpu_type
            ):
                continue
            if self._options.hold_back and job.id not in self._decided.parts:
                held_back.add(job.id)
        reasons = self._notes(view, capacity, [job for job, _ in order], held_back)
        for job_id in held_back:
            del capacity.counts[job_id]
        for job_id, note in (notes or {}).items():
            reasons[job_id] = f"{reasons[job_id]}; {note}"
        for job in view.jobs:
            self._books[job.id].given = (
                capacity.gpu_types.get(job.id) if job.id in capacity.counts else None
            )
        return counted_plan(view, capacity, reasons)

    def _book_time(self, view: ClusterView) -> None:
        """Add to each job's account the time that it trained since the last round, its
        starts left out.
        """
        for gone in set(self._books) - {job.id for job in view.jobs}:
            del self._books[gone]
        nodes = {node.id: node for node in view.nodes}
        for job in view.jobs:
            usage = job.usage
            service_gpu_s = view.service_gpu_s(job)
            num_changes = max(usage.num_starts, usage.num_rescales)
            book = self._books.get(job.id)
            if book is None:
                book = self._books[job.id] = _Book(given=gpu_type_held(job, nodes))
            elif book.given is not None:
                held_s = (service_gpu_s - book.service_gpu_s) / requested_gpus(job)
                trained_s = held_s - job.rescale_s * (num_changes - book.num_changes)
                book.received_s[book.given] = book.received_s.get(
                    book.given, 0.0
                ) + max(trained_s, 0.0)
            book.service_gpu_s = service_gpu_s
            book.num_changes = num_changes

    def _settle(self, elapsed_s: float) -> None:
        """Close the accounts under the parts so far: what each job missed is kept as
        its deficit.
        """
        for job_id, book in self._books.items():
            parts = self._decided.parts.get(job_id, {})
            for gpu_type in sorted({*parts, *book.received_s}):
                missed_s = parts.get(gpu_type, 0.0) * elapsed_s - book.received_s.get(
                    gpu_type, 0.0
                )
                book.deficit_s[gpu_type] = book.deficit_s.get(gpu_type, 0.0) + missed_s
            book.received_s = {}

    def _stayers(self, view: ClusterView) -> list[tuple[JobView, str]]:
        """Return those whom the last plan gave GPUs, with their types."""
        given = [(job, self._books[job.id].given) for job in view.jobs]
        return [(job, gpu_type) for job, gpu_type in given if gpu_type is not None]

    def _by_priority(
        self, view: ClusterView, types: Sequence[str]
    ) -> Iterator[tuple[JobView, str]]:
        """Yield whose turn it is on which type: all that have a part first, then the
        rest.
        """
        parts = self._decided.parts
        for planned in (True, False):
            for gpu_type in types:
                ranked = []
                for job in view.jobs:
                    part = parts.get(job.id, {}).get(gpu_type, 0.0)
                    if planned is (part > 0.0):
                        book = self._books[job.id]
                        received_s = self._options.round_s / 2.0 + book.received_s.get(
                            gpu_type, 0.0
                        )
                        key = (
                            -part / received_s,
                            -book.deficit_s.get(gpu_type, 0.0),
                            -part,
                        )
                        ranked.append((key, job))
                for _, job in sorted(ranked, key=lambda each: each[0]):
                    yield job, gpu_type

    def _notes(
        self,
        view: ClusterView,
        capacity: Capacity,
        order: Sequence[JobView],
        held_back: set[JobId],
    ) -> dict[JobId, str]:
        notes: dict[JobId, str] = {}
        ahead = len({job.id for job in order if job.id in capacity.counts})
        for job in view.jobs:
            if job.id in held_back:
                notes[job.id] = (
                    "its part of the time is not decided yet, and its GPUs stay idle "
                    "until then"
                )
                continue
            part = self._part(job)
            if job.id in capacity.counts:
                notes[job.id] = part
                continue
            count = requested_gpus(job)
            reason = waits(job, count, capacity, go_first(ahead, "behind their part"))
            notes[job.id] = f"{reason}; {part}" if reason else part
        return notes

    def _part(self, job: JobView) -> str:
        if job.id not in self._decided.parts:
            return "its part of the time is not decided yet"
        parts = [
            (name, part)
            for name, part in sorted(self._decided.parts[job.id].items())
            if part > 5e-4
        ]
        if not parts:
            return "it is to have none of the time now, only what is idle"
        by_type = " and ".join(f"{part:.0%} on {name}" for name, part in parts)
        return f"its part of the time: {by_type}"
