#!/bin/sh
# ndc check: quiet and 0 where all is well, errors and warnings else, and
# nothing is written; ndc --help and what is wrong usage.
. "$(dirname "$0")/../lib.sh"
cd "$work" || exit 2
# expect STATUS 'TEXT of stderr' arguments...
expect() {
    want=$1 text=$2
    shift 2
    "$ndc" "$@" >out 2>err
    got=$?
    if [ $got -ne "$want" ] || ! grep -q -F -e "$text" err; then
        fail "ndc $*: status $got, expected $want and \"$text\""
        cat err
    fi
}
files() {
    ls | grep -v -x -e before -e after -e err -e out
}
quiet() {
    "$ndc" "$@" >out 2>err
    got=$?
    if [ $got -ne 0 ] || [ -s out ] || [ -s err ]; then
        fail "ndc $*: status $got, expected 0 and no output"
        cat out err
    fi
}

cat >a.nd <<'ND'
axis batch = 6
axis d = 3
model m(x: f32[batch, d]) {
  w = param [d] ~ ones
  return mean[batch, d](x * w)
}
train m { steps = 1 }
plan {
  mesh dp = 2
  shard batch -> dp
}
ND
awk '/return/ { print "  unused = param [d] ~ ones" } { print }' a.nd >warns.nd
sed 's/steps = 1/stepz = 1/' a.nd >train.nd
sed 's/batch -> dp/bach -> dp/' a.nd >plan.nd
sed 's/x \* w/x * v/' a.nd >model.nd
# Only a pass can tell that microbatches would change the result.
sed 's/return \(.*\)/return \1 * \1/' a.nd |
    awk '/mesh/ { print "  microbatches 3" } { print }' >pass.nd
sed '/^model/,$d' a.nd >lib.nd
echo 'fn f(x) { return x }' >>lib.nd
sed 's/x }/x/' lib.nd >badlib.nd
sed 's/dp = 2/dp = 3/' a.nd >other.nd
"$ndc" a.nd --emit=ir -o a.ndir
files >before

quiet check a.nd
quiet check a.nd other.nd lib.nd a.ndir
quiet check --set batch=9 --mesh dp=3 a.nd
quiet check a.nd --plan=other.nd
expect 1 'unknown axis in --set `nothing`' check --set nothing=9 a.nd
expect 1 'the plan has no mesh axis `dq`' check --mesh dq=3 a.nd
expect 0 'warns.nd:5:3: warning: the parameter `unused`' check warns.nd
expect 1 'warns.nd:5:3: warning: the parameter `unused`' check warns.nd --werror
expect 1 'train.nd:7:11: error: `train` has no entry `stepz`' check train.nd
expect 1 'plan.nd:10:9: error: unknown axis `bach`' check plan.nd
expect 1 'model.nd:5:29: error: unknown name `v`' check model.nd
expect 1 'pass.nd:5:' check pass.nd
expect 1 'badlib.nd:' check badlib.nd
expect 1 'cannot read `none.nd`' check none.nd
# One bad file among good ones, wherever it stands.
expect 1 'plan.nd:10:9: error' check plan.nd a.nd
expect 1 'plan.nd:10:9: error' check a.nd plan.nd
files >after
cmp -s before after || fail "something was written"

expect 2 'no input file' check
expect 2 'unknown option `-o`' check a.nd -o x
expect 2 'unknown option `--emit=ir`' check a.nd --emit=ir
expect 2 'did you mean `--werror`?' check a.nd --weror
expect 2 'did you mean `--emit`?' a.nd --emti=ir
expect 2 'did you mean `--list-ops`?' --list-op
expect 2 'no command is called `chek`; did you mean `check`?' chek a.nd
expect 2 'no form is called `check`' a.nd --emit=check
expect 2 'no form is called `exe`' a.nd --emit=exe
for c in check fmt doc; do
    "$ndc" --help | grep -q "^       ndc $c " ||
        fail "ndc --help does not tell $c"
    "$ndc" $c --help | grep -q '^usage: ndc FILE' || fail "ndc $c --help"
done
[ $failed = 0 ] && echo "ok"
