"""What is seen of the runs of a script, and the cause that follows from it."""

from dataclasses import replace
from typing import Any

import pytest

from coadapt.train.check.causes import Seen, find_cause, strayed
from coadapt.train.check.failures import explain_failure, explain_silence
from coadapt.train.check.rows import Steps
from coadapt.train.wrappers.recorder import StepRow

pytestmark = pytest.mark.train

NUM_STEPS = 6


def row(step: int = 1, rank: int = 0, **values: Any) -> StepRow:
    one = StepRow(
        step=step,
        epoch=0,
        rank=rank,
        num_replicas=1,
        generation=1,
        ids=(0, 1, 2, 3),
        rates=((0.1,),),
        updates=(1,),
        checksum=float(step),
        norm=2.0,
        forwards=(1,),
        backwards=(1,),
        losses=((4, 3.0),),
        gradient=(1.0, 1.0),
    )
    return replace(one, **values)


def alone(**values: Any) -> Steps:
    return {step: [row(step, **values)] for step in range(1, NUM_STEPS + 1)}


def two(
    first: dict[str, Any] | None = None, second: dict[str, Any] | None = None
) -> Steps:
    """Return the steps of two replicas that share each step, and these values of
    each.
    """
    return {
        step: [
            row(step, 0, ids=(0, 1), losses=((2, 2.0),), **(first or {})),
            row(step, 1, ids=(2, 3), losses=((2, 4.0),), **(second or {})),
        ]
        for step in range(1, NUM_STEPS + 1)
    }


def moved(steps: Steps, by: float = 1.0, since: int = 1) -> Steps:
    """Return steps whose parameters are others since a step."""
    return {
        step: [
            replace(item, checksum=item.checksum + by * (step >= since))
            for item in rows
        ]
        for step, rows in steps.items()
    }


def losses(steps: Steps, *values: float) -> Steps:
    return {
        step: [
            replace(item, losses=((len(item.ids), value),))
            for item, value in zip(rows, values, strict=True)
        ]
        for step, rows in steps.items()
    }


def kind(**values: Any) -> str:
    same: dict[str, Any] = {
        "alone": alone(),
        "again": alone(),
        "changed": two(),
        "shared": two(),
    }
    return find_cause(Seen(**{**same, **values})).kind


def test_nothing_is_guessed_where_nothing_was_seen() -> None:
    assert kind() == "unknown"
    assert kind(shared=moved(two(), since=3)) == "unknown"


@pytest.mark.parametrize(
    ("shares", "wanted"),
    [
        ((1.0, 2.0), "sum"),
        ((1.5, 3.7), "weighted-mean"),
        ((3.2, 3.7), "pass-statistics"),
    ],
)
def test_the_losses_of_two_replicas_say_what_a_loss_is(
    shares: tuple[float, float], wanted: str
) -> None:
    found = {
        "shared": moved(losses(two(), *shares)),
        "changed": moved(losses(two(), *shares)),
    }
    assert kind(**found) == "loss"
    still = {"still_alone": alone(), "still_shared": losses(two(), *shares)}
    assert kind(**found, **still) == wanted
    # Drawn numbers come first: then losses differ by them.
    drawn = {
        step: [replace(item, draws=("torch",)) for item in rows]
        for step, rows in found["shared"].items()
    }
    assert kind(**{**found, **still, "shared": drawn}) == "random-numbers"


def test_gradients_that_differ_with_the_same_loss() -> None:
    other = {"gradient": (0.5, 0.5)}
    assert kind(shared=moved(two(other, other))) == "gradient"
    assert kind(shared=moved(two(other, other)), alone=alone(hooks=3)) == "hooks"
    assert kind(shared=moved(two(other))) == "not-averaged"


def test_what_two_replicas_from_the_start_do_alike_starts_again_in_a_change() -> None:
    values = {"seen": {"count": ["count", 5.0, None], "loss": ["number", 1.0, None]}}
    joined = {"seen": {"count": ["count", 1.0, None], "loss": ["number", 9.0, None]}}
    shared = two(values, {"seen": {**values["seen"], "loss": ["number", 7.0, None]}})
    cause = find_cause(
        Seen(
            alone=alone(**values),
            again=alone(**values),
            changed=moved(two(values, joined), since=4),
            shared=shared,
        )
    )
    assert cause.kind == "starts-again-parameters"
    assert cause.text.endswith("`count` is 5 on replica 0, 1 on replica 1, 5 alone")
    assert cause.remedy.startswith("state = run.state(count=...)")


def test_rates() -> None:
    twice = {"rates": ((0.2,),)}
    assert kind(shared=two(twice, twice)) == "rate-by-replicas"
    assert kind(shared=two(twice)) == "rate-by-local-figure"
    assert kind(changed=two(twice)) == "starts-again-rate"
    assert kind(again=alone(**twice)) == "rate-by-time"


def test_data() -> None:
    assert kind(again=losses(alone(), 8.0)) == "not-repeatable"
    one = [{0: (1.0, 1.0)}]
    other = [{0: (2.0, 2.0)}]
    found = {"contents_alone": one, "contents_again": other}
    assert kind(again=losses(alone(), 8.0), **found) == "data-by-time"
    assert kind(contents_alone=one, contents_shared=[*one, *other]) == "data-by-rank"
    # A sample that is another one each time is drawn: no sign of other data.
    random = [{0: (2.0, 3.0)}]
    assert kind(contents_alone=random, contents_shared=random) == "unknown"
    whole = {step: [row(step, rank) for rank in range(2)] for step in range(1, 7)}
    assert kind(shared=whole) == "batch-by-replicas"


def test_a_training_that_is_not_finite_is_so_alone() -> None:
    steps = alone()
    for step in range(4, NUM_STEPS + 1):
        steps[step] = [row(step, losses=((4, float("nan")),))]
    cause = find_cause(Seen(alone=steps, again=steps, changed=steps))
    assert cause.kind == "not-finite"
    assert "from step 4 on, alone too" in cause.text
    steps[NUM_STEPS] = [row(NUM_STEPS)]  # it recovers
    seen = Seen(alone=steps, again=steps, changed=steps)
    assert find_cause(seen).kind == "unknown"


def test_an_average_that_moves_otherwise_is_seen() -> None:
    def steps(end: float) -> Steps:
        found = alone()
        for step, (item,) in found.items():
            value = 1.0 if step < NUM_STEPS else end
            found[step] = [replace(item, seen={"ema": ["module", value, None]})]
        return found

    one = Seen(alone=steps(3.0), again=alone(), changed=steps(3.001))
    assert strayed(one) == []
    assert strayed(replace(one, changed=steps(1.5))) == ["ema"]


def test_failures_are_read_from_what_the_replicas_print() -> None:
    left = "replica 1 ends at step 9: the script left run.epochs before its end"
    lost = "RuntimeError: [pg] Connection closed by peer"
    found = explain_failure({"1-0": [lost], "1-1": [left]}, {})
    assert found is not None
    assert found.kind == "left-early"
    assert "replica 1 at step 9" in found.text
    refused = explain_failure(
        {"1-0": ["error: loader(x) is 3, allowed: 4 (a.py:1)"]}, {}
    )
    assert refused is not None
    assert refused.kind == "refused"
    own = "[rank1]: [rank1]: ValueError: boom"
    failed = explain_failure({"1-0": [lost], "1-1": [own]}, {})
    assert failed is not None
    assert failed.text == "ValueError: boom"
    hidden = row(seen={"hidden": ["tensor", 1.0, [2, 4, 24]]})
    shapes = "RuntimeError: Expected hidden[0] size (2, 6, 24), got [2, 4, 24]"
    carried = explain_failure({"1-0": [shapes]}, {1: [hidden]})
    assert carried is not None
    assert carried.kind == "carried"
    assert carried.text.startswith("`hidden` (2, 4, 24) is carried")
    assert explain_failure({"1-0": ["all is well"]}, {}) is None
    silence = explain_silence({"1-0": []}, alone())
    assert silence is not None
    assert silence.kind == "silence"


def test_a_loss_that_differs_later_is_compared_where_it_first_does() -> None:
    """By chance the first steps of a mean over boxes may be as alone."""
    early = losses(two(), 2.5, 3.5)
    late = losses(two(), 2.2, 3.5)
    shared = {step: (early if step < 3 else late)[step] for step in early}
    still = {"still_alone": alone(), "still_shared": losses(two(), 3.2, 3.7)}
    assert kind(shared=moved(shared, since=3), **still) == "pass-statistics"
    still["still_shared"] = losses(two(), 2.2, 3.5)
    assert kind(shared=moved(shared, since=3), **still) == "weighted-mean"
    # Parameters that part before it explain another loss.
    assert kind(shared=moved(shared, since=2), **still) == "unknown"
