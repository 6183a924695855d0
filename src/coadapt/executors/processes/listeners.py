"""The directory in which a job's processes note that they save their state on SIGTERM,
and that they have saved it.

Each process has a file named by its process id. So a launcher can send SIGTERM to the
training process itself, and learn how it ended. A shell, `conda run` or torchrun in
between may not pass on the signal, or may die first.
"""

# Scripts can write here, so anything may be here: names that are not numbers, or pipes
# that never end.
#
# The content of a file is one of these. Empty: the process listens. "training MEMBER":
# the process listens, and coadapt.train has begun in it; MEMBER is the replica's name.
# "ended MEMBER": the training is over. "failed MEMBER": an exception ended the
# training. "75": the process saved its state in order to end.
#
# So if the file of a process of coadapt.train does not have "ended", the process was
# killed, or `;`, `|| true` or a wrapper hides its error. A script may replace a failed
# process by another one that trains again, so the last file of each replica counts.

from coadapt.executors.processes.job_processes import own_processes
from coadapt.executors.processes.records.own_files import OwnFiles, names_in
from coadapt.model.contract_env import (
    EXIT_STOPPED,
    LISTENER_ENDED,
    LISTENER_WORDS,
)


def listening_processes(own: OwnFiles) -> set[int]:
    """Return the ids of live processes that listen, of the job whose launcher this
    process is.
    """
    names = names_in(own.listeners)
    announced = {int(name) for name in names if name.isascii() and name.isdecimal()}
    return (
        announced & own_processes(own.job / "checkpoints") if announced else announced
    )


def state_was_saved(own: OwnFiles) -> bool:
    """Return whether a process saved its state in order to end, whatever the processes
    above it report.
    """
    return any(text == str(EXIT_STOPPED) for _, text in own.said().values())


def left_without_a_word(own: OwnFiles) -> set[str]:
    """Return the names of the replicas whose last process of coadapt.train has not
    noted that it ended.
    """
    last: dict[str, tuple[int, str]] = {}
    for at, text in own.said().values():
        word, _, member = text.partition(" ")
        if word in LISTENER_WORDS:
            last[member] = max(last.get(member, (0, "")), (at, word))
    return {member for member, (_, word) in last.items() if word != LISTENER_ENDED}


def trainers(own: OwnFiles) -> set[str]:
    """Return the names of the replicas in which coadapt.train has begun."""
    said = (text.partition(" ") for _, text in own.said().values())
    return {member for word, _, member in said if word in LISTENER_WORDS}
