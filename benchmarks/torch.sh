#!/bin/sh
# torch.sh wheel|debian DIR - a PyTorch to compare with, in a folder of its own:
# nothing of the machine changes. Quick where it is there already.
#
#   wheel    a virtual environment with the latest wheel for CPUs
#   debian   the packages python3-torch and libopenblas0-openmp, unpacked
set -eu
kind=$1 dir=$2

has_torch() {
    "$@" -c 'import torch' 2>/dev/null
}

case $kind in
wheel)
    has_torch "$dir/bin/python" && exit 0
    echo "torch.sh: installs PyTorch in $dir" >&2
    python3 -m venv "$dir" >&2
    # The wheels for CPUs alone are smaller; the others do as well.
    "$dir/bin/pip" -q --retries 0 install torch numpy --index-url \
        https://download.pytorch.org/whl/cpu >"$dir/log" 2>&1 ||
        "$dir/bin/pip" -q install torch numpy >"$dir/log" 2>&1 || {
        tail -5 "$dir/log" >&2
        exit 1
    }
    has_torch "$dir/bin/python"
    ;;
debian)
    [ -d "$dir/usr/lib/python3/dist-packages/torch" ] && exit 0
    command -v apt-get >/dev/null && command -v dpkg >/dev/null
    echo "torch.sh: unpacks Debian's PyTorch in $dir" >&2
    mkdir -p "$dir/packages/partial"
    packages=$(realpath "$dir/packages")
    # What is installed is not among what is fetched, nor needs to be.
    apt-get -q -y --no-install-recommends --download-only \
        -o Debug::NoLocking=1 -o Dir::Cache::archives="$packages" install \
        python3-torch libopenblas0-openmp >"$dir/log" 2>&1 || {
        tail -5 "$dir/log" >&2
        exit 1
    }
    for p in "$dir"/packages/*.deb; do
        dpkg -x "$p" "$dir"
    done
    rm -rf "$dir/packages"
    [ -d "$dir/usr/lib/python3/dist-packages/torch" ]
    ;;
*)
    echo "usage: torch.sh wheel|debian DIR" >&2
    exit 2
    ;;
esac
