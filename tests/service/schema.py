"""The API against its own OpenAPI document, by schemathesis; by hand, not in the suite.

python -m tests.service.schema [--examples N] [--seed N] [--schemathesis COMMAND]

Serves a scheduler with one job on loopback and has schemathesis send it what the
document allows and what it does not: no answer may be a 5xx, and none may be one that
the document does not name.
pip install schemathesis==4.32.0 (it is no part of `dev`), in this environment or in
another.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from coadapt.cli.up.live import listening
from coadapt.service.server import http_server
from tests.service.in_process import TOKEN, InProcess, until

# What is checked of each answer. Bodies of answers have no schema, and for what a
# lawful body may still be refused (a directory that is not there, more GPUs than there
# are) a schema cannot say: no check of those.
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,unsupported_method,ignored_auth"
# It makes the token of all requests after it worthless.
LEFT_OUT = ("/v1/token",)


def run(command: str, examples: int, seed: int) -> int:
    """Return the exit code of schemathesis: 0 if it found nothing."""
    with tempfile.TemporaryDirectory() as folder, listening("127.0.0.1", [0]) as tcp:
        service = InProcess(Path(folder))
        with service.turning():
            server = http_server(service.service)
            thread = threading.Thread(target=server.run, kwargs={"sockets": [tcp]})
            thread.start()
            until(lambda: server.started)
            job = {
                "name": "a",
                "run": "true",
                "workdir": folder,
                "batch": {"initial": 8},
            }
            made = service.client().post("/v1/jobs", json=job).json()["id"]
            # Of paths with a job in them, most would else be about jobs that are not
            # there.
            Path(folder, "schemathesis.toml").write_text(
                f'[parameters]\n"path.job" = "{made}"\n'
            )
            url = f"http://127.0.0.1:{tcp.getsockname()[1]}/v1/openapi.json"
            given = [
                "run",
                url,
                "--header",
                f"Authorization: Bearer {TOKEN}",
                "--checks",
                CHECKS,
            ]
            given += [
                "--max-examples",
                str(examples),
                "--seed",
                str(seed),
                "--continue-on-failure",
            ]
            for path in LEFT_OUT:
                given += ["--exclude-path", path]
            try:
                return subprocess.run(
                    [command, *given], check=False, cwd=folder
                ).returncode
            finally:
                server.should_exit = True
                thread.join()


def main() -> int:
    """Run it as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--schemathesis", default="schemathesis", help="the command to run"
    )
    given = parser.parse_args()
    return run(given.schemathesis, given.examples, given.seed)


if __name__ == "__main__":
    sys.exit(main())
