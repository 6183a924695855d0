"""Warns in the scheduler's log when a tenant has spent 80 % or all of its budget."""

import logging
from collections.abc import Sequence

from coadapt.core.commands import Command
from coadapt.core.costs import SPENT, budget_text
from coadapt.core.events import Event
from coadapt.core.state import SchedulerState
from coadapt.model import TenantId

logger = logging.getLogger(__name__)


class BudgetLog:
    """An observer of the loop. After a restart it repeats the warnings in force."""

    def __init__(self) -> None:
        self._warned: dict[TenantId, int] = {}

    def __call__(
        self,
        event: Event,  # noqa: ARG002 - an observer's
        commands: Sequence[Command],  # noqa: ARG002 - an observer's
        state: SchedulerState,
    ) -> None:
        levels = state.budget_levels
        if levels == self._warned:
            return
        for tenant, level in sorted(levels.items()):
            if level > self._warned.get(tenant, 0):
                then = "; jobs that have not started wait" if level == SPENT else ""
                logger.warning("%s%s", budget_text(tenant, state), then)
        self._warned = dict(levels)
