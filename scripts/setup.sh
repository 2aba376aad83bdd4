#!/bin/sh
# setup.sh - installs the packages that ndc needs: Debian 12 or 13, Ubuntu
# 24.04. Quick, and without network, when all of them are there. Asks nothing.
set -eu

packages="gcc clang libclang-rt-dev llvm-19-dev libc6-dev make cmake flex bison pkgconf
    libdnnl-dev libopenblas-dev libjansson-dev zlib1g-dev libopenmpi-dev
    openmpi-bin libcmocka-dev python3 bible-kjv"

missing=
for p in $packages; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null || true)
    [ "$state" = installed ] || missing="$missing $p"
done
if [ -z "$missing" ]; then
    echo "setup: everything is installed"
    exit 0
fi

as_root=
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || {
        echo "setup: needs root or sudo to install:$missing" >&2
        exit 1
    }
    as_root=sudo
fi

# Quiet unless it fails.
apt() {
    log=$(mktemp)
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -y -q "$@" \
        >"$log" 2>&1 </dev/null || {
        cat "$log" >&2
        rm -f "$log"
        return 1
    }
    rm -f "$log"
}

echo "setup: installing$missing"
apt update
# shellcheck disable=SC2086   # a list of names
apt install --no-install-recommends $missing
echo "setup: done"
