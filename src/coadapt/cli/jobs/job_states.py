"""The states of jobs as the API names them; those of the core cost an import that quick
verbs do without.
"""

LIVE = ("pending", "starting", "running", "rescaling", "stopping")
ENDED = frozenset({"succeeded", "failed", "cancelled"})
STATES = (*LIVE, "succeeded", "failed", "cancelled")
