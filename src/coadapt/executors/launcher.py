"""One small process per job that runs: sets up, starts the replicas, waits, and writes how they ended.

It outlives the scheduler, so that a restarted scheduler finds the replicas as it left them. Standard library
only: it is up in a blink. Started as `python -m coadapt.executors.launcher GENERATION_DIR`.
"""

import signal
import socket
import sys
import time
from pathlib import Path
from types import FrameType

from coadapt.core.events import Outcome
from coadapt.executors.change import Change
from coadapt.executors.generation_dir import Fate, GenerationDir, JobDir, LaunchOrder, write_json
from coadapt.executors.job_processes import kill_marked, marked_processes
from coadapt.executors.listeners import listening_processes, state_was_saved
from coadapt.executors.replica import OUTSIDE_SIGNALS, Replica, cause_of, first_failed, spawn
from coadapt.executors.seating import seating_of
from coadapt.model.rescale import ORDER_FILE

# How often children and the stop file are looked at: half of it is added to each stop, at 0.1 % of a core.
POLL_S = 0.05
# Peers of a failed replica cannot finish a collective, so they get less time than an orderly stop.
PEER_GRACE_S = 5.0
# The launcher of the generation before may still be on its last lines when its successor starts.
LOCK_WAIT_S = 10.0


def main(generation_dir: str, lock_wait_s: float = LOCK_WAIT_S) -> None:
    """Carry out the order in `generation_dir`, unless its fate is written or another launcher lives."""
    path = Path(generation_dir)
    directory = GenerationDir(JobDir(path.parent.parent), int(path.name))
    with directory.job.lock(lock_wait_s) as held:
        if not held or directory.fate() is not None:
            return
        order = directory.order()
        assert order is not None, f"{path} holds no order"
        launcher = _Launcher(directory, order)
        try:
            fate = launcher.run()
        except OSError as error:
            fate = Fate(outcome=Outcome.FAILED, detail=f"could not be started: {error}")
        kill_marked(directory.job.checkpoints)
        # The root's comes last: it also counts for a generation that was ordered too late to be taken up.
        if launcher.newest != directory:
            launcher.newest.write_fate(fate)
        directory.write_fate(fate)


class _Launcher:
    def __init__(self, directory: GenerationDir, order: LaunchOrder) -> None:
        self.newest = directory
        self._root = directory
        self._order = order
        self._change: Change | None = None
        self._told_to_stop = False
        self._why_stopped = "stopped as ordered"
        for number in OUTSIDE_SIGNALS - {signal.SIGKILL}:
            signal.signal(number, self._on_signal)

    def run(self) -> Fate:
        """Set up, start the replicas, wait for all of them; return how they ended."""
        if not Path(self._order.workdir).is_dir():
            return Fate(outcome=Outcome.FAILED, detail=f"workdir {self._order.workdir} is not a directory")
        fate = self._set_up()
        if fate is not None:
            return fate
        if self._stopping():
            return Fate(outcome=Outcome.STOPPED, detail="stopped before its replicas were started")
        replicas = self._start(self._order)
        self._root.mark_started()
        return self._judge(replicas, self._wait(replicas))

    def _set_up(self) -> Fate | None:
        """Run `setup` unless an earlier generation did; return a fate only if the job ended by it."""
        if not self._order.setup or self._root.job.setup_done.exists():
            return None
        log = str(self._root.job.logs / "setup.log")
        process = spawn(self._order, self._order.setup, "setup", log, {})
        self._wait([process])
        if self._stopping():
            return Fate(outcome=Outcome.STOPPED, detail="stopped during setup")
        if process.code:
            return Fate(outcome=Outcome.FAILED, detail=process.report("setup"))
        self._root.job.setup_done.touch()
        return None

    def _start(self, order: LaunchOrder) -> list[Replica]:
        port = {"MASTER_PORT": str(_free_port())}
        return [
            spawn(order, order.run, Path(item.log).stem, item.log, {**item.envs, **port})
            for item in order.replicas
        ]

    def _wait(self, replicas: list[Replica]) -> Replica | None:
        """Wait until all are gone; end the rest once one failed or a stop was asked for.

        Those who join in place are added to `replicas`. Return the one that failed first, None if none did
        before a stop was asked for.
        """
        failed: Replica | None = None
        kill_at: float | None = None
        asked: set[int] = set()
        # A shell dies of SIGTERM at once while the script below it still saves.
        while sum(replica.code is None for replica in replicas) or (
            asked and asked.intersection(marked_processes(self._root.job.checkpoints))
        ):
            if kill_at is None:
                self._follow_orders(replicas)
                failed = self._first_failed(replicas)
                if self._stopping():
                    kill_at = time.monotonic() + self._order.stop_grace_s
                elif failed is not None or self._unneeded():
                    kill_at = time.monotonic() + self._peer_grace_s(failed)
            elif time.monotonic() >= kill_at:
                kill_marked(self._root.job.checkpoints)
            if kill_at is not None:
                listening = listening_processes(self._root.listeners, self._root.job.checkpoints)
                asked = asked.union(*(replica.ask(listening) for replica in self._to_ask(replicas)))
            time.sleep(POLL_S)
        return failed if kill_at is not None else first_failed(replicas)

    def _first_failed(self, replicas: list[Replica]) -> Replica | None:
        """Return one that failed, if any; of those who join, only once the others count on them."""
        change = self._change
        if change is not None and not change.decided:
            replicas = [replica for replica in replicas if replica not in change.joiners]
        return first_failed(replicas)

    def _peer_grace_s(self, failed: Replica | None) -> float:
        change = self._change
        if change is not None and failed in change.joiners and not change.begun:
            return self._order.stop_grace_s  # it was no peer yet: the others are sound, and can save
        return PEER_GRACE_S

    def _to_ask(self, replicas: list[Replica]) -> list[Replica]:
        """Return whom to tell to end, now that all are to: those who join come after those who train.

        They may be needed still, if the others have begun to change; and then they hear it from them.
        """
        change = self._change
        if change is None or change.old_are_gone:
            return replicas
        return [replica for replica in replicas if replica not in change.joiners]

    def _judge(self, replicas: list[Replica], failed: Replica | None) -> Fate:
        unneeded = self._unneeded()
        replicas = [replica for replica in replicas if replica not in unneeded]
        # After a change a step follows, so that nobody can have come to the end before it is done.
        finished = self._change is None or self._change.done or not self._change.begun
        # What stands above a training process may report 0 although that one only stopped.
        saved = state_was_saved(self._root.listeners)
        if finished and not saved and all(replica.code == 0 for replica in replicas):
            return Fate(outcome=Outcome.SUCCEEDED)
        if self._stopping():
            codes = ", ".join(str(replica.code) for replica in replicas)
            return Fate(outcome=Outcome.STOPPED, detail=f"{self._why_stopped}; exit codes {codes}")
        if failed is None:
            why = "all replicas left in the middle of a change in place"
            why = "was told to stop from outside, and saved its state" if saved else why
            return Fate(outcome=Outcome.LOST, detail=why)
        failed = cause_of(failed, replicas)
        lost = failed.lost or (failed.lost_peers and all(replica.code != 0 for replica in replicas))
        detail = failed.report(f"replica {self._rank(failed)}")
        return Fate(outcome=Outcome.LOST if lost else Outcome.FAILED, detail=detail)

    def _rank(self, replica: Replica) -> int:
        members = seating_of(self._order, self.newest.number).members
        return members.index(replica.name) if replica.name in members else int(replica.name.split("-")[1])

    # -- changes in place -------------------------------------------------------------------------------

    def _follow_orders(self, replicas: list[Replica]) -> None:
        """Begin the change that was ordered last, or see how far the one under way is."""
        change = self._change
        if change is None:
            successor = self._root.successor()
            if successor is not None and successor > self.newest.number:
                self._take_up(self._root.job.generation(successor), replicas)
        elif change.taken_back is not None:
            if change.see_off():
                change.directory.write_kept(change.taken_back)
                self._change = None
        elif change.complete:
            change.directory.mark_started()
            self._change = None
        elif (why := change.unwanted()) is not None:
            self._take_back(change, why, replicas)

    def _take_up(self, directory: GenerationDir, replicas: list[Replica]) -> None:
        self.newest = directory
        if directory.kept() is not None or self._stopping():
            return
        order = directory.order()
        assert order is not None, f"{directory.path} holds no order"
        change = Change(
            root=self._root, directory=directory, before=self._order, order=order, old=tuple(replicas)
        )
        self._change, self._order = change, order
        try:
            write_json(self._root.switchboard / ORDER_FILE, order.roster)
            change.joiners = self._start(order)
        except OSError as error:
            change.trouble = str(error)
        replicas.extend(change.joiners)

    def _take_back(self, change: Change, why: str, replicas: list[Replica]) -> None:
        """Let the old replicas train on, unless they have agreed on the change by now."""
        if change.take_back(why):
            self._order = change.before
            replicas[:] = change.old
        elif change.overdue:
            self._told_to_stop = True
            self._why_stopped = f"stopped to change its replicas, in place was impossible: {why}"

    def _unneeded(self) -> list[Replica]:
        return [] if self._change is None else self._change.unneeded

    def _stopping(self) -> bool:
        return self._told_to_stop or self.newest.stop_file.exists()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._told_to_stop = True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


if __name__ == "__main__":
    main(sys.argv[1])
