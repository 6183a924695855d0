"""What a comparison says: a row per run, means over seeds, ratios to the baseline, jobs won and lost."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from coadapt.sim.comparison.case import Case
from coadapt.sim.comparison.figures import Estimate, JobPick, mean_of, picks, ratio_of
from coadapt.sim.comparison.kept import KeptResult

# Figures that a ratio says something about: positive, and less is better.
RATIOS = ("jct_mean_s", "jct_p50_s", "jct_p99_s", "makespan_s", "rho_max")

Row = dict[str, str | int | float]


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
        """Return a row per run: trace, cluster, policy, seed, and its figures by name."""
        return [{**_named(case), **result.figures} for case, result in self.ended()]

    def job_rows(self) -> Iterator[Row]:
        """Yield a row per job and run: trace, cluster, policy, seed, and what became of the job."""
        for case, result in self.ended():
            for job in result.jobs:
                row = asdict(job)
                yield {**_named(case), "job": row.pop("id"), **row}

    def means(self, trace: str, cluster: str, policy: str) -> dict[str, Estimate]:
        """Return each figure's mean over the seeds; empty where no run has ended."""
        found = [
            result.figures
            for case, result in self.ended()
            if case.cell[:2] == (trace, cluster) and case.run.policy == policy
        ]
        return {
            name: mean_of([each[name] for each in found])
            for name in (found[0] if found else ())
        }

    def ratios(self, policy: str) -> dict[str, Estimate]:
        """Return the geometric means of RATIOS to the baseline over the cells where both have ended."""
        base = {
            case.cell: result
            for case, result in self.ended()
            if case.run.policy == self.baseline
        }
        pairs = [
            (result.figures, base[case.cell].figures)
            for case, result in self.ended()
            if case.run.policy == policy and case.cell in base
        ]
        found = {
            name: ratio_of([(ours[name], theirs[name]) for ours, theirs in pairs])
            for name in RATIOS
        }
        return {
            name: estimate for name, estimate in found.items() if estimate is not None
        }

    def job_picks(self, policy: str) -> list[JobPick]:
        """Return each job under `policy` beside itself under the baseline, those that gain most first."""
        base = {
            case.cell: result.jobs
            for case, result in self.ended()
            if case.run.policy == self.baseline
        }
        found = [
            pick
            for case, result in self.ended()
            if case.run.policy == policy and case.cell in base
            for pick in picks(case.cell, result.jobs, base[case.cell])
        ]
        return sorted(
            found,
            key=lambda pick: (
                pick.ratio,
                pick.trace,
                pick.cluster,
                pick.seed,
                pick.job,
            ),
        )


def _named(case: Case) -> Row:
    run = case.run
    return {
        "trace": run.trace,
        "cluster": case.cluster,
        "policy": run.policy,
        "seed": run.seed,
    }
