"""Classic and elastic policies keep the contract. Few views here; `python -m
coadapt.policies.checks.contract NAME` tries more."""

import time
from collections.abc import Callable

import pytest

from coadapt.policies import Policy
from coadapt.policies.afs import Afs
from coadapt.policies.checks.contract import check_policy
from coadapt.policies.drf import Drf
from coadapt.policies.elastic_jsa import ElasticJsa
from coadapt.policies.elasticflow import ElasticFlow
from coadapt.policies.las import Las
from coadapt.policies.max_min import MaxMin
from coadapt.policies.srsf import Srsf
from coadapt.policies.tiresias import Tiresias

POLICIES: dict[str, Callable[[], Policy]] = {
    "srsf": Srsf,
    "las": Las,
    "max-min": MaxMin,
    "max-min in short turns": lambda: MaxMin(turn_s=60.0),
    "drf": Drf,
    "drf that stops": lambda: Drf(skip=False),
    "tiresias, Gittins, by skew": lambda: Tiresias(
        form="gittins",
        history_gpu_s=(100.0, 2e3, 9e4) * 5,
        thresholds_gpu_s=(600.0,),
        pack_limit=0.25,
    ),
    "afs": Afs,
    "elasticflow": ElasticFlow,
    "elastic-jsa": lambda: ElasticJsa(period_s=120.0),
    "elastic-jsa, honest": lambda: ElasticJsa(trusting=False),
}


@pytest.mark.parametrize("name", POLICIES)
def test_the_policy_keeps_the_contract(name: str) -> None:
    check_policy(POLICIES[name], cases=12, seed=3, timer=time.process_time)
