"""Floor 2: scheduling policies. One paper, one file, one row in POLICIES; nothing heavy
is imported here.

Third parties register theirs under the entry point group `coadapt.policies`, or name it
`module:Class`.
"""

import importlib
import inspect
from collections.abc import Callable
from importlib.metadata import entry_points

from coadapt.model import InputError
from coadapt.model.errors import require, suggestion
from coadapt.policies.base import Policy, PolicyCard
from coadapt.policies.choice import fit_options, parse_choice
from coadapt.policies.option_texts import option_texts

POLICIES: dict[str, str] = {
    "fifo": "coadapt.policies.fifo:Fifo",
    "srtf": "coadapt.policies.srtf:Srtf",
    "srsf": "coadapt.policies.srsf:Srsf",
    "las": "coadapt.policies.las:Las",
    "max-min": "coadapt.policies.max_min:MaxMin",
    "drf": "coadapt.policies.drf:Drf",
    "tiresias": "coadapt.policies.tiresias:Tiresias",
    "afs": "coadapt.policies.afs:Afs",
    "elasticflow": "coadapt.policies.elasticflow:ElasticFlow",
    "elastic-jsa": "coadapt.policies.elastic_jsa:ElasticJsa",
    "optimus": "coadapt.policies.optimus:Optimus",
    "optimus-online": "coadapt.policies.optimus_online:OptimusOnline",
    "slaq": "coadapt.policies.slaq:Slaq",
    "pollux": "coadapt.policies.pollux.policy:Pollux",
    "pollux-genetic": "coadapt.policies.pollux.policy:PolluxGenetic",
    "sia": "coadapt.policies.sia.policy:Sia",
    "ones": "coadapt.policies.ones.policy:Ones",
    "shockwave": "coadapt.policies.shockwave.policy:Shockwave",
    "gavel": "coadapt.policies.gavel:Gavel",
    "themis": "coadapt.policies.themis:Themis",
    "ossp": "coadapt.policies.ossp:Ossp",
    "mst": "coadapt.policies.mst:Mst",
    "allox": "coadapt.policies.allox:Allox",
    "gandiva": "coadapt.policies.gandiva.policy:Gandiva",
    "gandiva-fair": "coadapt.policies.gandiva_fair:GandivaFair",
    "lwf": "coadapt.policies.lwf:Lwf",
    "dally": "coadapt.policies.dally:Dally",
    "rubick": "coadapt.policies.rubick.policy:Rubick",
    "antman": "coadapt.policies.antman:AntMan",
    "deeppool": "coadapt.policies.deeppool:DeepPool",
    "castor": "coadapt.policies.castor.policy:Castor",
}
ENTRY_POINT_GROUP = "coadapt.policies"

__all__ = [
    "ENTRY_POINT_GROUP",
    "POLICIES",
    "Policy",
    "PolicyCard",
    "create_policy",
    "policy_card",
    "policy_draws",
    "policy_module",
    "policy_names",
    "policy_option_texts",
    "policy_options",
    "require_packages",
]


def policy_names() -> tuple[str, ...]:
    """Return the names that `create_policy` accepts: built-in ones in the order of the
    table, then installed ones.
    """
    installed = {entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)}
    return (*POLICIES, *sorted(installed - set(POLICIES)))


def policy_card(name: str) -> PolicyCard:
    """Return the card of policy `name`; an empty one if it has none. Raises as
    create_policy.
    """
    return getattr(
        _find(parse_choice(name)[0]), "card", PolicyCard(paper="", decides="")
    )


def policy_options(name: str) -> dict[str, object]:
    """Return the keyword options of policy `name`: the values that `name` sets, else
    the defaults.

    Raises InputError as create_policy, but does not check values.
    """
    name, options = parse_choice(name)
    parameters = inspect.signature(_find(name)).parameters.values()
    defaults = {option.name: option.default for option in parameters}
    return {**defaults, **fit_options(name, options, defaults)}


def policy_draws(name: str) -> bool:
    """Return whether a run under policy `name` depends on the seed of the run.

    It does if the policy draws random numbers and `name` sets no seed. Raises
    InputError as create_policy.
    """
    return "seed" in policy_options(name) and "seed" not in parse_choice(name)[1]


def policy_module(name: str) -> str:
    """Return the name of the module of the class of policy `name`. Raises InputError as
    create_policy.
    """
    return _find(parse_choice(name)[0]).__module__


def policy_option_texts(name: str) -> dict[str, str]:
    """Return the description of each option of policy `name`. Options without a
    description are missing.

    Raises InputError as create_policy.
    """
    return option_texts(_find(parse_choice(name)[0]), policy_options(name))


def require_packages(name: str) -> None:
    """Raise MissingExtraError if policy `name` needs a package that is not installed.

    Raises InputError as create_policy.
    """
    name = parse_choice(name)[0]
    if policy_card(name).needs_scipy:
        require(f"policy {name}", "scipy", "solvers")


def create_policy(name: str, **options: object) -> Policy:
    """Return a new policy.

    name: a registered name or a reference `module:Class`, with options in brackets,
    `gavel(objective=ftf)`. `options` override these. Raises InputError if the name, an
    option's name or an option's value is not allowed, and MissingExtraError if the
    policy needs a package that is not installed.
    """
    name, named = parse_choice(name)
    factory = _find(name)
    require_packages(name)
    options = fit_options(name, {**named, **options}, policy_options(name))
    try:
        return factory(**options)
    except ValueError as error:
        raise InputError(f"policy {name}", options, str(error)) from error


def _find(name: str) -> Callable[..., Policy]:
    reference = name if ":" in name else POLICIES.get(name) or _installed(name) or name
    module_name, colon, class_name = reference.partition(":")
    if not (colon and module_name and class_name):
        names = policy_names()
        allowed = f"{', '.join(names)}, or module:Class{suggestion(name, names)}"
        raise InputError("policy", name, allowed)
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise InputError(
            "policy", name, f"a class that can be imported ({error})"
        ) from error
    if not callable(getattr(found, "allocate", None)):
        raise InputError("policy", name, "a class with a method allocate(view) -> Plan")
    factory: Callable[..., Policy] = found
    return factory


def _installed(name: str) -> str | None:
    return next(
        (entry.value for entry in entry_points(group=ENTRY_POINT_GROUP, name=name)),
        None,
    )
