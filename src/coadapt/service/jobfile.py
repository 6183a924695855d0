"""The job file: YAML or JSON from a user, parsed strictly into a JobSpec.

The description of a field says which values are allowed. Error messages and the API's
schema quote it.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coadapt.model import (
    BatchLimits,
    BatchRule,
    BatchSchedule,
    InputError,
    JobLength,
    JobSpec,
    Launch,
    ReplicaLimits,
    RescaleContract,
)
from coadapt.model.batch_rule import ALLOWED as RULE_ALLOWED
from coadapt.model.bounds import (
    LABEL_ALLOWED,
    WHOLE_MAX,
    check_outside,
    check_scalar,
    is_label,
)
from coadapt.model.checkpoint_url import ALLOWED as CHECKPOINTS_ALLOWED
from coadapt.model.checkpoint_url import check_checkpoint_url
from coadapt.model.contract_env import is_reserved_env
from coadapt.model.errors import reason_of, shown, suggestion
from coadapt.model.job import HANG_TIMEOUT_S, SETUP_TIMEOUT_S
from coadapt.model.schedule import ALLOWED as SCHEDULE_ALLOWED
from coadapt.model.tenant import EVERYBODY
from coadapt.objects import check_scheme
from coadapt.service.deadline import DEADLINE_ALLOWED, deadline_at
from coadapt.service.job_params import check_params, filled, param_envs
from coadapt.service.job_yaml import load_yaml
from coadapt.service.limits import (
    COMMAND_BYTES_MAX,
    COST_MAX,
    COST_MIN,
    ENVS_BYTES_MAX,
    ENVS_MAX,
    FAILURES_MAX,
    GPUS_MAX,
    HANG_TIMEOUT_MIN_S,
    JOB_FILE_BYTES_MAX,
    NAME_LENGTH_MAX,
    NAMES_MAX,
    PATH_BYTES_MAX,
    PRIORITY_MAX,
    SAMPLES_MAX,
    SCHEDULE_LENGTH_MAX,
    SECONDS_MAX,
    SETUP_TIMEOUT_MIN_S,
)

GPUS_ALLOWED = (
    f"a number >= 1, or MIN..MAX with 1 <= MIN <= MAX <= {GPUS_MAX}, for instance 1..4"
)
NAME_ALLOWED = f"text of 1..{NAME_LENGTH_MAX} characters"

Gpus = Annotated[int, Field(ge=1, le=GPUS_MAX)]
Samples = Annotated[int, Field(ge=1, le=SAMPLES_MAX)]
Length = Annotated[float, Field(gt=0, lt=WHOLE_MAX)]
GpuTypeName = Annotated[str, Field(min_length=1, max_length=NAME_LENGTH_MAX)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ResourcesSection(_Section):
    """The GPUs that the job may hold."""

    gpus: int | str = Field(default=1, description=GPUS_ALLOWED)
    requested: Gpus | None = Field(
        default=None,
        description="a whole number within gpus: the count of policies that never rescale",
    )
    gpu_types: list[GpuTypeName] = Field(
        default_factory=list,
        max_length=NAMES_MAX,
        description="a list of names of GPU types: it runs on these only; empty: on any",
    )


class BatchSection(_Section):
    """Batch sizes in samples."""

    initial: Samples = Field(
        description=f"a whole number in 1..{SAMPLES_MAX}: the total batch that the job was "
        f"tuned for"
    )
    max: Samples | None = Field(
        default=None,
        description="a whole number >= batch.initial: the largest total batch",
    )
    requested: Samples | None = Field(
        default=None,
        description="a whole number within 1..batch.max: the total batch unless adaptive",
    )
    min_atomic: Samples = Field(
        default=1,
        description="a whole number >= 1: the least samples of one pass on one GPU",
    )
    max_atomic: Samples | None = Field(
        default=None,
        description="a whole number >= batch.min_atomic: the most samples of one pass on one "
        "GPU",
    )
    accumulation: bool = Field(
        default=True,
        description="true or false: whether gradients may be accumulated over passes",
    )
    schedule: str | None = Field(
        default=None,
        max_length=SCHEDULE_LENGTH_MAX,
        description=f"{SCHEDULE_ALLOWED}; with contract schedule",
    )
    schedule_unit: Literal["samples", "tokens"] = Field(
        default="samples",
        description="samples or tokens: what the numbers before the colons count",
    )
    tokens_per_sample: Samples | None = Field(
        default=None,
        description=f"a whole number in 1..{SAMPLES_MAX}, with schedule_unit tokens",
    )
    rule: str | None = Field(
        default=None,
        max_length=NAME_LENGTH_MAX,
        description=f"{RULE_ALLOWED}; with contract self",
    )


class LengthSection(_Section):
    """The length of the job in one of three units: a hint for policies that may be
    wrong.
    """

    epochs: Length | None = Field(
        default=None, description="a number > 0 of passes over the data"
    )
    steps: Length | None = Field(
        default=None, description="a number > 0 of optimiser steps"
    )
    samples: Length | None = Field(default=None, description="a number > 0 of samples")


class JobFile(_Section):
    """One job."""

    name: str = Field(
        min_length=1, max_length=NAME_LENGTH_MAX, description=NAME_ALLOWED
    )
    run: str = Field(
        pattern=r"\S", description="a shell command; it is run once per GPU"
    )
    setup: str = Field(
        default="",
        description="a shell command; it is run once, before the first start",
    )
    workdir: str = Field(
        default=".", description="a directory; a relative one starts at the job file"
    )
    envs: dict[str, str | int | float] = Field(
        default_factory=dict,
        description="a mapping of variable names to text or numbers",
    )
    params: dict[str, bool | int | float | str] = Field(
        default_factory=dict,
        description="a mapping of names to numbers, text, true or false: {name} in run and "
        "setup, COADAPT_PARAM_name, ct.params()",
    )
    resources: ResourcesSection = Field(
        default_factory=ResourcesSection,
        description="a mapping with gpus, requested, gpu_types",
    )
    batch: BatchSection = Field(description="a mapping with at least initial")
    contract: Annotated[RescaleContract, Field(strict=False)] = Field(
        default=RescaleContract.FIXED, description=", ".join(RescaleContract)
    )
    tenant: str = Field(
        default="default",
        min_length=1,
        max_length=NAME_LENGTH_MAX,
        description=f"{NAME_ALLOWED}: the user or team that owns the job",
    )
    priority: int = Field(
        default=0,
        ge=-PRIORITY_MAX,
        le=PRIORITY_MAX,
        description=f"a whole number in {-PRIORITY_MAX}..{PRIORITY_MAX}: higher goes first "
        f"in its tenant",
    )
    deadline: str | None = Field(default=None, description=DEADLINE_ALLOWED)
    length: LengthSection | None = Field(
        default=None, description="a mapping with one of epochs, steps, samples"
    )
    application: str = Field(
        default="",
        max_length=NAME_LENGTH_MAX,
        description=f"text of at most {NAME_LENGTH_MAX} characters: what the job trains",
    )
    max_failures: int = Field(
        default=3,
        ge=0,
        le=FAILURES_MAX,
        description=f"a whole number in 0..{FAILURES_MAX}: how often it is started again "
        f"after it failed",
    )
    max_cost: float | None = Field(
        default=None,
        ge=COST_MIN,
        le=COST_MAX,
        description=f"a number in {COST_MIN:g}..{COST_MAX:g}, in the currency of the "
        "scheduler's prices: the job is stopped once it has cost as much",
    )
    hang_timeout: float | None = Field(
        default=HANG_TIMEOUT_S,
        ge=HANG_TIMEOUT_MIN_S,
        le=SECONDS_MAX,
        description=f"seconds >= {HANG_TIMEOUT_MIN_S:g} without a report after which it is "
        f"started again; "
        "null for never",
    )
    setup_timeout: float | None = Field(
        default=SETUP_TIMEOUT_S,
        ge=SETUP_TIMEOUT_MIN_S,
        le=SECONDS_MAX,
        description=f"seconds >= {SETUP_TIMEOUT_MIN_S:g} after which a setup that runs is "
        f"ended; "
        "null for never",
    )
    checkpoints: str = Field(
        default="", description=f"{CHECKPOINTS_ALLOWED}; empty: in the state directory"
    )


def read_job_file(path: Path) -> JobFile:
    """Return the parsed file with an absolute workdir. Raises InputError."""
    try:
        size = path.stat().st_size
        text = path.read_text(encoding="utf-8") if size <= JOB_FILE_BYTES_MAX else ""
    except (OSError, ValueError) as error:
        raise InputError(
            "job file", str(path), f"a text file that can be read ({reason_of(error)})"
        ) from None
    if size > JOB_FILE_BYTES_MAX:
        raise InputError(
            "job file", f"{path}, {size} bytes", f"at most {JOB_FILE_BYTES_MAX} bytes"
        )
    return parse_job_file(text, path.name, path.parent)


def parse_job_file(text: str, name: str, folder: Path) -> JobFile:
    """Return the parsed job file `text`. Raises InputError.

    name: the file's name in errors. folder: where its relative paths start.
    """
    return job_file_of(load_yaml(text, name), name, folder)


def job_file_of(document: object, name: str, folder: Path) -> JobFile:
    """Return the job file of a document that was parsed from YAML or JSON.

    Otherwise like parse_job_file.
    """
    if not isinstance(document, dict):
        keys = ", ".join(JobFile.model_fields)
        given = "an empty file" if document is None else document
        raise InputError(name, given, f"a mapping with {keys}")
    check_outside(document)
    try:
        job = JobFile.model_validate(document)
    except ValidationError as error:
        raise input_error(JobFile, error.errors()) from None
    return job.model_copy(update={"workdir": _absolute(job.workdir, folder)})


def _absolute(workdir: str, folder: Path) -> str:
    try:
        expanded = Path(workdir).expanduser()
        return str((folder / expanded).resolve())
    except (
        OSError,
        RuntimeError,
        ValueError,
    ) as error:  # unknown user, loop of links, or too long
        raise InputError(
            "workdir", workdir, f"a path that can be followed ({error})"
        ) from None


def job_spec(job: JobFile, at: float) -> JobSpec:
    """Return the spec of a job file that is submitted at instant `at`, s.

    Raises InputError if values do not fit together.
    """
    if not Path(job.workdir).is_absolute():
        raise InputError("workdir", job.workdir, "an absolute path")
    if job.tenant == EVERYBODY:
        raise InputError(
            "tenant", job.tenant, "the name of one tenant; this one means all tenants"
        )
    _check_texts(job)
    check_params(job.params)
    envs = _envs(job)
    return JobSpec(
        name=job.name,
        batch=_batch_limits(job.batch, _schedule(job), _rule(job)),
        replicas=replica_limits(job.resources),
        contract=job.contract,
        tenant=job.tenant,
        priority=job.priority,
        deadline_at=None if job.deadline is None else deadline_at(job.deadline, at),
        length=None if job.length is None else _length(job.length),
        application=job.application,
        max_failures=job.max_failures,
        max_cost=job.max_cost,
        launch=Launch(
            run=filled(job.run, job.params),
            setup=filled(job.setup, job.params),
            envs=envs,
            workdir=str(Path(job.workdir)),
            hang_timeout_s=job.hang_timeout,
            setup_timeout_s=job.setup_timeout,
            checkpoints=job.checkpoints,
        ),
    )


def check_disk(launch: Launch) -> None:
    """Raise InputError if the workdir, or the script that the command names, does not
    exist on this machine.
    """
    workdir = Path(launch.workdir)
    if not _on_disk(workdir.is_dir):
        raise InputError("workdir", launch.workdir, "a directory that exists")
    _check_script(launch.run, workdir)


def _check_texts(job: JobFile) -> None:
    for field in ("name", "tenant", "application", "workdir"):
        if not is_label(getattr(job, field)):
            raise InputError(field, getattr(job, field), LABEL_ALLOWED)
    limits = {"run": COMMAND_BYTES_MAX, "setup": COMMAND_BYTES_MAX}
    limits |= {"workdir": PATH_BYTES_MAX, "checkpoints": PATH_BYTES_MAX}
    for field, most in limits.items():
        check_scalar(getattr(job, field), field)
        if len(getattr(job, field).encode()) > most:
            raise InputError(
                field,
                getattr(job, field),
                f"at most {most} bytes; put a long script into a file",
            )
    if job.checkpoints:
        check_checkpoint_url(job.checkpoints, "checkpoints")
        check_scheme(job.checkpoints, "checkpoints")


def _envs(job: JobFile) -> tuple[tuple[str, str], ...]:
    params = param_envs(job.params)
    size = sum(len(f"{name}={value}".encode()) for name, value in params.items())
    for name, value in job.envs.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise InputError(
                "envs",
                name,
                "names of letters, digits and _, not beginning with a digit",
            )
        if is_reserved_env(name):
            raise InputError(
                f"envs.{name}", value, "names that Coadapt does not set itself"
            )
        check_scalar(value, f"envs.{name}")
        size += len(f"{name}={value}".encode())
    number = len(job.envs) + len(params)
    if number > ENVS_MAX or size > ENVS_BYTES_MAX:
        allowed = f"at most {ENVS_MAX} variables of {ENVS_BYTES_MAX} bytes in all"
        raise InputError("envs", f"{number} variables of {size} bytes", allowed)
    given = {name: str(value) for name, value in job.envs.items()}
    return tuple(sorted({**given, **params}.items()))


def input_error(
    model: type[BaseModel], errors: Sequence[Mapping[str, object]]
) -> InputError:
    """Return the first of pydantic's `errors` about `model` as an InputError, one line
    for a user.
    """
    error = errors[0]
    location = error["loc"]
    assert isinstance(location, tuple)
    path: list[str] = []
    allowed = ""
    keys = list(model.model_fields)
    annotation: object = model
    for part in location:
        section = (
            annotation
            if isinstance(annotation, type) and issubclass(annotation, BaseModel)
            else None
        )
        if section is None and get_origin(annotation) is not dict:
            break  # the rest is pydantic's name of a member of a union
        path.append(str(part))
        keys = list(section.model_fields) if section else keys
        if section is None or part not in keys:
            break
        allowed = section.model_fields[part].description or ""
        annotation = section.model_fields[part].annotation
    name = ".".join(path) or "body"
    if error["type"] == "extra_forbidden":
        allowed = f"only the keys {', '.join(keys)}{suggestion(path[-1], keys)}"
        return InputError(name, error["input"], allowed)
    allowed = allowed or (
        str(error["msg"]) if path else f"a mapping with {', '.join(keys)}"
    )
    if error["type"] == "missing":
        return InputError(
            name, None, f"{allowed}; the key is missing" if path else allowed
        )
    return InputError(name, error["input"], allowed + _quoting_hint(error))


def _quoting_hint(error: Mapping[str, object]) -> str:
    """Return the advice to quote a word that YAML read as a boolean or a number."""
    value = error["input"]
    if error["type"] == "string_type" and isinstance(value, bool):
        return (
            "; yes, no, on, off, true and false are truth values in YAML: quote the "
            "word"
        )
    if error["type"] == "string_type" and isinstance(value, int | float):
        return f'; quote it: "{shown(value)}"'
    return ""


def replica_limits(resources: ResourcesSection) -> ReplicaLimits:
    """Return the GPUs that a job may hold. Raises InputError."""
    # [0-9], because \d matches the digits of other scripts, too. No leading zeros,
    # because YAML 1.1 reads such numbers as octal.
    match = re.fullmatch(
        r" *([1-9][0-9]{0,8}) *(?:\.\. *([1-9][0-9]{0,8}) *)?",
        str(resources.gpus)[:100],
    )
    smallest, largest = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= smallest <= largest <= GPUS_MAX:
        raise InputError("resources.gpus", resources.gpus, GPUS_ALLOWED)
    requested = resources.requested or smallest
    if not smallest <= requested <= largest:
        raise InputError(
            "resources.requested",
            requested,
            f"within resources.gpus, {smallest}..{largest}",
        )
    gpu_types = tuple(resources.gpu_types)
    for name in gpu_types:
        if not is_label(name) or gpu_types.count(name) > 1:
            raise InputError(
                "resources.gpu_types", name, f"different names: {LABEL_ALLOWED}"
            )
    return ReplicaLimits(
        min=smallest, max=largest, requested=requested, gpu_types=gpu_types
    )


def _length(length: LengthSection) -> JobLength:
    given = length.model_dump(exclude_none=True)
    if len(given) != 1:
        raise InputError("length", given, "exactly one of epochs, steps, samples")
    return JobLength(**given)


def _schedule(job: JobFile) -> BatchSchedule | None:
    """Return the declared schedule in samples, None without one.

    Raises InputError if a key of a schedule is given without contract schedule.
    """
    batch = job.batch
    per_sample = job.batch.tokens_per_sample
    scheduled = job.contract is RescaleContract.SCHEDULE
    if scheduled is not (batch.schedule is not None):
        allowed = (
            SCHEDULE_ALLOWED
            if scheduled
            else f"none under contract {job.contract}, only under schedule"
        )
        raise InputError("batch.schedule", batch.schedule, allowed)
    tokens = batch.schedule_unit == "tokens"
    if tokens and not scheduled:
        raise InputError(
            "batch.schedule_unit", batch.schedule_unit, "only with batch.schedule"
        )
    if tokens is not (per_sample is not None):
        allowed = "a whole number >= 1 with schedule_unit tokens, and only with it"
        raise InputError("batch.tokens_per_sample", per_sample, allowed)
    if batch.schedule is None:
        return None
    schedule = BatchSchedule.parse(batch.schedule, tokens_per_sample=per_sample or 1)
    if max(schedule.totals) > SAMPLES_MAX:
        raise InputError(
            "batch.schedule", max(schedule.totals), f"batches of at most {SAMPLES_MAX}"
        )
    return schedule


def _rule(job: JobFile) -> BatchRule | None:
    """Return the rule by which the job changes its batch itself, None without one."""
    if job.batch.rule is None:
        return None
    if job.contract is not RescaleContract.SELF:
        raise InputError(
            "batch.rule",
            job.batch.rule,
            f"no rule under contract {job.contract}; a rule needs contract self",
        )
    rule = BatchRule.parse(job.batch.rule)
    first = job.batch.requested or job.batch.initial
    if (job.batch.max or 0) <= first:
        raise InputError(
            "batch.max", job.batch.max, f"with batch.rule, a whole number above {first}"
        )
    return rule


def _batch_limits(
    batch: BatchSection, schedule: BatchSchedule | None, rule: BatchRule | None
) -> BatchLimits:
    first, largest = (
        (batch.initial, 0)
        if schedule is None
        else (schedule.totals[0], max(schedule.totals))
    )
    requested = batch.requested or first
    most = batch.max or max(batch.initial, requested, largest)
    if most < batch.initial:
        raise InputError(
            "batch.max", batch.max, f"a whole number >= batch.initial, {batch.initial}"
        )
    if schedule is not None and requested != first:
        raise InputError(
            "batch.requested", requested, f"the first batch of batch.schedule, {first}"
        )
    if largest > most:
        raise InputError(
            "batch.schedule", largest, f"batches of at most batch.max, {most}"
        )
    if requested > most:
        raise InputError(
            "batch.requested", requested, f"within 1..batch.max, 1..{most}"
        )
    if batch.max_atomic is not None and batch.max_atomic < batch.min_atomic:
        raise InputError(
            "batch.max_atomic",
            batch.max_atomic,
            f"a whole number >= batch.min_atomic, {batch.min_atomic}",
        )
    return BatchLimits(
        initial=batch.initial,
        requested=requested,
        max_total=most,
        min_atomic=batch.min_atomic,
        max_atomic=batch.max_atomic,
        accumulation=batch.accumulation,
        schedule=schedule,
        rule=rule,
    )


def _check_script(run: str, workdir: Path) -> None:
    """Raise InputError if the command's script does not exist.

    Commands that are too complex to tell which script they run are not checked.
    """
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
    if not _on_disk((workdir / script).is_file):
        raise InputError("run", script, f"a script that exists in workdir {workdir}")


def _on_disk(question: Callable[[], bool]) -> bool:
    try:
        return question()
    except (OSError, ValueError):  # the name is too long, or links form a loop
        return False
