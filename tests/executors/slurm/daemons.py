"""A Slurm of several nodes that are all this machine: daemons started by hand,
everything in one folder.

No systemd, no cgroups, no root: munged, slurmctld and slurmd run as whoever runs the
tests. The GPUs are devices that every Linux has: Slurm counts them, nobody opens one.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

from tests.ports import free_ports

NEEDED = ("munged", "slurmctld", "slurmd", "srun")
HOW_TO_GET = (
    "no Slurm here (apt-get install slurm-wlm munge), or no network but loopback, "
    "where it finds no address"
)
PATIENCE_S = 60.0
LOOK_S = 0.05
KEY_BYTES = 1024
NODE_MEMORY_MB = 2000
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random")

CONF = """\
ClusterName=coadapt
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={sockets}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={sockets}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldTimeout=10
SlurmdTimeout={slurmd_timeout_s}
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,batch_sched_delay=0,defer_batch
SchedulerType=sched/backfill
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
KillWait=5
OverTimeLimit=0
GresTypes=gpu
"""
MORE = "RealMemory={memory} Gres=gpu:a100:{gpus}"
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} "
    "{more}\n"
)
PARTITIONS = """\
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=20
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF
"""


def missing() -> list[str]:
    """Return what Slurm lacks here: daemons and commands of it, or an address."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
    absent = [name for name in NEEDED if shutil.which(name, path=path) is None]
    try:
        # As its daemons ask: where there is no address but loopback, that one is not
        # found, either.
        socket.getaddrinfo(
            "127.0.0.1", 0, socket.AF_INET, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG
        )
    except socket.gaierror:
        absent.append("an address")
    return absent


@dataclass
class SlurmCluster:
    """`names`: of the nodes; each has so many GPUs and CPUs, as far as Slurm knows.

    `sockets`: where Unix sockets are, munged's and slurmd's: wherever `folder` is, a
    path of theirs may have 107 characters.
    """

    folder: Path
    names: Sequence[str]
    gpus: int = 2
    cpus: int = 4
    slurmd_timeout_s: int = 10
    daemons: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    sockets: Path = field(
        default_factory=lambda: Path(mkdtemp(prefix="slurm-", dir="/tmp"))
    )

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def envs(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.conf)}

    def start(self) -> None:
        """Start all daemons; wait until every node is idle. Where that fails, none is
        left behind.
        """
        try:
            self._start_all()
        except BaseException:
            self._end_daemons()
            raise

    def _start_all(self) -> None:
        self._write()
        self.start_munged()
        self.start_controller()
        for name in self.names:
            self.start_node(name)
        self._wait_for(
            "the nodes", lambda: self.states() == dict.fromkeys(self.names, "idle")
        )

    def start_munged(self) -> None:
        munge = [
            f"--{name}={self.sockets}/munge.{suffix}" for name, suffix in MUNGE_FILES
        ]
        self._start("munged", "munged", "--foreground", "--force", *munge)
        self._wait_for("munged", (self.sockets / "munge.socket").exists)

    def start_controller(self) -> None:
        self._start("slurmctld", "slurmctld", "-D", "-f", str(self.conf))
        self._wait_for(
            "slurmctld", lambda: self.call("scontrol", "ping").returncode == 0
        )

    def start_node(self, name: str) -> None:
        self._start(name, "slurmd", "-D", "-N", name, "-f", str(self.conf))

    def kill(self, daemon: str) -> None:
        """Kill -9 a daemon: `slurmctld`, `munged` or a node's."""
        process = self.daemons.pop(daemon)
        process.kill()
        process.wait()

    def clear(self) -> None:
        """End all jobs; come back once they are gone."""
        self.call("scancel", "--me")
        self._wait_for(
            "the jobs' ends", lambda: not self.call("squeue", "-h").stdout.strip()
        )

    def stop(self) -> None:
        """End all jobs, then all daemons."""
        if self.daemons.keys() >= {"munged", "slurmctld"}:
            with suppress(AssertionError):
                self.clear()
        self._end_daemons()

    def _end_daemons(self) -> None:
        for process in reversed(self.daemons.values()):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
        shutil.rmtree(self.sockets, ignore_errors=True)

    def call(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run one of Slurm's commands on this cluster."""
        return subprocess.run(
            command, env=self.envs, capture_output=True, text=True, check=False
        )

    def states(self) -> dict[str, str]:
        lines = self.call(
            "sinfo", "-h", "-N", "-p", "main", "-o", "%N %t"
        ).stdout.splitlines()
        return dict(line.split() for line in lines)

    def _write(self) -> None:
        (self.folder / "state").mkdir(parents=True)
        for name in self.names:
            (self.sockets / f"spool-{name}").mkdir()
        key = self.sockets / "munge.key"
        key.write_bytes(os.urandom(KEY_BYTES))
        key.chmod(0o600)
        ports = iter(free_ports(len(self.names) + 1))
        host = socket.gethostname().partition(".")[0]
        text = CONF.format(
            host=host,
            port=next(ports),
            user=pwd.getpwuid(os.getuid()).pw_name,
            folder=self.folder,
            sockets=self.sockets,
            slurmd_timeout_s=self.slurmd_timeout_s,
        )
        gres = "AutoDetect=off\n"
        for name in self.names:
            text += NODE.format(
                name=name,
                host=host,
                port=next(ports),
                cpus=self.cpus,
                more=MORE.format(gpus=self.gpus, memory=NODE_MEMORY_MB),
            )
            for device in DEVICES[: self.gpus]:
                gres += f"NodeName={name} Name=gpu Type=a100 File={device}\n"
        (self.folder / "gres.conf").write_text(gres)
        self.conf.write_text(text + PARTITIONS)

    def _start(self, name: str, program: str, *arguments: str) -> None:
        path = shutil.which(program) or f"/usr/sbin/{program}"
        with open(self.folder / f"{name}.out", "ab") as out:
            self.daemons[name] = subprocess.Popen(
                [path, *arguments],
                env=self.envs,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def _wait_for(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            ended = [
                name
                for name, process in self.daemons.items()
                if process.poll() is not None
            ]
            said = [(self.folder / f"{name}.out").read_text()[-1000:] for name in ended]
            assert not ended, f"{what} of Slurm: {ended} ended: {said}"
            assert time.monotonic() < deadline, (
                f"{what} of Slurm: not within {PATIENCE_S:g} s"
            )
            time.sleep(LOOK_S)


MUNGE_FILES = (
    ("key-file", "key"),
    ("socket", "socket"),
    ("pid-file", "pid"),
    ("log-file", "log"),
    ("seed-file", "seed"),
)
