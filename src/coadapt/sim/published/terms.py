"""The terms of each paper: cluster, rounds, cost of a start, and what its baselines are
called with.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coadapt.model import InputError
from coadapt.policies import create_policy, policy_draws, policy_options
from coadapt.policies.base import Policy
from coadapt.policies.choice import parse_choice
from coadapt.sim.published.figures import PUBLISHED


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What a paper calls by a policy's name. choice: which of ours that is, by default
    that of the same name.

    options: those that the user does not name. round_s: rounds of its own, s; None:
    those of the paper.
    """

    choice: str = ""
    options: Mapping[str, object] = field(default_factory=dict)
    round_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How a paper's runs were made. Durations in seconds.

    own_loop: in whole steps and rounds, as its artifact does (published/rounds.py);
    else in our simulator. everywhere: options of all policies that have them.
    """

    paper: str
    cluster: str
    round_s: float
    rescale_s: float
    own_loop: bool = False
    everywhere: Mapping[str, object] = field(default_factory=dict)
    baselines: Mapping[str, Baseline] = field(default_factory=dict)

    def baseline(self, policy: str) -> Baseline:
        """Return what the paper calls so; of a policy that it does not know, our own
        with its defaults.
        """
        return self.baselines.get(parse_choice(policy)[0], Baseline())

    def create(self, policy: str, seed: int, **further: object) -> Policy:
        """Return the policy with the paper's options; those that its name says go
        first.

        further: options of this run. Raises InputError as create_policy.
        """
        name, named = parse_choice(policy)
        baseline = self.baseline(policy)
        name = baseline.choice or name
        has = policy_options(name)
        options = {key: value for key, value in self.everywhere.items() if key in has}
        options |= baseline.options
        options |= further
        if policy_draws(name):
            options["seed"] = seed
        return create_policy(name, **{**options, **named})


# Shockwave's artifact: rounds of 120 s, and programmes that are solved again every
# 1,000 s at most; GPUs that fall to a job that came since then stay idle.
_AS_RELEASED = {"round_s": 120.0, "resolve_s": 1000.0, "hold_back": True}
# Its planner's predictions have noise of 0.1 %, without which one run would stand for
# all.
_SHOCKWAVE = {
    "num_rounds": 20,
    "replan_rounds": 8,
    "rule": "counts",
    "calibrate": True,
    "whole_seconds": True,
    "noise": 1e-3,
}

TERMS: Mapping[str, Terms] = {
    "osdi21": Terms(
        paper="Pollux, OSDI'21", cluster="16x4", round_s=60.0, rescale_s=30.0
    ),
    "shockwave": Terms(
        paper="Shockwave, NSDI'23",
        cluster="1x32",
        round_s=120.0,
        rescale_s=20.0,
        own_loop=True,
        everywhere=_AS_RELEASED,
        baselines={
            "gavel": Baseline(options={"central": True}),
            "themis": Baseline(options={"central": True}),
            "gandiva-fair": Baseline(options={"form": "equal"}),
            "mst": Baseline(options={"raw": True, "central": True}),
            "allox": Baseline(options={"alpha": 0.2}),
            "ossp": Baseline(options={"tolerance": 0.05, "central": True}),
            "shockwave": Baseline(options=_SHOCKWAVE),
        },
    ),
    "sia": Terms(
        paper="Sia, SOSP'23",
        cluster="6x4:aws,2x8:dgx-ext,3x8:rtx",
        round_s=60.0,
        rescale_s=30.0,
        baselines={
            # What Sia's artifact calls Gavel maximises the sum of the rates, not the
            # least share.
            "gavel": Baseline(
                choice="mst", options={"raw": True, "central": True}, round_s=360.0
            )
        },
    ),
}


def terms_of(format_name: str) -> Terms:
    """Return the terms of a trace format. Raises InputError for one that no paper is
    known of.
    """
    if format_name not in TERMS:
        known = ", ".join(f"{name} ({terms.paper})" for name, terms in TERMS.items())
        raise InputError("--as-published", f"a trace of format {format_name}", known)
    return TERMS[format_name]


def published_figures(
    format_name: str, traces: tuple[str, ...], policy: str
) -> Mapping[str, float]:
    """Return what was published of a policy on a trace, by figure; nothing where it is
    not known.

    traces: what the trace may be called. A policy with options of the user's own is
    another.
    """
    known = PUBLISHED.get(format_name, {})
    return next((known[name, policy] for name in traces if (name, policy) in known), {})
