"""How the test kubelet runs a pod's containers: as plain processes, or each within
walls as in a cluster.

Plain ones have the machine's own files, network and user: a volume is a folder whose
path is put in the place of the mount's. Walled ones (`container.sh`) have a root of
their own that they may not write to, their volumes where the pod says, their own
process numbers, names of other pods and services (a hosts file), an address of their
own on loopback, and user 1000 without rights.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from coadapt.executors.kubernetes.api import JsonObject, KubeApi
from tests.memory_group import MemoryGroup

# What an image would hold: the python that has coadapt.
IMAGE_PATH = os.pathsep.join(
    (str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))
)
REPOSITORY = Path(__file__).parents[3]
SCRIPT = Path(__file__).with_name("container.sh")
WORKSPACE = "/workspace"
# Of the machine's root the image has all but these; what it needs of them is mounted.
HIDDEN = ("/tmp", "/home", "/var")  # no file is made there
UNSHARE = ("unshare", "--mount", "--pid", "--uts", "--fork", "--kill-child")
# As the kubelet leaves the root of a volume with fsGroup: somebody else's, the group's
# to write.
OTHER_USER = 4242
FS_GROUP_MODE = 0o2775

Mounts = list[
    tuple[Path, str, bool]
]  # source, where in the container, whether it may be written


def why_no_walls() -> str:
    """Return why no walled container can be run here; empty if one can."""
    try:
        command = [*UNSHARE, "unshare", "--user", "true"]
        tried = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"no walls: {error}"
    return f"no walls: {tried.stderr.strip()}" if tried.returncode else ""


class Plain:
    """Containers as processes of this machine.

    memory: the control group of containers with a memory limit; a test has one such
    container at a time. None: the limit is only said.
    """

    memory: MemoryGroup | None = None

    def enter(self, api: KubeApi, pod: JsonObject) -> None:
        """Make what the pod needs to be found by."""

    def leave(self, api: KubeApi, pod: JsonObject) -> None:
        """Take that away."""

    def address(self, _pod: JsonObject) -> str:
        return "127.0.0.1"

    def start(
        self,
        _pod: JsonObject,
        container: JsonObject,
        envs: dict[str, str],
        mounts: Mounts,
        log: IO[bytes],
    ) -> "subprocess.Popen[bytes]":
        for source, target, _ in mounts:
            envs = {
                key: value.replace(target, str(source)) for key, value in envs.items()
            }
        return subprocess.Popen(
            [*self._within_memory(container), *container["command"]],
            cwd=container.get("workingDir"),
            env={
                "PATH": IMAGE_PATH,
                "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
                **envs,
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def _within_memory(self, container: JsonObject) -> list[str]:
        """Return what to put before the container's command, so that the kernel holds
        it to its memory limit.
        """
        if self.memory is None or not _has_memory_limit(container):
            return []
        return ["sh", "-c", f'echo $$ > {self.memory.join}; exec "$@"', "sh"]

    def ran_out_of_memory(self, container: JsonObject) -> bool:
        """Return whether the kernel has killed a process of the container."""
        if self.memory is None or not _has_memory_limit(container):
            return False
        return self.memory.kills() > 0

    def first(self, process: "subprocess.Popen[bytes]") -> int:
        """Return the container's first process."""
        return process.pid


class Walled(Plain):
    """Containers within walls; they have the machine's processors, and its network but
    for their address.

    workspace: what the image has there. envs: of the image.
    """

    def __init__(self, folder: Path, workspace: Path, envs: Mapping[str, str]) -> None:
        self._folder = folder
        self._workspace = workspace
        self._image: Mounts = []
        for each in sorted(
            {
                str(REPOSITORY),
                sys.prefix,
                sys.base_prefix,
                *filter(os.path.isabs, sys.path),
            }
        ):
            if each.startswith(HIDDEN) and Path(each).is_dir():
                self._image.append((Path(each), each, False))
        self._envs = {"PATH": IMAGE_PATH, "HOME": "/home/coadapt", **envs}
        self._pods: dict[str, JsonObject] = {}  # by address
        self._given = 0
        self.hosts = folder / "hosts"
        folder.mkdir(exist_ok=True)
        (folder / "root").mkdir(exist_ok=True)
        self.hosts.write_text("127.0.0.1 localhost\n")

    def enter(self, api: KubeApi, pod: JsonObject) -> None:
        """Give the pod an address that no pod had before, and have names resolve to
        it.
        """
        self._given += 1
        self._pods[f"127.0.1.{self._given}"] = pod
        self._tell_names(api)

    def leave(self, api: KubeApi, pod: JsonObject) -> None:
        self._pods.pop(self.address(pod), None)
        self._tell_names(api)

    def address(self, pod: JsonObject) -> str:
        uid = pod["metadata"]["uid"]
        return next(
            (at for at, each in self._pods.items() if each["metadata"]["uid"] == uid),
            "",
        )

    def _tell_names(self, api: KubeApi) -> None:
        """Tell the names of services without an address, and of their pods, as a
        cluster's DNS has them.
        """
        lines = [
            "127.0.0.1 localhost",
            *(f"{at} {_hostname(pod)}" for at, pod in self._pods.items()),
        ]
        for service in api.get("/api/v1/services")["items"]:
            wanted = service["spec"].get("selector") or {}
            its = (
                f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
            )
            for address, pod in self._pods.items():
                labels = pod["metadata"].get("labels") or {}
                if (
                    service["spec"]["clusterIP"] == "None"
                    and wanted.items() <= labels.items()
                ):
                    named = pod["spec"].get("subdomain") == service["metadata"]["name"]
                    lines.append(
                        f"{address} {its}"
                        + f" {pod['spec'].get('hostname')}.{its}" * named
                    )
        # In place: it is mounted in containers that run.
        with self.hosts.open("r+") as file:
            file.write("\n".join(lines) + "\n")
            file.truncate()

    def start(
        self,
        pod: JsonObject,
        container: JsonObject,
        envs: dict[str, str],
        mounts: Mounts,
        log: IO[bytes],
    ) -> "subprocess.Popen[bytes]":
        return self.run(_hostname(pod), container, envs, mounts, log)

    def run(
        self,
        hostname: str,
        container: JsonObject,
        envs: Mapping[str, str],
        mounts: Mounts,
        log: IO[bytes],
    ) -> "subprocess.Popen[bytes]":
        """Start a container, of a pod or by itself."""
        limits = container.get("securityContext") or {}
        read_only = "yes" if limits.get("readOnlyRootFilesystem") else "no"
        own: Mounts = [
            (self._workspace, WORKSPACE, True),
            (self.hosts, "/etc/hosts", False),
        ]
        bound = [
            f"{source}:{target}:{'rw' if may_write else 'ro'}"
            for source, target, may_write in (
                *own,
                *mounts,
                *self._image,
            )  # a volume at /tmp hides none
        ]
        command = [*container["command"], *(container.get("args") or ())]
        workdir = container.get("workingDir", WORKSPACE)
        return subprocess.Popen(
            [
                *UNSHARE,
                SCRIPT,
                self._folder / "root",
                hostname,
                workdir,
                read_only,
                *bound,
                "--",
                *command,
            ],
            env={**self._envs, **envs},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def first(self, process: "subprocess.Popen[bytes]") -> int:
        return (children(process.pid) or [process.pid])[0]


def as_volume(folder: Path) -> Path:
    """Return `folder`, made as the root of a fresh volume is."""
    folder.mkdir()
    folder.chmod(FS_GROUP_MODE)
    os.chown(folder, OTHER_USER, -1)
    return folder


def children(pid: int) -> list[int]:
    try:
        return [
            int(child)
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except (FileNotFoundError, ProcessLookupError):
        return []


def below(pid: int) -> list[int]:
    """Return all that a process started, and what those did."""
    return [
        *(found := children(pid)),
        *(each for child in found for each in below(child)),
    ]


def _has_memory_limit(container: JsonObject) -> bool:
    resources = container.get("resources") or {}
    return "memory" in (resources.get("limits") or {})


def _hostname(pod: JsonObject) -> str:
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])
