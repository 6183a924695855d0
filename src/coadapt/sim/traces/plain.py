"""A table of one's own: CSV with a header, one job per line.

Needed: `arrival_s`, `gpus`, and `application` or `curve`. Optional: `name`, `gpus_min`, `gpus_max`, `batch`,
`contract`, `length_s`, `tenant`. docs/traces.md has what each column means.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from coadapt.model import (
    DEFAULT_TENANT,
    InputError,
    JobSpec,
    ReplicaLimits,
    RescaleContract,
)
from coadapt.sim.applications import Application
from coadapt.sim.traces import osdi21, sia
from coadapt.sim.traces.curve import CurveApplication, curve_spec
from coadapt.sim.traces.table import Row, read_rows
from coadapt.sim.workload import TraceJob, Workload

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
)
CONTRACTS = (RescaleContract.ADAPTIVE, RescaleContract.FIXED)
CURVE = "GPUS:RATE pairs, such as '1:100 2:190 4:350', ascending"

Known = Mapping[str, Callable[[], Application]]


def recognises(lines: Sequence[str], profiles: Path | None) -> bool:  # noqa: ARG001  # the signature is that of Importer
    """Return whether a file with these first lines is of this format."""
    return bool(lines) and "arrival_s" in {cell.strip() for cell in lines[0].split(",")}


def load(path: Path, profiles: Path | None) -> tuple[Workload, dict[str, Application]]:
    """Return the jobs of `path` with what they train: of `profiles`, of the built-in ones, or curves.

    Raises InputError for anything that the format does not allow.
    """
    known = known_applications(profiles)
    rows = list(read_rows(path, COLUMNS))
    width = len(str(len(rows) - 1))
    applications: dict[str, Application] = {}
    jobs = []
    for index, row in enumerate(rows):
        name = row.cells.get("name") or f"job-{index}"
        application = _application(row, known, applications)
        applications[application.name] = application
        if isinstance(application, CurveApplication):
            spec = curve_spec(
                application, name=name, tenant=row.cells.get("tenant", "")
            )
        else:
            spec = _spec(row, application, name)
        own_s = (
            sia.RESCALE_S.get(application.name)
            if isinstance(application, sia.TypedApplication)
            else None
        )
        jobs.append(
            TraceJob(
                id=f"{index:0{width}d}-{name}",
                at=row.number("arrival_s"),
                application=application.name,
                spec=spec,
                rescale_s=own_s,
            )
        )
    return Workload(name=path.stem, jobs=tuple(jobs)), applications


def write_plain(
    path: Path, workload: Workload, applications: Mapping[str, Application]
) -> None:
    """Write `workload` as a table that `load` reads back as it is; another file of that name is replaced.

    Raises InputError for a job that a table cannot tell of: one that changes its batch by itself.
    """
    lines: list[tuple[object, ...]] = [WRITTEN]
    for job in workload.jobs:
        spec, application = job.spec, applications[job.application]
        if spec.contract not in CONTRACTS:
            allowed = (
                f"jobs of contract {' or '.join(CONTRACTS)}, which a table can hold"
            )
            raise InputError(
                "WORKLOAD", f"{job.id}, of contract {spec.contract}", allowed
            )
        named, curve, length_s = job.application, "", ""
        if isinstance(application, CurveApplication):
            curve = " ".join(
                f"{gpus}:{rate!r}" for gpus, rate in application.rates.items()
            )
            named, length_s = "", repr(application.length_s)
        limits = spec.replicas
        where = (
            limits.requested,
            limits.min,
            limits.max,
            spec.batch.requested,
            str(spec.contract),
        )
        lines.append((spec.name, job.at, named, curve, *where, length_s, spec.tenant))
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)


def known_applications(profiles: Path | None) -> Known:
    """Return how to get each application that `profiles` hold; without any, the built-in ones."""
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
    name, curve = row.cells.get("application", ""), row.cells.get("curve", "")
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
            gpus, samples = int(count), float(rate)
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
    length_s = row.number("length_s")
    if not length_s:
        raise row.error("length_s", length_s, "a finite number > 0")
    shown = " ".join(f"{count}:{rate:g}" for count, rate in rates.items())
    return CurveApplication(
        f"{shown} on {gpus} for {length_s:g} s", rates, gpus=gpus, length_s=length_s
    )


def _spec(row: Row, application: Application, name: str) -> JobSpec:
    limits = application.limits
    gpus, fewest = row.integer("gpus", at_least=1), _integer(row, "gpus_min") or 1
    total = _integer(row, "batch") or limits.initial
    contract = row.cells.get("contract") or RescaleContract.ADAPTIVE.value
    if contract not in CONTRACTS:
        raise row.error("contract", contract, " or ".join(CONTRACTS))
    if not limits.initial <= total <= limits.max_total:
        raise row.error(
            "batch", total, f"{limits.initial}..{limits.max_total}, which is known"
        )
    if row.cells.get("length_s"):
        raise row.error(
            "length_s",
            row.cells["length_s"],
            "nothing: an application has its own length",
        )
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
        tenant=row.cells.get("tenant") or DEFAULT_TENANT,
    )


def _integer(row: Row, column: str) -> int:
    """Return the cell, 0 where there is none."""
    return row.integer(column, at_least=1) if row.cells.get(column) else 0
