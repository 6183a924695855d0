"""The core's guards, each with the text that takes it away; and the way to load a core without one."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import coadapt.core.scheduler

CORE = Path(coadapt.core.scheduler.__file__).parent
# In the order in which they import each other: whatever comes after a mutated module is loaded anew.
CHAIN = ("accounting", "converge", "scheduler")


@dataclass(frozen=True, slots=True)
class Mutant:
    """`guard` in words; in `module` of the core the code `old`, which occurs once, becomes `new`."""

    guard: str
    module: str
    old: str
    new: str


@contextmanager
def installed(mutant: Mutant) -> Iterator[ModuleType]:
    """Let every import of the core's modules find the mutant's; yield its scheduler module."""
    names = {name: f"coadapt.core.{name}" for name in CHAIN[CHAIN.index(mutant.module) :]}
    kept = {full: sys.modules[full] for full in names.values()}
    try:
        for name, full in names.items():
            source = (CORE / f"{name}.py").read_text(encoding="utf-8")
            if name == mutant.module:
                times = source.count(mutant.old)
                assert times == 1, f"{mutant.guard!r}: its text occurs {times} times in core/{name}.py"
                source = source.replace(mutant.old, mutant.new)
            module = ModuleType(full)
            module.__file__ = f"{name}.py without: {mutant.guard}"
            sys.modules[full] = module
            exec(compile(source, module.__file__, "exec"), module.__dict__)
        yield sys.modules["coadapt.core.scheduler"]
    finally:
        sys.modules.update(kept)


MUTANTS: tuple[Mutant, ...] = (
    # -- users
    Mutant(
        "a job submitted twice is one job",
        "scheduler",
        "        if event.job in self.state.jobs:\n            return []\n",
        "",
    ),
    Mutant(
        "an ended job cannot be cancelled",
        "scheduler",
        "if job is None or job.state in ENDED or job.cancel_requested:",
        "if job is None or job.cancel_requested:",
    ),
    Mutant(
        "a cancelled job gives up its target",
        "scheduler",
        "job.cancel_requested = True\n        job.target = WAITING",
        "job.cancel_requested = True",
    ),
    Mutant(
        "a job cancelled while it waits ends at once",
        "scheduler",
        "        if job.state is JobState.PENDING:\n            self._end(",
        "        if False:\n            self._end(",
    ),
    Mutant(
        "a job cancelled while it starts or runs is cancelled when it is gone",
        "scheduler",
        "        elif job.cancel_requested:",
        "        elif False:",
    ),
    Mutant(
        "the policy does not see cancelled jobs",
        "scheduler",
        "for job in jobs if not job.cancel_requested",
        "for job in jobs",
    ),
    # -- nodes
    Mutant("a known node that joins again changes nothing", "scheduler", "if known == node:", "if False:"),
    Mutant(
        "a node that comes back changed stops its jobs",
        "scheduler",
        "self._node_lost(node.id) if known else []",
        "[]",
    ),
    Mutant(
        "the loss of an unknown node changes nothing",
        "scheduler",
        "        if self.state.nodes.pop(node, None) is None:\n            return []\n",
        "        self.state.nodes.pop(node, None)\n",
    ),
    Mutant(
        "a plan made before a node was lost is void",
        "scheduler",
        "is void.\n        self.state.solve_at = None\n",
        "is void.\n",
    ),
    Mutant(
        "a plan made before a node joined is void",
        "scheduler",
        "self.state.nodes[node.id] = node\n        self.state.solve_at = None\n",
        "self.state.nodes[node.id] = node\n",
    ),
    Mutant(
        "targets on a lost node are given up",
        "scheduler",
        "                job.target = WAITING\n                if on_it:",
        "                if on_it:",
    ),
    Mutant(
        "a job that is moving away from a lost node is stopped too",
        "scheduler",
        "job.ordered.on(node) + job.allocation.on(node)",
        "job.ordered.on(node)",
    ),
    Mutant(
        "a lost node is not the job's failure",
        "scheduler",
        "        if job.reason is Reason.NODE_LOST:\n            return False\n",
        "",
    ),
    # -- replicas
    Mutant(
        "messages of replicas that do not train any more are ignored",
        "scheduler",
        "not may_train(job, generation) or ",
        "",
    ),
    Mutant(
        "answers to another order are ignored",
        "scheduler",
        "return job if job is not None and job.generation == generation else None",
        "return job",
    ),
    Mutant(
        "who trains on while others prepare is heard",
        "accounting",
        "return generation in (job.trained, job.generation)",
        "return generation == job.generation",
    ),
    Mutant(
        "messages about replicas that are gone are ignored",
        "scheduler",
        " or job.state not in HOLDING:\n            return None",
        ":\n            return None",
    ),
    Mutant(
        "a start is booked once",
        "scheduler",
        "        if job.state not in (JobState.STARTING, JobState.RESCALING):\n            return []\n",
        "",
    ),
    Mutant(
        "failures are counted",
        "scheduler",
        "            job.num_failures += self._is_failure(job, event.outcome)\n",
        "",
    ),
    Mutant(
        "failures have a limit",
        "scheduler",
        "self._is_failure(job, event.outcome) and job.num_failures + 1 > job.spec.max_failures:",
        "False:",
    ),
    Mutant(
        "replicas that vanish before they get anywhere count as failed",
        "scheduler",
        "return outcome is Outcome.FAILED or nowhere",
        "return outcome is Outcome.FAILED",
    ),
    Mutant(
        "replicas that vanish after they got somewhere do not",
        "scheduler",
        "outcome is Outcome.LOST and job.progress <= job.progress_at_start",
        "outcome is Outcome.LOST",
    ),
    Mutant(
        "service is booked when replicas exit",
        "scheduler",
        "        accrue(job, self.state.at)\n        # A plan that",
        "        # A plan that",
    ),
    Mutant(
        "service is booked when replicas start",
        "scheduler",
        "        accrue(job, self.state.at)\n        if job.state is JobState.RESCALING:",
        "        if job.state is JobState.RESCALING:",
    ),
    Mutant("a rescale is booked once", "accounting", "if generation > job.rescaled_generation:", "if True:"),
    Mutant(
        "progress never goes back",
        "accounting",
        "max(job.progress, report.progress)",
        "report.progress",
    ),
    Mutant(
        "what was profiled is not forgotten",
        "accounting",
        "max(job.num_replicas_profiled, report.num_replicas_profiled)",
        "report.num_replicas_profiled",
    ),
    # -- rounds
    Mutant(
        "a later alarm does not replace an earlier one",
        "scheduler",
        "if self.state.round_due_at is not None and self.state.round_due_at <= at:",
        "if False:",
    ),
    Mutant(
        "an exit that no plan foresaw calls for a round",
        "scheduler",
        "([] if foreseen else self._wake())",
        "[]",
    ),
    Mutant(
        "an early or repeated alarm is ignored",
        "scheduler",
        "state.round_due_at is None or state.at < state.round_due_at",
        "False",
    ),
    Mutant("a slow solver is waited for", "scheduler", "        if not solving:", "        if True:"),
    Mutant(
        "a solver that never answers is given up",
        "scheduler",
        " and state.at - state.solve_at < self.config.solve_timeout_s",
        "",
    ),
    Mutant(
        "a plan of another round is ignored",
        "scheduler",
        "if event.round != state.round or state.solve_at is None:",
        "if state.solve_at is None:",
    ),
    Mutant(
        "a plan is taken once",
        "scheduler",
        "if event.round != state.round or state.solve_at is None:",
        "if event.round != state.round:",
    ),
    Mutant("a plan is checked", "scheduler", "            check_plan(view, plan)", "            pass"),
    Mutant(
        "jobs that ended while the plan was made are dropped from it",
        "scheduler",
        "plan = _without_departed(event.plan, view, state)",
        "plan = event.plan",
    ),
    Mutant(
        "a failure of another round is ignored",
        "scheduler",
        "if event.round == self.state.round and self.state.solve_at is not None:",
        "if True:",
    ),
    Mutant(
        "the clock of the books never goes back",
        "scheduler",
        "at = max(self.state.at, event.at)",
        "at = event.at",
    ),
    # -- orders
    Mutant(
        "only running jobs are resized",
        "converge",
        "return job.state is JobState.RUNNING and not job.waits_for_plan and _differs(job)",
        "return bool(job.target) and not job.waits_for_plan and _differs(job)",
    ),
    Mutant(
        "a start waits until its GPUs are free",
        "converge",
        "job.target):\n        if _fits(job, job.target, free):",
        "job.target):\n        if True:",
    ),
    Mutant(
        "growth waits until its GPUs are free",
        "converge",
        "job.ordered.num_replicas):\n        if _fits(job, job.target, free):",
        "job.ordered.num_replicas):\n        if True:",
    ),
    Mutant("GPUs that are held are not free", "converge", "free[node] -= gpus", "pass"),
    Mutant(
        "GPUs that were just given are not free",
        "converge",
        "        free[node] -= max(extra, 0.0)\n",
        "        pass\n",
    ),
    Mutant(
        "a rescaling job holds old and new",
        "accounting",
        "for allocation in (job.allocation, job.ordered):",
        "for allocation in (job.ordered,):",
    ),
    Mutant(
        "running jobs that wait for each other do not wait for ever",
        "converge",
        "if blocked and not commands and not any(",
        "if False and not any(",
    ),
    Mutant(
        "a running job is only stopped for a ring if nothing else moves",
        "converge",
        "if blocked and not commands and not any(_moves_soon(job) for job in jobs):",
        "if blocked and not commands:",
    ),
    Mutant(
        "a frozen job is never resized",
        "converge",
        "in_place and job.spec.contract is not RescaleContract.FROZEN",
        "in_place",
    ),
    Mutant(
        "a change of mind waits for the answer to the order before",
        "converge",
        "RESIZES_FAILED_MAX) and _must_change(job)",
        "RESIZES_FAILED_MAX) and _differs(job)",
    ),
    Mutant(
        "an order without an answer is repeated",
        "scheduler",
        "if unanswered or silent:",
        "if silent:",
    ),
    Mutant(
        "a silent job is asked",
        "scheduler",
        "if unanswered or silent:",
        "if unanswered:",
    ),
    # -- changes in place that do not come about
    Mutant(
        "an order that is not wanted any more is taken back",
        "converge",
        "for job in rescaling if not job.retracting and _differs(job)]",
        "for job in rescaling if False]",
    ),
    Mutant(
        "an order is taken back once",
        "converge",
        "for job in rescaling if not job.retracting and _differs(job)]",
        "for job in rescaling if _differs(job)]",
    ),
    Mutant(
        "only a resize is taken back",
        "converge",
        "rescaling = [job for job in jobs if job.state is JobState.RESCALING]",
        "rescaling = [job for job in jobs if job.state in _IN_FLIGHT]",
    ),
    Mutant(
        "a retraction without an answer is repeated",
        "converge",
        "    if job.retracting:\n        return Retract(",
        "    if False:\n        return Retract(",
    ),
    Mutant(
        "a job that is stopped has nothing to take back",
        "converge",
        "    job.retracting = False\n    job.order_at = at\n",
        "    job.order_at = at\n",
    ),
    Mutant(
        "what was taken back is booked once",
        "scheduler",
        "        if job.state is not JobState.RESCALING:\n            return []\n",
        "",
    ),
    Mutant(
        "GPUs of an order that was taken back are free",
        "scheduler",
        "        job.ordered, job.ordered_batch = job.allocation, job.allocation_batch\n",
        "",
    ),
    Mutant(
        "service is booked when an order was taken back",
        "scheduler",
        "        accrue(job, self.state.at)\n        job.state = advance(job.state, Trigger.REPLICAS_KEPT)",
        "        job.state = advance(job.state, Trigger.REPLICAS_KEPT)",
    ),
    Mutant(
        "only a change of the allocation counts as a rescale",
        "scheduler",
        "job.num_rescales += job.allocation != job.ordered",
        "job.num_rescales += 1",
    ),
    Mutant(
        "a change that failed waits for another plan",
        "scheduler",
        "            job.waits_for_plan = True\n",
        "",
    ),
    Mutant(
        "a change that failed in place of a newer one does not wait",
        "scheduler",
        "if event.detail and not job.retracting:",
        "if event.detail:",
    ),
    Mutant(
        "another plan may ask again for a change that failed",
        "scheduler",
        "        job.waits_for_plan = False\n        job.target = plan",
        "        job.target = plan",
    ),
    Mutant(
        "nobody is stopped for GPUs that a failed change still holds",
        "converge",
        "return job.state in _IN_FLIGHT or job.waits_for_plan",
        "return job.state in _IN_FLIGHT",
    ),
    Mutant(
        "changes that fail again and again end in a restart",
        "converge",
        "not (resizable and job.num_resizes_failed < RESIZES_FAILED_MAX)",
        "not resizable",
    ),
    Mutant(
        "a change that came about forgives those that failed",
        "scheduler",
        "        job.num_resizes_failed = 0\n",
        "",
    ),
    # -- restart
    Mutant(
        "a restarted scheduler repeats its orders",
        "scheduler",
        "[repeat_order(job, self.state.at) for job in jobs if job.state in HOLDING]",
        "[]",
    ),
    Mutant(
        "a restarted scheduler waits for no lost solver",
        "scheduler",
        "        self.state.solve_at = None\n        self.state.round_due_at = None\n        jobs",
        "        self.state.round_due_at = None\n        jobs",
    ),
    Mutant(
        "a restarted scheduler sets its alarm again",
        "scheduler",
        "        self.state.solve_at = None\n        self.state.round_due_at = None\n        jobs",
        "        self.state.solve_at = None\n        jobs",
    ),
)
