"""In the allocation of `coadapt submit --sbatch`: a scheduler of its own, until its one
job has ended.

Started by Slurm as `python -m … FOLDER [--requeue]`; FOLDER is the scheduler's state
directory, with the job's description in it. Started again in the same folder, it goes
on from the job's checkpoint.
"""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from coadapt.cli.client import Client, RefusedError, UnreachableError, find_client
from coadapt.cli.exit_codes import EXIT_FAILED, EXIT_JOB_FAILED
from coadapt.cli.jobs.job_states import ENDED
from coadapt.executors.slurm.reach import own_address
from coadapt.executors.slurm.tools import SlurmError, SlurmTools

START_S = 60.0
LOOK_S = 1.0
ROUND_S = 15
# Of the output, after the job's end.
OUTPUT_S = 10.0
# With so little left, a job that was stopped will not start again here. See
# PoolTerms.leave_s.
TIME_IS_UP_S = 60.0
KEY = "the one job of this folder"


def main(folder: str, *flags: str) -> None:
    """Run the job to its end; never returns."""
    state = Path(folder)
    job = os.environ["SLURM_JOB_ID"]
    log = (state / "up.log").open("ab")
    scheduler = subprocess.Popen(
        _up(state, job), stdin=subprocess.DEVNULL, stdout=log, stderr=log
    )
    try:
        client = _client(state, scheduler)
        # Under the same key a second start of this script finds the first one's job.
        body = json.loads((state / "job.json").read_text())
        answer = client.post("/v1/jobs", body, {"Idempotency-Key": KEY})
        code = _follow(client, str(answer["id"]), job, requeue="--requeue" in flags)
    except (UnreachableError, RefusedError) as error:
        sys.stderr.write(f"error: {error}; see {state / 'up.log'}\n")
        code = EXIT_FAILED
    finally:
        scheduler.terminate()
        scheduler.wait()
    sys.exit(code)


def _up(state: Path, job: str) -> list[str]:
    tools = SlurmTools()
    options = [f"allocation={job}"]
    held = tools.gpus(job)
    if not any(gpus.count for gpus in held.values()):
        options.append(f"slots={os.environ.get('SLURM_CPUS_ON_NODE', '1')}")
    # Replicas on other nodes report over the network; on one machine nothing needs to
    # listen there.
    several = int(os.environ.get("SLURM_JOB_NUM_NODES", "1")) > 1
    host = ["--host", own_address(), "--expose"] if several else []
    given = [part for option in options for part in ("--executor-option", option)]
    verb = [
        "up",
        "--executor",
        "slurm",
        "--state",
        str(state),
        "--port",
        "0",
        "--round",
        str(ROUND_S),
    ]
    return [
        sys.executable,
        "-c",
        "from coadapt.cli.main import main; main()",
        *verb,
        *host,
        *given,
    ]


def _client(state: Path, scheduler: "subprocess.Popen[bytes]") -> Client:
    """Return a client once the scheduler answers and has nodes. Raises
    UnreachableError.
    """
    deadline = time.monotonic() + START_S
    while True:
        try:
            client = find_client(state)
            if client.get("/v1/cluster")["nodes"]:
                return client
        except UnreachableError:
            pass
        if scheduler.poll() is not None or time.monotonic() > deadline:
            raise UnreachableError("the scheduler in this allocation did not start")
        time.sleep(LOOK_S)


def _follow(client: Client, job: str, allocation: str, *, requeue: bool) -> int:
    """Show the job's log until it has ended, or the allocation's time is up; return an
    exit code.
    """
    from coadapt.cli.jobs.logs import show_log

    log = threading.Thread(
        target=show_log, args=(client, job), kwargs={"follow": True}, daemon=True
    )
    log.start()
    while (found := client.get(client.job_path(job)))["state"] not in ENDED:
        if requeue and found["state"] == "pending" and _time_is_up(allocation):
            sys.stderr.write("the time of this allocation is up: it is queued again\n")
            SlurmTools().call("scontrol", "requeue", allocation)
            requeue = False
        time.sleep(LOOK_S)
    log.join(OUTPUT_S)
    return 0 if found["state"] == "succeeded" else EXIT_JOB_FAILED


def _time_is_up(allocation: str) -> bool:
    try:
        jobs = SlurmTools().jobs("--me")
    except SlurmError:
        return False
    ends = [
        job.ends_at for job in jobs if job.id == allocation and job.ends_at is not None
    ]
    return bool(ends) and ends[0] - time.time() < TIME_IS_UP_S


if __name__ == "__main__":
    main(*sys.argv[1:])
