#!/bin/sh
# The command line: what does not go together is refused, the user's files are
# never overwritten, and the exit status says whose mistake it was.
set -u
ndc=$NDC_BUILD/ndc
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 2
failed=0

# expect STATUS 'TEXT of stderr' arguments...
expect() {
    want=$1 text=$2
    shift 2
    "$ndc" "$@" >out 2>err
    got=$?
    if [ $got -ne "$want" ] || ! grep -q -F -e "$text" err; then
        failed=$((failed + 1))
        echo "FAILED: ndc $*: status $got, expected $want and \"$text\""
        cat err
    fi
}
ok() {
    "$ndc" "$@" >out 2>err || {
        failed=$((failed + 1))
        echo "FAILED: ndc $*"
        cat err
    }
}
same() {
    cmp -s "$1" "$2" || {
        failed=$((failed + 1))
        echo "FAILED: $1 differs from $2: $3"
    }
}

cat >a.nd <<'ND'
axis batch = 4
model m(x: f32[batch]) {
  w = param [batch] ~ ones
  return mean[batch](x * w)
}
train m { steps = 1 }
plan {
  mesh dp = 2
  shard batch -> dp
}
ND
cp a.nd copy.nd

# Status 1: the input. Status 2: the usage.
expect 1 'cannot read `none.nd`: No such file or directory' none.nd
expect 1 'cannot read `.`: Is a directory' .
expect 1 'cannot read the plan `.`: Is a directory' a.nd --plan .
expect 1 'cannot write `none/x`' a.nd --emit=c -o none/x
expect 1 'cannot write' a.nd -o none/x
expect 1 'it is a folder' a.nd -o .
expect 2 'no form is called `x`' a.nd --emit=x
expect 2 'unknown option `--x`' a.nd --x
expect 2 'a second file: `b.nd`' a.nd b.nd
expect 2 'no value for `-o`' a.nd -o
expect 2 'did you mean `shard`?' a.nd --emit=plan --dump-after=shrd
expect 2 'no pass is called `nope`' a.nd --emit=ir --until=nope
expect 2 '--emit=ast runs no pass' a.nd --emit=ast --dump-after=all
expect 2 '--emit=ir runs no pass' a.nd --emit=ir --dump-after=all
expect 2 '--until goes with --emit=ir only' a.nd --emit=c --until=shard
expect 2 '--rank goes with --emit=comm only' a.nd --emit=plan --rank=0
expect 1 '--rank 2: the ranks of this mesh are 0 to 1' a.nd --emit=comm --rank=2
expect 1 '--rank 0x: the ranks' a.nd --emit=comm --rank=0x
ok a.nd --emit=ir --until=shard --dump-after=shard
ok a.nd --emit=ast --set nothing=3

# Repeated entries.
expect 1 '`batch` is set twice' a.nd --emit=ir --set batch=4 --set batch=8
expect 1 '`dp` is given twice' a.nd --emit=ir --mesh dp=2,dp=4
sed '/^plan/,$d' a.nd >b.nd
expect 1 '`dp` is given twice' b.nd --emit=ir --mesh dp=2,dp=4

# A graph has no train and no plan block.
ok a.nd --emit=ir -o a.ndir
ok a.ndir --emit=spmd
expect 1 'has no train block' a.ndir
expect 2 '--set is for programs' a.ndir --emit=ir --set batch=8
expect 2 '--mesh is for programs' a.ndir --emit=ir --mesh dp=1
expect 2 '--plan is for programs' a.ndir --emit=ir --plan a.nd

# Outputs.
expect 1 '`a.nd` is the source file' a.nd -o a.nd
expect 1 '`./a.nd` is the source file' a.nd --emit=ir -o ./a.nd
ln -s a.nd link
expect 1 'is the source file' a.nd --emit=c -o link
same a.nd copy.nd 'the source was overwritten'
cp a.nd x.c
expect 1 'is the source file' x.c -o x
echo 'int mine;' >p.c
cp p.c mine.c
expect 1 '`p.c` exists and was not written by ndc' a.nd -o p
same p.c mine.c 'a file of the user was overwritten'
rm p.c
ok a.nd -o p
ok a.nd -o p

# A byte order mark, and lines that end as on other systems.
ok a.nd --emit=ir -o plain.ndir
printf '\357\273\277' | cat - copy.nd >a.nd
ok a.nd --emit=ir -o other.ndir
same plain.ndir other.ndir 'byte order mark'
tr '\n' '\r' <copy.nd >a.nd
ok a.nd --emit=ir -o other.ndir
same plain.ndir other.ndir 'lines that end in CR'
sed "s/\$/$(printf '\r')/" copy.nd >a.nd
ok a.nd --emit=ir -o other.ndir
same plain.ndir other.ndir 'lines that end in CR LF'
printf '\357\273\277axis a = ?\r' >a.nd
expect 1 'a.nd:1:10: error: unexpected `?`' a.nd

# Lets that use each other twice are worked out once each.
awk 'BEGIN { print "let a0 = 1"
    for (i = 1; i <= 60; i++) printf "let a%d = a%d + a%d\n", i, i - 1, i - 1
    print "model m() { return a60 * 1.0 }" }' >lets.nd
ok lets.nd --emit=ir
grep -q '1152921504606846976\|1.152921504606847e+18' out || {
    failed=$((failed + 1))
    echo "FAILED: lets.nd"
    cat out
}

# Too many terms: one error, said once.
awk 'BEGIN { printf "let x = 1"; for (i = 0; i < 500; i++) printf "+1"
    print "" }' >terms.nd
expect 1 'nests deeper than 400' terms.nd
[ "$(grep -c error: err)" -eq 1 ] || {
    failed=$((failed + 1))
    echo "FAILED: terms.nd"
    cat err
}

[ $failed -eq 0 ] && echo "ok"
[ $failed -eq 0 ]
