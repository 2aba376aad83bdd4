#!/bin/sh
# Compiles every kind of generated model (model.sh) to C: seconds of CPU, peak
# memory and lines of C, for one rank and for eight.
#
#   benchmarks/long.sh [BUILD_DIR] [LINES]
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
ndc=${1:-$here/build}/ndc
lines=${2:-2000}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

for kind in $("$here/benchmarks/model.sh" list); do
    for plan in one many; do
        "$here/benchmarks/model.sh" "$kind" "$lines" $plan > "$tmp/m.nd"
        /usr/bin/time -o "$tmp/time" -f '%U %M' \
            "$ndc" "$tmp/m.nd" --emit=c -o "$tmp/m.c" 2> "$tmp/err"
        read -r seconds kib < "$tmp/time"
        printf '%-12s %-5s %6.2f s %5d MB %8d lines\n' "$kind" $plan \
            "$seconds" $((kib / 1024)) "$(wc -l < "$tmp/m.c")"
    done
done
