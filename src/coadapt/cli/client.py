"""The one HTTP client of the verbs: standard library only, so that `coadapt ls` answers
at once.
"""

import http.client
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast
from urllib.parse import quote, urlencode, urlsplit

from coadapt.cli.local_socket import LocalConnection
from coadapt.cli.state_dir import ENV_STATE, find_state_dir
from coadapt.model import InputError
from coadapt.model.bounds import printable
from coadapt.model.contract_env import ENV_TOKEN, ENV_URL
from coadapt.model.wire import Json

# A commit takes milliseconds; a disk that stalls takes seconds.
TIMEOUT_S = 30.0
# A followed log says nothing for as long as its job says nothing.
FOLLOW_TIMEOUT_S = 7 * 86_400.0
CHUNK_BYTES = 64 * 1024
# A journal that another process locked, or a disk that is away: for so long a verb asks
# again.
AGAIN_FOR_S = 3_600.0
AGAIN_AT_MOST_S = 10.0
UNAVAILABLE = 503
# Jobs per request: the scheduler answers others between two pages.
PAGE = 500

JsonObject = dict[str, Json]


class UnreachableError(RuntimeError):
    """No scheduler answers; the text says how to start one."""


class RefusedError(RuntimeError):
    """The scheduler refused a request; the text is its reason. `status` is the HTTP
    status.
    """

    def __init__(
        self, status: int, message: str, *, again_s: float | None = None
    ) -> None:
        """again_s: after how many seconds the same request may be taken in, None if
        never.
        """
        self.status = status
        self.again_s = again_s
        super().__init__(message)


class Client:
    """Requests to one scheduler. Every method raises UnreachableError and
    RefusedError.
    """

    def __init__(
        self,
        url: str,
        token: str,
        timeout_s: float = TIMEOUT_S,
        local_socket: Path | None = None,
    ) -> None:
        """`local_socket`: where the scheduler is found instead of at `url`, by the same
        user.
        """
        self.url = url
        self._local_socket = local_socket
        self._token = token
        self._timeout_s = timeout_s

    def get(self, path: str) -> JsonObject:
        return self._json("GET", path)

    def post(
        self, path: str, body: Json = None, headers: dict[str, str] | None = None
    ) -> JsonObject:
        return self._json("POST", path, body, headers)

    def put(self, path: str, body: Json) -> JsonObject:
        return self._json("PUT", path, body)

    def delete(self, path: str) -> JsonObject:
        return self._json("DELETE", path)

    def stream(self, path: str) -> Iterator[bytes]:
        """Yield the body as it comes."""
        response = self._send("GET", path, timeout_s=FOLLOW_TIMEOUT_S)
        while chunk := response.read1(CHUNK_BYTES):
            yield chunk

    def job_path(self, job: str) -> str:
        """Return the path of the job with this id, or beginning of one: the scheduler
        finds it.
        """
        if not job.strip():
            # An unset variable of a script: the empty beginning would fit every job.
            raise InputError("job", job, "the id of a job, or its beginning")
        return f"/v1/jobs/{quote(job, safe='')}"

    @staticmethod
    def study_path(study: str) -> str:
        """Return the path of the study with this name."""
        if not study.strip():
            raise InputError("study", study, "the name of a study")
        return f"/v1/studies/{quote(study, safe='')}"

    def jobs(self, *, most: int | None = None, **query: str | bool) -> list[JsonObject]:
        """Return jobs, page after page; query: see `GET /v1/jobs`. most: the largest
        number of jobs.
        """
        found: list[JsonObject] = []
        given = {
            key: str(value).lower() if isinstance(value, bool) else value
            for key, value in query.items()
        }
        while most is None or len(found) < most:
            limit = PAGE if most is None else min(most - len(found), PAGE)
            page = self.get(f"/v1/jobs?{urlencode({**given, 'limit': limit})}")
            found += cast("list[JsonObject]", page["jobs"])
            given["cursor"] = str(page["next"])
            if not page["next"]:
                break
        return found

    def _json(
        self,
        method: str,
        path: str,
        body: Json = None,
        headers: dict[str, str] | None = None,
    ) -> JsonObject:
        try:
            answer = json.loads(self._send(method, path, body, headers).read())
        except (ValueError, http.client.HTTPException, RecursionError):
            raise self._foreign("not JSON") from None
        except OSError as error:
            raise UnreachableError(
                f"the scheduler at {self._place} closed the connection before its "
                f"answer was complete ({error})"
            ) from None
        if not isinstance(answer, dict):
            raise self._foreign(f"a {type(answer).__name__}")
        return cast(JsonObject, _printable(answer))

    @property
    def _place(self) -> str:
        return self.url if self._local_socket is None else str(self._local_socket)

    def _foreign(self, what: str) -> UnreachableError:
        return UnreachableError(
            f"the program that answers at {self._place} is not a Coadapt scheduler ({what})"
        )

    def _connection(self, timeout_s: float) -> tuple[http.client.HTTPConnection, str]:
        """Return a connection, and what its paths begin with."""
        if self._local_socket is not None:
            return LocalConnection(self._local_socket, timeout_s), ""
        parts = urlsplit(self.url)
        kind = (
            http.client.HTTPSConnection
            if parts.scheme == "https"
            else http.client.HTTPConnection
        )
        return kind(parts.hostname or "", parts.port, timeout=timeout_s), parts.path

    def _send(
        self,
        method: str,
        path: str,
        body: Json = None,
        headers: dict[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> http.client.HTTPResponse:
        """Send a request, again and again while the scheduler answers that it can write
        nothing now.
        """
        until = time.monotonic() + AGAIN_FOR_S
        notice = ""
        while True:
            try:
                return self._send_once(method, path, body, headers, timeout_s)
            except RefusedError as error:
                unavailable = error.status == UNAVAILABLE and error.again_s is not None
                if not unavailable or time.monotonic() > until:
                    raise
                if not notice:
                    notice = f"{error}; asking again until it can, Ctrl-C ends that\n"
                    sys.stderr.write(notice)
                time.sleep(min(error.again_s or 0.0, AGAIN_AT_MOST_S))

    def _send_once(
        self,
        method: str,
        path: str,
        body: Json,
        headers: dict[str, str] | None,
        timeout_s: float | None,
    ) -> http.client.HTTPResponse:
        connection, base = self._connection(timeout_s or self._timeout_s)
        given = {
            "Authorization": f"Bearer {self._token}",
            "Content-Type": "application/json",
        }
        try:
            content = None if body is None else json.dumps(body)
            connection.request(
                method, base + path, content, {**given, **(headers or {})}
            )
            response = connection.getresponse()
        except TimeoutError:
            seconds = timeout_s or self._timeout_s
            raise UnreachableError(
                f"the scheduler at {self._place} did not answer within {seconds:g} "
                f"s: it is busy or stopped"
                + "; it may still carry out the request: check before you repeat it"
                * (method != "GET")
            ) from None
        except OSError as error:
            why = error.strerror or error
            raise UnreachableError(
                f"no scheduler answers at {self._place} ({why}); start one with: "
                f"coadapt up"
            ) from None
        except (http.client.HTTPException, ValueError) as error:
            raise self._foreign(type(error).__name__) from None
        if response.status >= 400:
            again = response.headers.get("Retry-After", "")
            raise RefusedError(
                response.status,
                _message(response),
                again_s=float(again) if again.isdigit() else None,
            )
        return response


def is_remote(state: Path | None) -> bool:
    """Return whether the environment names the scheduler, as a job's or a remote
    operator's does.
    """
    return state is None and ENV_STATE not in os.environ and ENV_URL in os.environ


def find_client(state: Path | None, timeout_s: float = TIMEOUT_S) -> Client:
    """Return a client for the scheduler of a state directory, or for the one that the
    environment names.

    Inside a job the environment names the scheduler that started it. Raises
    UnreachableError, InputError.
    """
    if is_remote(state):
        url = os.environ[ENV_URL]
        if not url.startswith(("http://", "https://")):
            allowed = "an address that begins with http:// or https://"
            raise InputError(ENV_URL, url, allowed)
        return Client(url, os.environ.get(ENV_TOKEN, ""), timeout_s)
    directory = find_state_dir(state)
    last = directory.last_run()
    if not directory.path.is_dir():
        raise UnreachableError(
            f"{directory.path} does not exist; if it was moved, move it back; otherwise "
            "start a scheduler with: coadapt up"
        )
    if last is None:
        raise UnreachableError(
            f"no scheduler has run on {directory.path}; start one with: coadapt up"
        )
    from coadapt.service.auth import read_token

    # Never by the port, which another user may have taken while no scheduler ran: it
    # would get the token.
    return Client(last["url"], read_token(directory.token), timeout_s, directory.socket)


def _printable(value: Json) -> Json:
    """Return an answer whose texts cannot drive a terminal: jobs say what stands in
    them.

    Here, once for all verbs: a verb that forgot it would be the hole.
    """
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_printable(item) for item in value]
    if isinstance(value, dict):
        return {printable(key): _printable(item) for key, item in value.items()}
    return value


def _message(response: http.client.HTTPResponse) -> str:
    text = response.read().decode(errors="replace")
    try:
        return printable(str(json.loads(text)["error"]["message"]))
    except (ValueError, KeyError, TypeError):
        return printable(f"HTTP {response.status}: {text[:200]}")
