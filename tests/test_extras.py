"""What somebody sees who installed `coadapt` without the extra that they use."""

import subprocess
import sys

import pytest


def run_without(module: str, code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` where `module` cannot be imported."""
    hide = f"import sys; sys.modules[{module!r}] = None\n"
    return subprocess.run(
        [sys.executable, "-c", hide + code], capture_output=True, text=True, check=False
    )


@pytest.mark.processes
@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("uvicorn", ["up", "--slots", "2"]),
        ("yaml", ["submit", "x.yaml"]),
        ("fastapi", ["up", "--slots", "2"]),
    ],
)
def test_a_command_says_which_extra_it_needs(module: str, arguments: list[str]) -> None:
    done = run_without(
        module,
        f"sys.argv[1:] = {arguments!r}; from coadapt.cli.main import main; main()",
    )
    said = (
        f"error: this needs {module}, which is not installed: pip install "
        f"'coadapt[service]'\n"
    )
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.processes
def test_training_says_that_it_needs_torch() -> None:
    done = run_without("torch", "import coadapt.train")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: coadapt.train needs PyTorch: pip install 'coadapt[train]'"
    )
