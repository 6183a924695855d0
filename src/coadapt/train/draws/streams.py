"""Which random numbers each replica draws, from the begin of the epochs on, over all
changes of replicas.
"""

# The rules. Until the epochs begin all replicas draw alike, so models and splits that a
# seeded script makes are the same everywhere. From then on rank r has a stream of its
# own: rank 0 that of the script, so that one replica draws what the plain loop draws;
# any other rank one that follows from the run's seed, the step at which the rank came
# up, and the rank.
#
# A stream belongs to the rank, not to the process. At a change of replicas, in place or
# by a restart, all states go over, and rank r goes on where rank r was; a rank that
# there was not begins one that was never used, since its step is in the seed. So no
# stream is repeated, and a change in place draws what a restart draws.
#
# Under `init(random="per-sample")` each pass begins with generators set by seed and
# step instead, alike on all replicas, and draws of samples go by their place
# (`by_sample`).

import logging
from collections.abc import Sequence
from typing import cast

import torch

from coadapt.train.draws.by_sample import (
    draw_for,
    draw_for_none,
    replace_operators,
)
from coadapt.train.draws.words import keys_of, mixed
from coadapt.train.env import Draws
from coadapt.train.group.group import gather_all, share_from_first
from coadapt.train.rng import restore_rng, rng_state, seed_for_data, seed_rng
from coadapt.train.samples.order import Pass
from coadapt.train.session import Session

logger = logging.getLogger(__name__)

# The run's seed goes through JSON, where other readers have whole numbers of 53 bits.
RUN_SEEDS = 2**53
# What all generators take.
SEEDS = 2**63
# What a seed is for: parts of the run must not draw alike by chance.
OF_RANK, OF_STEP, OF_FUSED, OF_DATA, OF_STREAM = range(5)

RngState = dict[str, object]
PER_SAMPLE = Draws.PER_SAMPLE


class RandomDraws:
    """Every replica calls alike."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._seed: int | None = None
        self._warned = False
        if self._per_sample:
            replace_operators("cpu")
            if session.group.device.type != "cpu":
                replace_operators(session.group.device.type)

    @property
    def _per_sample(self) -> bool:
        return self._session.config.random is PER_SAMPLE

    def states(self) -> list[RngState]:
        """Return the states of all ranks, in order. Collective."""
        group = self._session.group
        return gather_all(group, rng_state(group.device))

    def begin(self) -> None:
        """The epochs of a new run begin: let the streams of the ranks part.
        Collective.
        """
        session = self._session
        own = mixed(torch.initial_seed(), session.config.seed) % RUN_SEEDS
        session.random_seed = share_from_first(session.group, own)
        self.go_on([rng_state(session.group.device)] * (session.group.rank == 0))

    def go_on(self, states: Sequence[RngState]) -> None:
        """The run goes on in another group, or after a restart: `states` of the ranks
        before.
        """
        session = self._session
        rank = self._session.group.rank
        if rank < len(states):
            restore_rng(states[rank], session.group.device)
        else:
            seed_rng(mixed(OF_RANK, session.random_seed, session.progress.step, rank))
        self._seed = torch.initial_seed()

    def begin_pass(self, current: Pass) -> None:
        """The loop's body is about to run."""
        session = self._session
        if not self._per_sample:
            if session.group.rank and torch.initial_seed() != self._seed:
                self._tell_seeded()
            return
        seed = session.random_seed
        step = session.progress.step
        seed_for_data(mixed(OF_STEP, seed, step))
        if session.group.device.type == "cuda":
            # Only what is fused with other operators still draws from it: no two passes
            # alike.
            torch.cuda.manual_seed(mixed(OF_FUSED, seed, step, current.start))
        # A stand-in has one sample, of no weight.
        places = range(current.start, max(current.stop, current.start + 1))
        draw_for(places, lambda: session.current is not None)

    def end_pass(self) -> None:
        """Note that the loop's body has run. Later draws are not for its samples."""
        if self._per_sample:
            draw_for_none()

    def _tell_seeded(self) -> None:
        """Warn once that the script seeds the generator, which differs between replicas
        otherwise.
        """
        if not self._warned and self._session.group.rank == 1:
            logger.warning(
                "step %d: the script seeds torch within its epochs, so all replicas "
                "draw the same dropout "
                "masks and noise: seed before run.epochs(...), or by the replica too "
                "(seed + run.rank)",
                self._session.progress.step,
            )
        self._warned = True


def data_keys(session: Session, places: range) -> list[int]:
    """Return what the samples at `places` of the present epoch are drawn by in their
    data set.
    """
    key = mixed(OF_DATA, session.random_seed, session.progress.epoch)
    keys = keys_of(key, places, torch.device("cpu"))
    return cast("list[int]", keys.bitwise_and_(SEEDS - 1).tolist())
