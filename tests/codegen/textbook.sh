#!/bin/sh
# The bytes of `--emit=comm` are those of the textbook: textbook.txt, to the
# byte, and nothing besides.
. "$(dirname "$0")/../lib.sh"
count=0
cd "$work" || exit 2

cat > axes <<'ND'
use nn
axis batch = 8
axis seq = 16
axis kv = seq
axis d = 64
axis heads = 4
axis head = d / heads
axis ffn = 4 * d
axis layers = 4
axis vocab = 32
axis expert = 4
ND
numbers='B = 8; s = 16; h = 64; V = 32; E = 4; k = 2; L = 4; F = 4; D = 2 * 8
    P = 12 * h * h + 13 * h; N = 6 * h'

# A transformer layer: q, k, v, output, two products of 4 h; biases and norms.
cat axes - > block.nd <<'ND'
fn attention(x) {
  q = linear[d -> heads, head](x) as q
  k = rename[seq -> kv](linear[d -> heads, head](x) as k)
  v = rename[seq -> kv](linear[d -> heads, head](x) as v)
  s = sum[head](q * k) / sqrt(head)
  p = softmax[kv](where(index[kv] <= index[seq], s, -inf))
  return linear[heads, head -> d](sum[kv](p * v)) as o
}
fn mlp(x) { return linear[ffn -> d](gelu(linear[d -> ffn](x) as up)) as down }
model block(x: f32[batch, seq, d]) {
  repeat layers {
    x = x + attention(layernorm[d](x) as ln1) as attn
    x = x + mlp(layernorm[d](x) as ln2) as mlp
  }
  return mean[batch, seq, d](x * x)
}
ND

# Two matrices of which backward reads both.
cat axes - > matrices.nd <<'ND'
model matrices(x: f32[batch, seq, d]) {
  repeat layers {
    h = linear[d -> ffn](tanh(x), bias = false) as up
    x = x + linear[ffn -> d](gelu(h), bias = false) as down
  }
  return mean[batch, seq, d](x * x)
}
ND

# An embedding that is also the last product, around next to nothing.
cat axes - > head.nd <<'ND'
model head(tokens: i32[batch, seq], targets: i32[batch, seq]) {
  wte = param [vocab -> d] ~ normal(0.02)
  x = wte[vocab: tokens]
  repeat layers { x = tanh(x) }
  logits = sum[d](x * wte)
  return mean[batch, seq](cross_entropy[vocab](logits, targets))
}
ND

# Rows that go to two of four experts each.
cat axes - > experts.nd <<'ND'
model experts(x: f32[batch, seq, d]) {
  repeat layers {
    y, b, z = moe[seq, d -> expert, ffn](x, k = 2) as moe
    x = x + y
  }
  return mean[batch, seq, d](x * x)
}
ND

# "when kind over bytes" of the first rank, summed
said() {
    "$ndc" "$@" --emit=comm --rank=0 2>err | tr -d ',~' | awk '
        /^  sums/ { exit }
        $3 == "over" { bytes[$1 " " $2 " " $4] += $9 }
        END { for (k in bytes) printf "%s %.0f\n", k, bytes[k] }' | sort
}

wanted() {
    echo "$1" | tr -d , | tr ';' '\n' | while IFS='=' read -r what formula; do
        awk "BEGIN { $numbers; printf \"%s %.0f\\n\", \"$(echo $what)\", \
            $formula }"
    done | sort
}

while IFS='|' read -r name program mesh rules more volumes; do
    case $name in '#'* | '') continue ;; esac
    count=$((count + 1))
    printf 'plan {\n  mesh %s\n  %s\n  %s\n}\n' "$mesh" "$rules" \
        "$(echo "$more" | tr ';' '\n')" > plan
    said "$program.nd" --plan plan > said
    wanted "$volumes" > wanted
    cmp -s said wanted && continue
    fail "$name: < wanted, > said"
    cat plan err
    diff wanted said
done < "$NDC_SOURCE/tests/codegen/textbook.txt"
echo "$((count - failed)) passed, $failed failed"
[ $failed = 0 ]
