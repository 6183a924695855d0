"""One pod of the test kubelet, from its start to its end."""

import base64
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from coadapt.executors.kubernetes.api import ApiError, JsonObject, KubeApi
from tests.executors.kubernetes.containers import Mounts, Plain, below

RESTART_S = 1.0
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
TOKEN_S = 3607  # as Kubernetes gives them


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What all pods of a kubelet stand on.

    volume: the folder that stands for any claim. own_cluster: what tells a pod where
    its cluster is. certificate: of its API server; None: pods get no token of their
    service account.
    """

    folder: Path
    runtime: Plain
    volume: Path | None = None
    own_cluster: Mapping[str, str] = field(default_factory=dict)
    certificate: Path | None = None


@dataclass(slots=True)
class Container:
    """spec: of it, in the pod. ended_at: monotonic."""

    spec: JsonObject
    log: Path
    process: "subprocess.Popen[bytes] | None" = None
    ended_at: float = 0.0
    restarts: int = 0

    @property
    def lives(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def code(self) -> int:
        assert self.process is not None
        code = self.process.poll()
        assert code is not None
        return code if code >= 0 else 128 - code


class Pod:
    """Its containers are processes; whoever has a right to it tells it to end."""

    def __init__(self, ground: Ground, found: JsonObject, node: str) -> None:
        metadata = found["metadata"]
        self.node = node
        self.namespace = metadata["namespace"]
        self.name = metadata["name"]
        self.job = (metadata.get("labels") or {}).get("coadapt.dev/job", "")
        self.removed = False
        self.over = False
        self._ground = ground
        self._found = found
        self._folder = ground.folder / metadata["uid"]
        self.containers = [
            Container(each, ground.folder / f"{metadata['uid']}-{each['name']}.log")
            for each in found["spec"]["containers"]
        ]
        self._started_at = ""
        self._said: JsonObject = {}
        self._kill_at: float | None = None

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"

    def container(self, name: str) -> Container:
        return next(
            (each for each in self.containers if each.spec["name"] == name),
            self.containers[0],
        )

    def end_by(self, grace_s: float) -> None:
        first = self._kill_at is None
        kill_at = time.monotonic() + grace_s
        self._kill_at = (
            kill_at if self._kill_at is None else min(self._kill_at, kill_at)
        )
        for each in self.containers:
            if first and each.lives and each.process is not None:
                with suppress(ProcessLookupError):
                    os.kill(self._ground.runtime.first(each.process), signal.SIGTERM)

    def first(self, container: Container) -> int:
        """Return the first process of a container that lives."""
        assert container.process is not None
        return self._ground.runtime.first(container.process)

    def kill(self) -> None:
        """As a container runtime ends a container: all that is in it."""
        for each in self.containers:
            if each.process is not None:
                for pid in (each.process.pid, *below(each.process.pid)):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

    def look_after(self, api: KubeApi) -> None:
        """Bring it one step on."""
        if self.over:
            return
        if self.removed:
            self.kill()
            self._end(api)
        elif self.containers[0].process is None:
            if self._kill_at is not None:
                self._delete(api)
            else:
                self._start(api)
        elif not any(each.lives for each in self.containers) and (
            self._kill_at is not None or self._once
        ):
            self._tell(
                api,
                "Succeeded"
                if all(each.code == 0 for each in self.containers)
                else "Failed",
            )
            if self._kill_at is not None:
                self._delete(api)
        elif self._kill_at is not None:
            if time.monotonic() >= self._kill_at:
                self.kill()
        elif not self._once:
            self._restart(api)

    @property
    def _once(self) -> bool:
        return bool(self._found["spec"].get("restartPolicy") == "Never")

    def _restart(self, api: KubeApi) -> None:
        for each in self.containers:
            if each.lives:
                continue
            each.ended_at = each.ended_at or time.monotonic()
            if time.monotonic() > each.ended_at + RESTART_S:
                each.ended_at = 0.0
                each.restarts = each.restarts + 1
                self._run(api, each)
        self._tell(api, "Running")

    def _start(self, api: KubeApi) -> None:
        for each in self.containers:
            for source in each.spec.get("envFrom") or ():
                name = source["secretRef"]["name"]
                if (
                    api.find(f"/api/v1/namespaces/{self.namespace}/secrets/{name}")
                    is None
                ):
                    message = f'secret "{name}" not found'
                    waiting = {
                        "reason": "CreateContainerConfigError",
                        "message": message,
                    }
                    self._say(
                        api, "Pending", [self._status(each, {"waiting": waiting})]
                    )
                    return
        self._folder.mkdir()
        self._started_at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._ground.runtime.enter(api, self._found)
        for each in self.containers:
            self._run(api, each)
        self._tell(api, "Running")

    def _run(self, api: KubeApi, container: Container) -> None:
        address = self._ground.runtime.address(self._found)
        envs = dict(self._ground.own_cluster)
        for source in container.spec.get("envFrom") or ():
            found = api.get(
                f"/api/v1/namespaces/{self.namespace}/secrets/{source['secretRef']['name']}"
            )
            envs |= {
                key: base64.b64decode(value).decode()
                for key, value in found["data"].items()
            }
        for each in container.spec.get("env") or ():
            envs[each["name"]] = each.get(
                "value", address
            )  # of fields there is no other
        mounts = self._mounts(api, container.spec)
        with open(container.log, "ab") as log:
            container.process = self._ground.runtime.start(
                self._found, container.spec, envs, mounts, log
            )

    def _mounts(self, api: KubeApi, container: JsonObject) -> Mounts:
        volumes = {
            each["name"]: each for each in self._found["spec"].get("volumes") or ()
        }
        mounts: Mounts = []
        for mount in container.get("volumeMounts") or ():
            volume = volumes[mount["name"]]
            source = self._source(api, volume, mount.get("subPath", ""))
            may_write = (
                "persistentVolumeClaim" in volume or "emptyDir" in volume
            ) and not mount.get("readOnly")
            mounts.append((source, mount["mountPath"], may_write))
        if (
            self._found["spec"].get("automountServiceAccountToken", True)
            and self._ground.certificate
        ):
            mounts.append((self._account(api), SERVICE_ACCOUNT, False))
        return mounts

    def _source(self, api: KubeApi, volume: JsonObject, sub_path: str) -> Path:
        """Return the folder that stands for a volume: of the claim, or with what an
        object holds.
        """
        if "persistentVolumeClaim" in volume:
            assert self._ground.volume is not None
            folder = self._ground.volume / sub_path
            folder.mkdir(parents=True, exist_ok=True)
            return folder
        folder = self._folder / volume["name"]
        folder.mkdir(exist_ok=True)
        for kind, name in (("secrets", "secretName"), ("configMaps", "name")):
            if (told := volume.get(kind.removesuffix("s"))) is not None:
                found = api.get(
                    f"/api/v1/namespaces/{self.namespace}/{kind.lower()}/{told[name]}"
                )["data"]
                items = told.get("items") or [
                    {"key": key, "path": key} for key in found
                ]
                for item in items:
                    text = found[item["key"]]
                    data = (
                        base64.b64decode(text) if kind == "secrets" else text.encode()
                    )
                    (folder / item["path"]).write_bytes(data)
        return folder

    def _account(self, api: KubeApi) -> Path:
        """Return the folder with what a pod finds of its service account."""
        assert self._ground.certificate is not None
        folder = self._folder / "account"
        folder.mkdir(exist_ok=True)
        account = self._found["spec"].get("serviceAccountName", "default")
        pod = {
            "kind": "Pod",
            "apiVersion": "v1",
            "name": self.name,
            "uid": self._found["metadata"]["uid"],
        }
        (folder / "token").write_text(made_token(api, self.namespace, account, pod))
        (folder / "namespace").write_text(self.namespace)
        (folder / "ca.crt").write_bytes(self._ground.certificate.read_bytes())
        return folder

    def _tell(self, api: KubeApi, phase: str) -> None:
        states: list[JsonObject] = []
        for each in self.containers:
            reason = "Completed" if not each.lives and each.code == 0 else "Error"
            if self._ground.runtime.ran_out_of_memory(each.spec):
                reason = "OOMKilled"  # whatever its first process made of it
            ended = (
                {}
                if each.lives
                else {"terminated": {"exitCode": each.code, "reason": reason}}
            )
            states.append(
                self._status(
                    each, ended or {"running": {"startedAt": self._started_at}}
                )
            )
        self._say(api, phase, states)

    def _status(self, container: Container, state: JsonObject) -> JsonObject:
        return {
            "name": container.spec["name"],
            "state": state,
            "ready": "running" in state,
            "restartCount": container.restarts,
            "image": container.spec["image"],
            "imageID": "",
        }

    def _say(self, api: KubeApi, phase: str, containers: list[JsonObject]) -> None:
        address = self._ground.runtime.address(self._found)
        status = {"phase": phase, "podIP": address, "containerStatuses": containers}
        if status != self._said:
            body = {
                "metadata": {"uid": self._found["metadata"]["uid"]},
                "status": status,
            }
            api.ask("PATCH", f"{self._path}/status", body)
            self._said = status

    def _delete(self, api: KubeApi) -> None:
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
        try:
            same = {"preconditions": {"uid": self._found["metadata"]["uid"]}}
            api.ask("DELETE", self._path, {**options, **same})
        except ApiError as error:
            if error.status not in (404, 409):
                raise
        self._end(api)

    def _end(self, api: KubeApi) -> None:
        self.over = True
        self._ground.runtime.leave(api, self._found)


def made_token(
    api: KubeApi, namespace: str, account: str, pod: JsonObject | None = None
) -> str:
    """Return a token of a service account; of no use any more once `pod` is gone."""
    made = api.ask(
        "POST",
        f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token",
        {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": [],
                "expirationSeconds": TOKEN_S,
                "boundObjectRef": pod,
            },
        },
    )
    return str(made["status"]["token"])
