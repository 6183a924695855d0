"""What a job is answered that told of itself: its id, and what jobs like it timed where
it trains.
"""

import json

from pydantic import JsonValue

from coadapt.model import JobId
from coadapt.model.wire import to_json
from coadapt.service.live_loop import LiveLoop


def answer(live: LiveLoop, job: JobId) -> dict[str, JsonValue]:
    """Return the answer to a report of `job`: with `application_times` where the last
    plan has them, and `hazard_per_h` where it trains on spot nodes.
    """
    told: dict[str, JsonValue] = {"id": job}
    application_times = live.application_times_of(job)
    if application_times is not None:
        told["application_times"] = to_json(application_times)
    hazard_per_h = live.hazard_of(job)
    if hazard_per_h:
        told["hazard_per_h"] = hazard_per_h
    return told


def answer_bytes(live: LiveLoop, job: JobId) -> bytes:
    """Return the same as JSON in UTF-8."""
    return json.dumps(
        answer(live, job), ensure_ascii=False, separators=(",", ":")
    ).encode()
