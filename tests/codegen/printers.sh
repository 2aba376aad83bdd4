#!/bin/sh
# The same program with kernels by gcc, by clang and by LLVM computes the same
# bits: weights after three steps. With NDC_LONG set, every program of
# tests/codegen/diff and tests/regress; and what the oracle compares, by LLVM.
. "$(dirname "$0")/../lib.sh"
case ${NDC_LONG:+long}${NDC_HAVE:-} in
long* | *sanitize*) ;;
*) export NDC_CFLAGS=-O1 ;;
esac

"$ndc" --emit=llvm "$NDC_SOURCE/tests/codegen/repeat_body.nd" -o "$work/ir" \
    2>"$work/err" || {
    cat "$work/err"
    grep -q 'built without LLVM' "$work/err" && exit 77
    exit 1
}
clang=$(command -v clang || true)

# build NAME OPTIONS...: an executable, with what is in the environment
build() {
    name=$1
    shift
    "$ndc" "$@" -o "$work/$name" 2>"$work/err" &&
        (cd "$work" && "./$name" --steps 3 --save "$name.out" >"$name.txt" 2>&1)
}

# same PROGRAM OPTIONS...
same() {
    build c "$@" || {
        fail "$*"
        cat "$work/err" "$work/c.txt"
        return
    }
    build llvm "$@" --kernels=llvm && cmp "$work/c.out" "$work/llvm.out" || {
        fail "kernels by LLVM: $*"
        cat "$work/err" "$work/llvm.txt"
    }
    [ -z "$clang" ] && return
    CC=$clang build clang "$@" && cmp "$work/c.out" "$work/clang.out" || {
        fail "kernels by clang: $*"
        cat "$work/err" "$work/clang.txt"
    }
}

# A program without a train block gets one, of made-up data.
trained() {
    if grep -q '^ *data ' "$1"; then
        cat "$1"
    else
        sed 's/^train\(.*\) {/train\1 {\
  data = synthetic\
/' "$1"
    fi
    name=$(sed -n 's/^model \([a-z_0-9]*\).*/\1/p' "$1" | head -n 1)
    grep -q '^train' "$1" || printf 'train %s {\n  %s\n  %s\n}\n' "$name" \
        'data = synthetic' 'optimizer = sgd(lr = 0.001)'
}

some="diff/elementwise narrow/dtypes narrow/wide_sums attention_tiles"
if [ -n "${NDC_LONG:-}" ]; then
    some=$(cd "$NDC_SOURCE/tests" &&
        ls codegen/*tiles.nd codegen/diff/*.nd codegen/narrow/*.nd \
            regress/*.nd |
        sed 's|^codegen/||; s|\.nd$||')
fi
for f in $some; do
    p=$NDC_SOURCE/tests/codegen/$f.nd
    [ -f "$p" ] || p=$NDC_SOURCE/tests/$f.nd
    trained "$p" >"$work/p.nd"
    same "$work/p.nd"
done

# Pairs that are turned, each pair a row of its own: products, their sum and
# their difference stand side by side, and no compiler may make one operation of
# two of them. (The products of queries and keys ask for every last bit.)
cat >"$work/pairs.nd" <<'END'
axis batch = 3
axis seq = 3
axis key = seq
axis d = 3
axis head = 2
axis two = 2
axis half = 1

fn turn(x) {
  a = x[two: 0] * cos(1.0 * index[seq]) - x[two: 1] * sin(1.0 * index[seq])
  b = x[two: 1] * cos(1.0 * index[seq]) + x[two: 0] * sin(1.0 * index[seq])
  return flatten[two, half -> head](stack[two](a, b))
}

use nn

model m(x: f32[batch, seq, d]) {
  q = turn(split[head -> two, half](linear[d -> head](30 * x) as q))
  k = turn(split[head -> two, half](linear[d -> head](30 * x) as k))
  v = rename[seq -> key](linear[d -> head](30 * x) as v)
  y = sum[key](tanh(sum[head](q * rename[seq -> key](k))) * v)
  return mean[batch, seq, head](y * y)
}
train m {
  data = synthetic
  optimizer = sgd(lr = 0.001)
}
END
flags=${NDC_CFLAGS:-}
NDC_CFLAGS=-O3
same "$work/pairs.nd"
NDC_CFLAGS=$flags

# What those have not: dropout, noise, running sums.
cat >"$work/rest.nd" <<'END'
use nn
axis batch = 7
axis seq = 35
axis d = 61
model m(x: f32[batch, d], k: i32[batch, seq]) {
  w = param [seq -> d] ~ normal(0.5)
  g = param [d] ~ ones
  h = dropout(layernorm[d](x * w) as ln, 0.3) * g
  c = cumsum[seq](h) + 0.01 * random_normal[batch, seq, d]
  s = softmax[seq](c) * where(k % 5 // 2 == 1, 0.5, 2.0)
  return mean[batch, seq, d](s * h + sigmoid(c))
}
train m {
  data = synthetic
  optimizer = adamw(lr = 0.01)
}
END
same "$work/rest.nd"

# Functions over what is large, small and in between: a gradient of each element.
cat >"$work/all.nd" <<'END'
axis n = 4096
model m(x: f32[n]) {
  a = param [n] ~ zeros
  b = param [n] ~ zeros
  c = param [n] ~ zeros
  d = param [n] ~ zeros
  e = param [n] ~ zeros
  f = param [n] ~ zeros
  g = param [n] ~ zeros
  h = param [n] ~ zeros
  y = (x - 0.5) * 76
  z = y * y * y * y * y
  return sum[n](a * exp(y) + b * log(exp(y)) + c * tanh(y * 0.1) +
                d * erf(y * 0.05) + e * sigmoid(y) + f * sin(z) + g * cos(z) +
                h * x^(y * 0.1))
}
train m {
  data = synthetic
  optimizer = sgd(lr = 1.0)
}
END
same "$work/all.nd"

# By a processor that does not multiply and add at once, too.
[ "$(uname -m)" = x86_64 ] && same "$work/all.nd" --cpu=x86-64-v2

# A whole model at odd sizes, in pieces.
sed 's|text("[^"]*")|synthetic|' "$NDC_SOURCE/examples/gpt.nd" >"$work/gpt.nd"
toy="--set batch=6 --set seq=19 --set vocab=37 --set d=36 --set heads=3
    --set layers=2"
same "$work/gpt.nd" $toy --mesh pp=1,dp=1,tp=2

if [ -n "${NDC_LONG:-}" ]; then
    NDC_KERNELS=llvm sh "$NDC_SOURCE/tests/codegen/oracle.sh" || fail "oracle.sh"
    [ "$(uname -m)" = x86_64 ] && {
        NDC_CPU=x86-64-v3 NDC_KERNELS=llvm \
            sh "$NDC_SOURCE/tests/codegen/oracle.sh" || fail "oracle.sh"
    }
fi
[ $failed = 0 ]
