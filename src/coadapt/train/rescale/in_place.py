"""Change the replicas of a run between two steps of living processes.

Staying replicas keep their process, model and optimiser. Joining replicas are already
started, and get the state from a staying replica. Leaving replicas end with code 0.
Every wait has a limit. If a rescale fails, all its processes end as lost, and the run
continues from its last checkpoint.
"""

# How all replicas change between the same two steps. Only rank 0 reads the executor's
# order. It offers the order (`wanted`) once every joining replica has written that it
# is ready, and once rank 0 has claimed the order. The claim is a file that only one
# side can create. So either the executor takes the order back or the replicas carry it
# out, never both. The offer is part of the flags of a step. Every replica acts on their
# sum at the next consensus, so all act after the same step, without a separate message
# (`group/consensus.py`).
#
# The source. Joining replicas get the content of a checkpoint from one staying replica.
# This is the first replica of the old group, if it stays. Only the first replica has
# registered objects and measurements; model, optimiser, scheduler and scaler are the
# same on all. If the first replica leaves, it first sends the former to all
# (`load_notes`), and the first staying replica is the source. If no replica stays, the
# old group saves a checkpoint and the new one loads it.
#
# A joining replica first takes a dry step (`dry_step.py`). If that fails, it ends with
# the cause before it is ready.
#
# What happens when a replica dies during a change. If a joining replica dies before the
# claim, the order is taken back, and training is not disturbed. If a replica dies in
# the old group, or after the new group has formed, its connections break, which ends
# every wait for it. While the new group forms there are no connections yet, so each
# member has a deadline (20 s). After the deadline it ends itself, and the launcher ends
# the rest. Except before the claim, the generation is then lost, and the run continues
# from its last checkpoint.
#
# Why a failed change is not undone. A waiting replica cannot know whether the missing
# one is dead, slow, or already in the new group. Some replicas have left the old group,
# which cannot form again without all of them. To continue, the replicas would have to
# agree which of them is in which group. That is not worth it for an event that costs
# seconds of work since the last checkpoint.
#
# What is not part of the pause: starting processes, importing torch and the script's
# own preparation (joining replicas do this while the others train); importing
# torch._dynamo (in a thread before the offer); copies of the state (staying replicas
# keep theirs, and tensors are received into the model's own, which `load_state_dict`
# then does not copy); memory for the optimiser's state, which a joining replica does
# not have yet (`transfer.make_room`; the kernel's first touch of 100 MB takes 40 ms);
# requests to the launcher for notes that a replica already has. What remains in the
# pause: sending the state over the network, and a first step that allocates memory for
# new buckets.

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
from coadapt.train.batch.limits import settle_batch
from coadapt.train.checkpoint.saver import Saver
from coadapt.train.exits.stop import EXIT_UNSAVED, StopSignal, exit_after
from coadapt.train.group.group import connect_group, leave_group, share_from_first
from coadapt.train.group.transfer import receive_state, send_state
from coadapt.train.rescale.control_channel import ControlChannel
from coadapt.train.rescale.dry_step import CallNotes, DryStep
from coadapt.train.rescale.handover import (
    receive_own_shards,
    receive_shards,
    send_shards,
)
from coadapt.train.rescale.pause import PauseClock
from coadapt.train.rescale.rendezvous import WAIT_S, Rendezvous
from coadapt.train.rescale.rescaler import CheckpointRescaler, leave
from coadapt.train.session import Session

logger = logging.getLogger(__name__)

# DistributedDataParallel imports this module when it is first constructed. That takes
# 1-7 s, which must not be part of a pause.
SLOW_IMPORT = "torch._dynamo"


class InPlaceRescaler(CheckpointRescaler):
    """Follows the orders of a control directory."""

    def __init__(
        self, session: Session, saver: Saver, stop: StopSignal, channel: ControlChannel
    ) -> None:
        super().__init__(session, saver, stop)
        place = session.config.place
        self._channel = channel
        self._me = member_name(place.generation, place.rank)
        self._members = tuple(
            member_name(place.generation, rank) for rank in range(place.world_size)
        )
        self._notes = CallNotes(session)
        self._rendezvous = Rendezvous(
            channel,
            self._me,
            saver.outline,
            state=self._handed_over,
            calls=self._notes.write,
        )
        self._clock: PauseClock | None = None
        self._claimed = 0

    def begin(self) -> bool:
        config = self._session.config
        if config.place.joining:
            self._join()
        elif config.contract is not RescaleContract.FROZEN and config.place.rank == 0:
            if dist.is_initialized() and not self._session.group.distributed:
                logger.warning(
                    "no change in place: this process has a process group that the run did "
                    "not create"
                )
            else:
                self._channel.announce()
        return config.place.joining

    def wanted(self) -> int:
        order = self._channel.order()
        if order is None or order.generation <= self._session.config.place.generation:
            return 0
        if not self._saver.enabled and not self._staying(order):
            # no replica stays to keep the state, and there is no place to save it: the
            # executor has to stop the run
            return 0
        if len(order.members) > 1 and SLOW_IMPORT not in sys.modules:
            _load_beside_training(SLOW_IMPORT)
            return 0
        tells_calls = bool(order.joiners) and order.members[0] == self._me
        if tells_calls and not self._notes.taken(order.generation, self.pairs):
            return 0
        return (
            order.generation
            if self._rendezvous.prepare(order) and self._claim(order.generation)
            else 0
        )

    def rescale(self, generation: int) -> None:
        self._clock = PauseClock(self._saver.last_step_at)
        self._clock.mark("agree")
        with self._or_lost(generation):
            self._rescale(self._agreed(generation), self._clock)

    @property
    def in_first_step(self) -> bool:
        return self._clock is not None

    def stepped(self) -> None:
        if self._clock is None:
            return
        self._clock.mark("first_step")
        self.pause = self._clock.pause()
        self._clock = None
        session = self._session
        if session.group.rank == 0:
            self._channel.mark_done(session.config.place.generation)
            logger.info(
                "generation %d at step %d: %d replicas, pause %s",
                session.config.place.generation,
                session.progress.step,
                session.group.size,
                self.pause,
            )

    def _agreed(self, generation: int) -> RescaleOrder:
        """Return the order of `generation`. Most replicas have already read it while
        the joining ones prepared.
        """
        for now in (False, True):
            order = self._channel.order(now=now)
            if order is not None and order.generation == generation:
                return order
        raise RuntimeError("another order has taken its place")

    def _claim(self, generation: int) -> bool:
        """Return whether the order may be offered to all replicas. If so, it cannot be
        taken back any more.
        """
        if self._session.group.rank == 0 and self._claimed != generation:
            if not self._channel.claim(generation):
                return False
            self._claimed = generation
        return True

    def _rescale(self, order: RescaleOrder, clock: PauseClock) -> None:
        session = self._session
        first = self._members[0]
        staying = self._staying(order)
        old = session.group
        if old.rank == 0:
            self._channel.mark_begun(order.generation)
        source_rank = None
        self._saver.gather()
        if not staying:
            self._saver.save(stopped=True)
        elif first in staying:
            source_rank = order.members.index(first)
        else:
            # The state that only the first replica has must not be lost with it.
            self._saver.load_notes(share_from_first(old, self._saver.notes()))
            source_rank = order.members.index(staying[0])
        if staying and order.members[0] != first:
            # Another replica will write checkpoints, but only after this one has
            # finished its own.
            self._saver.wait()
            share_from_first(old, True)
        totals = session.figures.totals.gather(old) if staying else {}
        generators = self._saver.draws.states() if staying else []
        whole: dict[str, object] = {}
        if session.model_is_sharded and source_rank is not None:
            whole = self._saver.whole_state(
                totals, keep=order.members[source_rank] == self._me
            )
            whole = {**whole, "rng": generators} if whole else whole
        if old.rank == 0 and order.joiners:
            self._rendezvous.call(order, source_rank)
        if session.model_is_sharded:
            # a checkpoint that all replicas write together must be finished before the
            # group ends
            self._saver.wait()
        for model in self.models:
            model.let_go()
        leave_group(old)
        if self._me not in staying:
            logger.info(
                "this replica is not part of generation %d and leaves", order.generation
            )
            self._stop.dismiss()
            leave(0)
        clock.mark("destroy")
        self._form(order)
        clock.mark("form")
        joining = [order.members.index(name) for name in order.joiners]
        if session.model_is_sharded:
            self._reshape()
            if session.group.rank == source_rank:
                send_shards(self._saver, session.group, whole, joining)
            elif source_rank is not None:
                receive_own_shards(self._saver, session.group, source_rank)
        elif session.group.rank == source_rank and joining:
            state = {**self._saver.state(totals), "rng": generators}
            send_state(session.group, state, joining)
        self._saver.draws.go_on(generators)
        session.figures.totals.restore(totals, session.group)
        self._settle_in(clock)

    def _join(self) -> None:
        generation = self._session.config.place.generation
        order = self._channel.order(now=True)
        if order is None or order.generation != generation:
            raise RuntimeError(
                f"there is no order for generation {generation}, which this replica "
                f"is to join"
            )
        importlib.import_module(SLOW_IMPORT)
        dry_step = DryStep(self._session, self.pairs, self.fetch)
        source_rank = self._rendezvous.await_call(order, self._stop, dry_step.run)
        self._clock = clock = PauseClock(time.time())
        with self._or_lost(generation):
            called_at = time.time()
            self._form(order)
            clock.mark("form")
            session = self._session
            saver = self._saver
            if session.model_is_sharded:
                self._reshape()
            if source_rank is None:
                saver.restore()
            elif session.model_is_sharded:
                self._take_over(receive_shards(saver, session.group, source_rank))
            else:
                own = saver.state({})
                room = self._rendezvous.room
                self._take_over(receive_state(session.group, source_rank, own, room))
            clock.add("destroy", called_at - self._saver.last_step_at)
            self._settle_in(clock)

    def _take_over(self, state: object) -> None:
        """Load the state that a staying replica has sent."""
        assert isinstance(state, dict)
        self._saver.load(state)
        generators = state["rng"]
        assert isinstance(generators, list)
        self._saver.draws.go_on(generators)

    def _form(self, order: RescaleOrder) -> None:
        """Become a member of the new group.

        While the group forms, the death of a replica breaks no connection, so there is
        a time limit. Afterwards its connections break, which ends every wait for it.
        """
        session = self._session
        size = len(order.members)
        session.config = replace(
            session.config,
            place=replace(
                session.config.place,
                generation=order.generation,
                rank=order.members.index(self._me),
                world_size=size,
                placement=Placement(order.placement),
                joining=False,
            ),
            job=replace(session.config.job, batch=order.batch),
        )
        store = self._rendezvous.store(order) if size > 1 else None
        limit = exit_after(WAIT_S, EXIT_UNSAVED)
        session.group = connect_group(session.config, session.group.device, store)
        limit.cancel()
        self._members = order.members

    def _reshape(self) -> None:
        for model in self.models:
            model.reshape()

    def _settle_in(self, clock: PauseClock) -> None:
        """Settle the batch and wrap the model for the new group, after the state has
        arrived.
        """
        session = self._session
        settle_batch(session)
        clock.mark("transfer")
        for model in self.models:
            model.rewrap()
        clock.mark("wrap")

    def _handed_over(self) -> object:
        """Return the parts of this replica's state that may be large and are sent
        unchanged.
        """
        return (
            {} if self._session.model_is_sharded else {"objects": self._saver.objects()}
        )

    def _staying(self, order: RescaleOrder) -> list[str]:
        return [name for name in order.members if name in self._members]

    @contextmanager
    def _or_lost(self, generation: int) -> Iterator[None]:
        """End this process after any error inside the block, because the state of the
        other replicas is then unknown.
        """
        try:
            yield
        except (RuntimeError, OSError) as error:
            logger.error(
                "the change to generation %d failed; training continues from the "
                "last checkpoint: %s",
                generation,
                error,
            )
            self._stop.exit_code = EXIT_UNSAVED
            leave(EXIT_UNSAVED)


def _load_beside_training(name: str) -> None:
    """Import a module once, in a thread."""
    if not any(thread.name == name for thread in threading.enumerate()):
        threading.Thread(
            target=importlib.import_module, args=(name,), name=name, daemon=True
        ).start()
