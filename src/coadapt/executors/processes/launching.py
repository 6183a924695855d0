"""Writes the order for a generation's launcher, and starts the launcher."""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from functools import partial

from coadapt.core.commands import Rescale, Start
from coadapt.executors.host import Host
from coadapt.executors.processes import launcher
from coadapt.executors.processes.cluster import Cluster
from coadapt.executors.processes.forked_launchers import ForkServers
from coadapt.executors.processes.rank_map import RankMap
from coadapt.executors.processes.records.generation_dir import (
    GenerationDir,
    JobDir,
    LaunchSettings,
)
from coadapt.executors.processes.records.taking_over import move_records
from coadapt.executors.processes.replica_env import launch_order
from coadapt.executors.processes.spare_replica import Process
from coadapt.model import JobId
from coadapt.model.contract_env import (
    ENV_CHECKPOINT_DIR,
    ENV_TOKEN,
    ENV_URL,
    passed_envs,
)
from coadapt.runtime.disk_reserve import free_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Launching:
    """What starting a launcher needs. pass_env: further variables of the scheduler's
    environment that jobs get.
    """

    cluster: Cluster
    host: Host
    settings: LaunchSettings
    pass_env: frozenset[str]
    forks: ForkServers = field(default_factory=ForkServers)

    def job_dir(self, job: JobId) -> JobDir:
        return JobDir.of(self.host.state_dir, job)

    def write_order(self, command: Start | Rescale, rank_map: RankMap) -> GenerationDir:
        """Write the order. Return its directory. Raises ValueError if the job has no
        command, and OSError.
        """
        directory = self.job_dir(command.job).generation(command.generation)
        if directory.job.records.is_symlink():
            move_records(directory.job)
        directory.make_records()
        try:
            directory.own.make()
        except OSError as error:
            raise ValueError(f"could not be started: {error}") from None
        directory.write_order(
            launch_order(command, directory, self.cluster, rank_map, self.settings)
        )
        return directory

    def room(self) -> bool:
        """Return whether the disk has more free space than its reserve, so that a job
        may start.
        """
        try:
            free = free_bytes(self.host.state_dir)
        except OSError:  # the disk does not respond for a while
            return False
        return free > self.settings.disk_reserve_bytes

    def start_first(self, directory: GenerationDir) -> Process:
        """Start the launcher for a new order, as a fork if possible. Return its
        process. Raises OSError.
        """
        order = directory.order()
        if order is None:
            return self.start(directory)
        envs = self._envs(directory.job)
        return self.forks.launch(
            str(directory.path), order, envs, partial(self.start, directory)
        )

    def start(self, directory: GenerationDir) -> Process:
        """Start the launcher for the order in `directory`. Return its process. Raises
        OSError.
        """
        with open(directory.path / "launcher.log", "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", launcher.__name__, str(directory.path)],
                env=self._envs(directory.job),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _envs(self, job: JobDir) -> dict[str, str]:
        """Return a launcher's environment."""
        # The checkpoint directory is the mark by which job_processes.py finds the
        # launcher's descendants. The token is in the environment and not in the order's
        # file, which may end up in a backup.
        return {
            **passed_envs(os.environ, self.pass_env),
            ENV_CHECKPOINT_DIR: str(job.checkpoints),
            ENV_URL: self.host.url,
            ENV_TOKEN: self.host.job_token(job.path.name),
        }
