"""A table of one's own: CSV with a header, one job per line.

Needed: `arrival_s`, `gpus`, and `application` or `curve`. The other columns are
optional; one that is not in WRITTEN is refused. docs/traces.md has what each column
means.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from coadapt.model import (
    DEFAULT_TENANT,
    InputError,
    JobLength,
    JobSpec,
    ReplicaLimits,
    RescaleContract,
    Tenant,
)
from coadapt.sim.applications import Application
from coadapt.sim.traces import osdi21, sia
from coadapt.sim.traces.cluster_log import of_rows, what_of
from coadapt.sim.traces.curve import CurveApplication, curve_spec
from coadapt.sim.traces.table import Row, header_of, read_rows
from coadapt.sim.traces.tally import ReadOptions, Tally
from coadapt.sim.workload import (
    ARRIVAL_MAX_S,
    LENGTH_MAX_S,
    TraceJob,
    Workload,
)

COLUMNS = ("arrival_s", "gpus")
WRITTEN = (
    "name",
    "arrival_s",
    "application",
    "curve",
    "gpus",
    "gpus_min",
    "gpus_max",
    "batch",
    "contract",
    "length_s",
    "tenant",
    "priority",
    "weight",
    "deadline_s",
    "declared_length",
    "gpu_load",
)
NO_GPU = "no GPU"
DECLARED = (
    "a number > 0 and a unit, such as '90 epochs', '1000 steps', '64000 samples', "
    "or, with a curve, '600 s'"
)
UNITS = ("epochs", "steps", "samples")
CONTRACTS = (RescaleContract.ADAPTIVE, RescaleContract.FIXED)
CURVE = "GPUS:RATE pairs, such as '1:100 2:190 4:350', ascending"

Known = Mapping[str, Callable[[], Application]]


def recognises(lines: Sequence[str], profiles: Path | None) -> bool:  # noqa: ARG001  # the signature is that of Importer
    """Return whether a file with these first lines is of this format."""
    return "arrival_s" in header_of(lines)


def load(
    path: Path, profiles: Path | None, options: ReadOptions | None = None
) -> tuple[Workload, dict[str, Application]]:
    """Return the jobs of `path` with what they train: of `profiles`, of the built-in
    ones, or curves.

    Rows without GPUs are left out and counted. Raises InputError for anything that the
    format does not allow.
    """
    known = known_applications(profiles)
    tally = Tally(options=options or ReadOptions())
    rows = list(read_rows(path, COLUMNS, tally, known=WRITTEN))
    width = len(str(len(rows) - 1))
    applications: dict[str, Application] = {}
    weights: dict[str, float] = {}
    jobs = []
    for index, row in enumerate(rows):
        try:
            found = _job(row, f"job-{index}", known, applications)
            if found is not None:
                _note_weight(row, weights)
        except InputError as error:
            tally.bad(what_of(error), error)
            continue
        if found is None:
            tally.leave_out(NO_GPU)
            continue
        tally.keep()
        application, spec = found
        applications[application.name] = application
        own_s = (
            sia.RESCALE_S.get(application.name)
            if isinstance(application, sia.TypedApplication)
            else None
        )
        jobs.append(
            TraceJob(
                id=f"{index:0{width}d}-{spec.name}",
                at=row.number("arrival_s", ARRIVAL_MAX_S),
                application=application.name,
                spec=spec,
                rescale_s=own_s,
            )
        )
    tally.close()
    if not jobs:
        raise InputError(f"{path}", "no job that needs a GPU", "at least one")
    tenants = tuple(Tenant(id=name, weight=weight) for name, weight in weights.items())
    return replace(of_rows(path, jobs, tally), tenants=tenants), applications


def _job(
    row: Row, nameless: str, known: Known, made: Mapping[str, Application]
) -> tuple[Application, JobSpec] | None:
    """Return a row's application and its spec, None if it needs no GPU. Raises
    InputError.
    """
    if row.integer("gpus", at_least=0) == 0:
        return None
    at = row.number("arrival_s", ARRIVAL_MAX_S)
    name = row.cells.get("name") or nameless
    application = _application(row, known, made)
    if isinstance(application, CurveApplication):
        spec = _curve_spec(row, application, name)
    else:
        spec = _spec(row, application, name)
    priority = row.cells.get("priority")
    deadline_at = row.number("deadline_s") if row.cells.get("deadline_s") else None
    if deadline_at is not None and deadline_at < at:
        raise row.error(
            "deadline_s", deadline_at, f"an instant like arrival_s, and no less: {at:g}"
        )
    try:
        return application, replace(
            spec,
            tenant=row.cells.get("tenant") or DEFAULT_TENANT,
            priority=_signed(row, "priority") if priority else 0,
            deadline_at=deadline_at,
            length=_declared(row, application),
        )
    except InputError:
        raise
    except ValueError as error:
        raise row.error("tenant", row.cells.get("tenant"), str(error)) from None


def _note_weight(row: Row, weights: dict[str, float]) -> None:
    """Record the weight of the row's tenant. All rows of a tenant that have a weight
    must have the same one.
    """
    if not row.cells.get("weight"):
        return
    tenant = row.cells.get("tenant") or DEFAULT_TENANT
    weight = row.number("weight")
    if not weight:
        raise row.error("weight", weight, "a finite number > 0")
    if weights.setdefault(tenant, weight) != weight:
        raise row.error(
            "weight",
            weight,
            f"{weights[tenant]:g} as above: it is the weight of the tenant {tenant!r}",
        )


def _signed(row: Row, column: str) -> int:
    text = row.cells[column]
    try:
        return int(text)
    except ValueError:
        raise row.error(column, text, "an integer; higher goes first") from None


def _declared(row: Row, application: Application) -> JobLength | None:
    """Return the job's length as its user declares it. It may be wrong."""
    text = row.cells.get("declared_length", "")
    if not text:
        return None
    amount, _, unit = text.partition(" ")
    try:
        value = float(amount)
        if unit.strip() == "s" and isinstance(application, CurveApplication):
            return JobLength(samples=application.samples_in(value))
        if unit.strip() in UNITS:
            return JobLength(**{unit.strip(): value})
    except ValueError:
        pass
    raise row.error("declared_length", text, DECLARED)


def _curve_spec(row: Row, application: CurveApplication, name: str) -> JobSpec:
    """Return the spec of a job with a curve. The columns gpus_min and gpus_max limit
    the range of GPUs that the curve covers.
    """
    spec = curve_spec(application, name=name)
    limits = spec.replicas
    fewest = _integer(row, "gpus_min") or limits.min
    most = _integer(row, "gpus_max") or limits.max
    covered = f"{limits.min}..{limits.max}, which its curve covers"
    if not limits.min <= fewest <= limits.requested:
        raise row.error("gpus_min", fewest, f"at most `gpus`, and {covered}")
    if not limits.requested <= most <= limits.max:
        raise row.error("gpus_max", most, f"no less than `gpus`, and {covered}")
    # `write_plain` writes the batch of a curve too, although it has no meaning.
    if _integer(row, "batch") not in (0, spec.batch.requested):
        raise row.error("batch", row.cells["batch"], "nothing: a curve has none")
    if row.cells.get("contract") not in (None, "", RescaleContract.FIXED.value):
        raise row.error("contract", row.cells["contract"], "fixed, which curves are")
    may = ReplicaLimits(min=fewest, max=most, requested=limits.requested)
    return replace(spec, replicas=may)


def write_plain(
    path: Path, workload: Workload, applications: Mapping[str, Application]
) -> None:
    """Write `workload` as a table. `load` reads the same workload from it. An existing
    file of that name is replaced.

    Raises InputError for a job that a table cannot describe: one that changes its batch
    by itself.
    """
    lines: list[tuple[object, ...]] = [WRITTEN]
    weights = {tenant.id: repr(tenant.weight) for tenant in workload.tenants}
    for job in workload.jobs:
        spec = job.spec
        application = applications[job.application]
        if spec.contract not in CONTRACTS:
            allowed = (
                f"jobs of contract {' or '.join(CONTRACTS)}, which a table can hold"
            )
            raise InputError(
                "WORKLOAD", f"{job.id}, of contract {spec.contract}", allowed
            )
        named = job.application
        curve = ""
        length_s = ""
        if isinstance(application, CurveApplication):
            curve = " ".join(
                f"{gpus}:{rate!r}" for gpus, rate in application.rates.items()
            )
            named = ""
            length_s = repr(application.length_s)
        limits = spec.replicas
        where = (
            limits.requested,
            limits.min,
            limits.max,
            spec.batch.requested,
            str(spec.contract),
        )
        weight = weights.get(spec.tenant, "")
        deadline_at = "" if spec.deadline_at is None else repr(spec.deadline_at)
        load = repr(application.load) if curve and application.load < 1.0 else ""
        terms = (spec.priority or "", weight, deadline_at, _length_text(spec.length))
        lines.append(
            (
                spec.name,
                job.at,
                named,
                curve,
                *where,
                length_s,
                spec.tenant,
                *terms,
                load,
            )
        )
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)


def _length_text(length: JobLength | None) -> str:
    if length is None:
        return ""
    values = {unit: getattr(length, unit) for unit in UNITS}
    return next(f"{value!r} {unit}" for unit, value in values.items() if value)


def known_applications(profiles: Path | None) -> Known:
    """Return a function for each application in `profiles` that returns it. Without
    profiles: the built-in applications.
    """
    if profiles is None:
        from coadapt.sim.library.profiles import BUILTIN_APPLICATIONS

        return {
            name: partial(BUILTIN_APPLICATIONS.__getitem__, name)
            for name in BUILTIN_APPLICATIONS
        }
    typed = any(profiles.glob(f"*/{sia.PROFILE}"))
    return sia.applications_in(profiles) if typed else osdi21.applications_in(profiles)


def _application(
    row: Row, known: Known, made: Mapping[str, Application]
) -> Application:
    name = row.cells.get("application", "")
    curve = row.cells.get("curve", "")
    if bool(name) is bool(curve):
        raise row.error(
            "application",
            name,
            "an application, or a curve in the column `curve`, not both",
        )
    if curve:
        return _curve(row, curve)
    if name not in known:
        raise row.error("application", name, f"one of {', '.join(known)}")
    return made.get(name) or known[name]()


def _curve(row: Row, text: str) -> CurveApplication:
    rates: dict[int, float] = {}
    for pair in text.split():
        count, _, rate = pair.partition(":")
        try:
            gpus = int(count)
            samples = float(rate)
        except ValueError:
            raise row.error("curve", text, CURVE) from None
        if (
            gpus < 1
            or gpus <= max(rates, default=0)
            or not 0.0 < samples < float("inf")
        ):
            raise row.error("curve", text, CURVE)
        rates[gpus] = samples
    gpus = row.integer("gpus", at_least=1)
    if not min(rates) <= gpus <= max(rates):
        raise row.error(
            "gpus", gpus, f"{min(rates)}..{max(rates)}, which its curve covers"
        )
    if "length_s" not in row.cells:
        raise InputError(
            f"{row.path} line 1, columns",
            ",".join(row.cells),
            "a column 'length_s' for curves",
        )
    length_s = row.number("length_s", LENGTH_MAX_S)
    if not length_s:
        raise row.error("length_s", length_s, "a finite number > 0")
    load = row.number("gpu_load") if row.cells.get("gpu_load") else 1.0
    if not 0.0 < load <= 1.0:
        raise row.error("gpu_load", load, "a number in (0, 1]")
    shown = " ".join(f"{count}:{rate:g}" for count, rate in rates.items())
    name = f"{shown} on {gpus} for {length_s:g} s"
    if load < 1.0:
        name += f", load {load:g}"
    return CurveApplication(name, rates, gpus=gpus, length_s=length_s, load=load)


def _spec(row: Row, application: Application, name: str) -> JobSpec:
    limits = application.limits
    gpus = row.integer("gpus", at_least=1)
    fewest = _integer(row, "gpus_min") or 1
    total = _integer(row, "batch") or limits.initial
    contract = row.cells.get("contract") or RescaleContract.ADAPTIVE.value
    if contract not in CONTRACTS:
        raise row.error("contract", contract, " or ".join(CONTRACTS))
    if not limits.initial <= total <= limits.max_total:
        raise row.error(
            "batch", total, f"{limits.initial}..{limits.max_total}, which is known"
        )
    for column in ("length_s", "gpu_load"):
        if row.cells.get(column):
            allowed = "nothing: an application has its own"
            raise row.error(column, row.cells[column], allowed)
    most = _integer(row, "gpus_max") or max(
        limits.max_total // limits.min_atomic, fewest
    )
    if not fewest <= gpus <= most:
        raise row.error(
            "gpus", gpus, f"{fewest}..{most}, by its limits or its largest batch"
        )
    return JobSpec(
        name=name,
        application=application.name,
        batch=replace(limits, requested=total),
        replicas=ReplicaLimits(min=fewest, max=most, requested=gpus),
        contract=RescaleContract(contract),
    )


def _integer(row: Row, column: str) -> int:
    """Return the cell, 0 where there is none."""
    return row.integer(column, at_least=1) if row.cells.get(column) else 0
