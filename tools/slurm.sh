#!/usr/bin/env bash
# Install Slurm and munge from Debian: what the tests of the executor `slurm` start daemons of. As root; nothing is
# left running, and the machine's own Slurm, if it has one, stays as it is.
set -euo pipefail
PATH="$PATH:/usr/sbin:/sbin"
missing=""
for program in munged slurmctld slurmd srun; do
    command -v "$program" >/dev/null || missing="$missing $program"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "missing:$missing; as root on Debian: apt-get install slurm-wlm munge" >&2
    exit 0 # the tests skip, and say so
fi
apt-get update
DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends slurm-wlm munge
