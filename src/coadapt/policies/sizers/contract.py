"""The contract that every sizer keeps, as a check to call from any test."""

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from coadapt.model import ClusterView
from coadapt.model.offer import (
    Market,
    Offer,
    Pool,
    Sizing,
    SizingError,
    SizingView,
    check_sizing,
)
from coadapt.policies.checks.sample_views import corner_views, generate_views
from coadapt.policies.sizers.base import Sizer

SizerFactory = Callable[[], Sizer]

NUM_CASES = 40
NUM_ROUNDS = 12
NUM_SEQUENCES = 3
ROUND_S = 60.0
# A lone job for which nodes can be bought must have some after this number of rounds.
PATIENCE_ROUNDS = 20


def check_sizer(
    factory: SizerFactory,
    *,
    cases: int = NUM_CASES,
    seed: int = 0,
    buys_for_a_job: bool = True,
) -> None:
    """Raise AssertionError with a readable text unless `factory()` keeps the contract.

    cases: number of random views, drawn from `seed`. buys_for_a_job: whether a lone job
    on an empty cluster must get a node; false for a sizer whose options forbid it.
    """
    for name, view in sample_sizing_views(cases, seed):
        _lawful_and_alike(factory, name, view)
    for name, views in _sequences(seed):
        _survives_pickling(factory, name, views)
    if buys_for_a_job:
        _buys_for_a_lone_job(factory)


def sample_sizing_views(cases: int, seed: int) -> Iterator[tuple[str, SizingView]]:
    """Yield named views: corner cases, then `cases` random ones that follow from
    `seed`.
    """
    for index, (name, view) in enumerate(corner_views().items()):
        rng = np.random.default_rng((seed, index))
        yield f"corner_views()[{name!r}]", sizing_view(view, rng)
        yield f"{name}, no offers", SizingView(cluster=view, pools=())
    for index, view in enumerate(generate_views(seed, cases)):
        rng = np.random.default_rng((seed, index, 1))
        yield f"view {index} of generate_views({seed})", sizing_view(view, rng)


def sizing_view(view: ClusterView, rng: np.random.Generator) -> SizingView:
    """Return a view with random offers: types, markets, limits, and what is had of
    them.
    """
    pools = []
    for index in range(int(rng.integers(1, 5))):
        most = int(rng.integers(0, 17))
        offer = Offer(
            id=f"offer-{index}",
            num_gpus=int(rng.choice([1, 4, 8])),
            gpu_type=str(rng.choice(["gpu", "gpu", "big", "small"])),
            price_per_h=float(rng.choice([0.0, 0.5, 3.0, 30.0])),
            market=Market(rng.choice(["on-demand", "spot"])),
            provision_s=float(rng.choice([0.0, 120.0, 1800.0])),
            billing_s=float(rng.choice([0.0, 3600.0])),
            least=int(rng.integers(0, most + 1)) if rng.random() < 0.3 else 0,
            most=most,
        )
        live = int(rng.integers(0, most + 2))
        pools.append(
            Pool(
                offer=offer,
                num_live=live,
                num_ordered=int(rng.integers(0, 3)),
                num_leaving=int(rng.integers(0, 2)),
                num_idle=int(rng.integers(0, live + 1)),
                num_losses=int(rng.integers(0, 5)),
                node_hours=float(rng.uniform(0.0, 100.0)),
            )
        )
    spent = float(rng.uniform(0.0, 1000.0))
    return SizingView(cluster=view, pools=tuple(pools), spent=spent)


def _lawful_and_alike(factory: SizerFactory, name: str, view: SizingView) -> None:
    before = pickle.dumps(view)
    answer = _ask(factory(), view, name)
    if pickle.loads(before) != view:
        raise AssertionError(f"{name}: size modified the view")
    if _ask(factory(), view, name) != answer:
        raise AssertionError(f"{name}: two fresh instances answer differently")


def _survives_pickling(
    factory: SizerFactory, name: str, views: list[SizingView]
) -> None:
    sizer = factory()
    for view in views[: NUM_ROUNDS // 2]:
        _ask(sizer, view, name)
    try:
        twin: Sizer = pickle.loads(pickle.dumps(sizer))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise AssertionError(f"the sizer cannot be pickled: {error}") from error
    for view in views[NUM_ROUNDS // 2 :]:
        answer = _ask(sizer, view, name)
        if _ask(twin, view, name) != answer:
            raise AssertionError(f"{name}: a pickled copy answers differently")


def _buys_for_a_lone_job(factory: SizerFactory) -> None:
    sizer = factory()
    cluster = replace(corner_views()["one job"], nodes=())
    pool = Pool(offer=Offer(id="offer", num_gpus=4, price_per_h=1.0, most=4))
    view = SizingView(cluster=cluster, pools=(pool,))
    for _ in range(PATIENCE_ROUNDS):
        if any(_ask(sizer, view, "one job, no nodes").nodes.values()):
            return
        view = replace(view, cluster=replace(view.cluster, at=view.at + ROUND_S))
    raise AssertionError(
        f"a lone job has no node after {PATIENCE_ROUNDS} decisions, though one is for sale"
    )


def _sequences(seed: int) -> Iterator[tuple[str, list[SizingView]]]:
    for index, cluster in enumerate(generate_views(seed, NUM_SEQUENCES)):
        rng = np.random.default_rng((seed, index, 2))
        views = [
            replace(
                sizing_view(cluster, rng),
                cluster=replace(cluster, at=cluster.at + number * ROUND_S),
            )
            for number in range(NUM_ROUNDS)
        ]
        yield f"the decisions after view {index} of generate_views({seed})", views


def _ask(sizer: Sizer, view: SizingView, name: str) -> Sizing:
    answer = sizer.size(view)
    try:
        check_sizing(view, answer)
    except SizingError as error:
        raise AssertionError(f"{name}: {error}") from error
    return answer
