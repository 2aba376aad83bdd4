#!/bin/sh
# Prints a generated model of about LINES lines: what long programs are made of,
# one kind each. The same arguments give the same bytes.
#
#   benchmarks/model.sh KIND [LINES] [PLAN]      KIND "list" names them all
#
# PLAN is one (default: one rank) or many: dp = 2, tp = 2, pp = 2, four
# microbatches, the pipeline over a short repeat behind the generated lines.
set -eu
kind=$1 lines=${2:-2000} plan=${3:-one}
kinds="linear attention elementwise reductions scalars functions fanin outputs
lets axes repeats integers double"
if [ "$kind" = list ]; then
    echo $kinds
    exit
fi

cat << 'END'
axis batch = 16
axis seq = 6
axis kv = seq
axis d = 8
axis heads = 2
axis head = 4
axis layers = 2
axis times = 3
use nn
END
awk -v kind="$kind" -v n="$lines" 'BEGIN {
    if (kind == "functions")
        for (i = 1; i <= n / 2; i++)
            printf "fn f%d(x) { return sin(x * %d) + x }\n", i, i
    if (kind == "lets")
        for (i = 1; i <= n / 2; i++)
            printf "let c%d = %d * 0.5 + 1\n", i, i
    if (kind == "axes")
        print "fn bend(x) {\n  axis r = 3\n" \
              "  return linear[r -> d](sin(linear[d -> r](x) as up)) as down\n}"
    if (kind == "integers")
        print "model m(x: f32[batch, seq, d], t: i32[batch, seq]) {"
    else
        print "model m(x: f32[batch, seq, d]) {"
    print "  w = param [d] ~ normal(0.3)"
    print "  h = x * w"
    if (kind == "scalars")
        print "  s = sum[d](w)"
    if (kind == "linear")
        for (i = 1; i <= n; i++)
            printf "  h = h + linear[d -> d](h) as l%d\n", i
    else if (kind == "attention")
        for (i = 1; i <= n / 8; i++) {
            printf "  n%d = layernorm[d](h) as n%d\n", i, i
            printf "  q%d = linear[d -> heads, head](n%d) as q%d\n", i, i, i
            printf "  k%d = rename[seq -> kv](linear[d -> heads, head](n%d)" \
                   " as k%d)\n", i, i, i
            printf "  v%d = rename[seq -> kv](linear[d -> heads, head](n%d)" \
                   " as v%d)\n", i, i, i
            printf "  s%d = sum[head](q%d * k%d) / sqrt(head)\n", i, i, i
            printf "  p%d = softmax[kv](where(index[kv] <= index[seq], s%d," \
                   " -inf))\n", i, i
            printf "  o%d = linear[heads, head -> d](sum[kv](p%d * v%d))" \
                   " as o%d\n", i, i, i, i
            printf "  h = h + o%d\n", i
        }
    else if (kind == "elementwise")
        for (i = 1; i <= n; i++)
            print "  h = sin(h)"
    else if (kind == "reductions")
        for (i = 1; i <= n; i++)
            print "  h = exp(h) * 0.001 + sum[d](h) * 0.0001"
    else if (kind == "scalars") {
        for (i = 1; i <= n; i++)
            printf "  s = s * %.4f + 0.%d\n", 1 - i / (2 * n), i
        print "  h = h * s"
    } else if (kind == "functions")
        for (i = 1; i <= n / 2; i++)
            printf "  h = f%d(h) as f%d\n", i, i
    else if (kind == "lets")
        for (i = 1; i <= n / 2; i++)
            printf "  h = sin(h * c%d)\n", i
    else if (kind == "axes")
        for (i = 1; i <= n / 4; i++)
            printf "  h = h + bend(h) as b%d\n", i
    else if (kind == "repeats")
        for (i = 1; i <= n / 3; i++)
            print "  repeat times {\n    h = sin(h)\n  }"
    else if (kind == "integers") {
        print "  e = param [d] ~ normal(0.3)"
        for (i = 1; i <= n; i++)
            printf "  h = h + where(e[d: t] > %d * 0.1, sin(h), h)\n", i
    } else if (kind == "fanin") {
        print "  y = exp(x * w)"
        for (i = 1; i <= n; i++)
            printf "  h = sin(h) + y * %d\n", i
    } else if (kind == "outputs")
        for (i = 1; i <= n / 2; i++) {
            printf "  o%d = sum[d](h * %d)\n", i, i
            printf "  output o%d\n", i
        }
    else if (kind == "double") {
        print "  y = x"
        for (i = 1; i <= n; i++)
            print "  y = y * y + y"
        print "  h = h + y * 0.5"
    } else {
        print "model.sh: no such kind: " kind > "/dev/stderr"
        exit 2
    }
    print "  repeat layers { h = h + sin(linear[d -> d](h) as lin) }"
    print "  return mean[batch, seq, d](h * h)"
    print "}"
    print "train m { optimizer = sgd(lr = 0.1) }"
}'
if [ "$plan" = many ]; then
    cat << 'END'
plan {
  mesh pp = 2, dp = 2, tp = 2
  shard batch -> dp, heads -> tp, d -> tp, seq -> tp
  pipeline layers -> pp, schedule = 1f1b, microbatches = 4
}
END
fi
