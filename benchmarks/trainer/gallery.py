"""Scripts in the style of public examples, plain and converted by the documented diff:
what that keeps.

`python -m benchmarks.trainer.gallery`: for each pair in examples/gallery, the lines
that the diff adds and removes, how far the converted script alone ends from the plain
one, and what `coadapt check` says of it. Results go to benchmarks/results/gallery.json,
where those of scripts that were not named stay.
"""

import argparse
import difflib
import json
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import torch

from benchmarks.stored import load_results, store_results
from coadapt.train.check import __main__ as check

GALLERY = Path(__file__).parents[2] / "examples" / "gallery"
RESULTS = Path(__file__).parents[1] / "results" / "gallery.json"
TIMEOUT_S = 600


def names() -> list[str]:
    """Return the names of the pairs."""
    return sorted(
        path.name.removesuffix("_plain.py") for path in GALLERY.glob("*_plain.py")
    )


def lines_changed(name: str) -> tuple[int, int]:
    """Return how many lines the diff adds and removes."""
    plain, converted = (
        (GALLERY / f"{name}{ending}.py").read_text().splitlines()
        for ending in ("_plain", "")
    )
    diff = [line for line in difflib.ndiff(plain, converted) if line[2:].strip()]
    return sum(line.startswith("+ ") for line in diff), sum(
        line.startswith("- ") for line in diff
    )


def distance_alone(name: str) -> float:
    """Return the relative distance of what the plain and the converted script save,
    each alone.
    """
    with tempfile.TemporaryDirectory() as folder:
        states = []
        for script in (f"{name}_plain.py", f"{name}.py"):
            saved = Path(folder) / f"{script}.pt"
            subprocess.run(
                [sys.executable, str(GALLERY / script), str(saved)],
                check=True,
                timeout=TIMEOUT_S,
            )
            states.append(torch.load(saved, weights_only=True))
    plain, converted = states
    assert plain.keys() == converted.keys()
    gap = sum(
        float((plain[key].double() - converted[key].double()).square().sum())
        for key in plain
    )
    return float(
        (gap / sum(float(value.double().square().sum()) for value in plain.values()))
        ** 0.5
    )


def checked(name: str, *options: str) -> dict[str, object]:
    """Return what `coadapt check` says of the converted script."""
    printed = StringIO()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(printed):
        script = [str(GALLERY / f"{name}.py"), str(Path(folder) / "saved.pt")]
        check.main(["--json", "--timeout", str(TIMEOUT_S), *options, *script])
    outcome: dict[str, object] = json.loads(printed.getvalue())
    return outcome


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as Markdown."""
    lines = [
        "| script | lines + / - | alone against plain | under changes | |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        alone = row["alone_against_plain"]
        assert isinstance(alone, float)
        changes = row["changes"]
        assert isinstance(changes, list)
        lines.append(
            f"| {row['script']} | {row['lines']} | "
            f"{'bit for bit' if not alone else f'{alone:.1e}'} "
            f"| {'the same training' if row['check'] == 0 else 'DIFFERENT'}, "
            f"{len(changes)} changes "
            f"| {str(row['parameters']).partition(';')[0]} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=names())
    parser.add_argument("--no-store", action="store_true")
    parser.add_argument(
        "--table", action="store_true", help="print the stored results as Markdown"
    )
    options = parser.parse_args()
    if options.table:
        print(table(load_results(RESULTS)["scripts"]))
        return
    rows = {row["script"]: row for row in load_results(RESULTS)["scripts"]}
    for name in options.names:
        added, removed = lines_changed(name)
        outcome = checked(name, "--steps", "60", "--changes", "3")
        findings = outcome["findings"]
        assert isinstance(findings, list)
        text = {finding["what"]: finding["text"] for finding in findings}
        row = {
            "script": name,
            "lines": f"{added}/{removed}",
            "alone_against_plain": distance_alone(name),
            "check": outcome["code"],
            "changes": outcome["changes"],
            "parameters": text.get("parameters", outcome["problem"]),
        }
        print(json.dumps(row), flush=True)
        if not options.no_store:
            rows[name] = row
            ordered = [rows[known] for known in sorted(rows)]
            store_results(RESULTS, {"scripts": ordered})


if __name__ == "__main__":
    main()
