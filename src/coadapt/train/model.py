"""The model as the user's loop sees it: the module itself, or wrapped for the replicas of the moment."""

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from coadapt.train.gradients import StepGradients
from coadapt.train.session import Session


class ElasticModel(nn.Module):
    """Behaves like `module`; in training mode, gradients are those of all replicas' samples.

    The wrapper for several replicas is built at the first training forward, and anew when the group changes,
    so one process may train in groups of different sizes. `state_dict` is that of `module`.
    """

    module: nn.Module

    def __init__(
        self, module: nn.Module, session: Session, gradients: StepGradients, ddp: Mapping[str, object]
    ) -> None:
        """`ddp`: further arguments of DistributedDataParallel."""
        super().__init__()
        self.module = module
        self._session = session
        self._gradients = gradients
        self._ddp = ddp
        # In a list, so that it does not become a submodule: its parameters are those of `module`.
        self._replica: list[DistributedDataParallel] = []

    def rewrap(self) -> None:
        """The group has changed, and all of it has the same state: build the wrapper anew."""
        self._replica.clear()
        if self._session.group.distributed:
            self._replica.append(self._wrap(same_state=True))

    def forward(self, *args: object, **kwargs: object) -> object:
        if not (self.module.training and torch.is_grad_enabled()):
            return self.module(*args, **kwargs)
        if self._session.validation is not None:
            raise RuntimeError(
                "validate in eval() mode or under torch.no_grad(): replicas do so by themselves"
            )
        if self._session.group.distributed and not self._session.trial:
            if not self._replica:
                self._replica.append(self._wrap(same_state=False))
            replica = self._replica[0]
            replica.require_backward_grad_sync = self._session.synchronising
            output = replica(*args, **kwargs)
        else:
            output = self.module(*args, **kwargs)
        self._gradients.watch(output)
        return output

    def state_dict(self, *args: object, **kwargs: object) -> dict[str, object]:  # type: ignore[override]  # torch overloads it
        return self.module.state_dict(*args, **kwargs)  # type: ignore[call-overload, no-any-return]  # passed through

    def load_state_dict(self, *args: object, **kwargs: object) -> object:
        return self.module.load_state_dict(*args, **kwargs)  # type: ignore[arg-type]  # passed through

    def __getattr__(self, name: str) -> object:  # type: ignore[override]  # nn.Module promises a tensor or a module
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def _wrap(self, *, same_state: bool) -> DistributedDataParallel:
        device = self._session.group.device
        ids = [device.index] if device.type == "cuda" else None
        options = {**self._ddp, "init_sync": False} if same_state else self._ddp
        replica = DistributedDataParallel(self.module, device_ids=ids, **options)  # type: ignore[arg-type]  # the user's
        replica.register_comm_hook(self._gradients, StepGradients.exchange)
        return replica
