"""The lane and the route are two ways of one answer, and lawful reports take the
first.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from coadapt.core.events import Event, TrainingReported
from coadapt.model import ApplicationTimes, Placement, ThroughputParams, TimedStep
from coadapt.model.errors import StoreError
from coadapt.runtime.memory_store import MemoryStore
from coadapt.service.app import api_routes
from coadapt.service.live_loop import EventRefusedError, LiveLoop, OverloadedError
from coadapt.service.reports.groups import ReportGroups
from coadapt.service.reports.lane import BODY_BYTES_MAX, ReportLane
from coadapt.train.report.reporter import Answer, read_answer
from tests.service.fuzz import REPORT, Fuzzer
from tests.service.in_process import TOKEN, InProcess, until
from tests.service.reports.test_reading import JOB

Headers = list[tuple[bytes, bytes]]
NUM_REQUESTS = 600


class Behind:
    """Counts what the lane hands on to the routes."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.num_requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.num_requests += 1
        await self.app(scope, receive, send)


class Ways:
    """One service, and both ways to it."""

    def __init__(self, service: InProcess) -> None:
        self.service = service
        groups = ReportGroups(service.loop)
        self.routes = api_routes(service.service, groups)
        self.behind = Behind(self.routes)
        self.lane = ReportLane(self.behind, service.loop, groups, service.credentials)
        self.job = str(service.client().post("/v1/jobs", json=JOB).json()["id"])
        until(lambda: len(service.executor.orders) > 0)

    def ask(
        self, app: ASGIApp, path: str, headers: Headers, body: bytes
    ) -> tuple[int, bytes, bytes]:
        """Return status, kind and text of the answer."""
        parts = [body[: len(body) // 2], body[len(body) // 2 :]]
        waiting = [
            {"type": "http.request", "body": part, "more_body": not at}
            for at, part in enumerate(parts)
        ]
        sent: list[dict[str, object]] = []

        async def receive() -> dict[str, object]:
            return waiting.pop(0) if waiting else {"type": "http.disconnect"}

        async def send(message: dict[str, object]) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": headers,
            "http_version": "1.1",
            "scheme": "http",
        }
        asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]  # narrower dictionaries than ASGI's
        answer_headers = dict(sent[0]["headers"])  # type: ignore[call-overload]  # of the message's head
        text = b"".join(message.get("body", b"") for message in sent[1:])  # type: ignore[misc]  # bytes
        assert int(answer_headers[b"content-length"]) == len(text)
        return sent[0]["status"], answer_headers[b"content-type"], text  # type: ignore[return-value]  # a number

    def last_report(self) -> tuple[int, Event | None]:
        """Return how many reports are in the journal, and the last of them, whenever it
        came.
        """
        sent = [
            event
            for event in self.service.store.events()
            if isinstance(event, TrainingReported)
        ]
        if not sent:
            return 0, None
        last = sent[-1]
        return len(sent), TrainingReported(
            at=0.0, job=last.job, generation=last.generation, report=last.report
        )


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ways]:
    service = InProcess(tmp_path_factory.mktemp("lane"), MemoryStore())
    with service.turning():
        yield Ways(service)


def headers_of(
    body: bytes, *, token: str = TOKEN, kind: bytes = b"application/json"
) -> Headers:
    length = str(len(body)).encode()
    return [
        (b"authorization", f"Bearer {token}".encode()),
        (b"content-type", kind),
        (b"content-length", length),
    ]


class Requests:
    """Lawful reports, and whatever else may come of them, by one seed."""

    def __init__(self, ways: Ways, seed: int) -> None:
        self.random = random.Random(seed)
        self.fuzzer = Fuzzer(ways.service.folder, seed)
        self.job = ways.job
        self.tokens = [
            ways.service.credentials.job_token(ways.job),
            ways.service.credentials.job_token("another"),
            TOKEN[:-1],
            TOKEN + "ü",
        ]

    def next(self) -> tuple[str, Headers, bytes]:
        draw = self.random
        body = self.fuzzer._written(
            self.fuzzer._mutated(REPORT) if draw.random() < 0.8 else REPORT
        )
        if draw.random() < 0.05:
            body = draw.choice(
                [
                    body.replace(b"{", b'{"generation": 1, ', 1),
                    body * 2,
                    b"",
                    b" " * 120_000,
                ]
            )
        token = TOKEN if draw.random() < 0.8 else draw.choice(self.tokens)
        kind = b"application/json"
        if draw.random() < 0.1:
            kinds = [
                b"text/plain",
                b"application/json; charset=utf-8",
                b"application/x+json",
                b"",
            ]
            kind = draw.choice(kinds)
        headers = headers_of(body, token=token, kind=kind)
        if draw.random() < 0.1:
            others = [
                headers[:0],
                headers[:1],
                headers[1:],
                headers[:2],
                [*headers, headers[0]],
            ]
            headers = draw.choice(
                [*others, [*headers, (b"content-type", b"text/plain")]]
            )
        job = (
            self.job
            if draw.random() < 0.9
            else draw.choice([self.job[:-1], "gone", "a/b", "", "ü"])
        )
        return f"/v1/jobs/{job}/reports", headers, body


def test_lane_and_route_answer_equally_and_make_equal_events(ways: Ways) -> None:
    requests = Requests(ways, seed=1)
    statuses: Counter[int] = Counter()
    ways.behind.num_requests = 0
    for number in range(NUM_REQUESTS):
        asked = requests.next()
        before, _ = ways.last_report()
        by_route = ways.ask(ways.routes, *asked)
        between, of_route = ways.last_report()
        by_lane = ways.ask(ways.lane, *asked)
        after, of_lane = ways.last_report()
        assert by_lane == by_route, (number, asked)
        assert (after - between, of_lane) == (between - before, of_route), (
            number,
            asked,
        )
        statuses[by_lane[0]] += 1
    assert min(statuses[status] for status in (202, 400, 401, 403, 404, 422)) >= 3, (
        statuses
    )
    # Those with a longer way to say what they mean, and no more, are handed on.
    assert (
        ways.behind.num_requests - (NUM_REQUESTS - statuses[202]) <= 0.1 * NUM_REQUESTS
    )


def test_both_ways_tell_what_the_last_plan_knows_of_its_application(
    ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = ApplicationTimes(
        gpu_type="Größe",
        placement=Placement((2, 1)),
        params=ThroughputParams(alpha_c=0.1, beta_c=0.01),
        steps=(
            TimedStep(atomic=8, accumulation=0, seconds=0.2),
            TimedStep(atomic=16, accumulation=1, seconds=0.5),
        ),
    )
    monkeypatch.setattr(
        LiveLoop,
        "application_times_of",
        lambda _, job: shared if job == ways.job else None,
    )
    monkeypatch.setattr(LiveLoop, "hazard_of", lambda _, job: 0.25 * (job == ways.job))
    body = json.dumps(REPORT).encode()
    asked = (f"/v1/jobs/{ways.job}/reports", headers_of(body), body)
    status, _, text = by_lane = ways.ask(ways.lane, *asked)
    assert by_lane == ways.ask(ways.routes, *asked)
    assert status == 202
    assert read_answer(text) == Answer(application_times=shared, hazard_per_h=0.25)
    body = json.dumps({"generation": 1, "rescale_s": 2.0}).encode()
    rescaled = ways.ask(
        ways.routes, f"/v1/jobs/{ways.job}/rescaled", headers_of(body), body
    )
    assert read_answer(rescaled[2]).application_times == shared


@pytest.mark.parametrize(
    "size", [0, 1, BODY_BYTES_MAX, BODY_BYTES_MAX + 1, 1_000_000, 1_000_001]
)
def test_bodies_of_any_length_are_answered_equally(ways: Ways, size: int) -> None:
    body = json.dumps(REPORT).encode().ljust(size)[:size]
    asked = (f"/v1/jobs/{ways.job}/reports", headers_of(body), body)
    assert ways.ask(ways.lane, *asked) == ways.ask(ways.routes, *asked)


@pytest.mark.parametrize(
    "error",
    [
        OverloadedError("10000 reports wait"),
        EventRefusedError("set aside"),
        StoreError("the disk is full"),
    ],
)
def test_a_report_that_could_not_be_taken_in_is_told_equally(
    ways: Ways, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> "Future[dict[int, EventRefusedError]]":
        if isinstance(error, OverloadedError):
            raise error
        future: Future[dict[int, EventRefusedError]] = Future()
        if isinstance(error, EventRefusedError):
            future.set_result({0: error})
        else:
            future.set_exception(error)
        return future

    monkeypatch.setattr(LiveLoop, "commit_all", fails)
    body = json.dumps(REPORT).encode()
    asked = (f"/v1/jobs/{ways.job}/reports", headers_of(body), body)
    by_lane = ways.ask(ways.lane, *asked)
    assert by_lane == ways.ask(ways.routes, *asked)
    assert by_lane[0] == (422 if isinstance(error, EventRefusedError) else 503)
    assert str(error) in by_lane[2].decode()
