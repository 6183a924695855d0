"""The directory in which a job's processes say that they save their state on SIGTERM, and that they did.

Each is a file named by its process id. So a launcher asks the training process itself: a shell, `conda run`
or torchrun in between may pass nothing on, or die first and leave it behind; and it hears how that one ended.
"""

# Scripts write here, and anything may stand here: names that are no numbers, pipes that never have an end.

from pathlib import Path

from coadapt.executors.processes.generation_dir import read_plain
from coadapt.executors.processes.job_processes import own_processes
from coadapt.model.contract_env import EXIT_STOPPED


def listening_processes(listeners: Path, checkpoints: Path) -> set[int]:
    """Return the ids of those who listen and live, of the job of which this process is the launcher."""
    names = [entry.name for entry in listeners.iterdir()] if listeners.is_dir() else []
    announced = {int(name) for name in names if name.isascii() and name.isdecimal()}
    return announced & own_processes(checkpoints) if announced else announced


def state_was_saved(listeners: Path) -> bool:
    """Return whether one of them saved its state to end, whatever those above it report."""
    if not listeners.is_dir():
        return False
    return any(
        read_plain(entry) == str(EXIT_STOPPED).encode() for entry in listeners.iterdir()
    )
