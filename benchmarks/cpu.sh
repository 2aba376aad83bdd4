#!/bin/sh
# cpu.sh [options] - ndc against PyTorch on the CPU: builds what it needs, then
# measures (benchmarks/cpu.py; --help lists the options, README.md explains).
#
#   benchmarks/cpu.sh --json out.json        everything, below ten minutes
#   benchmarks/cpu.sh --quick                a look, a minute
#   benchmarks/cpu.sh --prepare              builds and installs alone
#
# PYTHON  a Python that has PyTorch; without it one is installed in
#         $BUILD/torch, and where that cannot be done ndc runs alone
# BUILD   the build folder (build)
# DEBIAN  1: Debian's PyTorch takes part as well, unpacked in $BUILD/debian
set -eu
cd "$(dirname "$0")/.."
build=${BUILD:-build}

cmake -S . -B "$build" >/dev/null
log=$build/build.log
cmake --build "$build" -j "${JOBS:-2}" --target ndc >"$log" 2>&1 || {
    tail -20 "$log" >&2
    exit 1
}

python=${PYTHON:-}
if [ -z "$python" ]; then
    if benchmarks/torch.sh wheel "$build/torch"; then
        python=$build/torch/bin/python
    else
        echo "cpu.sh: no PyTorch can be installed here" >&2
    fi
fi
debian=
if [ -n "${DEBIAN:-}" ]; then
    if benchmarks/torch.sh debian "$build/debian"; then
        debian=$build/debian
    else
        echo "cpu.sh: Debian's PyTorch cannot be had here" >&2
    fi
fi

[ "${1:-}" != --prepare ] || exit 0
exec python3 benchmarks/cpu.py --build "$build" ${python:+--python "$python"} \
    ${debian:+--debian "$debian"} "$@"
