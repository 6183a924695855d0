"""`coadapt elastic-jobs`: makes jobs of a Kubernetes cluster's ElasticJobs, and mirrors
their states.
"""

import signal
import time
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn, cast

import typer

from coadapt.cli.client import (
    Client,
    JsonObject,
    RefusedError,
    UnreachableError,
    find_client,
)
from coadapt.cli.state_dir import StateOption
from coadapt.model import InputError
from coadapt.model.wire import from_json

if TYPE_CHECKING:
    from coadapt.executors.kubernetes.api import KubeApi
    from coadapt.executors.kubernetes.elastic_jobs import ObservedJob

NOT_FOUND = 404
SERVER_ERRORS = 500
CLIENT_ERRORS = range(400, SERVER_ERRORS)


def elastic_jobs(
    state: StateOption = None,
    kubeconfig: Annotated[
        str,
        typer.Option(help="kubeconfig file. [default: in a pod, the pod's cluster]"),
    ] = "",
    namespace: Annotated[
        str,
        typer.Option(
            help="Namespace of the ElasticJobs. [default: that of the kubeconfig]"
        ),
    ] = "",
    every_s: Annotated[
        float, typer.Option("--every", min=0.1, help="Seconds between two checks.")
    ] = 2.0,
) -> None:
    """Run the controller of ElasticJobs: submit each, update its status, and cancel its
    job when it is deleted.
    """
    try:
        from coadapt.executors.kubernetes.api import ApiError, KubeApi, NoClusterError
    except ModuleNotFoundError as error:
        if error.name != "kubernetes":
            raise
        raise InputError(
            "elastic-jobs", "kubernetes", "pip install 'coadapt[kubernetes]' first"
        ) from None
    try:
        api = KubeApi.connect(kubeconfig)
    except NoClusterError as error:
        raise InputError(
            "--kubeconfig", kubeconfig or None, f"a kubeconfig of a cluster ({error})"
        ) from None
    # In its container it is the first process, which a signal ends only if it says so
    # itself.
    signal.signal(signal.SIGTERM, _end)
    mirror = Mirror(api, namespace or api.namespace)
    said = ""
    while True:
        try:
            mirror.look(find_client(state))
            trouble = mirror.silence
        except (ApiError, UnreachableError, RefusedError) as error:
            trouble = f"waits: {error}"
        if trouble != said:
            typer.echo(trouble or "all is well again", err=True)
            said = trouble
        time.sleep(every_s)


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    """Leave off anywhere: the next one goes on from there."""
    raise SystemExit(0)


class Mirror:
    """Keeps jobs and the ElasticJobs of a namespace alike, look by look.

    silence: why no Events were written at the last look, "" where nothing hindered it.
    """

    def __init__(self, api: "KubeApi", namespace: str) -> None:
        from coadapt.executors.kubernetes.elastic_jobs import resources_path
        from coadapt.executors.kubernetes.job_events import EventRecorder

        self.silence = ""
        self._api = api
        self._path = resources_path(namespace)
        self._events = EventRecorder(api, namespace)
        # Objects of which there will be nothing new: (uid, generation).
        self._over: set[tuple[str, int]] = set()

    def look(self, client: Client) -> None:
        """Bring jobs, statuses and Events once to what there is now.

        Raises ApiError, UnreachableError, RefusedError. May be interrupted anywhere and
        begun again: a job is submitted under its object's uid.
        """
        self.silence = ""
        items = self._api.get(self._path)["items"]
        known = {_key(found) for found in items}
        self._over &= known
        self._events.forget({uid for uid, _ in known})
        for found in items:
            if found["metadata"].get("deletionTimestamp"):
                self._let_go(client, found)
            elif _key(found) not in self._over:
                self._follow(client, found)

    def _let_go(self, client: Client, found: "JsonObject") -> None:
        from coadapt.executors.kubernetes.elastic_jobs import FINALIZER
        from coadapt.service.submission import job_id

        metadata = cast("JsonObject", found["metadata"])
        finalizers = cast("list[str]", metadata.get("finalizers") or [])
        if FINALIZER not in finalizers:
            return
        job = cast("JsonObject", found.get("status") or {}).get("job")
        # It may have been submitted without a record of it: the id follows from the
        # object.
        _cancel(client, str(job or job_id(str(metadata["name"]), str(metadata["uid"]))))
        left = [each for each in finalizers if each != FINALIZER]
        self._api.ask(
            "PATCH",
            f"{self._path}/{metadata['name']}",
            {"metadata": {"finalizers": left}},
        )

    def _follow(self, client: Client, found: "JsonObject") -> None:
        from coadapt.executors.kubernetes.elastic_jobs import (
            ENDED_PHASES,
            FINALIZER,
            ObservedJob,
            merge_patch,
            status,
        )

        metadata = cast("JsonObject", found["metadata"])
        before = cast("JsonObject", found.get("status") or {})
        finalizers = cast("list[str]", metadata.get("finalizers") or [])
        own = f"{self._path}/{metadata['name']}"
        if FINALIZER not in finalizers:
            self._api.ask(
                "PATCH", own, {"metadata": {"finalizers": [*finalizers, FINALIZER]}}
            )
        job = str(before.get("job", ""))
        observed = _observed(client, job) if job else _submitted(client, found)
        if observed is None:
            observed = ObservedJob(
                job=job, refusal=f"the scheduler knows of no job {job}"
            )
        observed, has_more = self._record_changes(client, found, observed)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        wanted = status(found, observed, now)
        if wanted != before:
            self._api.ask(
                "PATCH", f"{own}/status", {"status": merge_patch(before, wanted)}
            )
        elif not has_more and wanted["phase"] in ENDED_PHASES:
            self._over.add(_key(found))

    def _record_changes(
        self, client: Client, found: "JsonObject", observed: "ObservedJob"
    ) -> tuple["ObservedJob", bool]:
        """Post the changes of the job as Events. Return the job with the number of the
        last change posted, and whether there may be more.
        """
        from coadapt.executors.kubernetes.api import FORBIDDEN, ApiError
        from coadapt.executors.kubernetes.elastic_jobs import REFUSED
        from coadapt.runtime.job_history import Change

        status = cast("JsonObject", found.get("status") or {})
        before = cast("int | None", status.get("toldUpto"))
        observed = observed.with_reported(before)
        try:
            if observed.refusal:
                if status.get("phase") != REFUSED:
                    self._events.refuse(found, observed.refusal, time.time())
                return observed, False
            after = -1
            if before is not None:
                after = before
            path = f"{client.job_path(observed.job)}/changes?after={after}"
            changes = [
                from_json(Change, each)
                for each in cast("list[object]", client.get(path)["changes"])
            ]
            if not changes:
                return observed, False
            return observed.with_reported(self._events.record(found, changes)), True
        except ApiError as error:
            if error.status != FORBIDDEN:
                raise
            # A job runs without its Events.
            self.silence = f"posts no Events: {error}"
            return observed, False


def _key(found: "JsonObject") -> tuple[str, int]:
    metadata = cast("JsonObject", found["metadata"])
    return str(metadata["uid"]), int(cast(int, metadata.get("generation", 1)))


def _submitted(client: Client, found: "JsonObject") -> "ObservedJob | None":
    from coadapt.executors.kubernetes.elastic_jobs import REFUSED, ObservedJob, job_body

    before = cast("JsonObject", found.get("status") or {})
    metadata = cast("JsonObject", found["metadata"])
    if before.get("phase") == REFUSED and before.get(
        "observedGeneration"
    ) == metadata.get("generation"):
        return ObservedJob(refusal=str(before.get("reason", "")))
    try:
        answer = client.post(
            "/v1/jobs", job_body(found), {"Idempotency-Key": str(metadata["uid"])}
        )
    except RefusedError as error:
        if error.status not in CLIENT_ERRORS:
            raise
        return ObservedJob(refusal=str(error))
    return _observed(client, str(answer["id"]))


def _observed(client: Client, job: str) -> "ObservedJob | None":
    """Return a job as the scheduler sees it, None where it does not know the job."""
    from coadapt.executors.kubernetes.elastic_jobs import ObservedJob

    try:
        return ObservedJob(job=job, picture=client.get(client.job_path(job)))
    except RefusedError as error:
        if error.status == NOT_FOUND:
            return None
        raise


def _cancel(client: Client, job: str) -> None:
    try:
        client.post(f"{client.job_path(job)}/cancel")
    except RefusedError as error:
        if error.status != NOT_FOUND:
            raise
