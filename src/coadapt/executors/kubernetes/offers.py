"""Checks the offers of `coadapt up` for a Kubernetes cluster, and finds out which nodes
belong to each offer.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from coadapt.executors.kubernetes.holders import LABEL_OFFER
from coadapt.executors.kubernetes.node_market import Shelf
from coadapt.executors.kubernetes.pods import CPU
from coadapt.model import InputError
from coadapt.model.contract_env import CPU_SLOT_TYPE
from coadapt.model.offer import Offer, OfferId

# A part of the names of pods, and a label's value.
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")
OPTION = "executor kubernetes, option offer_nodes"


def shelf_of(
    offers: Sequence[Offer],
    offer_nodes: Sequence[str],
    *,
    slots: int | None,
    resource: str,
) -> Shelf:
    """Return the offers with the GPU type of their nodes, and the labels of the nodes.

    offer_nodes: labels, each `OFFER:name=value`. An offer without any has the nodes
    with the label `coadapt.dev/offer` and its name. slots: CPU slots per node.
    resource: the resource that a slot is. Raises InputError.
    """
    for offer in offers:
        if not NAME.fullmatch(offer.id):
            allowed = "a name of up to 40 small letters, digits and -, as pods have it"
            raise InputError("--offer", offer.id, allowed)
        if slots is not None and offer.num_gpus != slots:
            allowed = f"{slots}, the CPU slots of a node"
            raise InputError(f"--offer {offer.id}, GPUs", offer.num_gpus, allowed)
    labels = _labels(offers, offer_nodes)
    _check_apart(labels)
    is_cpu = slots is not None or resource == CPU
    if is_cpu:
        offers = [replace(offer, gpu_type=CPU_SLOT_TYPE) for offer in offers]
    return Shelf(offers=tuple(offers), labels=labels)


def _labels(
    offers: Sequence[Offer], offer_nodes: Sequence[str]
) -> dict[OfferId, dict[str, str]]:
    named: dict[OfferId, dict[str, str]] = {offer.id: {} for offer in offers}
    for text in offer_nodes:
        offer_id, _, label = text.partition(":")
        key, equals, value = label.partition("=")
        if offer_id not in named or not (key and equals):
            names = ", ".join(named) or "none is given"
            allowed = f"labels, each OFFER:name=value, of the offers ({names})"
            raise InputError(OPTION, text, allowed)
        named[offer_id][key] = value
    return {name: labels or {LABEL_OFFER: name} for name, labels in named.items()}


def _check_apart(labels: Mapping[OfferId, Mapping[str, str]]) -> None:
    """Raise InputError if all nodes of an offer are nodes of another, too."""
    for name, own in labels.items():
        for other, theirs in labels.items():
            if other != name and own.items() <= theirs.items():
                allowed = f"labels that the nodes of the offer {other!r} do not have"
                text = ",".join(f"{key}={value}" for key, value in own.items())
                raise InputError(OPTION, f"{name}:{text}", allowed)
