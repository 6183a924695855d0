"""A digest of the code that produces a run's result. If the policy or the simulator is
edited, stored results are not used.
"""

# The digest of Coadapt covers every file of the layers that a run uses. The digest of a
# policy from elsewhere covers the file of its class and the files that it imports,
# directly or not, if they are the user's own. These are files of the same package, and
# files that belong neither to Python's library nor to an installed package.

import ast
import hashlib
import importlib.util
import site
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import coadapt
from coadapt.policies import policy_module

# The folders of coadapt that a run's result depends on, and the parts of `sim` on which
# it does not.
_FOLDERS = ("model", "goodput", "core", "policies", "runtime", "sim")
_NO_PART_OF_A_RUN = ("sim/comparison", "sim/report", "sim/faults")


def code_digest(policy: str) -> str:
    """Return a digest of the version and source of Coadapt, and of `policy` where it
    comes from elsewhere.

    Raises InputError for an unknown policy.
    """
    module = policy_module(policy)
    found = hashlib.sha256(_own_digest().encode())
    if module.partition(".")[0] != coadapt.__name__:
        for name, path in sorted(_files_of(module).items()):
            found.update(
                f"{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest()
            )
    return found.hexdigest()


@cache
def _own_digest() -> str:
    root = Path(coadapt.__file__).parent
    found = hashlib.sha256(coadapt.__version__.encode())
    for folder in _FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            place = path.relative_to(root).as_posix()
            if not place.startswith(_NO_PART_OF_A_RUN):
                found.update(f"{place}\0".encode() + path.read_bytes())
    return found.hexdigest()


def _files_of(module: str) -> dict[str, Path]:
    """Return the source files of `module` and of all that it imports from files of the
    user's own, by name.
    """
    package = module.partition(".")[0]
    found: dict[str, Path] = {}
    due = [module]
    while due:
        name = due.pop()
        path = _source(name)
        if name in found or path is None:
            continue
        if name.partition(".")[0] != package and _is_installed(path):
            continue
        found[name] = path
        due += _imported(name, path)
    return found


def _source(module: str) -> Path | None:
    loaded = sys.modules.get(module)
    place = getattr(loaded, "__file__", None)
    if place is None:
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError, AttributeError):
            return None
        place = None if spec is None else spec.origin
    path = None if place is None else Path(place)
    return (
        path if path is not None and path.suffix == ".py" and path.is_file() else None
    )


@cache
def _installed_below() -> tuple[Path, ...]:
    paths = {*site.getsitepackages(), site.getusersitepackages()}
    paths |= {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib")}
    paths.add(str(Path(coadapt.__file__).parent))
    return tuple(Path(path).resolve() for path in paths)


def _is_installed(path: Path) -> bool:
    return any(path.resolve().is_relative_to(each) for each in _installed_below())


def _imported(module: str, path: Path) -> Iterator[str]:
    """Yield the names of the modules that the file imports, wherever in it."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    is_package = path.name == "__init__.py"
    parents = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            above = parents[: len(parents) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            if base:
                yield base
            for alias in node.names:
                yield f"{base}.{alias.name}" if base else alias.name
