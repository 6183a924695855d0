"""A job over two nodes, its checkpoints in an object store: killed, it goes on from
there on one of them.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

from coadapt.core.commands import Start
from coadapt.core.events import Outcome
from coadapt.executors.processes.records.generation_dir import JobDir
from coadapt.model import Allocation, BatchLimits
from coadapt.model.checkpoint_url import below
from coadapt.objects import ObjectFolder
from coadapt.runtime.ports import LiveExecutor
from tests.contracts.executor_contract import NODES, Inbox, exited, spec, started, until
from tests.train.rescale.test_elastic import assert_same_parameters
from tests.train.toy import Toy

# What a driver of S3 looks for; on a real cluster the operator lets them through, or
# nodes have them.
ENVS = (
    "AWS_ENDPOINT_URL",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_DEFAULT_REGION",
    "FSSPEC_S3",
)
SCRIPT = """\
import os
from tests.train.toy import Toy, run_toy
run_toy(Toy(checkpoints=os.environ['COADAPT_CHECKPOINT_URL'], **{options!r}))
"""

only_with_engines = pytest.mark.skipif(
    "COADAPT_ENGINES" not in os.environ,
    reason="takes long, and shows more of the engine than of us: `make engines-test` "
    "runs it",
)


class Site(Protocol):
    folder: Path
    state_dir: Path

    def executor(self) -> LiveExecutor: ...
    def kill_replicas(self, job: str) -> None: ...


def goes_on_from_an_object_store(site: Site, bucket: str) -> None:
    """The state directory holds no checkpoint at any time; the parameters end as in a
    plain loop.
    """
    # Long enough to be killed on the way, however busy the machine is: `fast` ends the
    # waiting.
    toy = Toy(
        folder=str(site.folder), num_epochs=6, pace_s=0.5, checkpoint_every_s=1e-9
    )
    names = ("folder", "num_epochs", "pace_s", "checkpoint_every_s")
    script = site.folder / "script.py"
    script.write_text(
        SCRIPT.format(options={name: getattr(toy, name) for name in names})
    )
    given = spec(f"exec {sys.executable} {script}", site.folder)
    envs = {name: os.environ[name] for name in ENVS}
    envs |= {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    assert given.launch is not None
    launch = replace(given.launch, envs=tuple(envs.items()), checkpoints=bucket)
    batch = BatchLimits(initial=toy.batch_size)
    terms = {"job": "a", "spec": replace(given, launch=launch, batch=batch)}
    executor = site.executor()
    inbox = Inbox()
    stored = ObjectFolder(below(bucket, "a"))
    both = Allocation(slots=tuple((node, 1) for node in NODES))
    executor.execute(Start(generation=1, allocation=both, **terms), inbox.post)
    inbox.wait(started("a", 1))
    until(lambda: _count(stored) > 1 or bool(inbox.events))
    assert _count(stored) > 1, inbox.events
    site.kill_replicas("a")
    inbox.wait(exited("a", 1, Outcome.LOST))
    (site.folder / "fast").touch()
    there = Allocation(slots=((NODES[1], 1),))
    executor.execute(Start(generation=2, allocation=there, **terms), inbox.post)
    inbox.wait(started("a", 2), exited("a", 2, Outcome.SUCCEEDED))
    assert_same_parameters(toy)
    # The last life is the one whose process began last; its first step is not the first
    # of all.
    lives = sorted(
        site.folder.glob("ids-0-*.jsonl"), key=lambda path: path.stat().st_ctime
    )
    assert json.loads(lives[-1].read_text().splitlines()[0])[:2] > [0, 0]
    assert list(JobDir.of(site.state_dir, "a").checkpoints.iterdir()) == []


def _count(stored: ObjectFolder) -> int:
    return sum(name.startswith("checkpoint-") for name in stored.names())
