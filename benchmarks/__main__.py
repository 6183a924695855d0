"""`make bench`: every benchmark in turn, folder by folder.

`make bench ARGS=castor` runs one folder. Some need the public traces (COADAPT_TRACES).
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent


def modules(folders: Sequence[str] = ()) -> list[str]:
    """Return the benchmarks in these folders, of all where none is named."""
    return [
        ".".join(("benchmarks", *path.relative_to(ROOT).with_suffix("").parts))
        for path in sorted(ROOT.glob("*/[!_]*.py"))
        if not folders or path.parent.name in folders
        if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
    ]


def main() -> int:
    """Run them; return 1 if one failed."""
    failed = []
    for name in modules(sys.argv[1:]):
        print(f"==> {name}", flush=True)
        if subprocess.run([sys.executable, "-m", name], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
