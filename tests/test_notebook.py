"""The notebook in examples/ runs from its first cell to its last, as a user runs it."""

import json
import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "examples" / "notebook" / "coadapt.ipynb"
CELL_TIMEOUT_S = 600


def text_of(cell: nbformat.NotebookNode) -> str:
    return "".join(output.get("text", "") for output in cell.get("outputs", ()))


@pytest.mark.train
@pytest.mark.processes
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its commands are those of this environment, as where it is installed by pip.
    folder = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
    cells = {cell["id"]: cell for cell in notebook.cells}
    by_text = {cell.source: cell for cell in cells.values()}
    [ran] = [by_text[text] for text in by_text if "!python elastic.py" in text]
    assert text_of(ran).count("final loss") == 2
    [checked] = [by_text[text] for text in by_text if "!coadapt check" in text]
    assert "the same training" in text_of(checked), text_of(checked)
    assert "not the same training" not in text_of(checked)
    [simulated] = [by_text[text] for text in by_text if '"simulate"' in text]
    assert text_of(simulated).count("mean completion time") == 3
    [plotted] = [by_text[text] for text in by_text if "go.Figure" in text]
    figures = [
        output["data"]["application/vnd.plotly.v1+json"]
        for output in plotted["outputs"]
        if "application/vnd.plotly.v1+json" in output.get("data", {})
    ]
    assert [trace["name"] for trace in figures[0]["data"]] == [
        "fifo",
        "srtf",
        "tiresias",
    ]


def test_the_notebook_is_stored_without_outputs() -> None:
    stored = json.loads(NOTEBOOK.read_text())
    code = [cell for cell in stored["cells"] if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] for cell in code)
    assert all(cell["execution_count"] is None for cell in code)
