"""Parameters that a step leaves without a gradient: found on one replica, before
several would refuse it; and those that are frozen, which are the same in a replica that
joins and after a restart.
"""

# DistributedDataParallel waits for the gradient of each parameter. If a step leaves
# some out, it ends the run in the next step, unless find_unused_parameters is set. On
# one replica nothing waits: the script trains, and its first growth would end it. So
# while a replica is alone, the gradients are checked before each optimiser step.
# Missing ones are kept with the run's state, and the wrapper for several replicas then
# gets the option. It does not always get it, because it costs a walk over the graph in
# each step.
#
# What is frozen may change on the way (a backbone that is thawed in the third epoch),
# and the line that does so does not run in a replica that joins later: there the
# gradients of fewer parameters would be exchanged.

import logging
from collections.abc import Mapping

from torch import nn

from coadapt.train.session import Session
from coadapt.train.wrappers.sparse import sparse_parameters

logger = logging.getLogger(__name__)

OPTION = "find_unused_parameters"
# Each says by itself how parameters without a gradient are dealt with.
OWN_WAYS = frozenset({OPTION, "static_graph"})
# What torch says on several replicas, and what helps.
REFUSAL = "Expected to have finished reduction in the prior iteration"
READY_TWICE = "mark a variable ready only once"
NAMES_MAX = 3


class UnusedParameters:
    """Of which models some parameters had no gradient in some step, and which
    parameters are frozen; kept in checkpoints and taken over.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._found: set[str] = set()
        # By model: walking the modules for them in each step would cost a tiny model a
        # tenth of it.
        self._parameters: dict[str, list[tuple[str, nn.Parameter]]] = {}
        self._sparse: dict[str, set[str]] = {}

    def know(self, name: str, module: nn.Module) -> None:
        """`module` is the model `name`."""
        self._parameters[name] = list(module.named_parameters())
        # The wrapper does not wait for these.
        self._sparse[name] = set(sparse_parameters(module))

    def options(self, name: str, given: Mapping[str, object]) -> dict[str, object]:
        """Return DistributedDataParallel's arguments for the model `name`: `given`, and
        what it needs.
        """
        return {OPTION: True, **given} if name in self._found else dict(given)

    def look(self, name: str, given: Mapping[str, object]) -> None:
        """The optimiser is about to step. One warning where parameters have no
        gradient.
        """
        session = self._session
        watched = not (
            session.group.distributed or session.trial or name in self._found
        )
        if not watched or session.current is None or OWN_WAYS & given.keys():
            return
        known = self._parameters[name]
        for _, item in known:
            if item.grad is None:
                break
        else:
            return  # in nearly all steps: every parameter has its gradient
        missing = [
            key
            for key, item in known
            if item.grad is None
            and item.requires_grad
            and key not in self._sparse[name]
        ]
        if not missing:
            return
        wanted = [key for key, item in known if item.requires_grad]
        if len(missing) == len(wanted):
            return
        self._found.add(name)
        logger.warning(
            "step %d: %d of %d parameters had no gradient (%s): with several "
            "replicas, %s=True will be set, "
            "which costs a walk over the graph in each step; what is never used is "
            "better frozen "
            "(requires_grad_(False))",
            session.progress.step + 1,
            len(missing),
            len(wanted),
            ", ".join(missing[:NAMES_MAX])
            + (", ..." if len(missing) > NAMES_MAX else ""),
            OPTION,
        )

    def state_dict(self) -> dict[str, object]:
        frozen = {
            name: [key for key, item in known if not item.requires_grad]
            for name, known in self._parameters.items()
        }
        return {"models": sorted(self._found), "frozen": frozen}

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        models = state_dict["models"]
        assert isinstance(models, list)
        self._found = set(models)
        frozen = state_dict.get("frozen", {})  # earlier versions did not keep it
        assert isinstance(frozen, dict)
        for name, keys in frozen.items():
            self._freeze(name, set(keys))

    def _freeze(self, name: str, keys: set[str]) -> None:
        """Freeze those parameters of a model, and thaw all others."""
        changed = [
            (key, item)
            for key, item in self._parameters.get(name, ())
            if item.requires_grad == (key in keys)
        ]
        for _, item in changed:
            item.requires_grad_(not item.requires_grad)
        if changed:
            logger.info(
                "%d parameters are frozen or trained as they were in the run before "
                "(%s)",
                len(changed),
                ", ".join(key for key, _ in changed[:NAMES_MAX])
                + (", ..." if len(changed) > NAMES_MAX else ""),
            )


def explain_refusal(error: BaseException) -> str | None:
    """Return what to do where several replicas refuse a step; None for other errors."""
    if READY_TWICE in str(error):
        return (
            "error: on several replicas a parameter had its gradient ready twice in "
            "one backward (checkpointed "
            "activations, or a module used twice): run.prepare(model, optimizer, "
            'ddp={"static_graph": True}), or '
            "checkpoint(..., use_reentrant=False)"
        )
    if REFUSAL not in str(error):
        return None
    return (
        "error: on several replicas each parameter needs a gradient in each step, "
        "and some had none: "
        f'run.prepare(model, optimizer, ddp={{"{OPTION}": True}}), or freeze what is '
        f"never used"
    )
