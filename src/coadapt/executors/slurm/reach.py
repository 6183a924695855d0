"""Checks whether Slurm can be reached from here and what is missing if not, and finds
the address at which nodes reach this machine.
"""

import os
import socket

from coadapt.executors.slurm.sizing import HOLD
from coadapt.executors.slurm.terms import LEAVE_MARGIN_S, PoolTerms
from coadapt.executors.slurm.tools import (
    SlurmError,
    SlurmTools,
    missing_tools,
    seconds_of,
)
from coadapt.model import InputError

# Messages of Slurm's tools, and what each means for the user.
MUNGE = (
    "Slurm's authentication: munged does not run here, or has another key (systemctl "
    "start munge)"
)
CONFIGURATION = (
    "a configuration: SLURM_CONF names slurm.conf, else it is /etc/slurm/slurm.conf"
)
CONTROLLER = (
    "a controller that answers: slurmctld is down, or not to be reached from here "
    "(scontrol ping)"
)
# Without munged, Slurm's tools try again and again without a message.
SILENCE = (
    "an answer: munged does not run here (systemctl start munge), or slurmctld is "
    "far (scontrol ping)"
)
SIGNS = (
    (("munge", "authentication"), MUNGE),
    (("configuration source", "slurm.conf", "fetch_config"), CONFIGURATION),
    (("unable to contact", "connection refused", "connect failure"), CONTROLLER),
    (("timed out",), SILENCE),
)
# The start of a scheduler waits for it.
FIRST_CALL_S = 8.0
ANY_PORT = 9  # nothing is sent: the kernel only looks up a route


def check_slurm() -> None:
    """Raises InputError that says what is missing here, and how to get it."""
    if missing := missing_tools():
        allowed = (
            f"a machine with Slurm's commands on PATH; missing: "
            f"{', '.join(missing)}. A login node has them "
            "(perhaps after `module load slurm`); on Debian: apt-get install "
            "slurm-client munge"
        )
        raise InputError("--executor", "slurm", allowed)
    try:
        SlurmTools().call("sinfo", "-h", "-o", "%P", limit_s=FIRST_CALL_S)
    except SlurmError as error:
        raise InputError(
            "--executor", "slurm", f"{meaning(str(error))} (it says: {error})"
        ) from None


def check_time_limit(terms: PoolTerms) -> None:
    """Raise InputError if the time limit is so short that allocations would be over as
    they begin, as far as the limit is known.
    """
    if terms.allocation:
        return
    limit, where = _time_limit(terms)
    seconds = seconds_of(limit)
    if seconds is None or seconds > terms.leave_s:
        return
    grace_s = terms.leave_s - LEAVE_MARGIN_S
    allowed = (
        f"more than {terms.leave_s:.0f} s: nodes leave that long before the end of "
        f"their allocation "
        f"(--grace {grace_s:g} and {LEAVE_MARGIN_S:.0f} s); give a longer limit or a "
        f"shorter --grace"
    )
    raise InputError(f"executor slurm, {where}", limit, allowed)


def _time_limit(terms: PoolTerms) -> tuple[str, str]:
    """Return the time limit of an allocation in Slurm's words, "" if unknown, and where
    the limit is set.
    """
    partition = terms.request.partition
    given = {"time": terms.request.time_limit, "partition": partition}
    for option in terms.request.further:
        name, _, value = option.removeprefix("--").partition("=")
        if name in given and value:
            given[name] = value
    if given["time"]:
        return given["time"], "option time_limit"
    try:
        limits = SlurmTools().time_limits(given["partition"])
    except SlurmError:
        return "", ""
    if len(limits) != 1:  # several partitions, or none: Slurm chooses
        return "", ""
    ((default, longest),) = limits
    name = given["partition"] or "the default partition"
    known = default if seconds_of(default) is not None else longest
    return known, f"the time limit of {name}"


def check_terms(terms: PoolTerms) -> None:
    """Raise InputError, with Slurm's own message, if Slurm could never grant the
    request.
    """
    tools = SlurmTools()
    if terms.allocation:
        held = [job for job in tools.jobs("--me") if job.id == terms.allocation]
        if not held:
            ended = tools.ended(terms.allocation)
            what = f"it has ended ({ended})" if ended else "there is no such job"
            raise InputError(
                "executor slurm, option allocation",
                terms.allocation,
                f"the id of a running job of yours; {what}",
            )
        return
    try:
        tools.would_grant((f"--nodes={terms.nodes}", *terms.sbatch), HOLD)
    except SlurmError as error:
        raise InputError(
            "--executor",
            "slurm",
            f"an allocation that Slurm grants; sbatch --test-only says: {error}",
        ) from None


def meaning(said: str) -> str:
    """Return what the user needs to do if one of Slurm's tools prints this message."""
    for signs, what in SIGNS:
        if any(sign in said.lower() for sign in signs):
            return what
    return "a Slurm that answers"


def own_address() -> str:
    """Return the address of this machine on the route to the nodes. If that is not
    clear, the address of its name.
    """
    try:
        addresses = (
            SlurmTools()
            .call("sinfo", "-a", "-h", "-N", "-O", "NodeAddr:|")
            .replace("|", " ")
            .split()
        )
        for address in dict.fromkeys(addresses):
            try:
                family, _, _, _, target = socket.getaddrinfo(
                    address, ANY_PORT, type=socket.SOCK_DGRAM
                )[0]
                with socket.socket(family, socket.SOCK_DGRAM) as probe:
                    probe.connect(target)
                    return str(probe.getsockname()[0])
            except OSError:
                continue
    except SlurmError:
        pass
    return socket.gethostbyname(os.uname().nodename)
