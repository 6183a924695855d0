"""Compiles the numba kernels and keeps them on disk: part of the set-up, so that nothing waits for it."""

from coadapt.goodput.fit import fit_throughput
from coadapt.goodput.profile import ProfileBuilder
from coadapt.model import Placement
from coadapt.policies import POLICIES, create_policy
from coadapt.runtime.process_solver import REHEARSAL


def main() -> None:
    for name in POLICIES:
        create_policy(name).allocate(REHEARSAL)
    profile = ProfileBuilder()
    profile.add(Placement((1,)), 32, 0.1, 0.1)
    fit_throughput(profile.build())


if __name__ == "__main__":
    main()
