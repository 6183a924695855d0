"""`coadapt up --executor kubernetes` in a process of its own, with the rights that the deployment grants."""

import subprocess

from tests.cli.live_cluster import COMMAND, LiveCluster, until
from tests.executors.kubernetes.site import KubernetesSite


class LiveOnKubernetes(LiveCluster):
    """A scheduler over the pods of `site`."""

    def __init__(self, site: KubernetesSite) -> None:
        super().__init__(site.folder)
        self.site = site

    def up(self, slots: int = 2, *, round_s: int = 1, in_place: bool = True) -> None:
        port = [] if (self.state / "connection.json").exists() else ["--port", "0"]
        timing = ["--round", str(round_s), "--reaction", "0.1", "--settle", "0", "--grace", "5"]
        options = {**self.site.options(), "slots": slots}
        given = [f"--executor-option={name}={value}" for name, value in options.items()]
        arguments = ["up", "--executor", "kubernetes", "--state", str(self.state), "--policy", self.policy]
        arguments += [*timing, *port, *given, "--in-place" if in_place else "--no-in-place"]
        with (self.folder / "up.log").open("ab") as log:
            self._process = subprocess.Popen([*COMMAND, *arguments], stdout=log, stderr=log)
        until(self._answers, f"the scheduler answers: {(self.folder / 'up.log').read_text()}")
