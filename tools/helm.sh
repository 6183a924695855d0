#!/usr/bin/env bash
# Install Helm for the tests of the chart, once per user, into the user's cache: Helm's own Go library, which a package
# of PyPI carries built. Nobody on PyPI or Debian ships the program `helm`, and a build of it from source needs a proxy
# of Go modules. Where the package cannot be had this says why and ends with 75. 85 MB.
set -euo pipefail
version=0.2.2 # of helm-python-sdk; in it is Helm 4.2.3
cache="${XDG_CACHE_HOME:-$HOME/.cache}/coadapt/engines"
python="${PYTHON:-python3}"
network_s=180 # a silent network could keep it waiting

helm="$cache/helm-$version"
[ -d "$helm" ] && exit 0
mkdir -p "$cache"
new="$(mktemp -d "$cache/helm-new.XXXXXX")"
trap 'rm -rf "$new"' EXIT
# A wheel only: its source would need a Go compiler.
install=("$python" -m pip install --quiet --no-deps --only-binary :all: --target "$new" "helm-python-sdk==$version")
if ! said="$(timeout "$network_s" "${install[@]}" 2>&1)"; then
    echo "Helm cannot be had: pip could not get helm-python-sdk $version: $(tail -n1 <<<"$said")" >&2
    exit 75
fi
# The wheel has the library three times, one name for each part of its version.
for copy in "$new"/helm_python/lib/libhelm_c.so.*; do
    ln -sf libhelm_c.so "$copy"
done
chmod 755 "$new"
mv -T "$new" "$helm"
