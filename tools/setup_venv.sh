#!/usr/bin/env bash
# Make, or repair, the virtual environment VENV with Coadapt (editable) and all that its tests and demo need.
# Usage: tools/setup_venv.sh VENV [PYTHON]
set -euo pipefail

venv=$1
candidates=(${2:+"$2"})
[ ${#candidates[@]} -gt 0 ] || candidates=(python3.11 python3 python3.12 python3.13)

recent_enough() { "$1" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

if ! recent_enough "$venv/bin/python"; then
    python=""
    for candidate in "${candidates[@]}"; do
        if recent_enough "$candidate"; then python=$candidate; break; fi
    done
    if [ -z "$python" ]; then
        echo "error: Python >= 3.11 with its venv module is needed; tried: ${candidates[*]}." \
            "Name one: make PYTHON=/path/to/python3.11" >&2
        exit 2
    fi
    echo "==> Making $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv"
fi

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    echo "==> $venv has no working pip, making it anew"
    "$venv/bin/python" -m ensurepip --upgrade >/dev/null
fi

echo "==> Installing Coadapt and its pinned dependencies into $venv (the first time: a minute or more, about 2 GB)"
"$venv/bin/python" -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
echo "==> Compiling the numerical kernels (half a minute)"
"$venv/bin/python" -m tools.compile_kernels
echo "==> $venv is ready"
