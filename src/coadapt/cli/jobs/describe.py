"""`coadapt describe`: all about one job, and why it is where it is."""

import json
from datetime import datetime
from typing import Annotated, cast

import typer

from coadapt.cli.client import Client, JsonObject, RefusedError, find_client
from coadapt.cli.cluster.bought import counts_line, reason_line
from coadapt.cli.completion import complete_job
from coadapt.cli.state_dir import StateOption
from coadapt.model import Allocation
from coadapt.model.measured import NOT_FINITE, RANK, RATIO, not_finite, straggler
from coadapt.model.tenant import EVERYBODY

# HTTP status: the token of a job, where only the operator's is good.
FORBIDDEN = 403


def describe(
    job: Annotated[
        str,
        typer.Argument(
            help="Id of the job, or the beginning of it.", autocompletion=complete_job
        ),
    ],
    state: StateOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show one job: its state and reason, GPUs, batch, progress and decisions."""
    client = find_client(state)
    found = client.get(client.job_path(job))
    if as_json:
        typer.echo(json.dumps(found))
        return
    from rich.table import Table

    from coadapt.cli.console import make_console

    console = make_console()
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in (*_facts(found), *_bought(found, _buying(client))):
        facts.add_row(name, value)
    console.print(facts)
    for heading, lines in (("Held", _spans(found)), ("Decisions", _decisions(found))):
        if lines:
            console.print(f"\n{heading}", style="bold")
            console.print("\n".join(lines), markup=False)


def _facts(job: JsonObject) -> list[tuple[str, str]]:
    from coadapt.cli.jobs.job_table import (
        batch,
        done,
        gpus,
        named,
        share,
    )

    spec = cast(JsonObject, job["spec"])
    launch = cast("JsonObject | None", spec["launch"]) or {}
    nodes = ", ".join(f"{node}: {count}" for node, count in _slots(job))
    step_s = cast("float | None", job["step_time_s"])
    part = done(job)
    return [
        ("Job", named(job)),
        ("State", f"{job['state']} ({job['reason']}), generation {job['generation']}"),
        ("Why", str(job["explanation"])),
        ("Command", f"{launch.get('run', '')}  in {launch.get('workdir', '')}"),
        (
            "Contract",
            (
                f"{job['contract']}, tenant {job['tenant']}, priority "
                f"{job.get('priority', 0)}"
            ),
        ),
        ("GPUs", gpus(job) + (f" ({nodes})" if nodes else "")),
        *[
            ("Set aside", why)
            for why in cast("list[str]", job.get("sizes_set_aside", []))
        ],
        *[
            ("Not used", why)
            for why in cast("dict[str, str]", job.get("nodes_unfit", {})).values()
        ],
        (
            "Batch",
            f"{batch(job)} now, {_batch_limits(cast(JsonObject, spec['batch']))}",
        ),
        ("Efficiency", share(job["efficiency"]) + _noise(job["noise_scale"])),
        (
            "Progress",
            f"{cast(float, job['progress']):.0f} samples"
            + (f", {share(part)}" if part is not None else ""),
        ),
        ("Step", f"{step_s * 1000:.1f} ms" if step_s is not None else "–"),
        *_last_report(job),
        ("Submitted", _submitted(job)),
        *_deadline(job),
        ("Service", f"{cast(float, job['attained_service_gpu_s']):.0f} GPU-seconds"),
        *_cost(job),
        ("Rescales", _rescales(job)),
        *_pause(cast("dict[str, float]", job["pause"])),
        (
            "Failures",
            f"{job['num_failures']}, given up after more than {spec['max_failures']}",
        ),
        *_metrics(job),
    ]


def _deadline(job: JsonObject) -> list[tuple[str, str]]:
    """Return by when the job should have ended, and how long that is from now or from
    its end.
    """
    from coadapt.cli.jobs.job_states import ENDED
    from coadapt.cli.jobs.job_table import duration

    due_at = cast("float | None", cast(JsonObject, job["spec"]).get("deadline_at"))
    if due_at is None:
        return []
    until = cast(float, job["submitted_at"]) + cast(float, job["age_s"])
    left_s = due_at - until
    if job["state"] == "succeeded":
        when = "kept" if left_s >= 0.0 else f"missed by {duration(-left_s)}"
    elif job["state"] in ENDED:
        when = ""
    elif left_s >= 0.0:
        when = f"in {duration(left_s)}"
    else:
        when = f"passed {duration(-left_s)} ago"
    return [("Deadline", ", ".join(filter(None, (_instant(due_at), when))))]


def _buying(client: Client) -> JsonObject | None:
    """Return what is known of bought nodes; None where none are bought, and for the
    token of a job, which may read that job only.
    """
    try:
        cluster = client.get("/v1/cluster?limit=0")
    except RefusedError as error:
        if error.status == FORBIDDEN:
            return None
        raise
    return cast("JsonObject | None", cluster["buying"])


def _bought(job: JsonObject, buying: JsonObject | None) -> list[tuple[str, str]]:
    """Return what an hour of a job that has not ended is worth, and which nodes there
    are for it and why; nothing where none are bought.
    """
    if buying is None or job["ended_at"] is not None:
        return []
    return [
        *_value_of_time(job),
        ("Nodes", f"{counts_line(buying)} ({reason_line(buying)})"),
    ]


def _value_of_time(job: JsonObject) -> list[tuple[str, str]]:
    """Return what an hour of the job's completion time is worth to the sizer, where its
    tenant or all tenants have a value.
    """
    found = cast("JsonObject | None", job.get("value_of_time"))
    if found is None:
        return []
    worth = f"{cast(float, found['value']):g} {job.get('currency') or ''}".rstrip()
    owner = "all tenants" if found["tenant"] == EVERYBODY else "its tenant"
    return [("Value of time", f"{worth} an hour, the value of {owner}")]


def _submitted(job: JsonObject) -> str:
    from coadapt.cli.jobs.job_table import duration

    age = duration(cast(float, job["age_s"]))
    return f"{_instant(job['submitted_at'])}, {age} ago"


def _cost(job: JsonObject) -> list[tuple[str, str]]:
    """Return what the job has cost, and will have cost; nothing without prices."""
    currency = job.get("currency")
    if currency is None:
        return []
    text = f"{cast(float, job.get('cost', 0.0)):.2f} {currency}"
    if job["ended_at"] is None:
        text += " so far"
    foreseen = cast("float | None", job.get("cost_foreseen"))
    if foreseen is not None:
        text += f", about {foreseen:.2f} {currency} at its end"
    return [("Cost", text)]


def _rescales(job: JsonObject) -> str:
    """Return how often the job was rescaled, and what that cost."""
    text = f"{job['num_rescales']}"
    if job["num_in_place"]:
        text += f", {job['num_in_place']} of them in place"
    rescale_s = cast("float | None", job["rescale_s"])
    if rescale_s is not None:
        text += f"; {rescale_s:.1f} s of training per start or rescale"
    return text


def _metrics(job: JsonObject) -> list[tuple[str, str]]:
    """Return the warnings that the job's metrics carry, then its own metrics."""
    facts = []
    metrics = cast("dict[str, float]", job["metrics"])
    held = Allocation(slots=tuple((node, count) for node, count in _slots(job)))
    if slow := straggler(metrics, held):
        facts.append(("Straggler", slow))
    if trouble := not_finite(metrics):
        facts.append(("Training", trouble))
    own = (RANK, RATIO, NOT_FINITE)
    shown = [
        f"{name} {value:.4g}" for name, value in metrics.items() if name not in own
    ]
    if shown:
        facts.append(("Metrics", ", ".join(shown)))
    return facts


def _slots(job: JsonObject) -> list[tuple[str, int]]:
    return cast("list[tuple[str, int]]", job["allocation"])


def _last_report(job: JsonObject) -> list[tuple[str, str]]:
    from coadapt.cli.jobs.job_table import duration

    seconds = cast("float | None", job["silent_s"])
    return [] if seconds is None else [("Last report", f"{duration(seconds)} ago")]


def _pause(parts: dict[str, float]) -> list[tuple[str, str]]:
    """Return how long the last change in place kept training waiting, and for what;
    nothing without one.
    """
    if not parts:
        return []
    longest = sorted(parts.items(), key=lambda part: -part[1])
    named = ", ".join(
        f"{name} {1000 * seconds:.0f} ms"
        for name, seconds in longest
        if seconds >= 0.0005
    )
    return [
        ("Last pause", f"{1000 * sum(parts.values()):.0f} ms, no step lost ({named})")
    ]


def _batch_limits(limits: JsonObject) -> str:
    return f"{limits['initial']} at first, {limits['max_total']} at most"


def _noise(scale: object) -> str:
    return (
        f", noise scale {scale:.0f} samples" if isinstance(scale, int | float) else ""
    )


def _instant(at: object) -> str:
    return f"{datetime.fromtimestamp(cast(float, at)).astimezone():%Y-%m-%d %H:%M:%S}"


def _spans(job: JsonObject) -> list[str]:
    from coadapt.cli.jobs.job_table import duration

    return [
        f"  {_instant(span['start'])}  "
        f"{duration(cast(float, span['end']) - cast(float, span['start'])):>7}  "
        f"{cast(float, span['num_gpus']):g} GPUs  {span['state']}"
        for span in cast("list[JsonObject]", job["spans"])
    ]


def _decisions(job: JsonObject) -> list[str]:
    decisions = cast("list[JsonObject]", job["decisions"])
    return [
        f"  {_instant(entry['at'])}  {str(entry['text']).splitlines()[0]}"
        for entry in decisions
    ]
