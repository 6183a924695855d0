"""The model as the user's loop sees it: the module itself, or wrapped for the replicas
of the moment.
"""

import copy
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from coadapt.model import InputError
from coadapt.train.dtensors import gather_whole, is_sharded, shard_like
from coadapt.train.group.group import Group
from coadapt.train.session import Session
from coadapt.train.wrappers.gradients import StepGradients
from coadapt.train.wrappers.sparse import sparse_parameters

if TYPE_CHECKING:
    from coadapt.train.wrappers.fsdp import Sharding

# Without it, as in torch 2.6, the same state is sent once more.
_INIT_SYNC = "init_sync" in inspect.signature(DistributedDataParallel).parameters


# Where DistributedDataParallel looks for names of parameters that it is to leave alone.
IGNORED = "_ddp_params_and_buffers_to_ignore"


# What torch.compile puts before the names of a module's parameters.
COMPILED = "_orig_mod."


class ElasticModel(nn.Module):
    """Behaves like `module`; in training mode, gradients are those of all replicas'
    samples.

    The wrapper for several replicas is built at the first training forward, and again
    when the group changes, so one process may train in groups of different sizes.
    `state_dict` is that of `module`.
    """

    module: nn.Module

    def __init__(
        self,
        module: nn.Module,
        session: Session,
        gradients: StepGradients,
        ddp: Mapping[str, object],
        sharding: "Sharding | None" = None,
    ) -> None:
        """`ddp`: further arguments of DistributedDataParallel. `sharding`: used
        instead, if given.
        """
        super().__init__()
        self.module = module
        self.register_load_state_dict_pre_hook(_as_part)  # type: ignore[no-untyped-call]  # torch's own
        self._session = session
        self._gradients = gradients
        self.ddp_given = ddp
        self._sharding = sharding
        # Asked for the arguments as they are to be by then.
        self.ddp_options: Callable[[Mapping[str, object]], dict[str, object]] = dict
        # Gets the arguments of training forwards while they are to be noted
        # (rescale/dry_step.py).
        self.on_call: Callable[[object, object], None] | None = None
        # In a list, so that it does not become a submodule: its parameters are those of
        # `module`.
        self._replica: list[DistributedDataParallel] = []
        # When that was built: the parameters, as to walk the modules costs each step,
        # and which were trained.
        self._wrapped_parameters: list[nn.Parameter] = []
        self._trained: list[bool] = []
        # Their gradients are exchanged apart: see sparse.py.
        self._sparse = sparse_parameters(module)
        gradients.sparse = list(dict.fromkeys(self._sparse.values()))
        if self._sparse and sharding is not None:
            allowed = "nn.Embedding(sparse=False), or a model that is not sharded"
            raise InputError(
                "prepare(shard)",
                f"sparse gradients of {', '.join(self._sparse)}",
                allowed,
            )

    def check_unchanged(self) -> None:
        """Raise InputError if parameters came or went since the model was prepared."""
        if self._sharding is None and not self._gradients.covers(
            self.module.parameters()
        ):
            allowed = (
                "the model as it will be trained: add or exchange layers before "
                "run.prepare"
            )
            raise InputError(
                "prepare(model)", "parameters that came or went afterwards", allowed
            )

    def rewrap(self) -> None:
        """Build the wrapper again after a change of the group, whose replicas have the
        same state.
        """
        self._replica.clear()
        trained = any(
            parameter.requires_grad for parameter in self._bucket_parameters()
        )
        if self._session.group.distributed and self._sharding is None and trained:
            self._replica.append(self._wrap(same_state=True))

    def reshape(self) -> None:
        """The group has changed: cut a sharded model for it. Its values are lost: load
        them next.
        """
        assert self._sharding is not None
        self._sharding.make_whole(self.module)
        if self._session.group.distributed:
            self._cut(self._sharding)
        else:
            self.module.to(self._session.group.device)
            self._gradients.rebind(list(self.module.parameters()), None)

    def let_go(self) -> None:
        """The group is about to end: keep none of its connections.

        Not once it has ended: the last holder of a group waits for gloo's threads, and
        a wrapper does so under the interpreter's lock, for which one of them may be
        waiting.
        """
        self._replica.clear()
        if self._is_sharded:
            assert self._sharding is not None
            self._sharding.let_go(self.module)

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Within it passes run by themselves, without the other replicas; see
        `end_rehearsals`.
        """
        if not self._is_sharded:
            yield
            return
        from coadapt.train.wrappers.fsdp_dry_run import rehearsal

        with rehearsal(self.module):
            yield

    def end_rehearsals(self) -> None:
        """Exchange with the others again, also after an error. The values are lost:
        load them next.
        """
        if self._is_sharded:
            assert self._sharding is not None
            self._sharding.cut_again(self.module)
            self._gradients.rebind(
                list(self.module.parameters()), self._sharding.exchange
            )

    @property
    def _is_sharded(self) -> bool:
        connected = not self._session.config.place.joining
        return (
            self._sharding is not None and self._session.group.distributed and connected
        )

    def begin(self) -> None:
        """Before the first use: go to the device, or be cut, with the first replica's
        values.
        """
        group = self._session.group
        connected = not self._session.config.place.joining
        if self._sharding is not None:
            self._sharding.check(self.module)
        if self._sharding is None or not group.distributed:
            self.module.to(group.device)
        if group.distributed and connected:
            # Not left to DistributedDataParallel: before it is built, some may
            # validate, or leave.
            _send_from_first(self.module, group)
            if self._sharding is not None:
                self._cut(self._sharding)

    def forward(self, *args: object, **kwargs: object) -> object:
        module = self._modules["module"]  # `self.module` is a search, in each step
        assert module is not None
        if not (module.training and torch.is_grad_enabled()):
            output = module(*args, **kwargs)
            if self._sharding is not None:
                self._sharding.give_back(module)
            return output
        if self._session.figures.validation is not None:
            raise RuntimeError(
                "validate in eval() mode or under torch.no_grad(): replicas do so by "
                "themselves"
            )
        if self.on_call is not None:
            self.on_call(args, kwargs)
        alone = (
            not self._session.group.distributed
            or self._session.trial
            or self._sharding is not None
        )
        called = module if alone else self._wrapped()
        current = self._session.current
        if current is None or current.num_samples:
            output = called(*args, **kwargs)
        else:
            with _unmoved_buffers(module):
                output = called(*args, **kwargs)
        self._gradients.watch(output)
        return output

    def state_dict(self, *args: object, **kwargs: object) -> dict[str, object]:  # type: ignore[override]  # torch overloads it
        state: dict[str, object] = self.module.state_dict(*args, **kwargs)  # type: ignore[call-overload]  # passed through
        prefix = kwargs.get("prefix", args[1] if len(args) > 1 else "")
        _make_plain(state, str(prefix))
        return state

    def load_state_dict(
        self, state_dict: Mapping[str, object], *args: object, **kwargs: object
    ) -> object:
        """As that of `module`; of a tensor that is cut, this replica takes its part
        from the whole.
        """
        own = self.module.state_dict(keep_vars=True)
        names = {_plain(name): name for name in own}
        state: dict[str, object] = {}
        for key, value in state_dict.items():
            name = names.get(_plain(key), key)
            if isinstance(value, Tensor) and name in own:
                state[name] = _for_own(value, own[name])
            else:
                state[name] = value
        return self.module.load_state_dict(state, *args, **kwargs)  # type: ignore[arg-type]  # passed through

    def full_state_dict(self) -> dict[str, object]:
        """Return `state_dict` with whole tensors in host memory on the first replica,
        {} on the others.

        All replicas must call it alike.
        """
        first = self._session.group.rank == 0
        state = gather_whole(self.state_dict(), keep=first)
        assert isinstance(state, dict)
        return state if first else {}

    def __deepcopy__(self, memo: dict[int, object]) -> nn.Module:
        """Return a copy of `module` alone, as averages of weights want it. It is not
        compiled, so that a file of it has the plain names.
        """
        twin = copy.deepcopy(_uncompiled(self.module), memo)
        for parent in list(twin.modules()):
            for name, child in list(parent.named_children()):
                if _uncompiled(child) is not child:
                    setattr(parent, name, _uncompiled(child))
        twin.register_load_state_dict_pre_hook(_without_marks)  # type: ignore[no-untyped-call]  # torch's own
        return twin

    def __reduce_ex__(self, _protocol: object) -> tuple[object, ...]:
        """Be written as `module` alone, so that `torch.save(model)` gives a file that
        needs no Coadapt.
        """
        if self._is_sharded:
            raise RuntimeError(
                "a sharded model is not written whole: save model.full_state_dict()"
            )
        return operator.itemgetter(0), ((self.module,),)

    def __getattr__(self, name: str) -> object:  # type: ignore[override]  # nn.Module promises a tensor or a module
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def _cut(self, sharding: "Sharding") -> None:
        sharding.cut(self.module, self._session.group)
        self._gradients.rebind(list(self.module.parameters()), sharding.exchange)

    def _wrapped(self) -> nn.Module:
        """Return what exchanges the gradients of the parameters that are trained now;
        rebuilt where others were frozen or thawed, which all replicas do alike. The
        model itself where none is trained.
        """
        known = self._wrapped_parameters or self._bucket_parameters()
        trained = [parameter.requires_grad for parameter in known]
        if not any(trained):
            return self.module
        if trained != self._trained or not self._replica:
            thawed = bool(self._replica)  # then all have the same state
            self._replica.clear()
            self._replica.append(self._wrap(same_state=thawed))
        replica = self._replica[0]
        replica.require_backward_grad_sync = self._session.synchronising
        return replica

    def _bucket_parameters(self) -> list[nn.Parameter]:
        """Return the parameters whose gradients the wrapper exchanges: all but those
        with sparse ones.
        """
        apart = set(self._sparse.values())
        return [item for item in self.module.parameters() if item not in apart]

    def _wrap(self, *, same_state: bool) -> DistributedDataParallel:
        self._wrapped_parameters = self._bucket_parameters()
        self._trained = [
            parameter.requires_grad for parameter in self._wrapped_parameters
        ]
        device = self._session.group.device
        ids = [device.index] if device.type == "cuda" else None
        options = self.ddp_options(self.ddp_given)
        if same_state and _INIT_SYNC:
            options["init_sync"] = False
        if self._sparse:
            given = getattr(self.module, IGNORED, ())
            setattr(self.module, IGNORED, {*given, *self._sparse})
        replica = DistributedDataParallel(self.module, device_ids=ids, **options)  # type: ignore[arg-type]  # the user's
        replica.register_comm_hook(self._gradients, StepGradients.exchange)
        return replica


def _as_part(
    _model: nn.Module, state: dict[str, object], prefix: str, *_: object
) -> None:
    """Let a module around this one (torch.compile) load what it saved."""
    for name in [name for name in state if name.startswith(prefix)]:
        state[f"{prefix}module.{name[len(prefix) :]}"] = state.pop(name)


def _without_marks(
    _module: nn.Module, state: dict[str, object], prefix: str, *_: object
) -> None:
    """Let a copy load what a compiled copy saved, as earlier versions made it."""
    _make_plain(state, prefix)


def _uncompiled(module: nn.Module) -> nn.Module:
    """Return what torch.compile was given; the module itself if it is not compiled."""
    inner = getattr(module, COMPILED.rstrip("."), module)
    assert isinstance(inner, nn.Module)
    return inner


def _plain(name: str) -> str:
    return name.replace(COMPILED, "")


def _make_plain(state: dict[str, object], prefix: str) -> None:
    """Drop what torch.compile adds to names after `prefix`, in place."""
    for names in (state, getattr(state, "_metadata", {})):
        if not any(COMPILED in name[len(prefix) :] for name in names):
            continue
        items = list(names.items())
        names.clear()
        for name, value in items:
            own = name.startswith(prefix)
            plain = prefix + _plain(name[len(prefix) :]) if own else name
            names[plain] = value


@contextmanager
def _unmoved_buffers(module: nn.Module) -> Iterator[None]:
    """Let a stand-in leave running means, and all other buffers, as they were when
    `module` itself began.

    Not as they were before: the wrapper around it sends them from the first replica.
    """
    before: list[tuple[Tensor, Tensor]] = []

    def note(_module: nn.Module, _args: object) -> None:
        before.extend((buffer, buffer.detach().clone()) for buffer in module.buffers())

    hook = module.register_forward_pre_hook(note)
    try:
        yield
    finally:
        hook.remove()
        for buffer, value in before:
            # Behind the back of autograd: batch normalisation keeps its buffers for a
            # backward that, in training mode, does not read them.
            buffer.data.copy_(value)


def _for_own(value: Tensor, own: Tensor) -> Tensor:
    """Return what is to be loaded into `own`: itself, which costs no copy, where
    `value` is a view of it.
    """
    part = shard_like(value, own)
    if is_sharded(own) or (part.shape, part.dtype, part.device) != (
        own.shape,
        own.dtype,
        own.device,
    ):
        return part
    return (
        own
        if part.data_ptr() == own.data_ptr() and part.stride() == own.stride()
        else part
    )


def _send_from_first(module: nn.Module, group: Group) -> None:
    """Give all replicas the first one's parameters and buffers. Collective."""
    for tensor in (*module.parameters(), *module.buffers()):
        carrier = group.control if tensor.device.type == "cpu" else None
        dist.broadcast(tensor.detach(), src=0, group=carrier)
