#!/bin/sh
# Time from nd text to C text, for the example, for 96 layers of it and for Llama
# 405B on 16,384 ranks: median of 20 runs each, interleaved. The C files of the
# first two may differ in constants alone.
#
#   benchmarks/compile.sh [BUILD_DIR]
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
ndc=${1:-$here/build}/ndc
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

now() { date +%s%N; }
time_one() { # NAME FILE OPTIONS...
    out=$1 file=$2; shift 2
    a=$(now); "$ndc" "$here/$file" --emit=c "$@" > "$tmp/$out.c"; b=$(now)
    echo $(( (b - a) / 1000 )) >> "$tmp/$out.us"
}
i=0
while [ $i -lt 20 ]; do
    time_one six examples/gpt.nd
    time_one many examples/gpt.nd --set layers=96
    time_one 405b benchmarks/llama405b.nd
    i=$((i + 1))
done
for f in six many 405b; do
    sort -n "$tmp/$f.us" | awk -v f=$f '{v[NR]=$1} END {printf "%-5s median %.1f ms, min %.1f, max %.1f\n", f, (v[10]+v[11])/2000, v[1]/1000, v[NR]/1000}'
done
for f in six many; do
    sed 's/[0-9][0-9.e+]*/N/g' "$tmp/$f.c" > "$tmp/$f.shape"
done
if cmp -s "$tmp/six.shape" "$tmp/many.shape"; then
    echo "same C but for constants"
else
    echo "the C differs in more than constants:"
    diff "$tmp/six.shape" "$tmp/many.shape" | head -20
fi
