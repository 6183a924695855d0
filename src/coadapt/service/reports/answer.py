"""The answer to a job's report: its id, and the step times of other jobs of its
application.
"""

import json

from pydantic import JsonValue

from coadapt.model import JobId
from coadapt.model.wire import to_json
from coadapt.service.live_loop import LiveLoop


def answer(live: LiveLoop, job: JobId) -> dict[str, JsonValue]:
    """Return the answer to a report of `job`: with `application_times` if the last plan
    has them, and `hazard_per_h` if it trains on spot nodes.
    """
    content: dict[str, JsonValue] = {"id": job}
    application_times = live.application_times_of(job)
    if application_times is not None:
        content["application_times"] = to_json(application_times)
    hazard_per_h = live.hazard_of(job)
    if hazard_per_h:
        content["hazard_per_h"] = hazard_per_h
    return content


def answer_bytes(live: LiveLoop, job: JobId) -> bytes:
    """Return the same as JSON in UTF-8."""
    return json.dumps(
        answer(live, job), ensure_ascii=False, separators=(",", ":")
    ).encode()
