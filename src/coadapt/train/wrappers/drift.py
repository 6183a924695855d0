"""Whether the replicas still have the same parameters and learning rates, compared in
their consensus.
"""

# Replicas end every step with the same parameters because they begin with the same
# ones, apply the same gradient, and do so at the same rate. Nothing enforces the last:
# a rate set by hand from a variable of the loop, or an `optimizer.step()` behind an
# `if`, follows a count that is 0 in a replica that has just joined.
#
# The rule: now and then each replica puts a fingerprint into its word. All of them must
# come to the same verdict from the sum alone, since what follows (each says what it
# has) is collective. So each value goes in with its square: n Σv² - (Σv)² is 0 exactly
# where all are equal, and everybody knows the sums.
#
# - What must be equal to the bit (rates, number of updates) is hashed to 20 bits: its
#   square and the sum over 8,000 replicas are whole numbers below 2^53, so the
#   difference is exact.
# - Parameters are compared up to rounding, for replicas may be on different hardware.
#   Their plain sum is compared, not their norm: the sum of n values of mean 0 is of the
#   size of their norm, so a drift d moves it by d, where the norm moves by d²/2 only.
#   It is taken relative to what was agreed last, else float64 would not do: the sum of
#   many ones is far larger than their norm.
#
# After a change of replicas the gaps are 1, 2, 4, ... steps, since that is where it
# happens, and EVERY_STEPS later on. It costs one sum and one norm over the parameters
# each time, and nothing on one replica.

import logging
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from coadapt.train.group.consensus import Fingerprint
from coadapt.train.group.group import gather_all
from coadapt.train.session import Session
from coadapt.train.wrappers.evidence import Note, variables
from coadapt.train.wrappers.script_check import Use

logger = logging.getLogger(__name__)

# Steps between two comparisons of a group that has been together for long.
EVERY_STEPS = 100
# Of the parameters' norm: ten times what sums in float32 differ by between two kinds of
# GPU.
TOLERANCE = 1e-5
# Of the mean square: what float64 loses in the difference of two sums.
ROUNDING = 1e-13
HASH_BITS = 20

# What explains a difference best comes first.
KINDS = ("optimizer", "scheduler", "module", "count")
REMEDIES = {
    "optimizer": (
        "`{name}` is not in the optimizer's state_dict(): let that have it, or "
        "run.register(...) it"
    ),
    "scheduler": "{name} = run.prepare_scheduler({name})",
    "module": 'run.register("{name}", {name}), or run.prepare(...) if it is trained',
    "count": "keep it in run.state(...), for it starts again in a replica that joins, or "
    "count by "
    "run.progress.step",
}
UNKNOWN_REMEDY = "`coadapt check` tries the script under changes, and names the cause"
NAMED_MAX = 3


class Optimized(Protocol):
    """Whatever has learning rates."""

    @property
    def param_groups(self) -> list[dict[str, object]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A model's parameters and what updates them. name: empty where there is one pair
    only.
    """

    name: str
    parameters: Callable[[], Sequence[Tensor]]
    optimizer: Optimized
    use: Use

    def rates(self) -> tuple[float, ...]:
        return tuple(
            _number(group.get("lr", math.nan)) for group in self.optimizer.param_groups
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What one replica has of each pair, at one step. updates: since the group
    began.
    """

    step: int
    since: int
    rates: tuple[tuple[float, ...], ...]
    updates: tuple[int, ...]


class DriftCheck:
    """Every replica calls alike, between two steps."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._pairs: list[Watched] = []
        self._warned: set[str] = set()
        self._seen: _Seen | None = None
        # What comes back after a stop and goes over to a replica that joins.
        self.kept: Callable[[], Sequence[object]] = list
        self.enter()

    @property
    def pairs(self) -> Sequence[Watched]:
        return self._pairs

    def watch(self, pair: Watched) -> None:
        """Compare this pair as well."""
        self._pairs.append(pair)

    def enter(self) -> None:
        """A new group begins."""
        self._since: int | None = None
        self._due = 0
        self._agreed = 0.0
        self._before = tuple(pair.use.steps for pair in self._pairs)

    def take(self) -> Fingerprint:
        """Return what to say of this step: nothing on one replica, and where it is not
        time to.
        """
        step = self._session.progress.step
        if not (self._session.group.distributed and self._pairs):
            return Fingerprint()
        if self._since is None or step < self._since:
            self._since = step
            self._due = step + 1
            self._before = tuple(pair.use.steps for pair in self._pairs)
        if step < self._due:
            return Fingerprint()
        self._due = step + min(max(step - self._since, 1), EVERY_STEPS)
        updates = tuple(
            pair.use.steps - before
            for pair, before in zip(self._pairs, self._before, strict=True)
        )
        rates = tuple(pair.rates() for pair in self._pairs)
        self._seen = _Seen(step=step, since=self._since, rates=rates, updates=updates)
        # Of a model in parts each replica has others: only the rest is compared.
        total, scale = (
            (0.0, 0.0) if self._session.model_is_sharded else checksum(self._pairs)
        )
        finite = math.isfinite(total) and math.isfinite(scale)
        exact = zlib.crc32(repr((rates, updates, finite)).encode()) >> (32 - HASH_BITS)
        if not finite:
            total = self._agreed
            scale = 0.0
        return Fingerprint.of(
            exact=float(exact), checksum=total - self._agreed, scale=scale
        )

    def judge(self, agreed: Fingerprint) -> None:
        """Look at what all said of the step at which `take` was asked last; say what
        differs. Collective.
        """
        seen = self._seen
        size = self._session.group.size
        if seen is None or agreed.num_replicas != size:
            return
        self._seen = None
        mean = agreed.checksum / size
        scale = agreed.scale / size
        spread = agreed.checksum_sqr / size - mean * mean
        least = ROUNDING * agreed.checksum_sqr / size
        same_rest = size * int(agreed.exact_sqr) == int(agreed.exact) ** 2
        moved = spread > max((TOLERANCE * scale) ** 2, least)
        self._agreed += mean
        if same_rest and not moved:
            return
        group = self._session.group
        notes = gather_all(group, variables(self.kept()))
        self._tell(gather_all(group, seen), notes, moved=moved)

    def _tell(
        self,
        seen: Sequence[_Seen],
        notes: Sequence[Mapping[str, Note]],
        *,
        moved: bool,
    ) -> None:
        step = seen[0].step
        since = seen[0].since
        kind, text = self._difference(seen, moved=moved)
        # Parameters differ because of what was reported before.
        known = kind in self._warned or (kind == "parameters" and self._warned)
        if self._session.group.rank == 0 and not known:
            logger.warning(
                "step %d: replicas have drifted apart since step %d: %s. %s",
                step,
                since,
                text,
                _explained(notes),
            )
        self._warned.add(kind)

    def _difference(self, seen: Sequence[_Seen], *, moved: bool) -> tuple[str, str]:
        """Return the kind of difference that lies nearest to the cause, and what
        differs.
        """
        for index, pair in enumerate(self._pairs):
            of = f" of {pair.name}" if pair.name else ""
            for group, rates in enumerate(
                zip(*(item.rates[index] for item in seen), strict=False)
            ):
                if len(set(map(repr, rates))) > 1:
                    text = f"learning rate of group {group}{of}: {by_replica(rates)}"
                    return "rates", text
            updates = [item.updates[index] for item in seen]
            if len(set(updates)) > 1:
                text = (
                    f"calls of optimizer.step(){of} since then: {by_replica(updates)} "
                    "(run.loader(max_atomic=...) accumulates without a count of the "
                    "loop's)"
                )
                return "updates", text
        what = "parameters" if moved else "parameters are finite on some replicas only"
        return "parameters", what


def _explained(notes: Sequence[Mapping[str, Note]]) -> str:
    """Return which variables of the script differ between replicas, and what to do; no
    guess where none does.
    """
    found = []
    for name, (kind, _, _) in notes[0].items():
        values = [note[name][1] for note in notes if name in note]
        if (
            kind in KINDS
            and _unlike(kind, values)
            and values != list(range(len(values)))
        ):
            found.append((KINDS.index(kind), name, str(kind), values))
    if not found:
        return f"No variable of the script is seen to differ; {UNKNOWN_REMEDY}"
    found.sort(key=lambda item: item[0])
    named = "; ".join(
        f"`{name}` is {by_replica([_whole(value) for value in values])}"
        if kind == "count"
        else f"`{name}` is not the same on all"
        for _, name, kind, values in found[:NAMED_MAX]
    )
    _, name, kind, _ = found[0]
    return f"Variables that differ: {named}: {REMEDIES[kind].format(name=name)}"


def _unlike(kind: object, values: Sequence[object]) -> bool:
    numbers = [_number(value) for value in values]
    if kind in ("count", "scheduler"):
        return len(set(numbers)) > 1
    return max(numbers) - min(numbers) > TOLERANCE * max(map(abs, numbers))


def _whole(value: object) -> object:
    number = _number(value)
    return int(number) if number.is_integer() else number


@torch.no_grad()
def checksum(pairs: Sequence[Watched]) -> tuple[float, float]:
    """Return the sum and the norm of all parameters that may change."""
    found = [item.detach() for item in trained(pairs)]
    if not found:
        return 0.0, 0.0
    sums = torch.stack(
        [
            item.sum(dtype=torch.promote_types(item.dtype, torch.float32))
            for item in found
        ]
    )
    norms = torch.stack([norm.double() for norm in torch._foreach_norm(found)])
    total, norm = torch.stack([sums.double().sum(), norms.norm()]).tolist()
    return total, norm


def trained(pairs: Sequence[Watched]) -> list[Tensor]:
    """Return all parameters that may change and are real numbers."""
    return [
        item
        for pair in pairs
        for item in pair.parameters()
        if item.requires_grad and not item.is_complex()
    ]


def by_replica(values: Sequence[object]) -> str:
    """Return "0.1 on replica 0, 0.08 on replicas 1, 2"."""
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(
            f"{value:.6g}" if isinstance(value, float) else f"{value}", []
        ).append(rank)
    if len(ranks) == 1 and len(set(map(repr, values))) > 1:  # in later digits
        return by_replica([repr(value) for value in values])
    return ", ".join(
        f"{value} on replica{'s' * (len(who) > 1)} {', '.join(map(str, who))}"
        for value, who in ranks.items()
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float | Tensor) else math.nan
