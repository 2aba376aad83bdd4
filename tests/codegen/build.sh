#!/bin/sh
# Building: the C file lies beside the executable; a C compiler that fails is
# status 3 and leaves no executable; an unwritable place is status 1.
. "$(dirname "$0")/../lib.sh"

expect() {
    want=$1
    shift
    "$@" > "$work/out" 2>&1
    got=$?
    [ $got = "$want" ] || {
        fail "status $got, not $want: $*"
        cat "$work/out"
    }
}

wave=$NDC_SOURCE/examples/wave.nd
mkdir "$work/a b"
expect 0 "$ndc" "$wave" -o "$work/a b/wave"
[ -f "$work/a b/wave.c" ] || expect 0 echo "no C file"
expect 0 "$work/a b/wave" --steps 2
expect 3 env CC=false "$ndc" "$wave" -o "$work/broken"
grep -q "kept in '.*broken.c'" "$work/out" || expect 0 cat "$work/out" missing
expect 3 env NDC_CFLAGS="-O1 -Werror -Dmain=" "$ndc" "$wave" -o "$work/broken"
expect 0 test -f "$work/broken.c"
expect 1 test -f "$work/broken"
expect 3 env CC=no-such-compiler "$ndc" "$wave" -o "$work/broken"
grep -q "internal error: .*kept in '.*broken.c'" "$work/out" ||
    expect 0 echo "not told where the C file is"
expect 1 "$ndc" "$wave" -o "$work/no/such/folder"
mkdir "$work/dash"                       # a name that looks like an option
(cd "$work/dash" && "$ndc" "$wave" -o -kk > "$work/out" 2>&1 &&
    [ -f ./-kk.c ] && ./-kk --steps 1 > "$work/out" 2>&1) ||
    expect 0 cat "$work/out" "-o -kk failed"
[ $failed = 0 ]
