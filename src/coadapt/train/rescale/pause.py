"""How long a change in place kept training waiting, and where that time went."""

import time
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Seconds between the end of the last step before a change and the end of the first
    one after it.

    agree: until all replicas had agreed. destroy: what the replicas hand over within
    the old group, and its end. form: the new group. transfer: state to joining
    replicas, and the batch. wrap: the model for the new group. first_step: until the
    first step was done.
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
    """Takes the marks of one change. Wall clock: joining and staying replicas have it
    in common.
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
        """Book seconds that passed before this replica had a clock."""
        self._parts[f"{part}_s"] = self._parts.get(f"{part}_s", 0.0) + max(seconds, 0.0)

    def pause(self) -> Pause:
        return Pause(**self._parts)
