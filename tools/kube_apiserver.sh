#!/usr/bin/env bash
# Build the API server of Kubernetes 1.20 from Debian's source package, and install etcd: what the tests of the
# executor `kubernetes` run against. As root, on Debian; elsewhere, or where a package cannot be had, this says so and
# ends with 75. Once per user: the server (60 MB) is kept in the user's cache, for all clones. Two and a half minutes
# of CPU, 1 GB of memory; a build that broke off is gone on with (COADAPT_KUBE_BUILD: where).
#
# Nobody ships it built: no package of Debian, PyPI or npm has a kube-apiserver. Of Kubernetes' own build only the
# two steps that it needs are done here: its generated files are in the source but for the OpenAPI definitions. Its
# tag `providerless` leaves out what speaks to the clouds' own APIs, which is a third of all.
set -euo pipefail
version=1.20.2
cache="${XDG_CACHE_HOME:-$HOME/.cache}/coadapt/engines"
server="$cache/kube-apiserver-$version"
work="${COADAPT_KUBE_BUILD:-$cache/kubernetes-build}"
network_s=180 # for each step that a silent network could keep waiting
updated=""
cannot() {
    echo "Kubernetes' API server and etcd cannot be had: $1" >&2
    exit 75
}
get() { # the machine's lists may be none, or old ones
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || cannot "as root on Debian: apt-get install $*"
    [ -n "$updated" ] || timeout "$network_s" apt-get -qq update || true
    updated=1
    local install=(apt-get -o DPkg::Lock::Timeout=60 install -y -qq --no-install-recommends "$@")
    timeout "$network_s" "${install[@]}" --download-only || cannot "apt-get could not get $*"
    DEBIAN_FRONTEND=noninteractive "${install[@]}" --no-download
}
install() { command -v "$1" >/dev/null || get "${@:2}"; }

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9 # whoever else is at it, from another clone perhaps
install etcd etcd-server
if [ -x "$server" ]; then
    exit 0
fi
install dpkg-source dpkg-dev
# With the reflect2 that Kubernetes 1.20 carries, what Go 1.18 and later build crashes on maps; Debian's does not.
reflect2=/usr/share/gocode/src/github.com/modern-go/reflect2
[ -e "$reflect2" ] || get golang-github-modern-go-reflect2-dev
[ -x /usr/lib/go-1.19/bin/go ] || get golang-1.19-go

root=k8s.io/kubernetes
source="$work/go/src/$root"
if [ ! -e "$work/unpacked" ]; then
    # Source packages are listed for this one use: the machine's own lists stay as they are.
    rm -rf "$source"
    mkdir -p "$work/lists/partial" "$work/parts" "$(dirname "$source")"
    for list in /etc/apt/sources.list.d/*.sources; do
        [ -e "$list" ] && sed 's/^Types: deb$/Types: deb-src/' "$list" > "$work/parts/$(basename "$list")"
    done
    for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        [ -e "$list" ] && sed -n 's/^deb /deb-src /p' "$list" > "$work/parts/$(basename "$list" .list).list"
    done
    sources=(-o "Dir::Etc::sourcelist=-" -o "Dir::Etc::sourceparts=$work/parts" -o "Dir::State::lists=$work/lists")
    from_debian=(timeout "$network_s" apt-get "${sources[@]}" -o APT::Sandbox::User=root)
    "${from_debian[@]}" update || true
    (cd "$work" && "${from_debian[@]}" source --download-only kubernetes) ||
        cannot "apt-get could not get the source package kubernetes"
    dpkg-source -x "$work"/kubernetes_*.dsc "$source"
    rm "$source"/vendor/github.com/modern-go/reflect2/*.{go,s}
    cp "$reflect2"/*.{go,s} "$source/vendor/github.com/modern-go/reflect2/"
    touch "$work/unpacked"
fi

cd "$source"
export GOPATH="$work/go" GOCACHE="$work/go-build" GO111MODULE=off CGO_ENABLED=0 GOFLAGS=
export GOGC=off # of the compilers, which end soon: a third of their time
export PATH="/usr/lib/go-1.19/bin:$PATH"
if [ ! -e "$work/generated" ]; then
    go build -o "$work/openapi-gen" "$root/vendor/k8s.io/kube-openapi/cmd/openapi-gen"
    skipped=(-path vendor/k8s.io/code-generator -o -path vendor/k8s.io/sample-apiserver)
    find -L pkg vendor/k8s.io "(" "${skipped[@]}" ")" -prune -o -name "*.go" -print > "$work/files"
    tagged="$(xargs grep -l '+k8s:openapi-gen=' < "$work/files" | xargs -n1 dirname | LC_ALL=C sort -u || true)"
    "$work/openapi-gen" --logtostderr -i "$(printf "$root/%s," $tagged | sed 's/,$//')" \
        -p "$root/pkg/generated/openapi" -O zz_generated.openapi -r "$work/violations" \
        -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt
    diff "$work/violations" api/api-rules/violation_exceptions.list  # as Kubernetes' own build checks it
    touch "$work/generated"
fi
set_version="-X $root/vendor/k8s.io/component-base/version"
go build -tags providerless -o "$work/kube-apiserver" \
    -ldflags "-s -w $set_version.gitVersion=v$version $set_version.gitMajor=1 $set_version.gitMinor=20" \
    "$root/cmd/kube-apiserver"
mv "$work/kube-apiserver" "$server"
rm -rf "$work"
