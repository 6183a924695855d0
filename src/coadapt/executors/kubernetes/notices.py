"""Notices: what on a node says that it will be taken away soon."""

# Sources of the taints:
#
# - Cluster Autoscaler, cluster-autoscaler/utils/taints/taints.go: ToBeDeleted… is set
#   before a node is drained and removed. DeletionCandidateOf… marks a node that is not
#   needed at the moment. It has the effect PreferNoSchedule, and is no notice.
# - Karpenter, pkg/apis/v1/taints.go (`disrupted`) and, before version 1.0,
#   pkg/apis/v1beta1/taints.go (`disruption`).
# - AWS Node Termination Handler with `taintNode`, README of its Helm chart. Amazon
#   gives two minutes before it interrupts a spot instance.
# - Google's k8s-node-termination-handler, README, and GKE's documentation "Spot VMs":
#   about 30 s.
# - AKS, documentation "Node auto-drain": set when a spot node is about to be preempted.
#   Azure gives at least 30 s.
#
# Any other taint that a pod template does not tolerate keeps replicas away, too. So it
# is a notice like a cordon: the jobs of the node have to leave it, and can do so in
# place.

from collections.abc import Sequence

from coadapt.executors.kubernetes.api import JsonObject
from coadapt.executors.kubernetes.nodes import is_ready, why_not

# The time from the taint until the node may be gone, s.
TAINT_LEADS_S = {
    "ToBeDeletedByClusterAutoscaler": 0.0,
    "karpenter.sh/disrupted": 0.0,
    "karpenter.sh/disruption": 0.0,
    "aws-node-termination-handler/spot-itn": 120.0,
    "aws-node-termination-handler/asg-lifecycle-termination": 0.0,
    "aws-node-termination-handler/scheduled-maintenance": 0.0,
    "cloud.google.com/impending-node-termination": 30.0,
    "remediator.kubernetes.azure.com/unschedulable": 30.0,
}


def notice_s(found: JsonObject, tolerations: Sequence[JsonObject]) -> float | None:
    """Return in how many seconds a ready node may be gone: 0 if nothing says when.
    None if it stays, or is not ready, because then it is gone already.
    """
    if not is_ready(found):
        return None
    taints = (found.get("spec") or {}).get("taints") or ()
    leads = [
        TAINT_LEADS_S[each["key"]] for each in taints if each["key"] in TAINT_LEADS_S
    ]
    if leads:
        return min(leads)
    return None if why_not(found, tolerations) is None else 0.0
