"""What the scheduler says of jobs that wait or shrink is true, whatever the policy."""

from collections import Counter

import pytest

from coadapt.core import hindrances
from coadapt.policies import create_policy
from tests.core.reason_oracle import FalseReasonError, try_clusters
from tests.policies.choices import short_choices

CLUSTERS = 4
# Other clusters were tried once. Seeds from 2000: 200 for each of 11 policies, 100 for
# each of 7, 40 for `themis` and 20 for `lwf`. Seeds from 3000: 200 for `allox`,
# `rubick`, `shockwave`, `sia`, `slaq`, `srsf` and `srtf`, 100 for `castor`, `ones`,
# `pollux` and `pollux-genetic`. Seeds from 4000: 20 for `fifo`, 160 for `themis`, 180
# for `lwf`. Seeds from 5000: 1,000 for each of 25 policies, 700 for `themis`, 675 for
# `antman`, 50 for `castor`, `ossp` and `sia`, none for `pollux-genetic`. None of their
# 759,777 sentences was false. Seeds from 6000: 950 for `ossp`, 850 for `castor` and
# `sia`, 250 for `themis`, 200 for `antman`, 650 for `pollux-genetic`. None of their
# 86,471 sentences was false.
MANY_CLUSTERS = 40
KINDS = {"held", "size", "quota", "policy"}


@pytest.mark.parametrize("policy", short_choices())
def test_each_sentence_is_true(policy: str) -> None:
    kinds = try_clusters(policy, range(CLUSTERS), create_policy)
    assert kinds["sentences"] > CLUSTERS


@pytest.mark.slow
@pytest.mark.parametrize("policy", short_choices())
def test_each_sentence_is_true_in_many_clusters(policy: str) -> None:
    kinds = try_clusters(policy, range(MANY_CLUSTERS), create_policy)
    assert {kind for kind, count in kinds.items() if count} >= KINDS


def test_sentences_of_every_kind_are_tried() -> None:
    kinds: Counter[str] = Counter()
    kinds.update(try_clusters("fifo", range(30), create_policy))
    assert {kind for kind, count in kinds.items() if count} >= KINDS


def test_the_oracle_finds_a_quota_that_is_not_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hindrances.Hindrances, "_over_quota", lambda *_: [])
    with pytest.raises(FalseReasonError):
        try_clusters("fifo", range(30), create_policy)


def test_the_oracle_finds_a_free_gpu_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = hindrances.Hindrances._whole_pool

    def one_more(self: hindrances.Hindrances, gpu_type: str) -> hindrances._Pool:
        pool = whole(self, gpu_type)
        pool.free = min(pool.free + 1, pool.total)
        return pool

    monkeypatch.setattr(hindrances.Hindrances, "_whole_pool", one_more)
    with pytest.raises(FalseReasonError):
        try_clusters("fifo", range(30), create_policy)
