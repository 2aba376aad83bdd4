# layer_names.sh - a parameter of nested repeats is saved as one tensor per
# index, each index behind the part of the name that is its repeat; the file is
# the same whatever the mesh, and loads on every one.
. "$(dirname "$0")/../lib.sh"
[ -x "$ndc" ] || exit 77

# program NAME PLAN
program() {
    cat >"$work/$1.nd" <<END
axis batch = 4
axis d = 3
axis blocks = 3
axis layers = 2
fn f(x) {
  w = param [d] ~ normal(0.1)
  return x * w
}
fn stack(x) {
  repeat layers as inner {
    x = f(x) as f
  }
  return x
}
model m(x: f32[batch, d]) {
  x = stack(x) as s
  repeat blocks {
    k = param [d] ~ normal(0.3)
    x = x + k * stack(x) as t
  }
  return mean[batch, d](x * x)
}
train m {
  data = synthetic
  optimizer = sgd(0.01)
  clip = 0.05
  steps = 1
}
plan {
  $2
}
END
    "$ndc" "$work/$1.nd" -o "$work/$1" || fail "compiling $1"
}

program one 'mesh dp = 1'
program many 'mesh pp = 3, dp = 2
  shard batch -> dp
  pipeline blocks -> pp, microbatches = 2'
"$work/one" --save "$work/a" >/dev/null 2>&1 || fail "saving on one rank"
names=$(head -c 4000 "$work/a" | tr '{' '\n' |
    sed -n 's/.*"\([^"]*[a-z]\)":$/\1/p' | tr '\n' ' ')
want="s.inner.0.f.w s.inner.1.f.w \
blocks.0.k blocks.1.k blocks.2.k \
blocks.0.t.inner.0.f.w blocks.0.t.inner.1.f.w \
blocks.1.t.inner.0.f.w blocks.1.t.inner.1.f.w \
blocks.2.t.inner.0.f.w blocks.2.t.inner.1.f.w "
[ "$names" = "$want" ] || fail "names: $names"
# What a mesh loads and saves without a step is the file.
"$work/many" --load "$work/a" --steps 0 --save "$work/b" >/dev/null 2>&1 ||
    fail "loading on six ranks"
cmp "$work/a" "$work/b" || fail "the file changed"
[ $failed = 0 ]
