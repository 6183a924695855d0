"""Cut a model's parameters over the replicas (FSDP2), the optimiser following; and make
them whole again.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._composable.contract import REGISTRY_KEY, STATE_KEY
from torch.distributed._composable_state import _module_state_mapping
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from coadapt.model import InputError
from coadapt.train.group.group import Group
from coadapt.train.wrappers.fsdp_exchange import ShardExchange, param_groups

Shard = bool | Sequence[type[nn.Module]] | Callable[[nn.Module, DeviceMesh], object]

# Containers without a `forward`.
UNCALLED = (nn.ModuleList, nn.ModuleDict)
_cuts = itertools.count(1)


class Sharding:
    """How one model is cut. It is cut where there are several replicas; one replica has
    it whole.

    The modules stay the same objects; their parameters are others after each cut, and
    the optimiser gets those in place of the ones that it had.
    """

    def __init__(
        self,
        shard: Shard,
        options: Mapping[str, object],
        optimizer: torch.optim.Optimizer,
        exchange: ShardExchange,
    ) -> None:
        """`options`: further arguments of `fully_shard`. Raises InputError for a
        `shard` of another kind.
        """
        classes = isinstance(shard, Sequence) and all(
            isinstance(item, type) for item in shard
        )
        if not (shard is True or classes or callable(shard)):
            raise InputError(
                "prepare(shard)", shard, "True, a list of module classes, or a function"
            )
        if not hasattr(FSDPModule, "set_custom_reduce_scatter"):
            raise InputError(
                "prepare(shard)",
                f"torch {torch.__version__}",
                "torch 2.9 or newer, or DDP",
            )
        self.exchange = exchange
        self._shard = shard
        self._mesh: DeviceMesh | None = None
        self._options = options
        self._optimizer = optimizer

    def check(self, model: nn.Module) -> None:
        """Raise InputError unless the optimiser is new and holds parameters of `model`
        only.
        """
        if self._optimizer.state:
            raise InputError(
                "prepare(optimizer)",
                "one that has stepped already",
                "a new one, to be sharded",
            )
        own = set(model.parameters())
        strange = [
            p
            for group in self._optimizer.param_groups
            for p in group["params"]
            if p not in own
        ]
        if strange:
            shapes = ", ".join(str(tuple(p.shape)) for p in strange[:3])
            raise InputError(
                "prepare(optimizer)",
                f"one with parameters of shape {shapes}",
                "the model's parameters",
            )

    def give_back(self, model: nn.Module) -> None:
        """After a forward without a backward: else the model would go on computing with
        what it gathered.
        """
        if isinstance(model, FSDPModule):
            model.reshard()

    def cut(self, model: nn.Module, group: Group) -> None:
        """Leave this replica its part of `model`, which is alike on all replicas.
        Forgets optimiser state.
        """
        if any(tensor.is_meta for tensor in model.parameters()):
            raise InputError(
                "prepare(model)",
                "parameters on the meta device",
                "a model with its weights",
            )
        # A name of its own: torch remembers layouts by mesh, and takes two of one size
        # and name for the same, though this replica may have had another rank in the
        # other.
        name = f"cut{next(_cuts)}"
        self._mesh = init_device_mesh(
            group.device.type, (group.size,), mesh_dim_names=(name,)
        )
        self._cut(model, self._mesh)

    def cut_again(self, model: nn.Module) -> None:
        """Cut `model` as it is cut already, whatever state an error has left it in. Its
        values are lost.
        """
        assert self._mesh is not None
        self._undo(model)
        self._cut(model, self._mesh)

    def make_whole(self, model: nn.Module) -> None:
        """Undo `cut`. The values of parameters and the optimiser's state are lost: load
        them afterwards.
        """
        if self._undo(model):
            self._forget_connections()

    def let_go(self, model: nn.Module) -> None:
        """The group is about to end: keep none of its connections, of which each unit
        has one noted.
        """
        for unit in model.modules():
            for group in param_groups(unit) if isinstance(unit, FSDPModule) else ():
                noted = vars(group.mesh_info)
                noted |= {
                    name: None
                    for name, item in noted.items()
                    if isinstance(item, dist.ProcessGroup)
                }
        self._forget_connections()

    def _forget_connections(self) -> None:
        # torch's caches of layouts keep the mesh for ever, and the mesh the connections
        # of its replicas.
        getattr(self._mesh, "_pg_registry", {}).clear()

    def _cut(self, model: nn.Module, mesh: DeviceMesh) -> None:
        before = _names(model)
        if callable(self._shard):
            self._shard(model, mesh)
        else:
            classes = tuple(self._shard) if isinstance(self._shard, Sequence) else None
            for unit in _units(model, classes):
                self._fully_shard(unit, mesh)
        if not isinstance(model, FSDPModule):
            self._fully_shard(model, mesh)
        self.exchange.attach(model)
        self._follow(model, before)

    def _undo(self, model: nn.Module) -> bool:
        units = [module for module in model.modules() if isinstance(module, FSDPModule)]
        if not units:
            return False
        try:
            for unit in units:
                _detach(unit)
        except AttributeError as error:
            raise RuntimeError(
                f"torch {torch.__version__} keeps other notes of a cut: {error}"
            ) from None
        before = _names(model)
        wholes = {parameter: _empty(parameter) for parameter in before}
        for module in model.modules():
            for name, parameter in module.named_parameters(
                recurse=False, remove_duplicate=False
            ):
                setattr(module, name, wholes[parameter])
        self._follow(model, before)
        return True

    def _fully_shard(self, module: nn.Module, mesh: DeviceMesh) -> None:
        fully_shard(module, mesh=mesh, **self._options)  # type: ignore[call-overload]  # the user's

    def _follow(self, model: nn.Module, before: Mapping[Tensor, list[str]]) -> None:
        """Give the optimiser the parameters that now have the names that its own had
        `before`.
        """
        now = dict(model.named_parameters(remove_duplicate=False))
        for names in before.values():
            if len({now[name] for name in names}) > 1:
                allowed = "them in one unit: shared weights cannot be cut apart"
                raise InputError("prepare(shard)", " and ".join(names), allowed)
        self._optimizer.state.clear()
        for group in self._optimizer.param_groups:
            group["params"] = [
                now[before[parameter][0]] for parameter in group["params"]
            ]


def _units(
    model: nn.Module, classes: tuple[type[nn.Module], ...] | None
) -> list[nn.Module]:
    """Return the submodules that are cut, and gathered, by themselves, inner ones
    first.

    Those of the given classes; by default the members of the outermost lists and
    sequences of modules, such as the blocks of a transformer, unless they share a
    parameter with another part of the model.
    """
    if classes is not None:
        inner = [
            module
            for module in model.modules()
            if isinstance(module, classes) and module is not model
        ]
        return inner[::-1]
    names = _names(model)
    return [unit for unit in dict.fromkeys(_members(model)) if _by_itself(unit, names)]


def _members(module: nn.Module) -> Iterator[nn.Module]:
    """Yield what the outermost lists and sequences hold. Lists themselves are never
    called.
    """
    for child in module.children():
        if isinstance(module, nn.ModuleList | nn.Sequential) and not isinstance(
            child, UNCALLED
        ):
            yield child
        else:
            yield from _members(child)


def _by_itself(unit: nn.Module, names: Mapping[Tensor, list[str]]) -> bool:
    """Return whether a unit has parameters, and none that the model uses elsewhere
    too.
    """
    own = _names(unit)
    return bool(own) and all(
        len(names[parameter]) == len(uses) for parameter, uses in own.items()
    )


def _names(model: nn.Module) -> dict[Tensor, list[str]]:
    """Return each parameter's names: several if it is shared."""
    names: dict[Tensor, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return names


def _empty(parameter: Tensor) -> nn.Parameter:
    values = torch.empty(parameter.shape, dtype=parameter.dtype)
    return nn.Parameter(values, requires_grad=parameter.requires_grad)


def _detach(unit: FSDPModule) -> None:
    """Take away what `fully_shard` has put on a module; torch has no way back (written
    for 2.9 to 2.14).
    """
    unit.reshard()
    state = unit._get_fsdp_state()
    hooks = [state._pre_forward_hook_handle, state._post_forward_hook_handle]
    for group in param_groups(unit):
        hooks += group._module_to_pre_save_state_dict_hook_handle.values()
        hooks += group._module_to_pre_load_state_dict_hook_handle.values()
        hooks += [item._post_load_hook_handle for item in group.fsdp_params]
    for hook in hooks:
        hook.remove()
    module = cast("nn.Module", unit)
    _module_state_mapping.pop(module, None)
    module.__dict__.pop(STATE_KEY, None)
    module.__dict__.pop(REGISTRY_KEY, None)
    module.__class__ = type(module).__mro__[2]  # FSDPLinear, FSDPModule, Linear
