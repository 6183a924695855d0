"""End a job's pods, or those that one generation started, and wait until they are gone.

Started as `python -m … SETTINGS JOB [GENERATION]`; exits with 0 once nothing is left.
"""

import json
import sys
import time
from pathlib import Path

from coadapt.executors.kubernetes.api import ApiError, JsonObject, KubeApi
from coadapt.executors.kubernetes.nodes import is_ready
from coadapt.executors.kubernetes.pods import PodSettings, selector
from coadapt.model.wire import from_json

GRACE_S = 1
POLL_S = 0.2
# A node that responds has killed the pod by then. A node that does not respond will not
# kill it, so its pods are only deleted from the API.
PATIENCE_S = 30.0


def main(settings_file: str, job: str, generation: str = "") -> None:
    """Raises ApiError if the server does not answer, because then nothing is known."""
    settings = from_json(PodSettings, json.loads(Path(settings_file).read_text()))
    api = KubeApi.connect(settings.kubeconfig)
    pods = f"/api/v1/namespaces/{settings.namespace}/pods"
    labels = selector(settings, job, int(generation) if generation else None)
    deadline = time.monotonic() + PATIENCE_S
    asked = set[str]()
    while left := api.get(pods, labelSelector=labels)["items"]:
        for each in left:
            name = each["metadata"]["name"]
            if (
                time.monotonic() > deadline
                or _runs_nothing(each)
                or not _node_lives(api, each)
            ):
                api.delete(f"{pods}/{name}", 0)
            elif name not in asked:
                api.delete(f"{pods}/{name}", GRACE_S)
            asked.add(name)
        time.sleep(POLL_S)
    for name in asked:
        api.delete(f"/api/v1/namespaces/{settings.namespace}/secrets/{name}")


def _runs_nothing(pod: JsonObject) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed", "Pending")


def _node_lives(api: KubeApi, pod: JsonObject) -> bool:
    name = (pod.get("spec") or {}).get("nodeName")
    node = api.find(f"/api/v1/nodes/{name}") if name else None
    return node is not None and is_ready(node)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except ApiError as error:
        sys.exit(f"pods may be left: {error}")
