#!/bin/sh
# How long the actions of a pipelined step take, beside what the simulator expects
# of the measured times of each action (--times): two stages as threads, one core
# each, on a model that computes more than it sends. Medians of RUNS interleaved
# runs of 12 steps. The machine must be idle.
#
#   benchmarks/pipeline_time.sh [BUILD_DIR] [RUNS]
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
ndc=${1:-$here/build}/ndc
runs=${2:-5}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

cat > "$tmp/toy.nd" <<'END'
axis batch = 514
axis d = 512
axis h = 1024
axis layers = 6
model toy(x: f32[batch, d]) {
  y = x
  repeat layers {
    w = param [d -> h] ~ normal(0.03)
    u = param [h -> d] ~ normal(0.03)
    y = y + sum[h](tanh(sum[d](y * w)) * u)
  }
  return mean[batch](sum[d](y * y))
}
train toy {
  data      = synthetic
  optimizer = sgd(lr = 0.0001)
  steps     = 12
}
END
# In two halves where the schedule to compare has them.
for kind in 1f1b zb_h1; do
    printf 'plan {\n  mesh pp = 2\n  pipeline layers -> pp, schedule = %s, %s\n}\n' \
        $kind "microbatches = 8" > "$tmp/$kind.plan"
    "$ndc" "$tmp/toy.nd" --plan "$tmp/$kind.plan" -o "$tmp/$kind"
done

measure() { # PROGRAM SCHEDULE
    "$tmp/$1" --schedule "$2" --threads 1 --times "$tmp/times" 2>&1 |
        sed -n 's/.* took \([0-9.]*\) ms; .* \([0-9.]*\) ms .*ratio \([0-9.]*\).*/\1 \2 \3/p' \
        >> "$tmp/$2.runs"
}
i=0
while [ $i -lt "$runs" ]; do
    measure 1f1b gpipe
    measure 1f1b 1f1b
    measure zb_h1 zb_h1
    i=$((i + 1))
done
for kind in gpipe 1f1b zb_h1; do
    [ -s "$tmp/$kind.runs" ] || { echo "$kind: no times" >&2; exit 1; }
    sort -k3 -n "$tmp/$kind.runs" | awk -v kind=$kind '{ v[NR] = $0 }
        END { split(v[int((NR + 1) / 2)], m, " ")
              split(v[1], low, " "); split(v[NR], high, " ")
              printf "%-6s %8.2f ms, expected %8.2f ms, ratio %.3f (%.3f to %.3f)\n",
                     kind, m[1], m[2], m[3], low[3], high[3] }'
done
