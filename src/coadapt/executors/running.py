"""A generation that lives, as the executor sees it, and how it is found again on disk."""

import subprocess
from dataclasses import dataclass

from coadapt.core.events import Outcome
from coadapt.executors.generation_dir import Fate, GenerationDir, JobDir
from coadapt.executors.job_processes import kill_marked
from coadapt.executors.seating import Seating, Slots, seating_of, union
from coadapt.model.rescale import CAPABLE_FILE
from coadapt.runtime.ports import Post


@dataclass(slots=True, kw_only=True)
class Running:
    """A generation whose launcher lives, or died unnoticed. `process` is None if a predecessor started it.

    former: of the generation that it follows in place. held: the slots that it takes, and until it is started
    those of `former` as well. kept: why the replicas of `former` train on under its number, None if not.
    """

    directory: GenerationDir
    seating: Seating
    held: Slots
    former: Seating | None = None
    kept: str | None = None
    process: "subprocess.Popen[bytes] | None" = None
    post: Post | None = None
    started: bool = False
    announced: bool = False

    @property
    def root(self) -> GenerationDir:
        return self.directory.job.generation(self.seating.root)

    def changes_in_place(self) -> bool:
        """Return whether the replicas follow a Resize, now or once they have followed the one before."""
        capable = (self.root.switchboard / CAPABLE_FILE).exists()
        return capable and not self.directory.stop_file.exists()

    def look(self) -> None:
        """Note that it has started, or that the replicas of before train on under its number."""
        if self.started:
            return
        if self.former is not None and (why := self.directory.kept()) is not None:
            self.kept, self.seating = why, self.former
        elif not self.directory.started_file.exists():
            return
        self.started = True
        self.held = self.seating.slots

    def fate(self) -> Fate | None:
        """Return how it ended, None while it lives; its launcher is gone then."""
        fate = self.directory.fate() or self._settle()
        if fate is not None and self.process is not None:
            self.process.wait()
        return fate

    def _settle(self) -> Fate | None:
        """If the launcher died without a word, end what it left behind and write that it is lost.

        If it had ended before it could take this generation up, what it wrote for the root counts.
        """
        if self.process is not None and self.process.poll() is None:
            return None
        job = self.directory.job
        with job.lock() as held:
            if not held:
                return None
            fate = self.directory.fate() or self.root.fate()
            if fate is None:
                count = kill_marked(job.checkpoints)
                fate = Fate(
                    outcome=Outcome.LOST, detail=f"its launcher died; ended {count} remaining processes"
                )
            self.directory.write_fate(fate)
            return fate


def found(job: JobDir) -> Running | None:
    """Return the generation of a job that an executor before left unsettled, if there is one."""
    newest: GenerationDir | None = None
    ordered: list[tuple[GenerationDir, Seating]] = []
    for directory in reversed(job.generations()):
        if newest is None and directory.fate() is not None:
            return None
        order, kept = directory.order(), directory.kept()
        if newest is None and (order is not None or kept is not None):
            newest = directory
        if order is not None and kept is None:
            ordered.append((directory, seating_of(order, directory.number)))
            if ordered[-1][1].root == directory.number or len(ordered) == 2:
                break
    if newest is None or not ordered:
        return None
    seating, former = ordered[0][1], ordered[-1][1]
    if newest != ordered[0][0]:
        former = seating
    running = Running(
        directory=newest, seating=seating, former=former, held=union(seating.slots, former.slots)
    )
    if newest.number != seating.root:
        # The executor may have died just before it could tell the launcher.
        running.root.write_successor(newest.number)
    return running
