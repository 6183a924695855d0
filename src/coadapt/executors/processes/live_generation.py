"""A generation that lives, as the executor sees it, and how a new executor adopts
it.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from coadapt.executors.processes.elsewhere import Remains, kill_left
from coadapt.executors.processes.job_processes import (
    ask,
    end_marked,
    launchers_of,
)
from coadapt.executors.processes.rank_map import RankMap, ordered_rank_map
from coadapt.executors.processes.records.generation_dir import (
    ExitRecord,
    GenerationDir,
    JobDir,
)
from coadapt.executors.processes.slots import Slots, union
from coadapt.executors.processes.spare_replica import Process
from coadapt.model.rescale import CAPABLE_FILE
from coadapt.runtime.ports import Post

# The largest number of times that a launcher of one generation is replaced under one
# scheduler. A generation that needs more has another fault.
TAKEN_OVER_MAX = 5
# How long a launcher may take to end its processes, beyond the grace. A launcher that
# hangs never ends them.
STUCK_S = 60.0

logger = logging.getLogger(__name__)

Launch = Callable[[GenerationDir], Process]


@dataclass(slots=True, kw_only=True)
class LiveGeneration:
    """A generation whose launcher lives, or has died unnoticed. process: the launcher,
    None if an earlier executor started it.

    former: the rank map of the generation that this one follows in place. held: the
    slots of this generation, and until it has started also those of `former`. kept: why
    the replicas of `former` train on under this generation's number, None if they do
    not. joiner_failed: whether the reason is that a joining replica failed by itself.
    remains: the processes that a dead launcher left, while they are being ended.
    taken_over: how often the launcher was replaced. since: when this generation was
    first seen to have started, by the clock of the OrderBook; None before.
    stop_asked_at: when this scheduler ordered the stop, s since 1970. setup_reported:
    whether it was reported that `setup` runs. plain_reported: whether it was reported
    that the script is a plain one.
    """

    directory: GenerationDir
    rank_map: RankMap
    held: Slots
    former: RankMap | None = None
    kept: str | None = None
    joiner_failed: bool = False
    process: Process | None = None
    post: Post | None = None
    started: bool = False
    announced: bool = False
    remains: Remains | None = None
    taken_over: int = 0
    since: float | None = None
    stop_asked_at: float | None = None
    setup_reported: bool = False
    plain_reported: bool = False

    @property
    def lead(self) -> GenerationDir:
        return self.directory.job.generation(self.rank_map.lead)

    @property
    def is_to_stop(self) -> bool:
        """Return whether the generation was ordered to stop."""
        return self.stop_asked_at is not None or self.directory.is_to_stop

    def request_stop(self) -> None:
        """Order the generation to save and end: by a note, or by a signal to its
        launcher if no note can be written.
        """
        if self.stop_asked_at is None:
            self.stop_asked_at = time.time()
        try:
            self.directory.request_stop()
        except OSError as error:
            job = self.directory.job
            logger.warning("job %s is stopped by a signal: %s", job.path.name, error)
            for pid in launchers_of(job.checkpoints):
                ask(pid)

    def changes_in_place(self) -> bool:
        """Return whether the replicas can follow a Rescale, now or after the previous
        one.
        """
        if self.directory.job.records.is_symlink():
            # this launcher is of an earlier version, which reads only its own orders
            return False
        return self.lead.own.has(CAPABLE_FILE) and not self.is_to_stop

    def look(self) -> None:
        """Check whether the generation has started, or the previous replicas train on
        under its number.
        """
        if self.started:
            return
        if self.former is not None and (why := self.directory.kept()) is not None:
            self.kept = why
            self.rank_map = self.former
            self.joiner_failed = self.directory.joiner_failed()
        elif not self.directory.has_started:
            return
        self.started = True
        self.held = self.rank_map.slots

    def exit_record(self, launch: Launch) -> ExitRecord | None:
        """Return how the generation ended, None while it lives. Its launcher is gone
        then.

        launch: starts a new launcher if the old one died and the replicas outlive it.
        """
        # The record counts only once the launcher is gone, because the job could have
        # written one.
        if self.process is not None and self.process.poll() is None:
            self._end_if_stuck()
            return None
        return self._settle(launch)

    def _end_if_stuck(self) -> None:
        """End a launcher that does not carry out a stop, because it was suspended
        (SIGSTOP) or waits for a disk.
        """
        asked_at = self.stop_asked_at
        if asked_at is None:
            try:
                asked_at = self.directory.stop_file.stat().st_mtime
            except OSError:  # no stop was ordered
                return
        waited_s = time.time() - asked_at
        if waited_s <= STUCK_S:
            return
        order = self.lead.order()
        grace_s = 0.0 if order is None else order.settings.stop_grace_s
        if waited_s > grace_s + STUCK_S:
            logger.warning(
                "the launcher of job %s does not respond and is killed",
                self.directory.job.path.name,
            )
            kill_left(self.lead)  # the launcher has its job's mark, too

    def _settle(self, launch: Launch) -> ExitRecord | None:
        """Return how the generation of a launcher that is gone ended. If the launcher
        left no record, end its remaining processes and record that the generation is
        lost.

        If the launcher ended before it took up this generation, its record for the lead
        counts. If the replicas outlive their launcher, start a new one, which takes
        them over.
        """
        job = self.directory.job
        with job.lock() as held:
            if not held or self._launcher_lives():
                self._end_if_stuck()
                return None
            record = self.directory.exit_record() or self.lead.exit_record()
            if record is None and self._outlives_launchers():
                kill_left(self.lead)
            elif record is None:
                self.remains = self.remains or Remains(self.lead)
                if not self.remains.gone():
                    return None
                record = self.remains.record
            if record is not None:
                # A job has ended only when all of its processes are gone. Then its
                # slots are free, and "cancelled" is true.
                if not end_marked(job.checkpoints):
                    return None
                self._write(record)
                return record
        self.taken_over += 1
        with suppress(OSError):  # no memory, or too many processes: this is tried again
            self.process = launch(self.lead)
        return None

    def _launcher_lives(self) -> bool:
        """Return whether a launcher lives although its lock is free, because the lock's
        file was removed.
        """
        return bool(launchers_of(self.directory.job.checkpoints))

    def _write(self, record: ExitRecord) -> None:
        try:
            self.directory.make_records()
            self.directory.write_exit_record(record)
        except OSError as error:  # the scheduler's journal has it, too
            job = self.directory.job.path.name
            logger.warning("the end of job %s cannot be recorded: %s", job, error)

    def _outlives_launchers(self) -> bool:
        """Return whether the replicas live elsewhere and can be taken over by a new
        launcher.
        """
        order = self.lead.order()
        afar = order is not None and bool(order.settings.sweep)
        return afar and self.lead.has_started and self.taken_over < TAKEN_OVER_MAX


def adopt(job: JobDir) -> LiveGeneration | None:
    """Return the generation of a job that an earlier executor left alive or unsettled,
    None if there is none.
    """
    newest: GenerationDir | None = None
    ordered: list[tuple[GenerationDir, RankMap]] = []
    for directory in reversed(job.generations()):
        if newest is None and directory.exit_record() is not None:
            return None
        order = directory.order()
        kept = directory.kept()
        if newest is None and (order is not None or kept is not None):
            newest = directory
        if order is not None and kept is None:
            ordered.append((directory, ordered_rank_map(order)))
            if ordered[-1][1].lead == directory.number or len(ordered) == 2:
                break
    if newest is None or not ordered:
        return None
    rank_map = ordered[0][1]
    former = ordered[-1][1]
    if newest != ordered[0][0]:
        former = rank_map
    running = LiveGeneration(
        directory=newest,
        rank_map=rank_map,
        former=former,
        held=union(rank_map.slots, former.slots),
    )
    if newest.number != rank_map.lead:
        # The earlier executor may have died just before it announced the generation to
        # the launcher.
        running.lead.write_successor(newest.number)
    return running
