"""The page's diffs are what the examples do."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def words(text: str) -> str:
    """Return `text` without comments, white space and trailing commas."""
    return re.sub(r"\s|#.*|,(?=\s*[)}])", "", text)


def test_each_line_that_the_page_adds_stands_in_an_example() -> None:
    page = (ROOT / "docs" / "integrations.md").read_text()
    scripts = "".join(
        words(re.sub(r"#.*", "", path.read_text()))
        for path in (ROOT / "examples/integrations").glob("*.py")
    )
    blocks = re.findall(r"```diff\n(.*?)```", page, re.DOTALL)
    added = [
        line[1:]
        for block in blocks
        for line in block.splitlines()
        if line.startswith("+")
    ]
    assert len(blocks) == 4
    assert len(added) == 15
    missing = [line for line in added if code_of(line) not in scripts]
    assert missing == []


def code_of(line: str) -> str:
    """Return what of an added line is whole in a script: an argument may be followed by
    others there.
    """
    code = words(line).removesuffix(",")
    return code.removesuffix(")") if code.startswith("args=") else code


@pytest.mark.train
@pytest.mark.processes
def test_coadapt_train_needs_none_of_the_libraries() -> None:
    libraries = {
        "transformers",
        "lightning",
        "accelerate",
        "mlflow",
        "wandb",
        "tensorboard",
    }
    script = f"import sys, coadapt.train; assert not {libraries} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=100)
