# files.sh - files that cannot be written, or not read to an end: found before
# the first step where that can be known, never ignored, never waited for. Runs
# the mini program of test_program.c.
. "$(dirname "$0")/../lib.sh"
prog=$NDC_BUILD/tests/runtime_test_program
[ -x "$prog" ] || exit 77

# refused STEPS WORD OPTIONS...: status 1, one message with that word, after
# that many steps
refused() {
    steps=$1 word=$2
    shift 2
    timeout 30 "$prog" run 1 2 1 1 0 "$@" >"$work/out" 2>"$work/err"
    got=$?
    [ "$got" = 1 ] || fail "status $got, not 1: $*"
    grep -q -e "$word" "$work/err" || fail "no \"$word\" from $*"
    [ "$(grep -c 'error:' "$work/err")" = 1 ] || fail "not one line: $*"
    [ "$(grep -c '^step ' "$work/out")" = "$steps" ] || fail "steps of $*"
}

mkfifo "$work/fifo"
mkdir "$work/folder"
refused 0 'no regular file' --save /dev/null
[ -c /dev/null ] || fail "/dev/null is no device any more"
refused 0 'no regular file' --save "$work/fifo"
refused 0 folder --save "$work/folder"
refused 0 '/nowhere/w' --save /nowhere/w
refused 0 '/nowhere/w' --comm /nowhere/w
mkfifo "$work/w.tmp"
refused 0 'no regular file' --save "$work/w"
rm "$work/w.tmp"
refused 0 'no regular file' --load "$work/fifo"
mv "$work/fifo" "$work/fifo.safetensors"
refused 0 'no regular file' --data "$work/fifo.safetensors"
cp "$prog" "$work/x.safetensors"
refused 0 'safetensors' --load "$work/x.safetensors"

# The weights are saved all the same.
if [ -c /dev/full ]; then
    refused 4 'cannot write the log' --log /dev/full --save "$work/w"
    [ -s "$work/w" ] || fail "no weights beside a failed log"
    for option in --seed=1 --help --version; do
        "$prog" run 1 2 1 1 0 "$option" >/dev/full 2>"$work/err"
        got=$?
        [ "$got" = 1 ] || fail "status $got with a full stdout: $option"
        grep -q 'standard output' "$work/err" || fail "not told: $option"
    done
fi

# An old file stays when the run fails, and is replaced when it does not.
echo old >"$work/w"
"$prog" run 1 2 1 1 0 --save "$work/w" --lr 1e30 >"$work/out" 2>&1 &&
    fail "1e30 is a good learning rate"
[ "$(cat "$work/w")" = old ] || fail "a failed run took the old file"
"$prog" run 1 2 1 1 0 --save "$work/w" >"$work/out" 2>&1 || fail "good run"
[ "$(head -c 3 "$work/w")" != old ] || fail "the old file is still there"
[ -e "$work/w.tmp" ] && fail "w.tmp is left"
[ $failed = 0 ]
