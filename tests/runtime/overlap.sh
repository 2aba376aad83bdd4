# overlap.sh - calls in flight: the same weights, bit for bit, and the same
# counts, whether another thread makes them or not, as threads and under
# mpirun, however long each of them takes; failures inside one end all ranks. So
# are gradients that are added up while backward goes on, in calls of any size.
. "$(dirname "$0")/../lib.sh"
[ -x "$ndc" ] || exit 77
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
[ -n "${NDC_LONG:-}" ] || export NDC_CFLAGS=-Og

run() { # OUT COMMAND...
    out=$1
    shift
    timeout 100 "$@" --steps 3 --save "$work/$out" >"$work/log" 2>&1 \
        </dev/null || { cat "$work/log"; fail "$out: $*"; }
}

counted() { # OUT COMMAND...
    run "$@" --comm "$work/$1.counts"
}

same() { # OUT: as `off`
    cmp "$work/off" "$work/$1" || fail "$name: weights differ, $1"
    [ ! -e "$work/$1.counts" ] ||
        cmp "$work/off.counts" "$work/$1.counts" || fail "$name: counts differ, $1"
}

in_flight() {
    counted off "$work/g" --overlap off
    counted on "$work/g" --overlap on
    same on
    counted late env NDRT_JITTER=3000 "$work/g" --overlap on
    same late
    [ -z "$mpi" ] && return
    counted mpi env NDRT_JITTER=2000 mpirun --oversubscribe -n "$n" \
        "$work/g" --overlap on
    same mpi
}

summed() {
    rm -f "$work"/*.counts
    run off "$work/g" --overlap off
    run one env NDRT_EARLY=1 "$work/g" --overlap on
    same one
    run late env NDRT_EARLY=2000 NDRT_JITTER=1000 "$work/g" --overlap on
    same late
    [ -z "$mpi" ] && return
    run mpi env NDRT_EARLY=50 mpirun --oversubscribe -n "$n" \
        "$work/g" --overlap on
    same mpi
}

mpi=
case "${NDC_HAVE:-} " in
*" sanitize "*) ;;
*" mpi "*) mpi=yes ;;
esac

# A line: name, ranks, mesh, rules, what else the plan has after `;`.
while IFS='|' read -r name n mesh rules more; do
    printf 'plan {\n  mesh %s\n  shard %s\n%s\n}\n' "$mesh" "$rules" "$more" |
        tr ';' '\n' >"$work/plan"
    sed -e '/^plan/,$d' -e 's/^  data .*/  data = synthetic/' \
        "$NDC_SOURCE/tests/cases/g.nd" >"$work/g.nd"
    "$ndc" "$work/g.nd" --plan "$work/plan" --set batch=6 --set seq=12 \
        --set layers=3 -o "$work/g" 2>"$work/err" || {
        cat "$work/err"
        fail "$name"
        continue
    }
    [ "$name" != hybrid ] || cp "$work/g" "$work/hybrid"
    case $name in
    gradients*) summed ;;            # where calls are counted, they wait
    *) in_flight ;;
    esac
done <<'END'
zero 3, tp, sp|4|dp = 2, tp = 2|batch -> dp, kvheads -> tp, ffn -> tp, vocab -> tp, seq -> tp|  zero 3 over dp; microbatches 2
zero 3, uneven|3|dp = 3|batch -> dp|  zero 3 over dp
ring|3|cp = 3|seq -> cp|  context ring over cp; recompute attention
pipeline|4|pp = 2, dp = 2|batch -> dp|  pipeline layers -> pp, microbatches = 3; zero 3 over dp
hybrid|4|outer = 2, inner = 2|batch -> (outer, inner)|  shard params d -> inner; microbatches 2
gradients in parts|4|a = 2, b = 2|batch -> (a, b)|  zero 1 over b; microbatches 2
gradients, halves|4|pp = 2, dp = 2|batch -> dp|  pipeline layers -> pp, schedule = zb_h1, microbatches = 3
gradients|3|dp = 3|batch -> dp|  recompute block
END

# The rank fails that is told to, while others wait in calls in flight: of the
# program above, and of the last one, which sends nothing but gradients.
fails() { # PROGRAM AT
    NDRT_FAIL_AT=$2 NDRT_EARLY=1 NDRT_JITTER=1000 timeout 60 "$work/$1" \
        --overlap on --steps 3 >"$work/log" 2>&1
    got=$?
    [ $got = 3 ] || fail "status $got, expected 3: $*"
    [ "$(grep -c "rank ${2%:*}: made-up failure" "$work/log")" = 1 ] ||
        fail "not told: $*"
    [ "$(grep -c 'error:' "$work/log")" = 1 ] || fail "not one line: $*"
}
for at in 1:3 3:20 0:40; do
    fails hybrid $at
done
for at in 1:1 2:5 0:9; do
    fails g $at
done

# Only one device has gradients that are worth a call of their own: the others
# take their communicators in the same order all the same.
cat >"$work/e.nd" <<'END'
axis batch = 8
axis d = 5
axis vocab = 300
axis layers = 3
use nn
model m(t: i32[batch], y: f32[batch, d]) {
  wte = param [vocab -> d] ~ normal(0.2)
  x = wte[vocab: t]
  repeat layers { x = x + linear[d -> d](sin(x)) as lin }
  return mean[batch](mse[d](x, y))
}
train m {
  data = synthetic
  optimizer = sgd(lr = 0.1)
  clip = 0
}
plan {
  mesh pp = 3, dp = 2
  shard batch -> dp
  pipeline layers -> pp, microbatches = 2
}
END
"$ndc" "$work/e.nd" -o "$work/e" && for early in 1 100 10000; do
    NDRT_EARLY=$early timeout 60 "$work/e" --overlap on --steps 3 \
        --save "$work/e.$early" >"$work/log" 2>&1 || fail "parts of $early"
    cmp "$work/e.1" "$work/e.$early" || fail "other weights in parts of $early"
done

"$work/g" --overlap maybe >"$work/log" 2>&1
[ $? = 2 ] || fail "--overlap maybe"
grep -q 'neither on nor off' "$work/log" || fail "what --overlap takes"
[ $failed = 0 ]
