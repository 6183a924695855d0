"""deploy/kubernetes: what a real API server says of it, and that it grants what the
executor asks for.
"""

from typing import get_args

import pytest
import yaml

pytest.importorskip("kubernetes")

from coadapt.executors import prepare_executor
from coadapt.executors.kubernetes.access import (
    EVENT_RIGHTS,
    KUEUE_RIGHTS,
    RIGHTS,
    missing_rights,
)
from coadapt.executors.kubernetes.api import FORBIDDEN, ApiError, JsonObject, KubeApi
from coadapt.executors.kubernetes.elastic_jobs import resources_path
from coadapt.model import InputError
from coadapt.service.jobfile import JobFile
from tests.executors.kubernetes.control_plane import NOBODY, SCHEDULER, ControlPlane
from tests.executors.kubernetes.site import (
    DEPLOY,
    NAMESPACE,
    KubernetesSite,
    apply,
    manifests,
)

FILES = ("namespace.yaml", "rbac.yaml", "crd.yaml", "scheduler.yaml")


def crd_spec() -> JsonObject:
    [crd] = manifests("crd.yaml")
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return dict(schema["properties"]["spec"])


def test_the_base_names_all_its_files() -> None:
    assert (
        tuple(yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())["resources"])
        == FILES
    )


def test_the_role_grants_what_is_asked_for_and_nothing_else() -> None:
    granted = {}
    for each in manifests("rbac.yaml"):
        for rule in each.get("rules") or ():
            if (group := rule["apiGroups"][0]) != "coadapt.dev":
                granted |= {
                    (each["kind"], group, name): set(rule["verbs"])
                    for name in rule["resources"]
                }
    asked = {
        ("ClusterRole" if right.cluster else "Role", right.group, right.name): set(
            right.verbs
        )
        for right in (*RIGHTS, *EVENT_RIGHTS, *KUEUE_RIGHTS)
    }
    assert granted == asked


def test_the_schema_knows_every_field_of_a_job_file() -> None:
    assert set(crd_spec()["properties"]) == set(JobFile.model_fields) - {"name"}
    for section in ("resources", "batch", "length"):
        kind = JobFile.model_fields[section].annotation
        kind = (
            kind
            if isinstance(kind, type)
            else next(each for each in kind.__args__ if each)
        )  # type: ignore[union-attr]  # Section or None
        assert set(crd_spec()["properties"][section]["properties"]) == set(
            kind.model_fields
        )


def test_the_schema_takes_null_where_a_job_file_means_something_by_it() -> None:
    meaningful = {
        name
        for name, field in JobFile.model_fields.items()
        if type(None) in get_args(field.annotation) and field.default is not None
    }
    nullable = {
        name for name, told in crd_spec()["properties"].items() if told.get("nullable")
    }
    assert nullable == meaningful


@pytest.mark.processes
@pytest.mark.slow
def test_an_api_server_takes_all_of_it(control_plane: ControlPlane) -> None:
    apply(control_plane.admin(), *FILES, dry_run=True)


@pytest.mark.processes
@pytest.mark.slow
def test_who_may_nothing_is_told_what_is_missing(site: KubernetesSite) -> None:
    api = KubeApi.connect(site.control_plane.kubeconfig(SCHEDULER))
    assert missing_rights(api, NAMESPACE) == []
    options = {**site.options(), "kubeconfig": site.control_plane.kubeconfig(NOBODY)}
    with pytest.raises(InputError) as refused:
        prepare_executor("kubernetes", options)
    assert "may not get, list, watch nodes in the cluster" in str(refused.value)
    assert "kubectl apply -k deploy/kubernetes" in str(refused.value)


@pytest.mark.processes
@pytest.mark.slow
def test_a_namespace_that_is_not_there_is_told_before_anything_starts(
    site: KubernetesSite,
) -> None:
    admin = site.control_plane.kubeconfig()
    with pytest.raises(InputError, match='namespaces "nowhere" not found'):
        prepare_executor(
            "kubernetes",
            {**site.options(), "kubeconfig": admin, "namespace": "nowhere"},
        )


@pytest.mark.processes
@pytest.mark.slow
def test_a_cluster_without_gpus_and_one_that_is_cordoned_say_so(
    site: KubernetesSite,
) -> None:
    options = {name: value for name, value in site.options().items() if name != "slots"}
    with pytest.raises(InputError, match=r"no node has example\.com/none to give"):
        prepare_executor("kubernetes", {**options, "resource": "example.com/none"})
    site.kubelet.cordon("node-0")
    site.kubelet.cordon("node-1")
    with pytest.raises(
        InputError, match="no node takes pods: node-0 is cordoned; node-1 is cordoned"
    ):
        prepare_executor("kubernetes", options)


def test_a_file_that_is_no_kubeconfig_is_named() -> None:
    with pytest.raises(
        InputError, match="option kubeconfig: got 'nowhere'; allowed: a kubeconfig"
    ):
        prepare_executor("kubernetes", {"kubeconfig": "nowhere", "image": "i"})


@pytest.mark.processes
@pytest.mark.slow
def test_an_object_against_the_schema_is_refused(control_plane: ControlPlane) -> None:
    api = control_plane.admin()
    apply(api, "crd.yaml")
    job = yaml.safe_load((DEPLOY / "elasticjob.yaml").read_text())
    with pytest.raises(ApiError, match=r"spec\.batch\.initial"):
        api.ask(
            "POST",
            resources_path(NAMESPACE),
            {**job, "spec": {**job["spec"], "batch": {}}},
        )


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [f"/api/v1/namespaces/{NAMESPACE}/secrets", "/api/v1/namespaces/default/pods"],
)
def test_the_schedulers_account_reads_no_secret_and_no_other_namespace(
    control_plane: ControlPlane, path: str
) -> None:
    with pytest.raises(ApiError) as refused:
        KubeApi.connect(control_plane.kubeconfig(SCHEDULER)).get(path)
    assert refused.value.status == FORBIDDEN
