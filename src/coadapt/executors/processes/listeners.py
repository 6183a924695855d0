"""The directory in which a job's processes say that they save their state on SIGTERM, and that they did.

Each is a file named by its process id. So a launcher asks the training process itself: a shell, `conda run`
or torchrun in between may pass nothing on, or die first and leave it behind; and it hears how that one ended.
"""

from pathlib import Path

from coadapt.executors.processes.job_processes import marked_processes
from coadapt.model.contract_env import EXIT_STOPPED


def listening_processes(listeners: Path, checkpoints: Path) -> set[int]:
    """Return the ids of those who listen, live, and carry the mark `checkpoints`."""
    announced = {int(entry.name) for entry in listeners.iterdir()} if listeners.is_dir() else set()
    return announced.intersection(marked_processes(checkpoints)) if announced else announced


def state_was_saved(listeners: Path) -> bool:
    """Return whether one of them saved its state to end, whatever those above it report."""
    if not listeners.is_dir():
        return False
    return any(entry.read_text() == str(EXIT_STOPPED) for entry in listeners.iterdir())
