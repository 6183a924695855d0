"""An Accelerator that leaves the replicas to the run says what to call in place of its
own calls.
"""

from collections.abc import Iterator

import pytest

import coadapt.train as ct
from coadapt.model import InputError

pytestmark = pytest.mark.train

accelerate = pytest.importorskip("accelerate")


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    """Accelerate keeps what it found of replicas for all of a process."""
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def test_replicas_are_the_runs_and_what_would_change_them_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from coadapt.train.integrations.accelerate import CoadaptAccelerator

    run = ct.init()
    accelerator = CoadaptAccelerator(run, mixed_precision="bf16")
    assert accelerator.device == run.device
    assert (
        accelerator.num_processes,
        accelerator.process_index,
        accelerator.is_main_process,
    ) == (1, 0, True)
    accelerator.print("once")
    assert accelerator.on_main_process(lambda: 7)() == 7
    assert capsys.readouterr().out == "once\n"
    for call, instead in (
        (accelerator.prepare, "run.prepare"),
        (accelerator.gather_for_metrics, "run.sum or run.mean"),
        (accelerator.accumulate, "max_atomic"),
        (accelerator.save_state, "run.register"),
    ):
        with pytest.raises(InputError, match=instead):
            call()
    for options in ({"mixed_precision": "fp16"}, {"gradient_accumulation_steps": 2}):
        with pytest.raises(InputError, match=next(iter(options))):
            CoadaptAccelerator(run, **options)


def test_what_a_launcher_asks_for_through_the_environment_is_refused_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from coadapt.train.integrations.accelerate import CoadaptAccelerator

    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    with pytest.raises(InputError, match="gradient_accumulation_steps"):
        CoadaptAccelerator(ct.init())
