"""Plans turn on last bits: castor's exp, log and power are the C library's on every
machine.
"""

import ast
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.goodput.compiled import HAS_COMPILER
from coadapt.goodput.throughput import step_time
from coadapt.policies import castor
from coadapt.policies.predictors.best_goodputs import log_steps_s
from coadapt.policies.predictors.measured_step_times import Shape
from coadapt.policies.solvers.arrays import exp, log, power
from tests.policies.castor.stage import PARAMS, placement_of

OF_NUMPYS_OWN = {
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "power",
    "float_power",
    "cbrt",
}
LOOPS = {"compiled", "compiled_part", "compiled_lean", "lean_part"}
compiled = pytest.mark.skipif(not HAS_COMPILER, reason="without numba loops call numpy")


@compiled
@given(st.lists(st.floats(-700.0, 700.0), max_size=40), st.floats(-2.0, 2.0))
def test_they_are_those_of_the_c_library(values: list[float], exponent: float) -> None:
    exp_N = exp(np.array(values))
    assert exp_N.tolist() == [math.exp(each) for each in values]
    assert log(exp_N).tolist() == [math.log(each) for each in exp_N.tolist()]
    roots = [math.exp(each / 8.0) for each in values]
    assert power(np.array(roots), exponent).tolist() == [
        each**exponent for each in roots
    ]


SETTINGS = st.tuples(
    st.integers(1, 4),
    st.integers(1, 8),
    st.integers(1, 2),
    st.integers(1, 9),
    st.integers(0, 3),
)


@given(st.lists(SETTINGS, min_size=1, max_size=20), st.floats(1.0, 10.0))
def test_a_step_takes_what_the_model_says(
    settings: list[tuple[int, int, int, int, int]], gamma: float
) -> None:
    params = replace(
        PARAMS, alpha_n=0.2, beta_n=0.02, alpha_k=0.3, beta_k=0.01, gamma=gamma
    )
    rows = []
    said = []
    for nodes, per_node, racks, atomic, accumulation in settings:
        shape = Shape(nodes, min(racks, nodes), nodes * per_node)
        rows.append([*shape, 16 * atomic, accumulation])
        said.append(
            math.log(step_time(params, placement_of(shape), 16 * atomic, accumulation))
        )
    assert log_steps_s(params, np.array(rows, dtype=np.float64)) == pytest.approx(
        said, rel=1e-12, abs=1e-12
    )


def _outside_of_loops(tree: ast.AST) -> list[ast.AST]:
    """Return all that stands in no compiled function."""
    found: list[ast.AST] = []
    for node in ast.iter_child_nodes(tree):
        decorators = getattr(node, "decorator_list", [])
        if any(isinstance(each, ast.Name) and each.id in LOOPS for each in decorators):
            continue
        found += [node, *_outside_of_loops(node)]
    return found


@pytest.mark.parametrize(
    "path", sorted(Path(castor.__path__[0]).rglob("*.py")), ids=lambda path: path.name
)
def test_numpys_own_are_called_in_compiled_loops_alone(path: Path) -> None:
    called = {
        node.attr
        for node in _outside_of_loops(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "np"
    }
    assert not called & OF_NUMPYS_OWN
