"""Offers from the command line, and prices and availability from files."""

# An offer is written `NAME=GPUSxPRICE[:TYPE][,key=value...]`: GPUs of a node, its price
# for an hour, and keys: most, least, market, provision, billing, hazard, notice,
# prices, available. Prices are a CSV with the columns `at` (s) and `price`;
# availability is a CSV with `at` and `nodes`, or a JSON file with `data` (0, 1, ...
# nodes at each gap) and `metadata.gap_seconds`, the form of the public traces of spot
# availability.

import csv
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

from coadapt.model import DEFAULT_GPU_TYPE, InputError
from coadapt.model.offer import Market, Offer
from coadapt.sim.market.terms import OfferTerms

ALLOWED = (
    "NAME=GPUSxPRICE[:TYPE][,key=value,...], such as "
    "spot=4x3.67:v100,market=spot,most=16,hazard=0.2,notice=120"
)
_HEAD = re.compile(r"([\w.-]{1,40})=([1-9]\d{0,2})x([\d.]{1,12})(?::([\w.-]{1,40}))?")
_NUMBERS = ("most", "least", "provision", "billing", "hazard", "notice")
_KEYS = (*_NUMBERS, "market", "prices", "available")
# Nodes of an offer that does not say how many there are.
MOST = 16
NODES_MAX = 9_999


def parse_offer(text: str) -> OfferTerms:
    """Return the offer that `text` describes; files that it names are read.

    Raises InputError that names the key, its value and what is allowed.
    """
    head, *rest = text.split(",")
    match = _HEAD.fullmatch(head.strip())
    if match is None:
        raise InputError("--offer", text, ALLOWED)
    keys: dict[str, str] = {}
    for part in rest:
        key, equals, value = part.strip().partition("=")
        if key not in _KEYS or not equals or key in keys:
            raise InputError(
                "--offer", part.strip(), f"each once of {', '.join(_KEYS)}"
            )
        keys[key] = value
    numbers = {key: _number(key, keys[key]) for key in _NUMBERS if key in keys}
    most = numbers.get("most", float(MOST))
    for key in ("most", "least"):
        count = numbers.get(key, 0.0)
        if count != int(count) or count > NODES_MAX:
            raise InputError(f"--offer, {key}", keys[key], f"0 to {NODES_MAX} nodes")
    market = keys.get("market", Market.ON_DEMAND.value)
    if market not in set(Market):
        raise InputError("--offer, market", market, ", ".join(Market))
    try:
        offer = Offer(
            id=match[1],
            num_gpus=int(match[2]),
            price_per_h=_number("price", match[3]),
            gpu_type=match[4] or DEFAULT_GPU_TYPE,
            market=Market(market),
            provision_s=numbers.get("provision", 0.0),
            billing_s=numbers.get("billing", 0.0),
            least=int(numbers.get("least", 0)),
            most=int(most),
        )
        return OfferTerms(
            offer=offer,
            hazard_per_h=numbers.get("hazard", 0.0),
            notice_s=numbers.get("notice"),
            prices=read_prices(Path(keys["prices"])) if "prices" in keys else (),
            available=(
                read_availability(Path(keys["available"]))
                if "available" in keys
                else ()
            ),
        )
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError("--offer", text, str(error)) from error


def read_prices(path: Path) -> tuple[tuple[float, float], ...]:
    """Return (instant, price of a node for an hour) from a CSV. Raises InputError."""
    return tuple(_rows(path, "price"))


def read_availability(path: Path) -> tuple[tuple[float, int], ...]:
    """Return (instant, nodes that can be had), from a CSV or JSON. Raises
    InputError.
    """
    if path.suffix == ".json":
        return _changes(_read_gaps(path))
    return _changes([(at, int(count)) for at, count in _rows(path, "nodes")])


def _changes(steps: list[tuple[float, int]]) -> tuple[tuple[float, int], ...]:
    """Return the steps that change something."""
    found: list[tuple[float, int]] = []
    for at, count in steps:
        if not found or found[-1][1] != count:
            found.append((at, count))
    return tuple(found)


def _read_gaps(path: Path) -> list[tuple[float, int]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        gap_s = float(content["metadata"]["gap_seconds"])
        counts = [int(each) for each in content["data"]]
    except OSError as error:
        raise InputError(
            "available", str(path), f"a file ({error.strerror})"
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        allowed = "JSON with data, a list of counts, and metadata.gap_seconds"
        raise InputError("available", str(path), allowed) from error
    if not gap_s > 0.0 or min(counts, default=0) < 0:
        raise InputError("available", str(path), "a gap > 0 and counts >= 0")
    return [(index * gap_s, count) for index, count in enumerate(counts)]


def _rows(path: Path, column: str) -> list[tuple[float, float]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if not {"at", column} <= set(reader.fieldnames or ()):
                columns = f"a CSV with the columns at and {column}"
                raise InputError(column, str(path), columns)
            return [_row(path, row, column) for row in reader]
    except OSError as error:
        raise InputError(column, str(path), f"a file ({error.strerror})") from error


def _row(path: Path, row: Mapping[str, str], column: str) -> tuple[float, float]:
    try:
        at = float(row["at"])
        value = float(row[column])
    except (TypeError, ValueError):
        allowed = f"numbers in the columns at and {column}"
        raise InputError(str(path), dict(row), allowed) from None
    if not (math.isfinite(at) and math.isfinite(value) and value >= 0.0):
        raise InputError(str(path), dict(row), f"finite numbers, {column} >= 0")
    return at, value


def _number(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0.0):
        raise InputError(f"--offer, {key}", text, "a number >= 0")
    return value
