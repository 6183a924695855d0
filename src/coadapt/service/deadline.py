"""Deadlines as users write them: a time after the submission, or an instant."""

import re
from datetime import datetime

from coadapt.model import InputError
from coadapt.service.limits import SECONDS_MAX

UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
DEADLINE_ALLOWED = (
    "a time after submission such as 90m, 2h or 1d12h, or an instant such as "
    "2026-12-01T18:00:00+01:00"
)


def deadline_at(text: str, at: float) -> float:
    """Return the instant (s since 1970) that `text` means for a job submitted at `at`.
    Raises InputError.

    An instant without an offset is in the time zone of the scheduler.
    """
    if len(text) <= 100 and re.fullmatch(r"(?:[0-9]+(?:\.[0-9]+)?[smhd])+", text):
        parts = re.findall(r"([0-9.]+)([smhd])", text)
        after_s = sum(float(number) * UNITS_S[unit] for number, unit in parts)
        if not 0.0 < after_s <= SECONDS_MAX:
            raise InputError(
                "deadline",
                text,
                f"a time after submission > 0, at most {SECONDS_MAX:g} s",
            )
        return at + after_s
    try:
        instant = datetime.fromisoformat(text[:100]).astimezone().timestamp()
    except (ValueError, OverflowError, OSError):
        raise InputError("deadline", text, DEADLINE_ALLOWED) from None
    if instant <= at:
        raise InputError("deadline", text, "a time in the future")
    return instant
