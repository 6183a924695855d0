"""What differs between a run alone and the same under changes, since which step, and
why.
"""

# In this order, because each makes those after it differ: samples, learning rates,
# calls of optimizer.step(), parameters, and what the checkpoint has besides. The first
# difference is the one to mend.
#
# Parameters cannot be equal to the bit: sums over replicas are taken in another order.
# How much of a difference is due to that depends on the script, so it is measured by
# reference runs (rounding.py). Where rounding has grown too large to tell it from a
# fault, rates, calls and parameters are compared up to there; and of what the
# checkpoint has besides, that in which the references agree with the run alone.

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from coadapt.train.check.rounding import MOST, Parting, Rounding, up_to
from coadapt.train.check.rows import Steps
from coadapt.train.wrappers.drift import TOLERANCE, by_replica
from coadapt.train.wrappers.recorder import StepRow

# A rate that a scheduler computed in another order of operations.
RATE_TOLERANCE = 1e-9
# Of registered figures: sums over replicas again.
FIGURE_TOLERANCE = 1e-4
# Of such figures in a reference run: within this, they do not depend on rounding.
STEADY_TOLERANCE = 1e-5
ALONE_UNLIKE = "two runs alone differ from the first step on"
State = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """same: None where it could not be compared, or by_design: it differs as
    documented.
    """

    what: str
    same: bool | None
    text: str
    by_design: bool = False


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Two runs of the same script. rounding: what it explains of a difference.
    references: the ends of the runs that measured it.

    fixed: the contract promises the same training; else only what every contract does
    is compared.
    layers: what the models have whose results depend on how samples are dealt to
    replicas.
    """

    alone: Steps
    changed: Steps
    state_alone: State
    state_changed: State
    rounding: Rounding
    fixed: bool
    layers: Sequence[str] = ()
    references: Sequence[State] = ()

    @cached_property
    def parting(self) -> Parting:
        """Where the run under changes parts from the run alone; nowhere if both end
        alike.
        """
        apart = distance(self.state_alone, self.state_changed)
        allowed = min(self.rounding.explains_at_end, MOST)
        if apart is None or apart <= allowed:
            return Parting()
        return self.rounding.parting(self.alone, self.changed)

    @property
    def compared_until(self) -> int | None:
        """The first step that could not be compared: rounding alone has parted the
        runs there. None if all could.
        """
        return self.parting.undecided if self.fixed else None

    def findings(self) -> list[Finding]:
        return [
            self._length(),
            self._samples(),
            self._replicas(),
            self._rates(),
            self._updates(),
            self._parameters(),
            self._checkpoint(),
        ]

    def _length(self) -> Finding:
        own = max(self.alone)
        other = max(self.changed, default=0)
        if not self.fixed:
            return _by_contract("length")
        if own == other:
            return Finding(what="length", same=True, text=f"{own} steps")
        text = f"{other} steps, alone {own}"
        if self.compared_until is not None:
            text += f", which may follow from step {self.compared_until}"
            return Finding(what="length", same=None, text=text)
        return Finding(what="length", same=False, text=text)

    def _samples(self) -> Finding:
        if not any(row.ids for rows in self.alone.values() for row in rows):
            return Finding(
                what="samples",
                same=None,
                text="not compared: the loop, or its library, makes the batches",
            )
        if not self.fixed:
            return self._samples_of_epochs()
        for step, rows in self.alone.items():
            if step not in self.changed:
                break  # see length
            wanted = _ids(rows)
            found = _ids(self.changed[step])
            if wanted != found:
                lost = (wanted - found).total()
                more = (found - wanted).total()
                text = (
                    f"step {step} (epoch {rows[0].epoch}): {lost} samples missing, "
                    f"{more} too many"
                )
                return Finding(what="samples", same=False, text=text)
        return Finding(
            what="samples",
            same=True,
            text=f"the same in each of {len(self.alone)} steps",
        )

    def _samples_of_epochs(self) -> Finding:
        """Where batches differ: no sample twice in an epoch."""
        epochs: dict[int, Counter[int]] = {}
        for rows in self.changed.values():
            epochs.setdefault(rows[0].epoch, Counter()).update(_ids(rows))
        for epoch, ids in epochs.items():
            twice = [name for name, count in ids.items() if count > 1]
            if twice:
                text = f"epoch {epoch}: {len(twice)} samples more than once"
                return Finding(what="samples", same=False, text=text)
        return Finding(
            what="samples", same=True, text="each at most once in each epoch"
        )

    def _replicas(self) -> Finding:
        """Replicas of one step against each other: holds under every contract."""
        for step, rows in self.changed.items():
            found = _apart(rows)
            if found is not None:
                return Finding(
                    what="replicas", same=False, text=f"step {step}: {found}"
                )
        # No sum is taken of a model in parts: there is no tensor that two replicas both
        # have.
        whole = any(row.norm for rows in self.changed.values() for row in rows)
        what = (
            "parameters and rates"
            if whole
            else "rates (each has a part of the parameters)"
        )
        return Finding(
            what="replicas", same=True, text=f"had the same {what} after each step"
        )

    def _rates(self) -> Finding:
        if not self.fixed:
            return _by_contract("learning rates")
        if self.compared_until == min(self.alone):
            text = f"not compared: {ALONE_UNLIKE}"
            return Finding(what="learning rates", same=None, text=text)
        for step, first, other in self._pairs():
            for own, wanted in zip(
                _flat(other.rates), _flat(first.rates), strict=False
            ):
                if not math.isclose(own, wanted, rel_tol=RATE_TOLERANCE):
                    text = f"step {step}: {own:.6g}, alone {wanted:.6g}"
                    return Finding(what="learning rates", same=False, text=text)
        text = f"the same in each step{self._limit()}"
        return Finding(what="learning rates", same=True, text=text)

    def _updates(self) -> Finding:
        if not self.fixed:
            return _by_contract("optimiser steps")
        if self.compared_until == min(self.alone):
            text = f"not compared: {ALONE_UNLIKE}"
            return Finding(what="optimiser steps", same=None, text=text)
        for step, first, other in self._pairs():
            if first.updates != other.updates:
                text = (
                    f"step {step}: {_calls(other)} of optimizer.step(), alone "
                    f"{_calls(first)}"
                )
                return Finding(what="optimiser steps", same=False, text=text)
        calls = sum(sum(first.updates) for _, first, _ in self._pairs())
        text = f"the same {calls} calls{self._limit()}"
        return Finding(what="optimiser steps", same=True, text=text)

    def _parameters(self) -> Finding:
        if not self.fixed:
            return _by_contract("parameters")
        found = distance(self.state_alone, self.state_changed)
        if found is None:
            return Finding(
                what="parameters",
                same=None,
                text="not compared: a model's state is not all tensors",
            )
        allowed = min(self.rounding.explains_at_end, MOST)
        if found <= allowed:
            text = f"equal up to {found:.1e} of their norm; allowed {allowed:.1e}"
            return Finding(what="parameters", same=True, text=text)
        if self.layers:
            text = (
                f"differ by {found:.1e}, as documented: the model has "
                f"{' and '.join(self.layers)}"
            )
            return Finding(what="parameters", same=None, text=text, by_design=True)
        began = self.parting.apart
        explained = self.rounding.explains_at_end
        if began is None and (self.compared_until or found <= explained):
            return self._undecided(found)
        since = "" if began is None else f", since step {began}"
        if began is not None:
            allowed = min(self.rounding.explains(began), MOST)
        text = f"differ by {found:.1e} of their norm{since}; allowed {allowed:.1e}"
        if _searches(self.state_alone):
            text += (
                "; LBFGS may be led elsewhere by rounding in float32: make model and "
                "samples float64 and check "
                "again, what differs then is a mistake"
            )
        return Finding(what="parameters", same=False, text=text)

    def _undecided(self, found: float) -> Finding:
        """Parameters that rounding alone may have parted by `found`."""
        step = self.compared_until
        if step == min(self.alone):
            text = f"not compared: {ALONE_UNLIKE} (they end {found:.1e} apart)"
            return Finding(what="parameters", same=None, text=text)
        where = "in the end" if step is None else f"from step {step} on"
        same_until = "" if step is None else f"the same up to step {step - 1}; "
        text = (
            f"{same_until}{where} rounding alone parts two runs of this script, so a "
            f"comparison cannot tell (they end {found:.1e} of their norm apart)"
        )
        return Finding(what="parameters", same=None, text=text)

    def _limit(self) -> str:
        until = self.compared_until
        return "" if until is None else f" up to step {until - 1}"

    def _checkpoint(self) -> Finding:
        if not self.fixed:
            return _by_contract("checkpoint")
        names = [
            name
            for name in self.state_alone
            if name.split("/")[0] not in ("model", "optimizer")
        ]
        for name in names:
            if name not in self.state_changed:
                return Finding(what="checkpoint", same=False, text=f"{name} is missing")
            place = _first_difference(
                self.state_alone[name],
                self.state_changed[name],
                name,
                [reference.get(name) for reference in self.references],
            )
            if place is not None and not (
                self.layers and name not in ("state", "scheduler")
            ):
                return Finding(what="checkpoint", same=False, text=place)
        return Finding(
            what="checkpoint", same=True, text=f"the same {', '.join(names) or 'model'}"
        )

    def _pairs(self) -> Iterator[tuple[int, StepRow, StepRow]]:
        """Yield the first replica's row of each step, alone and under changes, as far
        as they can be compared.
        """
        for step, rows in up_to(self.alone, self.compared_until).items():
            if step in self.changed:
                yield step, rows[0], self.changed[step][0]


def distance(one: State, other: State) -> float | None:
    """Return the norm of the difference of all models' floating-point tensors over
    their norm.

    None where a model's state holds something else than tensors.
    """
    squares = 0.0
    whole = 0.0
    for name, item in one.items():
        if name.split("/")[0] != "model":
            continue
        own = cast("Mapping[str, object]", item)
        their = cast("Mapping[str, object]", other.get(name, {}))
        for key, value in own.items():
            wanted = their.get(key)
            if not (isinstance(value, Tensor) and isinstance(wanted, Tensor)):
                return None
            if value.is_floating_point() and value.shape == wanted.shape:
                squares += float((value.double() - wanted.double()).square().sum())
                whole += float(value.double().square().sum())
    return math.sqrt(squares / whole) if whole else None


def _searches(state: State) -> bool:
    """Return whether LBFGS trains parameters of less than double precision."""
    items = [
        (name.split("/")[0], cast("Mapping[str, object]", item))
        for name, item in state.items()
    ]
    groups = [
        group
        for kind, item in items
        if kind == "optimizer"
        for group in cast(
            "Sequence[Mapping[str, object]]", item.get("param_groups", ())
        )
    ]
    precise = all(
        value.dtype == torch.float64
        for kind, item in items
        if kind == "model"
        for value in item.values()
        if isinstance(value, Tensor) and value.is_floating_point()
    )
    return not precise and any("line_search_fn" in group for group in groups)


def _by_contract(what: str) -> Finding:
    return Finding(
        what=what,
        same=None,
        text="not compared: the contract lets batch and rate change",
    )


def _ids(rows: Sequence[StepRow]) -> Counter[int]:
    return Counter(index for row in rows for index in row.ids)


def _flat(rates: Sequence[Sequence[float]]) -> list[float]:
    return [rate for group in rates for rate in group]


def _calls(row: StepRow) -> str:
    count = sum(row.updates)
    return f"{count} call{'s' * (count != 1)}"


def _apart(rows: Sequence[StepRow]) -> str | None:
    """Return what differs between the replicas of a step."""
    for group, rates in enumerate(
        zip(*(_flat(row.rates) for row in rows), strict=False)
    ):
        if len(set(rates)) > 1:
            return f"learning rate of group {group}: {by_replica(rates)}"
    calls = [sum(row.updates) for row in rows]
    if len(set(calls)) > 1:
        return f"calls of optimizer.step(): {by_replica(calls)}"
    sums = [row.checksum for row in rows]
    if max(sums) - min(sums) > TOLERANCE * rows[0].norm:
        return "parameters differ"
    return None


def _first_difference(
    one: object, other: object, place: str, references: Sequence[object] = ()
) -> str | None:
    """Return where two states differ, in words; None if they do not.

    references: the same of runs that differ from the first by rounding. What differs in
    one of them, too, is not compared.
    """
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in [*one, *(key for key in other if key not in one)]:
            of_references = [_child(item, key) for item in references]
            found = _first_difference(
                one.get(key), other.get(key), f"{place}.{key}", of_references
            )
            if found is not None:
                return found
        return None
    if (
        isinstance(one, list | tuple)
        and isinstance(other, list | tuple)
        and len(one) == len(other)
    ):
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            of_references = [_child(item, index) for item in references]
            found = _first_difference(a, b, f"{place}[{index}]", of_references)
            if found is not None:
                return found
        return None
    if _alike(one, other, FIGURE_TOLERANCE):
        return None
    if not all(_alike(one, item, STEADY_TOLERANCE) for item in references):
        return None
    return f"{place} is {_short(other)}, alone {_short(one)}"


def _child(item: object, key: object) -> object:
    """Return what a mapping or a sequence has under a key; None if it has not."""
    if isinstance(item, Mapping):
        return item.get(key)
    if isinstance(item, list | tuple) and isinstance(key, int) and key < len(item):
        return item[key]
    return None


def _alike(one: object, other: object, tolerance: float) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape != other.shape:
            return False
        if not one.is_floating_point():
            return torch.equal(one, other)
        gap = float((one.double() - other.double()).norm())
        return gap <= tolerance * float(one.double().norm()) or gap == 0.0
    if isinstance(one, float) and isinstance(other, float | int):
        return one == other or math.isclose(one, other, rel_tol=tolerance)
    return bool(one == other)


def _short(value: object) -> str:
    return (
        f"a tensor {tuple(value.shape)}"
        if isinstance(value, Tensor)
        else f"{value!r:.60}"
    )
