#!/usr/bin/env bash
# Make, or repair, the virtual environment VENV with Coadapt (editable).
# Usage: tools/setup_venv.sh VENV WHAT [PYTHON]
# WHAT: `dev` (all that tests need, with compiled kernels) or `demo` (what the demo runs).
set -euo pipefail

venv=$1
what=$2
candidates=(${3:+"$3"})
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
    echo "==> $venv has no working pip: installing it"
    "$venv/bin/python" -m ensurepip --upgrade >/dev/null
fi

case $what in
    demo) extras=train,service,report ;;
    dev) extras=dev ;;
    *) echo "error: WHAT: got $what; allowed: demo, dev" >&2; exit 2 ;;
esac
echo "==> Installing Coadapt with [$extras] and its pinned dependencies into $venv"
"$venv/bin/python" -m pip install --disable-pip-version-check -c constraints.txt -e ".[$extras]"
if [ "$what" = dev ]; then
    echo "==> Compiling the numerical kernels (about two minutes of CPU time)"
    "$venv/bin/python" -m tools.compile_kernels
fi
echo "==> $venv is ready"
