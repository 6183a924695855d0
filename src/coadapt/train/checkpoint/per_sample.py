"""State that the loop carries from step to step for each sample of the batch:
`Run.per_sample`.
"""

# Truncated backpropagation through time carries a hidden state for each row of the
# batch; a loop over environments, the state of each. The n-th sample of a step goes on
# from the state that the n-th sample of the step before left. Which replica and which
# pass that sample is in depends on the group and on the batch, so the state belongs to
# the place in the step, not to the replica.
#
# Each replica keeps the parts that it set, each with its places and its step. Where all
# are to know all (before a checkpoint, before the replicas change, or where a step or
# its passes have another size than before, so that it is dealt otherwise), the replicas
# gather their parts, and of each place the newest counts. So nothing is sent as long as
# steps are dealt alike.

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from coadapt.model import InputError
from coadapt.train.group.group import gather_all
from coadapt.train.nested import leaves, map_leaves
from coadapt.train.samples.order import STAND_IN, Pass
from coadapt.train.session import Session

SIZE_WORDS = ("size", "shape")  # in what torch says of tensors that do not fit
OUTSIDE = "ask for it, and set it, inside of the loop over run.loader(...)"


@dataclass(frozen=True, slots=True)
class _Part:
    """The state of the places `start` to `stop`, as the step numbered `step` left
    it.
    """

    start: int
    stop: int
    step: int
    value: object


class PerSample:
    """A value with one entry for each sample of a step. Made by `Run.per_sample`.

    Call `get` and `set` once in each pass, on all replicas.
    """

    def __init__(
        self, session: Session, name: str, initial: Callable[[int], object], dim: int
    ) -> None:
        self._session = session
        self._name = name
        self._initial = initial
        self._dim = dim
        self._parts: list[_Part] = []
        # Samples of the step that set it last, and the most of its passes: they say how
        # it was dealt.
        self._dealt = (0, 0)

    def get(self) -> object:
        """Return the value for the samples of this pass: as set in the step before, or
        as it begins.

        Raises RuntimeError outside of the loader's loop.
        """
        current = self._current()
        if current.first and self._dealt not in ((0, 0), self._dealing(current)):
            self.gather()
        if not current.num_samples:
            return self._initial(min(STAND_IN, current.step_samples))
        start = current.start - self._session.progress.index
        stop = start + current.num_samples
        pieces: list[object] = []
        for part in sorted(self._parts, key=lambda part: part.start):
            if part.stop <= start or part.start >= stop:
                continue
            if part.start > start:
                pieces.append(self._initial(part.start - start))
                start = part.start
            end = min(part.stop, stop)
            pieces.append(self._cut(part, start, end).value)
            start = end
        if start < stop:
            pieces.append(self._initial(stop - start))
        return self._joined(pieces)

    def set(self, value: object) -> None:
        """Keep `value` for the samples of the next step: tensors, or lists, tuples and
        dicts of them.

        They are detached. Raises InputError unless each has an entry for each sample of
        this pass.
        """
        current = self._current()
        if current.synchronising:
            self._dealt = self._dealing(current)
        if not current.num_samples:
            return
        for path, leaf in leaves(value):
            count = leaf.shape[self._dim] if isinstance(leaf, Tensor) else None
            if count != current.num_samples:
                allowed = (
                    f"tensors with {current.num_samples} entries, one for each "
                    f"sample of this pass, along "
                    f"dimension {self._dim}: see run.per_sample(dim=...)"
                )
                found = "no tensor" if count is None else f"{count} entries"
                raise InputError(f"per_sample({self._name}){path}", found, allowed)
        start = current.start - self._session.progress.index
        kept = map_leaves(lambda _, leaf: cast("Tensor", leaf).detach(), value)
        self._keep(
            _Part(start, start + current.num_samples, self._session.progress.step, kept)
        )

    def reset(self) -> None:
        """Begin with initial values again, at the beginning of an epoch or inside of a
        pass.

        Before the loop over the loader it does nothing where training goes on in the
        middle of an epoch: in a replica that joins, or after a restart.
        """
        progress = self._session.progress
        if self._session.current is None and progress.index:
            return
        # What an earlier pass of the same step has set is for the next step.
        inside = self._session.current is not None
        self._parts = [
            part for part in self._parts if inside and part.step == progress.step
        ]
        self._dealt = (0, 0)

    def gather(self) -> None:
        """Let every replica know the newest state of all places. Collective."""
        own = [
            _Part(part.start, part.stop, part.step, _on_cpu(part.value))
            for part in self._parts
        ]
        found = gather_all(self._session.group, own)
        if len(found) == 1:
            return
        self._parts = []
        for part in sorted(
            (part for parts in found for part in parts), key=lambda part: part.step
        ):
            self._keep(part)

    def state_dict(self) -> dict[str, object]:
        parts = [[item.start, item.stop, item.step, item.value] for item in self._parts]
        return {"parts": parts, "dealt": list(self._dealt)}

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        parts = cast("list[tuple[int, int, int, object]]", state_dict["parts"])
        self._parts = [_Part(*part) for part in parts]
        step_samples, atomic = cast("list[int]", state_dict["dealt"])
        self._dealt = (step_samples, atomic)

    def _dealing(self, current: Pass) -> tuple[int, int]:
        return current.step_samples, self._session.data.batch.atomic

    def _current(self) -> Pass:
        if self._session.current is None:
            raise RuntimeError(f"run.per_sample({self._name!r}): {OUTSIDE}")
        return self._session.current

    def _keep(self, new: _Part) -> None:
        """Let `new` count for its places; what others have of them is forgotten."""
        kept = []
        for part in self._parts:
            if part.start < new.start:
                kept.append(self._cut(part, part.start, min(part.stop, new.start)))
            if part.stop > new.stop:
                kept.append(self._cut(part, max(part.start, new.stop), part.stop))
        self._parts = [*kept, new]

    def _cut(self, part: _Part, start: int, stop: int) -> _Part:
        if (start, stop) == (part.start, part.stop):
            return part
        value = map_leaves(
            lambda _, leaf: cast("Tensor", leaf).narrow(
                self._dim, start - part.start, stop - start
            ),
            part.value,
        )
        return _Part(start, stop, part.step, value)

    def _joined(self, pieces: list[object]) -> object:
        device = self._session.group.device
        columns = [
            [cast("Tensor", leaf).to(device) for _, leaf in leaves(piece)]
            for piece in pieces
        ]
        if len(columns) == 1:
            rows = iter(columns[0])
        else:
            rows = iter(
                [torch.cat(row, self._dim) for row in zip(*columns, strict=True)]
            )
        return map_leaves(lambda _path, _leaf: next(rows), pieces[0])


def explain_carried(
    error: BaseException, session: Session, *, changed: bool
) -> str | None:
    """Return what to do where the first pass after a change fails at a size; None for
    other errors.

    changed: no step has ended since the replicas changed.
    """
    text = str(error)
    sizes = isinstance(error, RuntimeError | ValueError) and any(
        word in text for word in SIZE_WORDS
    )
    current = session.current or session.broken_off
    if not changed or not sizes or current is None:
        return None
    return (
        f"error: the first pass after a change of replicas, of {current.num_samples} "
        f"samples, failed: "
        f"{text:.200}. What the loop carries from pass to pass for each sample (a "
        f"hidden state, an "
        "environment) is dealt to the new replicas if it is kept with "
        "run.per_sample(name, initial)"
    )


def _on_cpu(value: object) -> object:
    """Return a copy in main memory, with storage of its own."""
    return map_leaves(
        lambda _, leaf: cast("Tensor", leaf).detach().cpu().clone(), value
    )
