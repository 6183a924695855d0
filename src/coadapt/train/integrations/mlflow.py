"""MLflow: one run, whose metrics stand over steps and over progress, whole across
rescales.
"""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from coadapt.train.integrations.tracker import BY_PROGRESS, Sink, Tracker
from coadapt.train.run import Run

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

__all__ = ["track"]


def track(
    run: Run,
    experiment: str,
    *,
    tracking_uri: str | None = None,
    run_name: str | None = None,
) -> Tracker:
    """Return a tracker that writes to one MLflow run of `experiment`, made if it does
    not exist.
    """
    return Tracker(run, MlflowSink(experiment, tracking_uri, run_name))


class MlflowSink(Sink):
    """By MLflow's client: nothing global is touched."""

    name = "mlflow"

    def __init__(
        self, experiment: str, tracking_uri: str | None, run_name: str | None
    ) -> None:
        self._experiment = experiment
        self._uri = tracking_uri
        self._run_name = run_name
        self._client: MlflowClient | None = None
        self._id = ""

    def open(self, run_id: str) -> str:
        """Go on with the run, which is running again."""
        from mlflow.tracking import MlflowClient

        self._client = client = MlflowClient(tracking_uri=self._uri)
        if run_id:
            client.update_run(run_id, status="RUNNING")
            self._id = run_id
            return run_id
        found = client.get_experiment_by_name(self._experiment)
        experiment = (
            client.create_experiment(self._experiment)
            if found is None
            else found.experiment_id
        )
        self._id = str(
            client.create_run(experiment, run_name=self._run_name).info.run_id
        )
        return self._id

    def write(self, step: int, progress: float, figures: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        assert self._client is not None
        now = time.time_ns() // 1_000_000
        metrics = [Metric(name, value, now, step) for name, value in figures.items()]
        metrics += [
            Metric(f"{name}{BY_PROGRESS}", value, now, round(progress))
            for name, value in figures.items()
        ]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self) -> None:
        if self._client is not None:
            self._client.set_terminated(self._id)
