"""Requests to a Kubernetes API server, as plain JSON.

The official client handles addresses, certificates and credentials (kubeconfig with its
plugins, or a pod's service account). Its object classes are not used, because they
change with each release, and old servers must work too.
"""

import json
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any, cast
from urllib.parse import urlencode

import urllib3
from kubernetes import client, config

TIMEOUT_S = 30.0
# A server ends a watch after this time, and gets a new request. So a server that stops
# responding is noticed.
WATCH_S = 240
CONNECTIONS = 4
STATUS_OK_MAX = 299
GONE = 410
NOT_FOUND = 404
CONFLICT = 409
FORBIDDEN = 403
UNAUTHORIZED = 401

JsonObject = dict[str, Any]

# The variable by which a process in a pod finds its cluster.
OWN_CLUSTER = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
SERVICE_ACCOUNT_NAMESPACE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


class ApiError(OSError):
    """The server refused a request, or could not be reached, in which case `status` is
    0. The text is the reason.
    """

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


class NoClusterError(ValueError):
    """No configuration says where a cluster is, or its file is not usable."""


def kubeconfig_files(given: str) -> str:
    """Return the full names of the kubeconfig files: `given`, or those in the
    environment.

    "" if there are none: then the cluster is the pod's own, or that of the default
    file.
    """
    named = given or (
        "" if OWN_CLUSTER[0] in os.environ else os.environ.get("KUBECONFIG", "")
    )
    return os.pathsep.join(
        os.path.abspath(os.path.expanduser(each))
        for each in named.split(os.pathsep)
        if each
    )


class KubeApi:
    """A connection pool to one server, for use by any thread. Every method raises
    ApiError.
    """

    def __init__(self, settings: Any, namespace: str) -> None:
        """settings: the client's Configuration. namespace: the namespace that belongs
        to it.
        """
        self.namespace = namespace
        self.host = str(settings.host).rstrip("/")
        self._settings = settings
        self._lock = threading.Lock()
        verify = "CERT_REQUIRED" if settings.verify_ssl else "CERT_NONE"
        self._pool = urllib3.PoolManager(
            num_pools=1,
            maxsize=CONNECTIONS,
            cert_reqs=verify,
            ca_certs=settings.ssl_ca_cert,
            cert_file=settings.cert_file,
            key_file=settings.key_file,
            retries=False,
        )

    @classmethod
    def connect(cls, kubeconfig: str = "") -> "KubeApi":
        """Return the cluster of `kubeconfig`. "": the cluster in which this process
        runs, or that of the default file.

        Raises NoClusterError.
        """
        settings = client.Configuration()
        try:
            files = kubeconfig_files(kubeconfig)
            if not files and OWN_CLUSTER[0] in os.environ:
                config.load_incluster_config(client_configuration=settings)
                with open(SERVICE_ACCOUNT_NAMESPACE, encoding="utf-8") as file:
                    return cls(settings, file.read().strip())
            config.load_kube_config(
                config_file=files or None,
                client_configuration=settings,
                persist_config=False,
            )
            _, active = config.list_kube_config_contexts(config_file=files or None)
        except (config.ConfigException, OSError, TypeError, KeyError) as error:
            raise NoClusterError(" ".join(str(error).split())) from None
        return cls(settings, str(active["context"].get("namespace") or "default"))

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        query: Mapping[str, object] | None = None,
    ) -> JsonObject:
        """Return the answer to one request."""
        response = self._send(method, path, body, query, stream=False)
        return cast(JsonObject, json.loads(response.data)) if response.data else {}

    def get(self, path: str, **query: object) -> JsonObject:
        return self.ask("GET", path, query=query)

    def find(self, path: str) -> JsonObject | None:
        """Return an object, None if there is none."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    def delete(self, path: str, grace_s: float | None = None) -> None:
        """Delete an object, if it is there. grace_s: for a pod, from SIGTERM to
        SIGKILL.
        """
        options = {} if grace_s is None else {"gracePeriodSeconds": int(grace_s)}
        try:
            self.ask(
                "DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1", **options}
            )
        except ApiError as error:
            if error.status not in (NOT_FOUND, CONFLICT):
                raise

    def stream(self, path: str, **query: object) -> Iterator[bytes]:
        """Yield the body of an answer as it comes."""
        response = self._send("GET", path, None, query, stream=True)
        try:
            while data := response.read1(2**16):
                yield data
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiError(0, f"the connection broke: {error}") from None
        finally:
            response.close()

    def watch(self, path: str, **query: object) -> Iterator[tuple[str, JsonObject]]:
        """Yield each present object as (ADDED, object), and then each change, until the
        server ends the watch.
        """
        found = self.get(path, **query)
        for item in found["items"]:
            yield "ADDED", item
        version = found["metadata"]["resourceVersion"]
        yield "LISTED", {}
        changes = self.stream(
            path, watch=1, resourceVersion=version, timeoutSeconds=WATCH_S, **query
        )
        for line in _lines(changes):
            change = json.loads(line)
            if change["type"] == "ERROR":
                raise ApiError(
                    int(change["object"].get("code", GONE)),
                    str(change["object"].get("message")),
                )
            yield change["type"], change["object"]

    def _send(
        self,
        method: str,
        path: str,
        body: object,
        query: Mapping[str, object] | None,
        *,
        stream: bool,
    ) -> Any:
        url = self.host + path + ("?" + urlencode(query) if query else "")
        headers = {"Accept": "application/json", **self._credentials()}
        if body is not None:
            kind = (
                "application/merge-patch+json"
                if method == "PATCH"
                else "application/json"
            )
            headers["Content-Type"] = kind
        timeout = urllib3.Timeout(
            connect=TIMEOUT_S, read=WATCH_S + TIMEOUT_S if stream else TIMEOUT_S
        )
        try:
            response = self._pool.request(
                method,
                url,
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                timeout=timeout,
                preload_content=not stream,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiError(0, f"{self.host} does not answer: {error}") from None
        if response.status > STATUS_OK_MAX:
            data = response.data if not stream else response.read()
            raise ApiError(response.status, _reason(data))
        return response

    def _credentials(self) -> dict[str, str]:
        try:
            # this may get a new token from a plugin, or from a file that the cluster
            # renews
            with self._lock:
                found = self._settings.auth_settings()
        except (config.ConfigException, OSError) as error:
            raise ApiError(0, f"no credentials for {self.host}: {error}") from None
        return {
            each["key"]: each["value"]
            for each in found.values()
            if each["in"] == "header"
        }


def _lines(parts: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for part in parts:
        *whole, rest = (rest + part).split(b"\n")
        yield from whole


def _reason(data: bytes) -> str:
    try:
        return str(json.loads(data)["message"])
    except (ValueError, KeyError, TypeError):
        return data.decode(errors="replace").strip()
