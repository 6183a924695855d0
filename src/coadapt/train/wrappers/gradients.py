"""Gradients of one optimiser step: weighted over uneven passes, averaged over replicas,
measured on the way.

Works on whole lists and buckets (torch._foreach_*, a DDP communication hook); no hook
per parameter.
"""

# A pass may have several backwards (a GAN's real and false samples, two losses). Each
# one's gradients are weighted and averaged by themselves: what `.grad` held before is
# set aside when a backward begins, and added when its exchange is over. Were it left in
# place, the exchange would weigh it, and in sums count it once per replica. Where
# nothing is exchanged or weighted, on one replica without accumulation, autograd adds
# up.
#
# What is computed after `optimizer.step()` belongs to no step of this model: it is what
# a generator's loss leaves in the discriminator that it went through. A plain loop
# drops it with the next `zero_grad()`; so it stays in `.grad`, and is not taken for a
# part of the step's gradient where passes accumulate.
#
# One replica alone whose step is one pass, not measured, needs nothing of all this:
# autograd's `.grad` is the step's gradient. Such a pass is idle here. No hook is set in
# it: that, with the engine's callbacks, took a tenth of the step of a tiny model.

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import (
    GradBucket,
)  # dist.GradBucket, as its stub knows it

from coadapt.train.dtensors import local_shards
from coadapt.train.group.pass_weights import Factor, scale_all
from coadapt.train.nested import tensors_in
from coadapt.train.noise.norms import NormMeter
from coadapt.train.samples.order import Pass
from coadapt.train.session import Session
from coadapt.train.wrappers.script_check import ScriptCheck, SkippedSteps
from coadapt.train.wrappers.sparse import sum_sparse
from coadapt.train.wrappers.timing import Timer


class Exchange(Protocol):
    """Weights and sums the gradients of each pass where every replica holds a part of
    the parameters.
    """

    def settle(self) -> None:
        """A backward is over."""
        ...


@dataclass(slots=True)
class _Backward:
    """How far the backward of the present pass is. queued: it has begun, and will tell
    when it is over.

    closed: the optimiser has stepped, or would have in a last pass. idle: autograd does
    all there is to do. met: the replicas have spoken in it. exchanges_sparse:
    sparse gradients are still this replica's own. aside: gradients of backwards before.
    """

    idle: bool = False
    queued: bool = False
    computed: bool = False
    averaged: bool = False
    closed: bool = False
    met: bool = False
    exchanges_sparse: bool = False
    aside: dict[Tensor, Tensor] = field(default_factory=dict)


class StepGradients:
    """From the gradients of passes to the gradient of a step, without the user's loop
    knowing.

    A pass leaves the gradient of its own mean loss. The step's gradient is that of the
    mean over all its samples, so passes are weighted by their share of them; gradients
    of passes before the synchronising one leave `.grad` for a list of ours, so that the
    loop may zero, clip and inspect `.grad` as it likes.
    """

    def __init__(
        self,
        session: Session,
        meter: NormMeter,
        timer: Timer,
        parameters: Sequence[Tensor],
        *,
        sums: bool,
    ) -> None:
        """`parameters`: those of the model. `sums`: losses are summed over samples, not
        averaged.
        """
        self.meter = meter
        self.check = ScriptCheck(parameters, speaks=session.group.rank == 0)
        self.skipped = SkippedSteps()
        self._session = session
        self._timer = timer
        self._parameters = list(parameters)
        self._parts: Exchange | None = None
        self._sums = sums
        self._held: dict[Tensor, Tensor] = {}
        self._backward = _Backward()
        # Exchanged at the end of a backward, apart from the others.
        self.sparse: list[Tensor] = []

    @property
    def sums(self) -> bool:
        """Return whether losses are summed over samples."""
        return self._sums

    def parameters(self) -> Sequence[Tensor]:
        """Return the parameters of the model, or this replica's parts of them."""
        return self._parameters

    def covers(self, parameters: Iterable[Tensor]) -> bool:
        """Return whether these are the parameters of the model, no more and no
        fewer.
        """
        return {id(parameter) for parameter in parameters} == {
            id(own) for own in self._parameters
        }

    def rebind(self, parameters: Sequence[Tensor], parts: Exchange | None) -> None:
        """The model has other parameters from now on. `parts`: what exchanges gradients
        if they are cut.
        """
        self._parameters = list(parameters)
        self._parts = parts
        self.meter.follow()
        self.check.follow(parameters)

    def begin_pass(self) -> None:
        """The next backward belongs to the session's current pass."""
        current = self._session.current
        session = self._session
        self._backward.idle = (
            current is not None
            and current.first
            and current.synchronising
            and not session.group.distributed
            and not self.meter.active
            and not self.check.watching
        )
        if self._backward.idle:
            return
        self._backward = _Backward()
        if current is None or current.first:
            self._held = {}

    def watch(self, output: object) -> None:
        """Watch for the backward from `output`: anything that holds tensors."""
        if self._backward.idle:
            return
        self.check.use.forwards += 1
        self._backward.queued = False
        for tensor in tensors_in(output):
            if tensor.requires_grad:
                tensor.register_hook(self._on_backward)  # type: ignore[no-untyped-call]  # torch's own

    def computed(self) -> None:
        """A local backward is over; where replicas synchronise, their exchange may
        still be under way.
        """
        current = self._session.current
        if current is None or self._backward.closed:
            return
        if not self._session.group.distributed:
            self._meet(current)
        again, self._backward.computed = self._backward.computed, True
        if again:
            self.meter.cancel()
        if self._parts is not None:
            self._parts.settle()
        if not current.synchronising:
            self._hold(current)
            return
        if self._parts is not None:
            self._put_back(current, *self._present())
        elif self._session.group.distributed:
            self._timer.mark("computed")
            self._backward.exchanges_sparse = bool(self.sparse)
        else:
            self._merge(current, again=again)

    def averaged(self) -> None:
        """A backward and all exchange of gradients are over: `.grad` is the step's
        gradient.
        """
        current = self._session.current
        if current is None or not current.synchronising:
            if current is None:
                self._average_sparse()
            return
        if self._backward.exchanges_sparse:
            self._exchange_sparse(current)
        if not self._backward.averaged:
            self._backward.averaged = True
            self._measure(current)
            self._held = {}
        for parameter, grad in self._backward.aside.items():
            parameter.grad = (
                grad if parameter.grad is None else parameter.grad.add_(grad)
            )
        self._backward.aside = {}

    def _measure(self, current: Pass) -> None:
        """Take the norms of the step's gradient, which is in `.grad` now."""
        if self._session.group.distributed:
            self._timer.mark("averaged")
            self.meter.end_pass(self._counted(current), self._weight_of(current))
        if not self.meter.active:
            return
        parameters, grads = self._present()
        if self._session.group.distributed or self._held:
            self.meter.set_whole(parameters, local_shards(grads), current.step_samples)
        elif grads:
            self.meter.add_alone(
                parameters, grads, current.num_samples, self._weight_of(current)
            )

    def finish(self) -> None:
        """Before the optimiser's step: do what no backward hook could do (outputs
        without plain tensors).
        """
        if self._backward.idle:
            return
        if not self._backward.computed:
            self.computed()
        if self._session.synchronising:
            self.averaged()

    def stepped(self) -> None:
        """The optimiser's step was called: what is computed after it in this pass is
        not its gradient.
        """
        self._backward.closed = self._session.current is not None

    def exchange(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Weight a bucket of this replica's gradients and sum it over the replicas.
        DDP's hook.
        """
        current = self._session.current
        buffer = bucket.buffer()
        if current is None:
            buffer.div_(self._session.group.size)
        else:
            self._meet(current)
            # A view per parameter is asked for only where it is needed: that costs more
            # than all the rest.
            if self._backward.closed:
                pass
            elif self.meter.preconditioned and self.meter.active:
                self.meter.add_part(
                    bucket.parameters(), bucket.gradients(), self._counted(current)
                )
            else:
                self.meter.add_part((), [buffer], self._counted(current))
            scale_all([buffer], self._factor(current))
            if self._held:
                self._add_held(current, bucket.parameters(), bucket.gradients())
        reduced = dist.all_reduce(buffer, async_op=True).get_future()
        averaged: torch.futures.Future[Tensor] = reduced.then(_first_value)
        return averaged

    def _on_backward(self, _grad: Tensor) -> None:
        """Called when a backward begins, once for each output that takes part in it."""
        if not self._backward.queued:
            self._backward.queued = True
            self._backward.met = False
            if self._backward.computed:
                self._set_aside()
            _at_backward_end(self._on_computed)

    def _on_computed(self) -> None:
        self._backward.queued = False
        self.check.use.backwards += 1
        self.skipped.exchanged |= (
            self._session.group.distributed and self._session.synchronising
        )
        self.computed()
        # DDP's own callback, queued meanwhile, waits for the exchange: ours comes after
        # it.
        _at_backward_end(self.averaged)

    def _set_aside(self) -> None:
        """A further backward of the pass begins: keep its gradients apart where they
        will be weighted.
        """
        current = self._session.current
        if (
            current is None
            or not current.synchronising
            or self._backward.closed
            or self._parts is not None
        ):
            return
        alone_and_whole = (
            not self._session.group.distributed and self._factor(current) == 1.0
        )
        if not alone_and_whole:
            for parameter, grad in zip(*self._present(), strict=True):
                # A view of one of DDP's buckets (gradient_as_bucket_view) will be
                # written over.
                self._backward.aside[parameter] = (
                    grad.clone() if grad._is_view() else grad
                )
                parameter.grad = None

    def _hold(self, current: Pass) -> None:
        """Take the gradients of a pass out of `.grad`, weighted; in parts they were
        before.
        """
        parameters, grads = self._present()
        if self._parts is None:
            self.meter.add_part(parameters, grads, self._counted(current))
            scale_all(grads, self._factor(current))
        self.meter.end_pass(self._counted(current), self._weight_of(current))
        for parameter, grad in zip(parameters, grads, strict=True):
            held = self._held.get(parameter)
            if held is None:
                # A view of one of DDP's buckets (gradient_as_bucket_view) will be
                # written over.
                self._held[parameter] = grad.clone() if grad._is_view() else grad
            else:
                held.add_(grad)
            parameter.grad = None

    def _merge(self, current: Pass, *, again: bool) -> None:
        """Make `.grad` the step's gradient where there is no other replica."""
        if not (self._held or again):
            return
        parameters, grads = self._present()
        self.meter.add_part(parameters, grads, self._counted(current))
        self.meter.end_pass(self._counted(current), self._weight_of(current))
        scale_all(grads, self._factor(current))
        self._put_back(current, parameters, grads)

    def _put_back(
        self, current: Pass, parameters: Sequence[Tensor], grads: Sequence[Tensor]
    ) -> None:
        """Add what passes before have left to `.grad`."""
        self._add_held(current, parameters, grads)
        for parameter in self._held.keys() - set(parameters):
            held = self._held[parameter]
            scale_all([held], self._session.weights.rest(current))
            parameter.grad = held

    def _add_held(
        self, current: Pass, parameters: Sequence[Tensor], grads: Sequence[Tensor]
    ) -> None:
        pairs = [
            (grad, self._held[p])
            for p, grad in zip(parameters, grads, strict=True)
            if p in self._held
        ]
        if pairs:
            helds = [held for _, held in pairs]
            scale_all(helds, self._session.weights.rest(current))
            torch._foreach_add_([grad for grad, _ in pairs], helds)

    def _meet(self, current: Pass) -> None:
        """Once in a backward, before gradients are weighted: hear of the other
        replicas, if need be.
        """
        if not self._backward.met:
            self._backward.met = True
            session = self._session
            session.weights.meet(current, session.group, session.progress.step)

    def _exchange_sparse(self, current: Pass) -> None:
        """Weight sparse gradients and sum them over the replicas, with what passes
        before have left.
        """
        self._backward.exchanges_sparse = False
        self._meet(current)
        present = [item for item in self.sparse if item.grad is not None]
        grads = [item.grad for item in present if item.grad is not None]
        self.meter.add_part(present, grads, self._counted(current))
        scale_all(grads, self._factor(current))
        self._add_held(current, present, grads)
        for item in self.sparse:
            if item.grad is None and item in self._held:
                item.grad = self._held[item]
                scale_all([item.grad], self._session.weights.rest(current))
        sum_sparse(self.sparse, self._session.group.size)

    def _average_sparse(self) -> None:
        """Outside of the loader's loop each replica counts alike."""
        size = self._session.group.size
        if not (self.sparse and self._session.group.distributed) or self._session.trial:
            return
        scale_all([p.grad for p in self.sparse if p.grad is not None], 1.0 / size)
        sum_sparse(self.sparse, size)

    def _factor(self, current: Pass) -> Factor:
        """Return by what the pass's gradient is multiplied."""
        if self._sums:
            return 1.0 if current.num_samples else 0.0
        return self._session.weights.factor(current)

    def _weight_of(self, current: Pass) -> float:
        return self._session.weights.of_pass(current)

    def _counted(self, current: Pass) -> int:
        """Return the samples of a pass whose gradient counts, 0 for another."""
        return current.num_samples if self._weight_of(current) else 0

    def _present(self) -> tuple[list[Tensor], list[Tensor]]:
        parameters = [
            parameter for parameter in self._parameters if parameter.grad is not None
        ]
        return parameters, [
            parameter.grad for parameter in parameters if parameter.grad is not None
        ]


def _first_value(future: torch.futures.Future[list[Tensor]]) -> Tensor:
    return future.value()[0]


def _at_backward_end(callback: Callable[[], None]) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(callback)  # as FSDP does
