"""Kubeflow's trainer status protocol (KEP-2779), for trainers that do not use Coadapt's
reports.
"""

# Its progress is a share, not samples, so it does not become the job's `progress`:
# policies take that as samples, and a share does not show how fast a job would be
# elsewhere. It is kept among the job's metrics, under the protocol's names, and so is
# its own estimate of the remaining time.
#
# The protocol asks its server for a limit per caller: a trainer that reports at each
# step must not keep the journal busy. A burst passes, so that the last report of a run
# does.

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Annotated

from fastapi import HTTPException
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from coadapt.model import JobId
from coadapt.model.bounds import KEY_MAX
from coadapt.model.measured import PERCENT_DONE, REMAINING_S
from coadapt.service.limits import NAMES_MAX, SECONDS_MAX

VALUE_LENGTH_MAX = 1_000
TIME_LENGTH_MAX = 100
# Status reports that a job may send at once, and then per second; most jobs for which
# they are counted.
BURST = 10
PER_S = 0.5
JOBS_MAX = 10_000
TOO_MANY_REQUESTS = 429


class Metric(BaseModel):
    """One figure, as text."""

    model_config = ConfigDict(strict=True)
    name: Annotated[str, Field(min_length=1, max_length=KEY_MAX)]
    value: Annotated[str, Field(max_length=VALUE_LENGTH_MAX)]


class TrainerStatus(BaseModel):
    """How far a trainer is; what it leaves out is unknown. lastUpdatedTime: this
    server's own counts.
    """

    model_config = ConfigDict(strict=True)
    progressPercentage: Annotated[int, Field(ge=0, le=100)] | None = None
    estimatedRemainingSeconds: (
        Annotated[int, Field(ge=0, le=int(SECONDS_MAX))] | None
    ) = None
    metrics: Annotated[list[Metric], Field(max_length=NAMES_MAX)] | None = None
    lastUpdatedTime: Annotated[str, Field(max_length=TIME_LENGTH_MAX)] | None = None


class StatusBody(BaseModel):
    """What is posted; parts for others than trainers may come beside it."""

    model_config = ConfigDict(strict=True)
    trainerStatus: TrainerStatus = TrainerStatus()


def report_of(status: TrainerStatus) -> dict[str, JsonValue]:
    """Return a training report, in wire form, that says the same: all of it among the
    metrics.
    """
    figures: dict[str, JsonValue] = {}
    for metric in status.metrics or ():
        value = _number(metric.value)
        if value is not None:
            figures[metric.name] = value
    if status.progressPercentage is not None:
        figures[PERCENT_DONE] = float(status.progressPercentage)
    if status.estimatedRemainingSeconds is not None:
        figures[REMAINING_S] = float(status.estimatedRemainingSeconds)
    return {"progress": 0.0, "metrics": figures}


def _number(text: str) -> float | None:
    """Return the figure in a text, None for words and for what is no finite number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


class Throttle:
    """Lets each job tell BURST times at once, and PER_S times a second from then on."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left: OrderedDict[JobId, tuple[float, float]] = OrderedDict()

    def check(self, job: JobId) -> None:
        """Raises HTTPException 429 if the job has reported too often."""
        now = self._clock()
        left, at = self._left.pop(job, (float(BURST), now))
        left = min(left + (now - at) * PER_S, float(BURST))
        allowed = left >= 1.0
        self._left[job] = (left - 1.0 if allowed else left, now)
        if len(self._left) > JOBS_MAX:
            self._left.popitem(last=False)
        if not allowed:
            wait = str(math.ceil((1.0 - left) / PER_S))
            most = f"reported too often: {PER_S:g} times a second at most"
            raise HTTPException(TOO_MANY_REQUESTS, most, {"Retry-After": wait})
