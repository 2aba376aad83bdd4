#!/bin/sh
# test.sh [--all] - sets up, builds and runs every test. With --all, or where
# CI=true: also with the address and undefined-behaviour sanitizers, and
# compiled by clang (that build has OpenBLAS instead of oneDNN, and runs only the
# runtime's tests and the library's fixtures), and 30 seconds of fuzzing for each
# target of tests/fuzz.
# Warnings are errors in all builds.
#
# JOBS says how many processes to use (2).
set -eu
cd "$(dirname "$0")/.."

jobs=${JOBS:-2}
all=no
[ "${CI:-}" = true ] || [ "${1:-}" = --all ] && all=yes

scripts/setup.sh

# build FOLDER CMAKE-ARGUMENTS... builds $target, or everything.
target=all
build() {
    dir=$1
    shift
    echo "== build in $dir"
    cmake -S . -B "$dir" -DNDC_WERROR=ON "$@" >/dev/null
    cmake --build "$dir" -j "$jobs" --target $target >"$dir/build.log" 2>&1 || {
        grep -E -A 12 'error|warning|Error' "$dir/build.log" | head -60
        exit 1
    }
}

run_tests() {
    dir=$1
    shift
    echo "== tests in $dir"
    ctest --test-dir "$dir" -j "$jobs" --output-on-failure \
        --no-tests=error "$@"
}

build build
if [ $all = yes ]; then
    build build/clang -DCMAKE_C_COMPILER=clang -DNDC_DNNL=OFF
    build build/asan -DNDC_SANITIZE=address,undefined
    target=fuzzers
    build build/fuzz -DCMAKE_C_COMPILER=clang -DNDC_FUZZ=ON -DNDC_DNNL=OFF \
        -DNDC_MPI=OFF -DNDC_SANITIZE=address,undefined
    target=all
    run_tests build/clang -L 'runtime|fixtures'
    run_tests build/fuzz -L fuzz
    run_tests build/asan
fi
run_tests build
