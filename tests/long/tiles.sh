#!/bin/sh
# Attention in tiles gives the gradients of the source: library options, blocks
# that are cut by meshes, ring and all_to_all, bf16, noise, pipelines in halves;
# and the same bits with any number of threads.
set -u
[ -n "${NDC_LONG:-}" ] || exit 77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

bad() {
    failed=$((failed + 1))
    echo "FAILED: $*"
}

fixture=$NDC_SOURCE/tests/fixtures/attention.nd
several=$NDC_SOURCE/tests/codegen/diff/attentions.nd
cat >"$work/noise.nd" <<'END'
axis batch = 4
axis seq = 131
axis kv = seq
axis d = 7
axis heads = 3
axis head = 5
axis layers = 2
use nn
model m(x: f32[batch, seq, d], y: f32[batch, seq, d]) {
  repeat layers {
    q = linear[d -> heads, head](x) as q
    k = rename[seq -> kv](linear[d -> heads, head](x) as k)
    v = rename[seq -> kv](linear[d -> heads, head](x) as v)
    s = sum[head](q * k) / sqrt(head)
    p = softmax[kv](where(index[kv] <= index[seq], s, -inf))
    x = x + linear[heads, head -> d](sum[kv](dropout(p, 0.3) * v)) as o
  }
  return mean[batch, seq, d]((x - y) * (x - y))
}
train {
  data      = synthetic()
  optimizer = sgd(0.1)
  clip      = 0.01
  seed      = 1
}
END
sed 's/seed      = 1/&\n  precision = bf16/' "$work/noise.nd" >"$work/narrow.nd"

# program|sizes|mesh|further lines of the plan, which `;` parts
while IFS='|' read -r name set mesh more; do
    { printf 'plan {\n  mesh %s\n' "$mesh"
      printf '%s\n}\n' "$more" | tr ';' '\n'; } >"$work/plan"
    file=$work/$name.nd
    [ "$name" = fixture ] && file=$fixture
    [ "$name" = several ] && file=$several
    "$NDC_BUILD/ndc" "$file" --plan "$work/plan" $set --emit=c 2>/dev/null |
        grep -q ndrt_tile_scratch || bad "no tiles: $name $set $mesh $more"
    out=$("$NDC_BUILD/tests/nd_diff" --f32 --work "$work/p" \
        --plan "$work/plan" $set "$file" 2>&1) ||
        bad "$name $set $mesh $more: $out"
done <<'END'
fixture|--set seq=13 --set src=17|x = 1|
fixture|--set seq=201 --set src=71|x = 1|
fixture|--set seq=203 --set src=17|x = 2|shard seq -> x
fixture|--set seq=29 --set src=71|x = 2|shard heads -> x, kvheads -> x, batch -> x
fixture|--set seq=26 --set src=24|x = 2|shard seq -> x; context ring over x
fixture|--set seq=13 --set src=3|x = 5|shard seq -> x
fixture|--set seq=73 --set batch=5|x = 1|microbatches 2
several|--set a=61|x = 3|shard a -> x
several|--set a=200 --set src=130|x = 2, y = 3|shard a -> x, b -> y
noise||x = 5|shard seq -> x
noise|--set seq=130|x = 2|shard seq -> x; context ring over x
noise|--set seq=132|x = 2|shard seq -> x; context ring zigzag over x
noise|--set seq=132|x = 3|shard seq -> x; context all_to_all over x
noise||x = 3|shard batch -> x; microbatches 2; zero 3 over x
noise||x = 2, y = 2|shard heads -> y; pipeline layers -> x, microbatches = 2
noise||x = 2|pipeline layers -> x, microbatches = 2, schedule = zb_h1
noise||x = 1|recompute block
narrow||x = 1|
narrow|--set seq=130|x = 2|shard seq -> x; context ring over x
narrow|--set seq=61|x = 2|shard heads -> x
END

for name in noise narrow; do
    "$NDC_BUILD/ndc" "$work/$name.nd" -o "$work/p" || bad "$name"
    for n in 1 2 3 5; do
        "$work/p" --steps 3 --threads $n --save "$work/$n.safetensors" \
            >"$work/out" || bad "$name, $n threads"
        cmp "$work/1.safetensors" "$work/$n.safetensors" ||
            bad "$name: other bits with $n threads"
    done
done
[ $failed = 0 ]
