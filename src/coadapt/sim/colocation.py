"""How much jobs on one GPU slow each other: a parametric model between the published
extremes.
"""

# A GPU runs the kernels of several processes in turn. A replica that keeps it busy for
# a part `load` of its time when alone leaves the rest idle, so:
#
#   room       while the loads on a GPU sum to at most 1, every process finds the GPU
#              free; beyond that its time is divided in proportion to what each asks
#              for: speed 1 / sum of loads.
#   contention caches, memory bandwidth and launches are shared even then. Each process
#              loses CONTENTION, times what its neighbours ask for (at most one whole
#              GPU of it).
#
# Source of the one constant: Gandiva (Xiao et al., OSDI 2018) measured packing from -16
# % of total throughput (jobs that fill a GPU alone) to +412 % (small ones). Two jobs of
# load 1 keep 1/2 * (1 - 0.16) each here, a total of -16 %; five of load 0.2 keep 0.87
# each, +336 %. It is a model, not a measurement of pairs: a table of measured pairs
# belongs into an Application of its own, which finds its neighbours by name in the
# Setting.

from collections.abc import Sequence

from coadapt.sim.applications import Neighbour

CONTENTION = 0.16


def kept_speed(load: float, neighbours: Sequence[Neighbour]) -> float:
    """Return the part of its speed in (0, 1] that a replica of `load` keeps beside
    `neighbours`.
    """
    if not neighbours:
        return 1.0
    others = sum(each.load for each in neighbours)
    return (1.0 - CONTENTION * min(others, 1.0)) / max(load + others, 1.0)
