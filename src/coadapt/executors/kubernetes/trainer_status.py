"""The progress of a job in the format of Kubeflow's trainer status protocol (KEP-2779),
for an object's status.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import cast

from coadapt.executors.kubernetes.api import JsonObject
from coadapt.model.measured import PERCENT_DONE, RANK, RATIO, REMAINING_S

INSTANT = "%Y-%m-%dT%H:%M:%SZ"
# A job reports every few seconds. Changing the object as often would keep the API
# server busy.
EVERY_S = 10.0
NOT_FIGURES = frozenset({PERCENT_DONE, REMAINING_S, RANK, RATIO})
PERCENT = 100
INT32_MAX = 2**31 - 1


def trainer_status(
    picture: Mapping[str, object], before: JsonObject | None, now: str
) -> JsonObject | None:
    """Return the known progress of a job, None if nothing is known. picture: the job's
    state from the API.

    before: the last status, which stays for some seconds. now: RFC 3339, in whole
    seconds.
    """
    figures = cast("Mapping[str, float]", picture.get("metrics") or {})
    percent = _percent(picture, figures)
    remaining = _remaining_s(picture, figures)
    if not figures and percent is None:
        return before
    shown = sorted(
        (name, value) for name, value in figures.items() if name not in NOT_FIGURES
    )
    shown_status: JsonObject = {
        **({} if percent is None else {"progressPercentage": percent}),
        **(
            {}
            if remaining is None
            else {"estimatedRemainingSeconds": min(int(remaining), INT32_MAX)}
        ),
        **(
            {
                "metrics": [
                    {"name": name, "value": f"{value:.6g}"} for name, value in shown
                ]
            }
            if shown
            else {}
        ),
    }
    if before is None:
        return {**shown_status, "lastUpdatedTime": now}
    same = shown_status == {
        key: value for key, value in before.items() if key != "lastUpdatedTime"
    }
    since_s = _seconds(now) - _seconds(str(before["lastUpdatedTime"]))
    ended = picture.get("ended_at") is not None
    return (
        before
        if same or (since_s < EVERY_S and not ended)
        else {**shown_status, "lastUpdatedTime": now}
    )


def _percent(picture: Mapping[str, object], figures: Mapping[str, float]) -> int | None:
    """Return the progress in whole percent. Only a job at its end has 100."""
    if picture.get("state") == "succeeded":
        return PERCENT
    target = cast("float | None", picture.get("progress_target"))
    if target:
        share = cast(float, picture.get("progress", 0.0)) / target
        return min(int(PERCENT * share), PERCENT - 1)
    percent = figures.get(PERCENT_DONE)
    return None if percent is None else int(percent)


def _remaining_s(
    picture: Mapping[str, object], figures: Mapping[str, float]
) -> float | None:
    """Return the seconds left at the present goodput, or else the script's own
    estimate.
    """
    if picture.get("ended_at") is not None:
        return 0.0 if picture.get("state") == "succeeded" else None
    target = cast("float | None", picture.get("progress_target"))
    if not target:
        return figures.get(REMAINING_S)
    step_time_s = cast("float | None", picture.get("step_time_s"))
    batch = cast("Mapping[str, float] | None", picture.get("batch"))
    if (
        picture.get("state") not in ("running", "rescaling")
        or not step_time_s
        or not batch
    ):
        return None
    efficiency = cast("float | None", picture.get("efficiency"))
    goodput = batch["total"] / step_time_s * (1.0 if efficiency is None else efficiency)
    left = target - cast(float, picture.get("progress", 0.0))
    return max(left, 0.0) / goodput if goodput > 0.0 else None


def _seconds(instant: str) -> float:
    return datetime.strptime(instant, INSTANT).replace(tzinfo=UTC).timestamp()
