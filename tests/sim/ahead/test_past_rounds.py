"""Which rounds of the past a forecast shows to its policy."""

from coadapt.model import BatchLimits, ClusterView, JobSpec, JobView
from coadapt.sim.ahead import past_rounds
from coadapt.sim.ahead.past_rounds import RECENT, PastRounds

SPEC = JobSpec(name="job", batch=BatchLimits(initial=8, max_total=8))


def view(at: float, *jobs: str) -> ClusterView:
    seen = [JobView(id=job, spec=SPEC, submitted_at=0.0) for job in jobs]
    return ClusterView(at=at, nodes=(), jobs=tuple(seen))


def test_all_of_the_last_rounds_are_kept() -> None:
    past = PastRounds()
    for number in range(RECENT):
        past.add(view(float(number), "a"))
    assert [each.at for each in past.views] == [float(n) for n in range(RECENT)]


def test_of_earlier_rounds_those_are_kept_where_jobs_came_or_went() -> None:
    past = PastRounds()
    jobs = ["a"] * 4 + ["ab"] * 5 + ["b"] * 6
    for number, names in enumerate(jobs):
        past.add(view(float(number), *names))
    for number in range(RECENT):
        past.add(view(100.0 + number, "b"))
    assert [each.at for each in past.views[:-RECENT]] == [0.0, 3.0, 4.0, 8.0, 9.0]
    assert past.views[-RECENT].at == 100.0


def test_of_earlier_rounds_the_last_changes_are_kept() -> None:
    past = PastRounds()
    for number in range(RECENT + 2 * past_rounds.CHANGES):
        past.add(view(float(number), f"job-{number}"))
    assert len(past.views) == RECENT + past_rounds.CHANGES
    assert past.views[0].at == past_rounds.CHANGES
