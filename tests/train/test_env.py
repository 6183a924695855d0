"""Settings: argument beats environment beats default; what is out of range is named."""

import json
import logging
import os
from pathlib import Path

import pytest

from coadapt.model import (
    BatchConfig,
    BatchLimits,
    InputError,
    JobSpec,
    Placement,
    ReplicaLimits,
    RescaleContract,
)
from coadapt.model.contract_env import ENV_PLACEMENT
from coadapt.model.wire import to_json
from coadapt.train.env import (
    Job,
    Options,
    Place,
    Times,
    TrainConfig,
    as_if_alone,
    params,
    parse_config,
    tell_placement,
)

pytestmark = pytest.mark.train

SPEC = JobSpec(
    name="job",
    batch=BatchLimits(initial=32, max_total=256),
    replicas=ReplicaLimits(min=1, max=4),
    contract=RescaleContract.ADAPTIVE,
)


def test_alone_with_nothing_set() -> None:
    assert parse_config({}, {}) == TrainConfig()


def test_under_torchrun() -> None:
    environ = {
        "RANK": "5",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "4",
    }
    assert parse_config({}, environ) == TrainConfig(
        place=Place(rank=5, local_rank=1, world_size=8, placement=Placement((4, 4)))
    )


def test_a_job_whose_command_is_torchrun_has_torchruns_replicas() -> None:
    environ = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "COADAPT_PLACEMENT": "1"}
    with pytest.raises(InputError, match="COADAPT_PLACEMENT"):
        parse_config({}, environ)
    assert parse_config(
        {}, {**environ, "TORCHELASTIC_RUN_ID": "none"}
    ).place.placement == Placement((2,))


def test_under_the_scheduler() -> None:
    environ = {
        "RANK": "2",
        "WORLD_SIZE": "3",
        "COADAPT_JOB": "job-1",
        "COADAPT_GENERATION": "4",
        "COADAPT_SPEC": json.dumps(to_json(SPEC)),
        "COADAPT_BATCH": json.dumps(to_json(BatchConfig(total=64, atomic=22))),
        "COADAPT_PLACEMENT": "2,1",
        "COADAPT_GPU_TYPE": "t4",
        "COADAPT_URL": "http://127.0.0.1:8000/",
        "COADAPT_TOKEN": "secret",
        "COADAPT_CHECKPOINT_DIR": "/state/job-1",
        "COADAPT_CHECKPOINT_EVERY_S": "7.5",
        "COADAPT_REPORT_EVERY_S": "2",
        "COADAPT_STOP_TIMEOUT_S": "9",
        "COADAPT_LISTENERS_DIR": "/state/job-1/4/listeners",
    }
    assert parse_config({}, environ) == TrainConfig(
        place=Place(rank=2, world_size=3, placement=Placement((2, 1)), generation=4),
        job=Job(
            name="job-1",
            spec=SPEC,
            batch=BatchConfig(total=64, atomic=22),
            gpu_type="t4",
            url="http://127.0.0.1:8000",
            token="secret",
        ),
        contract=RescaleContract.ADAPTIVE,
        checkpoint_dir=Path("/state/job-1"),
        times=Times(checkpoint_every_s=7.5, report_every_s=2.0, stop_timeout_s=9.0),
        listeners_dir=Path("/state/job-1/4/listeners"),
    )


def test_an_argument_beats_the_environment() -> None:
    environ = {"COADAPT_CHECKPOINT_DIR": "/env", "COADAPT_REPORT_EVERY_S": "2"}
    config = parse_config(
        {"checkpoint_dir": "/argument", "report_every_s": 3.0, "seed": 5}, environ
    )
    assert (config.checkpoint_dir, config.times.report_every_s, config.seed) == (
        Path("/argument"),
        3.0,
        5,
    )


def test_the_job_files_contract_beats_the_argument(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        config = parse_config(
            {"contract": "fixed"}, {"COADAPT_SPEC": json.dumps(to_json(SPEC))}
        )
    assert config.contract is RescaleContract.ADAPTIVE
    assert (
        "the job file's contract adaptive replaces init(contract='fixed')"
        in caplog.text
    )


@pytest.mark.parametrize(
    ("options", "environ", "said"),
    [
        (
            {"contract": "elastic"},
            {},
            (
                "init(contract): got 'elastic'; allowed: fixed, adaptive, self, frozen, "
                "schedule"
            ),
        ),
        ({}, {"WORLD_SIZE": "0"}, "WORLD_SIZE: got '0'; allowed: a whole number >= 1"),
        (
            {},
            {"RANK": "2", "WORLD_SIZE": "2"},
            "RANK: got 2; allowed: 0..1, below WORLD_SIZE",
        ),
        ({}, {"RANK": "-1"}, "RANK: got '-1'; allowed: a whole number >= 0"),
        (
            {},
            {"WORLD_SIZE": "3", "COADAPT_PLACEMENT": "2,2"},
            "COADAPT_PLACEMENT: got '2,2'",
        ),
        (
            {},
            {"WORLD_SIZE": "3", "COADAPT_PLACEMENT": "2,one"},
            "COADAPT_PLACEMENT: got '2,one'",
        ),
        ({}, {"COADAPT_SPEC": "{"}, "COADAPT_SPEC: got '{'; allowed: JSON"),
        ({}, {"COADAPT_BATCH": '{"total": 3}'}, "COADAPT_BATCH.atomic: got None"),
        (
            {"report_every_s": 0.0},
            {},
            "COADAPT_REPORT_EVERY_S: got 0.0; allowed: a number of seconds > 0",
        ),
        ({}, {"COADAPT_STOP_TIMEOUT_S": "soon"}, "COADAPT_STOP_TIMEOUT_S: got 'soon'"),
        (
            {"checkpoint_dir": "s3:// x"},
            {},
            "init(checkpoint_dir): got 's3:// x'; allowed: SCHEME://FOLDER",
        ),
        (
            {},
            {"COADAPT_CHECKPOINT_URL": "s3:x"},
            "checkpoints: got 's3:x'; allowed: SCHEME://FOLDER",
        ),
        ({"seed": -1}, {}, "init(seed): got -1; allowed: a whole number >= 0"),
    ],
)
def test_what_is_out_of_range_is_named(
    options: Options, environ: dict[str, str], said: str
) -> None:
    with pytest.raises(InputError) as raised:
        parse_config(options, environ)
    assert str(raised.value).startswith(said)


def test_fewer_replicas_than_were_started_are_told_to_libraries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", ENV_PLACEMENT):
        monkeypatch.setenv(name, "9")
    tell_placement(
        TrainConfig(place=Place(rank=2, world_size=3, placement=Placement((2, 1))))
    )
    told = {
        name: os.environ[name]
        for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", ENV_PLACEMENT)
    }
    assert told == {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "1", ENV_PLACEMENT: "2,1"}


def test_alone_means_no_word_of_other_replicas_and_only_inside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("DEVICE_OF_MINE", raising=False)
    before = dict(os.environ)
    with as_if_alone({"DEVICE_OF_MINE": "cpu"}):
        inside = dict(os.environ)
    assert inside == {
        k: v for k, v in before.items() if k not in ("RANK", "WORLD_SIZE")
    } | {"DEVICE_OF_MINE": "cpu"}
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("given", "environ", "folder", "url"),
    [
        ("", {}, None, ""),
        ("", {"COADAPT_CHECKPOINT_DIR": "/jobs/a"}, Path("/jobs/a"), ""),
        (
            "",
            {"COADAPT_CHECKPOINT_DIR": "/jobs/a", "COADAPT_CHECKPOINT_URL": "s3://b/a"},
            Path("/jobs/a"),
            "s3://b/a",
        ),
        (
            "",
            {
                "COADAPT_CHECKPOINT_DIR": "/jobs/a",
                "COADAPT_CHECKPOINT_URL": "file:///b/a",
            },
            Path("/b/a"),
            "",
        ),
        ("here", {"COADAPT_CHECKPOINT_URL": "s3://b/a"}, Path("here"), ""),
        ("gs://c", {"COADAPT_CHECKPOINT_URL": "s3://b/a"}, None, "gs://c"),
    ],
)
def test_checkpoints_are_where_the_script_says_else_the_job_file(
    given: str, environ: dict[str, str], folder: Path | None, url: str
) -> None:
    config = parse_config({"checkpoint_dir": given}, environ)
    assert (config.checkpoint_dir, config.checkpoint_url) == (folder, url)
    assert config.keeps_checkpoints == bool(folder or url)


def test_parameters_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COADAPT_PARAMS", raising=False)
    assert params() == {}
    monkeypatch.setenv("COADAPT_PARAMS", '{"lr": 0.1, "tag": "a", "deep": true}')
    assert params() == {"lr": 0.1, "tag": "a", "deep": True}
    monkeypatch.setenv("COADAPT_PARAMS", "lr=0.1")
    with pytest.raises(InputError, match="a JSON object"):
        params()
