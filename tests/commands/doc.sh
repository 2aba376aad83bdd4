#!/bin/sh
# ndc doc: every function of the library with what is said about it, one with
# its body, the forms of the language, the words for editors.
. "$(dirname "$0")/../lib.sh"
lib=$NDC_SOURCE/frontend/lib/nn.nd
cd "$work" || exit 2
# same FILE: the last output is that
same() {
    diff -u - out || fail "$*"
}
doc() {
    "$ndc" doc "$@" >out 2>err || fail "ndc doc $*"
}
expect() {
    want=$1 text=$2
    shift 2
    "$ndc" doc "$@" >out 2>err
    got=$?
    [ $got -eq "$want" ] && grep -q -F -e "$text" err && [ ! -s out ] ||
        fail "ndc doc $*: status $got, expected $want and \"$text\""
}

# The library, and the same file by its path.
doc
cp out all
doc "$lib"
cmp -s out all || fail "the embedded library is another one"
sed -n 's/^fn \([a-z0-9_]*\).*/\1/p' "$lib" | while read -r f; do
    grep -q "^$f[[(]" all || echo "$f is missing"
    "$ndc" doc "$f" | grep -q "^    fn $f" || echo "$f has no body"
done >missing
[ -s missing ] && fail "$(cat missing)"
[ "$(grep -c '^[a-z]' all)" -gt 10 ] || fail "few functions"

cat >a.nd <<'ND'
# A file of
# two functions.

axis batch = 4
# Not about f.

# What f does: `x_1` * x_2
#   in two lines.
fn f[a,
     b -> c](x, # a comment
         bias = true) {
  y = x   # a } in a comment
  s = "a } in a string"
  return y
}

fn g(x) { return x }
# About m.
model m(x: f32[batch]) { return f(x) }
ND
sed '/s = "/d' a.nd >b.nd
doc b.nd
same functions <<'TXT'
A file of
two functions.

f[a, b -> c](x, bias = true)
    What f does: `x_1` * x_2
      in two lines.

g(x)

model m(x: f32[batch])
    About m.
TXT
doc b.nd f
same body <<'TXT'
f[a, b -> c](x, bias = true)
    What f does: `x_1` * x_2
      in two lines.

    fn f[a,
         b -> c](x, # a comment
             bias = true) {
      y = x   # a } in a comment
      return y
    }
TXT
doc --markdown b.nd f
same markdown <<'TXT'
### `f[a, b -> c](x, bias = true)`

What f does: `x_1` \* x\_2
  in two lines.

```nd
fn f[a,
     b -> c](x, # a comment
         bias = true) {
  y = x   # a } in a comment
  return y
}
```
TXT
doc a.nd f
grep -q 'in a string' out && grep -q 'return y' out || fail "braces in strings"

# Built-in functions and the table of forms.
doc where
same where <<'TXT'
where(c, a, b)
    a where c holds, else b; a constant c makes only the chosen side
TXT
doc --ops
for f in $("$ndc" doc --builtins); do
    grep -q "$f[[(]" out || fail "--ops lacks $f"
    "$ndc" doc "$f" >one || fail "ndc doc $f"
done
doc --ops --markdown
[ "$(grep -c '^| `' out)" -gt 30 ] || fail "a short table"
grep -v '^| `[^`]*` | .* |$' out | grep -v -x -e '| form | meaning |' \
    -e '|---|---|' && fail "a row that is none"
doc --keywords
grep -q -x repeat out && grep -q -x inf out || fail "keywords"

expect 1 'no function is called `sofmax`; did you mean `softmax`?' sofmax
expect 1 'no function is called `wher`; did you mean `where`?' wher
expect 1 'no function is called `h`; ndc doc' b.nd h
expect 1 'cannot read `none.nd`' none.nd
printf 'fn f( {' >bad.nd
expect 1 'bad.nd:1:7: error' bad.nd
expect 2 'did you mean `--markdown`?' --mardown
expect 2 'a second name: `linear`' softmax linear
expect 2 'one of' --ops softmax
expect 2 'one of' --ops --keywords
[ $failed = 0 ] && echo "ok"
