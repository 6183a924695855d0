"""`coadapt elastic-jobs`: makes jobs of a Kubernetes cluster's ElasticJobs, and mirrors how they stand."""

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, cast

import typer

from coadapt.cli.client import Client, JsonObject, RefusedError, UnreachableError, find_client
from coadapt.cli.state_dir import StateOption
from coadapt.model import InputError

if TYPE_CHECKING:
    from coadapt.executors.kubernetes.api import KubeApi
    from coadapt.executors.kubernetes.elastic_jobs import Standing

NOT_FOUND = 404
SERVER_ERRORS = 500
CLIENT_ERRORS = range(400, SERVER_ERRORS)


def elastic_jobs(
    state: StateOption = None,
    kubeconfig: Annotated[str, typer.Option(help="Where the cluster is; in a pod: its own.")] = "",
    namespace: Annotated[str, typer.Option(help="Of the ElasticJobs; else that of the kubeconfig.")] = "",
    every_s: Annotated[float, typer.Option("--every", min=0.1, help="Seconds between two looks.")] = 2.0,
) -> None:
    """Submit each ElasticJob of a namespace, keep its status up to date, cancel it where it is deleted."""
    try:
        from coadapt.executors.kubernetes.api import ApiError, KubeApi, NoClusterError
    except ModuleNotFoundError as error:
        if error.name != "kubernetes":
            raise
        raise InputError("elastic-jobs", "kubernetes", "pip install 'coadapt[kubernetes]' first") from None
    try:
        api = KubeApi.connect(kubeconfig)
    except NoClusterError as error:
        raise InputError("--kubeconfig", kubeconfig or None, f"a kubeconfig of a cluster ({error})") from None
    said = ""
    while True:
        try:
            reconcile(api, namespace or api.namespace, find_client(state))
            trouble = ""
        except (ApiError, UnreachableError, RefusedError) as error:
            trouble = str(error)
        if trouble != said:
            typer.echo(f"waits: {trouble}" if trouble else "all is well again", err=True)
            said = trouble
        time.sleep(every_s)


def reconcile(api: "KubeApi", namespace: str, client: Client) -> None:
    """Bring jobs and statuses once to what the ElasticJobs say.

    Raises ApiError, UnreachableError, RefusedError. May be interrupted anywhere and begun again: a job is
    submitted under its object's uid.
    """
    from coadapt.executors.kubernetes.elastic_jobs import FINALIZER, Standing, resources_path, status
    from coadapt.service.submission import job_id

    path = resources_path(namespace)
    for found in api.get(path)["items"]:
        metadata = found["metadata"]
        own, finalizers = f"{path}/{metadata['name']}", metadata.get("finalizers") or []
        job = (found.get("status") or {}).get("job", "")
        if metadata.get("deletionTimestamp"):
            if FINALIZER in finalizers:
                # Perhaps it was submitted, and nobody came to write that down: the id is known all the same.
                _cancel(client, job or job_id(metadata["name"], metadata["uid"]))
                left = [each for each in finalizers if each != FINALIZER]
                api.ask("PATCH", own, {"metadata": {"finalizers": left}})
            continue
        if FINALIZER not in finalizers:
            api.ask("PATCH", own, {"metadata": {"finalizers": [*finalizers, FINALIZER]}})
        standing = _standing(client, job) if job else _submitted(client, found)
        if standing is None:
            standing = Standing(job=job, refusal=f"the scheduler knows of no job {job}")
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        wanted = status(found, standing, now)
        if wanted != found.get("status"):
            api.ask("PATCH", f"{own}/status", {"status": wanted})


def _submitted(client: Client, found: JsonObject) -> "Standing | None":
    from coadapt.executors.kubernetes.elastic_jobs import Standing, job_body

    before = cast("JsonObject", found.get("status") or {})
    metadata = cast("JsonObject", found["metadata"])
    if before.get("phase") == "Refused" and before.get("observedGeneration") == metadata.get("generation"):
        return Standing(refusal=str(before.get("reason", "")))
    try:
        answer = client.post("/v1/jobs", job_body(found), {"Idempotency-Key": str(metadata["uid"])})
    except RefusedError as error:
        if error.status not in CLIENT_ERRORS:
            raise
        return Standing(refusal=str(error))
    return _standing(client, str(answer["id"]))


def _standing(client: Client, job: str) -> "Standing | None":
    """Return how a job stands, None where the scheduler does not know it."""
    from coadapt.executors.kubernetes.elastic_jobs import Standing

    try:
        return Standing(job=job, picture=client.get(client.job_path(job)))
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
