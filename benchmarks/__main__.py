"""`make bench`: every benchmark of this folder in turn. Some need the public traces
(COADAPT_TRACES).
"""

import subprocess
import sys
from pathlib import Path


def main() -> int:
    """Run each module that has a main part; return 1 if one of them failed."""
    failed = []
    for path in sorted(Path(__file__).parent.glob("[!_]*.py")):
        if '__name__ == "__main__"' in path.read_text(encoding="utf-8"):
            print(f"==> {path.stem}", flush=True)
            if subprocess.run(
                [sys.executable, "-m", f"benchmarks.{path.stem}"], check=False
            ).returncode:
                failed.append(path.stem)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
