"""What each sizer's rule is: fixed numbers, demand, throughput, Pollux's
two, castor's.
"""

import math
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.model import InputError, Node, ReplicaLimits, Tenant
from coadapt.model.offer import Pool, Sizing, SizingError, check_sizing
from coadapt.policies.sizers import castor, create_sizer
from coadapt.policies.sizers.castor import kept_shares, spot_price
from coadapt.policies.sizers.curves import goodput_curve
from coadapt.policies.sizers.offers import nodes_for, on_one_type
from tests.policies.sizers.views import job, offer, spot, view


def nodes(name: str, *args: object, **options: object) -> int:
    answer = create_sizer(name).size(view(*args, **options))  # type: ignore[arg-type]
    return sum(answer.nodes.values())


def test_fixed_buys_the_cheapest_first_and_no_more_than_there_are() -> None:
    pools = (
        Pool(offer=offer("dear", price_per_h=8.0, most=10)),
        Pool(offer=offer("cheap", price_per_h=4.0, most=3)),
    )
    answer = create_sizer("fixed(nodes=5)").size(view(pools=pools))
    assert answer.nodes == {"cheap": 3, "dear": 2}
    assert "fixed" in answer.reason


def test_demand_counts_requested_gpus_and_waits_before_it_gives_back() -> None:
    wide = replace(
        job(),
        spec=replace(job().spec, replicas=replace(job().spec.replicas, requested=10)),
    )
    sizer = create_sizer("demand(idle_s=600)")
    assert sizer.size(view(wide)).nodes == {"a": 3}
    pools = (Pool(offer=offer(), num_live=3, num_idle=3),)
    assert sizer.size(view(pools=pools, at=4000.0)).nodes == {"a": 3}
    assert sizer.size(view(pools=pools, at=4600.0)).nodes == {"a": 0}


def test_pollux_job_grows_with_the_noise_scale_and_throughput_does_not() -> None:
    by_noise = [
        nodes("pollux-job", job(gpus=4, noise=noise)) for noise in (1, 30, 1000)
    ]
    assert by_noise == sorted(by_noise)
    assert by_noise[0] < by_noise[-1]
    blind = {nodes("throughput", job(gpus=4, noise=noise)) for noise in (1, 30, 1000)}
    assert len(blind) == 1
    assert blind.pop() >= by_noise[-1]


def test_pollux_job_keeps_the_size_below_its_upper_mark() -> None:
    curve = goodput_curve(job(noise=1), offer(), 32)
    assert curve[31] / 32 < 2 / 3 * curve[0]
    assert nodes("pollux-job", job(gpus=32, noise=1)) == 8


def test_pollux_job_grows_to_at_most_twice_what_was_timed() -> None:
    assert nodes("pollux-job", job(gpus=4, noise=1e4, timed=4)) <= 2


def test_pollux_utility_moves_only_outside_of_the_band_and_after_enough_rounds() -> (
    None
):
    sizer = create_sizer("pollux-utility(averaged=3)")
    small = view(job(gpus=4, noise=1e4))
    wanted = [sizer.size(small).nodes["a"] for _ in range(3)]
    assert wanted[:2] == [1, 1]
    assert wanted[2] > 1
    within = view(job(gpus=32, noise=5))
    sizer = create_sizer("pollux-utility(averaged=1, low=0.01, high=1)")
    assert sizer.size(within).nodes["a"] == 8


def test_castor_minimises_value_of_time_and_price_over_goodput() -> None:
    found = job(gpus=0, noise=50)
    for value in (0.5, 5.0, 50.0, 500.0):
        curve = goodput_curve(found, offer(), 64)
        cost = (value + 1.0 * np.arange(1, 65)) / np.maximum.accumulate(curve)
        best = int(cost.argmin()) + 1
        wanted = nodes(f"castor(value_of_time={value})", found)
        assert wanted in (best // 4, math.ceil(best / 4)), (value, best)


@given(
    values=st.tuples(st.floats(0.0, 1e3), st.floats(0.0, 1e3)),
    noise=st.floats(0.1, 1e4),
    num_jobs=st.integers(1, 4),
)
def test_castor_buys_no_less_where_time_is_worth_more(
    values: tuple[float, float], noise: float, num_jobs: int
) -> None:
    jobs = [job(f"job-{index}", gpus=0, noise=noise) for index in range(num_jobs)]
    low, high = sorted(values)
    small = nodes(f"castor(value_of_time={low})", *jobs)
    assert small <= nodes(f"castor(value_of_time={high})", *jobs)


@given(
    budget=st.floats(0.0, 100.0),
    value=st.floats(0.0, 1e4),
    noise=st.floats(0.1, 1e4),
    held=st.integers(0, 32),
)
def test_castor_never_plans_above_a_budget_per_hour(
    budget: float, value: float, noise: float, held: int
) -> None:
    name = f"castor(value_of_time={value}, budget_per_h={budget})"
    assert 4.0 * nodes(name, job(gpus=held, noise=noise)) <= budget


def test_castor_computes_each_curve_once_however_many_factors_a_budget_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = Mock(wraps=goodput_curve)
    monkeypatch.setattr(castor, "goodput_curve", counted)
    jobs = [job(f"job-{index}", gpus=0, noise=100) for index in range(3)]
    free = nodes("castor(value_of_time=100)", *jobs)
    assert counted.call_count == 3
    counted.reset_mock()
    limited = nodes("castor(value_of_time=100, budget_per_h=20, budget=90)", *jobs)
    assert counted.call_count == 3
    assert 0 < limited < free


def test_castor_stops_buying_when_a_total_budget_is_spent() -> None:
    name = "castor(value_of_time=100, budget=50)"
    assert nodes(name, job(gpus=0, noise=100), spent=0.0) >= 1
    assert nodes(name, job(gpus=8, noise=100), spent=50.0) == 0


@given(hours=st.floats(0.5, 20.0), noise=st.floats(1.0, 1e3))
def test_castor_meets_deadlines_at_the_fewest_gpus(hours: float, noise: float) -> None:
    found = job(gpus=0, noise=noise, left=2e7, deadline_at=3600.0 * (1 + hours))
    curve = np.maximum.accumulate(goodput_curve(found, offer(), 64))
    if 2e7 / curve[-1] > 0.85 * hours * 3600.0:
        return
    wanted = nodes("castor(value_of_time=0)", found)
    assert 2e7 / curve[4 * wanted - 1] <= hours * 3600.0
    if wanted > 1:
        assert 2e7 / curve[4 * (wanted - 1) - 1] > 0.85 * hours * 3600.0 - 60.0


def test_castor_buys_spot_nodes_and_on_demand_ones_for_deadlines_without() -> None:
    pools = (Pool(offer=offer()), Pool(offer=spot()))
    relaxed = create_sizer("castor(value_of_time=5)").size(
        view(job(gpus=0), pools=pools)
    )
    assert relaxed.nodes["a"] == 0
    assert relaxed.nodes["s"] > 0
    due = job(gpus=0, left=3e7, noise=1e3, deadline_at=3600.0 * 1.5)
    sizer = create_sizer("castor(value_of_time=0)")
    assert sizer.size(view(due, pools=pools)).nodes["s"] > 0
    gone = (Pool(offer=offer()), Pool(offer=spot(most=0)))
    urgent = sizer.size(view(due, pools=gone))
    assert urgent.nodes["a"] > 0
    assert "deadlines" in urgent.reason


def test_a_spot_node_that_is_lost_often_costs_more_than_its_list_price() -> None:
    calm = Pool(offer=spot(provision_s=600.0), node_hours=1000.0)
    wild = Pool(offer=spot(provision_s=600.0), node_hours=10.0, num_losses=20)
    assert 0.3 < spot_price(calm) < 0.302
    assert spot_price(wild) > 0.33
    assert spot_price(Pool(offer=offer())) == 1.0


def test_castor_does_not_buy_nodes_that_come_after_the_job_ended() -> None:
    late = (Pool(offer=offer(provision_s=1800.0), num_live=1),)
    short = job(gpus=4, noise=1e3, left=2e5)
    answer = create_sizer("castor(value_of_time=1000)").size(view(short, pools=late))
    assert answer.nodes == {"a": 1}
    assert "does not pay" in answer.reason
    soon = (Pool(offer=offer(), num_live=1),)
    long = job(gpus=4, noise=1e3, left=1e8)
    assert (
        create_sizer("castor(value_of_time=1000)")
        .size(view(long, pools=soon))
        .nodes["a"]
        > 1
    )


def test_castor_buys_more_for_a_tenant_whose_time_is_worth_more() -> None:
    def bought(**values: float) -> int:
        asked = view(job(gpus=0, noise=1e3, left=1e8))
        tenants = {
            name: Tenant(id=name, value_of_time=value) for name, value in values.items()
        }
        cluster = replace(asked.cluster, tenants=tenants)
        sizer = create_sizer("castor(value_of_time=1)")
        return sizer.size(replace(asked, cluster=cluster)).nodes["a"]

    assert bought() < bought(default=50.0)
    assert bought(default=50.0) == bought(**{"*": 50.0})
    # A tenant's own value counts before that of all tenants.
    assert bought() == bought(default=1.0, **{"*": 50.0})


def test_castor_buys_the_type_that_has_enough_gpus_for_a_gang() -> None:
    small = offer("small", num_gpus=3, price_per_h=0.3, gpu_type="small", most=1)
    large = offer("large", num_gpus=2, price_per_h=4.0, gpu_type="large", most=4)
    gang = job(gpus=0)
    limits = ReplicaLimits(min=8, max=8, requested=8)
    gang = replace(gang, spec=replace(gang.spec, replicas=limits))
    asked = view(gang, pools=(Pool(offer=small), Pool(offer=large)))
    answer = create_sizer("castor(value_of_time=2)").size(asked)
    assert answer.nodes == {"small": 0, "large": 4}


def test_a_wide_job_on_spot_nodes_keeps_less_of_its_time() -> None:
    wild = Pool(offer=spot(provision_s=60.0), node_hours=10.0, num_losses=20)
    kept_K = kept_shares(job(), wild, 10)
    assert kept_K.shape == (10,)
    assert list(kept_K[:4]) == [kept_K[0]] * 4  # one node
    assert 1.0 > kept_K[0] > kept_K[4] > kept_K[9] > 0.0
    assert list(kept_shares(job(), Pool(offer=offer()), 10)) == [1.0] * 10


def test_castor_buys_fewer_spot_nodes_where_many_are_lost() -> None:
    def nodes(num_losses: int) -> int:
        pool = Pool(offer=spot(), node_hours=10.0, num_losses=num_losses)
        sizer = create_sizer("castor(value_of_time=20)")
        wide = job(gpus=0, noise=1e3, left=1e8)
        return sizer.size(view(wide, pools=(pool,))).nodes["s"]

    assert 0 < nodes(60) < nodes(0)


@given(
    limits=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 8)), min_size=1, max_size=4
    ),
    gpus=st.floats(0.0, 200.0),
)
def test_nodes_hold_what_is_wanted_or_all_that_there_is(
    limits: list[tuple[int, int]], gpus: float
) -> None:
    pools = [
        Pool(
            offer=offer(f"o{index}", least=least, most=least + more, num_gpus=index + 1)
        )
        for index, (least, more) in enumerate(limits)
    ]
    found = nodes_for(pools, {(): gpus})
    there = sum(pool.offer.num_gpus * found[pool.offer.id] for pool in pools)
    most = sum(pool.offer.num_gpus * pool.offer.most for pool in pools)
    assert there >= min(gpus, most) - 1e-3
    check_sizing(view(pools=tuple(pools)), Sizing(nodes=found, reason="test"))


def test_a_job_gets_all_its_gpus_of_one_type() -> None:
    cheap = Pool(offer=offer("cheap", most=3, price_per_h=1.0, gpu_type="t4"))
    dear = Pool(offer=offer("dear", most=8, gpu_type="a100"))
    pools = (cheap, dear)
    assert on_one_type(pools, [((), 18.0)]) == {("a100",): 18.0}
    # The second finds no room on the cheap type any more.
    assert on_one_type(pools, [((), 8.0), ((), 8.0)]) == {
        ("t4",): 8.0,
        ("a100",): 8.0,
    }
    # One that allows the cheap type only chooses before one that allows both.
    wanted = [((), 8.0), (("t4",), 8.0)]
    assert on_one_type(pools, wanted) == {("t4",): 8.0, ("a100",): 8.0}
    assert on_one_type(pools, [(("h100",), 8.0)]) == {}
    own = Node(id="own", num_gpus=8, gpu_type="t4")
    assert on_one_type(pools, [((), 18.0)], [own]) == {("t4",): 18.0}
    there = Pool(offer=offer("dear", least=2, most=8, gpu_type="a100"))
    assert on_one_type((cheap, there), [((), 8.0)]) == {("a100",): 8.0}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Sizing(nodes={"b": 1}, reason="x"), "'b' is not known, allowed: a"),
        (Sizing(nodes={"a": 17}, reason="x"), "17 nodes, allowed 0..16"),
        (Sizing(nodes={"a": 1}), "no reason"),
    ],
)
def test_an_unlawful_answer_is_refused(answer: Sizing, words: str) -> None:
    with pytest.raises(SizingError, match=words):
        check_sizing(view(), answer)


def test_unknown_names_and_options_are_refused() -> None:
    with pytest.raises(InputError, match="castor"):
        create_sizer("nonsense")
    with pytest.raises(InputError, match="value_of_time"):
        create_sizer("castor(value=1)")
    with pytest.raises(InputError, match="finite and >= 0"):
        create_sizer("castor(value_of_time=-1.0)")
