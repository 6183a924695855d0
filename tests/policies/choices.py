"""Every policy, as tests of other parts create it."""

from coadapt.policies import POLICIES

# At its default, 100 generations, a decision takes twelve times as long.
SHORT_SEARCHES = {"pollux-genetic": "pollux-genetic(generations=5)"}


def short_choices() -> list[str]:
    """Return a choice of each registered policy, in order of names. Where a policy
    searches, the choice asks for a short search.
    """
    return [SHORT_SEARCHES.get(name, name) for name in sorted(POLICIES)]
