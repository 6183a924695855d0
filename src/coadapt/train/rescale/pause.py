"""How long a change in place paused training, and how this time was spent."""

import time
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Seconds between the end of the last step before a change and the end of the first
    one after it.

    agree: until all replicas have agreed. destroy: the exchange of state within the old
    group, and the end of that group. form: forming the new group. transfer: sending the
    state to joining replicas, and the choice of the batch. wrap: wrapping the model for
    the new group. first_step: until the first step is done.
    """

    agree_s: float = 0.0
    destroy_s: float = 0.0
    form_s: float = 0.0
    transfer_s: float = 0.0
    wrap_s: float = 0.0
    first_step_s: float = 0.0

    @property
    def total_s(self) -> float:
        return sum(self.parts.values())

    @property
    def parts(self) -> dict[str, float]:
        """Return the seconds of each part, by its name in words."""
        return {
            part.name.removesuffix("_s").replace("_", " "): float(
                getattr(self, part.name)
            )
            for part in fields(self)
        }

    def __str__(self) -> str:
        parts = ", ".join(
            f"{name} {1e3 * seconds:.0f}" for name, seconds in self.parts.items()
        )
        return f"{self.total_s:.3f} s ({parts} ms)"


class PauseClock:
    """Collects the marks of one change. It uses the wall clock, which joining and
    staying replicas have in common.
    """

    def __init__(self, last_step_at: float) -> None:
        self._at = last_step_at
        self._parts: dict[str, float] = {}

    def mark(self, part: str) -> None:
        """`part` (a field of Pause, without `_s`) ends now."""
        now = time.time()
        self._parts[f"{part}_s"] = max(now - self._at, 0.0)
        self._at = now

    def add(self, part: str, seconds: float) -> None:
        """Add seconds to a part that passed before this replica had a clock."""
        self._parts[f"{part}_s"] = self._parts.get(f"{part}_s", 0.0) + max(seconds, 0.0)

    def pause(self) -> Pause:
        return Pause(**self._parts)
