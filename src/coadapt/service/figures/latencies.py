"""Latencies for Prometheus: of requests, of journal commits, and of events in the
queue.
"""

from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, Histogram

REQUEST_BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)
COMMIT_BUCKETS_S = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3)
LAG_BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)
SQLITE_FILES = ("", "-wal", "-shm")


class Latencies:
    """Histograms in `registry`, for any thread; they begin when the scheduler does."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Histogram(
            "coadapt_api_request_seconds",
            "Time from a request to the head of its response, s",
            ["method", "route", "status"],
            buckets=REQUEST_BUCKETS_S,
            registry=registry,
        )
        self._commits = Histogram(
            "coadapt_journal_commit_seconds",
            "Time to write a group of events durably, s",
            buckets=COMMIT_BUCKETS_S,
            registry=registry,
        )
        self._lags = Histogram(
            "coadapt_event_lag_seconds",
            "Time from an event's arrival until it is handled, s",
            buckets=LAG_BUCKETS_S,
            registry=registry,
        )
        self._size = Gauge(
            "coadapt_journal_bytes", "Size of the journal on disk", registry=registry
        )
        self._away = Gauge(
            "coadapt_journal_away_seconds",
            "How long the journal has not been writable; 0 if it is, s",
            registry=registry,
        )

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Note an answer. route: the path with the names of its parts, not their
        values, so that there are few series.
        """
        self._requests.labels(method, route, str(status)).observe(seconds)

    def commit(self, seconds: float) -> None:
        """Note a commit of the journal."""
        self._commits.observe(seconds)

    def lag(self, seconds: float) -> None:
        """Note how long an event waited, and was handled."""
        self._lags.observe(seconds)

    def watch_trouble(self, seconds: Callable[[], float]) -> None:
        """Tell from now on for how long the journal could not be written, as `seconds`
        returns it.
        """
        self._away.set_function(seconds)

    def watch_journal(self, path: Path) -> None:
        """Tell the size of the SQLite journal at `path` from now on, looked at when
        asked for.
        """
        self._size.set_function(
            lambda: sum(_size(Path(f"{path}{suffix}")) for suffix in SQLITE_FILES)
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
