"""Mixed precision's loss scaling, one scale and one decision to skip per optimiser
step.
"""

from collections.abc import Iterable

import torch

from coadapt.train.session import Session
from coadapt.train.wrappers.optimizer import ElasticOptimizer
from coadapt.train.wrappers.trained import TrainedPair


class ElasticScaler:
    """Behaves like the `torch.amp.GradScaler` inside; acts only in passes that end an
    optimiser step.

    Gradients come averaged over the replicas, so all of them skip the same steps. Norms
    are measured as if the loss had not been scaled; a step with infinite gradients
    measures nothing.
    """

    def __init__(
        self,
        inner: torch.amp.GradScaler,
        session: Session,
        trained: Iterable[TrainedPair],
    ) -> None:
        self._inner = inner
        self._session = session
        self._trained = trained
        session.loss_scaled = inner.is_enabled()

    def scale(self, outputs: object) -> object:
        if self._inner.is_enabled():
            one = torch.ones((), device=self._session.group.device)
            scaled = self._inner.scale(one)
            for pair in self._trained:
                pair.gradients.meter.set_loss_scale(scaled)
        return self._inner.scale(outputs)  # type: ignore[call-overload]  # passed through

    def unscale_(self, optimizer: ElasticOptimizer) -> None:
        """Divide `.grad` by the scale, for clipping; nothing in passes before the last,
        which leave none.
        """
        if self._session.synchronising:
            optimizer.finish()
            self._inner.unscale_(optimizer.inner)

    def step(self, optimizer: ElasticOptimizer) -> float | None:
        """Step `optimizer`, unless a gradient is infinite or not a number."""
        if not self._session.synchronising:
            optimizer.step()
            return None
        with optimizer.stepping():
            return self._inner.step(optimizer.inner)

    def update(self, new_scale: float | None = None) -> None:
        if self._session.synchronising:
            self._inner.update(new_scale)

    def state_dict(self) -> dict[str, object]:
        return self._inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """Take over `state_dict`; that of a scaler that was switched off is empty, and
        changes nothing.
        """
        if state_dict:
            self._inner.load_state_dict(state_dict)

    def __getattr__(self, name: str) -> object:
        return getattr(self.__dict__["_inner"], name)
