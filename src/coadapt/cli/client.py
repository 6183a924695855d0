"""The one HTTP client of the verbs: standard library only, so that `coadapt ls` answers at once."""

import http.client
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast
from urllib.parse import quote, urlsplit

from coadapt.cli.state_dir import ENV_STATE, find_state_dir
from coadapt.model import InputError
from coadapt.model.contract_env import ENV_TOKEN, ENV_URL
from coadapt.model.wire import Json

# A commit takes milliseconds; a disk that stalls takes seconds.
TIMEOUT_S = 30.0
# A followed log says nothing for as long as its job says nothing.
FOLLOW_TIMEOUT_S = 7 * 86_400.0
CHUNK_BYTES = 64 * 1024

JsonObject = dict[str, Json]


class UnreachableError(RuntimeError):
    """No scheduler answers; the text says how to start one."""


class RefusedError(RuntimeError):
    """The scheduler refused a request; the text is its reason. `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


class Client:
    """Requests to one scheduler. Every method raises UnreachableError and RefusedError."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self._token = token

    def get(self, path: str) -> JsonObject:
        return self._json("GET", path)

    def post(self, path: str, body: Json = None, headers: dict[str, str] | None = None) -> JsonObject:
        return self._json("POST", path, body, headers)

    def stream(self, path: str) -> Iterator[bytes]:
        """Yield the body as it comes."""
        response = self._send("GET", path, timeout_s=FOLLOW_TIMEOUT_S)
        while chunk := response.read1(CHUNK_BYTES):
            yield chunk

    def job_path(self, job: str) -> str:
        """Return the path of the job with this id, or with the only id that begins so. Raises InputError."""
        known = [str(entry["id"]) for entry in self.jobs()]
        if job in known:
            return f"/v1/jobs/{quote(job)}"
        fitting = [name for name in known if name.startswith(job)]
        if len(fitting) == 1:
            return f"/v1/jobs/{quote(fitting[0])}"
        allowed = ", ".join(fitting or known[-5:]) or "no job was submitted yet"
        raise InputError("job", job, f"the id of a job, or its beginning: {allowed}")

    def jobs(self) -> list[JsonObject]:
        return cast("list[JsonObject]", self.get("/v1/jobs")["jobs"])

    def _json(
        self, method: str, path: str, body: Json = None, headers: dict[str, str] | None = None
    ) -> JsonObject:
        answer = json.loads(self._send(method, path, body, headers).read())
        assert isinstance(answer, dict), f"{path} answered with {type(answer).__name__}"
        return answer

    def _send(
        self,
        method: str,
        path: str,
        body: Json = None,
        headers: dict[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> http.client.HTTPResponse:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
        given = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, parts.path + path, content, {**given, **(headers or {})})
            response = connection.getresponse()
        except OSError as error:
            raise UnreachableError(
                f"no scheduler answers at {self.url} ({error}); start one with: coadapt up"
            ) from None
        if response.status >= 400:
            raise RefusedError(response.status, _message(response))
        return response


def find_client(state: Path | None) -> Client:
    """Return a client for the scheduler of a state directory, or for the one that the environment names.

    Inside a job the environment names the scheduler that started it. Raises UnreachableError, InputError.
    """
    if state is None and ENV_STATE not in os.environ and ENV_URL in os.environ:
        return Client(os.environ[ENV_URL], os.environ.get(ENV_TOKEN, ""))
    directory = find_state_dir(state)
    last = directory.last_run()
    if last is None:
        raise UnreachableError(f"no scheduler ever ran on {directory.path}; start one with: coadapt up")
    from coadapt.service.auth import read_token

    return Client(last["url"], read_token(directory.token))


def _message(response: http.client.HTTPResponse) -> str:
    text = response.read().decode(errors="replace")
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {response.status}: {text[:200]}"
