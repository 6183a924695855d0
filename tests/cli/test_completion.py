"""Shell completion, tried in real shells: verbs, options, states and ids of jobs."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.live_cluster import LiveCluster

# What bash does at <TAB>: it calls the function that `complete` names, with the words
# so far.
ASK = """
source "$SCRIPT"
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 ))
IFS=' '; COMP_LINE="$*"; COMP_POINT=${{#COMP_LINE}}
function=$(complete -p coadapt | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
"$function" coadapt
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a `coadapt` to be found on the PATH, and the script that it gives
    for bash.
    """
    folder = tmp_path_factory.mktemp("bash")
    command = folder / "coadapt"
    command.write_text(
        f"#!{sys.executable}\n"
        "import sys\nfrom coadapt.cli.main import main\nsys.argv[0] = "
        "'coadapt'\nmain()\n"
    )
    command.chmod(0o755)
    (folder / "script").write_text(script_for("bash"))
    return folder


def script_for(shell: str) -> str:
    environ = {**os.environ, "_COADAPT_COMPLETE": f"source_{shell}"}
    code = (
        "import sys; sys.argv[0] = 'coadapt'; from coadapt.cli.main import main; main()"
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def offered(folder: Path, *words: str, state: Path | None = None) -> list[str]:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("this machine has no bash")
    environ = {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "SCRIPT": str(folder / "script"),
        "COADAPT_STATE": str(state or folder / "none"),
    }
    done = subprocess.run(
        [bash, "--norc", "-c", ASK.format(), "bash", "coadapt", *words],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.split()


@pytest.mark.processes
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_each_shell(shell: str) -> None:
    script = script_for(shell)
    assert f"_COADAPT_COMPLETE=complete_{shell}" in script
    assert {"bash": "complete -o", "zsh": "compdef", "fish": "complete --command"}[
        shell
    ] in script


@pytest.mark.processes
def test_bash_completes_verbs_options_and_states(folder: Path) -> None:
    assert offered(folder, "des") == ["describe"]
    assert set(offered(folder, "s")) >= {"submit", "story", "simulate"}
    assert "--tenant" in offered(folder, "ls", "--t")
    assert offered(folder, "ls", "--in", "running,su") == ["running,succeeded"]
    assert offered(folder, "up", "--policy", "poll") == ["pollux", "pollux-genetic"]
    assert (
        offered(folder, "describe", "") == []
    )  # no scheduler: nothing, and no error on the line


# What zsh does at <TAB>, but for its line editor, which it has on a terminal only: it
# calls the function that `compdef` names, which hands what it found to `_arguments` or
# `_describe`.
ASK_ZSH = """
autoload -U compinit && compinit -u -d "$DUMP"
source "$SCRIPT"
_arguments() {{ print -l -- "$@" }}
_describe() {{ print -l -- "${{(@P)@[-1]}}" }}
compadd() {{ print -l -- "$@" }}
words=("$@"); CURRENT=$#; service=coadapt
${{_comps[coadapt]}}
"""


def asked_of(folder: Path, command: list[str], shell: str) -> str:
    """Return what a shell offers; `command` asks it, without a scheduler to ask for
    jobs.
    """
    if shutil.which(shell) is None:
        pytest.skip(f"this machine has no {shell}")
    script = folder / f"script.{shell}"
    if not script.exists():
        script.write_text(script_for(shell))
    environ = {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "SCRIPT": str(script),
        "DUMP": str(folder / "zcompdump"),
        "HOME": str(folder),
        "COADAPT_STATE": str(folder / "none"),
    }
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


@pytest.mark.processes
@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("des",), {"describe"}),
        (("s",), {"submit", "story", "simulate"}),
        (("ls", "--t"), {"--tenant"}),
        (("up", "--policy", "poll"), {"pollux", "pollux-genetic"}),
    ],
)
def test_zsh_and_fish_complete_verbs_options_and_policies(
    folder: Path, words: tuple[str, ...], names: set[str]
) -> None:
    told_zsh = asked_of(
        folder, ["zsh", "-f", "-c", ASK_ZSH.format(), "zsh", "coadapt", *words], "zsh"
    )
    assert names <= set(re.findall(r"[\w-]+", told_zsh))
    line = " ".join(("coadapt", *words))
    told = asked_of(
        folder,
        [
            "fish",
            "--no-config",
            "-c",
            f"source $SCRIPT; complete --do-complete '{line}'",
        ],
        "fish",
    )
    assert names <= {row.split("\t")[0] for row in told.splitlines()}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    cluster = LiveCluster(tmp_path_factory.mktemp("cluster"))
    cluster.up()
    yield cluster
    cluster.close()


@pytest.mark.processes
def test_bash_completes_ids_of_jobs(folder: Path, cluster: LiveCluster) -> None:
    first = cluster.submit("first", "sleep 600")
    other = cluster.submit("other", "sleep 600")
    assert offered(folder, "describe", "fi", state=cluster.state) == [first]
    assert set(offered(folder, "cancel", "", state=cluster.state)) == {first, other}
    assert re.fullmatch(
        r"other-\w+", offered(folder, "wait", first, "o", state=cluster.state)[0]
    )
