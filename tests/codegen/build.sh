#!/bin/sh
# Building: the C file lies beside the executable; a C compiler that refuses our
# text is status 3 and leaves no executable; one that does not work at all, or
# an unwritable place, is status 1.
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

# said STATUS TEXT VAR=VALUE...: of a C compiler that does not do
said() {
    want=$1 text=$2
    shift 2
    expect "$want" env "$@" "$ndc" "$wave" -o "$work/broken"
    grep -q -e "$text" "$work/out" || {
        fail "no \"$text\": $*"
        cat "$work/out"
    }
    [ -e "$work/broken" ] && fail "there is a program: $*"
    [ "$(find "$work" -name 'broken.*' | wc -l)" = 1 ] || fail "files are left"
}
said 3 "internal error: .*kept in '.*broken.c'" NDC_CFLAGS="-Dndrt_main=3"
said 1 'C compiler `false` does not compile an empty program either' CC=false
said 1 'it was run as: false -march=native ' CC=false
said 1 'fbogus' NDC_CFLAGS=-fbogus
said 1 'does not compile an empty program either' NDC_CFLAGS=-fbogus
said 1 'cannot run the C compiler `no-such-compiler`: No such file' \
    CC=no-such-compiler
said 1 "kept in '.*broken.c'" CC=/no/such/cc
said 1 "C compiler \`[a-z0-9/+.-]*\`" PATH=/no/such
for word in 'CC=false' 'NDC_CFLAGS=-fbogus' 'PATH=/no/such'; do
    env "$word" "$ndc" "$wave" -o "$work/broken" 2>&1 |
        grep -q 'internal error' && fail "$word: an internal error"
done
expect 1 "$ndc" "$wave" -o "$work/no/such/folder"
mkdir "$work/dash"                       # a name that looks like an option
(cd "$work/dash" && "$ndc" "$wave" -o -kk > "$work/out" 2>&1 &&
    [ -f ./-kk.c ] && ./-kk --steps 1 > "$work/out" 2>&1) ||
    expect 0 cat "$work/out" "-o -kk failed"
[ $failed = 0 ]
