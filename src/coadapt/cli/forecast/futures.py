"""The comparison behind `coadapt what-if` and the page's view of the same name."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from coadapt.cli.forecast.kept import corrected
from coadapt.cli.forecast.live_question import named_job, read_live, spec_of_file
from coadapt.cli.state_dir import StateDir
from coadapt.model import InputError, JobId, TenantId
from coadapt.policies import policy_card
from coadapt.sim.ahead.estimate import Estimate, estimates
from coadapt.sim.ahead.roll import Question
from coadapt.sim.ahead.scenario import Scenario

FUTURES_MAX = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is to be different, as a user writes it.

    policies, nodes: each pair is a future of its own, with all other changes. nodes:
    how many more nodes like the largest one, fewer if negative. quotas: GPUs of a
    tenant; None: no quota. submit: job files. without: ids of live jobs, or their
    beginnings.
    """

    policies: tuple[str, ...] = ()
    nodes: tuple[int, ...] = ()
    quotas: Mapping[TenantId, int | None] = field(default_factory=dict)
    submit: tuple[Path, ...] = ()
    without: tuple[JobId, ...] = ()


def compare_futures(
    directory: StateDir,
    change: Change,
    num_rolls: int,
    num_processes: int | None = None,
    *,
    arrivals: bool = True,
    budget_s: float = math.inf,
    show: Callable[[int, int], None] | None = None,
) -> tuple[list[Estimate], Question]:
    """Return the futures of the live jobs, first as it is, then with the change, and
    the question that they answer.

    num_processes: of the computation; None: one for each core. arrivals: whether jobs
    come later, as they came before. budget_s, show: see `estimates`. Raises InputError.
    """
    for policy in change.policies:
        policy_card(policy)
    live = read_live(directory, arrivals=arrivals)
    question = live.question
    changed = Scenario(
        quotas=change.quotas,
        submit=dict(spec_of_file(path, question.at) for path in change.submit),
        without=tuple(named_job(question, job) for job in change.without),
    )
    scenarios = [Scenario()]
    for policy in change.policies or ("",):
        for nodes in change.nodes or (0,):
            each = replace(changed, nodes=nodes, policy=policy)
            scenarios.append(replace(each, name=_name(each)))
    if len(scenarios) == 2 and not scenarios[1].name:
        allowed = "at least one of --policy, --nodes, --quota, --submit, --without"
        raise InputError("what-if", "no change", allowed)
    if len(scenarios) > FUTURES_MAX + 1:
        allowed = f"at most {FUTURES_MAX} pairs of a policy and a number of nodes"
        raise InputError("what-if", len(scenarios) - 1, allowed)
    found = estimates(
        question, scenarios, num_rolls, num_processes, budget_s=budget_s, show=show
    )
    return corrected(found, directory, live), question


def _name(change: Scenario) -> str:
    """Return the change in a few words, "" for none."""
    noun = "node" if abs(change.nodes) == 1 else "nodes"
    parts = [change.policy] if change.policy else []
    parts += [f"{change.nodes:+d} {noun}"] if change.nodes else []
    parts += [
        f"quota {tenant}={'none' if gpus is None else gpus}"
        for tenant, gpus in change.quotas.items()
    ]
    parts += list(change.submit)
    parts += [f"without {job}" for job in change.without]
    return ", ".join(parts)
