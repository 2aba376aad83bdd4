# small.sh - products within tiles: right in every form, built as ndc builds a
# program, for several processors; and the same bits by gcc and clang, and in
# f32 on all processors that round a product and a sum once.
. "$(dirname "$0")/../lib.sh"

# has FLAGS...: this processor has all of them
has() {
    for f in "$@"; do
        grep -m 1 '^flags' /proc/cpuinfo 2>/dev/null | grep -qw "$f" || return 1
    done
}

# bits COMPILER CPU
bits() {
    $1 -std=c11 -O3 -march="$2" -mprefer-vector-width=512 -fopenmp-simd \
        -fwrapv -fno-math-errno -fno-trapping-math -ffp-contract=off \
        -I"$NDC_SOURCE/runtime" "$NDC_SOURCE/tests/runtime/small.c" \
        -o "$work/small" -lm >"$work/out" 2>&1 &&
        "$work/small" >"$work/out" || {
        fail "$1, $2" >&2
        head -5 "$work/out" >&2
        return 1
    }
    cat "$work/out"
}

cc=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$NDC_BUILD/CMakeCache.txt")
[ "$(uname -m)" = x86_64 ] || { bits "$cc" native; exit; }
native=$(bits "$cc" native) || failed=1
for other in gcc clang; do
    if command -v "$other" >/dev/null && [ "$(command -v $other)" != "$cc" ]; then
        its=$(bits "$other" native) || failed=1
        [ "$its" = "$native" ] || fail "$other has other bits"
    fi
done
if has avx2 fma bmi2; then
    v3=$(bits "$cc" x86-64-v3) || failed=1
    [ "${v3% *}" = "${native% *}" ] || fail "x86-64-v3 has other bits"
fi
if has sse4_2; then
    bits "$cc" x86-64-v2 >/dev/null || failed=1
fi
[ $failed = 0 ]
