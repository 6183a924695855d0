"""The job file: what a user writes in YAML or posts as JSON, parsed strictly into a JobSpec.

Each field's description says what is allowed there; the error for a bad value and the API's schema quote it.
"""

import difflib
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coadapt.model import BatchLimits, InputError, JobSpec, Launch, ReplicaLimits, RescaleContract, Tenant

NAME_LENGTH_MAX = 100
GPUS_ALLOWED = "a number >= 1, or MIN..MAX with 1 <= MIN <= MAX, for instance 1..4"

PositiveInt = Annotated[int, Field(ge=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ResourcesSection(_Section):
    """How many GPUs the job may hold."""

    gpus: int | str = Field(default=1, description=GPUS_ALLOWED)
    requested: PositiveInt | None = Field(
        default=None, description="a whole number within gpus: the count of policies that never resize"
    )


class BatchSection(_Section):
    """Batch sizes in samples."""

    initial: PositiveInt = Field(
        description="a whole number >= 1: the total batch that the job was tuned for"
    )
    max: PositiveInt | None = Field(
        default=None, description="a whole number >= batch.initial: the largest total batch"
    )
    requested: PositiveInt | None = Field(
        default=None, description="a whole number within 1..batch.max: the total batch unless adaptive"
    )
    min_atomic: PositiveInt = Field(
        default=1, description="a whole number >= 1: the least samples of one pass on one GPU"
    )
    max_atomic: PositiveInt | None = Field(
        default=None,
        description="a whole number >= batch.min_atomic: the most samples of one pass on one GPU",
    )
    accumulation: bool = Field(
        default=True, description="true or false: whether gradients may be accumulated over passes"
    )


class JobFile(_Section):
    """One job."""

    name: str = Field(
        min_length=1, max_length=NAME_LENGTH_MAX, description=f"text of 1..{NAME_LENGTH_MAX} characters"
    )
    run: str = Field(pattern=r"\S", description="a shell command; it is run once per GPU")
    setup: str = Field(default="", description="a shell command; it is run once, before the first start")
    workdir: str = Field(default=".", description="a directory; a relative one starts at the job file")
    envs: dict[str, str | int | float] = Field(
        default_factory=dict, description="a mapping of variable names to text or numbers"
    )
    resources: ResourcesSection = Field(
        default_factory=ResourcesSection, description="a mapping with gpus, requested"
    )
    batch: BatchSection = Field(description="a mapping with at least initial")
    contract: Annotated[RescaleContract, Field(strict=False)] = Field(
        default=RescaleContract.FIXED, description=", ".join(RescaleContract)
    )
    tenant: str = Field(
        default="default", min_length=1, description="text: the user or team that owns the job"
    )
    application: str = Field(default="", description="text: what the job trains")
    max_failures: int = Field(
        default=3, ge=0, description="a whole number >= 0: how often the job is started again after it failed"
    )


class _StrictLoader(yaml.SafeLoader):
    """YAML without the last-one-wins of repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                problem = f"the key {key.value} stands here twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_job_file(path: Path) -> JobFile:
    """Return the parsed file with an absolute workdir. Raises InputError (field, value, allowed)."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("job file", str(path), f"a text file that can be read ({error})") from None
    try:
        document = yaml.load(text, _StrictLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise InputError(f"{path.name} line {line}", _line(text, line), f"YAML ({error.problem})") from None
    if not isinstance(document, dict):
        raise InputError(path.name, document, f"a mapping with {', '.join(JobFile.model_fields)}")
    try:
        job = JobFile.model_validate(document)
    except ValidationError as error:
        raise input_error(JobFile, error.errors()) from None
    return job.model_copy(update={"workdir": str((path.parent / Path(job.workdir).expanduser()).resolve())})


def job_spec(job: JobFile) -> JobSpec:
    """Return what the file asks for. Raises InputError where values do not fit each other or the disk."""
    workdir = Path(job.workdir)
    if not workdir.is_absolute():
        raise InputError("workdir", job.workdir, "an absolute path")
    if not workdir.is_dir():
        raise InputError("workdir", job.workdir, "a directory that exists")
    _check_script(job.run, workdir)
    for name in job.envs:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise InputError("envs", name, "names of letters, digits and _, not beginning with a digit")
    return JobSpec(
        name=job.name,
        batch=_batch_limits(job.batch),
        replicas=_replica_limits(job.resources),
        contract=job.contract,
        tenant=Tenant(id=job.tenant),
        application=job.application,
        max_failures=job.max_failures,
        launch=Launch(
            run=job.run,
            setup=job.setup,
            envs=tuple((name, str(value)) for name, value in sorted(job.envs.items())),
            workdir=str(workdir),
        ),
    )


def input_error(model: type[BaseModel], errors: Sequence[Mapping[str, object]]) -> InputError:
    """Return the first of pydantic's `errors` about `model` as the one line that a user sees."""
    error = errors[0]
    location = error["loc"]
    assert isinstance(location, tuple)
    path: list[str] = []
    allowed, keys = "", list(model.model_fields)
    annotation: object = model
    for part in location:
        section = annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
        if section is None and get_origin(annotation) is not dict:
            break  # what follows is pydantic's name for a member of a union
        path.append(str(part))
        keys = list(section.model_fields) if section else keys
        if section is None or part not in keys:
            break
        allowed = section.model_fields[part].description or ""
        annotation = section.model_fields[part].annotation
    name = ".".join(path)
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(path[-1], keys, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return InputError(name, error["input"], f"only the keys {', '.join(keys)}{hint}")
    if error["type"] == "missing":
        return InputError(name, None, f"{allowed}; the key is missing")
    return InputError(name or "body", error["input"], allowed or str(error["msg"]))


def _line(text: str, number: int) -> str:
    lines = text.splitlines()
    return lines[number - 1].strip() if 0 < number <= len(lines) else ""


def _replica_limits(resources: ResourcesSection) -> ReplicaLimits:
    match = re.fullmatch(r"\s*(\d+)\s*(?:\.\.\s*(\d+)\s*)?", str(resources.gpus))
    smallest, largest = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= smallest <= largest:
        raise InputError("resources.gpus", resources.gpus, GPUS_ALLOWED)
    requested = resources.requested or smallest
    if not smallest <= requested <= largest:
        raise InputError("resources.requested", requested, f"within resources.gpus, {smallest}..{largest}")
    return ReplicaLimits(min=smallest, max=largest, requested=requested)


def _batch_limits(batch: BatchSection) -> BatchLimits:
    most = batch.max or max(batch.initial, batch.requested or 0)
    requested = batch.requested or batch.initial
    if most < batch.initial:
        raise InputError("batch.max", batch.max, f"a whole number >= batch.initial, {batch.initial}")
    if requested > most:
        raise InputError("batch.requested", requested, f"within 1..batch.max, 1..{most}")
    if batch.max_atomic is not None and batch.max_atomic < batch.min_atomic:
        raise InputError(
            "batch.max_atomic", batch.max_atomic, f"a whole number >= batch.min_atomic, {batch.min_atomic}"
        )
    return BatchLimits(
        initial=batch.initial,
        requested=requested,
        max_total=most,
        min_atomic=batch.min_atomic,
        max_atomic=batch.max_atomic,
        accumulation=batch.accumulation,
    )


def _check_script(run: str, workdir: Path) -> None:
    """Refuse a missing script where the command is plain enough to be sure which script it names."""
    if re.search(r"[;&|<>$(){}`\n*?\\]", run.strip()):
        return
    try:
        words = shlex.split(run)
    except ValueError as error:
        raise InputError("run", run, f"a shell command ({error})") from None
    while words and "=" in words[0]:
        words.pop(0)
    if words and re.match(r"python|torchrun$", Path(words[0]).name):
        words.pop(0)
    script = next((word for word in words if not word.startswith("-")), "")
    if "-m" in words or "-c" in words or not script.endswith(".py"):
        return
    if not (workdir / script).is_file():
        raise InputError("run", script, f"a script that exists in workdir {workdir}")
