"""A change in place under way, as the launcher above the replicas sees it."""

import time
from dataclasses import dataclass, field

from coadapt.executors.generation_dir import GenerationDir, LaunchOrder
from coadapt.executors.replica import Replica
from coadapt.model.rescale import begun_file, done_file

# Training goes on while those who join prepare, so there is time; but the job can do nothing else meanwhile.
JOIN_LIMIT_S = 600.0
# Those who wait to join end when the others' first process does, perhaps a while before all of these have.
GONE_LIMIT_S = 30.0


@dataclass(slots=True, kw_only=True)
class Change:
    """From the replicas `old` to those of `directory`'s generation; `joiners` were started for it."""

    root: GenerationDir
    directory: GenerationDir
    order: LaunchOrder
    old: tuple[Replica, ...]
    joiners: list[Replica] = field(default_factory=list)
    began_at: float = field(default_factory=time.monotonic)
    gone_at: float | None = None

    @property
    def begun(self) -> bool:
        """Return whether the replicas act on it: from here on who ends may have left."""
        return (self.root.switchboard / begun_file(self.directory.number)).exists()

    @property
    def done(self) -> bool:
        """Return whether the new generation trains."""
        return (self.root.switchboard / done_file(self.directory.number)).exists()

    @property
    def complete(self) -> bool:
        """Return whether it trains, and those who left are gone."""
        members = () if self.order.roster is None else self.order.roster.members
        left = [replica for replica in self.old if replica.name not in members]
        return self.done and all(replica.code == 0 for replica in left)

    @property
    def old_are_gone(self) -> bool:
        return all(replica.code is not None for replica in self.old)

    @property
    def unneeded(self) -> list[Replica]:
        """Return those who wait for others that ended before the change could begin."""
        # In this order: whoever begins a change says so before it ends.
        return self.joiners if self.old_are_gone and not self.begun else []

    def hopeless(self) -> str:
        """Return why it will not come about although the old replicas train on, "" if it may."""
        if self.begun or self.old_are_gone:
            return ""
        now = time.monotonic()
        if self.gone_at is None and any(replica.code == 0 for replica in self.joiners):
            self.gone_at = now
        if self.gone_at is not None and now - self.gone_at > GONE_LIMIT_S:
            return "a replica that was to join has ended"
        if now - self.began_at > JOIN_LIMIT_S:
            return f"it did not come about within {JOIN_LIMIT_S:g} s"
        return ""
