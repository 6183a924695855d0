"""The import contracts hold, and each bites: one forbidden import breaks exactly the
contract meant.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.house_rules import PACKAGE, ROOT

pytestmark = pytest.mark.processes

FLOORS = "Floors: a module imports from lower floors only"
TRAIN = "Nobody imports train"
WING = "train stands on goodput and model only"
SHAPE = "train: a folder imports from lower ones only"
PURE = "Pure floors know no clock, file, network, thread or global randomness"

CROSSINGS = [
    ("model", "import coadapt.goodput", FLOORS),
    ("goodput", "import coadapt.core", FLOORS),
    ("core", "import coadapt.policies", FLOORS),
    ("policies", "from coadapt.core import commands", FLOORS),
    ("runtime", "import coadapt.sim", FLOORS),
    ("sim", "import coadapt.service", FLOORS),
    ("service", "import coadapt.executors", FLOORS),
    ("executors", "import coadapt.cli", FLOORS),
    ("executors", "import torch", TRAIN),
    ("cli", "import coadapt.train", TRAIN),
    ("train/run", "import coadapt.runtime", WING),
    ("train/group/crossing", "import coadapt.train.session", SHAPE),
    ("train/in_no_line", "", SHAPE),
    ("model", "import os.path", PURE),
    ("goodput", "from random import random", PURE),
    ("core", "import time", PURE),
    ("policies", "from concurrent import futures", PURE),
    ("core", "from coadapt.durable import write_whole", PURE),
    ("durable", "import coadapt.model", FLOORS),
    ("objects", "import coadapt.goodput", FLOORS),
    ("interfaces", "import coadapt.model", FLOORS),
    ("core", "import coadapt.interfaces", PURE),
    ("policies", "import coadapt.objects", PURE),
]


def broken_contracts(folder: Path) -> set[str]:
    """Lint the copy of the package in `folder`; return the contracts that it breaks."""
    shutil.copy(ROOT / "pyproject.toml", folder)
    program = (
        "import sys; sys.path.insert(0, 'src'); from importlinter.cli import "
        "lint_imports_command as c; c()"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, "--no-cache"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    contracts = [
        (line[: found.start()], found[1])
        for line in run.stdout.splitlines()
        if (found := re.search(r" (KEPT|BROKEN)( \(1 ignored import\))?$", line))
    ]
    assert len(contracts) == 5, run.stdout + run.stderr
    return {name for name, verdict in contracts if verdict == "BROKEN"}


def test_the_floors_hold(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "src" / "coadapt")
    assert broken_contracts(tmp_path) == set()


@pytest.mark.parametrize(
    ("floor", "statement", "contract"), CROSSINGS, ids=lambda value: str(value)[:30]
)
def test_each_contract_bites(
    tmp_path: Path, floor: str, statement: str, contract: str
) -> None:
    for package in (
        "",
        "model",
        "goodput",
        "core",
        "policies",
        "runtime",
        "sim",
        "service",
        "executors",
        "cli",
        "train",
    ):
        (tmp_path / "src" / "coadapt" / package).mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / "coadapt" / package / "__init__.py").touch()
    (tmp_path / "src" / "coadapt" / "__init__.py").write_text("import coadapt.client")
    (tmp_path / "src" / "coadapt" / "client.py").touch()
    (tmp_path / "src" / "coadapt" / "core" / "commands.py").touch()
    (tmp_path / "src" / "coadapt" / "durable.py").touch()
    (tmp_path / "src" / "coadapt" / "objects.py").touch()
    (tmp_path / "src" / "coadapt" / "interfaces.py").touch()
    train = tmp_path / "src" / "coadapt" / "train"
    for path in (PACKAGE / "train").iterdir():
        if (path / "__init__.py").exists():
            (train / path.name).mkdir()
            (train / path.name / "__init__.py").touch()
        elif path.suffix == ".py":
            (train / path.name).touch()
    where = (
        floor
        if "/" in floor or floor in ("durable", "objects", "interfaces")
        else f"{floor}/crossing"
    )
    (tmp_path / "src" / "coadapt" / f"{where}.py").write_text(f"{statement}\n")
    assert broken_contracts(tmp_path) == {contract}


HEAVY = (
    "torch",
    "fastapi",
    "uvicorn",
    "sqlalchemy",
    "plotly",
    "numba",
    "scipy",
    "pydantic",
    "httpx",
)


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("coadapt", (*HEAVY, "numpy")),
        ("coadapt.core.scheduler", (*HEAVY, "numpy")),
        ("coadapt.policies", HEAVY),
        ("coadapt.runtime.runtime", HEAVY),
        ("coadapt.cli.main", HEAVY),
    ],
)
def test_importing_is_light(module: str, heavy: tuple[str, ...]) -> None:
    program = f"import sys, {module}; print(*sorted(set({heavy!r}) & set(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == []
