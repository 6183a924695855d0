"""Kernels are kept on disk: what an earlier version of the code kept is no
hindrance.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coadapt.goodput.compiled import HAS_COMPILER

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not HAS_COMPILER, reason="numba is not installed"),
]

# Under another name, or of another size, the class and the kernel stand in the same
# lines.
KERNEL = """from typing import NamedTuple
import numpy as np
from coadapt.goodput.compiled import compiled_lean
class {name}(NamedTuple):
    of_J: np.ndarray
@compiled_lean
def total(values: {name}) -> float:
    return values.of_J.sum() * {factor}
print(total({name}(np.arange(4.0))), len(total._cache_hits), len(total._cache_misses))
"""


def run(folder: Path, name: str, factor: float) -> list[str]:
    """Write the kernel there, import it in a process of its own; return its result,
    hits and misses.
    """
    module = folder / "kernel.py"
    module.write_text(KERNEL.format(name=name, factor=factor))
    env = os.environ | {"NUMBA_CACHE_DIR": str(folder / "kept")}
    done = subprocess.run(
        [sys.executable, "-c", "import kernel"],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    assert run(tmp_path, "Values", 2.0) == ["12.0", "0", "1"]
    assert run(tmp_path, "Values", 2.0) == ["12.0", "1", "0"]


def test_what_names_a_class_of_an_earlier_version_is_compiled_anew(
    tmp_path: Path,
) -> None:
    assert run(tmp_path, "Values", 2.0) == ["12.0", "0", "1"]
    assert run(tmp_path, "Numbers", 3.0) == ["18.0", "0", "1"]
    assert run(tmp_path, "Numbers", 3.0) == ["18.0", "1", "0"]


def test_what_was_cut_off_is_compiled_anew(tmp_path: Path) -> None:
    assert run(tmp_path, "Values", 2.0) == ["12.0", "0", "1"]
    for index in (tmp_path / "kept").rglob("*.nbi"):
        index.write_bytes(index.read_bytes()[:-20])
    assert run(tmp_path, "Values", 2.0) == ["12.0", "0", "1"]
    assert run(tmp_path, "Values", 2.0) == ["12.0", "1", "0"]
