"""Step-time models of jobs on all GPU types, also on those where a job was not timed.

Axes: J jobs, T GPU types, X parameters of the model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from coadapt.goodput.throughput import PARAM_NAMES
from coadapt.model import JobView, TypeProfile
from coadapt.policies.predictors.best_goodputs import params_of
from coadapt.policies.solvers.arrays import FloatArray


def step_time_params(jobs: Sequence[JobView], names: Sequence[str]) -> FloatArray:
    """Return the step-time parameters of jobs on GPU types, (J, T, PARAM_NAMES).

    On types where a job was not timed they follow from a type where it was, by the
    factors between types. A job without any profile has zeros.
    """
    params_JTX = np.zeros((len(jobs), len(names), len(PARAM_NAMES)))
    partial = []
    for row, job in enumerate(jobs):
        profiles = job.measured.by_type
        if not profiles:
            continue
        widest = max(profiles.values(), key=lambda each: each.num_replicas_profiled)
        for number, name in enumerate(names):
            if name in profiles:
                params_JTX[row, number] = _params(profiles[name], widest)
        if not profiles.keys() >= set(names):
            partial.append(row)
    factor_TT = _type_factors(names, jobs) if partial else np.empty(0)
    for row in partial:
        profiles = jobs[row].measured.by_type
        for number, name in enumerate(names):
            if name not in profiles:
                params_JTX[row, number] = _params_on(number, names, profiles, factor_TT)
    return params_JTX


def _params(profile: TypeProfile, widest: TypeProfile) -> Sequence[float]:
    """Return step-time parameters on one GPU type, in the order of PARAM_NAMES.

    If the job used only one GPU of this type, synchronisation was never timed there and
    its fitted parameters are 0. They are then taken from `widest`, the profile of the
    type on which the job was timed with most replicas.
    """
    params = profile.params
    if profile.num_replicas_profiled <= 1 < widest.num_replicas_profiled:
        params = replace(widest.params, alpha_c=params.alpha_c, beta_c=params.beta_c)
    values: tuple[float, ...] = params_of(params)
    return values


def _params_on(
    number: int,
    names: Sequence[str],
    profiles: Mapping[str, TypeProfile],
    factor_TT: FloatArray,
) -> Sequence[float]:
    """Return the step-time parameters on a type where the job was not timed.

    They are those of the type with most replicas timed, the parameters of a pass times
    the factor between both types.
    """
    other = max(
        sorted(profiles),
        key=lambda name: (name in names, profiles[name].num_replicas_profiled),
    )
    params = profiles[other].params
    if other in names:
        factor = float(factor_TT[number, names.index(other)])
        params = replace(
            params, alpha_c=params.alpha_c * factor, beta_c=params.beta_c * factor
        )
    values: tuple[float, ...] = params_of(params)
    return values


def _type_factors(names: Sequence[str], jobs: Sequence[JobView]) -> FloatArray:
    """Return how many times longer a pass takes on type a than on type b, (a, b).

    It is the median over jobs that were timed on both, 1 if there are none.
    """
    factor_TT = np.ones((len(names), len(names)))
    known = [job.measured.by_type for job in jobs]
    for a, one in enumerate(names):
        for b, other in enumerate(names):
            both = [types for types in known if one in types and other in types]
            passes = [(_pass_s(types[one]), _pass_s(types[other])) for types in both]
            ratios = [own_s / other_s for own_s, other_s in passes if other_s > 0.0]
            if a != b and ratios:
                factor_TT[a, b] = float(np.median(ratios))
    return factor_TT


def _pass_s(profile: TypeProfile) -> float:
    """Return the time of a pass with one sample, s."""
    return profile.params.alpha_c + profile.params.beta_c
