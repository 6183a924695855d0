"""Walking nested states, as `state_dict` returns and checkpoints hold them: mappings,
lists and tuples.
"""

# `torch.utils._pytree` does nearly this, and its words are used here (leaf, flatten,
# unflatten, path). It is not used itself: it is private to torch, it takes mappings
# that it does not know (such as MultiStepLR's `Counter`) for leaves, and it gives back
# the same kinds, where a checkpoint may only have plain ones, which load without
# running code.

from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass

from torch import Tensor

IsLeaf = Callable[[object], bool]


def map_leaves(
    function: Callable[[str, object], object],
    state: object,
    *,
    is_leaf: IsLeaf | None = None,
    path: str = "",
) -> object:
    """Return `state` with `function(path, leaf)` in place of each leaf; containers
    become plain ones.

    A path is as "/model/layers/0", below `path`. is_leaf: which containers are leaves
    as well.
    """
    if is_leaf is not None and is_leaf(state):
        return function(path, state)
    if isinstance(state, Mapping):
        return {
            key: map_leaves(function, item, is_leaf=is_leaf, path=f"{path}/{key}")
            for key, item in state.items()
        }
    if isinstance(state, list | tuple):
        items = [
            map_leaves(function, item, is_leaf=is_leaf, path=f"{path}/{index}")
            for index, item in enumerate(state)
        ]
        return tuple(items) if isinstance(state, tuple) else items
    return function(path, state)


def leaves(
    state: object, *, is_leaf: IsLeaf | None = None, path: str = ""
) -> Iterator[tuple[str, object]]:
    """Yield path and leaf, in the order in which `map_leaves` visits them."""
    if is_leaf is not None and is_leaf(state):
        yield path, state
    elif isinstance(state, Mapping):
        for key, item in state.items():
            yield from leaves(item, is_leaf=is_leaf, path=f"{path}/{key}")
    elif isinstance(state, list | tuple):
        for index, item in enumerate(state):
            yield from leaves(item, is_leaf=is_leaf, path=f"{path}/{index}")
    else:
        yield path, state


def tensors_in(output: object) -> list[Tensor]:
    """Return the tensors in what a model returns: as above, and in dataclasses. Called
    for each forward.
    """
    if isinstance(output, Tensor):
        return [output]
    if is_dataclass(output):
        output = vars(output)
    if isinstance(output, Mapping):
        output = list(output.values())
    if isinstance(output, list | tuple):
        return [tensor for item in output for tensor in tensors_in(item)]
    return []
