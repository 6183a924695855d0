"""A Kubernetes API server with etcd on this machine, for tests: real ones, where they
are installed.

`tools/kube_apiserver.sh` makes the server from Debian's source package, once per user;
etcd is Debian's.
"""

import json
import os
import secrets
import shutil
import subprocess
import time
import urllib.error
from pathlib import Path

from coadapt.executors.kubernetes.api import ApiError, KubeApi
from tests.ports import free_ports

ENV_APISERVER = "COADAPT_KUBE_APISERVER"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
BUILT = CACHE / "coadapt" / "engines" / "kube-apiserver-1.20.2"
READY_S = 90.0
ADMIN = "admin"
SCHEDULER = "system:serviceaccount:coadapt:coadapt"
NOBODY = "nobody"


def apiserver() -> str | None:
    """Return where the API server is, None if it is not installed."""
    named = os.environ.get(ENV_APISERVER)
    found = named or (str(BUILT) if BUILT.exists() else shutil.which("kube-apiserver"))
    return found if found and Path(found).exists() else None


def why_missing() -> str | None:
    """Return why no control plane can be had here, None if one can."""
    if apiserver() is None:
        return (
            "no kube-apiserver: make engines-test builds one, or "
            "COADAPT_KUBE_APISERVER names it"
        )
    return None if shutil.which("etcd") else "no etcd: apt-get install etcd-server"


class ControlPlane:
    """etcd and an API server with RBAC over loopback, until `close`. kubeconfig: one
    per user.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tokens = {
            user: secrets.token_hex() for user in (ADMIN, SCHEDULER, NOBODY)
        }
        self._processes: list[subprocess.Popen[bytes]] = []
        self.port, *etcd = free_ports(3)
        self._etcd, self._peer = (f"http://127.0.0.1:{port}" for port in etcd)
        folder.mkdir(exist_ok=True)
        try:
            self._start_etcd()
            self.start_apiserver()
        except BaseException:
            self.close()
            raise

    def kubeconfig(self, user: str = ADMIN) -> str:
        path = self._folder / f"{user.rpartition(':')[2]}.kubeconfig"
        server = {
            "server": f"https://127.0.0.1:{self.port}",
            "certificate-authority": str(self.certificate),
        }
        context = {"cluster": "test", "user": user, "namespace": "coadapt"}
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "test",
                    "clusters": [{"name": "test", "cluster": server}],
                    "users": [{"name": user, "user": {"token": self._tokens[user]}}],
                    "contexts": [{"name": "test", "context": context}],
                }
            )
        )
        return str(path)

    @property
    def certificate(self) -> Path:
        return self._folder / "certs" / "apiserver.crt"

    @property
    def in_cluster(self) -> dict[str, str]:
        """What each pod finds in its environment."""
        return {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.port),
        }

    def admin(self) -> KubeApi:
        return KubeApi.connect(self.kubeconfig())

    def kill_apiserver(self) -> None:
        server = self._processes.pop()
        server.kill()
        server.wait()

    def close(self) -> None:
        while self._processes:
            process = self._processes.pop()
            process.kill()
            process.wait()

    def _start_etcd(self) -> None:
        self._run(
            *("etcd", "--data-dir", str(self._folder / "etcd"), "--unsafe-no-fsync"),
            *(
                "--listen-client-urls",
                self._etcd,
                "--advertise-client-urls",
                self._etcd,
            ),
            *(
                "--listen-peer-urls",
                self._peer,
                "--initial-advertise-peer-urls",
                self._peer,
            ),
            *("--initial-cluster", f"default={self._peer}"),
        )

    def start_apiserver(self) -> None:
        """Start it, again perhaps, and wait until it answers."""
        program = apiserver()
        certs = self._folder / "certs"
        assert program is not None
        key = self._folder / "service-account.key"
        if not key.exists():
            subprocess.run(
                ["openssl", "genrsa", "-out", key, "2048"],
                check=True,
                capture_output=True,
            )
        tokens = self._folder / "tokens.csv"
        groups = {
            ADMIN: "system:masters",
            SCHEDULER: "system:serviceaccounts:coadapt",
            NOBODY: "nobodies",
        }
        tokens.write_text(
            "".join(
                f'{self._tokens[user]},{user},{user},"{groups[user]}"\n'
                for user in groups
            )
        )
        log = self._run(
            *(program, "--etcd-servers", self._etcd, "--cert-dir", str(certs)),
            *("--bind-address", "127.0.0.1", "--secure-port", str(self.port)),
            *(
                "--advertise-address",
                "127.0.0.1",
            ),  # else it looks for a network to be reached by
            *("--token-auth-file", str(tokens), "--authorization-mode", "RBAC"),
            *("--service-account-issuer", "https://kubernetes.default.svc"),
            *(
                "--service-account-key-file",
                str(key),
                "--service-account-signing-key-file",
                str(key),
            ),
            *(
                "--service-cluster-ip-range",
                "10.0.0.0/24",
                "--disable-admission-plugins",
                "ServiceAccount",
            ),
            *(
                "--kubelet-preferred-address-types",
                "InternalIP",
                "--endpoint-reconciler-type",
                "none",
            ),
        )
        deadline = time.monotonic() + READY_S
        while not self._answers():
            assert self._processes[-1].poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.2)

    def _answers(self) -> bool:
        if not self.certificate.exists():
            return False
        try:
            self.admin().get("/api/v1/namespaces/default")
        except (ApiError, urllib.error.URLError):
            return False
        return True

    def _run(self, *command: str) -> Path:
        """Return where it logs."""
        path = self._folder / f"{Path(command[0]).name}.log"
        with open(path, "ab") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True
            )
        self._processes.append(process)
        return path
