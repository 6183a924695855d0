"""The inputs of the research verbs: workloads, clusters, policies; every mistake is one
line.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coadapt.model import DEFAULT_GPU_TYPE, InputError, Node
from coadapt.model.errors import suggestion

if TYPE_CHECKING:
    from coadapt.sim.experiment import ExperimentConfig
    from coadapt.sim.sweep import Source
    from coadapt.sim.traces.tally import ReadOptions

BUILTIN = "builtin"

ProfilesOption = Annotated[
    Path | None,
    typer.Option(help="Directory of application profiles; needed for workload files."),
]
RoundOption = Annotated[
    float, typer.Option("--round", help="Seconds between decisions.")
]
RescaleOption = Annotated[
    float,
    typer.Option(
        "--rescale", help="Training time that a start or rescale costs, in seconds."
    ),
]
ReactionOption = Annotated[
    float | None,
    typer.Option(
        "--reaction",
        help="Seconds from a job's arrival or end to an extra decision; inf: "
        "none. [default: the policy's]",
    ),
]
ReportsOption = Annotated[
    float | None,
    typer.Option(
        "--reports", help="Seconds between a job's reports. [default: one round]"
    ),
]
InterferenceOption = Annotated[
    float,
    typer.Option(
        help="Fraction of speed that distributed jobs lose while they share a "
        "node, 0 to 1."
    ),
]
FormatOption = Annotated[
    str | None,
    typer.Option("--format", help="Trace format. [default: detected]"),
]

SkipBadOption = Annotated[
    bool,
    typer.Option(
        "--skip-bad",
        help="Skip rows that cannot be read, and show their number.",
    ),
]
WholeGpusOption = Annotated[
    bool,
    typer.Option(
        "--whole-gpus",
        help="Round up fractions of GPUs that jobs of a trace requested.",
    ),
]
SkipTooLargeOption = Annotated[
    bool,
    typer.Option(
        "--skip-too-large", help="Skip jobs that are too large for the cluster."
    ),
]

_GROUP = re.compile(
    r"([1-9]\d{0,4})x([1-9]\d{0,2})(?::([\w.-]{1,40}))?(?:@([\w.-]{1,40}))?"
)
_CLUSTER_ALLOWED = (
    "NODESxGPUS, such as 16x4, or groups with types and racks: 6x4:t4@r1,2x8:a100@r2"
)
NODES_MAX = 99_999


def parse_cluster(text: str) -> tuple[Node, ...]:
    """Return the nodes of `NODESxGPUS[:TYPE][@RACK]`, several groups separated by
    commas.

    Raises InputError for anything else.
    """
    shapes: list[tuple[int, str, str]] = []
    for group in text.strip().split(","):
        match = _GROUP.fullmatch(group.strip())
        if match is None:
            raise InputError("--cluster", text, _CLUSTER_ALLOWED)
        shape = (int(match[2]), match[3] or DEFAULT_GPU_TYPE, match[4] or "")
        shapes += [shape] * int(match[1])
    if len(shapes) > NODES_MAX:
        raise InputError("--cluster", text, f"{NODES_MAX} nodes at most")
    width = len(str(len(shapes) - 1))
    return tuple(
        Node(
            id=f"node-{index:0{width}d}",
            num_gpus=num_gpus,
            gpu_type=gpu_type,
            rack=rack,
        )
        for index, (num_gpus, gpu_type, rack) in enumerate(shapes)
    )


def check_cluster(
    sources: Iterable["Source"],
    cluster: tuple[Node, ...],
    *,
    skip_too_large: bool = False,
) -> None:
    """Raise InputError unless the truth of all workloads is known on the cluster's GPU
    types, and each job fits on one of them, or is to be left out, which is then noted
    on stderr.
    """
    from coadapt.sim.fitting import check_fits, fitting
    from coadapt.sim.metrics import gpus_by_type

    most = max(gpus_by_type(cluster).values())
    wanted = {node.gpu_type for node in cluster}
    for source in sources:
        workload, applications = source.load(seed=0, num_gpus=most)
        if not skip_too_large:
            check_fits(workload, cluster)
        num_gone = len(workload.jobs) - len(fitting(workload, cluster).jobs)
        if num_gone:
            typer.echo(
                f"note: {workload.name}: {num_gone} of {len(workload.jobs)} jobs "
                f"left out, "
                "which can never fit into the cluster",
                err=True,
            )
        for application in applications.values():
            if application.gpu_types and not wanted <= set(application.gpu_types):
                raise InputError(
                    "--cluster",
                    ", ".join(sorted(wanted)),
                    f"GPU types that are known for {application.name}: "
                    f"{', '.join(application.gpu_types)}",
                )


def check_range(field: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InputError(field, value, f"{low:g} to {high:g}")


def read_config(
    round_s: float,
    rescale_s: float,
    reaction_s: float | None,
    interference: float,
    *,
    report_s: float | None = None,
) -> "ExperimentConfig":
    """Return the settings of a run. Raises InputError that names the option."""
    from coadapt.sim.experiment import ExperimentConfig

    check_range("--round", round_s, 1.0, 86_400.0)
    check_range("--rescale", rescale_s, 0.0, 86_400.0)
    if reaction_s is not None and not (
        0.0 <= reaction_s <= 86_400.0 or reaction_s == math.inf
    ):
        raise InputError("--reaction", reaction_s, "0 to 86400, or inf")
    if report_s is not None:
        check_range("--reports", report_s, 1.0, 86_400.0)
    check_range("--interference", interference, 0.0, 0.99)
    return ExperimentConfig(
        round_s=round_s,
        rescale_s=rescale_s,
        reaction_s=reaction_s,
        report_s=report_s,
        interference=interference,
    )


def read_policies(text: str) -> list[str]:
    """Return the policies of a list with commas, options included. Raises InputError
    for one unknown.
    """
    from coadapt.policies import policy_options, require_packages
    from coadapt.policies.choice import split_choices

    choices = split_choices(text)
    for choice in choices:
        policy_options(choice)
        require_packages(choice)
    return choices


def read_sources(
    workloads: Sequence[str],
    profiles: Path | None,
    format_name: str | None,
    options: "ReadOptions | None" = None,
) -> dict[str, "Source"]:
    """Return what to simulate, by the name that it has in the results; every file was
    read once by then.

    Rows that are no jobs, or that were changed, are noted on stderr.
    """
    from coadapt.sim.sweep import TraceFile
    from coadapt.sim.traces.tally import ReadOptions, tally_text

    sources: list[Source] = []
    built_in = [text for text in workloads if text.partition(":")[0] == BUILTIN]
    if profiles is not None and len(built_in) == len(workloads):
        allowed = f"only with workload files; {BUILTIN} has its own profiles"
        raise InputError("--profiles", str(profiles), allowed)
    for text in workloads:
        if text in built_in:
            sources.append(_builtin(text))
            continue
        for path in _files(Path(text)):
            source = TraceFile(
                path=path,
                profiles=profiles,
                format_name=format_name,
                options=options or ReadOptions(),
            )
            loaded, _ = source.load(seed=0, num_gpus=0)
            line = tally_text(
                len(loaded.jobs), loaded.num_rows, loaded.left_out, loaded.mended
            )
            if line:
                typer.echo(f"note: {path}: {line}", err=True)
            sources.append(source)
    times = Counter(source.name for source in sources)
    named = {_name(source, times[source.name] > 1): source for source in sources}
    if len(named) < len(sources):
        raise InputError("WORKLOAD", ", ".join(workloads), "each workload once")
    return named


def _files(path: Path) -> list[Path]:
    from coadapt.sim.traces.table import COMPRESSED

    if not path.is_dir():
        if not path.exists():
            allowed = f"{BUILTIN}, a workload file or a directory of them"
            hint = suggestion(path.name, [BUILTIN])
            raise InputError("WORKLOAD", str(path), allowed + hint)
        return [path]
    endings = ("*.csv", *(f"*.csv{ending}" for ending in COMPRESSED))
    found = sorted(each for ending in endings for each in path.glob(ending))
    if not found:
        raise InputError("WORKLOAD", str(path), "a directory with *.csv files")
    return found


def _builtin(text: str) -> "Source":
    from coadapt.sim.library.builtin import MIXES
    from coadapt.sim.sweep import Builtin

    words = text.split(":")[1:]
    num_jobs = (
        int(words.pop()) if words and words[-1].isdecimal() else Builtin().num_jobs
    )
    if len(words) > 1 or num_jobs < 1 or not set(words) <= set(MIXES):
        allowed = (
            f"{BUILTIN}, {BUILTIN}:JOBS, {BUILTIN}:NAME or {BUILTIN}:NAME:JOBS, "
            f"with JOBS >= 1 and NAME {' or '.join(MIXES)}"
        )
        raise InputError("WORKLOAD", text, allowed)
    source = Builtin(mix=words[0] if words else Builtin().mix, num_jobs=num_jobs)
    source.load(seed=0, num_gpus=1)
    return source


def _name(source: "Source", ambiguous: bool) -> str:
    from coadapt.sim.sweep import TraceFile

    if ambiguous and isinstance(source, TraceFile):
        return f"{source.path.resolve().parent.name}/{source.name}"
    return source.name
