#!/bin/sh
# A function that is called twice says its error once, and its note once.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 2
cat >a.nd <<'ND'
axis batch = 4
axis d = 3
fn f(x) {
  batch = x
  return sum[d](batch)
}
model m(x: f32[batch]) {
  y = f(x) as a
  z = f(x) as b
  u = f(x) as c
  return mean[batch](y + z + u)
}
ND
"$NDC_BUILD/ndc" a.nd >out 2>err
errors=$(grep -c 'error:' err)
notes=$(grep -c 'is declared here' err)
[ "$errors" -eq 1 ] && [ "$notes" -eq 1 ] && exit 0
cat err
exit 1
