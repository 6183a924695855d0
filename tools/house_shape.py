"""The shape of the house in figures: lines per function, files per folder, code lines
of the core.

`python -m tools.house_shape` prints them by room; tests/test_tidy.py limits the files
per folder.
"""

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Sequence

from tools.house_rules import Module, package_modules

MAX_FILES_PER_FOLDER = 32

_NO_CODE = frozenset({
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
})  # fmt: skip


def function_lines(modules: Iterable[Module]) -> list[int]:
    """Return the number of lines of each function, in increasing order."""
    return sorted(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def p95(increasing: Sequence[int]) -> int:
    """Return the smallest of the numbers that 95 % of them do not exceed; 0 if there
    are none.
    """
    return increasing[-(-len(increasing) * 95 // 100) - 1] if increasing else 0


def files_per_folder(modules: Iterable[Module]) -> dict[str, int]:
    """Return the number of files of each folder, those that only say what the folder
    holds not counted.
    """
    paths = (module.path for module in modules)
    return dict(
        Counter(
            path.rpartition("/")[0]
            for path in paths
            if not path.endswith("__init__.py")
        )
    )


def code_lines(module: Module) -> int:
    """Return the number of lines that hold code: comments, docstrings and blank lines
    do not count.
    """
    texts = _docstring_lines(module.tree)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(module.source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - texts)


def room(module: Module) -> str:
    """Return the floor that the module is on."""
    return module.path.partition("/")[0]


def _docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                lines.update(
                    range(first.lineno, (first.end_lineno or first.lineno) + 1)
                )
    return lines


def main() -> int:
    """Print a line per room; return 0."""
    modules = package_modules()
    rows = [
        (name, [module for module in modules if room(module) == name])
        for name in _rooms(modules)
    ]
    for name, inside in [*rows, ("all", modules)]:
        lines = function_lines(inside)
        code = sum(code_lines(module) for module in inside)
        sys.stdout.write(
            f"{name:12} files {len(inside):4}  code lines {code:6}  "
            f"lines per function: p50 {lines[len(lines) // 2] if lines else 0:3} p95 "
            f"{p95(lines):3} "
            f"max {lines[-1] if lines else 0:3}\n"
        )
    fullest = max(files_per_folder(modules).items(), key=lambda item: item[1])
    sys.stdout.write(f"fullest folder: {fullest[0]} with {fullest[1]} files\n")
    return 0


def _rooms(modules: Iterable[Module]) -> list[str]:
    return sorted({room(module) for module in modules if "/" in module.path})


if __name__ == "__main__":
    raise SystemExit(main())
