"""What of the scheduler's environment a job gets, and what its own `envs` may not
set.
"""

import pytest

from coadapt.model import contract_env
from coadapt.model.contract_env import SETTABLE_ENVS, is_reserved_env, passed_envs


def test_every_name_of_the_contract_is_reserved_but_the_trainer_s_settings() -> None:
    names = {
        value for name, value in vars(contract_env).items() if name.startswith("ENV_")
    }
    assert len(names) >= 15
    assert {name for name in names if not is_reserved_env(name)} == SETTABLE_ENVS


@pytest.mark.parametrize(
    "name",
    ["RANK", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "COADAPT_TOKEN", "COADAPT_NEW"],
)
def test_what_an_executor_sets_is_reserved(name: str) -> None:
    assert is_reserved_env(name)


@pytest.mark.parametrize(
    "name", ["EPOCHS", "OMP_NUM_THREADS", "PATH", "RANKING", "coadapt_x"]
)
def test_what_is_a_job_s_own_is_not(name: str) -> None:
    assert not is_reserved_env(name)


def test_of_the_scheduler_s_environment_a_job_gets_what_is_named() -> None:
    secrets = {
        "MY_SECRET": "hunter2",
        "AWS_SECRET_ACCESS_KEY": "k",
        "HTTPS_PROXY": "http://u:p@h",
    }
    own = {"COADAPT_STATE": "/s", "COADAPT_TOKEN": "t"}
    plain = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "CUDA_HOME": "/cuda",
        "NCCL_DEBUG": "INFO",
        "HOME": "/h",
    }
    assert passed_envs({**secrets, **own, **plain}) == plain
    assert passed_envs({**secrets, **plain}, frozenset({"MY_SECRET"})) == {
        **plain,
        "MY_SECRET": "hunter2",
    }
