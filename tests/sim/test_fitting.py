"""Jobs that can never fit are told before the first step, all of them."""

import re
from dataclasses import replace

import pytest

from coadapt.cli.research.inputs import parse_cluster
from coadapt.model import InputError, ReplicaLimits
from coadapt.sim.fitting import check_fits, fitting, too_large
from coadapt.sim.workload import TraceJob, Workload
from tests.sim.stage import spec, trace_job


def job(name: str, least: int, *gpu_types: str) -> TraceJob:
    may = ReplicaLimits(min=least, max=64, gpu_types=gpu_types)
    return trace_job(name, job_spec=replace(spec(), replicas=may))


WORKLOAD = Workload(
    name="w", jobs=(job("a", 4), job("b", 16), job("c", 8, "t4"), job("d", 9))
)


@pytest.mark.parametrize(
    ("cluster", "names"),
    [
        # c may run on T4 alone.
        ("2x8:a100", "c"),
        ("2x4", "bcd"),
        # A job trains on GPUs of one type.
        ("1x8:a100,2x4:t4", "bd"),
        ("4x4:a100,1x4:t4", "c"),
    ],
)
def test_a_job_fits_on_one_type_that_it_may_run_on(cluster: str, names: str) -> None:
    found = "".join(
        each.id for each in too_large(WORKLOAD.jobs, parse_cluster(cluster))
    )
    assert found == names


def test_the_error_names_them_all_and_the_rest_is_kept() -> None:
    cluster = parse_cluster("2x4:t4")
    with pytest.raises(
        InputError,
        match=re.escape(
            "w: got '2 of 4 jobs that can never fit'; allowed: jobs for one GPU type"
        ),
    ) as error:
        check_fits(WORKLOAD, cluster)
    assert "too large are b (16 GPUs), d (9 GPUs); --skip-too-large" in str(error.value)
    kept = fitting(WORKLOAD, cluster)
    assert [each.id for each in kept.jobs] == ["a", "c"]
    assert kept.left_out == {"too large for the cluster": 2}
    with pytest.raises(InputError, match="4 of 4 jobs"):
        fitting(WORKLOAD, parse_cluster("1x2"))
