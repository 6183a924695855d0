"""From what was seen of the runs to the cause of a difference, and the line to write.
Pure.
"""

# A cause is named only where something was seen that no other cause known here leaves.
# The order of the questions is that of the training: is the script itself repeatable,
# are the samples the same, the rates, the calls, the loss, the gradient, the
# parameters. Whether two replicas from the start already differ from one alone (the
# work is divided wrongly) or only those that went through a change (something starts
# again) is what tells most, so a fourth run of two replicas without a change is made
# where runs differ.
#
# Of losses: a pass counts by its samples, so the mean over replicas, weighted by
# samples, must be the loss alone. Where it is not, the two replicas' losses say what
# the loss is instead. Where it is their sum: a sum over samples. Where it lies between
# the two in each step: a mean over something of which samples have unlike numbers
# (tokens, boxes). Where it does not: something is calculated from the samples of a pass
# together.

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from coadapt.train.check.rounding import LEAST, Rounding, distance
from coadapt.train.check.rows import Steps
from coadapt.train.wrappers.drift import TOLERANCE, by_replica
from coadapt.train.wrappers.recorder import StepRow

# Relative: losses and gradients of a step before which parameters are alike.
SAME_LOSS = 1e-4
SAME_GRADIENT = 1e-3
SAME_RATE = 1e-9
# Two runs alone, of which one begins off by a rounding error.
REPEATS = 1e-3
# Steps at the beginning that are looked at: parameters are nearly those of the run
# alone.
EARLY_STEPS = 8
# A loss may lie outside of two others by as much of their distance, for rounding.
BETWEEN_MARGIN = 1e-3
# Of a variable: what counts as the same.
SAME_VALUE = 1e-3
NAMED_MAX = 3
# What explains a difference best comes first.
KINDS = ("optimizer", "scheduler", "module", "tensor", "count", "number", "text")
PER_SAMPLE = (
    'ct.init(random="per-sample"), by which what is drawn follows from the sample\'s '
    "place, at any number of "
    "replicas"
)
# Of a cause that says no more than that losses differ.
LOSS = "loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """kind: a name for programs. text: what was seen. remedy: the line to write, empty
    where none is known.
    """

    kind: str
    text: str
    remedy: str = ""


Contents = Sequence[Mapping[int, tuple[float, float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The runs of one script. alone, again: on one replica, the second off by one
    rounding error.

    shared: on two replicas without a change, empty where that was not run. still: both
    once more, with parameters that no step changes; empty where losses need not be
    looked at. changed: under changes.
    rounding: what it explains of a difference; runs end where it explains too much.
    Contents are by replica. hosted: the loop is another library's, which calls the
    model past the run. equal: a second run alone without any difference, empty where
    that was not run.
    """

    alone: Steps
    again: Steps
    changed: Steps
    shared: Steps = field(default_factory=dict)
    still_alone: Steps = field(default_factory=dict)
    still_shared: Steps = field(default_factory=dict)
    rounding: Rounding = field(default_factory=Rounding)
    equal: Steps = field(default_factory=dict)
    hosted: bool = False
    layers: Sequence[str] = ()
    contents_alone: Contents = ()
    contents_again: Contents = ()
    contents_shared: Contents = ()


def find_cause(seen: Seen) -> Cause:
    """Return why the runs differ. Of several causes, the one that acts first."""
    questions = (
        _not_finite,
        _not_repeatable,
        _not_alike,
        _not_used,
        _other_samples,
        _other_contents,
        _other_rates,
        _other_calls,
        _trained_beside,
        _other_losses,
        _other_gradients,
        _other_parameters,
        _starts_again,
    )
    for question in questions:
        cause = question(seen)
        if cause is not None:
            return cause
    return _unknown(seen)


def by_layers(layers: Sequence[str]) -> Cause:
    """Return why a training cannot be the same to the last digit: what its models are
    made of.
    """
    text = (
        f"the model has {' and '.join(layers)}, whose results depend on how a step "
        f"is shared"
    )
    remedy = PER_SAMPLE
    if "batch normalisation" in layers:
        remedy = (
            "nn.SyncBatchNorm.convert_sync_batchnorm(model) on GPUs, or group or "
            "layer normalisation, makes "
            "it independent of the replicas"
        )
    return Cause(kind="layers", text=text, remedy=remedy)


def not_finite_since(steps: Steps) -> int | None:
    """Return the step from which on no loss, or no parameter, is finite again; None if
    the last one is.
    """
    since = None
    for step, rows in steps.items():
        numbers = [loss for row in rows for _, loss in row.losses]
        numbers += [value for row in rows for value in (row.checksum, row.norm)]
        if all(map(math.isfinite, numbers)):
            since = None
        elif since is None:
            since = step
    return since


def strayed(seen: Seen) -> list[str]:
    """Return the script's own modules, optimisers and schedulers that end elsewhere
    than alone.
    """
    names = []
    last = max((step for step in seen.alone if step in seen.changed), default=None)
    if last is None:
        return []
    first = next(iter(seen.alone.values()))[0].seen
    for name, (kind, value, _) in seen.alone[last][0].seen.items():
        if kind not in ("module", "optimizer", "scheduler") or name not in first:
            continue
        moved = abs(_float(value) - _float(first[name][1]))
        allowed = 0.05 * moved + SAME_VALUE * abs(_float(value))
        others = _values_of(name, seen.changed[last])
        again = _values_of(name, seen.again.get(last, []))
        far = [abs(item - _float(value)) > allowed for item in others]
        by_rounding = [abs(item - _float(value)) > allowed for item in again]
        if moved and any(far) and not any(by_rounding):
            names.append(name)
    return names


def _values_of(name: str, rows: Sequence[StepRow]) -> list[float]:
    """Return what a variable of the script holds in each row that has it."""
    return [_float(row.seen[name][1]) for row in rows if name in row.seen]


def _not_finite(seen: Seen) -> Cause | None:
    step = not_finite_since(seen.alone)
    if step is None:
        return None
    losses = [loss for row in seen.alone[step] for _, loss in row.losses]
    what = "the loss is" if not all(map(math.isfinite, losses)) else "parameters are"
    text = f"{what} infinite or not a number (NaN) from step {step} on, alone too"
    remedy = (
        "look at the data and the loss of that step, lower the rate, or clip; then "
        "check again"
    )
    return Cause(kind="not-finite", text=text, remedy=remedy)


def _not_repeatable(seen: Seen) -> Cause | None:
    """Two runs alone that differ by more than a rounding error."""
    for step, rows in list(seen.alone.items())[:EARLY_STEPS]:
        others = seen.again.get(step)
        if others is None:
            continue
        own = rows[0]
        other = others[0]
        if own.ids != other.ids:
            text = f"two runs alone do not have the same samples in step {step}"
            remedy = (
                "give what draws or shuffles a fixed seed, and do not go by the time"
            )
            return Cause(kind="not-repeatable", text=text, remedy=remedy)
        if _rates_differ(own, other) and not _far(_loss(rows), _loss(others), REPEATS):
            text = (
                f"two runs alone do not have the same learning rate in step {step}: "
                f"it follows the time, or "
                "something that is drawn without a seed"
            )
            remedy = (
                "let it follow run.progress.samples, or a scheduler given to "
                "run.prepare_scheduler(...)"
            )
            return Cause(kind="rate-by-time", text=text, remedy=remedy)
        if step == next(iter(seen.alone)) and _far(_loss(rows), _loss(others), REPEATS):
            return _unseeded(seen, step)
    return None


def _not_alike(seen: Seen) -> Cause | None:
    return not_alike(seen.alone, seen.equal)


def not_alike(alone: Steps, equal: Steps) -> Cause | None:
    """Return the cause where a second run alone, which is equal in everything, is not
    the same training. Without such a run: None.

    Runs that begin to differ within rounding are alike: threads may add up in another
    order.
    """
    for step, rows in alone.items():
        if step not in equal:
            continue
        own = rows[0]
        other = equal[step][0]
        if own.sketch == other.sketch and own.checksum == other.checksum:
            continue
        if distance(own, other) <= LEAST:
            return None
        text = f"two runs alone, equal in everything, part in step {step}"
        remedy = (
            "give what draws a fixed seed, and go neither by the time nor by the order "
            "in which something ends"
        )
        return Cause(kind="not-repeatable", text=text, remedy=remedy)
    return None


def _unseeded(seen: Seen, step: int) -> Cause:
    text = f"two runs alone do not have the same loss in step {step}"
    if _contents_differ(seen.contents_alone, seen.contents_again):
        text += (
            ": the data set does not have the same samples, in the same order, at "
            "every start"
        )
        remedy = (
            "make it from a generator with a fixed seed, not from the time, from "
            "os.urandom or from the order "
            "in which files are listed (sort them)"
        )
        return Cause(kind="data-by-time", text=text, remedy=remedy)
    text += ": something is drawn without a seed, or goes by the time"
    remedy = "give each generator of the script a fixed seed"
    return Cause(kind="not-repeatable", text=text, remedy=remedy)


def _not_used(seen: Seen) -> Cause | None:
    return None if seen.hosted else not_used(seen.alone)


def not_used(alone: Steps) -> Cause | None:
    """Return the cause where gradients go past what prepare returned."""
    rows = [rows[0] for rows in alone.values()]
    stepped = sum(sum(row.updates) for row in rows)
    if not stepped:
        return None
    if not sum(sum(row.forwards) for row in rows):
        text = (
            "the model that run.prepare(...) returned is never called: replicas do "
            "not exchange gradients"
        )
        remedy = (
            "model, optimizer = run.prepare(model, optimizer), and call that model "
            "in the loop"
        )
        return Cause(kind="own-model", text=text, remedy=remedy)
    if not sum(sum(row.backwards) for row in rows):
        text = "no backward goes through the model that run.prepare(...) returned"
        remedy = (
            "loss.backward() in place of torch.autograd.grad, so that gradients are "
            "exchanged"
        )
        return Cause(kind="no-backward", text=text, remedy=remedy)
    return None


def _other_samples(seen: Seen) -> Cause | None:
    for name, run in (("2 replicas", seen.shared), ("changes", seen.changed)):
        for step, rows in seen.alone.items():
            others = run.get(step)
            wanted = _ids(rows)
            if others is None or not wanted or wanted == _ids(others):
                continue
            own = wanted.total()
            other = _ids(others).total()
            if other == own * len(others) and len(others) > 1:
                text = (
                    f"step {step} has {other} samples on {len(others)} replicas, "
                    f"{own} alone"
                )
                remedy = (
                    "batch_size is that of one optimiser step over all replicas: do "
                    "not multiply it by their "
                    "number"
                )
                return Cause(kind="batch-by-replicas", text=text, remedy=remedy)
            text = (
                f"step {step} does not have the samples that it has alone, under {name}"
            )
            remedy = (
                "give every replica, at every start, the same data set (length and "
                "order) and the same "
                "ct.init(seed=...)"
            )
            return Cause(kind="other-samples", text=text, remedy=remedy)
    return None


def _other_contents(seen: Seen) -> Cause | None:
    if not _contents_differ(seen.contents_alone[:1] or (), seen.contents_shared):
        return None
    first = next(iter(seen.shared))
    text = "a sample with the same index is not the same on every replica"
    remedy = (
        "make the data set from a generator with the same seed on all replicas: not "
        "from run.rank, and "
        f"before anything that only some replicas draw (seen before step {first})"
    )
    return Cause(kind="data-by-rank", text=text, remedy=remedy)


def _other_rates(seen: Seen) -> Cause | None:
    """Rates that differ: with two replicas from the start, or since a change."""
    for step, rows in seen.shared.items():
        alone = seen.alone.get(step)
        if alone is None:
            continue
        ratio = _rate_ratio(rows[0], alone[0])
        apart = _apart_in_rates(rows)
        if step == next(iter(seen.shared)) and ratio is not None and not apart:
            found = (
                f"{_rate(rows[0]):.6g} on {len(rows)} replicas, "
                f"{_rate(alone[0]):.6g} alone"
            )
            text = (
                f"the learning rate follows the number of replicas: step {step}: "
                f"{found}"
            )
            remedy = (
                "leave it as it is alone: the batch is the same at any number of "
                "replicas (under contract "
                "adaptive it is scaled for you)"
            )
            return Cause(kind="rate-by-replicas", text=text, remedy=remedy)
        if apart:
            found = by_replica([_rate(row) for row in rows])
            text = (
                f"the learning rate differs between replicas from the start: step "
                f"{step}: {found}"
            )
            remedy = (
                "it follows a figure of one replica (a loss, a count of its "
                "samples): use "
                "validation.totals() or run.totals(), which are the same on all, or "
                "run.progress"
            )
            return Cause(kind="rate-by-local-figure", text=text, remedy=remedy)
        if ratio is not None:
            break
    for step, rows in seen.changed.items():
        alone = seen.alone.get(step)
        if alone is None or not (
            _apart_in_rates(rows) or _rate_ratio(rows[0], alone[0]) is not None
        ):
            continue
        found = by_replica([_rate(row) for row in rows])
        text = (
            f"the learning rate is another one since a change: step {step}: {found}, "
            f"{_rate(alone[0]):.6g} alone"
        )
        return _again(seen, step, "rate", text)
    return None


def _other_calls(seen: Seen) -> Cause | None:
    for step, rows in seen.shared.items():
        alone = seen.alone.get(step)
        if alone is None:
            continue
        own = alone[0]
        others = rows
        idle = [row.rank for row in others if not sum(row.backwards)]
        if sum(own.backwards) and idle:
            who = ", ".join(map(str, idle))
            return _skips(
                f"step {step} has a backward alone, and none on replica {who} of "
                f"{len(rows)}"
            )
        calls = [sum(row.updates) for row in others]
        if calls != [sum(own.updates)] * len(calls):
            text = (
                f"step {step}: calls of optimizer.step(): {by_replica(calls)}, "
                f"{sum(own.updates)} alone"
            )
            remedy = (
                "run.loader(max_atomic=...) accumulates; else go by run.progress.step"
            )
            return Cause(kind="calls-by-replica", text=text, remedy=remedy)
    if any(not sum(rows[0].updates) for rows in seen.alone.values()) and any(
        sum(rows[0].backwards) and not sum(rows[0].updates)
        for rows in seen.alone.values()
    ):
        text = (
            "the loop accumulates by hand: it calls optimizer.step() in some steps "
            "only, and what .grad holds "
            "between them does not go over to a replica that joins"
        )
        remedy = (
            "a larger batch_size in run.loader(batch_size=..., max_atomic=...), and "
            "optimizer.step() each "
            "time: passes accumulate by themselves"
        )
        return Cause(kind="own-accumulation", text=text, remedy=remedy)
    for step, rows in seen.changed.items():
        alone = seen.alone.get(step)
        if alone is None:
            continue
        calls = [sum(row.updates) for row in rows]
        if calls != [sum(alone[0].updates)] * len(calls):
            found = f"{by_replica(calls)}, {sum(alone[0].updates)} alone"
            text = (
                f"calls of optimizer.step() are others since a change: step {step}: "
                f"{found}"
            )
            return _again(seen, step, "calls", text)
    return None


def _trained_beside(seen: Seen) -> Cause | None:
    """A model with an optimiser that prepare was not given: its gradients are not
    exchanged.
    """
    first = next(iter(seen.alone.values()))[0]
    if not any(rows[0].others for rows in seen.alone.values()):
        return None
    for _, rows in list(seen.shared.items())[:EARLY_STEPS]:
        for name, (kind, value, _) in rows[0].seen.items():
            if kind != "module" or name not in first.seen:
                continue
            others = [row.seen[name][1] for row in rows[1:] if name in row.seen]
            if any(_far(_float(value), _float(other), SAME_LOSS) for other in others):
                text = (
                    f"`{name}` is trained by an optimizer that run.prepare(...) was "
                    f"not given: its gradients "
                    "are not averaged over the replicas"
                )
                remedy = (
                    f"{name}, its_optimizer = run.prepare({name}, its_optimizer, "
                    f'name="{name}")'
                )
                return Cause(kind="trained-beside", text=text, remedy=remedy)
    return None


def _other_losses(seen: Seen) -> Cause | None:
    """Losses of two replicas against one, where parameters are still the same."""
    step = _first_unlike(seen)
    if step is None or not _parted(seen.alone, seen.shared, seen.rounding):
        return None
    alone = seen.alone[step]
    rows = seen.shared[step]
    if not _far(_loss(alone), _loss(rows), SAME_LOSS):
        return None
    found = (
        f"step {step}: {_loss(rows):.6g} on {len(rows)} replicas, {_loss(alone):.6g} "
        f"alone"
    )
    draws = sorted({name for row in (*alone, *rows) for name in row.draws})
    random_data = any(
        first != again for own in seen.contents_alone for first, again in own.values()
    )
    if draws and "dropout" in seen.layers:
        return _by_layers(seen, found)
    own_generators = _moving_generators(seen)
    if own_generators:
        text = f"the loop draws from its own generator `{own_generators[0]}`: {found}"
        remedy = (
            "every replica draws the same numbers for other samples: let what is "
            "random follow from the "
            "sample (its index, its seed), as run.steps(...) gives them"
        )
        return Cause(kind="own-generator", text=text, remedy=remedy)
    if draws or random_data:
        return _drawn(draws, random_data, found)
    kind = _kind_of_loss(seen)
    if kind == "sum":
        text = f"the loss is a sum over samples, not their mean: {found}"
        remedy = 'run.prepare(model, optimizer, reduction="sum")'
        return Cause(kind="sum", text=text, remedy=remedy)
    if "batch normalisation" in seen.layers:
        return _by_layers(seen, found)
    if kind == "between":
        text = (
            "the loss is a mean over something of which samples have unlike numbers "
            "(tokens, boxes, pairs), "
            f"so that it does not count by samples: {found}"
        )
        remedy = (
            "say what each pass counts: run.weight(n) before the backward, n tokens "
            "(boxes, pairs) in this "
            "pass"
        )
        return Cause(kind="weighted-mean", text=text, remedy=remedy)
    if kind == "outside":
        text = (
            "the loss of a pass is no mean over its samples: something is calculated "
            "from all samples of a "
            f"pass together (normalised, ranked, compared with each other): {found}"
        )
        remedy = (
            "calculate it from the whole step: from sums over replicas, from a fixed "
            "statistic, or from one "
            "gathered over the replicas (run.gather)"
        )
        return Cause(kind="pass-statistics", text=text, remedy=remedy)
    text = f"the loss is not the mean over its samples: {found}"
    remedy = "make it one, or say what each pass counts: run.weight(n)"
    return Cause(kind=LOSS, text=text, remedy=remedy)


def _drawn(draws: Sequence[str], random_data: bool, found: str) -> Cause:
    whose = " and ".join(draws) or "the data set's"
    where = "the data set draws" if random_data and not draws else "the loop draws"
    text = (
        f"{where} random numbers ({whose} generator), which differ with the number "
        f"of replicas: {found}"
    )
    remedy = f"{PER_SAMPLE}; without it the training is the same in distribution only"
    return Cause(kind="random-numbers", text=text, remedy=remedy)


def _by_layers(seen: Seen, found: str) -> Cause:
    cause = by_layers(seen.layers)
    return replace(cause, text=f"{cause.text}: {found}")


def _kind_of_loss(seen: Seen) -> str:
    """Return how the loss alone relates to those of two replicas: sum, between,
    outside; empty if unknown.
    """
    found = []
    for step, rows in seen.still_shared.items():
        alone = seen.still_alone.get(step)
        if alone is None or len(rows) != 2:
            continue
        if any(len(row.losses) != 1 for row in (*rows, *alone)):
            continue
        whole, one, other = (row.losses[0][1] for row in (alone[0], *rows))
        found.append((whole, one, other))
    if not found:
        return ""
    if not any(_far(whole, one + other, SAME_LOSS) for whole, one, other in found):
        return "sum"
    shares = [
        (whole - other) / (one - other)
        for whole, one, other in found
        if _far(one, other, SAME_LOSS)
    ]
    inside = [-BETWEEN_MARGIN <= share <= 1.0 + BETWEEN_MARGIN for share in shares]
    return "between" if all(inside) and inside else "outside"


def _other_gradients(seen: Seen) -> Cause | None:
    step = _first_unlike(seen)
    if step is None or not _parted(seen.alone, seen.shared, seen.rounding):
        return None
    parted = _replicas_part(seen.shared)
    if parted is not None and parted < step:
        return None  # of unlike parameters the gradients are unlike, too
    alone = seen.alone[step]
    rows = seen.shared[step]
    apart = any(
        _far(rows[0].gradient[1], row.gradient[1], SAME_GRADIENT) for row in rows
    )
    same = not _gradients_differ(alone[0], rows[0])
    if same and not apart:
        return None
    norms = by_replica([row.gradient[1] for row in rows])
    if apart:
        text = (
            f"replicas step with unlike gradients: norms in step {step}: {norms}: "
            f"they are not averaged"
        )
        remedy = (
            "let the backward of the last pass go through the model of "
            "run.prepare(...), without no_sync and "
            "without gradients set by hand"
        )
        return Cause(kind="not-averaged", text=text, remedy=remedy)
    found = (
        f"norm in step {step}: {norms}, {alone[0].gradient[1]:.6g} alone, with the "
        f"same loss"
    )
    if alone[0].hooks:
        text = (
            f"a hook on {alone[0].hooks} parameters changes gradients before they "
            f"are averaged over the "
            f"replicas: {found}"
        )
        remedy = (
            "change (clip, scale) .grad between loss.backward() and "
            "optimizer.step(), where it is the step's"
        )
        return Cause(kind="hooks", text=text, remedy=remedy)
    if seen.layers:
        return _by_layers(seen, found)
    draws = sorted({name for row in (*alone, *rows) for name in row.draws})
    if draws:
        return _drawn(draws, False, found)
    text = (
        f"gradients differ: {found}: the gradient of a pass is not that of a mean "
        f"over its samples"
    )
    remedy = (
        "look for a statistic of the pass (normalisation, a clip, a norm) on the way "
        "from loss to gradient"
    )
    return Cause(kind="gradient", text=text, remedy=remedy)


def _other_parameters(seen: Seen) -> Cause | None:
    """Two replicas that part though they step with the same gradient."""
    step = _parted(seen.alone, seen.shared, seen.rounding)
    apart = _replicas_part(seen.shared)
    if step is None and apart is None:
        return None
    touched = [
        (at, row.rank)
        for at, rows in seen.shared.items()
        for row in rows
        if row.touched
    ]
    at = apart if apart is not None else step
    if touched and touched[0][0] <= (at or 0):
        text = (
            f"parameters are changed outside of optimizer.step(), and not alike on "
            f"all replicas: step {at}"
        )
        remedy = (
            "do it on all replicas, from what is the same on all (not under "
            "run.is_first, not from this "
            "replica's samples)"
        )
        return Cause(kind="set-by-hand", text=text, remedy=remedy)
    if apart is not None:
        text = (
            f"two replicas part in step {at}, with the same gradient, rate and "
            f"number of steps"
        )
        remedy = (
            "look at what the optimizer's step uses: random numbers, or a state of "
            "each replica"
        )
        return Cause(kind="optimizer", text=text, remedy=remedy)
    text = (
        f"two replicas from the start end elsewhere than one alone, since step {at}, "
        f"with the same loss and "
        "gradient in the first step"
    )
    return Cause(kind="unknown", text=text)


def _starts_again(seen: Seen) -> Cause | None:
    """Two replicas without a change train as one alone, and those with changes do
    not.
    """
    if not seen.shared:
        return None
    step = _parted(seen.alone, seen.changed, seen.rounding)
    apart = _replicas_part(seen.changed)
    starts = [item for item in (step, apart) if item is not None]
    if starts:
        at = min(starts)
        text = (
            "two replicas from the start train the same, those after a change do "
            "not: something starts again "
            f"in a replica that joins, or after a restart (seen since step {at})"
        )
        return _again(seen, at, "parameters", text)
    names = strayed(seen)
    if names:
        text = (
            f"`{names[0]}` starts again in a replica that joins, or after a restart: "
            f"it is not among what is "
            "kept"
        )
        remedy = f'run.register("{names[0]}", {names[0]}), before run.epochs(...)'
        return Cause(kind="not-kept", text=text, remedy=remedy)
    return None


def _again(seen: Seen, step: int, what: str, text: str) -> Cause:
    """Return a cause that names the variables which are others since the change."""
    found = list(_others_since(seen, step))
    found.sort(key=lambda item: KINDS.index(item[1]))
    if not found:
        return Cause(
            kind=f"starts-again-{what}",
            text=text,
            remedy="keep in run.state(...) or run.register(...) what the loop changes",
        )
    names = "; ".join(f"`{name}` {values}" for name, _, values in found[:NAMED_MAX])
    name, kind, _ = found[0]
    remedies = {
        "optimizer": (
            f"`{name}` is not in the optimizer's state_dict(): let that have it, or "
            f"run.register(...) it"
        ),
        "scheduler": f"{name} = run.prepare_scheduler({name})",
        "module": f'run.register("{name}", {name}), before run.epochs(...)',
        "tensor": f"keep `{name}` in run.state(...), the same on all replicas",
    }
    single = name.split(".")[-1]
    remedy = remedies.get(
        kind,
        f"state = run.state({single}=...) before run.epochs(...), and state.{single} "
        f"in the loop",
    )
    return Cause(kind=f"starts-again-{what}", text=f"{text}: {names}", remedy=remedy)


def _others_since(seen: Seen, step: int) -> Iterator[tuple[str, str, str]]:
    """Yield the variables that are as alone with two replicas from the start, and
    others after the change.
    """
    alone = seen.alone[step][0].seen
    rows = seen.changed[step]
    shared = [row.seen for row in seen.shared.get(step, [])]
    for name, (kind, value, _) in alone.items():
        if kind not in KINDS:
            continue
        if shared and not all(
            _same_note(alone[name], other.get(name)) for other in shared
        ):
            continue
        here = [row.seen[name] for row in rows if name in row.seen]
        if all(_same_note(alone[name], other) for other in here):
            continue
        if kind in ("count", "number"):
            values = by_replica([_plain(other[1]) for other in here])
            yield name, str(kind), f"is {values}, {_plain(value)} alone"
        else:
            yield name, str(kind), "is another one than alone"


def _unknown(seen: Seen) -> Cause:
    """Say what is known, and guess nothing."""
    known = []
    if seen.shared:
        own = _parted(seen.alone, seen.shared, seen.rounding)
        known.append(
            "two replicas from the start train the same"
            if own is None
            else f"two replicas from the start differ since step {own}"
        )
    step = _parted(seen.alone, seen.changed, seen.rounding)
    if step is not None:
        known.append(f"with changes, parameters differ since step {step}")
    if seen.layers:
        known.append(f"the model has {' and '.join(seen.layers)}")
    text = "no cause was found" + "".join(f"; {item}" for item in known)
    return Cause(kind="unknown", text=text)


def _loss(rows: Sequence[StepRow]) -> float:
    """Return the mean over the samples of a step: each pass counts by its samples."""
    counted = [(count, loss) for row in rows for count, loss in row.losses]
    total = sum(len(row.ids) for row in rows) or sum(count for count, _ in counted)
    if not total:
        return sum(loss for _, loss in counted) / max(len(rows), 1)
    return sum(count * loss for count, loss in counted) / total


def _ids(rows: Sequence[StepRow]) -> "Counter[int]":
    return Counter(index for row in rows for index in row.ids)


def _far(one: float, other: float, tolerance: float) -> bool:
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.isfinite(one) != math.isfinite(other)
    return abs(one - other) > tolerance * max(abs(one), abs(other), 1e-12)


def _rates(row: StepRow) -> list[float]:
    return [rate for group in row.rates for rate in group]


def _rate(row: StepRow) -> float:
    rates = _rates(row)
    return rates[0] if rates else math.nan


def _rates_differ(one: StepRow, other: StepRow) -> bool:
    return any(
        not math.isclose(a, b, rel_tol=SAME_RATE)
        for a, b in zip(_rates(one), _rates(other), strict=False)
    )


def _rate_ratio(one: StepRow, other: StepRow) -> float | None:
    return (
        _rate(one) / (_rate(other) or math.nan) if _rates_differ(one, other) else None
    )


def _apart_in_rates(rows: Sequence[StepRow]) -> bool:
    return any(_rates(row) != _rates(rows[0]) for row in rows)


def _gradients_differ(one: StepRow, other: StepRow) -> bool:
    norm = max(one.gradient[1], other.gradient[1])
    if not norm:
        return False
    mixed = abs(one.gradient[0] - other.gradient[0])
    return mixed > SAME_GRADIENT * norm or _far(
        one.gradient[1], other.gradient[1], SAME_GRADIENT
    )


def _first_unlike(seen: Seen) -> int | None:
    """Return the first step of two replicas with another loss or gradient than alone.

    Only as long as parameters are the same up to rounding before it; else the first
    step.
    """
    common = [step for step in seen.alone if step in seen.shared]
    for step in common[:EARLY_STEPS]:
        alone = seen.alone[step]
        rows = seen.shared[step]
        if _far(_loss(alone), _loss(rows), SAME_LOSS):
            return step
        if any(_gradients_differ(alone[0], row) for row in rows):
            return step
        moved = abs(alone[0].checksum - rows[0].checksum)
        if moved > TOLERANCE * max(alone[0].norm, 1e-30):
            break
    return next(iter(common), None)


def _parted(alone: Steps, run: Steps, rounding: Rounding) -> int | None:
    """Return the first step after which parameters differ by more than rounding
    explains.
    """
    return rounding.parting(alone, run).apart


def _replicas_part(run: Steps) -> int | None:
    for step, rows in run.items():
        sums = [row.checksum for row in rows]
        if max(sums) - min(sums) > TOLERANCE * rows[0].norm:
            return step
    return None


def _contents_differ(one: Contents, others: Contents) -> bool:
    """Return whether a sample that is always the same in one replica is another one in
    another.
    """
    everyone = [*one, *others]
    for index, (first, again) in everyone[0].items() if everyone else ():
        if first != again:
            continue
        if any(index in other and other[index][0] != first for other in everyone):
            return True
    return False


def _moving_generators(seen: Seen) -> list[str]:
    """Return the script's own generators that are drawn from in the loop."""
    steps = list(seen.alone)
    if len(steps) < 2:
        return []
    first, second = (seen.alone[step][0].seen for step in steps[:2])
    return [
        name
        for name, (kind, value, _) in first.items()
        if kind == "generator" and name in second and second[name][1] != value
    ]


def _same_note(one: Sequence[object], other: Sequence[object] | None) -> bool:
    if other is None:
        return True  # not there yet: a function of the script was left or not entered
    a = _float(one[1])
    b = _float(other[1])
    if one[0] in ("count", "text", "scheduler"):
        return a == b
    return a == b or not _far(a, b, SAME_VALUE)


def _float(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _plain(value: object) -> object:
    number = _float(value)
    return int(number) if number.is_integer() else number


def skips_batches(steps: Steps) -> Cause | None:
    """Return the cause where replicas with fewer samples in a step ran no backward, or
    several never any.
    """
    shared = [row for rows in steps.values() if len(rows) > 1 for row in rows]
    if shared and not any(sum(row.backwards) for row in shared):
        counts = by_replica([len(row.ids) for row in steps[shared[0].step]])
        return _skips(f"never a backward on several replicas: samples: {counts}")
    for step, rows in steps.items():
        idle = [row for row in rows if row.ids and not sum(row.backwards)]
        busy = [row for row in rows if sum(row.backwards)]
        if not (idle and busy):
            continue
        if max(len(row.ids) for row in idle) <= min(len(row.ids) for row in busy):
            counts = by_replica([len(row.ids) for row in rows])
            return _skips(f"samples in step {step}: {counts}")
    return None


def _skips(found: str) -> Cause:
    text = f"the loop leaves out batches by their length: {found}"
    remedy = (
        "what a replica has is its share of the step: let run.loader(drop_last=True) "
        "leave out what does not "
        "fill a step"
    )
    return Cause(kind="skips-batches", text=text, remedy=remedy)


def starts_again_count(steps: Steps) -> str:
    """Return the counts of the script that differ between the replicas of the last
    step, in words.
    """
    if not steps:
        return ""
    *_, rows = steps.values()
    found = []
    for name, (kind, _, _) in rows[0].seen.items():
        values = [row.seen[name][1] for row in rows if name in row.seen]
        if kind == "count" and len(set(map(_float, values))) > 1:
            found.append(f"`{name}` is {by_replica([_plain(item) for item in values])}")
    return "; ".join(found[:NAMED_MAX])
