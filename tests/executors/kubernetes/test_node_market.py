"""Bought nodes as holder pods: what is ordered, which nodes are kept and offered, and
what is a notice. No cluster needed.
"""

import json
from dataclasses import replace

import pytest

pytest.importorskip("kubernetes")

from coadapt.executors.kubernetes import node_market
from coadapt.executors.kubernetes.api import ApiError, JsonObject
from coadapt.executors.kubernetes.holders import keeper_pod, order_pod
from coadapt.executors.kubernetes.node_market import ARRIVE_S, NodeMarket
from coadapt.executors.kubernetes.notices import notice_s
from coadapt.executors.kubernetes.offers import shelf_of
from coadapt.model import InputError
from coadapt.model.offer import Offer
from tests.executors.kubernetes.holder_pods import HolderPods
from tests.executors.kubernetes.test_pods import TOLERATION, node, settings

FIRM = Offer(id="firm", num_gpus=4, price_per_h=2.0, most=3)
SPOT = Offer(id="spot", num_gpus=4, price_per_h=1.0, most=2)
LABEL = "coadapt.dev/offer"
NOW = 1000.0


class Market:
    """A node market on pods in memory; each look sees the nodes that are there."""

    def __init__(self) -> None:
        self.pods = HolderPods()
        self.now = NOW
        self.restart()

    def restart(self) -> None:
        """A new scheduler on the same cluster."""
        shelf = shelf_of([FIRM, SPOT], [], slots=None, resource="nvidia.com/gpu")
        self.market = NodeMarket(self.pods, settings(), shelf, now=lambda: self.now)  # type: ignore[arg-type]  # pods in memory

    def look(self) -> list[str]:
        """Look once; return the nodes that are offered."""
        self.market.look(dict(self.pods.nodes), [])
        return sorted(self.market.offered)

    def came(self, order: str, name: str) -> None:
        """The cluster autoscaler adds a node, and the order runs there."""
        self.pods.nodes[name] = labelled(name, order.split("-")[0])
        self.pods.bind(order, name)

    def keep(self, order: str, name: str) -> None:
        """Have a node that is kept and offered."""
        self.came(order, name)
        self.look()
        self.pods.confirm()
        assert name in self.look()


def labelled(name: str, offer: str, **spec: object) -> JsonObject:
    found = node(name, **spec)
    found["metadata"] = {"name": name, "labels": {LABEL: offer}}
    return found


@pytest.fixture
def market() -> Market:
    return Market()


def test_each_node_that_is_wanted_has_one_order(market: Market) -> None:
    market.look()
    assert market.pods.names == []
    market.market.buy({"firm": 2, "spot": 1})
    market.look()
    market.look()
    assert market.pods.names == ["firm-0-order", "firm-1-order", "spot-0-order"]
    market.market.buy({"firm": 9, "spot": 0})
    market.look()
    assert market.pods.names == ["firm-0-order", "firm-1-order", "firm-2-order"]
    market.market.buy({"firm": 1})
    market.look()
    assert market.pods.names == ["firm-0-order"]


def test_a_node_that_came_is_kept_and_offered_once_its_gpus_are_free(
    market: Market,
) -> None:
    market.market.buy({"firm": 1})
    market.look()
    market.came("firm-0-order", "n")
    assert market.look() == []
    assert market.pods.names == ["firm-0-keeper", "firm-0-order"]
    assert market.look() == []  # the order's container has not ended yet
    market.pods.confirm()
    assert market.look() == ["n"]
    assert market.market.offered == {"n": "firm"}
    assert market.pods.names == ["firm-0-keeper"]
    keeper = market.pods.pods["coadapt-1-firm-0-keeper"]
    assert keeper["spec"]["nodeName"] == "n"


def test_a_node_that_is_given_back_loses_its_keeper_and_is_not_ordered_again(
    market: Market,
) -> None:
    market.market.buy({"firm": 2})
    market.look()
    market.keep("firm-0-order", "n")
    market.market.give_back("n")
    assert sorted(market.market.offered) == []
    market.market.give_back("n")
    assert market.look() == []
    # The other order stays, also at this very look.
    assert market.pods.names == ["firm-1-order"]
    assert market.market.why_gone == {"n": "was given back"}
    market.look()
    assert market.pods.names == ["firm-1-order"]


def test_a_node_that_is_given_back_during_a_look_cancels_no_order(
    market: Market,
) -> None:
    market.market.buy({"firm": 3})
    market.look()
    market.keep("firm-0-order", "n")
    market.came("firm-2-order", "m")
    market.pods.during_delete = lambda: market.market.give_back("n")
    market.look()
    assert "firm-1-order" in market.pods.names
    assert "firm-0-keeper" in market.pods.names
    market.look()
    assert "firm-0-keeper" not in market.pods.names


def test_a_restart_orders_nothing_twice_and_forgets_no_node(market: Market) -> None:
    market.market.buy({"firm": 2, "spot": 1})
    market.look()
    market.keep("spot-0-order", "s")
    market.came("firm-1-order", "n")
    market.restart()
    assert market.look() == ["s"]
    market.pods.confirm()
    assert market.look() == ["n", "s"]
    assert market.pods.names == ["firm-0-order", "firm-1-keeper", "spot-0-keeper"]
    market.market.buy({"firm": 2, "spot": 1})
    market.look()
    assert market.pods.names == ["firm-0-order", "firm-1-keeper", "spot-0-keeper"]


def test_nodes_with_replicas_are_kept_after_a_restart(market: Market) -> None:
    """Their keepers disappeared meanwhile, or their offer is new."""
    market.pods.nodes = {
        name: labelled(name, "spot") for name in ("a", "b", "c", "idle")
    } | {"own": node("own")}
    market.market.look(dict(market.pods.nodes), [], ["a", "b", "c", "own", "gone"])
    # An offer has no more nodes than its `most`.
    assert market.market.offered == {"a": "spot", "b": "spot"}
    assert market.pods.names == ["spot-0-keeper", "spot-1-keeper"]
    assert market.look() == ["a", "b"]


def test_an_order_that_arrives_late_meets_the_pod_of_the_same_name(
    market: Market,
) -> None:
    """A scheduler was killed while its request was on the way."""
    market.market.buy({"spot": 1})
    market.look()
    [late] = market.pods.pods.values()
    market.restart()
    market.pods.pods.clear()
    market.market.buy({"spot": 1})
    market.look()
    with pytest.raises(ApiError, match="is there"):
        market.pods.ask("POST", "", late)
    assert market.pods.names == ["spot-0-order"]


@pytest.mark.parametrize("end", ["evict", "remove"])
def test_a_keeper_that_disappears_is_created_again(market: Market, end: str) -> None:
    market.market.buy({"firm": 1})
    market.look()
    market.keep("firm-0-order", "n")
    getattr(market.pods, end)("firm-0-keeper")
    assert market.look() == ["n"]
    assert market.pods.names == ["firm-0-keeper"]
    assert not market.pods.pods["coadapt-1-firm-0-keeper"]["status"]


def test_a_node_that_is_gone_is_dropped_and_not_replaced_without_an_order(
    market: Market,
) -> None:
    market.market.buy({"firm": 1})
    market.look()
    market.keep("firm-0-order", "n")
    seen = dict(market.pods.nodes)
    del market.pods.nodes["n"]
    market.look()
    assert market.pods.names == []
    market.look()
    assert market.pods.names == []
    market.market.buy({"firm": 1})
    market.look()
    assert market.pods.names == ["firm-0-order"]
    market.pods.nodes = seen
    market.keep("firm-0-order", "n")
    # A list of nodes that is older than the node drops nothing.
    market.market.look({}, [])
    assert market.pods.names == ["firm-0-keeper"]


def test_a_node_that_is_not_ready_for_long_is_left_to_the_autoscaler(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    market.market.buy({"firm": 1})
    market.look()
    market.keep("firm-0-order", "n")
    market.pods.nodes["n"] = labelled("n", "firm", ready="Unknown")
    assert market.look() == ["n"]
    assert market.pods.names == ["firm-0-keeper"]
    monkeypatch.setattr(node_market, "LOST_S", -1.0)
    assert market.look() == []
    assert market.pods.names == []


def test_an_offer_of_which_no_node_comes_is_limited_for_a_while(
    market: Market,
) -> None:
    market.market.buy({"firm": 2, "spot": 2})
    market.look()
    market.keep("firm-0-order", "n")
    market.now += ARRIVE_S - 1.0
    market.look()
    assert market.market.offers == (FIRM, SPOT)
    market.came("firm-1-order", "m")
    market.now += 1.0
    market.look()
    # The order that came in time is a node, and limits nothing.
    assert market.market.offers == (FIRM, replace(SPOT, most=0))
    market.pods.confirm()
    assert market.look() == ["m", "n"]
    assert market.pods.names == ["firm-0-keeper", "firm-1-keeper"]
    market.market.buy({"firm": 2, "spot": 2})
    market.look()
    assert market.pods.names == ["firm-0-keeper", "firm-1-keeper"]
    market.now += ARRIVE_S
    market.look()
    assert market.market.offers == (FIRM, SPOT)
    market.market.buy({"firm": 2, "spot": 1})
    market.look()
    assert "spot-0-order" in market.pods.names


def test_a_refused_order_is_not_sent_at_each_look(market: Market) -> None:
    market.pods.refused = ApiError(403, "exceeded quota")
    market.market.buy({"firm": 3})
    market.look()
    market.look()
    assert market.pods.num_asked == 1


def test_an_order_requests_a_node_of_its_offer_and_a_keeper_nothing() -> None:
    template = {
        "spec": {
            "tolerations": [TOLERATION],
            "nodeSelector": {"pool": "a"},
            "securityContext": {"runAsUser": 7},
            "volumes": [{"name": "shm", "emptyDir": {}}],
            "containers": [
                {
                    "name": "replica",
                    "image": "theirs",
                    "securityContext": {"runAsNonRoot": True},
                    "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
                }
            ],
        }
    }
    given = settings(image="", template_json=json.dumps(template), owner_json='{"a":1}')
    order = order_pod(given, FIRM, {LABEL: "firm"}, 2)
    spec = order["spec"]
    assert spec["nodeSelector"] == {"pool": "a", LABEL: "firm"}
    assert spec["tolerations"] == [TOLERATION]
    assert spec["securityContext"] == {"runAsUser": 7}
    assert "volumes" not in spec
    [container] = spec["containers"]
    amount = {"nvidia.com/gpu": "4"}
    assert container == {
        "name": "holder",
        "image": "theirs",
        "securityContext": {"runAsNonRoot": True},
        "command": ["sleep", "infinity"],
        "resources": {"requests": amount, "limits": amount},
    }
    [apart] = spec["affinity"]["podAntiAffinity"].popitem()[1]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    keeper = keeper_pod(given, "firm", 2, "n")
    assert keeper["spec"]["containers"][0]["resources"] == {}
    assert keeper["spec"]["nodeName"] == "n"
    assert keeper["spec"]["tolerations"] == [{"operator": "Exists"}]
    for pod in (order, keeper):
        # Of these labels the replicas of a scheduler are counted.
        assert "coadapt.dev/scheduler" not in pod["metadata"]["labels"]
        assert pod["metadata"]["ownerReferences"] == [{"a": 1}]
        assert pod["metadata"]["annotations"] == {
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            "karpenter.sh/do-not-disrupt": "true",
        }


def taint(key: str, effect: str = "NoSchedule") -> JsonObject:
    return {"taints": [{"key": key, "effect": effect}]}


CANDIDATE = "DeletionCandidateOfClusterAutoscaler"


@pytest.mark.parametrize(
    ("found", "lead_s"),
    [
        (node(), None),
        (node(ready="False", unschedulable=True), None),
        (node(unschedulable=True), 0.0),
        (node(**taint("ToBeDeletedByClusterAutoscaler")), 0.0),
        (node(**taint(CANDIDATE, "PreferNoSchedule")), None),
        (node(**taint("karpenter.sh/disrupted")), 0.0),
        (node(**taint("karpenter.sh/disrupted", "PreferNoSchedule")), 0.0),
        (node(**taint("karpenter.sh/disruption")), 0.0),
        (node(**taint("aws-node-termination-handler/spot-itn")), 120.0),
        (node(**taint("cloud.google.com/impending-node-termination")), 30.0),
        (node(**taint("remediator.kubernetes.azure.com/unschedulable")), 30.0),
        (node(**taint("maintenance", "NoExecute")), 0.0),
        (node(**taint("gpu")), None),
    ],
)
def test_what_says_that_a_node_will_be_taken_away(
    found: JsonObject, lead_s: float | None
) -> None:
    assert notice_s(found, [TOLERATION]) == lead_s


def test_replicas_that_tolerate_all_taints_get_notices_too() -> None:
    found = node(**taint("karpenter.sh/disrupted"))
    assert notice_s(found, [{"operator": "Exists"}]) == 0.0


def test_a_notice_has_its_time_from_when_it_was_first_seen(market: Market) -> None:
    market.market.buy({"spot": 1})
    market.look()
    market.keep("spot-0-order", "s")
    spec = taint("aws-node-termination-handler/spot-itn")
    market.pods.nodes["s"] = labelled("s", "spot", **spec)
    assert market.look() == ["s"]
    assert market.market.noticed == {"s": NOW + 120.0}
    market.pods.nodes["s"] = labelled("s", "spot", unschedulable=True, **spec)
    market.look()
    assert market.market.noticed == {"s": NOW + 120.0}
    market.market.give_back("s")
    market.look()
    assert market.market.noticed == {}


def test_offers_have_the_nodes_that_are_named_or_labelled() -> None:
    shelf = shelf_of(
        [FIRM, SPOT],
        ["spot:karpenter.sh/capacity-type=spot", "spot:pool=a"],
        slots=4,
        resource="nvidia.com/gpu",
    )
    assert shelf.labels == {
        "firm": {LABEL: "firm"},
        "spot": {"karpenter.sh/capacity-type": "spot", "pool": "a"},
    }
    assert [offer.gpu_type for offer in shelf.offers] == ["cpu", "cpu"]
    assert shelf.offer_of({"metadata": {"labels": {LABEL: "firm"}}}) == "firm"
    assert shelf.offer_of({"metadata": {"labels": {"pool": "a"}}}) is None
    assert shelf.offer_of({"metadata": {}}) is None


@pytest.mark.parametrize(
    ("name", "offer_nodes", "slots", "line"),
    [
        ("Firm", [], None, "--offer: got 'Firm'; allowed: a name of up to 40 small"),
        ("firm", [], 2, "--offer firm, GPUs: got 4; allowed: 2, the CPU slots of a"),
        ("firm", ["spit:a=b"], None, "got 'spit:a=b'; allowed: labels, each OFFER:"),
        ("firm", ["firm:a"], None, "option offer_nodes: got 'firm:a'; allowed"),
        (
            "firm",
            ["firm:pool=a", "spot:pool=a", "spot:x=y"],
            None,
            "got 'firm:pool=a'; allowed: labels that the nodes of the offer 'spot' do",
        ),
    ],
)
def test_offers_that_no_cluster_could_tell_apart_are_refused(
    name: str, offer_nodes: list[str], slots: int | None, line: str
) -> None:
    first = Offer(id=name, num_gpus=4, price_per_h=2.0)
    with pytest.raises(InputError, match=line):
        shelf_of([first, SPOT], offer_nodes, slots=slots, resource="nvidia.com/gpu")
