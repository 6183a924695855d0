"""What a job says reaches the operator's terminal as text, never as commands to it."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.model.bounds import LINE_ENDS, is_clean, printable
from tests.cli.live_cluster import LiveCluster, call_cli

# Clears the screen, writes the clipboard, rings, and turns the direction of writing.
EVIL = r"printf '\033[2J\033]52;c;aGVsbG8=\007\302\233K \342\200\256evil' >&2; exit 1"


@given(st.text())
def test_a_printable_text_is_clean_and_what_was_clean_is_kept(text: str) -> None:
    made = printable(text)
    assert is_clean(made)
    assert "\r" not in made
    assert printable(made) == made
    if text.isprintable():
        assert made == text
    made.encode()
    assert {*made} - {*text} <= set("\\xu0123456789abcdef")
    assert LINE_ENDS - {"\r"} >= {
        character for character in made if ord(character) < 0x20
    }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    cluster = LiveCluster(tmp_path_factory.mktemp("cluster"))
    cluster.up()
    yield cluster
    cluster.close()


@pytest.mark.processes
def test_a_jobs_last_words_cannot_drive_the_terminal(cluster: LiveCluster) -> None:
    job = cluster.submit("evil", EVIL, max_failures=0)
    cluster.wait_for(job, "failed")
    shown = [
        call_cli(verb, job, state=cluster.state).stdout
        for verb in ("describe", "story")
    ]
    shown += [
        call_cli("ls", "--all", state=cluster.state).stdout,
        call_cli("top", "--once", state=cluster.state).stdout,
    ]
    shown.append((cluster.folder / "up.log").read_text())
    for text in shown:
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & {*text}, text
    assert any("\\x1b[2J" in text for text in shown)
    # What the job wrote is its own: the log is shown as it is.
    assert "\x1b[2J" in call_cli("logs", job, state=cluster.state).stdout


@pytest.mark.processes
def test_several_files_and_stdin_are_submitted_or_none_is(cluster: LiveCluster) -> None:
    import subprocess

    from tests.cli.live_cluster import COMMAND

    text = "name: {}\nrun: 'true'\nbatch: {{initial: 8}}\n"
    one, two, bad = (cluster.folder / f"{name}.yaml" for name in ("one", "two", "bad"))
    one.write_text(text.format("one"))
    two.write_text(text.format("two"))
    bad.write_text(text.format("bad").replace("8", "0"))
    before = len(cluster.client.jobs())
    assert call_cli("submit", str(one), str(bad), state=cluster.state).returncode == 2
    assert len(cluster.client.jobs()) == before
    done = call_cli("submit", str(one), str(two), state=cluster.state)
    assert [line.rpartition("-")[0] for line in done.stdout.split()] == ["one", "two"]
    command = [*COMMAND, "submit", "-", "--state", str(cluster.state)]
    piped = subprocess.run(
        command, input=text.format("piped"), capture_output=True, text=True, check=True
    )
    assert piped.stdout.startswith("piped-")


@pytest.mark.processes
def test_a_job_of_another_machine_is_not_looked_for_on_this_one(
    cluster: LiveCluster,
) -> None:
    path = cluster.folder / "far.yaml"
    path.write_text(
        "name: far\nrun: python train.py\nworkdir: /only/there\nbatch: {initial: 8}\n"
    )
    here = call_cli("submit", str(path), state=cluster.state)
    assert "workdir: got '/only/there'; allowed: a directory that exists" in here.stderr
    # The scheduler looks on its own disk, which is this one too.
    there = call_cli("submit", "--elsewhere", str(path), state=cluster.state)
    assert there.returncode == 2
    assert "workdir: got '/only/there'" in there.stderr


@pytest.mark.processes
@pytest.mark.parametrize("verb", ["cancel", "describe", "story", "logs", "wait"])
def test_an_empty_id_fits_no_job(cluster: LiveCluster, verb: str) -> None:
    job = cluster.submit("only", "sleep 600")
    for empty in ("", " "):
        done = call_cli(verb, empty, state=cluster.state)
        assert done.returncode == 2
        assert done.stderr.startswith("error: job: got ")
    assert cluster.job(job)["state"] not in ("cancelled", "stopping")
    call_cli("cancel", job, state=cluster.state)
