"""Which nodes of a Kubernetes cluster can run replicas, and how many slots they
have.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from coadapt.executors.kubernetes.api import JsonObject
from coadapt.model import DEFAULT_GPU_TYPE, Node
from coadapt.model.contract_env import CPU_SLOT_TYPE

# A label set by the device plugin's feature discovery. Its value is the product's name.
GPU_PRODUCT = "nvidia.com/gpu.product"
NVIDIA_VENDOR = "nvidia.com"
NVIDIA = f"{NVIDIA_VENDOR}/gpu"
CPU = "cpu"
# A taint with one of these effects keeps a pod away, or evicts it. PreferNoSchedule
# does neither.
KEEPING_OFF = ("NoSchedule", "NoExecute")
CPU_SLOTS_MAX = 1024


def usable_nodes(
    found: Sequence[JsonObject],
    *,
    resource: str,
    slots: int | None,
    labels: Mapping[str, str],
    tolerations: Sequence[JsonObject],
    busy: Mapping[str, int] = MappingProxyType({}),
    if_ready: bool = False,
) -> dict[str, tuple[Node, str]]:
    """Return, by name, the nodes that are ready, not cordoned and have a slot, each
    with its address.

    resource: the resource that a slot is. slots: the number of slots per node, instead
    of the node's resources. labels: labels that a node must have. busy: the slots of
    each node that our pods have. A node has at least these, even if it reports fewer.
    if_ready: every ready node is returned, also one that takes no new pods.
    """
    usable = {}
    for each in found:
        metadata = each["metadata"]
        status = each.get("status") or {}
        count = (
            slots
            if slots is not None
            else _whole((status.get("allocatable") or {}).get(resource, "0"))
        )
        count = max(count, busy.get(str(metadata["name"]), 0))
        has = metadata.get("labels") or {}
        if (
            count
            and (is_ready(each) if if_ready else why_not(each, tolerations) is None)
            and all(has.get(key) == value for key, value in labels.items())
        ):
            is_cpu = slots is not None or resource == CPU
            kind = CPU_SLOT_TYPE if is_cpu else slot_type(resource, has)
            node = Node(
                id=str(metadata["name"]),
                num_gpus=min(count, CPU_SLOTS_MAX),
                gpu_type=kind,
            )
            usable[node.id] = (node, _address(status))
    return usable


def slot_type(resource: str, labels: Mapping[str, str]) -> str:
    """Return the type of slots of a resource other than CPUs: the product's name, and
    the profile of a partition.

    labels: the node's labels. Vendors put the product's name there, in one of several
    ways.
    """
    own = (
        f"{resource}.product",
        f"{resource}.product-name",
        f"beta.{resource}.product-name",
    )
    for label in own:
        if labels.get(label):
            return str(labels[label]).lower()
    vendor, _, name = resource.rpartition("/")
    profile = "" if name == "gpu" else name.removeprefix("gpu.")
    if vendor == NVIDIA_VENDOR and labels.get(GPU_PRODUCT):
        product = str(labels[GPU_PRODUCT])
        known = not profile or product.lower().endswith(f"-{profile.lower()}")
        return (product if known else f"{product}-{profile}").lower()
    if vendor == NVIDIA_VENDOR:
        return (profile and f"{DEFAULT_GPU_TYPE}-{profile}").lower() or DEFAULT_GPU_TYPE
    maker = vendor.split(".")[0]
    return "-".join(part for part in (maker, name) if part).lower()


def why_not(found: JsonObject, tolerations: Sequence[JsonObject]) -> str | None:
    """Return why no pod can start on a node, None if one can."""
    spec = found.get("spec") or {}
    if (found["metadata"] or {}).get("deletionTimestamp"):
        return "is being removed"
    if not is_ready(found):
        return "is not ready"
    if spec.get("unschedulable"):
        return "is cordoned"
    for taint in spec.get("taints") or ():
        if taint["effect"] in KEEPING_OFF and not any(
            _tolerates(each, taint) for each in tolerations
        ):
            return f"has the taint {taint['key']}:{taint['effect']}"
    return None


def is_ready(found: JsonObject) -> bool:
    """Return whether the node is ready. For a node whose daemon does not report, the
    cluster says Unknown.
    """
    conditions = (found.get("status") or {}).get("conditions") or ()
    return any(
        each["type"] == "Ready" and each["status"] == "True" for each in conditions
    )


def _tolerates(toleration: JsonObject, taint: JsonObject) -> bool:
    """Return whether a toleration matches a taint, by the rules of Kubernetes: a
    missing key or effect matches all.
    """
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if not toleration.get("key"):
        return toleration.get("operator") == "Exists"
    if toleration["key"] != taint["key"]:
        return False
    by_value = toleration.get("operator", "Equal") == "Equal"
    return not by_value or toleration.get("value", "") == taint.get("value", "")


def _whole(quantity: str) -> int:
    """Return the whole number in a quantity such as 8, 3920m or 1k, rounded down."""
    text = str(quantity)
    if text.endswith("m"):
        return int(text[:-1]) // 1000
    return int(text) if text.isdecimal() else 0


def _address(status: JsonObject) -> str:
    addresses = {
        each["type"]: each["address"] for each in status.get("addresses") or ()
    }
    return str(addresses.get("InternalIP") or addresses.get("Hostname") or "")
