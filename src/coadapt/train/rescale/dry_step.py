"""The dry step of a joining replica: an error there ends it before others change."""

# A growth that begins and fails costs all replicas the work since the last checkpoint.
# So a joining replica first tries its first step, while the others train: it fetches a
# pass of data, runs the model forward and backward, and lets the optimiser step. If
# that fails, the replica ends with the cause. It was never ready, so no other replica
# is affected.
#
# The loop's body does not run in the dry step. Its variables cannot be restored, it may
# communicate with the other replicas, write files or log, and the number of the epoch
# is known only after the state has arrived. So a replica that trains notes how the body
# calls the model: the arguments of one training forward, and its autocast. The joining
# replica makes the same call, and sums the outputs instead of a loss.
#
# These are restored afterwards: parameters, buffers and plain attributes of the model,
# the optimiser's state, gradients and random generators. (The state from the other
# replicas overwrites them in any case.) Hooks on modules run, because weight
# normalisation is one. Hooks on the optimiser do not run.
#
# Which errors count. The same call works on other replicas, but here the objects are
# missing that the body prepares before it (a hidden state, a mask). Errors that this
# may explain (`UNSURE`) are ignored, and the change continues. All other errors count:
# too little memory, a GPU or a library that does not work, a missing file.
#
# The dry step does not test the loss and the rest of the body, a sharded model (only
# data is tried), a model that is called with objects other than plain data, or memory
# that only further models need.

import contextlib
import gc
import io
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from coadapt.goodput.batch import split_total
from coadapt.model import InputError
from coadapt.model.rescale import RescaleOrder
from coadapt.train.checkpoint.writer import copy_to_host
from coadapt.train.memory_ceiling import is_out_of_memory
from coadapt.train.nested import map_leaves, tensors_in
from coadapt.train.rng import restore_rng, rng_state
from coadapt.train.session import Session
from coadapt.train.wrappers.raw_gather import check_shares
from coadapt.train.wrappers.trained import TrainedPair

logger = logging.getLogger(__name__)

# Only the first row of a larger tensor is sent, and repeated.
WHOLE_BYTES = 1 << 20
ROWS = "coadapt.rows"
# The number of checks of the order within which a training forward is expected.
LOOKS_MAX = 3
# Errors of a call whose objects the loop's body has not prepared.
UNSURE = (
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    NotImplementedError,
    TypeError,
)
NO_GROUP = "process group has not been initialized"
TEXT_MAX = 200
CONTAINERS = (dict, OrderedDict, list, set)
PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.Size)


class DryStepError(RuntimeError):
    """A joining replica could not take a step."""


class CallNotes:
    """How the training loop calls its models, noted once per order on a running
    replica.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._generation = 0
        self._num_looks = 0
        self._calls: dict[str, dict[str, object]] = {}
        self._pairs: Sequence[TrainedPair] = ()

    def taken(self, generation: int, pairs: Sequence[TrainedPair]) -> bool:
        """Return whether the calls are noted. The first call for an order begins to
        note them.
        """
        if generation != self._generation:
            self._generation = generation
            self._num_looks = 0
            self._calls = {}
            self._pairs = pairs
            for pair in pairs:
                pair.model.on_call = self._noting(pair)
        self._num_looks += 1
        complete = len(self._calls) == len(pairs)
        return complete or self._num_looks > LOOKS_MAX or not pairs

    def write(self) -> bytes:
        """Return the noted calls, for `DryStep.run`."""
        for pair in self._pairs:
            pair.model.on_call = None
        buffer = io.BytesIO()
        torch.save(self._calls, buffer)
        return buffer.getvalue()

    def _noting(self, pair: TrainedPair) -> Callable[[object, object], None]:
        def note(args: object, kwargs: object) -> None:
            current = self._session.current
            if current is None or not current.num_samples or self._session.trial:
                return
            pair.model.on_call = None
            self._calls[pair.name] = {
                **_call_of(pair.model.module, args, kwargs, self._session.group.device),
                "num_samples": current.num_samples,
                "total": self._session.data.batch.total,
                "raw_gather": self._session.raw_gather,
            }

        return note


def _call_of(
    module: nn.Module, args: object, kwargs: object, device: torch.device
) -> dict[str, object]:
    """Return a training forward as plain data. If that is impossible, `refused` is the
    reason.
    """
    try:
        given = map_leaves(_as_plain, [args, kwargs])
    except TypeError as error:
        return {"refused": str(error)}
    kind = device.type
    autocast = (
        torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    )
    return {
        "given": given,
        "autocast": autocast,
        "training": [part.training for part in module.modules()],
        "trained": [item.requires_grad for item in module.parameters()],
    }


def _as_plain(_path: str, leaf: object) -> object:
    """Return one value of a call in the form in which it is sent. Raises TypeError for
    a value that is not plain data.
    """
    if leaf is None or type(leaf) in PLAIN:
        return leaf
    if type(leaf) not in (Tensor, nn.Parameter):
        raise TypeError(f"the model is called with a {type(leaf).__name__}")
    tensor = cast("Tensor", leaf).detach()
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise TypeError(f"the model is called with a tensor of {tensor.layout}")
    num_rows = 1
    if tensor.dim() and tensor.numel() * tensor.element_size() > WHOLE_BYTES:
        num_rows = tensor.shape[0]
        tensor = tensor[:1]
    return {
        ROWS: num_rows,
        "values": tensor.to("cpu", copy=True).contiguous(),
        "on_cpu": cast("Tensor", leaf).device.type == "cpu",
        "grad": cast("Tensor", leaf).requires_grad,
    }


@dataclass(slots=True)
class DryStep:
    """Takes the dry step of this replica. fetch: fetches a pass of data and drops
    it.
    """

    session: Session
    pairs: list[TrainedPair] = field(default_factory=list)
    fetch: Callable[[], None] = lambda: None

    def run(self, notes: bytes, order: RescaleOrder) -> None:
        """Take the step that `CallNotes` noted. Raises DryStepError if it fails."""
        began_s = time.monotonic()
        device = self.session.group.device
        generators = rng_state(device)
        self.session.trial = True
        try:
            left_out = self._data() + self._models(notes, order)
        finally:
            self.session.trial = False
            restore_rng(generators, device)
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
        logger.info(
            "dry step before generation %d: %.1f s%s",
            order.generation,
            time.monotonic() - began_s,
            "".join(f"; not tried: {why}" for why in left_out),
        )

    def _data(self) -> list[str]:
        try:
            self.fetch()
        except Exception as error:  # noqa: BLE001  # whatever the user's data set raises
            return [_sure("a pass of training data", error)]
        return []

    def _models(self, notes: bytes, order: RescaleOrder) -> list[str]:
        """Return in words the parts that could not be tried."""
        if self.session.model_is_sharded:
            return ["a model of which replicas hold parts"]
        calls = torch.load(io.BytesIO(notes), weights_only=True) if notes else {}
        left_out: list[str] = []
        for pair in self.pairs:
            call = calls.get(pair.name)
            if call is None:
                left_out.append("the model, since no replica called it meanwhile")
            elif "refused" in call:
                left_out.append(str(call["refused"]))
            else:
                left_out += self._model(pair, call, order)
        return left_out

    def _model(
        self, pair: TrainedPair, call: dict[str, object], order: RescaleOrder
    ) -> list[str]:
        """Return in words the parts of one model's step that could not be tried."""
        noted = cast("int", call["num_samples"])
        total = cast("int", call["total"])
        own = self._own_samples(total, order)
        _check_gathers(str(call.get("raw_gather", "")), total, order)
        num_samples = min(noted, own)
        error = self._failure(pair, call, num_samples)
        if error is None:
            return []
        if num_samples == noted or is_out_of_memory(error):
            return [_sure(f"a step of {num_samples} samples", error)]
        # A tensor may have as many rows as the noted pass although its rows are not
        # samples.
        error = self._failure(pair, call, noted)
        if error is None:
            return []
        if is_out_of_memory(error):
            return [f"a step of {num_samples} samples, which cannot be made up"]
        return [_sure(f"a step of {noted} samples", error)]

    def _failure(
        self, pair: TrainedPair, call: dict[str, object], num_samples: int
    ) -> Exception | None:
        """Return the error of a step of `num_samples`, None if it works. All effects of
        the step are undone.
        """
        try:
            with _undone(pair):
                self._step(pair, call, num_samples)
        except Exception as error:  # noqa: BLE001  # whatever the user's model raises
            return error
        return None

    def _own_samples(self, total: int, order: RescaleOrder) -> int:
        """Return how many samples a pass of this replica will have."""
        limits = self.session.data.limits
        batch = order.batch or split_total(
            total, len(order.members), limits, exact=True
        )
        most = self.session.memory_ceiling.most
        return max(1, batch.atomic if most is None else min(batch.atomic, most))

    def _step(
        self, pair: TrainedPair, call: Mapping[str, object], num_samples: int
    ) -> None:
        device = self.session.group.device
        module = pair.model.module
        _set_flags(module, call)
        noted = cast("int", call["num_samples"])
        args, kwargs = cast(
            "tuple[Sequence[object], Mapping[str, object]]",
            _given(call["given"], noted, num_samples, device),
        )
        dtype = cast("torch.dtype | None", call["autocast"])
        with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            output = module(*args, **kwargs)
        tensors = [item for item in tensors_in(output) if item.requires_grad]
        if tensors:
            # The buffers for communication take as much memory as the gradients.
            buckets = [
                torch.empty_like(item)
                for item in module.parameters()
                if item.requires_grad
            ]
            torch.stack([_size_of(item) for item in tensors]).sum().backward()  # type: ignore[no-untyped-call]  # torch's own
            with _no_step_hooks(pair.optimizer.inner):
                pair.optimizer.inner.step()
            buckets.clear()
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def _check_gathers(name: str, total: int, order: RescaleOrder) -> None:
    """Raise DryStepError if torch's gather `name` needs equal shares, which this order
    does not have.
    """
    try:
        check_shares(
            name,
            total if order.batch is None else order.batch.total,
            len(order.members),
        )
    except InputError as error:
        raise DryStepError(f"before joining: {error}") from None


def _sure(what: str, error: Exception) -> str:
    """Return what `error` left untried. Raises DryStepError if `error` shows a
    fault.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else ""
    if "Original Traceback" in str(error):
        text = lines[-1]  # the last line of an error from a fetch process
    kind = type(error).__name__
    said = f"{what}: {kind}: {text[:TEXT_MAX]}"
    if isinstance(error, UNSURE) or NO_GROUP in str(error):
        return said
    raise DryStepError(f"before joining, {said}") from error


def _set_flags(module: nn.Module, call: Mapping[str, object]) -> None:
    parts = list(module.modules())
    training = cast("list[bool]", call["training"])
    if len(training) == len(parts):
        for part, flag in zip(parts, training, strict=True):
            part.training = flag
    parameters = list(module.parameters())
    trained = cast("list[bool]", call["trained"])
    if len(trained) == len(parameters):
        for parameter, flag in zip(parameters, trained, strict=True):
            parameter.requires_grad_(flag)


def _given(value: object, noted: int, num_samples: int, device: torch.device) -> object:
    """Return the arguments of a call; tensors of `noted` rows are cut to
    `num_samples`.
    """
    if isinstance(value, dict) and ROWS in value:
        tensor = cast("Tensor", value["values"])
        if value[ROWS] > 1:
            tensor = tensor.expand(value[ROWS], *tensor.shape[1:])
        if tensor.dim() and tensor.shape[0] == noted:
            tensor = tensor[:num_samples]
        where = torch.device("cpu") if value["on_cpu"] else device
        made = tensor.to(where, copy=True)
        return made.requires_grad_() if value["grad"] else made
    if isinstance(value, dict):
        return {
            key: _given(item, noted, num_samples, device) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        items = [_given(item, noted, num_samples, device) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    return value


def _size_of(tensor: Tensor) -> Tensor:
    """Return a number that depends on all elements of `tensor`."""
    return (tensor.abs() if tensor.is_complex() else tensor).float().mean()


@contextlib.contextmanager
def _undone(pair: TrainedPair) -> Iterator[None]:
    """Undo all changes of a model and its optimiser that are made inside the block."""
    module = pair.model.module
    tensors = [*module.parameters(), *module.buffers()]
    flags = [item.requires_grad for item in module.parameters()]
    values = [item.detach().to("cpu", copy=True) for item in tensors]
    attributes = [(vars(part), _copied(vars(part))) for part in module.modules()]
    state = copy_to_host(pair.optimizer.state_dict())
    try:
        yield
    finally:
        for own, before in attributes:
            _put_back(own, before)
        for parameter, flag in zip(module.parameters(), flags, strict=True):
            parameter.requires_grad_(flag)
            parameter.grad = None
        with torch.no_grad():
            for item, value in zip(tensors, values, strict=True):
                item.data.copy_(value)
        pair.optimizer.load_state_dict(state)


def _copied(attributes: Mapping[str, object]) -> dict[str, tuple[object, Any]]:
    """Return a module's attributes. A container also has a copy of its content."""
    return {
        name: (value, value.copy() if type(value) in CONTAINERS else None)  # type: ignore[attr-defined]  # they have one
        for name, value in attributes.items()
    }


def _put_back(own: dict[str, object], before: Mapping[str, tuple[object, Any]]) -> None:
    for name in own.keys() - before.keys():
        del own[name]
    for name, (value, content) in before.items():
        own[name] = value
        if type(value) is list:
            value[:] = content
        elif content is not None:
            assert isinstance(value, dict | set)
            value.clear()
            value.update(content)


@contextlib.contextmanager
def _no_step_hooks(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Disable the user's hooks on the optimiser's step: they may count."""
    kinds = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    present = [getattr(optimizer, kind) for kind in kinds if hasattr(optimizer, kind)]
    before = [dict(hooks) for hooks in present]
    for hooks in present:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, kept in zip(present, before, strict=True):
            hooks.update(kept)
