"""Generated limits, parameters and placements of jobs, within what real jobs may
have.
"""

from hypothesis import strategies as st

from coadapt.model import BatchLimits, GradStats, Placement, ThroughputParams

seconds = st.floats(0.0, 10.0)
norms = st.floats(0.0, 1e6)

throughput_params = st.builds(
    ThroughputParams,
    alpha_c=seconds,
    beta_c=st.floats(1e-6, 1.0),
    alpha_r=seconds,
    beta_r=seconds,
    alpha_n=seconds,
    beta_n=seconds,
    alpha_k=seconds,
    beta_k=seconds,
    gamma=st.floats(1.0, 10.0),
)
grad_stats = st.builds(GradStats, sqr=norms, var=norms)


@st.composite
def batch_limits(draw: st.DrawFn) -> BatchLimits:
    """Limits with and without accumulation and an upper bound of the atomic batch."""
    initial = draw(st.integers(1, 512))
    max_total = draw(st.integers(initial, 64 * initial))
    min_atomic = draw(st.integers(1, 64))
    return BatchLimits(
        initial=initial,
        requested=draw(st.integers(1, max_total)),
        max_total=max_total,
        min_atomic=min_atomic,
        max_atomic=draw(st.none() | st.integers(min_atomic, 16 * min_atomic)),
        accumulation=draw(st.booleans()),
    )


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    """Up to six nodes of up to eight replicas, in one rack or more."""
    shape = tuple(draw(st.lists(st.integers(1, 8), min_size=1, max_size=6)))
    return Placement(shape, draw(st.integers(1, len(shape))))
