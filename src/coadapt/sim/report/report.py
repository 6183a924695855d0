"""The report page: one HTML file that works offline, for simulations and for live runs
alike.
"""

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from coadapt.durable import write_whole
from coadapt.model import InputError
from coadapt.sim.report.data import Json, ReportRun, run_values

__all__ = ["ReportRun", "render_page", "render_report", "write_report"]

PAGE = resources.files("coadapt.sim.report") / "page"


def write_report(
    path: Path | str, runs: Sequence[ReportRun], title: str = "Coadapt report"
) -> None:
    """Write the page for `runs` to `path`, whole or not at all. Raises InputError
    without plotly.
    """
    write_whole(Path(path), render_report(runs, title))


def render_report(runs: Sequence[ReportRun], title: str = "Coadapt report") -> str:
    """Return the page as text. Names and sentences reach it only as escaped data, never
    as markup.
    """
    return render_page(
        PAGE, ("page.js",), title, {"runs": [run_values(run) for run in runs]}
    )


def render_page(
    folder: Traversable, scripts: Sequence[str], title: str, values: Mapping[str, Json]
) -> str:
    """Return `folder`/page.html with the style, plotly, `values` and scripts filled in.

    The scripts of the folder come behind those for numbers and charts, which all pages
    share.
    Raises InputError without plotly.
    """
    # `<` never stands in the data, so no text of a user can close the script element.
    data = json.dumps(
        {"title": title, **values},
        allow_nan=False,
        separators=(",", ":"),
        ensure_ascii=False,
    )
    shared = [PAGE / "format.js", PAGE / "charts.js"]
    fills = {
        "title": escape(title),
        "style": (PAGE / "page.css").read_text(encoding="utf-8"),
        "plotly": plotly_source(),
        "data": data.replace("<", "\\u003c"),
        "script": "".join(
            part.read_text(encoding="utf-8")
            for part in (*shared, *(folder / name for name in scripts))
        ),
    }
    head, *rest = (folder / "page.html").read_text(encoding="utf-8").split("{{")
    return head + "".join(
        fills[name] + tail for name, tail in (part.split("}}", 1) for part in rest)
    )


def plotly_source() -> str:
    """Return plotly's script. Raises InputError without plotly."""
    try:
        package = resources.files("plotly")
    except ModuleNotFoundError:
        raise InputError(
            "report", "plotly is not installed", "pip install 'coadapt[report]'"
        ) from None
    return (package / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
