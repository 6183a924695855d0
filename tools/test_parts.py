"""Which tests `make quick` and `make test` run, by their markers; `make test-all` runs
all.

`python -m tools.test_parts quick` prints the expression for pytest's `-m`.
"""

import sys

USUAL = "not slow and not papers and not engine"
QUICK = f"{USUAL} and not processes and not train and not long"
PARTS = {"quick": QUICK, "usual": USUAL}

if __name__ == "__main__":
    sys.stdout.write(PARTS[sys.argv[1]] + "\n")
