"""The jobs of `coadapt demo`: what each is, when it arrives, and its two job files."""

import shlex
import sys
from dataclasses import dataclass

NUM_SLOTS = 4
BATCH = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoJob:
    """A job. arrives_s: after the first. fixed_gpus: what its user asks for under fifo.

    sample_s, link_s: seconds for a sample to arrive at a replica, and of the exchange
    for each replica but the first.
    """

    name: str
    about: str
    arrives_s: float
    fixed_gpus: int
    steps: int
    sample_s: float
    link_s: float = 0.0

    def file(self, *, elastic: bool) -> str:
        """Return the job file: 1 to all GPUs where `elastic`, else `fixed_gpus`."""
        command = [
            sys.executable, "-m", "coadapt.cli.demo.numpy_job",
            "--steps", str(self.steps), "--batch", str(BATCH),
            "--sample-s", str(self.sample_s), "--link-s", str(self.link_s),
        ]  # fmt: skip
        gpus = f"1..{NUM_SLOTS}" if elastic else str(self.fixed_gpus)
        return (
            f"name: {self.name}\n"
            f"run: exec {shlex.join(command)}\n"
            f"resources: {{gpus: {gpus}}}\n"
            f"batch: {{initial: {BATCH}}}\n"
            f"length: {{steps: {self.steps}}}\n"
            # The job's fit is over a few points: quicker than compiling for it.
            'envs: {NUMBA_DISABLE_JIT: "1"}\n'
        )


# A long job that scales; one whose user asks for two GPUs that it hardly uses; and two
# short ones that arrive while those hold all slots.
JOBS = (
    DemoJob(
        name="long",
        about="twice as fast on twice the GPUs",
        arrives_s=0.0,
        fixed_gpus=2,
        steps=180,
        sample_s=0.010,
    ),
    DemoJob(
        name="chatty",
        about="hardly faster on two: slow link",
        arrives_s=0.0,
        fixed_gpus=2,
        steps=180,
        sample_s=0.005,
        link_s=0.1,
    ),
    DemoJob(
        name="short-1",
        about="short, arrives at 8 s",
        arrives_s=8.0,
        fixed_gpus=1,
        steps=25,
        sample_s=0.010,
    ),
    DemoJob(
        name="short-2",
        about="short, arrives at 12 s",
        arrives_s=12.0,
        fixed_gpus=1,
        steps=25,
        sample_s=0.010,
    ),
)
