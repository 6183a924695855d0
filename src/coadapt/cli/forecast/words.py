"""Estimates in words."""

import math
import time

from coadapt.sim.ahead.estimate import JobEstimate, Range
from coadapt.sim.ahead.roll import HORIZON_S

MINUTE_S = 60.0
HOUR_S = 3_600.0
DAY_S = 86_400.0


def span(seconds: float, ahead_s: float = math.inf) -> str:
    """Return `40 s`, `12 min`, `3.5 h`, `2.1 days`; `more than 14 days` beyond the
    horizon, or more than `ahead_s` where a forecast reaches no further.
    """
    if math.isinf(seconds):
        return f"more than {span(min(ahead_s, HORIZON_S))}"
    if seconds < 100.0:
        return f"{seconds:.0f} s"
    if seconds < 100.0 * MINUTE_S:
        return f"{seconds / MINUTE_S:.0f} min"
    if seconds < 2.0 * DAY_S:
        return f"{seconds / HOUR_S:.1f} h"
    days = seconds / DAY_S
    return f"{days:.0f} days" if seconds == HORIZON_S else f"{days:.1f} days"


def in_words(found: Range, ahead_s: float = math.inf) -> str:
    """Return `12 min (8 min to 20 min)`: the median, and where nine in ten are.

    ahead_s: see `span`.
    """
    low, median, high = (
        span(each, ahead_s) for each in (found.low, found.median, found.high)
    )
    return median if low == high else f"{median} ({low} to {high})"


def cost_in_words(found: Range | None, currency: str) -> str:
    """Return `12.40 EUR (10.10 to 15.00)`."""
    if found is None:
        return ""
    return f"{found.median:.2f} {currency} ({found.low:.2f} to {found.high:.2f})"


def clock(at: float) -> str:
    """Return an instant in local time; the day, too, where it is not today."""
    if math.isinf(at):
        return "later"
    then = time.localtime(at)
    today = time.localtime()
    form = "%H:%M" if then[:3] == today[:3] else "%d %b %H:%M"
    return time.strftime(form, then)


def sizes(found: JobEstimate) -> str:
    """Return `on 2 then 4 GPUs`."""
    changed = [
        size
        for place, size in enumerate(found.sizes)
        if place == 0 or size != found.sizes[place - 1]
    ]
    shown = changed[:3]
    more = " …" if len(changed) > len(shown) else ""
    noun = "GPU" if shown[-1:] == [1] else "GPUs"
    return f"on {' then '.join(map(str, shown))}{more} {noun}"


def sentence(found: JobEstimate, at: float, ahead_s: float = math.inf) -> str:
    """Return when a job starts and ends, in one sentence; at: now, s since 1970.

    ahead_s: see `span`.
    """
    ends = f"ends in about {in_words(found.ends, ahead_s)}, at {clock(at + found.ends.median)}"
    if found.starts.high <= 1.0:
        return f"runs {sizes(found)}, {ends}"
    if math.isinf(found.starts.median):
        return f"does not start within {span(min(ahead_s, HORIZON_S))}"
    return f"starts in about {in_words(found.starts, ahead_s)}, {sizes(found)}, {ends}"


def about_deadline(found: JobEstimate, at: float, due_at: float) -> str:
    """Return whether a job ends before its deadline, in a sentence; at, due_at: now and
    the deadline, s since 1970.
    """
    left_s = due_at - at
    when = f"Its deadline, {clock(due_at)},"
    if left_s <= 0.0:
        return f"{when} passed {span(-left_s)} ago."
    if found.ends.low > left_s:
        late = span(found.ends.median - left_s)
        late = late if math.isinf(found.ends.median) else f"about {late}"
        return f"{when} will be missed, by {late}."
    if found.ends.high > left_s:
        return f"{when} may be missed."
    return f"{when} will be kept."
