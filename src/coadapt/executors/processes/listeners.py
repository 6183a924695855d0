"""The directory in which a job's processes say that they save their state on SIGTERM,
and that they did.

Each is a file named by its process id. So a launcher asks the training process itself:
a shell, `conda run` or torchrun in between may pass nothing on, or die first and leave
it behind; and it hears how that one ended.
"""

# Scripts write here, and anything may stand here: names that are no numbers, pipes that
# never have an end.
#
# A file says one of these. Nothing: its process listens. "training MEMBER": it listens,
# and coadapt.train has begun in it; MEMBER is the replica by name. "ended MEMBER": its
# training is over. "failed MEMBER": an exception ended it. "75": it saved its state to
# end. So a process of coadapt.train that was killed, or whose error `;`, `|| true` or a
# wrapper hides, is one whose file does not say that it ended. A script may start a
# process that trains again in place of one that failed: of each replica the last word
# counts.

from coadapt.executors.processes.job_processes import own_processes
from coadapt.executors.processes.records.own_files import OwnFiles, names_in
from coadapt.model.contract_env import (
    EXIT_STOPPED,
    LISTENER_ENDED,
    LISTENER_WORDS,
)


def listening_processes(own: OwnFiles) -> set[int]:
    """Return the ids of live processes that listen, of the job that this process is the
    launcher of.
    """
    names = names_in(own.listeners)
    announced = {int(name) for name in names if name.isascii() and name.isdecimal()}
    return (
        announced & own_processes(own.job / "checkpoints") if announced else announced
    )


def state_was_saved(own: OwnFiles) -> bool:
    """Return whether one of them saved its state to end, whatever those above it
    report.
    """
    return any(text == str(EXIT_STOPPED) for _, text in own.said().values())


def left_without_a_word(own: OwnFiles) -> set[str]:
    """Return the replicas whose last process of coadapt.train did not say that it
    ended, by name.
    """
    last: dict[str, tuple[int, str]] = {}
    for at, text in own.said().values():
        word, _, member = text.partition(" ")
        if word in LISTENER_WORDS:
            last[member] = max(last.get(member, (0, "")), (at, word))
    return {member for member, (_, word) in last.items() if word != LISTENER_ENDED}


def trainers(own: OwnFiles) -> set[str]:
    """Return the replicas in which coadapt.train has begun, by name."""
    said = (text.partition(" ") for _, text in own.said().values())
    return {member for word, _, member in said if word in LISTENER_WORDS}
