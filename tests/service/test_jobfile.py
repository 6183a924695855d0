"""Each mistake in a job file is one line that names field, value and what is
allowed.
"""

from pathlib import Path

import pytest

from coadapt.model import (
    BatchLimits,
    BatchRule,
    BatchSchedule,
    InputError,
    JobLength,
    JobSpec,
    Launch,
    Node,
    ReplicaLimits,
    RescaleContract,
    RuleKind,
)
from coadapt.service.jobfile import JobFile, check_disk, job_spec, read_job_file
from coadapt.service.submission import check_possible

FULL = """\
name: cifar
run: python train.py --epochs 3
setup: pip list
workdir: code
envs: {SEED: 1, RATE: 0.1, MODE: fast}
resources: {gpus: 1..4, requested: 2, gpu_types: [a100, h100]}
batch: {initial: 32, max: 512, requested: 64, min_atomic: 8, max_atomic: 128, accumulation: false}
contract: adaptive
tenant: vision
priority: 3
deadline: 1h30m
length: {epochs: 90}
application: resnet
max_failures: 1
max_cost: 2.5
"""
GPUS = "a number >= 1, or MIN..MAX with 1 <= MIN <= MAX <= 100000, for instance 1..4"
INITIAL = "a whole number in 1..1000000000: the total batch that the job was tuned for"
TWICE = "the key name stands here twice"
MISPLACED = "mapping values are not allowed here"
QUOTE = "yes, no, on, off, true and false are truth values in YAML: quote the word"
ENVS = f"a mapping of variable names to text or numbers; {QUOTE}"
BATCH_KEYS = (
    "initial, max, requested, min_atomic, max_atomic, accumulation, schedule, "
    "schedule_unit, "
    "tokens_per_sample, rule"
)
KEYS = ", ".join(JobFile.model_fields)


def parse(folder: Path, text: str) -> JobSpec:
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code" / "train.py").touch()
    path = folder / "job.yaml"
    path.write_text(text)
    spec = job_spec(read_job_file(path), 1000.0)
    assert spec.launch is not None
    check_disk(spec.launch)
    return spec


def complaint(folder: Path, text: str) -> str:
    with pytest.raises(InputError) as caught:
        parse(folder, text)
    return str(caught.value)


def test_every_field_arrives(tmp_path: Path) -> None:
    assert parse(tmp_path, FULL) == JobSpec(
        name="cifar",
        batch=BatchLimits(
            initial=32,
            requested=64,
            max_total=512,
            min_atomic=8,
            max_atomic=128,
            accumulation=False,
        ),
        replicas=ReplicaLimits(min=1, max=4, requested=2, gpu_types=("a100", "h100")),
        contract=RescaleContract.ADAPTIVE,
        tenant="vision",
        priority=3,
        deadline_at=1000.0 + 5400.0,
        length=JobLength(epochs=90.0),
        application="resnet",
        max_failures=1,
        max_cost=2.5,
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
        (
            "requested: 2,",
            "requested: 9,",
            "resources.requested: got 9",
            "within resources.gpus, 1..4",
        ),
        ("initial: 32", "initial: many", "batch.initial: got 'many'", INITIAL),
        (
            "initial: 32, ",
            "",
            "batch.initial: got None",
            f"{INITIAL}; the key is missing",
        ),
        (
            "max: 512",
            "max: 16",
            "batch.max: got 16",
            "a whole number >= batch.initial, 32",
        ),
        (
            "requested: 64",
            "requested: 600",
            "batch.requested: got 600",
            "within 1..batch.max, 1..512",
        ),
        (
            "128",
            "4",
            "batch.max_atomic: got 4",
            "a whole number >= batch.min_atomic, 8",
        ),
        (
            "max:",
            "maximum:",
            "batch.maximum: got 512",
            f"only the keys {BATCH_KEYS}; did you mean max?",
        ),
        (
            ": adaptive",
            ": elastic",
            "contract: got 'elastic'",
            "fixed, adaptive, self, frozen, schedule",
        ),
        (
            "contract",
            "contrakt",
            "contrakt: got 'adaptive'",
            f"only the keys {KEYS}; did you mean contract?",
        ),
        (
            "name: cifar",
            "name: 12",
            "name: got 12",
            'text of 1..100 characters; quote it: "12"',
        ),
        ("name: cifar", "name: ''", "name: got ''", "text of 1..100 characters"),
        (
            "run: python",
            "run: '  ' #",
            "run: got '  '",
            "a shell command; it is run once per GPU",
        ),
        (
            "SEED: 1",
            "SEED: yes",
            "envs.SEED: got True",
            f"a mapping of variable names to text or numbers; {QUOTE}",
        ),
        (
            "SEED",
            "A B",
            "envs: got 'A B'",
            "names of letters, digits and _, not beginning with a digit",
        ),
        (
            "name: cifar",
            "name: a\nname: b",
            "job.yaml line 2: got 'name: b'",
            f"YAML ({TWICE})",
        ),
        (
            "setup: pip",
            "setup: : x",
            "job.yaml line 3: got 'setup: : x list'",
            f"YAML ({MISPLACED})",
        ),
        (FULL, "- a", "job.yaml: got ['a']", f"a mapping with {KEYS}"),
        (FULL, "", "job.yaml: got 'an empty file'", f"a mapping with {KEYS}"),
    ],
)
def test_a_mistake_is_one_line(
    tmp_path: Path, before: str, after: str, got: str, allowed: str
) -> None:
    assert before in FULL
    assert (
        complaint(tmp_path, FULL.replace(before, after)) == f"{got}; allowed: {allowed}"
    )


def scheduled(batch: str, contract: str = "schedule") -> str:
    return (
        f"name: a\nrun: 'true'\nbatch: {{initial: 8, {batch}}}\ncontract: {contract}\n"
    )


@pytest.mark.parametrize(
    ("batch", "steps"),
    [
        ('schedule: "0:768 250B:1536"', ((0, 768), (250 * 10**9, 1536))),
        ('schedule: "0:8 4K:16", schedule_unit: samples', ((0, 8), (4000, 16))),
        (
            (
                'schedule: "0:768 250B:1536", schedule_unit: tokens, tokens_per_sample: '
                "4096"
            ),
            ((0, 768), (61_035_157, 1536)),
        ),
    ],
)
def test_a_declared_schedule_arrives_in_samples(
    tmp_path: Path, batch: str, steps: tuple[tuple[int, int], ...]
) -> None:
    spec = parse(tmp_path, scheduled(batch))
    assert spec.contract is RescaleContract.SCHEDULE
    assert spec.batch == BatchLimits(initial=8, schedule=BatchSchedule(steps=steps))
    assert (spec.batch.requested, spec.batch.max_total) == (steps[0][1], steps[1][1])


@pytest.mark.parametrize(
    ("batch", "contract", "said"),
    [
        ("max: 64", "schedule", "batch.schedule: got None; allowed: FROM:BATCH pairs"),
        (
            'schedule: "0:8"',
            "fixed",
            "batch.schedule: got '0:8'; allowed: none under contract fixed, only",
        ),
        (
            'schedule: "0:8 9"',
            "schedule",
            "batch.schedule: got '9'; allowed: FROM:BATCH pairs",
        ),
        ("schedule: 8", "schedule", "batch.schedule: got 8; allowed: FROM:BATCH pairs"),
        (
            'schedule: "0:8 1K:64", max: 32',
            "schedule",
            "batch.schedule: got 64; allowed: batches of at most",
        ),
        (
            'schedule: "0:8 1K:64", requested: 64',
            "schedule",
            "batch.requested: got 64; allowed: the first",
        ),
        (
            'schedule: "0:8 1K:2000000000"',
            "schedule",
            "batch.schedule: got 2000000000; allowed: batches of",
        ),
        (
            "schedule_unit: tokens",
            "fixed",
            "batch.schedule_unit: got 'tokens'; allowed: only with",
        ),
        (
            'schedule: "0:8", schedule_unit: steps',
            "schedule",
            "batch.schedule_unit: got 'steps'; allowed: samp",
        ),
        (
            'schedule: "0:8", schedule_unit: tokens',
            "schedule",
            "batch.tokens_per_sample: got None; allowed: a",
        ),
        (
            'schedule: "0:8", tokens_per_sample: 9',
            "schedule",
            "batch.tokens_per_sample: got 9; allowed: a",
        ),
    ],
)
def test_what_is_wrong_with_a_schedule_is_named(
    tmp_path: Path, batch: str, contract: str, said: str
) -> None:
    assert complaint(tmp_path, scheduled(batch, contract)).startswith(said)


def test_a_batch_rule_arrives_with_its_numbers(tmp_path: Path) -> None:
    spec = parse(tmp_path, scheduled("max: 64, rule: accordion(every=5)", "self"))
    rule = BatchRule(kind=RuleKind.ACCORDION, every=5)
    assert spec.batch == BatchLimits(initial=8, max_total=64, rule=rule)
    assert rule.totals(8, 64) == (8, 64)
    rule = BatchRule.parse("noise-scale")
    assert (rule.kind, rule.every, rule.totals(8, 60)) == (
        RuleKind.NOISE_SCALE,
        10,
        (8, 16, 32, 60),
    )


@pytest.mark.parametrize(
    ("batch", "contract", "said"),
    [
        (
            "max: 64, rule: accordion",
            "fixed",
            "batch.rule: got 'accordion'; allowed: no rule under contract",
        ),
        (
            "rule: accordion",
            "self",
            "batch.max: got None; allowed: with batch.rule, a whole number above 8",
        ),
        (
            "max: 64, rule: gns",
            "self",
            "batch.rule: got 'gns'; allowed: accordion or noise-scale, with",
        ),
        (
            "max: 64, rule: noise-scale(every=0)",
            "self",
            "batch.rule: got 'noise-scale(every=0)'; allowed:",
        ),
        (
            "max: 64, rule: 'noise-scale(every=1,every=2)'",
            "self",
            "batch.rule: got 'noise-scale(every=1,ev",
        ),
        (
            "max: 64, rule: accordion(threshold=0)",
            "self",
            "batch.rule: got 'accordion(threshold=0)'; all",
        ),
    ],
)
def test_what_is_wrong_with_a_batch_rule_is_named(
    tmp_path: Path, batch: str, contract: str, said: str
) -> None:
    assert complaint(tmp_path, scheduled(batch, contract)).startswith(said)


def test_the_smallest_scheduled_batch_has_samples_for_all_replicas(
    tmp_path: Path,
) -> None:
    text = scheduled('min_atomic: 8, schedule: "0:32 1K:16"') + "resources: {gpus: 4}\n"
    with pytest.raises(
        InputError,
        match=r"batch\.schedule: got 16; allowed: batches of at least 32: 8 samples",
    ):
        check_possible(parse(tmp_path, text), (Node(id="n", num_gpus=4),))


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
def test_commands_that_cannot_be_judged_or_are_right_pass(
    tmp_path: Path, run: str
) -> None:
    assert (
        parse(tmp_path, FULL.replace("python train.py --epochs 3", run)).launch
        is not None
    )


@pytest.mark.parametrize(
    "run",
    [
        "python3 -u gone.py",
        "A=1 B=2 python gone.py --x",
        "torchrun gone.py",
        "./gone.py",
    ],
)
def test_a_script_is_found_behind_interpreter_options_and_variables(
    tmp_path: Path, run: str
) -> None:
    assert "gone.py" in complaint(
        tmp_path, FULL.replace("python train.py --epochs 3", run)
    )


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        InputError,
        match=r"job file: got .*gone\.yaml.*; allowed: a text file that can be read",
    ):
        read_job_file(tmp_path / "gone.yaml")


def test_over_http_a_workdir_must_be_absolute() -> None:
    job = JobFile.model_validate({"name": "a", "run": "true", "batch": {"initial": 8}})
    with pytest.raises(
        InputError, match=r"workdir: got '\.'; allowed: an absolute path"
    ):
        job_spec(job, 1000.0)


def test_parameters_reach_command_and_environment(tmp_path: Path) -> None:
    spec = parse(
        tmp_path,
        "name: a\n"
        "run: python -m train --lr {lr} --tag {tag} ${HOME} {other} {1..3}\n"
        "setup: echo {deep}\n"
        "params: {lr: 0.25, tag: a b, deep: true}\n"
        "batch: {initial: 8}\n",
    )
    assert spec.launch is not None
    assert spec.launch.run == (
        "python -m train --lr 0.25 --tag 'a b' ${HOME} {other} {1..3}"
    )
    assert spec.launch.setup == "echo true"
    assert dict(spec.launch.envs) == {
        "COADAPT_PARAMS": '{"deep": true, "lr": 0.25, "tag": "a b"}',
        "COADAPT_PARAM_deep": "true",
        "COADAPT_PARAM_lr": "0.25",
        "COADAPT_PARAM_tag": "a b",
    }


def test_a_parameter_needs_a_name_that_a_variable_may_have(tmp_path: Path) -> None:
    text = "name: a\nrun: x\nparams: {a-b: 1}\nbatch: {initial: 8}\n"
    assert complaint(tmp_path, text).startswith("params: got 'a-b'; allowed: names of")
