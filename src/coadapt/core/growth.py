"""Growth limits of a job: the size at which it trained last, and larger sizes at which
it failed.

Called by Scheduler.handle only; values here are frozen.
"""

# The rules, and why they hold.
#
# A job that trains well can fail because it gets more GPUs. For example, its replicas
# cannot reach each other over two nodes, the script breaks with more than one replica,
# or memory runs out. If the job restarts at the larger size, it fails again, and ends
# after max_failures, although it would have trained to its end at the old size. So the
# job's record has the last size (numbers of replicas and of nodes) at which it trained.
#
# A larger size (more replicas, or more nodes) is on trial until the job has trained at
# it for `trial_s`. An end of its replicas before that is a failed growth. It does not
# count against max_failures, because the size is the cause. The job goes back at once
# to the last size at which it trained, on a part of the GPUs that the plan gave it. It
# gets no more GPUs until it has taken a step there. A failure at that size counts
# against max_failures.
#
# A size that failed ATTEMPTS_MAX times without a trial passed in between is set aside
# for this job. Policies see this as a lower maximum in the job's view, so no policy
# needs code for it. A maximum cannot express "not over two nodes". So if a growth over
# more nodes failed, the maximum becomes what the nodes of the old size can hold, and a
# plan that spreads the job over more nodes is cut to fewer nodes (`cut`). Therefore the
# failures that do not count are limited: each size can fail twice, and each size that
# is set aside at least halves the maximum, or reduces the nodes.
#
# A change that did not begin (ReplicasKept with a reason) counts as a failed attempt.
# If a joining replica failed by itself, in its script or its dry step, a start would
# fail as well. So the size is set aside as after attempts that began. The job trains on
# all the time. Any other change that did not begin sets nothing aside: after some of
# them, converge.py tries a stop and a start. If that start fails too, the attempts are
# complete.

from dataclasses import dataclass, replace

from coadapt.model import NO_GRANT, WAITING, Allocation, Grant

ATTEMPTS_MAX = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large an allocation is."""

    num_replicas: int
    num_nodes: int

    def exceeds(self, other: "Size") -> bool:
        """Return whether this size has more replicas or more nodes."""
        return (
            self.num_replicas > other.num_replicas or self.num_nodes > other.num_nodes
        )

    def reaches(self, other: "Size") -> bool:
        """Return whether this size has at least as many replicas and at least as many
        nodes.
        """
        return (
            self.num_replicas >= other.num_replicas
            and self.num_nodes >= other.num_nodes
        )

    @property
    def in_words(self) -> str:
        """The size for a sentence: `4 GPUs on 2 nodes`."""
        return f"{plural(self.num_replicas, 'GPU')} on {plural(self.num_nodes, 'node')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedSize:
    """A size at which the job failed, and at which it has not passed a trial since."""

    size: Size
    num_attempts: int = 0
    """Attempts in a row that failed."""
    set_aside: bool = False
    """The job does not get this size any more, nor a larger one."""
    detail: str = ""
    """Why the last attempt failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """The sizes at which one job has trained or failed."""

    trained: Size | None = None
    """The last size at which the job trained, without larger sizes on trial. None
    before the first step.
    """
    trial: Size | None = None
    """The larger size on trial, at which the job has taken a step."""
    trial_since: float = 0.0
    """The time of that step, s."""
    known: int = 0
    """The generation whose size has passed its trial. Its further reports change
    nothing.
    """
    goes_back: bool = False
    """The last growth failed. The job gets nothing above `trained` until it has taken a
    step there.
    """
    max_replicas: int = 0
    """The most replicas that the job may get after sizes were set aside; 0: only the
    user's limit holds.
    """
    failed: tuple[FailedSize, ...] = ()

    @property
    def limit(self) -> int | None:
        """Return the most replicas that a plan may give, None if only the user's limit
        holds.
        """
        limits = [self.max_replicas] if self.max_replicas else []
        if self.goes_back and self.trained is not None:
            limits.append(self.trained.num_replicas)
        return min(limits, default=None)

    def is_attempt(self, size: Size) -> bool:
        """Return whether an end of replicas at `size` would be a failed growth."""
        return self.trained is not None and size.exceeds(self.trained)

    def refuses(self, size: Size) -> FailedSize | None:
        """Return the set-aside size that forbids `size`, None if `size` is allowed."""
        for failed in self.failed:
            if failed.set_aside and size.reaches(failed.size):
                return failed
        return None


NO_GROWTH = Growth()


def size_of(allocation: Allocation) -> Size:
    return Size(num_replicas=allocation.num_replicas, num_nodes=allocation.num_nodes)


def after_step(
    growth: Growth, size: Size, generation: int, at: float, trial_s: float
) -> Growth:
    """Return the growth after replicas of `generation`, at `size`, reported at `at` (s)
    that they train.
    """
    if growth.is_attempt(size):
        if growth.trial != size:
            return replace(growth, trial=size, trial_since=at)
        if at - growth.trial_since < trial_s:
            return growth
    # A size that works clears the failures of all sizes up to it.
    failed = tuple(each for each in growth.failed if not size.reaches(each.size))
    return replace(
        growth,
        trained=size,
        trial=None,
        known=generation,
        goes_back=False,
        failed=failed,
    )


def after_failure(
    growth: Growth, size: Size, detail: str, node_gpus: int, min_replicas: int
) -> Growth:
    """Return the growth after an attempt at `size` ended its replicas.

    node_gpus: GPUs of the largest node. min_replicas: what the job needs at least.
    """
    growth = replace(
        _counted(growth, size, detail), goes_back=True, trial=None, known=0
    )
    return _set_aside(growth, size, node_gpus, min_replicas)


def after_kept(growth: Growth, size: Size, detail: str) -> Growth:
    """Return the growth after a change to `size` failed before it began."""
    return _counted(growth, size, detail) if growth.is_attempt(size) else growth


def after_failed_joiner(
    growth: Growth, size: Size, detail: str, node_gpus: int, min_replicas: int
) -> Growth:
    """Return the growth after a joining replica failed in a change to `size`.

    The change had not begun. The arguments are those of `after_failure`.
    """
    return _set_aside(_counted(growth, size, detail), size, node_gpus, min_replicas)


def _set_aside(growth: Growth, size: Size, node_gpus: int, min_replicas: int) -> Growth:
    """Set `size` aside if enough attempts at it have failed."""
    trained = growth.trained
    assert trained is not None  # otherwise this is no attempt
    (latest,) = (each for each in growth.failed if each.size == size)
    if latest.num_attempts < ATTEMPTS_MAX:
        return growth
    most = _most_below(size, trained, node_gpus)
    limits = [growth.max_replicas] * bool(growth.max_replicas)
    if most < size.num_replicas:
        limits.append(max(most, min_replicas))
    aside = replace(latest, set_aside=True)
    return replace(
        growth,
        max_replicas=min(limits, default=0),
        failed=(*(each for each in growth.failed if each.size != size), aside),
    )


def cut(target: Grant, most: Size, least: int) -> Grant:
    """Return a part of `target` that is no larger than `most`, or NO_GRANT if this part
    has fewer than `least` replicas.

    The nodes with the most of its GPUs stay, in their order.
    """
    allocation = target.allocation
    if not size_of(allocation).exceeds(most):
        return target
    if allocation.shared:
        return NO_GRANT
    by_count = sorted(allocation.slots, key=lambda slot: -slot[1])
    names = {node for node, _ in by_count[: most.num_nodes]}
    left = most.num_replicas
    slots: list[tuple[str, int]] = []
    for node, count in allocation.slots:
        if node in names and left:
            slots.append((node, min(count, left)))
            left -= min(count, left)
    part = Allocation(slots=tuple(slots))
    return Grant(allocation=part) if part.num_replicas >= least else NO_GRANT


def within(growth: Growth, target: Grant, least: int) -> Grant:
    """Return the part of `target` that the job may have. least: its fewest replicas."""
    if target.allocation == WAITING:
        return target
    for failed in growth.failed:
        size = size_of(target.allocation)
        if not target or not failed.set_aside or not size.reaches(failed.size):
            continue
        if failed.size.num_nodes > 1:
            most = replace(size, num_nodes=failed.size.num_nodes - 1)
        else:
            most = replace(size, num_replicas=failed.size.num_replicas - 1)
        target = cut(target, most, least)
    return target


def growth_failure_text(growth: Growth, size: Size, detail: str) -> str:
    """Return a sentence for the job's user about a failed growth."""
    assert growth.trained is not None
    how = f": {detail}" if detail else ""
    back = f"goes back to {growth.trained.in_words}"
    failed = growth.refuses(size)
    if failed is None:
        return f"{back}, {size.in_words} failed{how}"
    return f"{back}, {set_aside_text(failed)}"


def set_aside_text(failed: FailedSize) -> str:
    """Return a text about the size that is set aside, and why it is."""
    how = f": {failed.detail}" if failed.detail else ""
    return (
        f"{failed.size.in_words} and more are set aside for this job, "
        f"they failed {failed.num_attempts} times{how}"
    )


def plural(count: int, thing: str) -> str:
    """Return `1 GPU`, `2 GPUs`."""
    return f"{count} {thing}{'s' if count != 1 else ''}"


def _counted(growth: Growth, size: Size, detail: str) -> Growth:
    """Return the growth with one more failed attempt at `size`."""
    known = [each for each in growth.failed if each.size == size]
    latest = known[0] if known else FailedSize(size=size)
    latest = replace(latest, num_attempts=latest.num_attempts + 1, detail=detail)
    others = tuple(each for each in growth.failed if each.size != size)
    return replace(growth, failed=(*others, latest))


def _most_below(size: Size, trained: Size, node_gpus: int) -> int:
    """Return how many replicas may still be tried after `size` was set aside."""
    if size.num_nodes > trained.num_nodes:
        # The number of nodes is the most likely cause. A size that fits on as many
        # nodes as before may still work.
        most = min(size.num_replicas, trained.num_nodes * node_gpus)
    else:
        most = size.num_replicas // 2
    return max(most, trained.num_replicas)
