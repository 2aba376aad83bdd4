#!/bin/sh
# Why rows of microbatches would have to move, where no other rule makes them:
# a lookup along the batch, a parameter with the axis of the batch.
. "$(dirname "$0")/../lib.sh"
cd "$work" || exit 2

refused() { # TEXT OF THE NOTE, LINE
    "$ndc" check a.nd >out 2>&1
    grep -q 'the rows of `batch` cannot move' out && grep -q -F "$1" out &&
        ! grep -q 'another rule' out || {
        cat out
        fail "$1"
    }
    sed 's/microbatches 2/microbatches 1/' a.nd >one.nd
    "$ndc" check one.nd >out 2>&1 || {
        cat out
        fail "microbatches 1: $1"
    }
}
program() { # THE LINE THAT GIVES u
    cat >a.nd <<ND
axis batch = 5
axis d = 3
model m(x: f32[batch, d], t: i32[batch], s: f32[batch]) {
  w = param [d] ~ normal(1.0)
  y = x * w
  $1
  return mean[batch](mean[d](y * y) * u)
}
plan {
  mesh  dp = 2
  shard batch -> dp
  microbatches 2
}
ND
}
program 'u = s[batch: t]'
refused 'a lookup along `batch` may take any row of the batch'
program 'u = param [batch] ~ ones'
refused 'the parameter `u` has the axis `batch`'
[ $failed = 0 ]
