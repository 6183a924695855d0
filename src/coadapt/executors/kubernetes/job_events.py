"""Reports the changes of an ElasticJob's job as Events of that object, so that `kubectl
describe` shows its history.
"""

# Which changes become events, and how often.
#
# A change of a job is reported once, also over restarts of the scheduler. The object's
# status has the number of the last journal event up to which everything was reported.
# An event's name follows from its content, so an event that was posted just before a
# crash is found. Users wait for the end of a job, so the end is always reported.
#
# If the same sentence is reported again, the count of its event is increased, as in
# Kubernetes' own recorder. A job that changes all the time gets BURST events at once
# and then one each EVERY_S. Further changes are counted in one event, which says where
# all of them can be found.
#
# The events are core/v1 events. These have counts and two times in every release since
# 1.20, and the newer API shows the same objects.

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from coadapt.core.lifecycle import ENDED, JobState, Reason
from coadapt.executors.kubernetes.api import (
    CONFLICT,
    NOT_FOUND,
    ApiError,
    JsonObject,
    KubeApi,
)
from coadapt.executors.kubernetes.pods import DOMAIN
from coadapt.runtime.job_history import Change, JobStatus

NORMAL = "Normal"
WARNING = "Warning"
# The newer API accepts no longer text, in bytes.
MESSAGE_MAX = 1_000
NAME_HEAD = 200
DIGEST = 16
BURST = 20
EVERY_S = 15.0

TROUBLE = {
    Reason.NODE_LOST: "NodeLost",
    Reason.REPLICAS_LOST: "ReplicasLost",
    Reason.HUNG: "Hung",
    Reason.UNSEEN: "Unseen",
    Reason.SCRIPT_FAILED: "ScriptFailed",
    Reason.RESCALE_FAILED: "ResizeFailed",
    Reason.IMPOSSIBLE: "TooLarge",
    Reason.SET_ASIDE: "SetAside",
    Reason.GROWTH_FAILED: "GrowthFailed",
    Reason.NODE_UNFIT: "NodeUnfit",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """The content of an event: its type, a word for programs, a sentence, its time (s),
    and the number of the change.
    """

    kind: str
    reason: str
    message: str
    at: float
    seq: int


def event_content(change: Change) -> JobEvent | None:
    """Return the report of a change, None if the next change reports it better."""
    found = _of_replicas(change) if change.rescale is not None else _of_status(change)
    if found is None:
        return None
    kind, reason, message = found
    return JobEvent(
        kind=kind, reason=reason, message=_cut(message), at=change.at, seq=change.seq
    )


def _of_replicas(change: Change) -> tuple[str, str, str] | None:
    rescale = change.rescale
    assert rescale is not None
    if rescale.pause:
        return NORMAL, "Resized", change.text
    before = rescale.before
    now = rescale.now
    cost = f"{rescale.cost_s:.1f} s"
    if not before:
        return (
            NORMAL,
            "Training",
            f"{_replicas(now)} took the first step; the start cost {cost}",
        )
    what = (
        f"resized {before} -> {now}"
        if before != now
        else f"went on with {_replicas(now)}"
    )
    return (
        NORMAL,
        "Resized" if before != now else "Resumed",
        f"{what} by a restart, which cost {cost}",
    )


def _of_status(change: Change) -> tuple[str, str, str] | None:
    was = change.was
    now = change.now
    # Without a new sentence, the part of the history after the state is used, such as
    # where the job runs.
    why = change.why or change.text.partition("; ")[2] or change.text
    assert now is not None
    if was is None:
        return NORMAL, "Submitted", change.text
    if now.state in ENDED:
        return (
            WARNING if now.state is JobState.FAILED else NORMAL,
            now.state.value.capitalize(),
            why,
        )
    if now.reason in TROUBLE and now.reason is not was.reason:
        evicted = now.reason is Reason.REPLICAS_LOST and "pod was deleted" in why
        return WARNING, "Evicted" if evicted else TROUBLE[now.reason], why
    if now.state is was.state:
        return (
            (NORMAL, "SeenAgain", change.text.partition("; ")[2])
            if was.reason is Reason.UNSEEN
            else None
        )
    match now.state:
        case JobState.STARTING:
            return NORMAL, "Starting", f"{_replicas(now.replicas)}: {why}"
        case JobState.RUNNING if was.state is JobState.STARTING:
            return NORMAL, "Started", f"{_replicas(now.replicas)} started"
        case JobState.RESCALING:
            return (
                NORMAL,
                "Resizing",
                f"{was.replicas} -> {now.replicas} in place: {why}",
            )
        case JobState.STOPPING:
            return _of_stop(was, now, why)
        case _:
            return None


def _of_stop(was: JobStatus, now: JobStatus, why: str) -> tuple[str, str, str] | None:
    if now.reason is Reason.PREEMPTED:
        return NORMAL, "Preempted", f"{_replicas(was.replicas)} stop: {why}"
    if now.reason is Reason.RESCALED:
        return (
            NORMAL,
            "Resizing",
            f"{_replicas(was.replicas)} stop, to start again otherwise: {why}",
        )
    return None


class EventRecorder:
    """Posts events of objects of one namespace. Every method raises ApiError."""

    def __init__(
        self, api: KubeApi, namespace: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """clock: returns seconds, for the limit of the number of events."""
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/events"
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}
        self._last: dict[str, tuple[str, JobEvent, int]] = {}

    def record(self, found: JsonObject, changes: Sequence[Change]) -> int:
        """Post `changes` as events of the object `found`. Return the number of the
        change up to which all are reported.

        This number is below that of the last change if the object has had too many
        events. Then call again later.
        """
        uid = str(found["metadata"]["uid"])
        wanted = [each for each in map(event_content, changes) if each is not None]
        room = int(self._room(uid))
        ended = (
            bool(changes)
            and changes[-1].now is not None
            and changes[-1].now.state in ENDED
        )
        if wanted and room == 0 and not ended:
            return changes[0].seq - 1
        for each in _fitting(wanted, max(room, 1)):
            self._post(found, uid, each)
        return changes[-1].seq if changes else -1

    def refuse(self, found: JsonObject, why: str, at: float) -> None:
        """Post that no job was created from the object `found`, at `at` (s)."""
        metadata = found["metadata"]
        refused = JobEvent(
            kind=WARNING,
            reason="Refused",
            message=_cut(why),
            at=at,
            seq=metadata.get("generation", 1),
        )
        self._room(str(metadata["uid"]))
        self._post(found, str(metadata["uid"]), refused)

    def forget(self, uids: set[str]) -> None:
        """Forget all objects except `uids`, because they are gone."""
        for kept in (self._left, self._last):
            for uid in kept.keys() - uids:
                del kept[uid]

    def _room(self, uid: str) -> float:
        left, at = self._left.get(uid, (float(BURST), self._clock()))
        now = self._clock()
        room = min(left + (now - at) / EVERY_S, float(BURST))
        self._left[uid] = (room, now)
        return room

    def _post(self, found: JsonObject, uid: str, each: JobEvent) -> None:
        name, last, count = self._last.get(uid, ("", None, 0))
        if last is not None and (last.reason, last.message) == (
            each.reason,
            each.message,
        ):
            if last.seq >= each.seq:
                return
            body = {"count": count + 1, "lastTimestamp": _instant(each.at)}
            try:
                self._api.ask("PATCH", f"{self._path}/{name}", body)
            except ApiError as error:
                if error.status != NOT_FOUND:  # events live an hour by default
                    raise
            else:
                self._last[uid] = (name, each, count + 1)
                return
        made = event(found, each)
        try:
            self._api.ask("POST", self._path, made)
        except ApiError as error:
            if error.status != CONFLICT:
                raise
        else:
            left, at = self._left[uid]
            self._left[uid] = (max(left - 1.0, 0.0), at)
        self._last[uid] = (str(made["metadata"]["name"]), each, 1)


def event(found: JsonObject, each: JobEvent) -> JsonObject:
    """Return the event of the object `found` with the content `each`. Its name follows
    from its content.
    """
    metadata = found["metadata"]
    what = f"{metadata['uid']} {each.seq} {each.reason} {each.message}"
    digest = hashlib.sha256(what.encode()).hexdigest()[:DIGEST]
    about = {key: metadata[key] for key in ("name", "namespace", "uid")}
    at = _instant(each.at)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata['name'][:NAME_HEAD].rstrip('.-')}.{digest}",
            "namespace": metadata["namespace"],
        },
        "involvedObject": {
            "apiVersion": f"{DOMAIN}/v1alpha1",
            "kind": "ElasticJob",
            **about,
        },
        "type": each.kind,
        "reason": each.reason,
        "message": each.message,
        "count": 1,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "source": {"component": "coadapt"},
    }


def _fitting(wanted: list[JobEvent], room: int) -> list[JobEvent]:
    """Return the latest of `wanted`, preceded by an event that counts those for which
    there is no room.
    """
    if len(wanted) <= room:
        return wanted
    kept = wanted[len(wanted) - max(room - 1, 1) :]
    skipped = wanted[len(wanted) - len(kept) - 1]
    count = len(wanted) - len(kept)
    text = (
        f"{count} changes up to here are in `coadapt story` only: there were too many"
    )
    return [
        JobEvent(
            kind=NORMAL, reason="Skipped", message=text, at=skipped.at, seq=skipped.seq
        ),
        *kept,
    ]


def _replicas(count: int) -> str:
    return f"{count} replica{'s' * (count != 1)}"


def _cut(text: str) -> str:
    """Return a text that is no longer than an event's may be."""
    data = text.encode()
    return (
        text
        if len(data) <= MESSAGE_MAX
        else data[: MESSAGE_MAX - 3].decode(errors="ignore") + "…"
    )


def _instant(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
