"""The orders of all jobs and their running generations: when each order is carried out,
and how it is answered.

Only one thread uses it. All answers are based on files, so a new OrderBook continues
where the previous one ended.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress

from coadapt.core.commands import JobCommand, Rescale, RetractRescale, Start, Stop
from coadapt.core.events import (
    Outcome,
    ReplicasExited,
    ReplicasKept,
    ReplicasStarted,
    SetupStarted,
    TrainerSeen,
)
from coadapt.executors.node_health import GenerationEnd, NodeHealth
from coadapt.executors.processes.cluster import Cluster
from coadapt.executors.processes.elsewhere import why_unseen
from coadapt.executors.processes.launching import Launching
from coadapt.executors.processes.live_generation import LiveGeneration, adopt
from coadapt.executors.processes.rank_map import RankMap, map_ranks, ordered_rank_map
from coadapt.executors.processes.records.generation_dir import (
    RECORDS,
    ExitRecord,
    GenerationDir,
    JobDir,
)
from coadapt.executors.processes.records.own_files import names_in
from coadapt.executors.processes.records.taking_over import (
    end_unbooked,
    take_over_layout,
)
from coadapt.executors.processes.slots import FreeSlots, union
from coadapt.model import JobId, NodeId
from coadapt.runtime.ports import Post

# How often each job's notes on invisible replicas are read: 10 us for a job without
# any.
LOOK_S = 2.0
NEVER_STARTED = "stopped before it was started"

logger = logging.getLogger(__name__)


class OrderBook:
    """At most one generation of each job runs. At most one order of each job waits, for
    slots or for the running generation to end.
    """

    def __init__(
        self,
        cluster: Cluster,
        launching: Launching,
        now: Callable[[], float],
        health: NodeHealth,
    ) -> None:
        """Adopt running generations. now: the clock for the times of events. health:
        gets the end of each generation.
        """
        self._cluster = cluster
        self._health = health
        self._launching = launching
        self._now = now
        self._running: dict[JobId, LiveGeneration] = {}
        self._waiting: dict[JobId, tuple[JobCommand, Post]] = {}
        self._newest: dict[JobId, int] = {}
        self._room = True
        self._unseen: dict[JobId, str] = {}
        self._looks_at = 0.0
        self._ended: dict[JobId, tuple[int, ExitRecord]] = {}
        self._troubled: set[JobId] = set()
        state_dir = launching.host.state_dir
        take_over_layout(state_dir)
        for name in names_in(state_dir / RECORDS):
            self._adopt(JobDir.of(state_dir, name))
        end_unbooked(state_dir, self._running)

    def _adopt(self, job: JobDir) -> None:
        """Adopt the generation of a job that an earlier executor left. A job whose
        records cannot be read is skipped.
        """
        name = job.path.name
        try:
            for directory in job.generations()[-1:]:
                self._newest[name] = directory.number
            running = adopt(job)
        except (OSError, ValueError) as error:
            logger.warning("the records of job %s cannot be read: %s", name, error)
            return
        if running is not None:
            self._running[name] = running

    def close(self) -> None:
        """End what serves this executor only. Jobs live on."""
        self._launching.forks.close()

    def running(self) -> list[tuple[JobId, int]]:
        """Return (job, generation) of each generation that is alive or whose end is not
        settled.
        """
        return [
            (job, running.directory.number)
            for job, running in sorted(self._running.items())
        ]

    def holds(self, node: NodeId) -> bool:
        """Return whether a job that runs holds slots of `node`."""
        return any(running.held.get(node) for running in self._running.values())

    def take(self, order: JobCommand, post: Post) -> None:
        """Accept an order. A repeated order is answered with the present state. A new
        one is added to the waiting orders.
        """
        if order.generation < self._newest.get(order.job, 0):
            return
        self._newest[order.job] = order.generation
        running = self._running.get(order.job)
        if running is not None and running.directory.number == order.generation:
            _repeat(order, running, post)
        elif (record := self._record_of(order)) is not None:
            self._post_exit(order.job, order.generation, record, post)
        else:
            if running is not None and not _spares(order, running):
                running.request_stop()
            waiting, _ = self._waiting.get(order.job, (order, post))
            stands = waiting.generation == order.generation and _stands(
                waiting, order, running
            )
            self._waiting[order.job] = (waiting if stands else order, post)

    def attempt(self) -> None:
        """Carry out the waiting orders, as far as that is possible now."""
        for job, (order, post) in sorted(self._waiting.items()):
            try:
                done = self._carried_out(order, self._running.get(job), post)
            except OSError as error:
                self._note_trouble(job, error)
                continue
            self._troubled.discard(job)
            if done:
                del self._waiting[job]

    def watch(self) -> None:
        """Report the generations that have started, were kept, have ended or became
        invisible since the last call.
        """
        looks = time.monotonic() >= self._looks_at
        if looks:
            self._looks_at = time.monotonic() + LOOK_S
        for job, running in sorted(self._running.items()):
            try:
                self._watch_one(job, running, looks=looks)
            except OSError as error:
                self._note_trouble(job, error)

    def _watch_one(self, job: JobId, running: LiveGeneration, *, looks: bool) -> None:
        # The end is read first: a replica that ended between two calls had started
        # before, which is reported too.
        record = running.exit_record(self._launching.start)
        running.look()
        if running.started:
            self._note_life(job, running)
        if running.post is not None:
            self._tell_setup(job, running, running.post)
        if running.post is not None and running.started and not running.announced:
            running.announced = True
            running.post(self._start_of(job, running))
        if looks and running.post is not None and running.announced:
            self._tell_unseen(job, running, running.post)
            self._tell_trainer(job, running, running.post)
        if record is not None:
            self._settle(job, running, record)

    def _note_trouble(self, job: JobId, error: OSError) -> None:
        """Log once why a job's records cannot be read or written. This is tried
        again.
        """
        if job not in self._troubled:
            self._troubled.add(job)
            logger.warning("job %s waits: %s", job, error)

    # -- orders
    # ----------------------------------------------------------------------------------

    def _carried_out(
        self, order: JobCommand, running: LiveGeneration | None, post: Post
    ) -> bool:
        match order:
            case Stop():
                if running is None:
                    record = ExitRecord(outcome=Outcome.STOPPED, detail=NEVER_STARTED)
                    self._end_unstarted(order, record, post)
                return running is None
            case RetractRescale():
                return self._kept(order, running, post)
            case Start() | Rescale():
                return self._placed(order, running, post)

    def _placed(
        self, order: Start | Rescale, running: LiveGeneration | None, post: Post
    ) -> bool:
        """Start the generation once slots are free and the previous one is gone, or
        rescale in place if the running replicas can. Return whether that was done.
        """
        follows = isinstance(order, Rescale) and running is not None and running.started
        if running is not None and not (follows and running.changes_in_place()):
            return False
        present = None if running is None else running.rank_map
        rank_map = map_ranks(
            order.generation, order.allocation, self._free_slots(order.job), present
        )
        if rank_map is None or not self._has_room():
            return False
        if running is None:
            self._start(order, rank_map, post)
        else:
            # The running launcher takes over the order, and carries it out even if this
            # executor ends.
            self._follow(
                running, self._launching.write_order(order, rank_map), rank_map, post
            )
        return True

    def _has_room(self) -> bool:
        """Return whether the disk has room for one more job. Each change is logged
        once.
        """
        room = self._launching.room()
        if room != self._room:
            self._room = room
            where = self._launching.host.state_dir
            reserve = self._launching.settings.disk_reserve_bytes >> 20
            if room:
                logger.info("%s has free space again: waiting jobs are started", where)
            else:
                logger.warning(
                    "no job is started while %s has less than %d MiB free",
                    where,
                    reserve,
                )
        return room

    def _kept(
        self, order: RetractRescale, running: LiveGeneration | None, post: Post
    ) -> bool:
        """Take back a rescale that has not begun. The running replicas continue under
        the new generation's number; if there are none, report how they ended.
        """
        directory = self._directory(order)
        if running is None:
            records = [each.exit_record() for each in directory.job.generations()]
            last = next(
                (record for record in reversed(records) if record is not None), None
            )
            nothing = ExitRecord(outcome=Outcome.LOST, detail="nothing of it runs")
            self._end_unstarted(order, last or nothing, post)
        elif running.started and not running.is_to_stop:
            directory.make_records()
            directory.write_kept("")
            self._follow(running, directory, running.rank_map, post)
        else:
            return False
        return True

    def _start(self, order: Start | Rescale, rank_map: RankMap, post: Post) -> None:
        try:
            directory = self._launching.write_order(order, rank_map)
            process = self._launching.start_first(directory)
        except ValueError as error:
            record = ExitRecord(outcome=Outcome.FAILED, detail=str(error))
        except OSError as error:
            # Too many processes, or no memory: this is not the script's fault.
            record = ExitRecord(
                outcome=Outcome.LOST, detail=f"could not be started: {error}"
            )
        else:
            self._running[order.job] = LiveGeneration(
                directory=directory,
                rank_map=rank_map,
                held=rank_map.slots,
                process=process,
                post=post,
            )
            directory.job.prune()
            return
        self._end_unstarted(order, record, post)

    def _follow(
        self,
        running: LiveGeneration,
        directory: GenerationDir,
        rank_map: RankMap,
        post: Post,
    ) -> None:
        """Let a generation follow `running` in place. Until it has started, the job
        holds the slots of both.
        """
        running.lead.write_successor(directory.number)
        self._running[directory.job.path.name] = LiveGeneration(
            directory=directory,
            rank_map=rank_map,
            former=running.rank_map,
            held=union(running.held, rank_map.slots),
            process=running.process,
            post=post,
        )
        directory.job.prune()

    def _end_unstarted(self, order: JobCommand, record: ExitRecord, post: Post) -> None:
        directory = self._directory(order)
        self._ended[order.job] = (order.generation, record)
        try:
            directory.make_records()
            directory.write_exit_record(record)
        except OSError as error:  # the scheduler's journal has it, too
            logger.warning("the end of job %s cannot be recorded: %s", order.job, error)
        self._post_exit(order.job, order.generation, record, post)

    def _record_of(self, order: JobCommand) -> ExitRecord | None:
        """Return how the generation of an order ended, None if it has not."""
        number, record = self._ended.get(order.job, (0, None))
        if number == order.generation:
            return record
        return self._directory(order).exit_record()

    def _free_slots(self, job: JobId) -> FreeSlots:
        """Return the slots that `job` may take besides those that it holds."""
        others = [
            running.held for other, running in self._running.items() if other != job
        ]
        own = self._running.get(job)
        return FreeSlots(self._cluster.nodes, others, None if own is None else own.held)

    # -- answers
    # ----------------------------------------------------------------------------------

    def _start_of(
        self, job: JobId, running: LiveGeneration
    ) -> ReplicasStarted | ReplicasKept:
        at = self._now()
        number = running.directory.number
        if running.kept is None:
            return ReplicasStarted(
                at=at, job=job, generation=number, unseen=self._unseen.get(job, "")
            )
        return ReplicasKept(
            at=at,
            job=job,
            generation=number,
            detail=running.kept,
            joiner_failed=running.joiner_failed,
        )

    def _tell_unseen(self, job: JobId, running: LiveGeneration, post: Post) -> None:
        """Report when replicas elsewhere become invisible, or visible again. Meanwhile
        they count as living.
        """
        if (why := why_unseen(running.lead)) != self._unseen.get(job, ""):
            self._unseen[job] = why
            number = running.directory.number
            post(
                ReplicasStarted(at=self._now(), job=job, generation=number, unseen=why)
            )

    def _tell_setup(self, job: JobId, running: LiveGeneration, post: Post) -> None:
        """Report once per start that `setup` runs, and since when."""
        if running.started or running.setup_reported:
            return
        since = running.directory.setup_since()
        if since is not None:
            running.setup_reported = True
            number = running.directory.number
            post(SetupStarted(at=self._now(), job=job, generation=number, since=since))

    def _tell_trainer(self, job: JobId, running: LiveGeneration, post: Post) -> None:
        """Report that the script seems to be a plain one, or that it uses coadapt.train
        after all.
        """
        plain = running.lead.is_plain
        if plain != running.plain_reported:
            running.plain_reported = plain
            number = running.directory.number
            seen = not plain
            post(TrainerSeen(at=self._now(), job=job, generation=number, seen=seen))

    def _note_life(self, job: JobId, running: LiveGeneration) -> float:
        """Report to the node health how long the job's replicas have lived where they
        are. Return that in seconds.
        """
        if running.since is None:
            running.since = self._now()
        lived_s = self._now() - running.since
        self._health.lives(job, running.rank_map.slots, lived_s)
        return lived_s

    def _settle(self, job: JobId, running: LiveGeneration, record: ExitRecord) -> None:
        del self._running[job]
        self._ended[job] = (running.directory.number, record)
        self._unseen.pop(job, None)
        if record.unfit:  # the node is unfit for this job only
            end_member = None
        else:
            end_member = running.rank_map.node_of(record.member)
        end = GenerationEnd(
            job=job,
            nodes=frozenset(running.rank_map.slots),
            outcome=record.outcome,
            lived_s=self._note_life(job, running),
            failed_on=end_member,
            detail=record.detail,
        )
        self._health.ended(end)
        if running.post is not None:
            self._post_exit(job, running.directory.number, record, running.post)
        waiting = self._waiting.get(job)
        if (
            waiting is not None
            and isinstance(waiting[0], Rescale)
            and record.outcome is not Outcome.STOPPED
        ):
            # The replicas of this rescale had already ended by themselves.
            del self._waiting[job]
            self._end_unstarted(waiting[0], record, waiting[1])

    def _post_exit(
        self, job: JobId, generation: int, record: ExitRecord, post: Post
    ) -> None:
        how = record.detail.split("\n", 1)[0]
        why = f" ({how})" if how else ""
        logger.info(
            "job %s generation %d ended: %s%s",
            job,
            generation,
            record.outcome.value,
            why,
        )
        directory = self._launching.job_dir(job).generation(generation)
        post(
            ReplicasExited(
                at=self._now(),
                job=job,
                generation=generation,
                outcome=record.outcome,
                detail=record.detail,
                unfit_node=_unfit_node(directory, record),
            )
        )

    def _directory(self, order: JobCommand) -> GenerationDir:
        return self._launching.job_dir(order.job).generation(order.generation)


def _unfit_node(directory: GenerationDir, record: ExitRecord) -> NodeId:
    """Return the node that lacks something that the job needs, "" if there is none."""
    order = directory.order() if record.unfit else None
    node = None if order is None else ordered_rank_map(order).node_of(record.member)
    return node or ""


def _repeat(order: JobCommand, running: LiveGeneration, post: Post) -> None:
    """Handle an order for the running generation. A Stop is carried out, other orders
    are answered again.
    """
    running.post = post
    if isinstance(order, Stop):
        running.request_stop()
    else:
        running.announced = False
    if isinstance(order, RetractRescale):
        with suppress(OSError):  # the scheduler repeats it until there is an answer
            running.directory.request_retraction()


def _spares(order: JobCommand, running: LiveGeneration) -> bool:
    """Return whether the running generation may continue although an order of a later
    generation has arrived.
    """
    return isinstance(order, RetractRescale) or (
        isinstance(order, Rescale) and running.changes_in_place()
    )


def _stands(
    waiting: JobCommand, order: JobCommand, running: LiveGeneration | None
) -> bool:
    """Return whether `waiting` keeps its place although `order`, of the same
    generation, came later.
    """
    match order:
        case Stop():
            return False
        case RetractRescale():
            return running is None or running.is_to_stop
        case _:
            return isinstance(waiting, Stop | RetractRescale)
