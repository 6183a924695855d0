"""A random schedule of rescales, and how a run is led through it."""

# Nothing here is timed: a change happens at the step that the seed says, however slow
# the machine. Training waits at the gate until joining replicas have come to their
# training. Then steps take ever longer, up to 3 s, until the joining replicas are
# ready. After that steps are short again: replicas agree on a change within two or
# three consensuses, one per step. Where the batch may grow there may be fewer steps
# than in the run alone: a change for which training does not last is left out.

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from coadapt.model.contract_env import EXIT_PEER_LOST, EXIT_STOPPED
from coadapt.train.check.replicas import ScriptRun
from coadapt.train.check.rows import last_step
from coadapt.train.wrappers.recorder import Gate, write_gate

# A step while a change is under way: longer than the 0.4 s / 2 at which replicas talk
# after each step.
PACE_S = 0.25
# The first step while joining replicas prepare. Each further one takes twice as long,
# up to APPROACH_MAX_S. They need two or three steps of the others, and on a busy
# machine many seconds, in which training must not run through the steps of the change.
APPROACH_S = 0.5
APPROACH_MAX_S = 3.0
# Steps that a change takes from its gate, and as many of training between two.
STEPS_PER_CHANGE = 8
STEPS_PER_FULL_RESCALE = 3
ANEW_SHARE = 0.25
ENDINGS = (0, EXIT_STOPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """At the end of `step`, from so many replicas to others. keep: ranks that stay;
    None: all are started again.
    """

    step: int
    before: int
    after: int
    keep: tuple[int, ...] | None

    def __str__(self) -> str:
        if self.keep is None:
            how = "by a restart"
        elif len(self.keep) == min(self.before, self.after) and self.keep == tuple(
            range(len(self.keep))
        ):
            how = "in place"
        else:
            stay = ", ".join(map(str, self.keep)) or "none"
            how = f"in place (stays: {stay})"
        return f"{self.before} -> {self.after} {how} at step {self.step}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a run did not come to its end. lines: of the replica's output."""

    member: str
    text: str
    lines: tuple[str, ...] = ()


def draw_changes(
    num_steps: int, num_changes: int, max_replicas: int, seed: int
) -> tuple[int, list[Change]]:
    """Return the replicas to start with, and up to `num_changes` changes that fit into
    `num_steps` steps.

    The first is in place and lets a replica join, the second (of three or more) is a
    restart.
    """
    draw = random.Random(seed)
    fitting = _fitting(num_steps, num_changes)
    if not fitting:
        return 1, []
    first = count = draw.randint(1, max(max_replicas - 1, 1))
    changes = []
    for index in range(fitting):
        step = _draw_step(draw, index, num_steps // fitting)
        after = (
            draw.randint(count + 1, max_replicas)
            if index == 0
            else draw.randint(1, max_replicas)
        )
        anew = fitting > 2 and (
            index == 1 or (index > 1 and draw.random() < ANEW_SHARE)
        )
        keep = None
        if not anew:
            most = min(count, after)
            least = 0 if index > 2 else 1
            kept = most if index == 0 else draw.randint(least, most)
            keep = tuple(sorted(draw.sample(range(count), kept)))
        changes.append(Change(step=step, before=count, after=after, keep=keep))
        count = after
    return first, changes


def draw_anew(
    num_steps: int, num_changes: int, sizes: Sequence[int], seed: int
) -> tuple[int, list[Change]]:
    """As `draw_changes`, for a run that changes by restarts only, to these numbers of
    replicas.

    sizes: ascending, two or more. The first change lets a replica join.
    """
    draw = random.Random(seed)
    # A restart ends a step or two later than it is ordered; it needs no steps to come
    # about.
    fitting = min(num_changes, (num_steps - 1) // STEPS_PER_FULL_RESCALE)
    first = count = draw.choice(sizes[:-1])
    changes = []
    for index in range(fitting):
        step = _draw_step(draw, index, num_steps // fitting)
        after = draw.choice([size for size in sizes if index or size > count])
        changes.append(Change(step=step, before=count, after=after, keep=None))
        count = after
    return first, changes


def _fitting(num_steps: int, num_changes: int) -> int:
    return min(num_changes, max((num_steps - 1) // STEPS_PER_CHANGE, 0))


def _draw_step(draw: random.Random, index: int, room: int) -> int:
    """Return the step of the change `index`, of which each has `room` steps."""
    return index * room + 1 + draw.randrange(max(room - STEPS_PER_CHANGE, 1))


def lead(
    run: ScriptRun, first: int, changes: Sequence[Change]
) -> tuple[list[Change], Failure | None]:
    """Let `run` go through `changes`, at least one, to its end; return those made, and
    what went wrong.

    Raises LateError.
    """
    made: list[Change] = []
    write_gate(run.folder, Gate(hold=changes[0].step))
    run.start(first)
    for change in changes:
        if not _come_to(run, change.step):
            break
        failure = (
            _start_anew(run, change) if change.keep is None else _in_place(run, change)
        )
        if failure is not None:
            return made, failure
        if change.keep is not None and not run.done():
            break
        made.append(change)
    write_gate(run.folder, Gate())
    return made, await_end(run)


def await_end(run: ScriptRun) -> Failure | None:
    """Return once all replicas have ended, with what went wrong if it did. Raises
    LateError.
    """
    return _failure(run, run.codes(run.members))


def _come_to(run: ScriptRun, step: int) -> bool:
    """Let training go on to the end of `step`; return False if a replica ended
    before.
    """
    write_gate(run.folder, Gate(hold=step))
    return _unless_ended(
        run,
        lambda: all(last_step(run.folder, name) >= step for name in run.members),
        f"step {step}",
    )


def _unless_ended(run: ScriptRun, condition: Callable[[], bool], what: str) -> bool:
    """Wait for `condition`; return False if a replica ended instead."""
    run.wait(lambda: bool(run.ended()) or condition(), what)
    return not run.ended()


def _in_place(run: ScriptRun, change: Change) -> Failure | None:
    """Return what went wrong; without that the change is not done where training was
    over before it.
    """
    assert change.keep is not None
    before = run.members
    leaving = run.order(change.after, change.keep)
    if _carry_out(run, change, before) or run.done():
        return _failure(run, run.codes(leaving))
    if not set(run.ended()) <= set(before):
        run.await_cause()
        return _failure(run, run.codes(run.ended()), or_early=True)
    run.stop()  # replicas that were to join
    return await_end(run)


def _carry_out(run: ScriptRun, change: Change, before: Sequence[str]) -> bool:
    """Wait until the replicas have made the ordered change; return False if one ended
    instead.

    before: the members that trained when the change was ordered.
    """
    what = f"the change {change}"
    write_gate(run.folder, Gate(hold=change.step))
    if not _unless_ended(run, run.at_the_door, what):
        return False
    pace_s = APPROACH_S
    while not run.ready():
        step = last_step(run.folder, before[0]) + 1
        write_gate(run.folder, Gate(pace_s=pace_s))
        if not _unless_ended(run, partial(_ready_or_at, run, before[0], step), what):
            return False
        pace_s = min(2.0 * pace_s, APPROACH_MAX_S)
    write_gate(run.folder, Gate(pace_s=PACE_S))
    return _unless_ended(run, run.done, what)


def _ready_or_at(run: ScriptRun, member: str, step: int) -> bool:
    """Return whether joining replicas are ready, or `member` has ended `step`."""
    return run.ready() or last_step(run.folder, member) >= step


def _start_anew(run: ScriptRun, change: Change) -> Failure | None:
    run.stop()
    write_gate(run.folder, Gate(pace_s=PACE_S))
    codes = run.codes(run.members)
    if (failure := _failure(run, codes)) is not None:
        return failure
    write_gate(run.folder, Gate(pace_s=0.0))
    run.start(change.after)
    return None


def _failure(
    run: ScriptRun, codes: dict[str, int], *, or_early: bool = False
) -> Failure | None:
    # A replica that ended because of another one has nothing to say.
    causes = sorted(codes.items(), key=lambda item: item[1] == EXIT_PEER_LOST)
    for name, code in causes:
        if code not in ENDINGS or or_early:
            text = f"replica {name} ended with code {code}"
            return Failure(member=name, text=text, lines=tuple(run.last_lines(name)))
    return None
