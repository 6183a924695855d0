"""One small process per job that runs: sets up, starts the replicas, waits, and writes
how they ended.

The launcher outlives the scheduler, so a restarted scheduler finds the replicas as they
were. It uses the standard library only, so that it starts fast. Started as `python -m
coadapt.executors.processes.launcher GENERATION_DIR`.
"""

# Which process may write which file, and when
#
# Three parties write files: the executor (it may die and restart at any moment), the
# launcher (one per job, or none) and the replicas. Each file has one writer, and is
# written once and as a whole. So a reader may act on a file at once, and the launcher's
# own lock is the only one needed. The executor and the launcher write below
# `<state>/runs/JOB` (generation_dir.py), the replicas below `<state>/jobs/JOB`
# (own_files.py). So nothing that a job does to its own directory affects an order, an
# end or the lock.
#
#   order.json    executor   before there is a launcher, or before the lead's
#                            `successor` names it
#   successor     executor   in the lead's folder: the newest generation that has an
#                            order. The one file that is replaced, always by a later
#                            number
#   stop, retract executor   wishes; they are never withdrawn, and may come at any
#                            moment
#   kept.json     executor   if no launcher ever heard of the order; else the launcher,
#                            after the last joining replica is gone: from then on their
#                            slots are free
#   leaders.json  launcher   in the lead's folder: processes to end if the launcher dies
#   setup         launcher   `setup` runs since this file was written
#   plain         launcher   as far as can be seen, no process of the job uses
#                            coadapt.train. The one file that is taken away again, when
#                            a process does
#   started       launcher   all replicas of a start are there, or a rescale is
#                            complete: its first step is done and the leaving replicas
#                            are gone
#   exit.json     launcher   the last thing it writes, after everything of the job was
#                            ended; in its stead the executor, if it holds the job's
#                            lock and so knows that no launcher lives
#   rescale/      the notes of model/rescale.py: `order.json` by the launcher, the rest
#                 by replicas; below `jobs/JOB`, as `listeners/`
#
# Why one launcher leads the generations that follow each other in place: during a
# rescale, replicas of both generations train together, and only the parent of a process
# learns its exit code. Two launchers would have to exchange exit codes, and a restarted
# launcher has no children. So the launcher of the start, the *lead*, stays. It writes
# the end twice: for the newest generation that it took up, and last for the lead. The
# lead's record also counts for a generation that was ordered too late to be taken up.
#
# A launcher that dies leaves a free lock and no exit.json. The executor then ends all
# processes with the job's mark, and records that the generation is lost. So two
# generations of a job never run at once.

import math
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType

from coadapt.core.events import Outcome
from coadapt.executors.processes.in_place_rescale import InPlaceRescale
from coadapt.executors.processes.job_processes import (
    adopt_orphans,
    identity,
    kill_descendants,
    kill_marked,
    kill_own,
    own_processes,
    reap_orphans,
    runs_python,
)
from coadapt.executors.processes.listeners import (
    left_without_a_word,
    listening_processes,
    state_was_saved,
    trainers,
)
from coadapt.executors.processes.log_pump import LogPump
from coadapt.executors.processes.oom_kills import OomWatch
from coadapt.executors.processes.proxy_process import ENV_BEGUN, EXIT_NOT_BEGUN
from coadapt.executors.processes.records.generation_dir import (
    ExitRecord,
    GenerationDir,
    LaunchOrder,
    LaunchSettings,
    read_note,
    write_json,
)
from coadapt.executors.processes.records.own_files import is_there
from coadapt.executors.processes.replica import (
    OUTSIDE_SIGNALS,
    Replica,
    base_envs,
    cause_of,
    first_failed,
    reserve_port,
    shell,
    spawn,
)
from coadapt.executors.processes.setup_env import (
    SetupLeft,
    noting_its_end,
    read_left,
)
from coadapt.executors.processes.spare_replica import Spare
from coadapt.model.contract_env import ENV_RESUMED, EXIT_NO_WORKDIR
from coadapt.model.rescale import ORDER_FILE
from coadapt.runtime.disk_reserve import free_bytes

# The period of checks of children and of the stop file. On average half of it is added
# to each stop. A check each period takes 0.1 % of a core.
POLL_S = 0.05
# Peers of a failed replica cannot finish a collective, so they get less time than an
# orderly stop.
PEER_GRACE_S = 5.0
# How long, and how often, writing the end is tried again if the disk is full or does
# not respond.
WRITE_END_S = 60.0
WRITE_AGAIN_S = 0.5
# The time in which remaining processes of a job that succeeded may end by themselves.
LEFT_S = 1.0
# A script counts as a plain one if it has run no Python after SHELL_S, or has not
# called coadapt.train.init after JOIN_S: until then it may still import modules. If it
# calls init later, it does not count as plain any more.
SHELL_S = 3.0
JOIN_S = 60.0
# The period of checks of the job's own directory.
LOOK_S = 1.0
# The launcher of the previous generation may still be ending when the next one starts.
LOCK_WAIT_S = 10.0


def main(
    generation_dir: str,
    lock_wait_s: float = LOCK_WAIT_S,
    spares: Sequence[Spare] = (),
) -> None:
    """Carry out the order in `generation_dir`, unless its exit record is written or
    another launcher lives.

    spares: processes that become the first replicas.
    """
    path = Path(generation_dir)
    directory = GenerationDir.at(path)
    with directory.job.lock(lock_wait_s) as held:
        if not held or directory.exit_record() is not None:
            return
        order = directory.order()
        assert order is not None, f"{path} holds no order"
        adopt_orphans()
        launcher = _Launcher(directory, order, spares)
        try:
            record = launcher.run()
        except OSError as error:
            record = ExitRecord(
                outcome=Outcome.FAILED, detail=f"could not be started: {error}"
            )
        succeeded = record.outcome is Outcome.SUCCEEDED
        num_left = _left_behind(directory.job.checkpoints) if succeeded else 0
        ended = kill_marked(directory.job.checkpoints) + kill_descendants()
        if order.settings.sweep and (ended or launcher.left_something):
            # Imported here, as below: only engines of other machines need it.
            from coadapt.executors.processes.elsewhere import sweep

            sweep(order.settings, directory.job.path.name)
        if succeeded:
            notes = (record.detail, _words_of(num_left), launcher.killed_meanwhile())
            record = replace(record, detail="; ".join(filter(None, notes)))
        launcher.pump.close()
        # The lead's record is written last: it also counts for a generation that was
        # ordered too late to be taken up.
        if launcher.newest != directory:
            _write_end(launcher.newest, record)
        _write_end(directory, record)


def _left_behind(checkpoints: Path) -> int:
    """Return how many processes remain after a job has ended. They get LEFT_S to end by
    themselves, because `tee`, for example, may still have to write.
    """
    deadline = time.monotonic() + LEFT_S
    while (left := own_processes(checkpoints)) and time.monotonic() < deadline:
        reap_orphans(())
        time.sleep(POLL_S)
    return len(left)


def _words_of(num_left: int) -> str:
    """Return a text about the processes that had to be ended, "" if there are none."""
    if not num_left:
        return ""
    what = "a process" if num_left == 1 else f"{num_left} processes"
    return f"{what} that it left behind had to be ended"


def _write_end(directory: GenerationDir, record: ExitRecord) -> None:
    """Write how a generation ended. If the disk is full or does not respond, try for
    WRITE_END_S, then raise OSError.
    """
    deadline = time.monotonic() + WRITE_END_S
    while True:
        try:
            directory.make_records()
            directory.write_exit_record(record)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(WRITE_AGAIN_S)
        else:
            return


class _Launcher:
    def __init__(
        self, directory: GenerationDir, order: LaunchOrder, spares: Sequence[Spare]
    ) -> None:
        self.newest = directory
        settings = order.settings
        self.pump = LogPump(
            settings.log_bytes,
            lambda: free_bytes(directory.path) > settings.disk_reserve_bytes,
        )
        self._control_envs = _serve_control(directory, settings)
        self._lead = directory
        self._order = order
        self._spares = list(spares)
        self._spawned: list[Replica] = []
        # Keeps the port at which the replicas meet, see reserve_port.
        self._rendezvous: socket.socket | None = None
        # One file per replica elsewhere, which exists once the replica lives.
        self._to_begin: list[Path] = []
        self._is_begun = directory.has_started
        self._unknown = False
        self._change: InPlaceRescale | None = None
        self._left = SetupLeft()
        self._setup_ends_at = math.inf
        self._started_at: float | None = None
        self._plain = False
        self._oom = OomWatch()
        self._damage = ""
        self._last_damage = ""
        self._trainers: set[str] = set()
        self._look_at = 0.0
        self._stop_asked = False
        self._why_stopped = "stopped as ordered"
        for number in OUTSIDE_SIGNALS - {signal.SIGKILL}:
            signal.signal(number, self._on_signal)

    def killed_meanwhile(self) -> str:
        """Return a text about processes that the kernel killed while the job ran, "" if
        there are none.
        """
        if not self._is_elsewhere():
            return self._oom.meanwhile()
        # Imported here, as above: only engines of other machines need it.
        from coadapt.executors.processes.elsewhere import out_of_memory_text

        return out_of_memory_text(self._lead)

    @property
    def left_something(self) -> bool:
        """Return whether replicas of this job may live elsewhere, because their proxies
        were killed.
        """
        return self._unknown or any(
            replica.code is None or replica.code < 0 for replica in self._spawned
        )

    def run(self) -> ExitRecord:
        """Run `setup`, start the replicas and wait for all of them. Return how they
        ended.

        Replicas elsewhere that a previous launcher started are taken over.
        """
        if self._lead.has_started:
            return self._take_over()
        if not Path(self._order.workdir).is_dir():
            return ExitRecord(
                outcome=Outcome.FAILED,
                detail=f"workdir {self._order.workdir} is not a directory",
            )
        if (record := self._set_up()) is not None:
            return record
        if self._stopping():
            return ExitRecord(
                outcome=Outcome.STOPPED,
                detail="stopped before its replicas were started",
            )
        replicas = self._start(self._order)
        self._started_at = time.monotonic()
        self._note_begun(replicas)
        failed = self._wait(replicas)
        # Replicas may have begun and ended between two checks, or ended before they
        # reported that they began.
        self._note_begun(replicas)
        taken_back = any(replica.code == EXIT_NOT_BEGUN for replica in replicas)
        if not self._is_begun and not self._stopping() and not taken_back:
            self._lead.mark_started()
        return self._judge(replicas, failed)

    def _take_over(self) -> ExitRecord:
        from coadapt.executors.processes.elsewhere import find_present

        present = find_present(self._lead)
        if isinstance(present, ExitRecord):
            self._unknown = True
            return present
        self.newest = present.newest
        self._order = present.order
        envs = {**self._control_envs, ENV_RESUMED: "1"}
        replicas = [
            spawn(
                order,
                (*item.via, *shell(order.run)),
                item.log,
                {**item.envs, **envs},
                self.pump,
            )
            for order, item in present.replicas
        ]
        return self._judge(self._note(replicas), self._wait(replicas))

    def _set_up(self) -> ExitRecord | None:
        """Run `setup`, unless an earlier generation has done so. Return a record only
        if the job ended during `setup`.
        """
        if not self._order.setup:
            return None
        done = self._lead.job.setup_done
        if is_there(done):
            self._left = read_note(done, SetupLeft) or SetupLeft()
            return None
        limit_s = self._order.setup_timeout_s
        if limit_s is not None:
            self._setup_ends_at = time.monotonic() + limit_s
        self._lead.mark_setup()
        process, left = self._run_setup()
        overdue = time.monotonic() >= self._setup_ends_at
        self._setup_ends_at = math.inf
        if self._stopping():
            return ExitRecord(outcome=Outcome.STOPPED, detail="stopped during setup")
        if process.code and overdue:
            detail = process.report_overdue(
                f"setup ran for {limit_s:g} s, its setup_timeout, and was ended"
            )
            return ExitRecord(outcome=Outcome.FAILED, detail=detail)
        if process.code:
            killer = "" if self._is_elsewhere() else self._oom.cause()
            detail = process.report("setup", killer)
            return ExitRecord(outcome=Outcome.FAILED, detail=detail)
        self._left = left
        write_json(self._lead.job.setup_done, left)
        return None

    def _run_setup(self) -> tuple[Replica, SetupLeft]:
        """Run `setup` to its end. Return its process, and the environment that it
        leaves for `run`.
        """
        log = str(self._lead.job.log("setup"))
        order = self._order
        if order.settings.sweep:  # it runs on another machine: only files remain
            via = order.replicas[0].via
            process = spawn(order, (*via, *shell(order.setup)), log, {}, self.pump)
            self._note([process])
            self._wait([process])
            return process, SetupLeft()
        file = os.memfd_create("setup")
        try:
            command = shell(noting_its_end(order.setup, file))
            process = spawn(order, command, log, {}, self.pump, pass_fds=(file,))
            self._note([process])
            self._wait([process])
            return process, read_left(file, base_envs(order), order.workdir)
        finally:
            os.close(file)

    def _start(self, order: LaunchOrder) -> list[Replica]:
        envs = dict(self._control_envs)
        if self._rendezvous is not None:
            self._rendezvous.close()
        self._rendezvous = reserve_port(order.replicas)
        envs["MASTER_PORT"] = str(self._rendezvous.getsockname()[1])
        replicas = []
        for item in order.replicas:
            command = (*item.via, *shell(order.run))
            own = {**item.envs, **envs}
            if item.via:
                begun = self._begun_file(Path(item.log).stem)
                own[ENV_BEGUN] = str(begun)
                self._to_begin.append(begun)
            spare = self._spares.pop(0) if self._spares else None
            replicas.append(
                spawn(
                    order,
                    command,
                    item.log,
                    own,
                    self.pump,
                    left=self._left,
                    spare=spare,
                )
            )
        return self._note(replicas)

    def _begun_file(self, member: str) -> Path:
        """Return the file that is created once a replica elsewhere lives."""
        folder = self._lead.path / "begun"
        folder.mkdir(exist_ok=True)
        return folder / member

    def _note_begun(self, replicas: list[Replica]) -> None:
        """Mark the generation as started once each of its replicas lives, here or
        elsewhere.
        """
        is_setup = self._started_at is None
        if self._is_begun or is_setup or self._change is not None:
            return
        self._to_begin = [path for path in self._to_begin if not path.exists()]
        if replicas and not self._to_begin:
            self._is_begun = True
            self._lead.mark_started()

    def _note(self, started: list[Replica]) -> list[Replica]:
        """Record the started replicas and return them."""
        self._spawned += started
        living = (
            identity(replica.process.pid)
            for replica in self._spawned
            if replica.code is None
        )
        self._lead.write_leaders([each for each in living if each])
        return started

    def _wait(self, replicas: list[Replica]) -> Replica | None:
        """Wait until all replicas are gone. Once one has failed or a stop was ordered,
        end the rest.

        Replicas that join in place are added to `replicas`. Return the replica that
        failed first, None if none failed before a stop was ordered.
        """
        failed: Replica | None = None
        kill_at: float | None = None
        asked: set[int] = set()
        # SIGTERM ends a shell at once, while the script below it still saves.
        while sum(replica.code is None for replica in replicas) or (
            asked and asked.intersection(own_processes(self._lead.job.checkpoints))
        ):
            self._note_begun(replicas)
            if kill_at is None:
                self._follow_orders(replicas)
                failed = self._first_failed(replicas)
                if self._stopping():
                    kill_at = time.monotonic() + self._order.settings.stop_grace_s
                elif (
                    failed is not None
                    or self._unneeded()
                    or time.monotonic() >= self._setup_ends_at
                ):
                    kill_at = time.monotonic() + self._peer_grace_s(failed)
            elif time.monotonic() >= kill_at:
                for replica in replicas:
                    replica.overdue = True
                kill_own(self._lead.job.checkpoints)
            if kill_at is not None:
                listening = listening_processes(self._lead.own)
                asked = asked.union(
                    *(replica.ask(listening) for replica in self._to_ask(replicas))
                )
            self._look_around()
            reap_orphans(
                {replica.process.pid for replica in (*replicas, *self._joiners())}
            )
            time.sleep(POLL_S)
        return failed if kill_at is not None else first_failed(replicas)

    def _look_around(self) -> None:
        """Every LOOK_S: check which replicas train, note damage to the job's own
        directory, and restore missing parts.
        """
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_S
        self._oom.note()
        self._trainers |= trainers(self._lead.own)
        damage = self._lead.own.damage()
        # Damage counts if it was there at the previous check too. Otherwise a command
        # of the job may just be changing something.
        if damage and damage == self._last_damage:
            self._damage = self._damage or damage
            with suppress(OSError):  # the damage is reported with the job's end
                self._lead.own.make()
        self._last_damage = damage
        self._look_for_trainers()

    def _look_for_trainers(self) -> None:
        """Record whether the script is a plain one, as far as that can be seen from
        here.
        """
        settings = self._order.settings
        if self._started_at is None or settings.sweep or settings.control_host:
            return
        age_s = time.monotonic() - self._started_at
        plain = not self._trainers and (
            age_s > JOIN_S or (self._plain or (age_s > SHELL_S and not runs_python()))
        )
        if plain != self._plain:
            self._plain = plain
            with suppress(OSError):
                self._lead.note_plain(plain=plain)

    def _first_failed(self, replicas: list[Replica]) -> Replica | None:
        """Return a replica that failed, None if there is none. A joining replica counts
        only once the others depend on it.
        """
        change = self._change
        if change is not None and not change.decided:
            replicas = [
                replica for replica in replicas if replica not in change.joiners
            ]
        return first_failed(replicas)

    def _peer_grace_s(self, failed: Replica | None) -> float:
        change = self._change
        if change is not None and failed in change.joiners and not change.begun:
            return (
                self._order.settings.stop_grace_s
            )  # it was not a peer yet: the others are intact, and can save
        return PEER_GRACE_S

    def _to_ask(self, replicas: list[Replica]) -> list[Replica]:
        """Return the replicas to end next when all have to end. Joining replicas end
        after training ones.

        If the change has begun, the training replicas may still need the joining ones,
        and stop them through the group.
        """
        change = self._change
        if change is None or change.old_are_gone:
            return replicas
        return [replica for replica in replicas if replica not in change.joiners]

    def _judge(self, replicas: list[Replica], failed: Replica | None) -> ExitRecord:
        unneeded = self._unneeded()
        replicas = [replica for replica in replicas if replica not in unneeded]
        # A change is followed by a step, so no replica can finish training before the
        # change is done.
        finished = self._change is None or self._change.done or not self._change.begun
        # A wrapper above a training process may report 0 although that process was only
        # stopped.
        saved = state_was_saved(self._lead.own)
        # A wrapper may also report 0 although that process was killed, in the instant
        # before the wrapper is killed itself.
        killed = self._stopping() and any(replica.overdue for replica in replicas)
        self._damage = self._damage or self._lead.own.damage()
        if (
            finished
            and not saved
            and not killed
            and all(replica.code == 0 for replica in replicas)
        ):
            return self._judge_success(replicas)
        if self._stopping():
            codes = ", ".join(str(replica.code) for replica in replicas)
            return ExitRecord(
                outcome=Outcome.STOPPED,
                detail=self._with_damage(f"{self._why_stopped}; exit codes {codes}"),
            )
        if failed is None:
            why = "all replicas left in the middle of a change in place"
            why = (
                "got a stop signal from outside, and saved its state" if saved else why
            )
            return ExitRecord(outcome=Outcome.LOST, detail=self._with_damage(why))
        failed = cause_of(failed, replicas)
        lost = failed.lost or (
            failed.lost_peers and all(replica.code != 0 for replica in replicas)
        )
        killer = "" if self._is_elsewhere() else self._oom.cause()
        detail = failed.report(f"replica {self._rank(failed)}", killer)
        outcome = Outcome.LOST if lost else Outcome.FAILED
        if failed.code == EXIT_NOT_BEGUN:
            why = f"replica {self._rank(failed)}: {failed.last_line()}"
            return ExitRecord(outcome=Outcome.STOPPED, detail=why)
        unfit = failed.code == EXIT_NO_WORKDIR
        detail = failed.last_line() if unfit else self._with_damage(detail)
        return ExitRecord(
            outcome=outcome,
            detail=detail,
            member=failed.name,
            unfit=unfit,
        )

    def _is_elsewhere(self) -> bool:
        """Return whether replicas run on other machines, through an engine's tool."""
        return any(replica.via for replica in self._order.replicas)

    def _judge_success(self, replicas: list[Replica]) -> ExitRecord:
        """Return how a job ended whose commands all report 0. It succeeded if its
        training processes recorded that they ended.
        """
        own = self._lead.own
        unsaid = self._trainers - trainers(own) | left_without_a_word(own)
        if not unsaid:
            return ExitRecord(outcome=Outcome.SUCCEEDED, detail=self._damage)
        names = {replica.name: replica for replica in replicas}
        member = min(unsaid)
        replica = names.get(member, replicas[0])
        detail = replica.report_hidden(f"replica {self._rank(replica)}")
        return ExitRecord(
            outcome=Outcome.FAILED,
            detail=self._with_damage(detail),
            member=replica.name,
        )

    def _with_damage(self, detail: str) -> str:
        """Return `detail` with the damage to the job's directory in its first line."""
        if not self._damage:
            return detail
        first, line_end, rest = detail.partition("\n")
        return f"{first}; {self._damage}{line_end}{rest}"

    def _rank(self, replica: Replica) -> int:
        members = self._order.rescale.members
        return (
            members.index(replica.name)
            if replica.name in members
            else int(replica.name.split("-")[1])
        )

    # -- changes in place
    # -------------------------------------------------------------------------------

    def _follow_orders(self, replicas: list[Replica]) -> None:
        """Begin the change that was ordered last, or check the progress of the present
        change.
        """
        change = self._change
        if change is None:
            successor = self._lead.successor()
            if successor is not None and successor > self.newest.number:
                self._take_up(self._lead.job.generation(successor), replicas)
        elif change.taken_back is not None:
            if change.see_off():
                change.directory.write_kept(
                    change.taken_back, joiner_failed=change.joiner_failed
                )
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
        change = InPlaceRescale(
            lead=self._lead,
            directory=directory,
            before=self._order,
            order=order,
            old=tuple(replicas),
        )
        self._change = change
        self._order = order
        try:
            self._lead.own.write(ORDER_FILE, order.rescale)
            change.joiners = self._start(order)
        except OSError as error:
            change.trouble = str(error)
        replicas.extend(change.joiners)

    def _take_back(
        self, change: InPlaceRescale, why: str, replicas: list[Replica]
    ) -> None:
        """Let the old replicas train on, unless they have already agreed on the
        change.
        """
        if change.take_back(why):
            self._order = change.before
            replicas[:] = change.old
        elif change.overdue:
            self._stop_asked = True
            self._why_stopped = (
                f"stopped to change its replicas, in place was impossible: {why}"
            )

    def _joiners(self) -> list[Replica]:
        return [] if self._change is None else self._change.joiners

    def _unneeded(self) -> list[Replica]:
        return [] if self._change is None else self._change.unneeded

    def _stopping(self) -> bool:
        return self._stop_asked or self.newest.is_to_stop

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stop_asked = True


def _serve_control(lead: GenerationDir, settings: LaunchSettings) -> dict[str, str]:
    """Serve the control directory, if `settings` has a host for it. Return the
    environment that replicas need for it.
    """
    if not settings.control_host:
        return {}
    # Imported here: without it a launcher starts faster.
    from coadapt.executors.processes.elsewhere import serve_control

    return serve_control(lead, settings)


if __name__ == "__main__":
    main(sys.argv[1])
