"""Job files that nobody means: each is refused in one line that names the place, or is
rightly accepted.
"""

import math
from itertools import pairwise
from pathlib import Path

import pytest

from coadapt.model import InputError, JobSpec, Node
from coadapt.service.jobfile import check_disk, job_spec, read_job_file
from coadapt.service.limits import JOB_FILE_BYTES_MAX
from coadapt.service.submission import check_possible

CLUSTER = [Node(id="n0", num_gpus=4), Node(id="n1", num_gpus=4)]
LINE_MAX = 700

BASE = {"name": "a", "run": "'true'", "batch": "{initial: 8}"}


def file(**changes: str) -> str:
    return "".join(f"{key}: {value}\n" for key, value in {**BASE, **changes}.items())


def batch(text: str, **changes: str) -> str:
    return file(batch=f"{{{text}}}", **changes)


def gpus(text: str) -> str:
    return file(resources=f"{{gpus: {text}}}")


TUNED = {"contract": "adaptive"}
BIG = "1000000000000000000000"
HUGE = "9" * 5_000

# Nine lists, each of nine times the one before: 387 million texts.
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in pairwise("abcdefghi")
)

# What the file says, and how the line about it begins; the second part has to be in it
# as well.
REFUSED: list[tuple[str, str, str]] = [
    # numbers that no code behind the door could use
    (batch(f"initial: {BIG}"), "batch.initial: got 1000", "a number below 1e15"),
    (batch("initial: 1" + "0" * 38), "batch.initial: got 1000", "a number below 1e15"),
    (batch("initial: 1" + "0" * 300), "job.yaml line 3", "at most 40 digits"),
    (batch(f"initial: {HUGE}"), "job.yaml line 3", "at most 40 digits"),
    (
        batch("initial: 9223372036854775808"),
        "batch.initial: got 922",
        "a number below 1e15",
    ),
    (
        batch("initial: 1000000001"),
        "batch.initial: got 1000000001",
        "a whole number in 1..1000000000",
    ),
    (
        batch("initial: 8, max: 1000000001"),
        "batch.max: got 1000000001",
        "a whole number",
    ),
    (
        batch("initial: 8, max_atomic: 99999999999"),
        "batch.max_atomic: got",
        "a whole number",
    ),
    (
        batch("initial: 8, min_atomic: 99999999999"),
        "batch.min_atomic: got",
        "a whole number",
    ),
    (
        batch("initial: 8, requested: 99999999999"),
        "batch.requested: got",
        "within 1..batch.max",
    ),
    (batch("initial: 0"), "batch.initial: got 0", "a whole number in"),
    (batch("initial: -8"), "batch.initial: got -8", "a whole number in"),
    (batch("initial: 8.0"), "batch.initial: got 8.0", "a whole number in"),
    (batch("initial: 1e3"), "batch.initial: got 1000.0", "a whole number in"),
    (batch("initial: .inf"), "batch.initial: got inf", "neither infinite nor NaN"),
    (batch("initial: .nan"), "batch.initial: got nan", "neither infinite nor NaN"),
    (batch("initial: 1e400"), "batch.initial: got inf", "neither infinite nor NaN"),
    (batch("initial: ~"), "batch.initial: got None", "a whole number in"),
    (batch("initial: true"), "batch.initial: got True", "a whole number in"),
    (batch("initial: 1:30"), "batch.initial: got '1:30'", "a whole number in"),
    (batch("initial: 010"), "batch.initial: got '010'", "a whole number in"),
    (batch("initial: 1_000"), "batch.initial: got '1_000'", "a whole number in"),
    (batch("initial: ٨"), "batch.initial: got '٨'", "a whole number in"),
    (batch("initial: 0b11"), "batch.initial: got '0b11'", "a whole number in"),
    (batch("initial: [8]"), "batch.initial: got [8]", "a whole number in"),
    (batch("initial: {a: 8}"), "batch.initial: got {'a': 8}", "a whole number in"),
    (file(max_failures="1" + "0" * 39), "max_failures: got", "a number below 1e15"),
    (file(checkpoints="s3:bucket"), "checkpoints: got 's3:bucket'", "SCHEME://FOLDER"),
    (
        file(checkpoints="s3://me:secret@bucket/x"),
        "checkpoints: got",
        "without a password",
    ),
    (
        file(checkpoints="file://folder"),
        "checkpoints: got 'file://folder'",
        "file:///FOLDER",
    ),
    (file(checkpoints="s4://bucket/x"), "checkpoints: got 's4://bucket/x'", "s3, gs"),
    (
        file(checkpoints="s3://bucket/../of-another"),
        "checkpoints: got",
        "without .. in it",
    ),
    (file(checkpoints="[s3://bucket]"), "checkpoints: got", "SCHEME://FOLDER"),
    (file(max_failures="1000001"), "max_failures: got 1000001", "0..1000000"),
    (file(max_failures="-1"), "max_failures: got -1", "0..1000000"),
    (file(max_failures="forever"), "max_failures: got 'forever'", "0..1000000"),
    # numbers of GPUs
    (gpus("1..1000000000"), "resources.gpus: got '1..1000000000'", "<= 100000"),
    (gpus("1000000000"), "resources.gpus: got 1000000000", "<= 100000"),
    (gpus(HUGE), "job.yaml line 4", "at most 40 digits"),
    (gpus(f"'{HUGE}'"), "resources.gpus: got '999", "for instance 1..4"),
    (gpus(f"1..{HUGE}"), "resources.gpus: got '1..999", "for instance 1..4"),
    (gpus("٣"), "resources.gpus: got '٣'", "for instance 1..4"),
    (gpus("010"), "resources.gpus: got '010'", "for instance 1..4"),
    (gpus("1:30"), "resources.gpus: got '1:30'", "for instance 1..4"),
    (gpus("1...4"), "resources.gpus: got '1...4'", "for instance 1..4"),
    (gpus("1..4..8"), "resources.gpus: got '1..4..8'", "for instance 1..4"),
    (gpus("-1..4"), "resources.gpus: got '-1..4'", "for instance 1..4"),
    (gpus("1.5"), "resources.gpus: got 1.5", "for instance 1..4"),
    (gpus("all"), "resources.gpus: got 'all'", "for instance 1..4"),
    (gpus("true"), "resources.gpus: got True", "for instance 1..4"),
    (gpus("''"), "resources.gpus: got ''", "for instance 1..4"),
    (gpus("[1, 4]"), "resources.gpus: got [1, 4]", "for instance 1..4"),
    (gpus("9..12"), "resources.gpus: got '9..12'", "at most 8"),
    (file(resources="4"), "resources: got 4", "a mapping with"),
    (file(resources="[gpus]"), "resources: got ['gpus']", "a mapping with"),
    # jobs that could never run
    (batch("initial: 1, min_atomic: 64"), "batch.initial: got 1", "at least 64"),
    (batch("initial: 1", resources="{gpus: 4}"), "batch.initial: got 1", "at least 4"),
    (
        batch("initial: 8, requested: 2", resources="{gpus: 4}"),
        "batch.requested: got 2",
        "at least 4",
    ),
    (
        batch(
            "initial: 1, max: 1, min_atomic: 64, max_atomic: 64",
            resources="{gpus: 4}",
            contract="adaptive",
        ),
        "batch: got '1..1 samples in passes of 64..64'",
        "at least one number of GPUs in 4..4",
    ),
    (
        batch(
            "initial: 100, max_atomic: 8, accumulation: false",
            resources="{gpus: 1..4}",
            contract="adaptive",
        ),
        "batch: got '100..100 samples",
        "without accumulation",
    ),
    # texts
    (file(run="'a\x07b'"), "job.yaml line 2", "0x0007"),
    (file(run="'a\x00b'"), "job.yaml line 2", "0x0000"),
    (file(run='"a\\0b"'), "run: got 'a\\x00b'", "without control characters"),
    (file(run='"a\\e[2Jb"'), "run: got 'a\\x1b[2Jb'", "without control characters"),
    (file(setup='"a\\0b"'), "setup: got", "without control characters"),
    (file(workdir='"a\\0b"'), "workdir: got", "without control characters"),
    (file(name='"a\\0b"'), "name: got", "without control characters"),
    (file(name='"a\\nb"'), "name: got 'a\\nb'", "text in one line"),
    (file(name='"a\\u202Eb"'), "name: got", "text in one line"),
    (file(tenant='"a\\u2028b"'), "tenant: got", "without control characters"),
    (file(application='"a\\tb"'), "application: got", "text in one line"),
    (file(envs='{A: "x\\0"}'), "envs.A: got", "without control characters"),
    (file(envs='{A: "\\uD800"}'), "envs.A: got", "halves of surrogate pairs"),
    (file(run='"echo \\uDFFF"'), "run: got", "halves of surrogate pairs"),
    (file(setup='"\\uD83D"'), "setup: got", "halves of surrogate pairs"),
    (file(name="yes"), "name: got True", "quote the word"),
    (file(name="Off"), "name: got False", "quote the word"),
    (file(name="12"), "name: got 12", 'quote it: "12"'),
    (file(name="1.5"), "name: got 1.5", 'quote it: "1.5"'),
    (file(name="~"), "name: got None", "text of 1..100"),
    (file(name="[a]"), "name: got ['a']", "text of 1..100"),
    (file(name="''"), "name: got ''", "text of 1..100"),
    (file(name="a" * 101), "name: got", "text of 1..100"),
    (file(tenant="a" * 101), "tenant: got", "text of 1..100"),
    (file(tenant="no"), "tenant: got False", "quote the word"),
    (file(application="a" * 101), "application: got", "at most 100"),
    (file(run="''"), "run: got ''", "a shell command"),
    (file(run="' '"), "run: got ' '", "a shell command"),
    (file(run="no"), "run: got False", "quote the word"),
    (file(run="|\n " + "x" * 100_001), "run: got", "at most 100000 bytes"),
    (file(run="python " + "a" * 5_000 + ".py"), "run: got", "a script that exists"),
    (file(run="python gone.py"), "run: got 'gone.py'", "a script that exists"),
    (file(run="python 'x"), "run: got", "a shell command"),
    (file(workdir="gone"), "workdir: got", "a directory that exists"),
    (file(workdir="a" * 300), "workdir: got", "a directory that exists"),
    (file(workdir="/" + "a/" * 2_500), "workdir: got", "at most 4000 bytes"),
    (
        file(workdir="~nosuchuser/x"),
        "workdir: got '~nosuchuser/x'",
        "a path that can be followed",
    ),
    (file(workdir="loop"), "workdir: got", "a path that can be followed"),
    # variables
    (file(envs="{A: .nan}"), "envs.A: got nan", "neither infinite nor NaN"),
    (file(envs="{A: .inf}"), "envs.A: got inf", "neither infinite nor NaN"),
    (file(envs="{A: yes}"), "envs.A: got True", "quote the word"),
    (file(envs="{A: [1]}"), "envs.A: got [1]", "a mapping of variable names"),
    (file(envs="{A: " + HUGE + "}"), "job.yaml line 4", "at most 40 digits"),
    (
        file(envs="{A: " + "x" * 300_000 + "}"),
        "envs: got '1 variables of 300002 bytes'",
        "100000 bytes",
    ),
    (file(envs="{A-B: 1}"), "envs: got 'A-B'", "names of letters"),
    (file(envs="{1: 1}"), "job.yaml line 4", "must be text: quote it"),
    (
        file(envs="{COADAPT_URL: http://evil}"),
        "envs.COADAPT_URL: got",
        "does not set itself",
    ),
    (file(envs="{COADAPT_TOKEN: x}"), "envs.COADAPT_TOKEN: got", "does not set itself"),
    (file(envs="{RANK: 0}"), "envs.RANK: got 0", "does not set itself"),
    (
        file(envs="{CUDA_VISIBLE_DEVICES: 0}"),
        "envs.CUDA_VISIBLE_DEVICES: got 0",
        "does not set itself",
    ),
    (file(envs="[A]"), "envs: got ['A']", "a mapping of variable names"),
    # YAML
    ("", "job.yaml: got 'an empty file'", "a mapping with name"),
    ("42", "job.yaml: got 42", "a mapping with name"),
    ("- a", "job.yaml: got ['a']", "a mapping with name"),
    ("? [a]\n: b", "job.yaml line 1", "a key must be a word"),
    (file(batch="{" + "9" * 900 + ": 1}"), "job.yaml line 3", "YAML (the key 999"),
    (file(name="*" + "x" * 5_000), "job.yaml line 1", "undefined alias"),
    ("? {a: 1}\n: b", "job.yaml line 1", "a key must be a word"),
    (file(yes="1"), "job.yaml line 4", "must be text"),
    (file(name="!!timestamp x"), "job.yaml line 1", "!timestamp has no meaning"),
    (
        file(name="!!python/object/apply:os.system [id]"),
        "job.yaml line 1",
        "has no meaning",
    ),
    (file(name="!!binary aGk="), "job.yaml line 1", "has no meaning"),
    (file(name="!!int abc"), "job.yaml line 1", "'abc' is no int"),
    (file(name="!!float xyz"), "job.yaml line 1", "'xyz' is no float"),
    (file(name="!!bool zzz"), "job.yaml line 1", "'zzz' is no bool"),
    (file(name="!!map [1]"), "job.yaml line 1", "expected a mapping"),
    ("[" * 5_000, "job.yaml line 1", "more than 20 levels"),
    ("{a: " * 5_000, "job.yaml line 1", "more than 20 levels"),
    (file(name="&x [*x]"), "name[0]", "20 levels"),
    (file(name="*x"), "job.yaml line 1", "undefined alias"),
    (file() + "name: b\n", "job.yaml line 4", "stands here twice"),
    (file() + "---\n" + file(), "job.yaml line 4", "another document"),
    (file(name="'x"), "job.yaml line", "YAML"),
    (file() + "\tx: 1\n", "job.yaml line", "YAML"),
    (file(nmae="x"), "nmae: got 'x'", "did you mean name?"),
    (file(contract="elastic"), "contract: got 'elastic'", "fixed, adaptive"),
    (file(contract="[fixed]"), "contract: got ['fixed']", "fixed, adaptive"),
    ("name: a\nrun: 'true'\n", "batch: got None", "the key is missing"),
    (BOMB, "", "100000 values"),
]

ACCEPTED = [
    file(),
    file(name="2001-99-99"),
    file(name="'yes'"),
    file(name="1:30"),
    file(name="ünïcode 名前 🚀"),
    file(name="<script>alert(1)</script>"),
    file(run="|\n  a\n  b\n"),
    file(run='"a\\tb"'),
    file(envs="{A: 1, B: 0.5, C: x, D: '010', E: 0x10}"),
    file(envs="{COADAPT_REPORT_EVERY_S: 5, LD_PRELOAD: x, OMP_NUM_THREADS: 2}"),
    "\ufeff" + file(),
    "x: &b {initial: 8}\n".replace("x: ", "batch: ") + "name: a\nrun: 'true'\n",
    "{name: a, run: 'true', batch: {<<: {initial: 8}}}",
    '{"name": "a", "run": "true", "batch": {"initial": 8}}',
    batch("initial: 0x10"),
    batch("initial: 0o10"),
    batch("initial: 1000000000"),
    gpus("1..100000"),
    gpus("'4'"),
    batch(
        "initial: 100, max_atomic: 16, accumulation: false",
        resources="{gpus: 1..8}",
        contract="adaptive",
    ),
    file(contract="self"),
    file(workdir="."),
    file(application="''"),
]


def take_in(folder: Path, text: str) -> JobSpec:
    """Do all that a job file goes through until it is journaled."""
    (folder / "loop").symlink_to(folder / "loop")
    path = folder / "job.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    spec = job_spec(read_job_file(path), 1000.0)
    assert spec.launch is not None
    check_disk(spec.launch)
    check_possible(spec, CLUSTER)
    return spec


@pytest.mark.parametrize("case", REFUSED, ids=range(len(REFUSED)))
def test_nonsense_is_refused_in_one_line(
    tmp_path: Path, case: tuple[str, str, str]
) -> None:
    text, begins, says = case
    with pytest.raises(InputError) as caught:
        take_in(tmp_path, text)
    line = str(caught.value)
    assert line.startswith(begins), line
    assert says in line.partition("; allowed: ")[2]
    assert "\n" not in line
    assert len(line) < LINE_MAX


@pytest.mark.parametrize("text", ACCEPTED, ids=range(len(ACCEPTED)))
def test_what_only_looks_odd_is_accepted(tmp_path: Path, text: str) -> None:
    assert take_in(tmp_path, text).batch.initial >= 8


def test_the_table_is_as_long_as_it_was() -> None:
    assert len(REFUSED) + len(ACCEPTED) >= 140


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    for content in (b"\xff\xfe\x00", b"name: \xed\xb2\x80", file().encode("utf-16-le")):
        path.write_bytes(content)
        with pytest.raises(InputError):
            job_spec(read_job_file(path), 1000.0)
    with pytest.raises(InputError, match="job file"):
        read_job_file(tmp_path)
    with pytest.raises(InputError, match="job file"):
        read_job_file(tmp_path / "a\0b")


def test_a_file_that_is_too_long_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(file(run="x" * 10 * JOB_FILE_BYTES_MAX))
    with pytest.raises(InputError, match=f"at most {JOB_FILE_BYTES_MAX} bytes"):
        read_job_file(path)


def test_numbers_keep_their_value(tmp_path: Path) -> None:
    spec = take_in(tmp_path, file(envs="{A: 0.1, B: -3, C: 1e3, D: 0x10, E: '٣'}"))
    assert spec.launch is not None
    assert dict(spec.launch.envs) == {
        "A": "0.1",
        "B": "-3",
        "C": "1000.0",
        "D": "16",
        "E": "٣",
    }
    assert math.isfinite(float(dict(spec.launch.envs)["A"]))
