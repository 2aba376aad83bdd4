# lib.sh - how a shell test begins, and how it tells what is wrong:
#
#     . "$(dirname "$0")/../lib.sh"
#     "$ndc" check "$NDC_SOURCE/examples/wave.nd" >"$work/out" || fail "wave"
#     [ -s "$work/out" ] && fail "wave: $(cat "$work/out")"
#     [ $failed = 0 ]
#
# $ndc is the compiler, of build/ unless ctest or somebody else tells another
# folder; $work an empty folder that goes away with the test; $failed counts.
set -u
NDC_SOURCE=${NDC_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
NDC_BUILD=${NDC_BUILD:-$NDC_SOURCE/build}
export NDC_SOURCE NDC_BUILD
ndc=$NDC_BUILD/ndc
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
trap 'exit 2' HUP INT TERM
failed=0

fail() {
    failed=$((failed + 1))
    printf 'FAILED: %s\n' "$*"
}
