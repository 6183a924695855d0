"""`python -m coadapt.train.check SCRIPT ...`: what the verb `coadapt check` runs."""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import cast

import torch

from coadapt.model import InputError, RuleKind
from coadapt.train.check.causes import (
    LOSS,
    Cause,
    Seen,
    by_layers,
    find_cause,
    not_alike,
    not_finite_since,
    not_used,
    strayed,
)
from coadapt.train.check.compare import Compared, Finding, State, distance
from coadapt.train.check.failures import explain_failure, explain_silence
from coadapt.train.check.replicas import LateError, ScriptRun
from coadapt.train.check.rounding import Rounding, up_to
from coadapt.train.check.rows import contents, kinds, read_steps, sizes
from coadapt.train.check.schedule import (
    STEPS_PER_CHANGE,
    Change,
    Failure,
    await_end,
    draw_anew,
    draw_changes,
    lead,
)
from coadapt.train.checkpoint.sharded_files import read_shards
from coadapt.train.checkpoint.store import CheckpointStore, read_checkpoint, read_state
from coadapt.train.dtensors import empty_shards, unflatten
from coadapt.train.wrappers.recorder import END_FILE, Plan

EXIT_SAME = 0
EXIT_DIFFERENT = 1
EXIT_UNFIT = 2
# Of the runs that say what a loss is a mean of.
STILL_STEPS = 12
# Findings that need no measure of rounding: samples and replicas are compared exactly.
EXACT = ("samples", "replicas")
# Contracts that promise the training of one replica.
SAME_TRAINING = ("fixed", "self")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """replicas: the most at a time. changes: of replicas. steps: of the optimiser,
    after which runs stop.
    """

    command: tuple[str, ...]
    replicas: int = 3
    changes: int = 4
    steps: int = 100
    seed: int = 0
    timeout_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a check came to. problem: why it could not be carried out, or a run failed;
    empty otherwise.

    cause: of a difference or a failure, where one was looked for. compared_until: the
    first step that could not be compared, because rounding alone parts two runs there.
    """

    num_steps: int = 0
    changes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    cause: Cause | None = None
    problem: str = ""
    lines: tuple[str, ...] = ()
    wall_s: float = 0.0
    compared_until: int | None = None

    @property
    def code(self) -> int:
        if self.problem and not self.changes and not self.findings:
            return EXIT_UNFIT
        same = not self.problem and all(
            finding.same is not False for finding in self.findings
        )
        return EXIT_SAME if same else EXIT_DIFFERENT


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a script; return the exit code: 0 the same training, 1 not, 2 it could not
    be checked.
    """
    parser = argparse.ArgumentParser(
        prog="coadapt check", description="See docs/check.md."
    )
    parser.add_argument("--replicas", type=int, default=3, help="the most at a time")
    parser.add_argument(
        "--changes", type=int, default=4, help="how often replicas change"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=100,
        help="optimiser steps after which each run stops",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of the schedule and of all random generators",
    )
    parser.add_argument(
        "--timeout", type=float, default=600.0, help="seconds for all runs together"
    )
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help="the script and its arguments"
    )
    given = parser.parse_args(arguments)
    if not given.command or not Path(given.command[0]).is_file():
        script = next(iter(given.command), None)
        _refuse(parser, "SCRIPT", script, "a Python file that exists")
    for name, least in (("replicas", 2), ("changes", 1), ("steps", 1)):
        if (number := getattr(given, name)) < least:
            _refuse(parser, f"--{name}", number, f"{least} or more")
    if not given.timeout > 0:
        _refuse(parser, "--timeout", given.timeout, "seconds > 0")
    settings = Settings(
        command=tuple(given.command),
        replicas=given.replicas,
        changes=given.changes,
        steps=given.steps,
        seed=given.seed,
        timeout_s=given.timeout,
    )
    outcome = check(settings)
    text = (
        json.dumps(asdict(outcome) | {"code": outcome.code})
        if given.json
        else outcome_text(outcome, settings)
    )
    sys.stdout.write(f"{text}\n")
    return outcome.code


def _refuse(
    parser: argparse.ArgumentParser, name: str, given: object, allowed: str
) -> None:
    parser.exit(EXIT_UNFIT, f"error: {InputError(name, given, allowed)}\n")


def check(settings: Settings) -> Outcome:
    """Run the script alone, alone again but for rounding, and under changes;
    compare.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="coadapt-check-") as folder:
        try:
            outcome = _check(settings, Path(folder), began + settings.timeout_s)
        except (LateError, SilentError) as late:
            text = f"nothing came of {late} within {settings.timeout_s:g} s (--timeout)"
            cause = late.cause if isinstance(late, SilentError) else None
            outcome = Outcome(problem=text, cause=cause)
    return replace(outcome, wall_s=round(time.monotonic() - began, 1))


def _check(settings: Settings, folder: Path, deadline: float) -> Outcome:
    plan = Plan(num_steps=settings.steps, seed=settings.seed)
    # Some replicas with a GPU and some without would be another training.
    envs = (
        {"CUDA_VISIBLE_DEVICES": ""}
        if torch.cuda.device_count() < settings.replicas
        else {}
    )
    still = replace(plan, num_steps=min(STILL_STEPS, settings.steps), still=True)
    plans = {
        "alone": plan,
        "nudged": replace(plan, nudge=1),
        "nudged_again": replace(plan, nudge=2),
        "nudged_thrice": replace(plan, nudge=3),
        "equal": plan,
        "changed": plan,
        "shared": plan,
        "still_alone": still,
        "still_shared": still,
    }
    runs = {
        name: ScriptRun(settings.command, folder / name, its, deadline, envs)
        for name, its in plans.items()
    }
    try:
        return _Runs(settings=settings, **runs).outcome()
    finally:
        for run in runs.values():
            run.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    """The runs of a check. nudged: references that measure rounding; equal: the run
    alone once more; all but the first where runs differ. shared: two replicas without a
    change, where a cause is looked for; still: see Seen.
    """

    settings: Settings
    alone: ScriptRun
    nudged: ScriptRun
    nudged_again: ScriptRun
    nudged_thrice: ScriptRun
    equal: ScriptRun
    changed: ScriptRun
    shared: ScriptRun
    still_alone: ScriptRun
    still_shared: ScriptRun

    def outcome(self) -> Outcome:
        settings = self.settings
        for run in (self.alone, self.nudged):
            run.start(1)
        failure = await_end(self.alone) or await_end(self.nudged)
        if failure is not None:
            cause = explain_failure(
                self.alone.all_lines() or self.nudged.all_lines(), {}
            )
            return replace(
                _failed(failure, "alone, before anything changed", ()), cause=cause
            )
        steps = read_steps(self.alone.folder)
        if not steps:
            text = (
                "no step was recorded: the script neither trains in `for epoch in "
                "run.epochs(n)`, nor gives "
                "the Trainer that trains a CoadaptCallback"
            )
            return Outcome(problem=text, lines=tuple(self.alone.last_lines("1-0")))
        num_steps = max(steps)
        since = not_finite_since(steps)
        if since is not None:
            text = f"not finite from step {since} on, alone too: nothing was compared"
            finding = Finding(what="losses", same=False, text=text)
            cause = find_cause(self._seen(Rounding()))
            return Outcome(num_steps=num_steps, findings=(finding,), cause=cause)
        fitting = sizes(self.alone.folder, settings.replicas)
        if fitting == [1]:
            most = settings.replicas
            text = (
                f"a batch that 2 to {most} replicas cannot share equally: the loop "
                f"is a library's"
            )
            return Outcome(num_steps=num_steps, problem=text)
        first, changes = self._draw(num_steps, fitting)
        made: list[Change] = []
        if changes:
            made, failure = self._lead(first, changes)
        if failure is None and not made:
            # Too short for a replica to join on the way: restarts fit into any three
            # steps.
            every = fitting or list(range(1, settings.replicas + 1))
            first, changes = draw_anew(
                num_steps, settings.changes, every, settings.seed
            )
            if not changes:
                problem = (
                    f"{num_steps} steps are too few for a change of replicas: train "
                    f"for more epochs"
                )
                return Outcome(num_steps=num_steps, problem=problem)
            self.changed.begin_again()
            made, failure = self._lead(first, changes)
        if failure is not None:
            where = (
                f"in the change {changes[len(made)]}"
                if len(made) < len(changes)
                else "after the changes"
            )
            seen = read_steps(self.changed.folder)
            cause = None if fitting else not_used(steps)
            cause = cause or explain_failure(self.changed.all_lines(), seen)
            return replace(
                _failed(failure, where, changes), num_steps=num_steps, cause=cause
            )
        if not made:
            return Outcome(
                num_steps=num_steps,
                problem="training was over before the first change of replicas: train "
                "for more epochs",
            )
        return self._compared(made)

    def _draw(self, num_steps: int, fitting: Sequence[int]) -> tuple[int, list[Change]]:
        """Return the replicas to start with, and the changes.

        fitting: the numbers of replicas at which another library's loop trains.
        """
        settings = self.settings
        if fitting:
            return draw_anew(num_steps, settings.changes, fitting, settings.seed)
        # As many steps as the changes need, and more as long as rounding is small.
        least = STEPS_PER_CHANGE * settings.changes + 1
        room = max(self._rounding().horizon or num_steps, least)
        return draw_changes(
            min(num_steps, room), settings.changes, settings.replicas, settings.seed
        )

    def _lead(
        self, first: int, changes: Sequence[Change]
    ) -> tuple[list[Change], Failure | None]:
        try:
            return lead(self.changed, first, changes)
        except LateError as late:
            seen = read_steps(self.changed.folder)
            raise SilentError(
                str(late), explain_silence(self.changed.all_lines(), seen)
            ) from late

    def _compared(self, made: Sequence[Change]) -> Outcome:
        compared, findings = self._comparison()
        if _by_rounding(compared, findings):
            runs = (self.nudged_again, self.nudged_thrice, self.equal)
            for run in runs:
                run.start(1)
            for run in runs:
                await_end(run)
            compared, findings = self._comparison()
        unlike = not_alike(compared.alone, read_steps(self.equal.folder))
        if unlike is not None:
            findings.append(Finding(what="script", same=False, text=unlike.text))
        cause = None
        if any(finding.by_design for finding in findings):
            cause = by_layers(compared.layers)
        if any(finding.same is False for finding in findings):
            cause = self._cause(compared.rounding)
        return Outcome(
            num_steps=max(compared.alone),
            changes=tuple(map(str, made)),
            findings=tuple(findings),
            cause=cause,
            compared_until=compared.compared_until,
        )

    def _comparison(self) -> tuple[Compared, list[Finding]]:
        """Compare with the references that have run."""
        contract, state = _state(self.alone)
        _, changed_state = _state(self.changed)
        references = [_state(run)[1] for run in self._references()]
        compared = Compared(
            alone=read_steps(self.alone.folder),
            changed=read_steps(self.changed.folder),
            state_alone=state,
            state_changed=changed_state,
            rounding=self._rounding(state, references),
            fixed=contract in SAME_TRAINING and not _goes_by_noise(state),
            layers=kinds(self.alone.folder),
            references=references,
        )
        findings = compared.findings()
        seen = self._seen(compared.rounding)
        names = strayed(seen) if compared.fixed and not compared.layers else []
        if names:
            text = f"`{names[0]}` ends elsewhere than alone"
            findings.append(Finding(what="script", same=False, text=text))
        return compared, findings

    def _cause(self, rounding: Rounding) -> Cause:
        """Look for the cause of a difference, with further runs."""
        fitting = sizes(self.alone.folder, 2)
        if not fitting or 2 in fitting:
            self.shared.start(2)
            await_end(self.shared)
        cause = find_cause(self._seen(rounding))
        if cause.kind != LOSS:
            return cause
        self.still_alone.start(1)
        self.still_shared.start(2)
        await_end(self.still_alone)
        await_end(self.still_shared)
        return find_cause(self._seen(rounding))

    def _references(self) -> list[ScriptRun]:
        runs = (self.nudged, self.nudged_again, self.nudged_thrice, self.equal)
        return [run for run in runs if run.members]

    def _rounding(
        self, state: State | None = None, ends: Sequence[State] = ()
    ) -> Rounding:
        """Return how far the references part from the run alone, and their ends from
        its end.
        """
        steps = [read_steps(run.folder) for run in self._references()]
        last = [] if state is None else [distance(state, end) or 0.0 for end in ends]
        return Rounding.measured(read_steps(self.alone.folder), steps, last)

    def _seen(self, rounding: Rounding) -> Seen:
        alone = read_steps(self.alone.folder)
        changed = read_steps(self.changed.folder)
        shared = read_steps(self.shared.folder)
        return Seen(
            alone=alone,
            again=read_steps(self.nudged.folder),
            changed=up_to(changed, rounding.parting(alone, changed).undecided),
            shared=up_to(shared, rounding.parting(alone, shared).undecided),
            still_alone=read_steps(self.still_alone.folder),
            still_shared=read_steps(self.still_shared.folder),
            rounding=rounding,
            equal=read_steps(self.equal.folder),
            hosted=bool(sizes(self.alone.folder, 2)),
            layers=kinds(self.alone.folder),
            contents_alone=contents(self.alone.folder),
            contents_again=contents(self.nudged.folder),
            contents_shared=contents(self.shared.folder),
        )


def _by_rounding(compared: Compared, findings: Sequence[Finding]) -> bool:
    """Return whether runs differ, and more references may show that rounding is why."""
    if compared.compared_until is not None:
        return True
    different = {finding.what for finding in findings if finding.same is False}
    return bool(different) and not different & set(EXACT)


class SilentError(Exception):
    """A run came no further. cause: why, where that can be seen."""

    def __init__(self, what: str, cause: Cause | None) -> None:
        super().__init__(what)
        self.cause = cause


def _state(run: ScriptRun) -> tuple[str, State]:
    """Return the contract, and the registered objects, of a run's end."""
    end = run.folder / END_FILE
    state = read_state(end, END_FILE) if end.exists() else _last_saved(run)
    record = cast("dict[str, object]", state["run"])
    return str(record["contract"]), cast("State", state["objects"])


def _last_saved(run: ScriptRun) -> dict[str, object]:
    newest = CheckpointStore(run.checkpoints).newest()
    assert newest is not None, "a run that ended has saved"
    state = read_checkpoint(newest)
    if (
        newest.is_dir()
    ):  # the replicas' parts of a sharded model: here they are put together
        parts = read_shards(newest, empty_shards(state, {}))
        state = cast("dict[str, object]", unflatten(state, parts))
    return state


def _goes_by_noise(state: State) -> bool:
    """Return whether the batch follows the noise scale, which is measured otherwise on
    other replicas.
    """
    rule = state.get("batch_rule")
    return isinstance(rule, Mapping) and rule["kind"] == RuleKind.NOISE_SCALE


def _failed(failure: Failure, where: str, changes: Sequence[Change]) -> Outcome:
    return Outcome(
        problem=f"{failure.text} {where}",
        lines=failure.lines,
        changes=tuple(str(item) for item in changes),
    )


def outcome_text(outcome: Outcome, settings: Settings) -> str:
    """Return the outcome in words."""
    lines = [
        (
            f"{' '.join(settings.command)}, seed {settings.seed}: {outcome.num_steps} "
            f"steps alone, and with"
        )
    ]
    lines += [f"  {change}" for change in outcome.changes or ("no change",)]
    width = max((len(finding.what) for finding in outcome.findings), default=0)
    for finding in outcome.findings:
        mark = {True: "same", False: "DIFFERENT", None: "-"}[finding.same]
        lines.append(f"{finding.what:{width}}  {mark:9}  {finding.text}")
    different = [finding for finding in outcome.findings if finding.same is False]
    if outcome.problem:
        lines += [
            f"failed: {outcome.problem}",
            *(f"  | {line}" for line in outcome.lines),
        ]
    elif different:
        lines.append(f"not the same training, first in {different[0].what}")
    elif any(finding.by_design for finding in outcome.findings):
        lines.append("the same training, but for what differs by design")
    elif outcome.compared_until == 1:
        lines.append("not compared: rounding alone parts two runs from the first step")
    elif outcome.compared_until is not None:
        lines.append(
            f"the same training up to step {outcome.compared_until - 1}; from there "
            f"rounding alone parts two runs of this script, so a comparison cannot tell"
        )
    else:
        lines.append("the same training")
    if outcome.cause is not None:
        known = "cause" if outcome.cause.kind != "unknown" else "known"
        lines.append(f"{known}: {outcome.cause.text}")
        if outcome.cause.remedy:
            lines.append(f"write: {outcome.cause.remedy}")
    return "\n".join(lines)


def _end(signum: int, _frame: FrameType | None) -> None:
    """End as by an exception: with the replicas, which are in sessions of their own,
    and what they wrote.
    """
    sys.exit(128 + signum)


if __name__ == "__main__":
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, _end)
    sys.exit(main())
