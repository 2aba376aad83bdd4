#!/bin/sh
# The program of the README compiles, trains on its four ranks, and its loss
# falls; the commands shown beside it are true.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
sed -n '/^```nd$/,/^```$/p' "$NDC_SOURCE/README.md" | sed '/^```/d' \
    > "$dir/auto.nd"
ndc=$NDC_BUILD/ndc
cd "$dir"
"$ndc" auto.nd -o train
./train --log log.jsonl > /dev/null
python3 - <<'PY'
import json
loss = [json.loads(x)["loss"] for x in open("log.jsonl")]
print("loss %.3f -> %.3f in %d steps" % (loss[0], loss[-1], len(loss)))
assert len(loss) == 50 and 0 < loss[-1] < 0.9 * loss[0]
PY
"$ndc" auto.nd --emit=plan | grep -q 'peak'
"$ndc" check auto.nd
"$ndc" fmt --check auto.nd
"$ndc" doc softmax | grep -q 'stop_gradient'
"$ndc" "$NDC_SOURCE/examples/gpt.nd" --emit=schedule | grep -q 'F0'
"$ndc" auto.nd --emit=ir --until=shard > graph.ndir
"$ndc" graph.ndir --emit=spmd | grep -q 'all_reduce'
