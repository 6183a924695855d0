"""A fair lock: a thread that takes it again and again lets waiting threads between."""

# Python's locks are not fair: a thread that lets go of one and takes it again at once
# mostly has it before any other has woken up. The loop did so for two seconds after a
# restart, and a request for a list waited for as long. So there is a door before the
# lock. A thread that waits for the lock holds the door, and the loop, once it has
# released the lock, must pass the door as well: after the thread that holds it.

import threading


class FairLock:
    """A lock that serves its waiters in order; `enter` has a time limit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._door = threading.Lock()

    def __enter__(self) -> None:
        with self._door:
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        self._lock.release()

    def enter(self, timeout_s: float) -> bool:
        """Enter as a `with` does, and return True; return False if it takes longer."""
        if not self._door.acquire(timeout=timeout_s):
            return False
        try:
            return self._lock.acquire(timeout=timeout_s)
        finally:
            self._door.release()
