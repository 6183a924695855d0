#!/usr/bin/env bash
# Install Slurm and munge from Debian: what the tests of the executor `slurm` start daemons of. As root; nothing is
# left running, and the machine's own Slurm, if it has one, stays as it is. Where they cannot be had this says why and
# ends with 75.
set -euo pipefail
PATH="$PATH:/usr/sbin:/sbin"
network_s=180 # for each step that a silent network could keep waiting
lacking() {
    for program in munged slurmctld slurmd srun; do
        command -v "$program" >/dev/null || printf ' %s' "$program"
    done
}
get() { DEBIAN_FRONTEND=noninteractive "$@" </dev/null >&2; }

[ -n "$(lacking)" ] || exit 0
why="as root on Debian: apt-get install slurm-wlm munge"
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    why="apt-get could not get slurm-wlm and munge"
    install=(apt-get -o DPkg::Lock::Timeout=60 install -y -qq --no-install-recommends slurm-wlm munge)
    # What needs the network comes first, and may be broken off: what is installed then is here already.
    get timeout "$network_s" apt-get -qq update || true
    get timeout "$network_s" "${install[@]}" --download-only && get "${install[@]}" --no-download || true
fi
still="$(lacking)"
[ -z "$still" ] && exit 0
echo "Slurm cannot be had; missing:$still; $why" >&2
exit 75
