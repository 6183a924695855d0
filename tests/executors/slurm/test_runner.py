"""What a replica finds in its environment, of what Slurm gave its step."""

import pytest

from coadapt.executors.processes.line import ENV_DEVICES
from coadapt.executors.slurm.runner import VISIBLE, replica_envs


@pytest.mark.parametrize(
    ("of_step", "wanted", "seen"),
    [
        ("0,1", "1", "1"),
        ("4,5,6,7", "0,3", "4,7"),  # without cgroups a step sees the machine's numbers
        ("GPU-a,GPU-b", "1,0", "GPU-b,GPU-a"),
        (None, "1", "1"),  # a site that names none
        ("0", "1", "1"),  # less than was promised: the driver will say so
        ("0,1", None, "0,1"),
        ("0,1", "", ""),  # a slot of CPUs
    ],
)
def test_the_plans_numbers_are_among_those_of_the_step(
    of_step: str | None, wanted: str | None, seen: str
) -> None:
    step = {VISIBLE: of_step, ENV_DEVICES: wanted}
    given = {name: value for name, value in step.items() if value is not None}
    assert replica_envs(given) == {VISIBLE: seen}


def test_names_by_which_libraries_take_a_step_for_the_job_are_gone() -> None:
    slurm = {
        "SLURM_NTASKS": "1",
        "SLURM_PROCID": "0",
        "PMIX_RANK": "0",
        "SRUN_DEBUG": "3",
    }
    ours = {
        "SLURM_JOB_ID": "7",
        "SLURMD_NODENAME": "a",
        "RANK": "3",
        "COADAPT_JOB": "x",
    }
    assert replica_envs({**slurm, **ours}) == ours
