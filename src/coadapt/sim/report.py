"""The report page: one HTML file that works offline, for simulations and for live runs alike."""

import json
import os
import tempfile
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path

from coadapt.model import InputError
from coadapt.sim.report_data import ReportRun, run_values

__all__ = ["ReportRun", "render_report", "write_report"]


def write_report(path: Path | str, runs: Sequence[ReportRun], title: str = "Coadapt report") -> None:
    """Write the page for `runs` to `path`, whole or not at all. Raises InputError without plotly."""
    target = Path(path)
    text = render_report(runs, title)
    handle, beside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(beside, 0o644)
        os.replace(beside, target)
    except BaseException:
        os.unlink(beside)
        raise


def render_report(runs: Sequence[ReportRun], title: str = "Coadapt report") -> str:
    """Return the page as text. Names and sentences reach it only as escaped data, never as markup."""
    values = {"title": title, "runs": [run_values(run) for run in runs]}
    # `<` never stands in the data, so no text of a user can close the script element.
    data = json.dumps(values, allow_nan=False, separators=(",", ":"), ensure_ascii=False).replace(
        "<", "\\u003c"
    )
    parts = resources.files("coadapt.sim") / "report_page"
    page = (parts / "page.html").read_text(encoding="utf-8")
    fills = {
        "title": escape(title),
        "style": (parts / "page.css").read_text(encoding="utf-8"),
        "plotly": _plotly(),
        "data": data,
        "script": "".join(
            (parts / name).read_text(encoding="utf-8") for name in ("format.js", "charts.js", "page.js")
        ),
    }
    head, *rest = page.split("{{")
    return head + "".join(fills[name] + tail for name, tail in (part.split("}}", 1) for part in rest))


def _plotly() -> str:
    try:
        package = resources.files("plotly")
    except ModuleNotFoundError:
        raise InputError("report", "plotly is not installed", "pip install 'coadapt[report]'") from None
    return (package / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
