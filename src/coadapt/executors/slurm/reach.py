"""Whether Slurm can be reached from here, what is missing if not, and by which address nodes reach us."""

import os
import socket

from coadapt.executors.slurm.tools import SlurmError, SlurmTools, missing_tools
from coadapt.model import InputError

# What a tool says, and what that means to whoever reads it.
MUNGE = "Slurm's authentication: munged does not run here, or has another key (systemctl start munge)"
CONFIGURATION = (
    "a configuration: SLURM_CONF names slurm.conf, else it is /etc/slurm/slurm.conf"
)
CONTROLLER = "a controller that answers: slurmctld is down, or not to be reached from here (scontrol ping)"
# Without munged its tools try again and again, and say nothing.
SILENCE = "an answer: munged does not run here (systemctl start munge), or slurmctld is far (scontrol ping)"
SIGNS = (
    (("munge", "authentication"), MUNGE),
    (("configuration source", "slurm.conf", "fetch_config"), CONFIGURATION),
    (("unable to contact", "connection refused", "connect failure"), CONTROLLER),
    (("timed out",), SILENCE),
)
# Whoever starts a scheduler waits for it.
FIRST_CALL_S = 8.0
ANY_PORT = 9  # nothing is sent: the kernel is asked for a route


def check_slurm() -> None:
    """Raises InputError that says what is missing here, and how to get it."""
    if missing := missing_tools():
        allowed = (
            f"a machine with Slurm's commands on PATH; missing: {', '.join(missing)}. A login node has them "
            "(perhaps after `module load slurm`); on Debian: apt-get install slurm-client munge"
        )
        raise InputError("--executor", "slurm", allowed)
    try:
        SlurmTools().call("sinfo", "-h", "-o", "%P", limit_s=FIRST_CALL_S)
    except SlurmError as error:
        raise InputError(
            "--executor", "slurm", f"{meaning(str(error))} (it says: {error})"
        ) from None


def meaning(said: str) -> str:
    """Return what is needed where a tool of Slurm's says this."""
    for signs, what in SIGNS:
        if any(sign in said.lower() for sign in signs):
            return what
    return "a Slurm that answers"


def own_address() -> str:
    """Return the address of this machine that lies towards the nodes; what its name stands for, if unsure."""
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
