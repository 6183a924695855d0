"""A running change in place, from the launcher's point of view."""

# Why an order is taken back by a file
#
# Joining replicas prepare for seconds to minutes while the others train. Meanwhile a
# new plan may need something else, or a joining replica may fail. Then the staying and
# leaving replicas should train on as before, but they may just have agreed to rescale.
#
# Neither party can ask the other and wait. Replicas read the notes only between two
# steps, and a question gets no answer if a replica dies meanwhile. So there is one
# note, `N.decided`, which is created exclusively. If the first replica creates it,
# before it offers the rescale to the others, the rescale will be carried out and a
# retraction is too late. If the launcher creates it, no replica will ever offer the
# rescale: the launcher removes the order and ends the joining replicas.
#
#   ordered ── all joining replicas are ready ──▶ decided by rank 0 ──▶ begun
#      │                                             (too late)           │
#      │                              complete ◀── leaving ones gone ◀── done
#      │
#      └─ retract, a joining one fails, 600 s ──▶ decided here
#                                                    └──▶ they are gone: kept
#
# What the end of a process means depends on when it happens. So rank 0 marks `begun`
# before any replica acts. If old replicas end with code 0 before `begun`, they have
# finished training, and the joining replicas are not needed. After `begun` they may
# have left, and no end is a success before the first step is done.
#
# A joining replica that fails before `decided` costs nothing. After `decided` it is a
# peer like any other. Before it is ready it takes a dry step
# (train/rescale/dry_step.py), so most of its errors happen then.

import subprocess
import time
from dataclasses import dataclass, field

from coadapt.executors.processes.job_processes import (
    kill_marked,
    kill_trees,
    marked_processes,
)
from coadapt.executors.processes.listeners import listening_processes
from coadapt.executors.processes.records.generation_dir import (
    GenerationDir,
    LaunchOrder,
)
from coadapt.executors.processes.replica import Replica, first_failed
from coadapt.model.rescale import ORDER_FILE, begun_file, decided_file, done_file

# Training continues while joining replicas prepare, so there is time. But they hold
# their slots meanwhile.
JOIN_LIMIT_S = 600.0
# Replicas that wait to join end when the first of the other processes ends, which may
# be some time before the last one does.
GONE_LIMIT_S = 30.0
# Replicas that will not join any more have no state to save.
DISMISS_GRACE_S = 5.0


@dataclass(slots=True, kw_only=True)
class InPlaceRescale:
    """A change from the replicas `old` to those of `directory`'s generation. `joiners`
    were started for it.

    before: the order that the old replicas follow. trouble: why not all joiners could
    be started. taken_back: why the change will not happen, None while it still may.
    joiner_failed: whether the reason is that a joiner failed by itself. kill_at: when
    to kill the joiners of a change that was taken back. sweeping: the process that ends
    such joiners elsewhere.
    """

    lead: GenerationDir
    directory: GenerationDir
    before: LaunchOrder
    order: LaunchOrder
    old: tuple[Replica, ...]
    joiners: list[Replica] = field(default_factory=list)
    trouble: str = ""
    began_at: float = field(default_factory=time.monotonic)
    gone_at: float | None = None
    taken_back: str | None = None
    joiner_failed: bool = False
    kill_at: float = 0.0
    sweeping: "subprocess.Popen[bytes] | None" = None

    @property
    def decided(self) -> bool:
        """Return whether the change is decided: it will be carried out, or was taken
        back.
        """
        return self.lead.own.has(decided_file(self.directory.number))

    @property
    def begun(self) -> bool:
        """Return whether the replicas carry out the change. A replica that ends from
        then on may have left.
        """
        return self.lead.own.has(begun_file(self.directory.number))

    @property
    def done(self) -> bool:
        """Return whether the new generation trains."""
        return self.lead.own.has(done_file(self.directory.number))

    @property
    def complete(self) -> bool:
        """Return whether the new generation trains and the leaving replicas are
        gone.
        """
        members = self.order.rescale.members
        left = [replica for replica in self.old if replica.name not in members]
        return self.done and all(replica.code == 0 for replica in left)

    @property
    def old_are_gone(self) -> bool:
        return all(replica.code is not None for replica in self.old)

    @property
    def unneeded(self) -> list[Replica]:
        """Return joining replicas whose group ended before the change could begin."""
        # The order of these checks matters: a replica that begins a change notes it
        # before it ends.
        return self.joiners if self.old_are_gone and not self.begun else []

    @property
    def overdue(self) -> bool:
        return time.monotonic() - self.began_at > JOIN_LIMIT_S

    def unwanted(self) -> str | None:
        """Return why the change must be taken back while the old replicas train, "" if
        that was ordered. None: it must not.
        """
        if self.begun or self.old_are_gone:
            return None
        if self.directory.is_retracted:
            return ""
        if self.trouble:
            return self.trouble
        if (failed := first_failed(self.joiners)) is not None:
            return failed.report(f"replica {self._rank(failed)}, which was to join,")
        now = time.monotonic()
        if self.gone_at is None and any(replica.code == 0 for replica in self.joiners):
            self.gone_at = now
        if self.gone_at is not None and now - self.gone_at > GONE_LIMIT_S:
            return "a replica that was to join has ended"
        return (
            f"it did not come about within {JOIN_LIMIT_S:g} s" if self.overdue else None
        )

    def take_back(self, why: str) -> bool:
        """Take the change back. Return whether that succeeds: it fails if the replicas
        have already agreed on the change.
        """
        own = self.lead.own
        if not own.create(decided_file(self.directory.number)):
            return False  # it exists, the disk is full, or the job removed the folder
        own.remove(ORDER_FILE)
        failed = first_failed(self.joiners)
        self.joiner_failed = bool(why) and failed is not None and failed.failed_itself
        self.taken_back = why
        self.kill_at = time.monotonic() + DISMISS_GRACE_S
        return True

    def see_off(self) -> bool:
        """Order the joiners to end. Return whether they and all processes that they
        started are gone.
        """
        checkpoints = self.lead.job.checkpoints
        number = self.directory.number
        listening = listening_processes(self.lead.own)
        for joiner in self.joiners:
            joiner.ask(listening)
        if time.monotonic() >= self.kill_at or all(
            joiner.code is not None for joiner in self.joiners
        ):
            kill_marked(checkpoints, number)
            kill_trees(
                joiner.process.pid for joiner in self.joiners if joiner.code is None
            )
            self._sweep_joiners()
        gone = all(joiner.code is not None for joiner in self.joiners)
        if self.sweeping is not None and self.sweeping.poll() != 0:
            self.sweeping = None if self.sweeping.poll() else self.sweeping
            return False
        return gone and not marked_processes(checkpoints, number)

    def _sweep_joiners(self) -> None:
        """If proxies of joiners on other nodes were killed, begin to end the joiners
        themselves.
        """
        killed = any(
            joiner.code is not None and joiner.code < 0 for joiner in self.joiners
        )
        if self.order.settings.sweep and killed and self.sweeping is None:
            # Imported here: only engines of other machines need it.
            from coadapt.executors.processes.elsewhere import start_sweep

            job = self.directory.job.path.name
            self.sweeping = start_sweep(self.order.settings, job, self.directory.number)

    def _rank(self, joiner: Replica) -> int:
        members = self.order.rescale.members
        return members.index(joiner.name)
