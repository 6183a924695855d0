"""The executor `kubernetes`: each replica is a pod; the cluster tells of nodes, places
pods and ends them.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coadapt.executors.host import MEBIBYTE, Host
from coadapt.model import InputError
from coadapt.model.offer import Offer

if TYPE_CHECKING:
    from coadapt.executors.kubernetes.api import JsonObject, KubeApi
    from coadapt.runtime.ports import LiveExecutor

MIB_MAX = 1024 * 1024
NVIDIA_GPU = "nvidia.com/gpu"
EXECUTOR = "executor kubernetes, option"


@dataclass(frozen=True, slots=True, kw_only=True)
class OnKubernetes:
    """Pods on the nodes of a Kubernetes cluster, one for each replica, on its GPUs or
    on CPU slots.

    Called with its Host it connects. kubeconfig: a file; "" for the cluster that this
    process runs in, else the usual file. namespace: of the pods; "" for that of the
    kubeconfig, or of this pod. image: what replicas run in; it has Python with coadapt.
    slots: CPU slots per node, one CPU each, instead of `resource`, which is what a slot
    is else. node_selector: labels `name=value` that a node must have. service_account:
    of the pods. pod_template: a YAML file of a pod, over which ours is put:
    tolerations, volumes, hostNetwork and the like. claim: of the volume that holds the
    state directory, and its folder there: NAME or NAME/FOLDER. address: where pods
    reach this machine.
    """

    kubeconfig: str = ""
    namespace: str = ""
    image: str = ""
    slots: int | None = None
    resource: str = NVIDIA_GPU
    node_selector: tuple[str, ...] = ()
    service_account: str = ""
    pod_template: str = ""
    claim: str = ""
    address: str = ""
    pass_env: tuple[str, ...] = ()
    log_limit_mib: int = 256
    offer_nodes: tuple[str, ...] = ()
    offers: tuple[Offer, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.log_limit_mib <= MIB_MAX:
            raise InputError(
                f"{EXECUTOR} log_limit_mib", self.log_limit_mib, f"1..{MIB_MAX}"
            )
        if self.slots is not None and not 1 <= self.slots <= 1024:  # as of the others
            raise InputError(f"{EXECUTOR} slots", self.slots, "1..1024")
        for label in self.node_selector:
            if "=" not in label:
                raise InputError(
                    f"{EXECUTOR} node_selector", label, "labels, each name=value"
                )
        self._check_offers()
        api = self._api()
        template = self.template()
        if not self.image and not _has_image(template):
            allowed = (
                "an image with Python and coadapt, for the replicas "
                "(deploy/kubernetes/Dockerfile)"
            )
            raise InputError(f"{EXECUTOR} image", self.image, allowed)
        self._check_access(api, template)

    def __call__(self, host: Host) -> "LiveExecutor":
        from coadapt.executors.kubernetes.connecting import connect

        return connect(self, self._api(), host, log_bytes=self.log_limit_mib * MEBIBYTE)

    def template(self) -> "JsonObject":
        """Return the pod template. Raises InputError where it is no YAML mapping."""
        if not self.pod_template:
            return {}
        import yaml

        try:
            found = yaml.safe_load(Path(self.pod_template).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            allowed = f"a YAML file of a pod ({' '.join(str(error).split())})"
            raise InputError(
                f"{EXECUTOR} pod_template", self.pod_template, allowed
            ) from None
        if not isinstance(found, dict) or not set(found) <= {
            "apiVersion",
            "kind",
            "metadata",
            "spec",
        }:
            raise InputError(
                f"{EXECUTOR} pod_template",
                self.pod_template,
                "a pod: metadata and spec",
            )
        return found

    def _check_offers(self) -> None:
        from coadapt.executors.kubernetes.offers import shelf_of

        if self.offers or self.offer_nodes:
            shelf_of(
                self.offers,
                self.offer_nodes,
                slots=self.slots,
                resource=self.resource,
            )

    def _api(self) -> "KubeApi":
        try:
            from coadapt.executors.kubernetes.api import KubeApi, NoClusterError
        except ModuleNotFoundError as error:
            if error.name != "kubernetes":
                raise
            allowed = (
                "it once its client is installed: pip install 'coadapt[kubernetes]'"
            )
            raise InputError("--executor", "kubernetes", allowed) from None
        try:
            return KubeApi.connect(self.kubeconfig)
        except NoClusterError as error:
            allowed = (
                f"a kubeconfig of a cluster, as `kubectl config view --raw` prints "
                f"it ({error})"
            )
            raise InputError(
                f"{EXECUTOR} kubeconfig", self.kubeconfig or None, allowed
            ) from None

    def _check_access(self, api: "KubeApi", template: "JsonObject") -> None:
        from coadapt.executors.kubernetes.access import findings

        found = findings(
            api,
            self.namespace or api.namespace,
            resource=self.resource,
            slots=self.slots,
            template=template,
            may_be_empty=bool(self.offers),
        )
        if found:
            raise InputError(
                "--executor",
                "kubernetes",
                f"a cluster where the scheduler has its permissions; {'; '.join(found)}",
            )


def _has_image(template: "JsonObject") -> bool:
    spec = template.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    return any(
        each.get("name") == "replica" and each.get("image") for each in containers or ()
    )
