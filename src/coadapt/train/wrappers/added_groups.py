"""Groups of parameters that a script gives to its optimiser while it trains.

A script that unfreezes layers one by one calls `add_param_group` in its loop. A replica
that joins, or a run that starts again, has made an optimiser without these groups. The
state names their parameters, so that they are added before the state is loaded.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from coadapt.model import InputError

KEY = "coadapt_added_groups"


class AddedGroups:
    """The groups of `optimizer` beyond those that it had when it was prepared."""

    def __init__(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
        self._optimizer = optimizer
        self._parameters = dict(model.named_parameters())
        self.num_first = len(optimizer.param_groups)
        # Added for a state. The script adds them, too, where it comes to that line.
        self._for_state: list[list[str]] = []

    def state(self) -> dict[str, object]:
        """Return what names the added groups; empty where there is none."""
        added = self._optimizer.param_groups[self.num_first :]
        if not added:
            return {}
        return {KEY: [self._names(group["params"]) for group in added]}

    def add_for(self, state: Mapping[str, object]) -> None:
        """Add the groups that `state` has and the optimiser lacks.

        Raises InputError where the model has no parameter of such a name.
        """
        wanted = state.get(KEY, [])
        assert isinstance(wanted, Sequence)
        known = len(self._optimizer.param_groups) - self.num_first
        for names in wanted[known:]:
            missing = [name for name in names if name not in self._parameters]
            if missing:
                raise InputError(
                    "add_param_group",
                    f"parameters that this model lacks: {', '.join(missing)}",
                    "parameters of the model that was prepared",
                )
            params = [self._parameters[name] for name in names]
            self._optimizer.add_param_group({"params": params})
            self._for_state.append(list(names))

    def is_there(self, group: Mapping[str, object]) -> bool:
        """Return whether `group`, which the script adds, was added for a state; once
        for each.
        """
        if not self._for_state:
            return False
        params = group["params"]
        if isinstance(params, torch.Tensor):
            params = [params]
        assert isinstance(params, Sequence)
        names = self._names(params)
        if names not in self._for_state:
            return False
        self._for_state.remove(names)
        return True

    def _names(self, params: Sequence[object]) -> list[str]:
        by_id = {id(item): name for name, item in self._parameters.items()}
        return [by_id.get(id(item), "") for item in params]
