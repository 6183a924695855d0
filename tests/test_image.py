"""The image and the kustomize base: what is checked here, and what needs their tools.

Building needs Docker's daemon, rendering needs kubectl: those tests skip without them.
"""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy" / "kubernetes"
DOCKERFILE = DEPLOY / "Dockerfile"

# Of each final stage: whether PyTorch is in it.
TARGETS = {"scheduler": False, "train": True}


def instructions(stage: str) -> list[str]:
    """Return the instructions of a stage and of the stages that it is built on."""
    text = DOCKERFILE.read_text().replace("\\\n", "")
    stages: dict[str, list[str]] = {}
    for line in text.splitlines():
        if found := re.fullmatch(r"FROM (\S+) AS (\S+)", line):
            base, name = found.groups()
            stages[name] = [*stages.get(base, [])]
        elif line and not line.startswith("#"):
            stages[next(reversed(stages))].append(line)
    return stages[stage]


@pytest.mark.parametrize("stage", TARGETS)
def test_a_final_stage_runs_without_root_and_copies_what_was_built(stage: str) -> None:
    lines = instructions(stage)
    assert lines[-1] == "USER 1000:1000"
    [copied] = [line for line in lines if line.startswith("COPY --from=")]
    source = copied.split()[1].removeprefix("--from=")
    installs = "".join(line for line in instructions(source) if "pip install" in line)
    assert ("[train]" in installs) == TARGETS[stage]


@pytest.mark.parametrize("stage", ["build", "build-train", *TARGETS])
def test_a_stage_copies_files_that_exist_and_are_sent(stage: str) -> None:
    sent = (ROOT / ".dockerignore").read_text().splitlines()
    for line in instructions(stage):
        if line.startswith("COPY ") and "--from=" not in line:
            sources = [part for part in line.split()[1:-1] if not part.startswith("--")]
            for source in sources:
                assert list(ROOT.glob(source)), source
                top = source.removesuffix("/*.py")
                assert f"!{top}" in sent, source


def test_the_image_installs_extras_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"'\.\[(.*?)\]'", DOCKERFILE.read_text())
    extras = {extra for each in named for extra in each.split(",")}
    assert extras
    assert extras <= set(project["optional-dependencies"])


def docker_runs() -> bool:
    if shutil.which("docker") is None:
        return False
    done = subprocess.run(["docker", "info"], capture_output=True, check=False)
    return done.returncode == 0


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("stage", TARGETS)
def test_the_image_builds_and_runs_as_a_user(stage: str) -> None:
    if not docker_runs():
        pytest.skip("no Docker daemon answers: the image was not built")
    tag = f"coadapt-test:{stage}"
    build = ["docker", "build", "-f", str(DOCKERFILE), "--target", stage, "-t", tag]
    subprocess.run([*build, str(ROOT)], check=True)
    code = (
        "import os, importlib.util as u; print(os.getuid(), bool(u.find_spec('torch')))"
    )
    run = ["docker", "run", "--rm", tag, "python", "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1000", str(TARGETS[stage])]


@pytest.mark.processes
def test_the_kustomize_base_renders() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed: the kustomize base was not rendered")
    done = subprocess.run(
        ["kubectl", "kustomize", str(DEPLOY)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    objects = list(yaml.safe_load_all(done.stdout))
    [deployment] = [each for each in objects if each["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    for container in pod["containers"]:
        assert container["image"] == "coadapt:latest"
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
    claims = [each for each in objects if each["kind"] == "PersistentVolumeClaim"]
    used = [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in pod["volumes"]
        if "persistentVolumeClaim" in volume
    ]
    assert used == [claim["metadata"]["name"] for claim in claims]
