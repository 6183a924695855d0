"""`coadapt submit --sbatch`: one elastic job in a Slurm allocation of its own, without
a scheduler before.
"""

import json
import os
import secrets
import shlex
import sys
from pathlib import Path

from coadapt.cli.jobs import in_allocation
from coadapt.cli.state_dir import StateDir
from coadapt.durable import write_whole
from coadapt.executors.slurm.reach import check_slurm
from coadapt.executors.slurm.tools import SlurmError, SlurmTools
from coadapt.model import InputError
from coadapt.model.wire import Json

FOLDER = "sbatch"
JOB_FILE = "job.json"
NAME_BYTES = 4
PRIVATE_DIR = 0o700
REQUEUE = "--requeue"


def submit_by_sbatch(
    body: Json, state_dir: StateDir, options: list[str]
) -> tuple[str, Path]:
    """Return Slurm's id of the job, and the state directory that it will have. Raises
    InputError.

    options: of sbatch, which say what the allocation is.
    """
    assert isinstance(body, dict)
    for option in options:
        if not option.startswith("--"):
            raise InputError(
                "--sbatch-option",
                option,
                "a long option of sbatch, such as --gpus-per-node=4",
            )
    check_slurm()
    name = str(body["name"])
    folder = state_dir.path / FOLDER / secrets.token_hex(NAME_BYTES)
    folder.mkdir(mode=PRIVATE_DIR, parents=True)
    # Its environment may hold secrets: they stay out of the script, of which Slurm
    # keeps a copy.
    write_whole(folder / JOB_FILE, json.dumps(body))
    command = [sys.executable, "-m", in_allocation.__name__, str(folder)]
    if REQUEUE in options:
        command.append(REQUEUE)
    script = f"#!/bin/sh\nexec {shlex.join(command)}\n"
    fixed = (f"--job-name={name}", "--ntasks-per-node=1", "--no-kill")
    # As of any sbatch: the environment goes along, and the output lands in the
    # directory of today.
    tools = SlurmTools(envs=dict(os.environ), cwd=str(Path.cwd()))
    try:
        return tools.submit([*fixed, *options], script), folder
    except SlurmError as error:
        allowed = f"an allocation that Slurm grants; Slurm says: {error}"
        raise InputError("--sbatch-option", " ".join(options), allowed) from None
