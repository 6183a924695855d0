"""Where the API server cannot be had, its script says so and ends with 75, by which
`.ci/run` knows it.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "tools" / "kube_apiserver.sh"
CANNOT_BE_HAD = 75
BASH = shutil.which("bash") or "/bin/bash"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("user", "why"),
    [
        (1000, "as root on Debian: apt-get install etcd-server"),
        (0, "apt-get could not get etcd-server"),
    ],
)
def test_who_is_not_root_or_has_no_network_is_told_so(
    tmp_path: Path, user: int, why: str
) -> None:
    stand_ins = {
        "id": f"echo {user}",
        "apt-get": "exit 100",
        "timeout": 'shift; exec "$@"',
    }
    for program, does in stand_ins.items():
        (tmp_path / program).write_text(f"#!{BASH}\n{does}\n")
        (tmp_path / program).chmod(0o755)
    for program in ("mkdir", "flock"):
        (tmp_path / program).symlink_to(shutil.which(program) or program)
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    run = subprocess.run(
        [BASH, SCRIPT], check=False, env=environment, capture_output=True, text=True
    )
    assert (run.returncode, run.stdout) == (CANNOT_BE_HAD, "")
    assert run.stderr == f"Kubernetes' API server and etcd cannot be had: {why}\n"
