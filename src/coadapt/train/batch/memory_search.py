"""Finds by trial how many samples of a pass fit into memory, and remembers when one of
training did not.
"""

import gc
import logging
import time
from collections.abc import Callable
from typing import cast

import torch

from coadapt.train.checkpoint.saver import Saver
from coadapt.train.checkpoint.writer import copy_to_host
from coadapt.train.group.group import gather_all
from coadapt.train.group.totals import Totals
from coadapt.train.memory_ceiling import (
    MemoryCeiling,
    MemoryCeilingFile,
    is_out_of_memory,
    search,
    signature,
)
from coadapt.train.rng import restore_rng, rng_state
from coadapt.train.session import Session
from coadapt.train.wrappers.model import ElasticModel

logger = logging.getLogger(__name__)

# What training may hold beside the trial's own, each as large as the gradients: buckets
# in which they travel, gradients of earlier passes, and those of the step before (for
# the noise scale).
COPIES_OF_GRADIENTS = 3


class MemoryWatch:
    """The memory ceilings of one model, on the GPU types that it has trained on."""

    def __init__(self, session: Session, saver: Saver, model: ElasticModel) -> None:
        self._session = session
        self._saver = saver
        self._model = model
        self._file = MemoryCeilingFile(session.config.checkpoint_dir)
        self._signature = signature(model.module)
        if session.model_is_sharded:
            session.memory_ceilings.update(
                self._file.read_cut(self._signature, session.group.size)
            )
        else:
            session.memory_ceilings.update(self._file.read(self._signature))

    def find(self, trial: Callable[[int], object], largest: int) -> int:
        """Return how many samples of a pass fit, at most `largest`, on all replicas:
        Run.find_max_atomic.
        """
        session = self._session
        if session.config.place.joining and session.model_is_sharded:
            # It has no part of the model yet to try with. The others' passes count: see
            # `settle_batch`.
            return min(session.memory_ceiling.fits or largest, largest)
        found = self._search(trial, largest)
        if session.config.place.joining:
            # The others train already. What they agreed on comes with the state.
            parts = [(session.gpu_type, found)]
        else:
            parts = gather_all(session.group, (session.gpu_type, found))
        self._keep(parts)
        most = min(largest, *(ceiling.fits for _, ceiling in parts))
        if not most:
            raise RuntimeError(
                f"not even one sample per pass fits into the memory of a "
                f"{session.gpu_type}"
            )
        return most

    def _search(self, trial: Callable[[int], object], largest: int) -> MemoryCeiling:
        """Return what is known once all trials that it takes were made; what they
        changed is undone.
        """
        session = self._session
        began_s = time.monotonic()
        sizes = list[int]()
        before: list[tuple[dict[str, object], dict[str, object]]] = []

        def fits(num_samples: int) -> bool:
            if not before:
                before.append(
                    (
                        copy_to_host(self._saver.objects()),
                        rng_state(session.group.device),
                    )
                )
            sizes.append(num_samples)
            return self._fits(trial, num_samples)

        session.trial = True
        try:
            found = search(fits, session.memory_ceiling, largest)
        finally:
            session.trial = False
            if before:
                self._model.end_rehearsals()
            for objects, generators in before:
                self._restore(objects, generators)
        if sizes:
            logger.info(
                "%d samples per pass fit into the memory of a %s (%d trials, %.1f s)",
                found.fits,
                session.gpu_type,
                len(sizes),
                time.monotonic() - began_s,
            )
        return found

    def _fits(self, trial: Callable[[int], object], num_samples: int) -> bool:
        device = self._session.group.device
        failed = False
        reserve: list[torch.Tensor] = []
        try:
            reserve += self._reserve()
            with self._model.rehearsal():
                trial(num_samples)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            failed = True
        # After the handler: until then the error's traceback holds what the trial had
        # allocated.
        reserve.clear()
        for parameter in self._model.module.parameters():
            parameter.grad = None
        if failed:
            # where it failed, it may be in the middle of an exchange
            self._model.end_rehearsals()
            gc.collect()  # frames of the error may refer to each other
        if device.type == "cuda":
            torch.cuda.empty_cache()
        return not failed

    def _reserve(self) -> list[torch.Tensor]:
        device = self._session.group.device
        if device.type != "cuda":
            return []
        parameters = [p for p in self._model.module.parameters() if p.requires_grad]
        return [
            torch.empty_like(p) for p in parameters for _ in range(COPIES_OF_GRADIENTS)
        ]

    def _restore(
        self, objects: dict[str, object], generators: dict[str, object]
    ) -> None:
        self._saver.load_objects(cast("dict[str, dict[str, object]]", objects))
        restore_rng(generators, self._session.group.device)
        self._session.figures.totals = Totals()

    def _keep(self, parts: list[tuple[str, MemoryCeiling]]) -> None:
        session = self._session
        kept: dict[str, MemoryCeiling] = {}
        for gpu_type, ceiling in parts:
            kept[gpu_type] = ceiling.weakest(kept.get(gpu_type, ceiling))
        session.memory_ceilings.update(kept)
        if session.group.rank == 0:
            self._write(kept)

    def _write(self, ceilings: dict[str, MemoryCeiling]) -> None:
        session = self._session
        cut_over = session.group.size if session.model_is_sharded else None
        self._file.write(self._signature, ceilings, cut_over=cut_over)

    def explain(self, error: BaseException) -> str | None:
        """Remember that a pass of training ran out of memory; return what to say. None:
        it did not.
        """
        session = self._session
        current = self._session.current or self._session.broken_off
        if current is None or not current.num_samples or not is_out_of_memory(error):
            return None
        failed = current.num_samples
        ceiling = session.memory_ceilings[session.gpu_type] = (
            session.memory_ceiling.after_failure(failed)
        )
        self._write({session.gpu_type: ceiling})
        rank = session.group.rank
        gpu_type = session.gpu_type
        where = (
            f"out of memory: replica {rank}: {failed} samples per pass do not fit "
            f"into a {gpu_type}"
        )
        if failed == 1:
            return f"{where}: not even one does"
        if not session.config.keeps_checkpoints:
            return (
                f"{where}: try run.loader(max_atomic={ceiling.most}), then gradients "
                f"accumulate"
            )
        return f"{where}: the next start takes at most {ceiling.most}, and accumulates"
