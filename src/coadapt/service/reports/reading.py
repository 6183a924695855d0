"""A training report at the door: what the job that sends it could have measured, and
nothing else.
"""

from collections.abc import Iterable, Mapping

from pydantic import JsonValue

from coadapt.core.state import JobRecord
from coadapt.model import (
    BatchConfig,
    InputError,
    JobSpec,
    RescaleContract,
    TrainingReport,
)
from coadapt.model.bounds import (
    KEY_MAX,
    NUMBER_ALLOWED,
    WHOLE_MAX,
    check_outside,
    is_label,
)
from coadapt.model.report import LOGGED_MAX
from coadapt.model.wire import from_json
from coadapt.service.limits import (
    ACCUMULATION_MAX,
    GPUS_MAX,
    NAMES_MAX,
    SAMPLES_MAX,
    SECONDS_MAX,
)


def read_report(data: Mapping[str, JsonValue], record: JobRecord) -> TrainingReport:
    """Return the report in `data`, of the job of `record`. Raises InputError (field,
    value, allowed).
    """
    check_outside(data, "report")
    report = from_json(TrainingReport, data, "report")
    _check_numbers(report)
    if report.batch is not None:
        _check_batch(report.batch, record.spec)
    # The state keeps the metrics of earlier reports, so the names of all of them count.
    _check_logged(report)
    _check_names("metrics", report.metrics, record.measured.metrics)
    _check_names("by_type", report.by_type, record.measured.by_type)
    return report


def _check_logged(report: TrainingReport) -> None:
    if len(report.logged) > LOGGED_MAX:
        allowed = f"at most {LOGGED_MAX} rows"
        raise InputError("report.logged", f"{len(report.logged)} rows", allowed)
    for row in report.logged:
        _check_names("logged", row.values, ())


def _check_numbers(report: TrainingReport) -> None:
    bounds: list[tuple[str, float | None, float]] = [
        ("progress", report.progress, WHOLE_MAX),
        ("progress_target", report.progress_target, WHOLE_MAX),
        ("samples", report.samples, WHOLE_MAX),
        ("step_time_s", report.step_time_s, SECONDS_MAX),
    ]
    if report.forecast is not None:
        steps = report.forecast.step_time_s
        bounds += [
            ("forecast.remaining_steps", report.forecast.remaining_steps, WHOLE_MAX),
            ("forecast.step_time_s", max(steps), SECONDS_MAX),
            ("forecast.step_time_s, its length", len(steps), GPUS_MAX),
        ]
    for gpu_type, profile in report.by_type.items():
        where = f"by_type.{gpu_type}"
        bounds.append(
            (f"{where}.num_replicas_profiled", profile.num_replicas_profiled, GPUS_MAX)
        )
        bounds.append((f"{where}.max_atomic", profile.max_atomic, SAMPLES_MAX))
        for name in type(profile.params).__slots__:
            bounds.append(
                (f"{where}.params.{name}", getattr(profile.params, name), SECONDS_MAX)
            )
    if report.grad is not None:
        error = report.grad.noise_scale_stderr
        if error is not None and not error >= 0.0:
            raise InputError("report.grad.noise_scale_stderr", error, "a number >= 0")
    for name, value, most in bounds:
        if value is not None and not -most < value <= most:
            raise InputError(
                f"report.{name}", value, f"{NUMBER_ALLOWED}, and at most {most:g}"
            )


def _check_batch(batch: BatchConfig, spec: JobSpec) -> None:
    # A job under `self` picks its batch by rules of its own.
    most = (
        SAMPLES_MAX if spec.contract is RescaleContract.SELF else spec.batch.max_total
    )
    if batch.total > most:
        raise InputError(
            "report.batch.total", batch.total, f"at most the job's batch.max, {most}"
        )
    if batch.atomic > most:
        raise InputError(
            "report.batch.atomic", batch.atomic, f"at most the job's batch.max, {most}"
        )
    if batch.accumulation > ACCUMULATION_MAX:
        raise InputError(
            "report.batch.accumulation",
            batch.accumulation,
            f"at most {ACCUMULATION_MAX}",
        )


def _check_names(field: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if not is_label(name):
            raise InputError(
                f"report.{field}",
                name,
                f"names in one line, of at most {KEY_MAX} characters",
            )
    num = len({*names, *known})
    if num > NAMES_MAX:
        raise InputError(
            f"report.{field}",
            f"{num} names",
            f"at most {NAMES_MAX} in the life of a job",
        )
