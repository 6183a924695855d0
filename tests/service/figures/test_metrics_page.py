"""The operator's page names every metric of `/metrics`."""

import re
from pathlib import Path

from tools.public_surface import metric_names

PAGE = Path(__file__).parents[3] / "docs" / "operate.md"


def test_the_page_names_every_metric() -> None:
    on_page = {
        name.removesuffix("_total").removesuffix("_bucket")
        for name in re.findall(r"coadapt_[a-z0-9_]+", PAGE.read_text(encoding="utf-8"))
    }
    assert set(metric_names()) - on_page == set()


def test_the_page_names_no_metric_that_is_gone() -> None:
    on_page = {
        name.removesuffix("_total").removesuffix("_bucket")
        for name in re.findall(
            r"`(coadapt_[a-z0-9_]+)", PAGE.read_text(encoding="utf-8")
        )
    }
    assert on_page - set(metric_names()) == set()
