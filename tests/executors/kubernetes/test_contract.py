"""The Kubernetes executor keeps the executor contract on a real API server with etcd,
and a test kubelet.
"""

import pytest

from tests.contracts.executor_contract import ExecutorContract

pytest.importorskip("kubernetes")

pytestmark = [pytest.mark.processes, pytest.mark.slow]


class TestKubernetesContract(ExecutorContract):
    pass
