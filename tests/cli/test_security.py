"""The rows of docs/security.md that a live scheduler keeps: who gets the token, and
whose directory it is.
"""

import http.server
import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from coadapt.cli.client import Client, UnreachableError, find_client
from coadapt.cli.local_socket import LocalConnection, listening_here
from coadapt.cli.state_dir import StateDir
from coadapt.executors.processes.job_processes import marked_processes, parents
from coadapt.model import InputError
from tests.cli.live_cluster import LiveCluster, call_cli, run_cli, until

TOKEN = "the operator's token"


class Squatter(http.server.BaseHTTPRequestHandler):
    """Listens on the scheduler's port while it does not run, and keeps what it is
    sent.
    """

    heard: list[str | None] = []  # noqa: RUF012 - of the class on purpose: each request makes a new handler

    def do_GET(self) -> None:
        self.heard.append(self.headers.get("Authorization"))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"[]")

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's name
        pass


@contextmanager
def squatted(port: int) -> Iterator[list[str | None]]:
    Squatter.heard.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Squatter) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Squatter.heard
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    cluster = LiveCluster(tmp_path_factory.mktemp("cluster"))
    cluster.up()
    yield cluster
    cluster.close()


@pytest.mark.processes
def test_whoever_takes_the_port_while_no_scheduler_runs_gets_no_token(
    cluster: LiveCluster,
) -> None:
    port = int(cluster.client.url.rpartition(":")[2])
    cluster.kill()
    with squatted(port) as heard:
        for verb in (["ls"], ["describe", "x"], ["cancel", "x"], ["top", "--once"]):
            done = run_cli(*verb, state=cluster.state)
            assert done.returncode == 1
            assert done.stderr.startswith(
                f"error: no scheduler answers at {cluster.state / 'socket'}"
            )
        assert heard == []
    cluster.up()


@pytest.mark.processes
def test_no_job_finds_the_operators_token_in_its_environment(
    cluster: LiveCluster,
) -> None:
    job = cluster.submit("curious", 'env > "$COADAPT_CHECKPOINT_DIR/env"')
    cluster.wait_for(job, "succeeded", "failed")
    environment = (cluster.checkpoints(job) / "env").read_text()
    assert (cluster.state / "token").read_text() not in environment
    assert f"COADAPT_TOKEN=job.{job}." in environment


@pytest.mark.processes
def test_a_new_token_serves_the_verbs_at_once_and_running_jobs_keep_theirs(
    cluster: LiveCluster,
) -> None:
    before = (cluster.state / "token").read_text()
    assert run_cli("rotate-token", state=cluster.state).returncode == 0
    assert (cluster.state / "token").read_text() != before
    assert run_cli("ls", state=cluster.state).returncode == 0
    cluster.kill()
    again = (cluster.state / "token").read_text()
    assert run_cli("rotate-token", state=cluster.state).returncode == 0
    assert (cluster.state / "token").read_text() != again
    cluster.up()
    assert run_cli("ls", state=cluster.state).returncode == 0


@pytest.mark.processes
def test_a_scheduler_that_is_stopped_keeps_no_verb_waiting_for_long(
    cluster: LiveCluster,
) -> None:
    job = cluster.submit("long", "sleep 600")
    os.kill(cluster.pid, signal.SIGSTOP)
    begun = time.monotonic()
    done = run_cli("wait", "--timeout", "1", job, state=cluster.state)
    waited_s = time.monotonic() - begun
    with pytest.raises(
        UnreachableError,
        match=r"within 1 s: it is busy or stopped; it may still carry out",
    ):
        find_client(cluster.state, 1.0).post(f"/v1/jobs/{job}/cancel")
    (cluster.state / "lock").unlink()
    second = run_cli("up", "--slots", "1", state=cluster.state)
    os.kill(cluster.pid, signal.SIGCONT)
    assert (done.returncode, waited_s < 25.0) == (1, True)
    assert done.stderr.endswith("did not answer within 5 s: it is busy or stopped\n")
    assert second.returncode == 2
    assert "although its lock file was removed" in second.stderr
    cluster.wait_for(job, "cancelled")  # as the verb had warned


@pytest.mark.processes
def test_the_socket_is_its_owners_alone(cluster: LiveCluster) -> None:
    assert oct((cluster.state / "socket").stat().st_mode & 0o777) == "0o600"
    assert oct(cluster.state.stat().st_mode & 0o777) == "0o700"


def state_of(tmp_path: Path) -> Path:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / "connection.json").write_text(
        '{"url": "http://127.0.0.1:1", "policy": "fifo"}'
    )
    (state / "token").touch(0o600)
    (state / "token").write_text(TOKEN)
    return state


@pytest.mark.parametrize(
    "name",
    ["token", "job-key", "lock", "journal.sqlite", "jobs.sqlite", "journal.reserve"],
)
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(
    tmp_path: Path, name: str
) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    os.mkfifo(state / name, 0o600)
    with (
        pytest.raises(InputError, match=rf"{name}'; allowed: a regular file"),
        StateDir(state).locked(),
    ):
        pass


def test_a_pipe_in_place_of_the_connection_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    os.mkfifo(state / "connection.json", 0o600)
    with pytest.raises(InputError, match=r"connection.json'; allowed: a regular file"):
        find_client(state)


def test_a_scheduler_that_lost_its_lock_file_keeps_others_out(tmp_path: Path) -> None:
    state = state_of(tmp_path)
    directory = StateDir(state)
    with directory.locked(), listening_here(directory.socket):
        directory.lock.unlink()
        with (
            pytest.raises(InputError, match="although its lock file was removed"),
            directory.locked(),
        ):
            pass
    with directory.locked():  # what it left of its socket keeps nobody out
        pass


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_a_state_directory_that_others_may_write_is_refused(
    tmp_path: Path, mode: int
) -> None:
    state = state_of(tmp_path)
    state.chmod(mode)
    line = (
        f"error: --state: got '{state} with mode {mode:04o}'; allowed: one that only "
        f"you may write"
    )
    for verb in (["ls"], ["up", "--slots", "1", "--policy", "fifo"], ["doctor"]):
        done = call_cli(*verb, state=state)
        assert (done.returncode, done.stdout) == (2, ""), verb
        assert done.stderr.startswith(line)
    assert not (state / "journal.sqlite").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", ["", "connection.json", "token"])
def test_what_another_user_owns_is_refused(tmp_path: Path, name: str) -> None:
    state = state_of(tmp_path)
    os.chown(state / name, 12345, 12345)
    with pytest.raises(InputError, match="of user 12345"):
        find_client(state)


def test_a_connection_that_others_may_write_is_refused(tmp_path: Path) -> None:
    state = state_of(tmp_path)
    (state / "connection.json").chmod(0o666)
    with pytest.raises(InputError, match="with mode 0666"):
        find_client(state)


@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can be another user for a while"
)
def test_a_socket_that_another_user_listens_on_gets_no_token(tmp_path: Path) -> None:
    state = state_of(tmp_path)
    os.chmod(tmp_path, 0o755)
    with listening_here(state / "socket") as server_socket:
        # The kernel tells who called listen.
        os.seteuid(12345)
        try:
            server_socket.listen(1)
        finally:
            os.seteuid(0)
        with pytest.raises(UnreachableError, match="user 12345 listens there"):
            find_client(state).get("/v1/jobs")
        server_socket.settimeout(1)
        connection, _ = server_socket.accept()
        with connection:
            connection.settimeout(1)
            assert connection.recv(100) == b""


def test_a_long_path_of_the_state_directory_is_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 200)
    folder.mkdir()
    with listening_here(folder / "socket") as server_socket:
        connection = LocalConnection(StateDir(folder).socket, 1.0)
        connection.connect()
        server_socket.settimeout(1.0)
        server_socket.accept()[0].close()
        connection.close()
    assert not (folder / "socket").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"url": 1}', "\x00\xff"])
def test_a_broken_connection_file_is_one_line(tmp_path: Path, text: str) -> None:
    state = state_of(tmp_path)
    (state / "connection.json").write_bytes(text.encode("latin-1"))
    done = call_cli("ls", state=state)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        f"error: --state: got '{state}/connection.json'; allowed: a file that"
    )


def test_a_foreign_server_is_one_line() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Squatter) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with pytest.raises(
                UnreachableError, match=r"is not a Coadapt scheduler \(a list\)"
            ):
                Client(f"http://127.0.0.1:{server.server_port}", "x").get("/v1/jobs")
        finally:
            server.shutdown()
            thread.join()


def asked(url: str, token: str, method: str, path: str, body: object = None) -> int:
    """Return the status of an answer that came over the port."""
    request = urllib.request.Request(
        url + path, method=method, headers={"Authorization": f"Bearer {token}"}
    )
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.processes
def test_code_in_a_job_reaches_its_own_job_and_no_neighbour_on_a_real_server(
    cluster: LiveCluster,
) -> None:
    """By the token that it finds in its environment, over the port."""
    run = (
        'env > "$COADAPT_CHECKPOINT_DIR/env.new"; mv "$COADAPT_CHECKPOINT_DIR/env.new" '
    )
    own = cluster.submit(
        "curious", f'{run} "$COADAPT_CHECKPOINT_DIR/env"; exec sleep 600'
    )
    other = cluster.submit("neighbour", "exec sleep 600")
    until((cluster.checkpoints(own) / "env").exists, "the job has told its environment")
    for job in (
        own,
        other,
    ):  # its launcher says so after the job may have told its environment
        cluster.wait_for(job, "running")
    lines = (cluster.checkpoints(own) / "env").read_text().splitlines()
    envs = dict(line.split("=", 1) for line in lines if "=" in line)
    url = envs["COADAPT_URL"]
    token = envs["COADAPT_TOKEN"]
    report = {"generation": 1, "report": {"progress": 1.0}}
    assert asked(url, token, "GET", f"/v1/jobs/{own}") == 200
    assert asked(url, token, "POST", f"/v1/jobs/{own}/reports", report) == 202
    for method, path, body in (
        ("GET", f"/v1/jobs/{other}", None),
        ("GET", f"/v1/jobs/{other}/logs", None),
        ("GET", f"/v1/jobs/{other}/story", None),
        ("POST", f"/v1/jobs/{other}/reports", report),
        ("POST", f"/v1/jobs/{other}/cancel", None),
        ("POST", f"/v1/jobs/{own}/cancel", None),
        ("GET", "/v1/jobs", None),
        (
            "POST",
            "/v1/jobs",
            {"name": "more", "run": "true", "workdir": "/", "batch": {"initial": 8}},
        ),
        ("GET", "/v1/cluster", None),
        ("GET", "/metrics", None),
    ):
        assert asked(url, token, method, path, body) == 403, (method, path)
        assert asked(url, f"{token}x", method, path, body) == 401, (method, path)
    assert {cluster.job(job)["state"] for job in (own, other)} == {"running"}
    for job in (own, other):
        cluster.client.post(f"/v1/jobs/{job}/cancel")
        cluster.wait_for(job, "cancelled")


TRAINING = """
import time, torch
from pathlib import Path
import coadapt.train as ct

run = ct.init()
model = torch.nn.Linear(1, 1)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
loader = run.loader(torch.utils.data.TensorDataset(torch.ones(4_000_000, 1)), batch_size=8)
for _ in run.epochs(1):
    for (x,) in loader:
        model(x).mean().backward()
        optimizer.step()
        time.sleep(0.05)
        Path(f"trains-{run.num_replicas}-{run.rank}").touch()
"""


def listening(pids: set[int]) -> set[str]:
    """Return the addresses, as the kernel writes them, at which processes listen for
    TCP.
    """
    inodes: set[str] = set()
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(FileNotFoundError):
                    inodes.add(
                        os.readlink(entry).removeprefix("socket:[").removesuffix("]")
                    )
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()
    ]
    return {
        row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes
    }


@pytest.mark.processes
@pytest.mark.train
def test_nothing_of_a_scheduler_and_its_replicas_listens_beyond_loopback(
    cluster: LiveCluster,
) -> None:
    """Two replicas that train: torch's own store would listen everywhere, gloo at the
    name of the machine.
    """
    pytest.importorskip("torch")
    (cluster.folder / "listens.py").write_text(TRAINING)
    job = cluster.submit("listens", f"{sys.executable} listens.py", gpus="2")
    until((cluster.folder / "trains-2-1").exists, "two replicas train", within_s=120.0)
    pids = set(marked_processes(cluster.checkpoints(job)))
    pids |= (
        set().union(*(parents(pid) for pid in pids))
        - parents(os.getpid())
        - {os.getpid()}
    )
    assert len(pids) > 3
    loopback = {"0100007F", "0" * 24 + "01000000", "0000000000000000FFFF00000100007F"}
    assert listening(pids | {cluster.pid}) <= loopback
    assert listening(pids | {cluster.pid})
    cluster.client.post(f"/v1/jobs/{job}/cancel")
    cluster.wait_for(job, "cancelled")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_a_port_that_others_reach_is_opened_on_demand_only(
    tmp_path: Path, host: str
) -> None:
    done = call_cli(
        "up",
        "--slots",
        "1",
        "--policy",
        "fifo",
        "--host",
        host,
        state=tmp_path / "state",
    )
    assert done.returncode == 2
    assert (
        f"--host: got '{host}'; allowed: a loopback address such as 127.0.0.1, or "
        f"--expose" in done.stderr
    )
