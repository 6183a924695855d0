"""The core's guards, each with the text that takes it away; and the way to load a core
without one.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import coadapt.core.scheduler
import coadapt.model

PACKAGE = Path(coadapt.core.scheduler.__file__).parents[1]
# In the order in which they import each other: whatever comes after a mutated module is
# loaded anew.
CHAIN = (
    "model.devices",
    "model.plan",
    "core.accounting",
    "core.worklist",
    "core.settling",
    "core.converge",
    "core.costs",
    "core.scheduler",
)
CORE = ("accounting", "worklist", "settling", "converge", "costs", "scheduler")


@dataclass(frozen=True, slots=True)
class Mutant:
    """`guard` in words; in `module` (core, or model.x) the code `old`, which occurs
    once, becomes `new`.
    """

    guard: str
    module: str
    old: str
    new: str

    @property
    def is_about_money(self) -> bool:
        return self.module == "costs" or "buying." in self.old


@contextmanager
def installed(mutant: Mutant) -> Iterator[ModuleType]:
    """Let every import of the modules of CHAIN find the mutant's; yield its scheduler
    module.

    Whatever was imported before keeps the real ones: the world, its policy and the
    invariants do.
    """
    mutated = f"core.{mutant.module}" if mutant.module in CORE else mutant.module
    names = CHAIN[CHAIN.index(mutated) :]
    kept = {f"coadapt.{name}": sys.modules[f"coadapt.{name}"] for name in names}
    exported = dict(vars(coadapt.model))
    try:
        for name in names:
            path = PACKAGE / f"{name.replace('.', '/')}.py"
            full = f"coadapt.{name}"
            source = path.read_text(encoding="utf-8")
            if name == mutated:
                source = _mutated(source, mutant)
            module = ModuleType(full)
            module.__file__ = f"{name} without: {mutant.guard}"
            sys.modules[full] = module
            exec(compile(source, module.__file__, "exec"), module.__dict__)
            if name.startswith("model."):
                for public in coadapt.model.__all__:
                    if getattr(vars(module).get(public), "__module__", "") == full:
                        setattr(coadapt.model, public, vars(module)[public])
        yield sys.modules["coadapt.core.scheduler"]
    finally:
        sys.modules.update(kept)
        vars(coadapt.model).update(exported)


def _mutated(source: str, mutant: Mutant) -> str:
    """Return `source` with the mutant's text, whatever lines the formatter made of
    it.
    """
    if source.count(mutant.old) == 1:
        return source.replace(mutant.old, mutant.new)
    tokens = re.findall(r"\w+|[^\w\s]", mutant.old)
    pattern = r"\s*".join(
        (r",?\s*" if token in ")]" else "") + re.escape(token) for token in tokens
    )
    changed, times = re.subn(pattern, lambda _: mutant.new, source)
    assert times == 1, f"{mutant.guard!r}: its text occurs {times} times"
    return changed


MUTANTS: tuple[Mutant, ...] = (
    # -- users
    Mutant(
        "a job submitted twice is one job",
        "scheduler",
        "        if event.job in self.state.jobs or event.job in self.state.ended:\n "
        "           return []\n",
        "",
    ),
    Mutant(
        "a job that ended is not submitted anew",
        "scheduler",
        "        if event.job in self.state.jobs or event.job in self.state.ended:\n",
        "        if event.job in self.state.jobs:\n",
    ),
    Mutant(
        "a job that ended is remembered by its id",
        "scheduler",
        "        ended.update((job_id, jobs.pop(job_id).state) for job_id in "
        "self._departed)\n",
        "        [jobs.pop(job_id) for job_id in self._departed]\n",
    ),
    Mutant(
        "a job that ended leaves the state",
        "scheduler",
        "        if self._departed:\n            self._forget_departed()\n",
        "",
    ),
    Mutant(
        "a plan may name jobs that ended while it was made",
        "scheduler",
        "lambda job: job in state.jobs or job in state.ended",
        "lambda job: job in state.jobs",
    ),
    Mutant(
        "a job whose change did not come about waits for it no longer",
        "scheduler",
        "        status = job.status.after(Trigger.REPLICAS_KEPT, Reason.ALLOCATED)\n",
        "        return []\n"
        "        status = job.status.after(Trigger.REPLICAS_KEPT, Reason.ALLOCATED)\n",
    ),
    Mutant(
        "a cancelled job gives up its target",
        "scheduler",
        "        job.target = NO_GRANT\n        job.status = replace(\n"
        "            job.status,\n            cancel_requested=True,",
        "        job.status = replace(\n"
        "            job.status,\n            cancel_requested=True,",
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
        "        elif job.status.cancel_requested:",
        "        elif False:",
    ),
    Mutant(
        "the policy does not see cancelled jobs",
        "scheduler",
        " or job.status.cancel_requested:\n                views.drop",
        ":\n                views.drop",
    ),
    # -- nodes
    Mutant(
        "a known node that joins again changes nothing",
        "scheduler",
        "if known == node:",
        "if False:",
    ),
    Mutant(
        "a node that comes back changed stops its jobs",
        "scheduler",
        "self._node_lost(node.id) if known and not keeps else []",
        "[]",
    ),
    Mutant(
        "the loss of an unknown node changes nothing",
        "scheduler",
        "        gone = self.state.nodes.pop(node, None)\n"
        "        if gone is None:\n            return []\n",
        "        gone = self.state.nodes.pop(node, Node(id=node, num_gpus=1))\n",
    ),
    Mutant(
        "a plan made before a node was lost is void",
        "scheduler",
        "for the earlier nodes is void.\n        self.state.solve_at = None\n",
        "for the earlier nodes is void.\n",
    ),
    Mutant(
        "a plan made before a node joined is void",
        "scheduler",
        "        self._nodes_changed(node.id)\n",
        "        asked_at = self.state.solve_at\n        "
        "self._nodes_changed(node.id)\n"
        "        self.state.solve_at = asked_at\n",
    ),
    Mutant(
        "targets on a lost node are given up",
        "scheduler",
        "            job.target = NO_GRANT\n            self.state.changed.add",
        "            self.state.changed.add",
    ),
    Mutant(
        "a job that is moving away from a lost node is stopped too",
        "scheduler",
        "[self.state.jobs[job_id] for job_id in self._work.holdings.on(node)]",
        "[job for job in self.state.active if job.ordered.on(node)]",
    ),
    Mutant(
        "a job that is to go to a lost node does not",
        "scheduler",
        "for job in (*there, *expected):\n            job.target",
        "for job in there:\n            job.target",
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
        " and may_train(job, generation)",
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
        "return generation in (job.running.generation, job.order.generation)",
        "return generation == job.order.generation",
    ),
    Mutant(
        "messages about replicas that are gone are ignored",
        "scheduler",
        "job is not None and job.status.state in HOLDING and may",
        "job is not None and may",
    ),
    Mutant(
        "a start is booked once",
        "scheduler",
        "        if job.state not in (JobState.STARTING, JobState.RESCALING):\n"
        "            job.status = replace(job.status, unseen=event.unseen)\n         "
        "   return []\n",
        "",
    ),
    Mutant(
        "failures are counted",
        "scheduler",
        "            job.usage = job.usage.after_failure()\n",
        "",
    ),
    Mutant(
        "failures have a limit",
        "scheduler",
        "if job.usage.num_failures > job.spec.max_failures:",
        "if False:",
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
        "gone and job.measured.progress <= job.running.progress_at_start",
        "gone",
    ),
    Mutant(
        "service is booked before what is held changes",
        "accounting",
        "    job.usage = job.usage.upto(at, num_gpus_held(job))\n",
        "",
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
    Mutant(
        "a slow solver is waited for",
        "scheduler",
        "        if not solving:",
        "        if True:",
    ),
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
    Mutant(
        "a plan is checked",
        "scheduler",
        "            check_plan(view, plan, names_known=known)",
        "            pass",
    ),
    Mutant(
        "jobs that ended while the plan was made are dropped from it",
        "scheduler",
        "        if not known:\n            plan",
        "        if False:\n            plan",
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
        "only running jobs are rescaled",
        "converge",
        "job.state is JobState.RUNNING and not job.failed_rescales.waits_for_plan "
        "and _differs(job)",
        "bool(job.target) and not job.failed_rescales.waits_for_plan and _differs(job)",
    ),
    Mutant(
        "a start waits until its GPUs are free",
        "converge",
        "if work.holdings.free.fits(holding(job.target.allocation), held(job)):",
        "if job.state is JobState.PENDING or "
        "work.free.fits(holding(job.target.allocation), held(job)):",
    ),
    Mutant(
        "growth waits until its GPUs are free",
        "converge",
        "if work.holdings.free.fits(holding(job.target.allocation), held(job)):",
        "if job.state is JobState.RUNNING or "
        "work.free.fits(holding(job.target.allocation), held(job)):",
    ),
    Mutant(
        "GPUs that are held are not free",
        "model.devices",
        "        self.free.take(now)\n",
        "",
    ),
    Mutant(
        "GPUs that are let go are free again",
        "model.devices",
        "        self.free.give(before)\n",
        "",
    ),
    Mutant(
        "GPUs of a node that comes back are not free while jobs end there",
        "model.devices",
        "            self.free.take(each)\n",
        "            pass\n",
    ),
    Mutant(
        "GPUs of a job that ended are free again",
        "worklist",
        "self.holdings.put(job, NOTHING)",
        "pass",
    ),
    Mutant(
        "GPUs that were just given are not free",
        "converge",
        "_send(job, state.at))\n            work.note(job)\n",
        "_send(job, state.at))\n",
    ),
    Mutant(
        "what changed is looked at",
        "scheduler",
        "            if job.state not in ENDED:\n                "
        "self._work.note(job)\n",
        "            pass\n",
    ),
    Mutant(
        "a rescaling job holds old and new",
        "accounting",
        "holding(job.ordered) if same else holding(job.trains_on, job.ordered)",
        "holding(job.ordered)",
    ),
    Mutant(
        "running jobs that wait for each other do not wait for ever",
        "converge",
        "if blocked and not commands and not work.resting and not work.moving:",
        "if False:",
    ),
    Mutant(
        "a running job is only stopped for a ring if nothing else moves",
        "converge",
        "if blocked and not commands and not work.resting and not work.moving:",
        "if blocked and not commands:",
    ),
    Mutant(
        "a frozen job is never rescaled",
        "converge",
        "in_place and job.spec.contract is not RescaleContract.FROZEN",
        "in_place",
    ),
    Mutant(
        "a change of mind waits for the answer to the order before",
        "converge",
        "RESCALES_FAILED_MAX) and _must_change(job)",
        "RESCALES_FAILED_MAX) and _differs(job)",
    ),
    Mutant(
        "an order without an answer is repeated",
        "scheduler",
        "(job.heard_at, silence_s) if sent_at is None else (sent_at, retry_s)",
        "(job.heard_at, silence_s) if sent_at is None else (at, retry_s)",
    ),
    Mutant(
        "a silent job is asked",
        "scheduler",
        "(job.heard_at, silence_s) if sent_at is None else (sent_at, retry_s)",
        "(at, silence_s) if sent_at is None else (sent_at, retry_s)",
    ),
    # -- replicas that stand still
    Mutant(
        "a job that is silent for longer than its hang_timeout is stopped",
        "scheduler",
        "last_at is None or at - last_at < allowed_s or",
        "True or",
    ),
    # -- changes in place that do not come about
    Mutant(
        "an order that is not wanted any more is taken back",
        "converge",
        "for job in rescaling if job.order.kind is not OrderKind.RETRACT]",
        "for job in rescaling if False]",
    ),
    Mutant(
        "an order is taken back once",
        "converge",
        "for job in rescaling if job.order.kind is not OrderKind.RETRACT]",
        "for job in rescaling]",
    ),
    Mutant(
        "only a rescale is taken back",
        "converge",
        "job.state is JobState.RESCALING and _differs(job)]",
        "job.state in (JobState.STOPPING, JobState.RESCALING) and _differs(job)]",
    ),
    Mutant(
        "a retraction without an answer is repeated",
        "converge",
        "replace(job.order, kind=OrderKind.RETRACT, sent_at=at, num_attempts=1)",
        "replace(job.order, sent_at=at, num_attempts=1)",
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
        "order=replace(answered(job.order), grant=job.running.grant))",
        "order=answered(job.order))",
    ),
    Mutant(
        "only a change of the allocation counts as a rescale",
        "scheduler",
        "moved = rescaled and job.trains_on != job.ordered",
        "moved = rescaled",
    ),
    Mutant(
        "a change that failed waits for another plan",
        "scheduler",
        "waits = bool(event.detail) and job.order.kind is not OrderKind.RETRACT",
        "waits = False",
    ),
    Mutant(
        "a change that failed in place of a newer one does not wait",
        "scheduler",
        "waits = bool(event.detail) and job.order.kind is not OrderKind.RETRACT",
        "waits = bool(event.detail)",
    ),
    Mutant(
        "another plan may ask again for a change that failed",
        "scheduler",
        "        job.failed_rescales = replace(job.failed_rescales, "
        "waits_for_plan=False)\n",
        "",
    ),
    Mutant(
        "nobody is stopped for GPUs that a failed change still holds",
        "worklist",
        "return job.state in IN_FLIGHT or job.failed_rescales.waits_for_plan",
        "return job.state in IN_FLIGHT",
    ),
    Mutant(
        "changes that fail again and again end in a restart",
        "converge",
        "not (rescalable and job.failed_rescales.num_in_row < RESCALES_FAILED_MAX)",
        "not rescalable",
    ),
    Mutant(
        "a change that came about forgives those that failed",
        "scheduler",
        "        job.failed_rescales = replace(job.failed_rescales, num_in_row=0)\n",
        "",
    ),
    # -- starts that are left in peace
    Mutant(
        "a job that starts is left in peace until it took a step",
        "settling",
        "frozenset(job.id for job in young if beyond.isdisjoint((job.spec.tenant, "
        "EVERYBODY)))",
        "frozenset()",
    ),
    Mutant(
        "peace ends after a while",
        "settling",
        "if at - job.running.since >= settle_s:",
        "if False:",
    ),
    Mutant(
        "who takes GPUs away does not wait",
        "settling",
        "taken = job.status.cancel_requested or job.reason is Reason.NODE_LOST",
        "taken = False",
    ),
    Mutant(
        "a quota that is cut does not wait",
        "settling",
        "beyond = tenants_beyond_quota(state) if young else set()",
        "beyond: set[TenantId] = set()",
    ),
    Mutant(
        "what was left in peace changes with its first step",
        "scheduler",
        "has_trained=True)\n        return self._converge(job)",
        "has_trained=True)\n        return []",
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
        "        self.state.solve_at = None\n        self.state.round_due_at = None\n",
        "        self.state.round_due_at = None\n",
    ),
    Mutant(
        "a restarted scheduler sets its alarm again",
        "scheduler",
        "        self.state.solve_at = None\n        self.state.round_due_at = None\n",
        "        self.state.solve_at = None\n",
    ),
    # -- shared GPUs and GPU types
    Mutant(
        "a new label takes a GPU",
        "model.devices",
        "                self.whole[gpu[0]] -= 1\n",
        "",
    ),
    Mutant(
        "a new label needs a free GPU",
        "model.devices",
        "                need[gpu[0]] = max(need.get(gpu[0], 0), 0) + 1\n",
        "                pass\n",
    ),
    Mutant(
        "the shares of one GPU sum to one at most, now",
        "model.devices",
        "already.parts.get(gpu, 0) > PARTS:",
        "already.parts.get(gpu, 0) > 2 * PARTS:",
    ),
    Mutant(
        "a plan gives no GPU more than once over",
        "model.plan",
        "in free.overfull():",
        "in (each for each in free.overfull() if ', shared GPU' not in each):",
    ),
    Mutant(
        "a plan gives no more GPUs than a node has",
        "model.plan",
        "in free.overfull():",
        "in (each for each in free.overfull() if ', shared GPU' in each):",
    ),
    Mutant(
        "a label is the same GPU for all who name it",
        "model.devices",
        "                self.parts[gpu] = 0\n            self.parts[gpu] += ",
        "                self.parts[gpu] = 0\n            self.parts[gpu] = ",
    ),
    Mutant(
        "a job that changes holds its shares of before and to come",
        "model.devices",
        "                parts[gpu] = max(parts.get(gpu, 0), each)\n",
        "                parts = {gpu: each}\n",
    ),
    Mutant(
        "a job trains on one GPU type",
        "model.plan",
        "    if len(gpu_types) > 1:\n",
        "    if False:\n",
    ),
    Mutant(
        "nobody dictates to a job that sets its batch by itself",
        "model.plan",
        "    if contract in OWNS_BATCH:\n",
        "    if False:\n",
    ),
    # -- costs and nodes that are bought
    Mutant(
        "a job is stopped at its max_cost",
        "costs",
        "    if cost < most:\n",
        "    if True:\n",
    ),
    Mutant(
        "a job is not stopped before its max_cost",
        "costs",
        "    if cost < most:\n",
        "    if cost < 0.5 * most:\n",
    ),
    Mutant(
        "what a job cost counts for its tenant",
        "costs",
        "state.spent[tenant] = booked + (bill.cost - job.bill.cost)",
        "state.spent[tenant] = booked",
    ),
    Mutant(
        "other prices count from now on",
        "costs",
        "    state.prices = prices\n    book(state, state.jobs)\n",
        "    state.prices = prices\n",
    ),
    Mutant(
        "a job waits while its tenant's budget is spent",
        "costs",
        "        if state.budget_levels.get(name) == SPENT:\n",
        "        if False:\n",
    ),
    Mutant(
        "a budget of all tenants counts",
        "costs",
        "    for name in (job.spec.tenant, EVERYBODY):\n",
        "    for name in (job.spec.tenant,):\n",
    ),
    Mutant(
        "a node that is not needed is given back",
        "scheduler",
        "buying.give_back(lambda node: not self._work.holdings.on(node))",
        "buying.give_back(lambda _: False)",
    ),
    Mutant(
        "a node is given back once no job is on it",
        "scheduler",
        "buying.give_back(lambda node: not self._work.holdings.on(node))",
        "buying.give_back(lambda _: True)",
    ),
)
