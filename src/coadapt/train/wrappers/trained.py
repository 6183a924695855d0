"""The pairs of a model and its optimiser that a run trains: one, or several with
names.
"""

# A GAN, an actor and a critic, a teacher that goes on learning: each pair has its own
# gradients, scaling rule and noise scale, since an AdaScale gain of one says nothing
# about the other. A step is still one for all of them: same samples, same passes, same
# moment of consensus. So the first pair leads: the batch is chosen by its noise scale,
# reports and `run.grad_stats` are about it. The noise of the others is summed in the
# same exchange, five numbers for each, and serves their own rule only.

import functools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from coadapt.model import BatchRule, InputError
from coadapt.train.noise.noise_scale import GradNorms
from coadapt.train.noise.norm_layers import LayerRows
from coadapt.train.noise.norms import NormMeter
from coadapt.train.noise.preconditioner import preconditioner_for
from coadapt.train.noise.scaling_rules import ScalingRule, resolve_rule
from coadapt.train.session import Session
from coadapt.train.wrappers.added_groups import AddedGroups
from coadapt.train.wrappers.drift import DriftCheck, Watched
from coadapt.train.wrappers.gradients import StepGradients
from coadapt.train.wrappers.hidden_state import WholeState
from coadapt.train.wrappers.model import ElasticModel
from coadapt.train.wrappers.optimizer import ElasticOptimizer, check_optimizer
from coadapt.train.wrappers.own_rule import OwnRule
from coadapt.train.wrappers.raw_gather import RawGathers
from coadapt.train.wrappers.recorder import StepRecorder
from coadapt.train.wrappers.script_check import BesideCheck
from coadapt.train.wrappers.timing import Timer
from coadapt.train.wrappers.unused import UnusedParameters

if TYPE_CHECKING:
    from coadapt.train.wrappers.fsdp import Shard

logger = logging.getLogger(__name__)

REDUCTIONS = ("mean", "sum")
NOISE = ("gradients", "norm-layers")
# Steps without a backward are sent as bits of one number, which a sum over replicas
# must leave exact.
SKIPPED_BITS = 9
PAIRS_MAX = 4
# Kinds of what is registered that hold no learning-rate scheduler; a name of the
# script's own may be one.
NO_SCHEDULER = {"model", "optimizer", "unused", "scaler", "state", "per_sample"}


class Preparation(TypedDict, total=False):
    """Arguments of `Run.prepare`, all optional.

    scaling: how the learning rate follows the batch: "auto" (AdaScale for SGD, square
    root for others), "adascale", "square-root", "linear", "legw", "adam", "none", or a
    function of `BatchScale`. reduction: whether the loss is the "mean" or the "sum"
    over its samples. noise: what the gradient noise scale is measured on: the whole
    "gradients", or also the per-example gradients of "norm-layers". shard: FSDP2, so
    that each replica holds only a shard of the model: True, a list of the module
    classes that are gathered one by one, or a function of model and device mesh that
    calls `fully_shard`. ddp, fsdp: further arguments of DistributedDataParallel or
    `fully_shard`.
    """

    scaling: str | ScalingRule
    reduction: str
    noise: str
    shard: "Shard"
    ddp: Mapping[str, object] | None
    fsdp: Mapping[str, object] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedPair:
    """A model and its optimiser, as the user's loop has them. name: empty, or the
    user's.
    """

    name: str
    model: ElasticModel
    optimizer: ElasticOptimizer
    gradients: StepGradients


class TrainedPairs:
    """The pairs of model and optimiser that are trained. Each pass and step is passed
    to them in the order in which they were prepared; the first pair leads.
    """

    def __init__(self, session: Session) -> None:
        folder = session.config.check_dir
        self.recorder = None if folder is None else StepRecorder(session, folder)
        self.drift = DriftCheck(session)
        self.beside = BesideCheck(session)
        self.gathers = RawGathers(session)
        self.unused = UnusedParameters(session)
        self.rule: OwnRule | None = None
        self._session = session
        self._pairs: list[TrainedPair] = []

    def __iter__(self) -> Iterator[TrainedPair]:
        return iter(self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    @property
    def leading(self) -> TrainedPair:
        assert self._pairs, "no pair yet"
        return self._pairs[0]

    @property
    def num_steps(self) -> int:
        """Return how often the optimisers of all pairs have stepped."""
        return sum(pair.gradients.check.use.steps for pair in self._pairs)

    def check_next(self, name: str, shard: object) -> None:
        """Raise InputError unless a pair of that name may be added."""
        if not self._pairs:
            return
        if not name or name in {pair.name for pair in self._pairs}:
            allowed = (
                "another name for each further pair: run.prepare(model, optimizer, "
                'name="critic")'
            )
            raise InputError(
                "prepare(name)", name or "a second call without one", allowed
            )
        if shard is not False or self._session.model_is_sharded:
            raise InputError(
                "prepare(shard)",
                "several models",
                "one model where replicas hold parts of it",
            )
        if len(self._pairs) == PAIRS_MAX:
            raise InputError(
                "prepare", f"{PAIRS_MAX + 1} calls", f"at most {PAIRS_MAX} pairs"
            )

    def check_schedulers(self, kept: Iterable[str]) -> None:
        """Warn of a learning-rate scheduler where nothing is kept, by these names, that
        could be one.

        One that torch made has left its mark in the optimiser's groups.
        """
        groups = [
            group for pair in self._pairs for group in pair.optimizer.param_groups
        ]
        lone = {name.split("/")[0] for name in kept} <= NO_SCHEDULER
        if (
            lone
            and self._session.group.rank == 0
            and any("initial_lr" in group for group in groups)
        ):
            logger.warning(
                "a learning-rate scheduler that run.prepare_scheduler(...) was not "
                "given starts from its beginning after a "
                "stop and in a replica that joins, and steps in every pass"
            )

    def add(self, pair: TrainedPair) -> None:
        """Train this pair as well."""
        self._pairs.append(pair)
        if not self._session.model_is_sharded:
            name = pair.name
            given = pair.model.ddp_given
            self.unused.know(name, pair.model.module)
            pair.model.ddp_options = lambda given: self.unused.options(name, given)
            pair.optimizer.before_step = functools.partial(
                self.unused.look, name, given
            )
        self.beside.know(list(pair.model.module.parameters()))
        self.drift.watch(
            Watched(
                name=pair.name,
                parameters=lambda: list(pair.model.module.parameters()),
                optimizer=pair.optimizer,
                use=pair.gradients.check.use,
            )
        )

    def follow(self, rule: BatchRule) -> OwnRule:
        """Let the leading pair's gradients decide by `rule` on the batch; return the
        decider.
        """
        self.rule = OwnRule(self._session, rule)
        return self.rule

    def begin_pass(self, *, first: bool, measure: bool) -> None:
        current = self._session.current
        if current is not None:
            self._session.weights.begin_pass(current)
        if self.rule is not None:
            self.rule.watch(self.leading.optimizer.inner)
        for pair in self._pairs:
            if first:
                pair.gradients.meter.begin_step(measure=measure)
            pair.gradients.begin_pass()
        if self.recorder is not None:
            self.recorder.begin_pass()

    def body_begins(self) -> None:
        """All is set for the loop's body: `coadapt check` looks on from here."""
        if self.recorder is not None:
            self.recorder.evidence.body_begins()

    def body_ended(self) -> None:
        """The loop's body has run on a pass."""
        if self.recorder is not None:
            self.recorder.evidence.body_ended()

    def end_step(self) -> bool:
        """Return whether training is to stop here, on all replicas alike: what is
        checked has a last step.
        """
        distributed = self._session.group.distributed
        self._session.weights.end_step()
        for pair in self._pairs:
            pair.gradients.check.end_step()
            if distributed:  # a single replica waits for no backward
                pair.gradients.skipped.end_step()
        return self.recorder is not None and self.recorder.end_step(self.drift.pairs)

    def end_training(self, step: int) -> None:
        for pair in self._pairs:
            pair.gradients.check.end_training(step)

    def enter(self) -> None:
        """A new group begins."""
        for pair in self._pairs:
            pair.gradients.meter.forget()
            # A replica that joins knows nothing of steps without a backward before it
            # came.
            pair.gradients.skipped.forget()
        self._session.weights.enter()
        self.drift.enter()

    def take_skipped(self) -> int:
        """Return which steps, since this was asked last, had no backward: bits for each
        pair.
        """
        return sum(
            pair.gradients.skipped.take() << (SKIPPED_BITS * index)
            for index, pair in enumerate(self._pairs)
        )

    def take_norms(self, step_samples: int) -> list[GradNorms | None]:
        """Return this replica's norms of the step, for each pair."""
        holders = 1 if self._session.model_is_sharded else self._session.group.size
        unit = self._session.weights.unit(step_samples)
        return [
            pair.gradients.meter.take(holders, step_samples, unit)
            for pair in self._pairs
        ]

    def learn(self, others: Sequence[GradNorms | None], samples: float) -> None:
        """Take in the group's norms of all pairs but the leading one, measured after
        `samples` samples.
        """
        for pair, norms in zip(self._pairs[1:], others, strict=False):
            if norms is not None:
                self._session.noise_of(pair.name).add(norms, samples)

    def close(self) -> None:
        """The group is about to end: let go of it, and of what outlives it."""
        self.beside.close()
        self.gathers.close()
        for pair in self._pairs:
            pair.gradients.check.close()
            pair.model.let_go()


def build_pair(
    session: Session,
    timer: Timer,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    name: str,
    how: Preparation,
) -> TrainedPair:
    """Return the pair, its model on the device and with the first replica's values; see
    `Preparation`.

    Raises InputError for a value that is not allowed, or an optimiser of another model.
    """
    reduction = how.get("reduction", "mean")
    shard = how.get("shard", False)
    if reduction not in REDUCTIONS:
        raise InputError("prepare(reduction)", reduction, " or ".join(REDUCTIONS))
    check_optimizer(optimizer, model)
    rule = resolve_rule(how.get("scaling", "auto"), optimizer)
    sums = reduction == "sum"
    meter = _meter(how.get("noise", "gradients"), model, optimizer, sums=sums)
    gradients = StepGradients(
        session, meter, timer, list(model.parameters()), sums=sums
    )
    sharding = None
    if shard is not False:
        from coadapt.train.wrappers.fsdp import Sharding
        from coadapt.train.wrappers.fsdp_exchange import ShardExchange

        if WholeState(optimizer).inner:
            allowed = (
                "an optimizer without another one in it where replicas hold parts of "
                "the model"
            )
            raise InputError("prepare(optimizer)", type(optimizer).__name__, allowed)
        exchange = ShardExchange(session, meter, timer, sums=sums)
        sharding = Sharding(shard, dict(how.get("fsdp") or {}), optimizer, exchange)
    elastic = ElasticModel(
        model, session, gradients, dict(how.get("ddp") or {}), sharding
    )
    elastic.begin()
    session.needs_two = session.needs_two or normalises_over_batch(model)
    session.model_is_sharded = session.model_is_sharded or sharding is not None
    added = AddedGroups(optimizer, model)
    stepper = ElasticOptimizer(
        optimizer, session, gradients, rule, added=added, name=name
    )
    return TrainedPair(name=name, model=elastic, optimizer=stepper, gradients=gradients)


def normalises_over_batch(model: nn.Module) -> bool:
    """Return whether a part of `model` is batch normalisation, which refuses a single
    sample.
    """
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def _meter(
    noise: str, model: nn.Module, optimizer: torch.optim.Optimizer, *, sums: bool
) -> NormMeter:
    metric = preconditioner_for(optimizer)
    layers = None
    if noise not in NOISE:
        raise InputError("prepare(noise)", noise, " or ".join(NOISE))
    if noise == "norm-layers":
        try:
            layers = LayerRows(model, metric)
        except ValueError as error:
            raise InputError("prepare(noise)", noise, str(error)) from None
    return NormMeter(metric, sums=sums, layers=layers)
