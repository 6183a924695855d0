"""Many runs: traces x policies x seeds, one after the other or in several processes."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import lru_cache
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import ClassVar

from coadapt.model import InputError, Node
from coadapt.policies import policy_draws
from coadapt.runtime.history import History
from coadapt.sim.applications import Application, UnmeasuredError
from coadapt.sim.experiment import (
    ExperimentConfig,
    RunResult,
    SimulationError,
    simulate,
)
from coadapt.sim.fitting import check_fits, fitting
from coadapt.sim.metrics import gpus_by_type
from coadapt.sim.published.play import play_as_published
from coadapt.sim.published.terms import terms_of
from coadapt.sim.traces import load_trace
from coadapt.sim.traces.table import trace_name
from coadapt.sim.traces.tally import ReadOptions
from coadapt.sim.workload import Workload

# Workload files that a process keeps: a comparison reads each of them many times.
FILES_KEPT = 8
# How often the parent process looks for news of the others.
POLL_S = 0.2

OnRun = Callable[
    ["Run", float, int], None
]  # the run, its virtual instant, jobs ended so far


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    """A workload file with its profiles, if it needs some; `format_name` None:
    recognised by its columns.
    """

    path: Path
    profiles: Path | None = None
    format_name: str | None = None
    options: ReadOptions = field(default_factory=ReadOptions)

    drawn: ClassVar[bool] = False  # by the seed of a run

    @property
    def name(self) -> str:
        return trace_name(self.path)

    def load(
        self,
        seed: int,  # noqa: ARG002  # the signature is that of Builtin
        num_gpus: int,  # noqa: ARG002  # as above
    ) -> tuple[Workload, Mapping[str, Application]]:
        """Return the workload and its applications; neither depends on the seed or the
        cluster.
        """
        status = self.path.stat() if self.path.is_file() else None
        stamp = None if status is None else (status.st_mtime_ns, status.st_size)
        return _loaded(self, stamp)


@lru_cache(maxsize=FILES_KEPT)
def _loaded(
    file: TraceFile,
    stamp: object,  # noqa: ARG001  # a file that was written again is read again
) -> tuple[Workload, Mapping[str, Application]]:
    return load_trace(file.path, file.profiles, file.format_name, file.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Builtin:
    """A built-in workload: the seed of a run draws its jobs; none requests more GPUs
    than the cluster has.
    """

    mix: str = "default"
    num_jobs: int = 160

    drawn: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return f"builtin:{self.mix}:{self.num_jobs}"

    def load(
        self, seed: int, num_gpus: int
    ) -> tuple[Workload, Mapping[str, Application]]:
        from coadapt.sim.library.builtin import (
            builtin_workload,  # its profiles cost time only where they are used
        )

        return builtin_workload(self.mix, self.num_jobs, seed, num_gpus=num_gpus)


Source = TraceFile | Builtin


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a sweep. `trace` is its workload's name in the results.
    skips_too_large: whether jobs that can never fit into the cluster are left out; else
    they are an error. published: the trace format under the terms of whose paper it is
    played; "": as `config` says.
    """

    trace: str
    source: Source
    policy: str
    seed: int
    cluster: tuple[Node, ...]
    config: ExperimentConfig = field(default_factory=ExperimentConfig)
    keeps_history: bool = False
    skips_too_large: bool = False
    published: str = ""

    @property
    def depends_on_seed(self) -> bool:
        """Whether another seed gives another run: the workload or the policy draws by
        it.
        """
        market = self.config.market
        loses = market is not None and any(each.hazard_per_h for each in market.offers)
        return self.source.drawn or policy_draws(self.policy) or loses


def sweep(
    runs: Sequence[Run], parallel: int = 1, on_progress: OnRun | None = None
) -> Iterator[tuple[int, RunResult | SimulationError]]:
    """Yield each run's number and result as it ends, from up to `parallel` processes
    (1: this one, in order).

    A run that cannot end gives its SimulationError instead. Raises InputError, and then
    starts no more.
    """
    if parallel == 1 or len(runs) <= 1:
        for index, run in enumerate(runs):
            yield index, _play_to_its_end(run, on_progress)
    else:
        yield from _sweep_in_processes(runs, min(parallel, len(runs)), on_progress)


def load(run: Run) -> tuple[Workload, Mapping[str, Application]]:
    """Return the workload of `run` and its applications. Raises InputError for bad
    input, and for jobs that can never fit unless the run leaves them out.

    A job trains on one GPU type: what it may request at most are the GPUs of the type
    with most of them.
    """
    most = max(gpus_by_type(run.cluster).values())
    workload, applications = run.source.load(run.seed, most)
    if run.skips_too_large:
        workload = fitting(workload, run.cluster)
    check_fits(workload, run.cluster)
    return workload, applications


def _play_to_its_end(
    run: Run, on_progress: OnRun | None
) -> RunResult | SimulationError:
    try:
        return _play(run, on_progress)
    except SimulationError as error:
        return error


def _play(run: Run, on_progress: OnRun | None) -> RunResult:
    def tell(now: float, num_ended: int) -> None:
        if on_progress is not None:
            on_progress(run, now, num_ended)

    workload, applications = load(run)
    config = replace(run.config, figures_only=not run.keeps_history)
    try:
        if run.published:
            result = play_as_published(
                workload,
                applications,
                run.cluster,
                run.policy,
                run.seed,
                terms=terms_of(run.published),
                config=config,
                on_progress=tell,
            )
        else:
            result = simulate(
                workload,
                applications,
                run.cluster,
                run.policy,
                seed=run.seed,
                config=config,
                on_progress=tell,
            )
    except UnmeasuredError as error:
        raise InputError(
            "cluster", _shape(run.cluster), f"what the profiles cover ({error})"
        ) from error
    history = result.history if run.keeps_history else History()
    return replace(result, trace=run.trace, history=history)


def _shape(cluster: Sequence[Node]) -> str:
    return f"{len(cluster)}x{max(node.num_gpus for node in cluster)}"


_News = tuple[
    int, float, int
]  # number of the run, its virtual instant, jobs ended so far
_news: "SimpleQueue[_News] | None" = (
    None  # of this process, when it plays runs for another one
)


def _sweep_in_processes(
    runs: Sequence[Run], num_processes: int, on_progress: OnRun | None
) -> Iterator[tuple[int, RunResult | SimulationError]]:
    # Spawned, not forked: a fork would count the parent's memory into each run's peak.
    context = multiprocessing.get_context("spawn")
    news: SimpleQueue[_News] = context.SimpleQueue()
    with ProcessPoolExecutor(
        num_processes, context, initializer=_listen, initargs=(news,)
    ) as pool:
        waiting = {
            pool.submit(_play_and_tell, index, run): index
            for index, run in enumerate(runs)
        }
        try:
            while waiting:
                ended, _ = wait(waiting, POLL_S, FIRST_COMPLETED)
                _pass_on(news, runs, on_progress)
                for future in sorted(ended, key=waiting.__getitem__):
                    yield waiting.pop(future), future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _pass_on(
    news: "SimpleQueue[_News]", runs: Sequence[Run], on_progress: OnRun | None
) -> None:
    while not news.empty():
        index, now, num_ended = news.get()
        if on_progress is not None:
            on_progress(runs[index], now, num_ended)


def _listen(news: "SimpleQueue[_News]") -> None:
    signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # Ctrl-C ends it at once and without a traceback
    global _news  # noqa: PLW0603 - how a process pool hands something to each of its processes
    _news = news


def _play_and_tell(index: int, run: Run) -> RunResult | SimulationError:
    news = _news
    assert news is not None
    return _play_to_its_end(
        run, lambda _, now, num_ended: news.put((index, now, num_ended))
    )
