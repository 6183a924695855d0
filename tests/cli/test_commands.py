"""The verbs as a user meets them: one line per mistake, quick help, and what each
prints.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coadapt.cli.verbs import VERBS, load
from tests.cli.live_cluster import COMMAND, LiveCluster, call_cli, run_cli, until

JOB = (
    "name: hello\nrun: 'echo hello from $RANK; sleep 600'\nresources: {gpus: "
    "1..2}\nbatch: {initial: 8}\n"
)
# What verbs are written with, and what that brings along. Whatever else they load makes
# them slow.
LIGHT = {
    "coadapt",
    "typer",
    "rich",
    "shellingham",
    "annotated_doc",
    "markdown_it",
    "mdurl",
    "pygments",
}


def fails(code: int, *arguments: str, state: Path) -> str:
    """Run a command that must fail with `code` and one line on stderr; return that
    line.
    """
    done = call_cli(*arguments, state=state)
    assert (done.returncode, done.stdout) == (code, ""), done
    line = done.stderr.removesuffix("\n")
    assert line.startswith("error: ")
    assert "\n" not in line, line
    return line.removeprefix("error: ")


# -- without a scheduler
# ----------------------------------------------------------------------------------


def test_help_names_every_verb() -> None:
    done = run_cli("--help")
    assert done.returncode == 0
    for verb in VERBS:
        assert re.search(rf"^  {verb}\b", done.stdout, re.M), verb
    assert run_cli().stdout == done.stdout


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_is_where_the_table_says(name: str) -> None:
    command = load(name, VERBS[name])
    assert command.name == name
    assert command.help, name
    assert VERBS[name].help.endswith(".")


def test_the_list_of_verbs_imports_none_of_them() -> None:
    code = """if True:
        import sys
        import coadapt.cli.main
        sys.argv = ["coadapt", "--help"]
        try:
            coadapt.cli.main.main()
        except SystemExit:
            print(*(name for name in sys.modules if name.startswith("coadapt")))
    """
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    assert loaded == {
        "coadapt",
        "coadapt.cli",
        "coadapt.cli.exit_codes",
        "coadapt.cli.main",
        "coadapt.cli.verbs",
    }


def test_help_loads_nothing_heavy() -> None:
    """That is what takes time; a limit in seconds would say more of the machine."""
    code = """if True:
        import sys
        before = set(sys.modules)
        import coadapt.cli.main, coadapt.cli.cluster.screen
        sys.argv = ["coadapt", "--help"]
        try:
            coadapt.cli.main.main()
        except SystemExit:
            packages = {name.partition(".")[0] for name in set(sys.modules) - before}
            print(*packages - set(sys.stdlib_module_names))
    """
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    assert {"coadapt", "typer"} <= loaded <= LIGHT


def test_a_missing_scheduler_says_how_to_start_one(tmp_path: Path) -> None:
    for verb in (
        ["ls"],
        ["top"],
        ["describe", "x"],
        ["cancel", "x"],
        ["logs", "x"],
        ["story", "x"],
    ):
        line = fails(1, *verb, state=tmp_path)
        assert line == f"no scheduler has run on {tmp_path}; start one with: coadapt up"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            JOB.replace("1..2", "8..2"),
            r"resources\.gpus: got '8\.\.2'; allowed: a number >= 1, or MIN\.\.MAX .*",
        ),
        (
            JOB.replace("8}", "many}"),
            r"batch\.initial: got 'many'; allowed: a whole number in 1.*",
        ),
        (
            JOB + "colour: red\n",
            r"colour: got 'red'; allowed: only the keys name, run, .*",
        ),
        (
            JOB.replace("'echo hello from $RANK; sleep 600'", "python gone.py"),
            r"run: got 'gone\.py'; allowed: .*",
        ),
    ],
)
def test_a_wrong_job_file_needs_no_scheduler_to_be_refused(
    tmp_path: Path, text: str, line: str
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    assert re.fullmatch(line, fails(2, "submit", str(path), state=tmp_path))


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--policy", "nosuch"], r"policy: got 'nosuch'; allowed: fifo, .*"),
        (["--slots", "0"], r"--slots: got 0; allowed: 1\.\.1024"),
        (["--round", "0"], r"--round: got 0\.0; allowed: 1\.\.86400 seconds"),
        (["--reaction", "-1"], r"--reaction: got -1\.0; allowed: 0\.\.86400 seconds"),
        (["--port", "70000"], r"--port: got 70000; allowed: 0\.\.65535"),
        (
            ["--host", "0.0.0.0"],
            r"--host: got '0\.0\.0\.0'; allowed: a loopback address .*",
        ),
    ],
)
def test_up_refuses_bad_flags_and_makes_nothing(
    tmp_path: Path, arguments: list[str], line: str
) -> None:
    state = tmp_path / "state"
    given = ["--slots", "2", "--policy", "fifo", *arguments]
    assert re.fullmatch(
        line, fails(2, "up", *given, "--state", str(state), state=state)
    )
    assert not state.exists()


def test_up_without_slots_asks_for_them_where_there_is_no_gpu(tmp_path: Path) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has an NVIDIA GPU")
    line = fails(2, "up", "--policy", "fifo", state=tmp_path / "state")
    assert line.startswith("--slots: got None; allowed: a number of CPU slots")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["ls", "--nosuch"], "No such option: --nosuch"),
        (["nosuch"], "No such command 'nosuch'; `.* --help` lists all"),
        (["simluate", "x"], r"No such command 'simluate'; did you mean simulate\?"),
        (["tenant", "sett"], r"No such command 'sett'[.;] [dD]id you mean '?set'?\?"),
        (["describe"], "Missing argument 'job'; see `.* describe --help`"),
        (["up", "--slots", "four"], "--slots: got 'four'; allowed: a whole number"),
        (["up", "--round", "x"], "--round: got 'x'; allowed: a number"),
        (
            ["check", "--replicas", "1", "x"],
            "--replicas: got '?1'?; allowed: 2 or more",
        ),
    ],
)
def test_a_wrong_command_line_is_one_line(
    tmp_path: Path, arguments: list[str], line: str
) -> None:
    assert re.fullmatch(line, fails(2, *arguments, state=tmp_path))


def test_policies_lists_what_up_accepts() -> None:
    done = run_cli("policies")
    assert done.returncode == 0
    names = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
    assert {"fifo", "srtf", "tiresias", "optimus", "pollux"} <= set(names)
    one = run_cli("policies", "shockwave(rule=counts)").stdout
    assert "oracle    epochs" in one
    assert (
        "option    rule=counts\n              how the predictor learns; one of "
        "counts, restatement\n" in one
    )


# -- with a scheduler
# -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    cluster = LiveCluster(tmp_path_factory.mktemp("cluster"))
    cluster.up()
    yield cluster
    cluster.close()


@pytest.mark.processes
def test_from_submission_to_cancellation(cluster: LiveCluster) -> None:
    path = cluster.folder / "job.yaml"
    path.write_text(JOB)
    done = run_cli("submit", str(path), state=cluster.state)
    job = done.stdout.strip()
    assert re.fullmatch(r"hello-[0-9a-f]{8}", job), done.stderr
    cluster.wait_for(job, "running")

    listed = run_cli("ls", state=cluster.state).stdout
    assert re.search(rf"{job} +running +1 of 1\.\.2 +8 ", listed)
    assert [
        entry["id"]
        for entry in json.loads(run_cli("ls", "--json", state=cluster.state).stdout)[
            "jobs"
        ]
    ] == [job]

    # A part of its id is enough; "hello" is two jobs when this is run again.
    asked = run_cli("describe", job[:-2], state=cluster.state)
    assert asked.returncode == 0, asked.stderr
    described = asked.stdout
    for line in (
        rf"Job +{job}",
        r"State +running \(allocated\), generation 1",
        r"GPUs +1 of 1\.\.2 \(.+: 1\)",
    ):
        assert re.search(line, described), described

    assert job in run_cli("top", state=cluster.state).stdout
    picture = json.loads(run_cli("top", "--json", state=cluster.state).stdout)
    assert (picture["num_gpus"], picture["num_gpus_used"], picture["policy"]) == (
        4,
        1.0,
        "fifo",
    )

    log = cluster.state / "jobs" / job / "logs" / "1-0.log"
    until(
        lambda: log.exists() and log.read_text() == "hello from 0\n", "the job greets"
    )
    follower = subprocess.Popen(
        [*COMMAND, "logs", "-f", job, "--state", str(cluster.state)],
        stdout=subprocess.PIPE,
    )
    assert follower.stdout is not None
    assert follower.stdout.readline() == b"hello from 0\n"

    assert (
        run_cli("cancel", job, state=cluster.state).stdout
        == f"{job} is being cancelled\n"
    )
    cluster.wait_for(job, "cancelled")
    assert follower.wait(timeout=120) == 0
    follower.stdout.close()

    assert "submitted: 1..2 GPUs" in run_cli("story", job, state=cluster.state).stdout
    assert (
        run_cli("ls", state=cluster.state)
        .stdout.strip()
        .endswith("ended, see coadapt ls --all")
    )
    assert re.search(
        rf"{job} +cancelled", run_cli("ls", "--all", state=cluster.state).stdout
    )


@pytest.mark.processes
def test_a_job_can_ask_its_own_scheduler(cluster: LiveCluster) -> None:
    script = """
        cd "$COADAPT_CHECKPOINT_DIR"
        coadapt describe $COADAPT_JOB > seen
        coadapt ls 2> refused || true
        coadapt cancel $COADAPT_JOB 2>> refused || true
    """
    job = cluster.submit("inside", script)
    cluster.wait_for(job, "succeeded", "failed")
    assert job in (cluster.checkpoints(job) / "seen").read_text()
    line = (
        f"error: this is the token of job {job}: it may read and report of that job "
        f"only"
    )
    assert (cluster.checkpoints(job) / "refused").read_text().splitlines() == [
        line,
        line,
    ]


@pytest.mark.processes
def test_the_replica_that_failed_first_is_named_with_its_last_line(
    cluster: LiveCluster,
) -> None:
    """Its peer ends because of it, as coadapt.train does: with a code of its own, and
    no error to show.
    """
    script = (
        'if [ $RANK = 1 ]; then echo "[rank1]: ValueError: boom"; echo "some '
        'library: bye"; exit 1; fi; '
        "echo working; sleep 0.3; exit 69"
    )
    job = cluster.submit("breaks", script, "2", max_failures=0)
    cluster.wait_for(job, "failed")
    said = "replica 1 exited with code 1: ValueError: boom"
    logs = run_cli("logs", job, state=cluster.state)
    assert "working" in logs.stdout
    assert logs.stderr.strip().endswith(said)
    assert said in run_cli("describe", job, state=cluster.state).stdout.replace(
        "\n", ""
    )
    assert said in run_cli("story", job, state=cluster.state).stdout


@pytest.mark.processes
def test_mistakes_with_a_scheduler_are_one_line_too(cluster: LiveCluster) -> None:
    path = cluster.folder / "large.yaml"
    path.write_text(JOB.replace("1..2", "8..16"))
    before = cluster.client.jobs()
    line = fails(2, "submit", str(path), state=cluster.state)
    assert line.startswith(
        "resources.gpus: got '8..16'; allowed: a minimum of at most 4"
    )
    assert fails(2, "describe", "gone", state=cluster.state).startswith(
        "job: got 'gone'; allowed: the id of a job"
    )
    line = fails(2, "up", "--slots", "4", state=cluster.state)
    assert line.startswith(
        f"--state: got '{cluster.state}'; allowed: a directory without a running "
        f"scheduler"
    )
    assert cluster.client.jobs() == before


@pytest.mark.processes
def test_the_state_directory_is_for_its_owner(cluster: LiveCluster) -> None:
    assert oct(cluster.state.stat().st_mode & 0o777) == "0o700"
    assert oct((cluster.state / "token").stat().st_mode & 0o777) == "0o600"
    (cluster.state / "token").chmod(0o644)
    try:
        assert "mode 0600" in fails(2, "ls", state=cluster.state)
    finally:
        (cluster.state / "token").chmod(0o600)


@pytest.mark.processes
def test_a_wrong_token_is_told(cluster: LiveCluster) -> None:
    environ = {
        **os.environ,
        "COADAPT_URL": cluster.client.url,
        "COADAPT_TOKEN": "wrong",
    }
    done = subprocess.run(
        [*COMMAND, "ls"], env=environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr
        == "error: a bearer token is needed: see the token file in the state "
        "directory\n"
    )


@pytest.mark.processes
def test_wait_tells_how_jobs_ended(cluster: LiveCluster) -> None:
    good = cluster.submit("good", "true")
    bad = cluster.submit("bad", "exit 1", max_failures=0)
    endless = cluster.submit("endless", "sleep 600")
    done = run_cli("wait", "good", state=cluster.state)
    assert (done.returncode, done.stdout) == (0, f"{good} succeeded\n")
    done = run_cli("wait", good, "bad", state=cluster.state)
    assert done.returncode == 3
    assert re.search(rf"^{bad} failed: .*exited with code 1", done.stdout, re.M), done
    done = run_cli(
        "wait", good, endless, "--timeout", "0.3", "--json", state=cluster.state
    )
    assert (done.returncode, done.stderr) == (124, f"still waiting for {endless}\n")
    answer = json.loads(done.stdout)
    assert ([job["id"] for job in answer["ended"]], answer["waiting"]) == (
        [good],
        [endless],
    )
    assert fails(2, "wait", "nosuch", state=cluster.state).startswith(
        "job: got 'nosuch'; allowed: "
    )
    cluster.client.post(f"/v1/jobs/{endless}/cancel")


@pytest.mark.processes
def test_submit_waits_and_follows_if_asked(cluster: LiveCluster) -> None:
    path = cluster.folder / "short.yaml"
    path.write_text(
        "name: short\nrun: echo said; exit $CODE\nenvs: {CODE: '0'}\nbatch: "
        "{initial: 8}\n"
    )
    done = run_cli("submit", "--wait", str(path), state=cluster.state)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"(short-\w+)\n\1 succeeded\n", done.stdout), done
    path.write_text(path.read_text().replace("'0'", "'7'") + "max_failures: 0\n")
    done = run_cli("submit", "--follow", str(path), state=cluster.state)
    assert done.returncode == 3
    assert re.fullmatch(
        r"said\nshort-\w+ failed: .*exited with code 7.*\n", done.stdout
    ), done


@pytest.mark.processes
def test_several_jobs_are_cancelled_at_once_and_ended_ones_told_apart(
    cluster: LiveCluster,
) -> None:
    over = cluster.submit("over", "true")
    cluster.wait_for(over, "succeeded")
    one = cluster.submit("one", "sleep 600")
    two = cluster.submit("two", "sleep 600", gpus="1")
    done = run_cli("cancel", one, "nosuch", two, over, state=cluster.state)
    assert done.returncode == 2
    assert done.stderr.startswith("error: job: got 'nosuch'; allowed: ")
    cancelled = rf"({one} is (being )?cancelled)\n({two} is (being )?cancelled)\n"
    assert re.fullmatch(
        cancelled + f"{over} had ended before: succeeded\n", done.stdout
    ), done
    for job in (one, two):
        assert (
            cluster.wait_for(job, "cancelled")["explanation"] == "cancelled on request"
        )
    # An unset variable of a script names no job, though its beginning fits every one.
    assert fails(2, "cancel", "", state=cluster.state).startswith(
        "job: got ''; allowed: "
    )


@pytest.mark.processes
@pytest.mark.timeout(
    600
)  # a score of commands, each a Python that starts: beside all other tests minutes
def test_ls_filters_and_every_verb_has_json(cluster: LiveCluster) -> None:
    kept = cluster.submit("kept", "sleep 600")
    other = cluster.submit("left-out", "true")
    cluster.wait_for(other, "succeeded")

    def ids(*arguments: str) -> list[str]:
        return [
            str(job["id"])
            for job in json.loads(
                run_cli(*arguments, "--json", state=cluster.state).stdout
            )["jobs"]
        ]

    assert other not in ids("ls")
    assert {kept, other} <= set(ids("ls", "--all"))
    assert ids("ls", "--all", "-n", "1") == [other]
    assert other in ids("ls", "--in", "succeeded")
    assert kept not in ids("ls", "--in", "succeeded")
    assert ids("ls", "--name", "kep") == [kept] == ids("ls", "--name", "kept-*")
    assert ids("ls", "--tenant", "nobody") == []
    line = fails(2, "ls", "--in", "finished", state=cluster.state)
    assert line.startswith(
        "state: got 'finished'; allowed: states with commas between: pending, "
    )
    assert (
        json.loads(run_cli("describe", kept, "--json", state=cluster.state).stdout)[
            "id"
        ]
        == kept
    )
    assert json.loads(run_cli("story", kept, "--json", state=cluster.state).stdout)[
        "lines"
    ]
    echo = cluster.submit("echo", "printf 'a\\nb'")
    lines = run_cli(
        "logs", "-f", "--json", echo, state=cluster.state
    ).stdout.splitlines()
    assert [json.loads(line)["line"] for line in lines] == ["a", "b"]
    page = cluster.folder / "page.html"
    report = run_cli("report", str(page), "--json", state=cluster.state)
    assert json.loads(report.stdout)["page"] == str(page)
    assert json.loads(report.stdout)["jobs_left_out"] == 0
    assert not report.stderr
    report = run_cli("report", str(page), "--jobs", "1", state=cluster.state)
    assert report.stdout == f"{page}\n"
    assert report.stderr.startswith("It shows the 1 jobs that ended last, and all live")
    assert (
        json.loads(run_cli("cancel", kept, "--json", state=cluster.state).stdout)[
            "jobs"
        ][0]["id"]
        == kept
    )
    assert json.loads(run_cli("policies", "--json").stdout)["fifo"]["options"] == {
        "backfill": False
    }
