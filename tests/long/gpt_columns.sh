#!/bin/sh
# The example at full width on 2x2x2: 20 steps as threads, under mpirun and on
# one rank give the same loss column (1e-5 between launchers, 1e-4 against one
# rank), with AdamW and with SGD. Minutes of work: only with NDC_LONG set.
set -eu
[ -n "${NDC_LONG:-}" ] || exit 77
case " $NDC_HAVE " in *" mpi "*) ;; *) exit 77 ;; esac
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
bible -f gen1:1-rev22:21 > "$dir/text"

sed -e 's/optimizer = .*/optimizer = sgd(lr = 0.1)/' \
    "$NDC_SOURCE/examples/gpt.nd" > "$dir/sgd.nd"
cp "$NDC_SOURCE/examples/gpt.nd" "$dir/adamw.nd"
status=0
for opt in adamw sgd; do
    "$NDC_BUILD/ndc" "$dir/$opt.nd" --set batch=8 -o "$dir/eight"
    "$NDC_BUILD/ndc" "$dir/$opt.nd" --set batch=8 \
        --mesh pp=1,dp=1,tp=1 -o "$dir/one"
    run="--data $dir/text --steps 20 --warmup 5"
    "$dir/eight" $run --log "$dir/local.jsonl" > /dev/null
    mpirun --oversubscribe -n 8 "$dir/eight" $run --log "$dir/mpi.jsonl" \
        > /dev/null
    "$dir/one" $run --log "$dir/one.jsonl" > /dev/null
    for pair in "local mpi 1e-5" "local one 1e-4"; do
        set -- $pair
        python3 - "$dir/$1.jsonl" "$dir/$2.jsonl" "$3" "$opt $1 $2" <<'PY' || status=1
import json, sys
a, b = [[json.loads(x)["loss"] for x in open(f)] for f in sys.argv[1:3]]
worst = max(abs(x - y) / abs(y) for x, y in zip(a, b))
print("%s: %d steps, largest relative difference %.2g" % (sys.argv[4], len(a), worst))
sys.exit(len(a) != 20 or len(b) != 20 or worst > float(sys.argv[3]))
PY
    done
done
exit $status
