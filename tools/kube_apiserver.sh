#!/usr/bin/env bash
# Build the API server of Kubernetes 1.20 from Debian's source package (it ships none built) into .engines/, and
# install etcd: what the tests of the executor `kubernetes` run against. As root, on Debian; some ten minutes once.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
engines="$PWD/.engines"
install() { command -v "$1" >/dev/null || apt-get install -y --no-install-recommends "${@:2}"; }

install etcd etcd-server
if [ -x "$engines/kube-apiserver" ]; then
    exit 0
fi
install dpkg-source dpkg-dev
install rsync rsync
install make make
# With the reflect2 that Kubernetes 1.20 carries, what Go 1.18 and later build crashes on maps; Debian's does not.
reflect2=/usr/share/gocode/src/github.com/modern-go/reflect2
[ -e "$reflect2" ] || apt-get install -y --no-install-recommends golang-github-modern-go-reflect2-dev
[ -x /usr/lib/go-1.19/bin/go ] || apt-get install -y --no-install-recommends golang-1.19-go

# Source packages are listed for this one use: the machine's own lists stay as they are.
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
mkdir -p "$engines" "$work/lists/partial" "$work/parts"
for list in /etc/apt/sources.list.d/*.sources; do
    [ -e "$list" ] && sed 's/^Types: deb$/Types: deb-src/' "$list" > "$work/parts/$(basename "$list")"
done
for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [ -e "$list" ] && sed -n 's/^deb /deb-src /p' "$list" > "$work/parts/$(basename "$list" .list).list"
done
sources=(-o "Dir::Etc::sourcelist=-" -o "Dir::Etc::sourceparts=$work/parts" -o "Dir::State::lists=$work/lists")
apt-get "${sources[@]}" update
(cd "$work" && apt-get "${sources[@]}" source --download-only kubernetes && dpkg-source -x ./*.dsc source)

cd "$work/source"
rm vendor/github.com/modern-go/reflect2/*.go vendor/github.com/modern-go/reflect2/*.s
cp "$reflect2"/*.go "$reflect2"/*.s vendor/github.com/modern-go/reflect2/
export GOPATH="$PWD/.go" HOME="$work/home" CGO_ENABLED=0 GOFLAGS= PATH="/usr/lib/go-1.19/bin:$PATH"
mkdir -p .go/src/k8s.io "$HOME"
ln -sfn ../../.. .go/src/k8s.io/kubernetes
nice make WHAT=cmd/kube-apiserver
mv _output/bin/kube-apiserver "$engines/kube-apiserver"
