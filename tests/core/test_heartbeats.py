"""Who has been silent for too long, against a look at everybody."""

import random

import pytest

from coadapt.core.heartbeats import HeartbeatTimeouts


@pytest.mark.parametrize("seed", range(20))
def test_it_finds_whom_a_look_at_everybody_finds(seed: int) -> None:
    random_ = random.Random(seed)
    heartbeats = HeartbeatTimeouts()
    heard = dict[str, tuple[float, float]]()
    at = 0.0
    for _ in range(300):
        at += random_.choice((0.0, 0.3, 7.0))
        job = f"j{random_.randrange(12)}"
        if random_.random() < 0.2:
            heartbeats.forget(job)
            heard.pop(job, None)
        elif random_.random() < 0.3 and job in heard:
            heartbeats.record(job, *heard[job])  # nothing new
        else:
            timeout_s = (
                heard[job][0] if job in heard else random_.choice((5.0, 20.0, 20.0))
            )
            heard[job] = (timeout_s, at)
            heartbeats.record(job, timeout_s, at)
        late = {
            job
            for job, (timeout_s, last_at) in heard.items()
            if at - last_at >= timeout_s
        }
        assert set(heartbeats.timed_out(at)) == late


def test_nobody_behind_the_first_who_may_be_silent_is_looked_at() -> None:
    heartbeats = HeartbeatTimeouts()
    looks = 0

    class Instant(float):
        def __rsub__(self, other: float) -> float:
            nonlocal looks
            looks += 1
            return other - float(self)

    for number in range(100):
        heartbeats.record(f"j{number}", 60.0, Instant(number))
    assert heartbeats.timed_out(62.0) == ["j0", "j1", "j2"]
    assert looks == 4


def test_a_timeout_that_nobody_has_any_more_is_not_kept() -> None:
    heartbeats = HeartbeatTimeouts()
    for number in range(50):
        heartbeats.record("a", 60.0 + number, 0.0)
        heartbeats.forget("a")
    heartbeats.timed_out(0.0)
    assert heartbeats._rows == {}
