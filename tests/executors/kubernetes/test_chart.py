"""deploy/helm/coadapt gives the objects of deploy/kubernetes. Helm's own library
renders it where it is installed.
"""

import json
import subprocess
import tarfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from coadapt import __version__
from coadapt.cli.up.up_settings import OPTIONS, UpSettings

pytest.importorskip("kubernetes")

from coadapt.executors.kubernetes.api import ApiError
from tests.executors.kubernetes.control_plane import ControlPlane
from tests.executors.kubernetes.helm import (
    CHART,
    LIBRARY,
    HelmError,
    call,
    rendered,
    why_missing,
)
from tests.executors.kubernetes.site import DEPLOY, PLACES, manifests

SCRIPT = DEPLOY.parents[1] / "tools" / "helm.sh"
CANNOT_BE_HAD = 75
# What `helm install --create-namespace` and the chart's folder crds/ are for.
APART = {"Namespace", "CustomResourceDefinition"}
# Keys of the settings file that follow from what the chart makes.
OF_THE_CHART = {"executor", "policy", "host", "port", "expose"}
# This engine buys no nodes.
OF_OTHER_ENGINES = {"offers", "sizer", "sizing"}

needs_helm = [
    pytest.mark.engine("helm"),
    pytest.mark.processes,
    pytest.mark.slow,
]


@pytest.fixture
def helm() -> None:
    if (why := why_missing()) is not None:
        pytest.skip(why)


def identity(each: Any) -> tuple[str, str, str]:
    metadata = each["metadata"]
    return each["kind"], metadata.get("namespace", ""), metadata["name"]


def by_identity(objects: list[Any]) -> dict[tuple[str, str, str], Any]:
    found = {identity(each): each for each in objects}
    assert len(found) == len(objects)
    return found


def base() -> dict[tuple[str, str, str], Any]:
    names = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())["resources"]
    objects = [each for name in names for each in manifests(name)]
    return by_identity([each for each in objects if each["kind"] not in APART])


def settings_of(objects: list[Any]) -> dict[str, Any]:
    [settings] = [each for each in objects if each["kind"] == "ConfigMap"]
    return {name: yaml.safe_load(text) for name, text in settings["data"].items()}


def of_kind(kind: str, objects: list[Any]) -> Any:
    [found] = [each for each in objects if each["kind"] == kind]
    return found


def without_what_only_helm_needs(objects: list[Any]) -> list[Any]:
    """Take out the two annotations that the chart adds; fails where one is missing."""
    of_claim = of_kind("PersistentVolumeClaim", objects)["metadata"]
    assert of_claim.pop("annotations") == {"helm.sh/resource-policy": "keep"}
    of_pod = of_kind("Deployment", objects)["spec"]["template"]["metadata"]
    assert list(of_pod.pop("annotations")) == ["checksum/settings"]
    return objects


def test_the_chart_has_the_custom_resource_of_the_base() -> None:
    assert (CHART / "crds" / "crd.yaml").read_bytes() == (
        DEPLOY / "crd.yaml"
    ).read_bytes()


def test_what_no_value_changes_is_the_text_of_the_base() -> None:
    """Needs no Helm, so that a change of the base alone fails in each run."""
    for name, begin, end in (
        ("scheduler.yaml", "          startupProbe:", "          securityContext:"),
        ("scheduler.yaml", "          volumeMounts:", "        # Turns ElasticJobs"),
        ("rbac.yaml", "rules:", "---"),
    ):
        base_text = (DEPLOY / name).read_text()
        chart_text = (CHART / "templates" / name).read_text()
        part = base_text.partition(begin)[2].partition(end)[0]
        assert part
        assert part == chart_text.partition(begin)[2].partition(end)[0], (name, begin)


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_the_schema_knows_every_value_and_every_setting() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(schema["properties"]) == {*values, "global"}
    for name in ("image", "jobs", "storage", "resources"):
        assert set(schema["properties"][name]["properties"]) == set(values[name]), name
    keys = {each.name for each in fields(UpSettings)}
    keys -= OF_THE_CHART | OF_OTHER_ENGINES
    assert set(schema["properties"]["settings"]["properties"]) == {*keys, OPTIONS}


@pytest.mark.processes
def test_without_the_package_the_script_says_why(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no network >&2\nexit 1\n")
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", str(SCRIPT)],
        env={
            "PATH": "/usr/bin:/bin",
            "XDG_CACHE_HOME": str(tmp_path),
            "PYTHON": str(python),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (CANNOT_BE_HAD, "")
    version = LIBRARY.name.removeprefix("helm-")
    assert done.stderr == (
        f"Helm cannot be had: pip could not get helm-python-sdk {version}: no network\n"
    )
    assert list((tmp_path / "coadapt" / "engines").iterdir()) == []


@pytest.mark.usefixtures("helm")
class TestRendered:
    pytestmark = needs_helm

    def test_helm_finds_no_fault(self) -> None:
        report = call("lint")
        assert report["total_charts_linted"] == 1
        assert report["errors"] == []
        assert [each["error"] for each in report["messages"]] == ["icon is recommended"]

    def test_by_default_it_gives_the_objects_of_the_base(self) -> None:
        found = by_identity(without_what_only_helm_needs(rendered()))
        expected = base()
        assert set(found) == set(expected)
        for each, wanted in expected.items():
            if each[0] == "ConfigMap":
                assert settings_of([found[each]]) == settings_of([wanted])
            else:
                assert found[each] == wanted, each

    def test_its_namespace_is_that_of_the_base(self) -> None:
        found = rendered({"createNamespace": True})
        assert of_kind("Namespace", found) == manifests("namespace.yaml")[0]

    def test_another_release_shares_no_name_with_the_first(self) -> None:
        found = by_identity(rendered(release="blue", namespace="research"))
        assert {name for _, _, name in found} == {
            f"blue-coadapt{end}" for end in ("", "-nodes", "-settings", "-state")
        }
        assert {namespace for _, namespace, _ in found} == {"", "research"}
        for kind in ("RoleBinding", "ClusterRoleBinding"):
            [subject] = of_kind(kind, list(found.values()))["subjects"]
            assert (subject["name"], subject["namespace"]) == (
                "blue-coadapt",
                "research",
            )
        pod = of_kind("Deployment", list(found.values()))["spec"]["template"]
        service = of_kind("Service", list(found.values()))
        assert service["spec"]["selector"] == pod["metadata"]["labels"]
        options = settings_of(list(found.values()))["coadapt.yaml"][OPTIONS]
        assert options["address"] == "blue-coadapt.research.svc"
        assert options["claim"] == "blue-coadapt-state/coadapt"

    def test_each_value_reaches_its_place(self) -> None:
        found = rendered(
            {
                "image": {"repository": "r/c", "tag": "1", "pullPolicy": "Always"},
                "imagePullSecrets": [{"name": "registry"}],
                "policy": "pollux",
                "jobs": {
                    "image": "r/t:2",
                    "resource": "amd.com/gpu",
                    "slots": 4,
                    "nodeSelector": {"pool": "train", "zone": "a"},
                    "podTemplate": {"metadata": {"labels": {"team": "x"}}},
                },
                "settings": {"round": 30, "executor_options": {"log_limit_mib": 8}},
                "storage": {"className": "nfs", "size": "2Ti", "keep": False},
                "resources": {"scheduler": {"limits": {"memory": "9Gi"}}},
                "nodeSelector": {"pool": "system"},
                "tolerations": [{"key": "system"}],
            }
        )
        settings = settings_of(found)
        assert settings["coadapt.yaml"] == {
            "executor": "kubernetes",
            "expose": True,
            "host": "0.0.0.0",  # the pod's own address
            "policy": "pollux",
            "port": 8471,
            "round": 30,
            OPTIONS: {
                "address": "coadapt.coadapt.svc",
                "claim": "coadapt-state/coadapt",
                "image": "r/t:2",
                "log_limit_mib": 8,
                "node_selector": "pool=train,zone=a",
                "pod_template": "/etc/coadapt/pod.yaml",
                "resource": "amd.com/gpu",
                "slots": 4,
            },
        }
        assert settings["pod.yaml"]["metadata"] == {"labels": {"team": "x"}}
        claim = of_kind("PersistentVolumeClaim", found)
        assert "annotations" not in claim["metadata"]
        assert claim["spec"]["storageClassName"] == "nfs"
        assert claim["spec"]["resources"] == {"requests": {"storage": "2Ti"}}
        pod = of_kind("Deployment", found)["spec"]["template"]["spec"]
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        assert pod["nodeSelector"] == {"pool": "system"}
        assert pod["tolerations"] == [{"key": "system"}]
        for container in pod["containers"]:
            assert container["image"] == "r/c:1"
            assert container["imagePullPolicy"] == "Always"
        assert pod["containers"][0]["resources"]["limits"] == {"memory": "9Gi"}

    def test_other_settings_mean_another_pod(self) -> None:
        def pod(values: dict[str, Any]) -> Any:
            return of_kind("Deployment", rendered(values))["spec"]["template"]

        first = pod({})
        assert pod({}) == first
        assert pod({"policy": "pollux"}) != first

    def test_a_claim_that_exists_is_used_and_none_is_made(self) -> None:
        found = rendered({"storage": {"existingClaim": "mine"}})
        assert not [each for each in found if each["kind"] == "PersistentVolumeClaim"]
        volumes = of_kind("Deployment", found)["spec"]["template"]["spec"]["volumes"]
        assert volumes[0]["persistentVolumeClaim"] == {"claimName": "mine"}
        options = settings_of(found)["coadapt.yaml"][OPTIONS]
        assert options["claim"] == "mine/coadapt"

    @pytest.mark.parametrize(
        ("values", "said"),
        [
            ({"polcy": "pollux"}, "polcy"),
            ({"settings": {"rund": 30}}, "rund"),
            ({"jobs": {"slots": -1}}, "slots"),
            ({"storage": {"accessModes": ["Many"]}}, "accessModes"),
        ],
    )
    def test_a_wrong_value_is_refused_by_name(
        self, values: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(HelmError, match=said):
            rendered(values)

    def test_the_archive_holds_all_of_it(self, tmp_path: Path) -> None:
        archive = Path(call("package", destination=str(tmp_path)))
        assert archive.name == f"coadapt-{__version__}.tgz"
        with tarfile.open(archive) as packed:
            names = {Path(name) for name in packed.getnames()}
        kept = [each for each in CHART.rglob("*") if each.is_file()]
        assert {CHART.name / each.relative_to(CHART) for each in kept} == names


# Required where `make engines-test` has both engines, in this order.
@pytest.mark.engine("kubernetes,helm")
@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.usefixtures("helm")
def test_an_api_server_takes_what_it_gives(control_plane: ControlPlane) -> None:
    api = control_plane.admin()
    # The server has objects called `coadapt` already.
    for each in rendered(release="blue"):
        api.ask("POST", PLACES[each["kind"]], each, {"dryRun": "All"})
    found = rendered({"storage": {"size": "much"}}, release="blue")
    claim = of_kind("PersistentVolumeClaim", found)
    with pytest.raises(ApiError, match="quantities must match"):
        api.ask("POST", PLACES[claim["kind"]], claim, {"dryRun": "All"})
