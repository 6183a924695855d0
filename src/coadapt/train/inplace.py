"""Change the replicas of a run between two steps of living processes.

Those who stay keep process, model and optimiser; those who join were started beforehand and get the state
from one who stays; those who leave end with code 0. Every wait has a limit: a change that fails ends all its
processes as if they had been lost, and the run goes on from its last checkpoint.
"""

import importlib
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch.distributed as dist

from coadapt.model import Placement, RescaleContract
from coadapt.model.rescale import RescaleOrder, member_name
from coadapt.train.group import connect_group, leave_group, share_from_first
from coadapt.train.limits import settle_batch
from coadapt.train.meeting import WAIT_S, Meeting
from coadapt.train.parts_handover import give_parts, take_cut, take_parts
from coadapt.train.pause import PauseClock
from coadapt.train.rescale import CheckpointRescaler, leave
from coadapt.train.saver import Saver
from coadapt.train.session import Session
from coadapt.train.stop import EXIT_UNSAVED, StopSignal, exit_after
from coadapt.train.switchboard import Switchboard
from coadapt.train.transfer import receive_state, send_state

logger = logging.getLogger(__name__)

# DistributedDataParallel loads it when it is first constructed: 1-7 s that are to be no part of a pause.
SLOW_IMPORT = "torch._dynamo"


class InPlaceRescaler(CheckpointRescaler):
    """Follows the orders of a switchboard."""

    def __init__(self, session: Session, saver: Saver, stop: StopSignal, board: Switchboard) -> None:
        super().__init__(session, saver, stop)
        config = session.config
        self._board = board
        self._me = member_name(config.generation, config.rank)
        self._members = tuple(member_name(config.generation, rank) for rank in range(config.world_size))
        self._meeting = Meeting(board, self._me)
        self._clock: PauseClock | None = None
        self._claimed = 0

    def begin(self) -> bool:
        config = self._session.config
        if config.joining:
            self._join()
        elif config.contract is not RescaleContract.FROZEN and config.rank == 0:
            if dist.is_initialized() and not self._session.group.distributed:
                logger.warning("not in place: this process has a process group that the run did not form")
            else:
                self._board.announce()
        return config.joining

    def wanted(self) -> int:
        order = self._board.order()
        if order is None or order.generation <= self._session.config.generation:
            return 0
        if not self._saver.enabled and not self._staying(order):
            return 0  # nobody to hand over to, and nowhere to save: the executor has to stop the run
        if len(order.members) > 1 and SLOW_IMPORT not in sys.modules:
            _load_beside_training(SLOW_IMPORT)
            return 0
        return order.generation if self._meeting.prepare(order) and self._claim(order.generation) else 0

    def change(self, generation: int) -> None:
        self._clock = PauseClock(self._saver.last_step_at)
        self._clock.mark("agree")
        with self._or_lost(generation):
            order = self._board.order()
            if order is None or order.generation != generation:
                raise RuntimeError("another order has taken its place")
            self._change(order, self._clock)

    def stepped(self) -> None:
        if self._clock is None:
            return
        self._clock.mark("first_step")
        self.pause, self._clock = self._clock.pause(), None
        session = self._session
        if session.group.rank == 0:
            self._board.mark_done(session.config.generation)
            logger.info(
                "generation %d at step %d: %d replicas, pause %s",
                session.config.generation,
                session.progress.step,
                session.group.size,
                self.pause,
            )

    def _claim(self, generation: int) -> bool:
        """Return whether the order may be offered to all; it cannot be taken back then."""
        if self._session.group.rank == 0 and self._claimed != generation:
            if not self._board.claim(generation):
                return False
            self._claimed = generation
        return True

    def _change(self, order: RescaleOrder, clock: PauseClock) -> None:
        session, first, staying = self._session, self._members[0], self._staying(order)
        old = session.group
        if old.rank == 0:
            self._board.mark_begun(order.generation)
        giver = None
        if not staying:
            self._saver.save(stopped=True)
        elif first in staying:
            giver = order.members.index(first)
        else:
            # What only the first replica knows must not leave with it.
            self._saver.load_notes(share_from_first(old, self._saver.notes()))
            giver = order.members.index(staying[0])
        if staying and order.members[0] != first:
            # Another will write checkpoints: not before this one has.
            self._saver.wait()
            share_from_first(old, True)
        totals = session.totals.gather(old) if staying else {}
        whole: dict[str, object] = {}
        if session.sharded and giver is not None:
            whole = self._saver.whole_state(totals, keep=order.members[giver] == self._me)
        if old.rank == 0 and order.joiners:
            self._meeting.call(order, giver)
        if session.sharded:
            self._saver.wait()  # what all replicas write together ends before the group does
        leave_group(old)
        if self._me not in staying:
            logger.info("no part of generation %d: leaves", order.generation)
            self._stop.exit_code = 0
            leave(0)
        clock.mark("destroy")
        self._form(order)
        clock.mark("form")
        joining = [order.members.index(name) for name in order.joiners]
        if session.sharded:
            self._reshape()
            if session.group.rank == giver:
                give_parts(self._saver, session.group, whole, joining)
            elif giver is not None:
                take_cut(self._saver, session.group, giver)
        elif session.group.rank == giver and joining:
            send_state(session.group, self._saver.state(totals), joining)
        session.totals.restore(totals, session.group)
        self._settle_in(clock)

    def _join(self) -> None:
        generation = self._session.config.generation
        order = self._board.order()
        if order is None or order.generation != generation:
            raise RuntimeError(
                f"there is no order for generation {generation}, which this replica is to join"
            )
        importlib.import_module(SLOW_IMPORT)
        giver = self._meeting.await_call(order, self._stop)
        self._clock = clock = PauseClock(time.time())
        with self._or_lost(generation):
            called_at = time.time()
            self._form(order)
            clock.mark("form")
            session, saver = self._session, self._saver
            if session.sharded:
                self._reshape()
            if giver is None:
                saver.restore()
            elif session.sharded:
                saver.load(take_parts(saver, session.group, giver))
            else:
                saver.load(receive_state(session.group, giver, saver.state({})))
            clock.add("destroy", called_at - self._saver.last_step_at)
            self._settle_in(clock)

    def _form(self, order: RescaleOrder) -> None:
        """Become a member of the new group.

        While it forms, a replica that died is only missed, so there is a limit of time; afterwards its
        connections break, which ends every wait for it.
        """
        session, size = self._session, len(order.members)
        session.config = replace(
            session.config,
            generation=order.generation,
            rank=order.members.index(self._me),
            world_size=size,
            placement=Placement(order.placement),
            batch=order.batch,
            joining=False,
        )
        store = self._meeting.store(order) if size > 1 else None
        limit = exit_after(WAIT_S, EXIT_UNSAVED)
        session.group = connect_group(session.config, session.group.device, store)
        limit.cancel()
        self._members = order.members

    def _reshape(self) -> None:
        assert self.model is not None
        self.model.reshape()

    def _settle_in(self, clock: PauseClock) -> None:
        """The state is here: settle the batch, and make the model fit the new group."""
        session = self._session
        settle_batch(session)
        clock.mark("transfer")
        assert self.model is not None
        self.model.rewrap()
        clock.mark("wrap")

    def _staying(self, order: RescaleOrder) -> list[str]:
        return [name for name in order.members if name in self._members]

    @contextmanager
    def _or_lost(self, generation: int) -> Iterator[None]:
        """Whatever goes wrong inside ends this process: nobody can tell who is where."""
        try:
            yield
        except (RuntimeError, OSError) as error:
            logger.error("change to generation %d failed, the last checkpoint counts: %s", generation, error)
            self._stop.exit_code = EXIT_UNSAVED
            leave(EXIT_UNSAVED)


def _load_beside_training(name: str) -> None:
    """Import a module in a thread; once."""
    if not any(thread.name == name for thread in threading.enumerate()):
        threading.Thread(target=importlib.import_module, args=(name,), name=name, daemon=True).start()
