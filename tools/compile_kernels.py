"""Compiles the numba kernels and keeps them on disk: part of the set-up, so that
nothing waits for it.
"""

from coadapt.policies import POLICIES, create_policy
from coadapt.runtime.rehearsal import rehearse, rehearse_fit


def main() -> None:
    for name in POLICIES:
        rehearse(create_policy(name))
    rehearse_fit()


if __name__ == "__main__":
    main()
