"""What somebody sees who installed `coadapt` without the extra that they use."""

import json
import subprocess
import sys
from pathlib import Path

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


CALL = "sys.argv[1:] = {arguments!r}; from coadapt.cli.main import main; main()"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "feature"),
    [
        (["simulate", "builtin", "--policy", "gavel"], "policy gavel"),
        (["simulate", "builtin", "--policy", "sia(gap=0.1)"], "policy sia"),
        (["up", "--slots", "2", "--policy", "mst"], "policy mst"),
        (["compare", "builtin", "--policy", "fifo", "--out", "x"], "coadapt compare"),
    ],
)
def test_a_policy_says_which_extra_it_needs(
    arguments: list[str], feature: str, tmp_path: Path
) -> None:
    if arguments[0] == "up":
        arguments = [*arguments, "--state", str(tmp_path)]
    done = run_without("scipy", CALL.format(arguments=arguments))
    said = f"error: {feature} needs scipy: pip install 'coadapt[solvers]'\n"
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.processes
@pytest.mark.long
def test_only_policies_that_say_so_need_scipy_and_none_needs_numba() -> None:
    """Every policy decides on made-up rounds with numpy alone, or is refused."""
    code = """if True:
        import warnings
        warnings.simplefilter("ignore")
        sys.modules["numba"] = None
        from coadapt.model.errors import MissingExtraError
        from coadapt.policies import POLICIES, create_policy, policy_card
        from coadapt.runtime.rehearsal import rehearse
        for name in POLICIES:
            options = {"generations": 2} if name == "pollux-genetic" else {}
            try:
                rehearse(create_policy(name, **options))
                needs = False
            except MissingExtraError:
                needs = True
            assert needs == policy_card(name).needs_scipy, name
    """
    done = run_without("scipy", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.processes
def test_the_first_simulation_needs_neither_compiler_nor_solver() -> None:
    code = "sys.modules['numba'] = None; " + CALL.format(
        arguments=["simulate", "builtin:default:20", "--json"]
    )
    done = run_without("scipy", code)
    assert done.returncode == 0, done.stderr
    policies = [each["policy"] for each in json.loads(done.stdout)["results"]]
    assert policies == ["fifo", "srtf", "tiresias"]


@pytest.mark.processes
def test_training_says_that_it_needs_torch() -> None:
    done = run_without("torch", "import coadapt.train")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: coadapt.train needs PyTorch: pip install 'coadapt[train]'"
    )
