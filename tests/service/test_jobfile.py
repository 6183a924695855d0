"""Each mistake in a job file is one line that names field, value and what is allowed."""

from pathlib import Path

import pytest

from coadapt.model import BatchLimits, InputError, JobSpec, Launch, ReplicaLimits, RescaleContract, Tenant
from coadapt.service.jobfile import JobFile, job_spec, read_job_file

FULL = """\
name: cifar
run: python train.py --epochs 3
setup: pip list
workdir: code
envs: {SEED: 1, RATE: 0.1, MODE: fast}
resources: {gpus: 1..4, requested: 2}
batch: {initial: 32, max: 512, requested: 64, min_atomic: 8, max_atomic: 128, accumulation: false}
contract: adaptive
tenant: vision
application: resnet
max_failures: 1
"""
GPUS = "a number >= 1, or MIN..MAX with 1 <= MIN <= MAX, for instance 1..4"
INITIAL = "a whole number >= 1: the total batch that the job was tuned for"
TWICE = "the key name stands here twice"
MISPLACED = "mapping values are not allowed here"
BATCH_KEYS = "initial, max, requested, min_atomic, max_atomic, accumulation"
KEYS = "name, run, setup, workdir, envs, resources, batch, contract, tenant, application, max_failures"


def parse(folder: Path, text: str) -> JobSpec:
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code" / "train.py").touch()
    path = folder / "job.yaml"
    path.write_text(text)
    return job_spec(read_job_file(path))


def complaint(folder: Path, text: str) -> str:
    with pytest.raises(InputError) as caught:
        parse(folder, text)
    return str(caught.value)


def test_every_field_arrives(tmp_path: Path) -> None:
    assert parse(tmp_path, FULL) == JobSpec(
        name="cifar",
        batch=BatchLimits(
            initial=32, requested=64, max_total=512, min_atomic=8, max_atomic=128, accumulation=False
        ),
        replicas=ReplicaLimits(min=1, max=4, requested=2),
        contract=RescaleContract.ADAPTIVE,
        tenant=Tenant(id="vision"),
        application="resnet",
        max_failures=1,
        launch=Launch(
            run="python train.py --epochs 3",
            setup="pip list",
            envs=(("MODE", "fast"), ("RATE", "0.1"), ("SEED", "1")),
            workdir=str(tmp_path / "code"),
        ),
    )


def test_three_lines_are_enough(tmp_path: Path) -> None:
    assert parse(tmp_path, "name: a\nrun: 'true'\nbatch: {initial: 8}") == JobSpec(
        name="a",
        batch=BatchLimits(initial=8),
        launch=Launch(run="true", workdir=str(tmp_path)),
    )


@pytest.mark.parametrize("gpus", [2, "2", "2..2", " 2 .. 2 "])
def test_one_count_may_be_written_in_several_ways(tmp_path: Path, gpus: object) -> None:
    text = f"name: a\nrun: 'true'\nbatch: {{initial: 8}}\nresources: {{gpus: {gpus}}}"
    assert parse(tmp_path, text).replicas == ReplicaLimits(min=2, max=2, requested=2)


@pytest.mark.parametrize(
    ("before", "after", "got", "allowed"),
    [
        ("gpus: 1..4", "gpus: 8..2", "resources.gpus: got '8..2'", GPUS),
        ("gpus: 1..4", "gpus: 0", "resources.gpus: got 0", GPUS),
        ("gpus: 1..4", "gpus: -1", "resources.gpus: got -1", GPUS),
        ("gpus: 1..4", "gpus: [1]", "resources.gpus: got [1]", GPUS),
        ("gpus: 1..4", "gpus: four", "resources.gpus: got 'four'", GPUS),
        ("requested: 2}", "requested: 9}", "resources.requested: got 9", "within resources.gpus, 1..4"),
        ("initial: 32", "initial: many", "batch.initial: got 'many'", INITIAL),
        ("initial: 32, ", "", "batch.initial: got None", f"{INITIAL}; the key is missing"),
        ("max: 512", "max: 16", "batch.max: got 16", "a whole number >= batch.initial, 32"),
        ("requested: 64", "requested: 600", "batch.requested: got 600", "within 1..batch.max, 1..512"),
        ("128", "4", "batch.max_atomic: got 4", "a whole number >= batch.min_atomic, 8"),
        ("max:", "maximum:", "batch.maximum: got 512", f"only the keys {BATCH_KEYS}; did you mean max?"),
        (": adaptive", ": elastic", "contract: got 'elastic'", "fixed, adaptive, self, frozen"),
        ("contract", "contrakt", "contrakt: got 'adaptive'", f"only the keys {KEYS}; did you mean contract?"),
        ("name: cifar", "name: 12", "name: got 12", "text of 1..100 characters"),
        ("name: cifar", "name: ''", "name: got ''", "text of 1..100 characters"),
        ("run: python", "run: '  ' #", "run: got '  '", "a shell command; it is run once per GPU"),
        ("SEED: 1", "SEED: yes", "envs.SEED: got True", "a mapping of variable names to text or numbers"),
        ("SEED", "A B", "envs: got 'A B'", "names of letters, digits and _, not beginning with a digit"),
        ("name: cifar", "name: a\nname: b", "job.yaml line 2: got 'name: b'", f"YAML ({TWICE})"),
        ("setup: pip", "setup: : x", "job.yaml line 3: got 'setup: : x list'", f"YAML ({MISPLACED})"),
        (FULL, "- a", "job.yaml: got ['a']", f"a mapping with {KEYS}"),
        (FULL, "", "job.yaml: got None", f"a mapping with {KEYS}"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, before: str, after: str, got: str, allowed: str) -> None:
    assert before in FULL
    assert complaint(tmp_path, FULL.replace(before, after)) == f"{got}; allowed: {allowed}"


def test_a_missing_script_and_a_missing_workdir_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    assert complaint(tmp_path, FULL.replace("train.py", "trian.py")) == (
        f"run: got 'trian.py'; allowed: a script that exists in workdir {folder}"
    )
    assert complaint(tmp_path, FULL.replace("workdir: code", "workdir: cod")) == (
        f"workdir: got '{tmp_path / 'cod'}'; allowed: a directory that exists"
    )


@pytest.mark.parametrize(
    "run",
    [
        "python -m package --config gone.py",
        "cd code && python gone.py",
        "python $SCRIPT.py",
        "echo gone.py",
        "A=1 python3 -u train.py",
        "./train.py",
    ],
)
def test_commands_that_cannot_be_judged_or_are_right_pass(tmp_path: Path, run: str) -> None:
    assert parse(tmp_path, FULL.replace("python train.py --epochs 3", run)).launch is not None


@pytest.mark.parametrize(
    "run", ["python3 -u gone.py", "A=1 B=2 python gone.py --x", "torchrun gone.py", "./gone.py"]
)
def test_a_script_is_found_behind_interpreter_options_and_variables(tmp_path: Path, run: str) -> None:
    assert "gone.py" in complaint(tmp_path, FULL.replace("python train.py --epochs 3", run))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"job file: got .*gone\.yaml.*; allowed: a text file that can be read"
    ):
        read_job_file(tmp_path / "gone.yaml")


def test_over_http_a_workdir_must_be_absolute() -> None:
    job = JobFile.model_validate({"name": "a", "run": "true", "batch": {"initial": 8}})
    with pytest.raises(InputError, match=r"workdir: got '\.'; allowed: an absolute path"):
        job_spec(job)
