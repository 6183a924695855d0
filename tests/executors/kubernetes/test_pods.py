"""Pods, nodes and templates as plain values; no cluster needed."""

import json
from dataclasses import replace

import pytest

from coadapt.model import Node

pytest.importorskip("kubernetes")

from coadapt.executors.kubernetes.nodes import usable_nodes, why_not
from coadapt.executors.kubernetes.pods import (
    SETUP,
    TOKEN_FILE,
    PodOrder,
    PodSettings,
    merge,
    pod,
    replica_address,
)
from coadapt.executors.kubernetes.proxy import _why_deleted

TOLERATION = {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}
GPU_TAINT = {"key": "gpu", "effect": "NoSchedule"}


def node(
    name: str = "n", *, gpus: str = "4", ready: str = "True", **spec: object
) -> dict[str, object]:
    return {
        "metadata": {
            "name": name,
            "labels": {"pool": "a", "nvidia.com/gpu.product": "A100-SXM4"},
        },
        "spec": spec,
        "status": {
            "allocatable": {"nvidia.com/gpu": gpus, "cpu": "3920m"},
            "conditions": [{"type": "Ready", "status": ready}],
            "addresses": [{"type": "InternalIP", "address": "192.0.2.7"}],
        },
    }


def usable(each: dict[str, object], **changes: object) -> dict[str, tuple[Node, str]]:
    terms = {
        "resource": "nvidia.com/gpu",
        "slots": None,
        "labels": {},
        "tolerations": (),
    }
    return usable_nodes([each], **(terms | changes))  # type: ignore[arg-type]  # a few of them, changed


def test_a_ready_node_has_its_allocatable_gpus_their_product_and_address() -> None:
    assert usable(node()) == {
        "n": (Node(id="n", num_gpus=4, gpu_type="a100-sxm4"), "192.0.2.7")
    }


@pytest.mark.parametrize(
    ("each", "why"),
    [
        (node(ready="False"), "is not ready"),
        (node(ready="Unknown"), "is not ready"),
        (node(unschedulable=True), "is cordoned"),
        (node(taints=[GPU_TAINT]), "has the taint gpu:NoSchedule"),
        (
            node(taints=[{"key": "gpu", "effect": "NoExecute"}]),
            "has the taint gpu:NoExecute",
        ),
        (node(taints=[{"key": "gpu", "effect": "PreferNoSchedule"}]), None),
    ],
)
def test_a_node_that_takes_no_pods_is_none_of_ours(
    each: dict[str, object], why: str | None
) -> None:
    assert why_not(each, ()) == why
    assert (usable(each) == {}) == (why is not None)


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        (TOLERATION, True),
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "value": "a"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_a_taint_is_answered_by_a_toleration(
    toleration: dict[str, str], tolerated: bool
) -> None:
    assert (why_not(node(taints=[GPU_TAINT]), [toleration]) is None) == tolerated


def test_nodes_without_the_label_or_a_slot_are_left_out_and_slots_stand_for_gpus() -> (
    None
):
    assert usable(node(), labels={"pool": "b"}) == {}
    assert usable(node(gpus="0")) == {}
    assert usable(node(gpus="0"), slots=2)["n"][0] == Node(
        id="n", num_gpus=2, gpu_type="cpu"
    )
    assert usable(node(), resource="cpu")["n"][0] == Node(
        id="n", num_gpus=3, gpu_type="cpu"
    )


def settings(**changes: object) -> PodSettings:
    terms = {
        "kubeconfig": "",
        "namespace": "ml",
        "scheduler": "coadapt-1",
        "image": "image:1",
        "resource": "nvidia.com/gpu",
        "grace_s": 28.0,
    }
    return PodSettings(**(terms | changes))  # type: ignore[arg-type]  # a few of them, changed


ORDER = PodOrder(
    job="cifar-1a",
    generation=3,
    member="3-0",
    node="n",
    parts=8,
    command=("sh", "-c", "x"),
    workdir="/w",
)


def test_a_template_gives_what_we_do_not_and_its_container_is_ours() -> None:
    template = {
        "metadata": {"labels": {"team": "ml"}},
        "spec": {
            "tolerations": [TOLERATION],
            "containers": [
                {
                    "name": "replica",
                    "securityContext": {"runAsUser": 7},
                    "image": "theirs",
                },
                {"name": "side", "image": "s"},
            ],
        },
    }
    made = pod(settings(template_json=json.dumps(template), claim="state"), ORDER)
    assert made["metadata"]["labels"] == {
        "team": "ml",
        "app.kubernetes.io/managed-by": "coadapt",
        "coadapt.dev/scheduler": "coadapt-1",
        "coadapt.dev/job": "cifar-1a",
        "coadapt.dev/generation": "3",
        "coadapt.dev/replica": "3-0",
    }
    assert made["spec"]["tolerations"] == [TOLERATION]
    replica, side = made["spec"]["containers"]
    assert side == {"name": "side", "image": "s"}
    assert (replica["image"], replica["securityContext"]) == (
        "image:1",
        {"runAsUser": 7},
    )
    assert replica["resources"] == {
        "requests": {"nvidia.com/gpu": "1"},
        "limits": {"nvidia.com/gpu": "1"},
    }
    assert made["spec"]["automountServiceAccountToken"] is False
    checkpoints, token = replica["volumeMounts"]
    assert checkpoints["subPath"] == "jobs/cifar-1a/checkpoints"
    assert token["readOnly"] is True


EVICTABLE = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}


@pytest.mark.parametrize("order", [ORDER, replace(ORDER, member=SETUP)])
def test_no_autoscaler_removes_the_node_of_a_running_pod(order: PodOrder) -> None:
    kept = {
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        "karpenter.sh/do-not-disrupt": "true",
    }
    assert pod(settings(), order)["metadata"]["annotations"] == kept
    template = json.dumps({"metadata": {"annotations": EVICTABLE}})
    made = pod(settings(template_json=template), order)
    assert made["metadata"]["annotations"] == {**kept, **EVICTABLE}


def test_a_replicas_token_is_a_file_and_its_setup_has_none() -> None:
    made = pod(settings(), ORDER)
    name = "coadapt-1-cifar-1a-3-0"
    [volume] = made["spec"]["volumes"]
    assert volume["secret"] == {
        "secretName": name,
        "items": [{"key": "COADAPT_TOKEN", "path": "token"}],
    }
    [mount] = made["spec"]["containers"][0]["volumeMounts"]
    assert f"{mount['mountPath']}/token" == TOKEN_FILE
    prepares = pod(settings(), replace(ORDER, member=SETUP))["spec"]
    assert (prepares["volumes"], prepares["containers"][0]["volumeMounts"]) == ([], [])


def test_the_templates_own_image_stays_where_no_other_is_named() -> None:
    template = {"spec": {"containers": [{"name": "replica", "image": "theirs"}]}}
    made = pod(settings(image="", template_json=json.dumps(template)), ORDER)
    assert made["spec"]["containers"][0]["image"] == "theirs"


def test_a_replica_has_a_name_under_the_schedulers_service() -> None:
    made = pod(settings(), ORDER)["spec"]
    address = replica_address(settings(), ORDER.job, ORDER.member)
    assert address == f"{made['hostname']}.{made['subdomain']}.ml.svc"


def test_lists_of_nameless_things_are_replaced() -> None:
    assert merge({"a": [1], "b": {"c": 1}}, {"a": [2], "b": {"d": 2}}) == {
        "a": [2],
        "b": {"c": 1, "d": 2},
    }


@pytest.mark.parametrize(
    ("resource", "labels", "gpu_type"),
    [
        ("nvidia.com/gpu", {}, "gpu"),
        ("nvidia.com/gpu", {"nvidia.com/gpu.product": "Tesla-T4"}, "tesla-t4"),
        ("nvidia.com/mig-1g.10gb", {}, "gpu-mig-1g.10gb"),
        (
            "nvidia.com/mig-1g.10gb",
            {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"},
            "nvidia-a100-sxm4-80gb-mig-1g.10gb",
        ),
        (
            "nvidia.com/mig-3g.40gb",
            {"nvidia.com/mig-3g.40gb.product": "NVIDIA-A100-MIG-3g.40gb"},
            "nvidia-a100-mig-3g.40gb",
        ),
        ("nvidia.com/gpu.shared", {}, "gpu-shared"),
        ("nvidia.com/gpu.shared", {"nvidia.com/gpu.product": "Tesla-T4-SHARED"}, "tesla-t4-shared"),
        ("amd.com/gpu", {}, "amd-gpu"),
        ("amd.com/gpu", {"amd.com/gpu.product-name": "AMD_Instinct_MI300X"}, "amd_instinct_mi300x"),
        ("amd.com/gpu", {"beta.amd.com/gpu.product-name": "MI210"}, "mi210"),
        ("gpu.intel.com/i915", {}, "gpu-i915"),
        ("habana.ai/gaudi", {}, "habana-gaudi"),
        ("google.com/tpu", {}, "google-tpu"),
    ],
)  # fmt: skip
def test_slots_of_any_device_have_a_type_of_their_own(
    resource: str, labels: dict[str, str], gpu_type: str
) -> None:
    found = {
        "metadata": {"name": "n", "labels": labels},
        "status": {
            "allocatable": {resource: "7", "cpu": "64"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    (made,) = usable_nodes(
        [found], resource=resource, slots=None, labels={}, tolerations=[]
    ).values()
    assert made[0] == Node(id="n", num_gpus=7, gpu_type=gpu_type)


PREEMPTED = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "PreemptionByScheduler",
    "message": "a pod of higher priority",
}


@pytest.mark.parametrize(
    ("status", "told"),
    [
        ({}, "its pod was deleted (evicted, preempted) from outside"),
        (
            {"conditions": [PREEMPTED]},
            ("its pod was deleted from outside (PreemptionByScheduler: a pod of "
            "higher priority)"),
        ),
    ],
)  # fmt: skip
def test_what_deleted_a_pod_is_told_where_the_cluster_says_it(
    status: dict, told: str
) -> None:
    assert _why_deleted(status) == told
