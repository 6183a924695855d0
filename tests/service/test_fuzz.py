"""A few thousand of the inputs of tests/service/fuzz.py, over restarts."""

import logging
from pathlib import Path

import pytest

from tests.service.fuzz import Fuzzer


@pytest.mark.slow
def test_hostile_input_is_taken_or_refused_and_changes_nothing_else(
    tmp_path: Path,
) -> None:
    logging.disable(logging.WARNING)
    try:
        tally = Fuzzer(tmp_path, seed=7).run(2_000)
    finally:
        logging.disable(logging.NOTSET)
    assert (tally.inputs, tally.restarts) == (2_000, 2)
    assert tally.refused_files > 100
    assert tally.statuses[202] > 50
    assert tally.statuses[422] > 100
    assert tally.statuses[400] > 50
    assert tally.reports > 50
