"""What `coadapt check` sees of a replica: a row for each optimiser step, and a gate at
which it waits.
"""

import importlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from coadapt.durable import put_in_place, write_whole
from coadapt.model import InputError
from coadapt.model.rescale import member_name
from coadapt.model.wire import from_json, to_json
from coadapt.train.dtensors import local_shards
from coadapt.train.env import Draws
from coadapt.train.rng import seed_rng
from coadapt.train.session import Session
from coadapt.train.wrappers.drift import Watched, checksum, trained
from coadapt.train.wrappers.evidence import Evidence, contents

PLAN_FILE = "plan.json"
GATE_FILE = "gate.json"
# Of a run whose loop is another library's: in how many equal shares it trains at most.
SHARES_FILE = "shares.json"
# What a run holds where its script ends by itself.
END_FILE = "end.pt"
LOOK_S = 0.01
# Longer than any check may take: a replica whose check was killed must not wait for
# ever.
GATE_WAIT_MAX_S = 3600.0
SLOW_IMPORT = "torch._dynamo"
FLOAT32_ERROR = torch.finfo(torch.float32).eps
# Of a gradient, in units of the last place: two kernels add up the products of a layer
# in other orders.
SUM_ERRORS = 16.0
SKETCH_SUMS = 64
SKETCH_SEED = 1
# What draws or computes per replica, so that parameters differ between numbers of
# replicas.
RANDOM_LAYERS = (nn.modules.dropout._DropoutNd, nn.MultiheadAttention, nn.RNNBase)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The orders for a run that is checked. num_steps: steps after which it stops.
    seed: of all random generators.

    nudge: a number > 0 makes a reference run, whose parameters at the start and whose
    gradients are off by rounding errors; each number draws other ones.
    still: take back what each step does to the parameters, so that losses of two runs
    can be compared.
    """

    num_steps: int
    seed: int = 0
    nudge: int = 0
    still: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """How far training may go. hold: the step after which it waits; pace_s: of waiting
    after each step.
    """

    hold: int | None = None
    pace_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One optimiser step as one replica saw it.

    ids: of its samples. rates, updates: of each pair of model and optimiser: learning
    rates of its groups; calls of step(). checksum, norm: of all parameters after it.
    sketch: sums of them by which two rows are compared, see Sketch.
    forwards, backwards: through each model. losses: of each backward, with the samples
    of its pass. gradient: a mixed sum and the norm of what the optimiser was given.
    draws: global generators that the loop's body drew from. others: steps of optimisers
    that have no parameter of a prepared model. touched: parameters changed outside of
    optimizer.step().
    hooks: parameters whose gradient a hook of the script may change. seen: the script's
    own variables.
    """

    step: int
    epoch: int
    rank: int
    num_replicas: int
    generation: int
    ids: tuple[int, ...]
    rates: tuple[tuple[float, ...], ...]
    updates: tuple[int, ...]
    checksum: float
    norm: float
    sketch: tuple[float, ...] = ()
    forwards: tuple[int, ...] = ()
    backwards: tuple[int, ...] = ()
    losses: tuple[tuple[int, float], ...] = ()
    gradient: tuple[float, float] = (0.0, 0.0)
    draws: tuple[str, ...] = ()
    others: int = 0
    touched: bool = False
    hooks: int = 0
    seen: dict[str, list[object]] = field(default_factory=dict)


class Sketch:
    """Reduces all parameters to SKETCH_SUMS numbers, so that the distance of two such
    rows of numbers is about that of the parameters.

    Each parameter goes with a random sign, always the same, into one of the sums. The
    expected square of the distance is exact, with a relative deviation of
    (2 / SKETCH_SUMS)^0.5 (Charikar, Chen, Farach-Colton: Finding frequent items in data
    streams, 2002).
    """

    def __init__(self) -> None:
        self._signs: list[Tensor] = []

    @torch.no_grad()
    def of(self, pairs: Sequence[Watched]) -> tuple[float, ...]:
        """Return the sums of all parameters that may change."""
        items = [item.detach() for item in trained(pairs)]
        if [item.numel() for item in items] != [item.numel() for item in self._signs]:
            chance = torch.Generator().manual_seed(SKETCH_SEED)
            self._signs = [
                (torch.randint(0, 2, (item.numel(),), generator=chance) * 2 - 1).to(
                    item.device, torch.int8
                )
                for item in items
            ]
        sums = torch.zeros(SKETCH_SUMS, dtype=torch.float64)
        shift = 0
        for item, signs in zip(items, self._signs, strict=True):
            signed = item.reshape(-1).double() * signs
            whole = nn.functional.pad(signed, (0, -signed.numel() % SKETCH_SUMS))
            sums += whole.view(-1, SKETCH_SUMS).sum(0).roll(shift).cpu()
            shift += item.numel()
        return tuple(sums.tolist())


class StepRecorder:
    """Writes rows of one replica into the check's folder; between two steps, it waits
    at the gate.
    """

    def __init__(self, session: Session, folder: Path) -> None:
        self._session = session
        self._folder = folder
        self._plan = from_json(
            Plan, json.loads((folder / PLAN_FILE).read_text()), PLAN_FILE
        )
        self._member = member_name(
            session.config.place.generation, session.config.place.rank
        )
        self._ids: list[int] = []
        self._before: dict[str, tuple[int, ...]] = {}
        self._parameters: list[nn.Parameter] = []
        self._first: list[Tensor] = []
        self._chance = torch.Generator()
        self._sketch = Sketch()
        # Of autocast, as soon as the script uses it: the relative rounding error.
        self._precision = 0.0
        self.sample_ids: Callable[[], Sequence[int]] = list
        self.dataset: object = None
        self.evidence = Evidence()
        self.evidence.num_samples = lambda: len(self.sample_ids())
        seed_rng(self._plan.seed)

    def begin(self, models: Sequence[nn.Module], *, hosted: bool = False) -> None:
        """The script has come to its training: say so, and what its models are made of.

        hosted: the loop is another library's. InputError where no replica could join a
        loop of the script's.
        """
        if not hosted:
            _check_accelerator()
        if (
            self._folder / GATE_FILE
        ).exists():  # replicas will change: no part of the pace
            importlib.import_module(SLOW_IMPORT)
        kinds = {_kind(module) for model in models for module in model.modules()} - {""}
        if self._session.config.random is Draws.PER_SAMPLE:
            kinds.discard("dropout")  # the same at any number of replicas
        door = {"kinds": sorted(kinds), "contents": contents(self.dataset)}
        write_whole(
            self._folder / f"{self._member}.door", json.dumps(door), durable=False
        )
        self._parameters = [item for model in models for item in model.parameters()]
        self.evidence.parameters = lambda: self._parameters
        if self._plan.nudge:
            self._nudge()
        if self._plan.still:
            self._first = [item.detach().clone() for item in self._parameters]

    @torch.no_grad()
    def _nudge(self) -> None:
        """Change each parameter by a rounding error, up or down, and each gradient from
        now on; the script's generators stay as they are.
        """
        self._chance = torch.Generator().manual_seed(self._plan.nudge)
        for item in self._parameters:
            if item.is_floating_point():
                # Half a unit in the last place, or a whole one in few digits.
                own = torch.finfo(item.dtype).eps
                self._shake([item], own if own > FLOAT32_ERROR else own / 2.0)
        # Under autocast rounding is far above that of float32.
        kind = self._session.group.device.type

        def note_precision(_module: nn.Module, _args: object) -> None:
            if torch.is_autocast_enabled(kind) and torch.is_grad_enabled():
                self._precision = torch.finfo(torch.get_autocast_dtype(kind)).eps

        nn.modules.module.register_module_forward_pre_hook(note_precision)
        self.evidence.change_gradients = self._nudge_gradients

    def _nudge_gradients(self, grads: Sequence[Tensor]) -> None:
        """Change gradients as rounding may: each is a sum, and other kernels, passes
        and replicas add it up in another order.
        """
        for grad in grads:
            if grad.is_floating_point():
                own = torch.finfo(grad.dtype).eps
                error = own if own > FLOAT32_ERROR else SUM_ERRORS * own
                self._shake([grad], max(error, self._precision))

    def _shake(self, tensors: Sequence[Tensor], error: float) -> None:
        """Multiply each number by 1 ± `error`."""
        for item in local_shards(tensors):
            values = item._values() if item.is_sparse else item
            signs = (
                torch.randint(0, 2, values.shape, generator=self._chance) * 2.0 - 1.0
            )
            values.mul_(1.0 + error * signs.to(values))

    @torch.no_grad()
    def _keep_still(self) -> None:
        """Take back what the step did to the parameters."""
        for item, first in zip(self._parameters, self._first, strict=True):
            item.copy_(first)

    def begin_pass(self) -> None:
        """The body is about to run on the samples of `sample_ids`."""
        self._ids += self.sample_ids()

    def end_step(self, pairs: Sequence[Watched]) -> bool:
        """Write the step's row, and wait as long as the gate says; return whether
        training is to stop.
        """
        session = self._session
        total, norm = (0.0, 0.0) if session.model_is_sharded else checksum(pairs)
        row = StepRow(
            step=session.progress.step,
            epoch=session.progress.epoch,
            rank=session.group.rank,
            num_replicas=session.group.size,
            generation=session.config.place.generation,
            ids=tuple(self._ids),
            rates=tuple(pair.rates() for pair in pairs),
            updates=self._since("steps", pairs),
            checksum=total,
            norm=norm,
            sketch=() if session.model_is_sharded else self._sketch.of(pairs),
            forwards=self._since("forwards", pairs),
            backwards=self._since("backwards", pairs),
            **cast("dict[str, Any]", self.evidence.take()),
        )
        self._ids = []
        if self._plan.still:
            self._keep_still()
        with (self._folder / f"{self._member}.jsonl").open("a") as file:
            file.write(json.dumps(asdict(row)) + "\n")
        self._wait_at_gate(row.step)
        return row.step >= self._plan.num_steps

    def end(self, state: Mapping[str, object]) -> None:
        """The script has come to its end, with this state, as a checkpoint has it: the
        first replica keeps it.
        """
        if self._session.group.rank or self._session.model_is_sharded:
            return
        beside = self._folder / f"{END_FILE}.writing"
        torch.save(dict(state), beside)
        put_in_place(beside, self._folder / END_FILE)

    def _since(self, what: str, pairs: Sequence[Watched]) -> tuple[int, ...]:
        """Return how often each pair's parts were used in the step that ends."""
        now = tuple(int(getattr(pair.use, what)) for pair in pairs)
        before = self._before.get(what, (0,) * len(now))
        self._before[what] = now
        return tuple(new - old for new, old in zip(now, before, strict=True))

    def _wait_at_gate(self, step: int) -> None:
        began = time.monotonic()
        while (waited_s := time.monotonic() - began) < GATE_WAIT_MAX_S:
            gate = read_gate(self._folder)
            if waited_s >= gate.pace_s and (gate.hold is None or step < gate.hold):
                return
            time.sleep(LOOK_S)


def _check_accelerator() -> None:
    """Raise InputError if Accelerate knows of the replicas: a joining replica would
    wait for its group.
    """
    state = sys.modules.get("accelerate.state")
    ours = "coadapt.train.integrations.accelerate" in sys.modules
    if state is not None and state.PartialState._shared_state and not ours:
        allowed = (
            "CoadaptAccelerator(run): a plain one forms a group that no replica can "
            "join"
        )
        raise InputError("Accelerator", "a plain one", allowed)


def read_gate(folder: Path) -> Gate:
    """Return the gate in `folder`; open if there is none."""
    try:
        return from_json(Gate, json.loads((folder / GATE_FILE).read_text()), GATE_FILE)
    except FileNotFoundError:
        return Gate()


def write_gate(folder: Path, gate: Gate) -> None:
    write_whole(folder / GATE_FILE, json.dumps(to_json(gate)), durable=False)


def _kind(module: nn.Module) -> str:
    """Return why a module's results depend on how samples are dealt to replicas; empty
    if they do not.
    """
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return "batch normalisation"
    if isinstance(module, RANDOM_LAYERS):
        rate = (
            getattr(module, "p", None)
            if hasattr(module, "p")
            else getattr(module, "dropout", 0.0)
        )
        return "dropout" if isinstance(rate, float) and rate > 0.0 else ""
    return ""
