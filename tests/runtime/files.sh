# files.sh - files that cannot be written, or not read to an end: found before
# the first step where that can be known, never ignored, never waited for. Runs
# the mini program of test_program.c.
prog=$NDC_BUILD/tests/runtime_test_program
[ -x "$prog" ] || exit 77
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
bad=0

fail() {
    echo "FAIL: $*"
    bad=1
}

# refused STEPS WORD OPTIONS...: status 1, one message with that word, after
# that many steps
refused() {
    steps=$1 word=$2
    shift 2
    timeout 30 "$prog" run 1 2 1 1 0 "$@" >"$dir/out" 2>"$dir/err"
    got=$?
    [ "$got" = 1 ] || fail "status $got, not 1: $*"
    grep -q -e "$word" "$dir/err" || fail "no \"$word\" from $*"
    [ "$(grep -c 'error:' "$dir/err")" = 1 ] || fail "not one line: $*"
    [ "$(grep -c '^step ' "$dir/out")" = "$steps" ] || fail "steps of $*"
}

mkfifo "$dir/fifo"
mkdir "$dir/folder"
refused 0 'no regular file' --save /dev/null
[ -c /dev/null ] || fail "/dev/null is no device any more"
refused 0 'no regular file' --save "$dir/fifo"
refused 0 folder --save "$dir/folder"
refused 0 '/nowhere/w' --save /nowhere/w
refused 0 '/nowhere/w' --comm /nowhere/w
mkfifo "$dir/w.tmp"
refused 0 'no regular file' --save "$dir/w"
rm "$dir/w.tmp"
refused 0 'no regular file' --load "$dir/fifo"
mv "$dir/fifo" "$dir/fifo.safetensors"
refused 0 'no regular file' --data "$dir/fifo.safetensors"
cp "$prog" "$dir/x.safetensors"
refused 0 'safetensors' --load "$dir/x.safetensors"

# The weights are saved all the same.
if [ -c /dev/full ]; then
    refused 4 'cannot write the log' --log /dev/full --save "$dir/w"
    [ -s "$dir/w" ] || fail "no weights beside a failed log"
    for option in --seed=1 --help --version; do
        "$prog" run 1 2 1 1 0 "$option" >/dev/full 2>"$dir/err"
        got=$?
        [ "$got" = 1 ] || fail "status $got with a full stdout: $option"
        grep -q 'standard output' "$dir/err" || fail "not told: $option"
    done
fi

# An old file stays when the run fails, and is replaced when it does not.
echo old >"$dir/w"
"$prog" run 1 2 1 1 0 --save "$dir/w" --lr 1e30 >"$dir/out" 2>&1 &&
    fail "1e30 is a good learning rate"
[ "$(cat "$dir/w")" = old ] || fail "a failed run took the old file"
"$prog" run 1 2 1 1 0 --save "$dir/w" >"$dir/out" 2>&1 || fail "good run"
[ "$(head -c 3 "$dir/w")" != old ] || fail "the old file is still there"
[ -e "$dir/w.tmp" ] && fail "w.tmp is left"
exit $bad
