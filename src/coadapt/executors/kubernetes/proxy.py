"""A process beside the launcher that represents one pod: it prints the pod's output,
and ends in the same way as the pod.

To the launcher it is the replica. Ordered to stop, it deletes the pod, which then gets
SIGTERM and its grace. If the proxy is killed, the pod keeps running: another proxy
takes it over, or the sweep ends it (elsewhere.py). Started as `python -m … SETTINGS
NODE PARTS COMMAND…`; the rest is in its environment and the job's order.
"""

import json
import math
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

from coadapt.executors.kubernetes.api import CONFLICT, ApiError, JsonObject, KubeApi
from coadapt.executors.kubernetes.pod_log import PodLog
from coadapt.executors.kubernetes.pods import (
    CHECKPOINTS,
    CONTAINER,
    CPU,
    SETUP,
    TOKEN_FILE,
    PodOrder,
    PodSettings,
    on_host_network,
    pod,
    pod_name,
    replica_address,
    secret,
)
from coadapt.executors.kubernetes.silence import ServerSilence
from coadapt.executors.processes.elsewhere import note_out_of_memory
from coadapt.executors.processes.proxy_process import Begun
from coadapt.executors.processes.records.generation_dir import (
    GenerationDir,
    JobDir,
    LaunchOrder,
)
from coadapt.executors.processes.records.replica_log import segments
from coadapt.model.contract_env import (
    ENV_CHECKPOINT_DIR,
    ENV_CONTROL_TOKEN,
    ENV_CONTROL_URL,
    ENV_GENERATION,
    ENV_NODE_ADDRESS,
    ENV_RESUMED,
    ENV_STATUS_TOKEN_FILE,
    ENV_STATUS_URL,
    ENV_TOKEN,
    ENV_URL,
    ENV_WORKDIR,
    EXIT_STOPPED,
    STATUS_ROUTE,
)
from coadapt.model.rescale import member_name
from coadapt.model.wire import from_json

RETRY_S = 1.0
# A pod may still get an image that could not be pulled: a registry may be unreachable
# for a while.
IMAGE_PATIENCE_S = 300.0
IMAGE_TROUBLE = ("ErrImagePull", "ImagePullBackOff", "CreateContainerError")
HOPELESS = ("InvalidImageName", "ErrImageNeverPull")
LOG_END_S = 10.0
CLIENT_ERRORS = range(400, 500)
# A server that has just started does not know any user's rights yet, and refuses
# requests.
RIGHTS_S = 30.0

EXIT_FAILED = 1
DISRUPTION = "DisruptionTarget"
# The exit code of a shell whose child was killed. To the launcher the replica is then
# lost, not failed.
EXIT_KILLED = 128 + signal.SIGKILL

_told = threading.Event()


def main(settings_file: str, node: str, parts: str, *command: str) -> NoReturn:
    """Run `command` in a pod on `node`, or take over the pod that already runs it.
    Never returns.
    """
    signal.signal(signal.SIGTERM, _on_signal)
    settings = from_json(PodSettings, json.loads(Path(settings_file).read_text()))
    checkpoints = Path(os.environ[ENV_CHECKPOINT_DIR])
    generation = int(os.environ[ENV_GENERATION])
    rank = os.environ.get("RANK")
    job = JobDir(checkpoints.parent)
    order = PodOrder(
        job=job.path.name,
        generation=generation,
        member=SETUP if rank is None else member_name(generation, int(rank)),
        node=node,
        parts=int(parts),
        command=command,
        workdir=os.environ[ENV_WORKDIR],
    )
    code = _Proxy(settings, order, job.generation(generation)).run()
    sys.stdout.buffer.flush()
    # Threads may still wait for a server that is gone.
    os._exit(code)


class _Proxy:
    def __init__(
        self, settings: PodSettings, order: PodOrder, directory: GenerationDir
    ) -> None:
        self._settings = settings
        self._order = order
        self._directory = directory
        self._api = KubeApi.connect(settings.kubeconfig)
        self._name = pod_name(settings, order.job, order.member)
        self._pods = f"/api/v1/namespaces/{settings.namespace}/pods"
        self._secrets = f"/api/v1/namespaces/{settings.namespace}/secrets"
        self._log = PodLog(
            self._api, f"{self._pods}/{self._name}", self._printed(directory.job)
        )
        self._trouble_since: float | None = None
        self._begun = Begun()
        self._why_deleted = ""
        launched = directory.order()
        self._lead = (
            directory if launched is None else directory.job.generation(launched.lead)
        )
        self._silence = ServerSilence(self._lead, order.member, self._say)

    def run(self) -> int:
        """Return the replica's exit code, once it has ended and its pod is gone."""
        resumed = os.environ.get(ENV_RESUMED) == "1"
        if not resumed and (code := self._make()) is not None:
            self._remove()
            return code
        threading.Thread(target=self._stop_when_told, daemon=True).start()
        code = self._follow()
        self._log.finish(LOG_END_S)
        self._remove()
        return code

    def _make(self) -> int | None:
        """Create the pod, as soon as the server answers. Return an exit code if the
        server refuses, or if a stop was ordered.
        """
        away_at = -math.inf
        while True:
            try:
                self._create()
            except ApiError as error:
                if error.status not in CLIENT_ERRORS:
                    away_at = time.monotonic()
                elif time.monotonic() - away_at > RIGHTS_S:
                    self._say(f"error: its pod could not be created: {error}")
                    return EXIT_FAILED
                self._silence.error(error)
                if _told.wait(RETRY_S):
                    return EXIT_KILLED
            else:
                self._silence.answer()
                return None

    def _create(self) -> None:
        """Create the pod and its secret. Objects from an earlier start of the same
        replica are reused.
        """
        order = self._directory.order()
        assert order is not None, f"{self._directory.path} holds no order"
        try:
            made = self._api.ask("POST", self._pods, pod(self._settings, self._order))
        except ApiError as error:
            if error.status != CONFLICT:
                raise
            made = self._api.get(f"{self._pods}/{self._name}")
        body = secret(
            self._settings, self._name, made["metadata"]["uid"], self._envs(order)
        )
        try:
            self._api.ask("POST", self._secrets, body)
        except ApiError as error:
            if error.status != CONFLICT:
                raise
            self._api.delete(f"{self._secrets}/{self._name}")
            self._api.ask("POST", self._secrets, body)

    def _envs(self, order: LaunchOrder) -> dict[str, str]:
        """Return the replica's environment. It contains no variables of this
        machine.
        """
        member = self._order.member
        its = next(
            (
                dict(item.envs)
                for item in order.replicas
                if Path(item.log).stem == member
            ),
            {},
        )
        names = (
            *self._settings.pass_env,
            ENV_TOKEN,
            ENV_CONTROL_URL,
            ENV_CONTROL_TOKEN,
            "MASTER_PORT",
        )
        forwarded = {name: os.environ[name] for name in names if name in os.environ}
        url = self._settings.api_url
        status = {
            ENV_STATUS_URL: f"{url}/v1/jobs/{self._order.job}/{STATUS_ROUTE}",
            ENV_STATUS_TOKEN_FILE: TOKEN_FILE,
        }
        envs = {
            **(status if its else {}),
            **forwarded,
            **order.envs,
            **its,
            ENV_URL: url,
        }
        if self._settings.claim:
            envs[ENV_CHECKPOINT_DIR] = CHECKPOINTS
        if self._settings.resource != CPU and its:
            envs["LOCAL_RANK"] = "0"  # the replica sees only its own GPU of the node
        if not on_host_network(self._settings.template) and its:
            first = order.rescale.members[0]
            envs["MASTER_ADDR"] = replica_address(
                self._settings, self._order.job, first
            )
            envs[ENV_NODE_ADDRESS] = replica_address(
                self._settings, self._order.job, member
            )
        return envs

    def _follow(self) -> int:
        """Watch the pod until it has ended. The pod keeps running while the server is
        unreachable.
        """
        last: JsonObject | None = None
        while True:
            try:
                for change, found in self._api.watch(
                    self._pods, fieldSelector=f"metadata.name={self._name}"
                ):
                    self._silence.answer()
                    if change == "DELETED" or (change == "LISTED" and last is None):
                        return self._gone(found or last)
                    if change == "LISTED":
                        continue
                    last = found
                    if (code := self._ended(found)) is not None:
                        return code
                last = None
            except ApiError as error:
                last = None
                self._silence.error(error)
                time.sleep(RETRY_S)

    def _ended(self, found: JsonObject) -> int | None:
        """Return the exit code of a pod that has ended, None while it has not."""
        status = found.get("status") or {}
        state = _state(status)
        if found["metadata"].get("deletionTimestamp") and not _told.is_set():
            self._why_deleted = self._why_deleted or _why_deleted(status)
        if "terminated" in state:
            self._begun.tell()
            return self._judge(state["terminated"])
        if status.get("phase") in ("Failed", "Succeeded"):
            why = ": ".join(
                str(status[key]) for key in ("reason", "message") if status.get(key)
            )
            self._say(f"its pod was ended by the cluster: {why or status['phase']}")
            return EXIT_KILLED
        if "running" in state:
            self._begun.tell()
            self._log.start()
            self._trouble_since = None
        return self._look_at_wait(status, state.get("waiting") or {})

    def _look_at_wait(self, status: JsonObject, waiting: JsonObject) -> int | None:
        reason = str(waiting.get("reason", ""))
        message = str(waiting.get("message", ""))
        for condition in status.get("conditions") or ():
            if (
                condition.get("type") == "PodScheduled"
                and condition.get("reason") == "Unschedulable"
            ):
                reason = "Unschedulable"
                message = str(condition.get("message", ""))
        if reason in (*IMAGE_TROUBLE, *HOPELESS, "Unschedulable"):
            self._say(f"waits: {reason}: {message}")
        if reason not in (*IMAGE_TROUBLE, *HOPELESS):
            return None
        now = time.monotonic()
        self._trouble_since = (
            now if self._trouble_since is None else self._trouble_since
        )
        if reason in HOPELESS or now - self._trouble_since > IMAGE_PATIENCE_S:
            self._say(f"error: its pod cannot be started: {reason}: {message}")
            return EXIT_FAILED
        return None

    def _judge(self, terminated: JsonObject) -> int:
        self._log.start()
        if terminated.get("reason") == "OOMKilled":
            self._log.finish(LOG_END_S)
            self._say("out of memory: its container used more than its limit")
            note_out_of_memory(self._lead, self._order.member)
        code = int(terminated.get("exitCode", EXIT_KILLED))
        if self._why_deleted:
            self._log.finish(LOG_END_S)
            saved = "; it saved first" if code == EXIT_STOPPED else ""
            self._say(f"{self._why_deleted}{saved}")
        return code

    def _gone(self, found: JsonObject | None) -> int:
        state = _state((found or {}).get("status") or {})
        if "terminated" in state:
            return self._judge(state["terminated"])
        if not _told.is_set():
            self._say(self._why_deleted or "its pod was deleted from outside")
        return EXIT_KILLED

    def _stop_when_told(self) -> None:
        _told.wait()
        while True:
            try:
                self._api.delete(f"{self._pods}/{self._name}", self._settings.grace_s)
            except ApiError:
                time.sleep(RETRY_S)
            else:
                return

    def _remove(self) -> None:
        """Remove the replica's objects from the cluster. If that fails, the sweep
        removes them later.
        """
        try:
            self._api.delete(f"{self._pods}/{self._name}", 0)
            self._api.delete(f"{self._secrets}/{self._name}")
        except ApiError as error:
            self._say(f"its pod could not be deleted: {error}")

    def _printed(self, job: JobDir) -> int:
        """Return how many bytes of the replica's output are already in its log."""
        there = segments(job.log(self._order.member))
        return (
            there[-1][0] + there[-1][1].stat().st_size
            if there and ENV_RESUMED in os.environ
            else 0
        )

    def _say(self, text: str) -> None:
        self._log.add(
            f"{text}\n"
            if text.startswith(("error:", "out of"))
            else f"[coadapt: {text}]\n"
        )


def _state(status: JsonObject) -> JsonObject:
    """Return the state of our container: one of waiting, running and terminated, with
    its details.
    """
    for each in status.get("containerStatuses") or ():
        if each.get("name") == CONTAINER:
            return dict(each.get("state") or {})
    return {}


def _why_deleted(status: JsonObject) -> str:
    """Return a text which says that a pod was deleted, and why, if the cluster reports
    it (Kubernetes 1.26 and later).
    """
    for condition in status.get("conditions") or ():
        if condition.get("type") == DISRUPTION and condition.get("status") == "True":
            said = condition.get("message") or condition.get("reason") or ""
            return (
                f"its pod was deleted from outside ({condition.get('reason')}: {said})"
            )
    return "its pod was deleted (evicted, preempted) from outside"


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    _told.set()


if __name__ == "__main__":
    main(*sys.argv[1:])
