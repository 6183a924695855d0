"""The custom resource ElasticJob: the job that it requests, and its status about this
job. Plain values.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from coadapt.executors.kubernetes.api import JsonObject
from coadapt.executors.kubernetes.pods import DOMAIN
from coadapt.executors.kubernetes.trainer_status import trainer_status

GROUP = f"/apis/{DOMAIN}/v1alpha1"
FINALIZER = f"{DOMAIN}/cancel-job"
REFUSED = "Refused"
TRAINS = ("running", "rescaling")
ENDED = ("succeeded", "failed", "cancelled")
EDITED = (
    "its spec was edited after its job was submitted, which has no effect: delete it and "
    "create another"
)
ENDED_PHASES = (*(state.capitalize() for state in ENDED), REFUSED)


def resources_path(namespace: str) -> str:
    """Return the path of a namespace's ElasticJobs."""
    return f"{GROUP}/namespaces/{namespace}/elasticjobs"


def job_body(found: JsonObject) -> JsonObject:
    """Return the request that submits the job of an ElasticJob: a job file with the
    object's name.
    """
    return {"name": found["metadata"]["name"], **found["spec"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedJob:
    """The known state of the job: its id and its state from the API, or why it was
    refused.

    reported_upto: the number of the last change that the object's Events report, None
    if they report none.
    """

    job: str = ""
    picture: Mapping[str, object] | None = None
    refusal: str = ""
    reported_upto: int | None = None

    def with_reported(self, upto: int | None) -> "ObservedJob":
        return replace(self, reported_upto=upto)


def status(found: JsonObject, observed: ObservedJob, now: str) -> JsonObject:
    """Return the status that an ElasticJob should have. now: RFC 3339, for conditions
    that change now.
    """
    old = {
        each["type"]: each
        for each in (found.get("status") or {}).get("conditions") or ()
    }
    picture = observed.picture or {}
    state = str(picture.get("state", "pending"))
    phase = REFUSED if observed.refusal else state.capitalize()
    reason = observed.refusal or str(
        picture.get("explanation") or picture.get("reason") or phase
    )
    generation = found["metadata"].get("generation", 1)
    # The generation of the spec from which the job was created. Objects of an earlier
    # version do not have it.
    submitted = (found.get("status") or {}).get("submittedGeneration", generation)
    if observed.job and submitted != generation and state not in ENDED:
        reason = f"{reason}; {EDITED}"
    truths = {
        "Submitted": not observed.refusal,
        "Running": not observed.refusal and state in TRAINS,
        "Finished": bool(observed.refusal) or state in ENDED,
    }
    conditions = []
    for kind, truth in truths.items():
        word = str(truth)
        before = old.get(kind, {})
        at = before["lastTransitionTime"] if before.get("status") == word else now
        conditions.append(
            {
                "type": kind,
                "status": word,
                "lastTransitionTime": at,
                "reason": phase,
                "message": reason,
            }
        )
    replicas = picture.get("num_gpus", 0)
    progress = trainer_status(
        picture, (found.get("status") or {}).get("trainerStatus"), now
    )
    return {
        "observedGeneration": generation,
        **(
            {"job": observed.job, "submittedGeneration": submitted}
            if observed.job
            else {}
        ),
        "phase": phase,
        "replicas": 0 if observed.refusal or state in ENDED else replicas,
        "reason": reason,
        **({"trainerStatus": progress} if progress else {}),
        **(
            {"toldUpto": observed.reported_upto}
            if observed.reported_upto is not None
            else {}
        ),
        "conditions": conditions,
    }


def merge_patch(
    before: Mapping[str, object], wanted: Mapping[str, object]
) -> JsonObject:
    """Return the merge patch (RFC 7396) that changes `before` to `wanted`. Removed
    fields are null.
    """
    patch: JsonObject = dict.fromkeys(before.keys() - wanted.keys())
    for key, value in wanted.items():
        old = before.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            patch[key] = merge_patch(old, value)
        elif value != old:
            patch[key] = value
    return patch
