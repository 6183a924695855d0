#!/usr/bin/env bash
# A container of the test kubelet: ROOT HOSTNAME WORKDIR READ_ONLY SOURCE:TARGET:MODE... -- COMMAND...
# As root, in a mount, a process and a host name space of its own (unshare --mount --pid --uts --fork): the machine's
# own folders, which nobody may write, are the image; the volumes are bound into it; then the command as user 1000,
# who has no rights at all, as the first process. Users outside are not those inside: the user 1000 is who started this.
set -euo pipefail
root=$1 name=$2 workdir=$3 read_only=$4
shift 4
mount --make-rprivate /
mount -t tmpfs -o mode=755 none "$root"
for each in /*; do
    case $each in
        /proc | /tmp | /home | /var | /run | /etc | /state | /workspace | /coadapt | /lost+found) ;;
        *) if [ -L "$each" ]; then
            cp -P "$each" "$root/"
        elif [ -d "$each" ]; then
            mkdir "$root$each"
            mount --rbind "$each" "$root$each"
            [ "$each" = /dev ] || mount -o remount,bind,ro "$root$each"
        fi ;;
    esac
done
mkdir -p "$root"/{proc,tmp,home/coadapt,run,etc,workspace}
mkdir -m 755 "$root/var"
ln -s ../run "$root/var/run"
cp -a /etc/{group,nsswitch.conf,ssl,ld.so.cache} "$root/etc/"
echo "coadapt:x:1000:1000::/home/coadapt:/bin/sh" > "$root/etc/passwd"
touch "$root/etc/hosts"
if [ "$read_only" = no ]; then
    mount -t tmpfs -o mode=1777 none "$root/tmp"
    mount -t tmpfs -o mode=755 none "$root/home/coadapt"
fi
while [ "$1" != -- ]; do
    IFS=: read -r source target mode <<< "$1"
    [ -e "$root$target" ] || mkdir -p "$root$target"
    mount --bind "$source" "$root$target"
    [ "$mode" = rw ] || mount -o remount,bind,ro "$root$target"
    shift
done
shift
mount -t proc none "$root/proc"
hostname "$name"
cd "$root"
mkdir .before
pivot_root . .before  # a process that is chrooted may make no user name space
umount -l .before
rmdir .before
mount -o remount,ro /
exec unshare --user --map-user=1000 --map-group=1000 \
    sh -c 'cd "$1" && shift && exec "$@"' sh "$workdir" "$@"
