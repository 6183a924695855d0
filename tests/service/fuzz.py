"""Random and hostile input at every door of the scheduler, which is started again on
its journal every 1,000.

    python -m tests.service.fuzz --count 100000 --seed 1

What comes in must be taken or refused in one line, never answered with a 5xx or an
exception; what was refused must not be in the journal; and after it all every view is
readable, and rounds have their plans.
"""

import argparse
import asyncio
import copy
import json
import logging
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from coadapt.cli.cluster.screen import Screen
from coadapt.cli.jobs import describe as describe_verb
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import (
    CancelRequested,
    JobSubmitted,
    TrainingReported,
    TrainingResumed,
)
from coadapt.core.lifecycle import ENDED
from coadapt.core.state import SchedulerState
from coadapt.model import InputError
from coadapt.runtime.journal import Journal
from coadapt.service.app import create_app
from coadapt.service.jobfile import job_spec, parse_job_file
from tests.service.hostile import (
    FILE,
    JOBS,
    NUMBERS,
    OTHERS,
    PRUNE,
    REPORT,
    RESCALED,
    TENANT,
    TEXTS,
    TOKENS,
    TRAINER_STATUS,
)
from tests.service.in_process import TOKEN, InProcess

RESTART_EVERY = 1_000
LIVE_JOBS_MAX = 30
LINE_MAX = 2_000
CONFIG = SchedulerConfig(round_s=10.0, reaction_s=1.0)

# Beside those of the OpenAPI document.
ODD_ROUTES = [
    "/v1/openapi.json",
    "/v1/nothing",
    "/",
    "//",
    "/v1/jobs/{}/../{}",
    "/v1//jobs",
]
LEFT_OUT = {
    "/v1/token",  # makes the token of all further requests worthless
    "/v1/jobs/{}/story",  # reads the whole journal: once per restart is enough
}
KINDS = {
    "jobs": JobSubmitted,
    "cancel": CancelRequested,
    "reports": TrainingReported,
    "rescaled": TrainingResumed,
}


@dataclass(slots=True, kw_only=True)
class Tally:
    """What was sent and answered. taken: per last part of the path, the answers that
    said yes.

    reports: those that are in the journal.
    """

    inputs: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    refused_files: int = 0
    taken: Counter[str] = field(default_factory=Counter)
    reports: int = 0
    restarts: int = 0


class Fuzzer:
    """One scheduler's life over many restarts in `folder`."""

    def __init__(self, folder: Path, seed: int, policy: str = "castor") -> None:
        self.folder = folder
        self.policy = policy
        self.random = random.Random(seed)
        self.tally = Tally()
        self.jobs: list[str] = ["gone"]
        self.submitted: set[str] = set()
        self.routes: list[str] = []
        self.checked_upto = 0

    def run(self, count: int) -> Tally:
        while self.tally.inputs < count:
            with self.life() as (service, app):
                asyncio.run(
                    self._inputs(app, min(RESTART_EVERY, count - self.tally.inputs))
                )
                asyncio.run(self._views(app, service))
            self._check_journal()
            self.tally.restarts += 1
        return self.tally

    @contextmanager
    def life(self) -> Iterator[tuple[InProcess, Any]]:
        service = InProcess(self.folder, config=CONFIG, policy=self.policy)
        with service.turning():
            yield service, create_app(service.service)
        assert service.loop.notices() == [], service.loop.notices()
        assert isinstance(service.store, Journal)
        service.store.close()

    # -- what comes in
    # ----------------------------------------------------------------------------------

    async def _inputs(self, app: Any, count: int) -> None:
        doors: list[tuple[int, Callable[[Any], Any]]] = [
            (30, self._job_file),
            (25, self._job),
            (25, self._report),
            (8, self._rescaled),
            (4, self._trainer_status),
            (2, self._tenant),
            (1, self._prune),
            (9, self._route),
            (3, self._noise),
        ]
        if not self.routes:
            document = json.loads(await self._read(app, "/v1/openapi.json"))
            known = sorted(
                {re.sub(r"{\w+}", "{}", path) for path in document["paths"]} - LEFT_OUT
            )
            self.routes = [*known, *ODD_ROUTES]
        for _ in range(count):
            (door,) = self.random.choices(
                [d for _, d in doors], [weight for weight, _ in doors]
            )
            await door(app)
            self.tally.inputs += 1

    async def _job_file(self, app: Any) -> None:
        text = FILE
        for _ in range(self.random.choice([1, 1, 1, 2, 4])):
            place = self.random.randrange(len(text) + 1)
            cut = self.random.choice([0, 0, 1, 3, 10])
            text = text[:place] + self._token() + text[place + cut :]
        try:
            job = parse_job_file(text, "job.yaml", self.folder)
            job_spec(job, time.time())
        except InputError as error:
            self._check_line(str(error))
            self.tally.refused_files += 1
            return
        body = json.dumps(job.model_dump(mode="json", exclude_unset=True)).encode()
        await self._submit(app, body)

    async def _job(self, app: Any) -> None:
        await self._submit(app, self._written(self._mutated(self.random.choice(JOBS))))

    async def _submit(self, app: Any, body: bytes) -> None:
        status, answer = await self._ask(app, "POST", "/v1/jobs", body)
        if status == 202:
            job = json.loads(answer)["id"]
            self.jobs = [*self.jobs[-20:], job]
            if job in self.submitted:
                self.tally.taken["jobs"] -= 1
            self.submitted.add(job)

    async def _report(self, app: Any) -> None:
        await self._ask(
            app,
            "POST",
            f"/v1/jobs/{self._some_job()}/reports",
            self._written(self._mutated(REPORT)),
        )

    async def _rescaled(self, app: Any) -> None:
        await self._ask(
            app,
            "POST",
            f"/v1/jobs/{self._some_job()}/rescaled",
            self._written(self._mutated(RESCALED)),
        )

    async def _trainer_status(self, app: Any) -> None:
        body = self._written(self._mutated(TRAINER_STATUS))
        await self._ask(
            app, "POST", f"/v1/jobs/{self._some_job()}/trainer-status", body
        )

    async def _tenant(self, app: Any) -> None:
        path = f"/v1/tenants/{self.random.choice(['team', 'other'])}"
        await self._ask(app, "PUT", path, self._written(self._mutated(TENANT)))

    async def _prune(self, app: Any) -> None:
        """Ask what would go: what goes would be missed where views are read."""
        body = {**self._mutated(PRUNE), "dry_run": True}
        await self._ask(app, "POST", "/v1/prune", self._written(body))

    async def _route(self, app: Any) -> None:
        path = self.random.choice(self.routes)
        while "{}" in path:
            path = path.replace(
                "{}", self.random.choice([self._some_job(), str(self._text())[:50]]), 1
            )
        keys = [
            "rank",
            "offset",
            "state",
            "tenant",
            "name",
            "limit",
            "cursor",
            "newest",
            "after",
            "x",
        ]
        query = "&".join(
            f"{self.random.choice(keys)}={self._text()!s}"[:300]
            for _ in range(self.random.choice([0, 0, 1, 2]))
        )
        method = self.random.choice(
            ["GET", "GET", "GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"]
        )
        body = b""
        if method in ("POST", "PUT") and self.random.random() < 0.5:
            body = self._written(self._value())
        await self._ask(app, method, path, body, query)

    async def _noise(self, app: Any) -> None:
        body = self.random.randbytes(self.random.choice([0, 1, 10, 1_000]))
        route = self.random.choice(["/v1/jobs", f"/v1/jobs/{self._some_job()}/reports"])
        await self._ask(app, "POST", route, body)

    # -- values
    # ----------------------------------------------------------------------------------

    def _some_job(self) -> str:
        return self.random.choice(self.jobs)

    def _token(self) -> str:
        return self.random.choice(
            [*TOKENS, chr(self.random.randrange(0x110000)), str(self._value())[:200]]
        )

    def _text(self) -> object:
        return self.random.choice([*TEXTS, *NUMBERS])

    def _value(self) -> object:
        values = self.random.choice([NUMBERS, NUMBERS, TEXTS, OTHERS])
        # A copy: what is made of it must not become a part of the table.
        value = copy.deepcopy(self.random.choice(values))
        if self.random.random() < 0.1:
            return self.random.choice(
                [[value] * 3, {str(self._key()): value}, self.random.uniform(-1e3, 1e3)]
            )
        return value

    def _key(self) -> object:
        return self.random.choice(
            [*TEXTS, "progress", "batch", "name", "run", "generation"]
        )

    def _mutated(self, template: dict[str, Any]) -> Any:
        """Return the template with a few values, keys or branches exchanged."""
        made = json.loads(json.dumps(template))
        for _ in range(self.random.choice([0, 1, 1, 1, 2, 3])):
            place = made
            while True:
                keys = (
                    list(place) if isinstance(place, dict) else list(range(len(place)))
                )
                if not keys:
                    break
                key = self.random.choice(keys)
                if (
                    isinstance(place[key], dict | list)
                    and place[key]
                    and self.random.random() < 0.8
                ):
                    place = place[key]
                    continue
                if isinstance(place, dict) and self.random.random() < 0.2:
                    place[str(self._key())] = place.pop(key)
                else:
                    place[key] = self._value()
                break
        return made

    def _written(self, value: object) -> bytes:
        body = json.dumps(value, ensure_ascii=self.random.random() < 0.5).encode(
            "utf-8", "surrogatepass"
        )
        if self.random.random() < 0.1:
            place = self.random.randrange(len(body) + 1)
            body = (
                body[:place]
                + self.random.randbytes(self.random.choice([0, 1, 2]))
                + body[place + 1 :]
            )
        return body

    # -- what is checked
    # ----------------------------------------------------------------------------------

    async def _ask(
        self, app: Any, method: str, path: str, body: bytes = b"", query: str = ""
    ) -> tuple[int, bytes]:
        status, answer = await ask(app, method, path, body, query)
        self.tally.statuses[status] += 1
        assert status < 500, (status, method, path, query, body[:500], answer[:500])
        if status >= 400 and method != "HEAD":
            self._check_line(json.loads(answer)["error"]["message"])
        last = path.rpartition("/")[2]
        if status == 202:
            self.tally.taken[last] += 1
        if (status, last) == (
            200,
            "trainer-status",
        ):  # which is a report, in other words
            self.tally.taken["reports"] += 1
        return status, answer

    def _check_line(self, line: str) -> None:
        assert line, "an error without a word"
        assert "\n" not in line, line
        assert len(line) < LINE_MAX, line
        assert "Traceback" not in line, line

    async def _views(self, app: Any, service: InProcess) -> None:
        """Look at everything that a user may look at; then end jobs, or planning would
        take all the time.
        """
        cluster = json.loads(
            await self._read(app, "/v1/cluster"), parse_constant=_refuse
        )
        console = Console(file=StringIO(), width=120)
        console.print(Screen().picture(cluster, 120))
        await self._read(app, "/metrics")
        for job in {*self.jobs} - {"gone"}:
            found = json.loads(
                await self._read(app, f"/v1/jobs/{job}"), parse_constant=_refuse
            )
            for name, value in describe_verb._facts(found):
                console.print(name, value, markup=False)
        if len(self.jobs) > 1:
            await self._read(app, f"/v1/jobs/{self.jobs[-1]}/story")

        def look(state: SchedulerState) -> tuple[str, list[str]]:
            return state.plan_error, [
                job for job, record in state.jobs.items() if record.state not in ENDED
            ]

        error, live = service.loop.read(look)
        assert error == "", error
        for job in live[:-LIVE_JOBS_MAX]:
            await self._ask(app, "POST", f"/v1/jobs/{job}/cancel")

    async def _read(self, app: Any, path: str) -> bytes:
        status, answer = await ask(app, "GET", path)
        assert status == 200, (status, path, answer[:500])
        return answer

    def _check_journal(self) -> None:
        """See that the journal holds what was taken in, and nothing of what was
        refused.
        """
        journal = Journal.at_path(self.folder / "journal.sqlite")
        found: Counter[str] = Counter()
        for number, event in journal.numbered_events(self.checked_upto):
            self.checked_upto = number
            for name, kind in KINDS.items():
                found[name] += isinstance(event, kind)
        assert journal.refusals() == []
        journal.close()
        taken = {name: self.tally.taken[name] for name in KINDS}
        assert found["jobs"] == taken["jobs"], (found, taken)
        # What is said of a job that has ended is lawful, and is not written down.
        assert all(found[name] <= taken[name] for name in KINDS), (found, taken)
        self.tally.reports += found["reports"]
        self.tally.taken.clear()


async def ask(
    app: Any, method: str, path: str, body: bytes = b"", query: str = ""
) -> tuple[int, bytes]:
    """Send a request to an ASGI application; return status and body."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]
    status = 0
    parts = list[bytes]()

    async def receive() -> dict[str, Any]:
        if waiting:
            return waiting.pop()
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)
        parts.append(message.get("body", b""))

    raw = path.encode("utf-8", "surrogatepass")
    headers = [
        (b"authorization", f"Bearer {TOKEN}".encode()),
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": raw.decode("utf-8", "replace"),
        "raw_path": raw,
        "root_path": "",
        "headers": headers,
        "query_string": query.encode("utf-8", "surrogatepass"),
        "client": ("127.0.0.1", 1),
        "server": ("here", 80),
    }
    await app(scope, receive, send)
    return status, b"".join(parts)


def _refuse(constant: str) -> object:
    raise AssertionError(f"{constant} is no JSON")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=3_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", default="castor")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    started = time.monotonic()
    cpu = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = Fuzzer(Path(folder), given.seed, given.policy)
        done = 0
        while done < given.count:
            done = min(done + 10_000, given.count)
            tally = fuzzer.run(done)
            print(
                f"{tally.inputs} inputs, {tally.restarts} restarts, "
                f"{tally.refused_files} job files refused, "
                f"answers {dict(sorted(tally.statuses.items()))}; "
                f"{time.monotonic() - started:.0f} s, "
                f"{time.process_time() - cpu:.0f} s of CPU",
                flush=True,
            )


if __name__ == "__main__":
    main()
