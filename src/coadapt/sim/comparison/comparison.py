"""The figures of a comparison: a row per run, means over seeds, ratios to the baseline,
and the jobs that gain and lose most.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from coadapt.sim.comparison.case import Case
from coadapt.sim.comparison.figures import (
    Estimate,
    JobPick,
    Pair,
    mean_of,
    merged,
    picks,
    ratio_of,
)
from coadapt.sim.comparison.result_store import KeptResult
from coadapt.sim.comparison.tables import Row, job_row

# Figures for which a ratio is meaningful: they are positive, and less is better.
RATIOS = ("jct_mean_s", "jct_p50_s", "jct_p99_s", "makespan_s", "rho_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Cases, each with its result; `baseline` is one of the policies."""

    results: Sequence[tuple[Case, KeptResult]]
    baseline: str

    @property
    def policies(self) -> list[str]:
        """The policies, in the order in which they were named."""
        return list(dict.fromkeys(case.run.policy for case, _ in self.results))

    @property
    def parts(self) -> list[tuple[str, str]]:
        """Each pair of trace and cluster, once."""
        return list(dict.fromkeys(case.cell[:2] for case, _ in self.results))

    def ended(self) -> list[tuple[Case, KeptResult]]:
        """Return the cases whose run has ended."""
        return [(case, result) for case, result in self.results if not result.error]

    def failed(self) -> list[tuple[Case, KeptResult]]:
        """Return the cases whose run cannot end."""
        return [(case, result) for case, result in self.results if result.error]

    def run_rows(self) -> list[Row]:
        """Return a row per run: trace, cluster, policy, seed, and its figures by
        name.
        """
        return [
            {**_named(case), **result.figures, "reaction_s": result.reaction_s}
            for case, result in self.ended()
        ]

    def job_rows(self) -> Iterator[Row]:
        """Yield a row per job and run: trace, cluster, policy, seed, and what became of
        the job.
        """
        for case, result in self.ended():
            for job in result.jobs:
                yield {**_named(case), **job_row(job)}

    def round_rows(self) -> Iterator[Row]:
        """Yield a row per decision and run: trace, cluster, policy, seed, and the
        cluster after it.
        """
        for case, result in self.ended():
            for each in result.rounds:
                yield {**_named(case), **asdict(each)}

    def published_rows(self) -> list[Row]:
        """Return a row per trace, policy and figure that a paper published. Each row
        has the published value and the mean of these runs.

        A published makespan counts from instant 0, so in these rows our makespan does
        too.
        """
        rows: list[Row] = []
        for trace, cluster in self.parts:
            for policy in self.policies:
                case, result = next(
                    iter(self._by_seed((trace, cluster), policy).values()),
                    (None, None),
                )
                if case is None or result is None or cluster != case.published_cluster:
                    continue
                means = self.means(trace, cluster, policy)
                for figure, value in case.published.items():
                    here = means[figure].mean
                    if figure == "makespan_s" and not case.in_own_loop:
                        here += min(job.arrival_s for job in result.jobs)
                    rows.append(
                        {
                            "trace": trace,
                            "cluster": cluster,
                            "policy": policy,
                            "figure": figure,
                            "published": value,
                            "here": here,
                            "difference": here / value - 1.0,
                        }
                    )
        return rows

    def means(self, trace: str, cluster: str, policy: str) -> dict[str, Estimate]:
        """Return each figure's mean over the seeds, empty if no run has ended.

        The interval is over the seeds. There is none for a single seed, or if all seeds
        gave the same run.
        """
        found = [
            (case, result)
            for case, result in self.ended()
            if case.cell[:2] == (trace, cluster) and case.run.policy == policy
        ]
        if not found:
            return {}
        figures = [result.figures for _, result in found]
        if not found[0][0].run.source.drawn and _all_alike([each for _, each in found]):
            figures = figures[:1]
        return {name: mean_of([each[name] for each in figures]) for name in figures[0]}

    def ratios(self, policy: str) -> dict[str, Estimate]:
        """Return the geometric means of RATIOS to the baseline, with intervals over
        independent runs.

        Both runs of a ratio have the same trace, cluster and seed, and both have ended.
        A run that does not depend on the seed is used for all seeds.
        """
        cells = list(self._cells(policy))
        found = {
            name: ratio_of(
                [
                    Pair(
                        draw=case.draw,
                        place=case.cell[:2],
                        seed=seed,
                        value=ours.figures[name],
                        base=theirs.figures[name],
                        copies=copies,
                    )
                    for case, seed, ours, theirs, copies in cells
                    if name in ours.figures and name in theirs.figures
                ]
            )
            for name in RATIOS
        }
        return {
            name: estimate for name, estimate in found.items() if estimate is not None
        }

    def job_picks(self, policy: str) -> list[JobPick]:
        """Return each job under `policy` beside itself under the baseline, those that
        gain most first.

        A job of a file is returned once, for any number of seeds.
        """
        by_place: dict[tuple[str, str], list[list[JobPick]]] = defaultdict(list)
        drawn: set[tuple[str, str]] = set()
        for case, seed, ours, theirs, _ in self._cells(policy):
            place = case.cell[:2]
            by_place[place].append(picks((*place, seed), ours.jobs, theirs.jobs))
            if case.run.source.drawn:
                drawn.add(place)
        found = []
        for place, of_seeds in by_place.items():
            if place in drawn or len(of_seeds) == 1:
                found += [pick for each in of_seeds for pick in each]
            else:
                found += merged(of_seeds)
        return sorted(
            found,
            key=lambda pick: (
                pick.ratio,
                pick.trace,
                pick.cluster,
                -1 if pick.seed is None else pick.seed,
                pick.job,
            ),
        )

    def reactions_differ(self) -> bool:
        """Return whether some policies decide sooner than others after an arrival or an
        exit.
        """
        return len({result.reaction_s for _, result in self.ended()}) > 1

    def _cells(
        self, policy: str
    ) -> Iterator[tuple[Case, int, KeptResult, KeptResult, bool]]:
        """Yield a case of `policy` or of the baseline, its seed, both results, and
        whether all seeds are copies.

        If the run of `policy` or of the baseline depends on the seed, the case is that
        run.
        """
        for place in self.parts:
            ours = self._by_seed(place, policy)
            theirs = self._by_seed(place, self.baseline)
            cells = []
            for seed in sorted({*ours, *theirs}):
                mine = _of_seed(ours, seed)
                base = _of_seed(theirs, seed)
                if mine is not None and base is not None:
                    cells.append((mine[0], seed, mine[1], base[1]))
            copies = _all_alike([each[2] for each in cells]) and _all_alike(
                [each[3] for each in cells]
            )
            for case, seed, result, base_result in cells:
                yield case, seed, result, base_result, copies

    def _by_seed(
        self, place: tuple[str, str], policy: str
    ) -> dict[int, tuple[Case, KeptResult]]:
        return {
            case.run.seed: (case, result)
            for case, result in self.ended()
            if case.run.policy == policy and case.cell[:2] == place
        }


def _of_seed(
    runs: dict[int, tuple[Case, KeptResult]], seed: int
) -> tuple[Case, KeptResult] | None:
    """Return the run of `seed`, or the only run if it does not depend on the seed."""
    if seed in runs:
        return runs[seed]
    only = next(iter(runs.values()), None)
    return None if only is None or only[0].run.depends_on_seed else only


def _all_alike(results: Sequence[KeptResult]) -> bool:
    """Return whether all results are of runs in which every job fared the same."""
    fared = {tuple((job.id, job.jct_s) for job in each.jobs) for each in results}
    return len(fared) <= 1


def _named(case: Case) -> Row:
    run = case.run
    return {
        "trace": run.trace,
        "cluster": case.cluster,
        "policy": run.policy,
        "seed": run.seed,
    }
