"""Rank 0's background thread: fits, advises, and reports to the scheduler. Training
never waits for it.
"""

import http.client
import json
import logging
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol

from coadapt.model import (
    ApplicationTimes,
    BatchConfig,
    InputError,
    ThroughputParams,
    TrainingReport,
)
from coadapt.model.report import LOGGED_MAX
from coadapt.model.wire import from_json, to_json
from coadapt.train.batch.tuning import RunSnapshot, choose_batch, fit
from coadapt.train.env import LAST_REPORT_S
from coadapt.train.logged_values import LoggedValues
from coadapt.train.rescale.pause import Pause

logger = logging.getLogger(__name__)

QUEUE_MAX = 4  # snapshots; older ones are dropped: only the newest matters
TIMEOUT_S = 5.0
ATTEMPTS = 3
BACKOFF_S = 0.5  # before the second attempt, twice that before the third
ANSWER_BYTES_MAX = 100_000
NO_RETRY = range(400, 500)  # the scheduler understood and says no


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The scheduler's answer to a report.

    application_times: steps that jobs of the same application timed. hazard_per_h:
    expected losses of any of the job's nodes in an hour. None: the answer has none.
    """

    application_times: ApplicationTimes | None = None
    hazard_per_h: float | None = None


class Channel(Protocol):
    """Where messages of the job go."""

    def send(self, path: str, body: dict[str, object]) -> bytes:
        """Deliver `body` and return the answer. Raises OSError or HTTPException if that
        cannot be done.
        """
        ...


class HttpChannel:
    """POSTs JSON to `<url>/v1/jobs/<job>/<path>` with a bearer token."""

    def __init__(self, url: str, token: str, job: str) -> None:
        self._base = f"{url}/v1/jobs/{job}/"
        self._headers = {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {token}",
        }
        # The scheduler is addressed directly: proxies of the environment are for the
        # outside world.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def send(self, path: str, body: dict[str, object]) -> bytes:
        request = urllib.request.Request(
            self._base + path,
            data=json.dumps(body).encode(),
            headers=self._headers,
            method="POST",
        )
        with self._opener.open(request, timeout=TIMEOUT_S) as response:
            answer: bytes = response.read(ANSWER_BYTES_MAX)
        return answer


class Reporter:
    """Takes snapshots without ever blocking; gives back the latest fit, and a better
    batch where asked.
    """

    def __init__(
        self,
        channel: Channel | None,
        generation: int,
        last_report_s: float = LAST_REPORT_S,
        logged: LoggedValues | None = None,
    ) -> None:
        """`channel` None: reports go nowhere; it only chooses batches. last_report_s:
        how long `close` waits for a scheduler that is away. logged: values that go with
        the reports, each until it is delivered.
        """
        self._logged = LoggedValues() if logged is None else logged
        self._last_report_s = last_report_s
        self._waits_until: float | None = None
        self._channel = channel
        self._generation = generation
        self._queue: deque[RunSnapshot | Pause | float] = deque(maxlen=QUEUE_MAX)
        self._wake = threading.Condition()
        self._closing = False
        self._failed = False
        self._params: ThroughputParams | None = None
        # Beside reports, which may wait for the network.
        self._deciding = ThreadPoolExecutor(1, thread_name_prefix="coadapt-batch")
        self._answer: Answer | None = None
        self._thread = threading.Thread(
            target=self._run, name="coadapt-reporter", daemon=True
        )
        self._thread.start()

    def offer(self, item: RunSnapshot | Pause | float) -> None:
        """Queue a snapshot, or what this generation's change cost: a pause, or a
        restart's seconds.

        Returns at once.
        """
        with self._wake:
            self._queue.append(item)
            self._wake.notify()

    @property
    def params(self) -> ThroughputParams | None:
        """Return the latest fit."""
        return self._params

    @property
    def answer(self) -> Answer | None:
        """Return the scheduler's last answer, None before the first."""
        return self._answer

    def better_batch(self, item: RunSnapshot) -> "Future[BatchConfig | None]":
        """Look for a batch that is better than that of `item`, beside training. Returns
        at once.
        """
        return self._deciding.submit(self._choose, item)

    def _choose(self, item: RunSnapshot) -> BatchConfig | None:
        try:
            answer = self._answer or Answer()
            return choose_batch(item, answer.application_times)
        except Exception:
            logger.exception(
                "the batch could not be chosen; training continues with the current one"
            )
            return None

    def retire(self) -> None:
        """Let the thread send what is queued, and end. Returns at once."""
        self._deciding.shutdown(wait=False)
        with self._wake:
            self._closing = True
            self._wake.notify()

    def close(self) -> None:
        """Let the thread send what is queued, for `last_report_s` at most."""
        if self._last_report_s > LAST_REPORT_S:
            self._waits_until = time.monotonic() + self._last_report_s
        self.retire()
        self._thread.join(self._last_report_s)

    def _run(self) -> None:
        # The cost of the change is reported once: until that came through, it goes
        # before each report.
        cost: dict[str, object] | None = None
        while True:
            with self._wake:
                while not self._queue and not self._closing:
                    self._wake.wait()
                if not self._queue:
                    return
                item = self._queue.popleft()
            if isinstance(item, Pause):
                cost = {"rescale_s": item.total_s, "pause": item.parts}
            elif not isinstance(item, RunSnapshot):
                cost = {"rescale_s": item}
            if cost is not None and self._send("rescaled", cost):
                cost = None
            if isinstance(item, RunSnapshot):
                self._report(item)

    def _report(self, item: RunSnapshot) -> None:
        try:
            fitted = fit(item)
        except Exception:
            # The thread must live: later snapshots may succeed, and the pause of a
            # change must still be reported.
            logger.exception("a report could not be made; training continues")
            return
        with self._wake:
            self._params = fitted.params
        self._send_report(fitted.report)

    def _send_report(self, report: TrainingReport) -> None:
        """Send a report with the values that were logged and not delivered yet. If
        there are more than one report may have, others follow.
        """
        while True:
            rows = self._logged.pending()
            body = to_json(replace(report, logged=rows))
            assert isinstance(body, dict)
            if not rows:
                del body["logged"]  # a scheduler of an earlier version does not know it
            if not self._send("reports", {"report": body}):
                return
            self._logged.delivered(rows)
            if len(rows) < LOGGED_MAX:
                return

    def _send(self, path: str, body: dict[str, object]) -> bool:
        """Return whether it is done with: delivered, or refused."""
        if self._channel is None:
            return True
        for attempt in count():
            try:
                answer = self._channel.send(
                    path, {"generation": self._generation, **body}
                )
                self._answer = read_answer(answer)
                self._failed = False
                return True
            except (OSError, http.client.HTTPException) as error:
                refused = (
                    isinstance(error, urllib.error.HTTPError) and error.code in NO_RETRY
                )
                if refused or self._gives_up(attempt):
                    self._log_once(path, error)
                    return refused
            time.sleep(BACKOFF_S * 2 ** min(attempt, ATTEMPTS - 2))
        return False

    def _gives_up(self, attempt: int) -> bool:
        """Return whether a message that was not delivered is let go of."""
        if self._waits_until is not None:
            return time.monotonic() >= self._waits_until
        return attempt >= ATTEMPTS - 1 or self._closing

    def _log_once(self, path: str, error: Exception) -> None:
        """Say that reports do not arrive when that begins, not for each report."""
        if not self._failed:
            logger.warning(
                "%s could not be sent to the scheduler: %s; training continues",
                path,
                error,
            )
        self._failed = True


def read_answer(answer: bytes) -> Answer:
    """Return the scheduler's answer to a report. What cannot be read is left out."""
    try:
        content = json.loads(answer) if answer else {}
        times = content.get("application_times")
        hazard = content.get("hazard_per_h")
        return Answer(
            application_times=None
            if times is None
            else from_json(ApplicationTimes, times, "application_times"),
            hazard_per_h=None if hazard is None else float(hazard),
        )
    except (ValueError, TypeError, AttributeError, InputError) as error:
        # Of another version, or no scheduler of ours: a job does without.
        logger.debug("the answer to a report is not understood: %s", error)
        return Answer()
