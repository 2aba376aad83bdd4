#!/bin/sh
# What a step does not clear it does not read: with NaN wherever the last step has
# left gradients (NDRT_STALE), three steps make the same weights to the last bit, on
# schedules with one microbatch or several, with backward in two halves or weights of
# several updates, with state and gradients in parts, with experts. And NaN is found
# where a first sum is made to add.
. "$(dirname "$0")/../lib.sh"
export NDC_CFLAGS=-O0
unset NDRT_STALE
cd "$work" || exit 1

run() { # OUT COMMAND...
    out=$1
    shift
    timeout 60 "$@" --steps 3 --save "$out" >log 2>&1 </dev/null
}

build() { # MODEL SIZES PLAN
    set=
    for size in $2; do
        set="$set --set $size"
    done
    printf 'plan {\n%s\n}\n' "$3" | tr ';' '\n' >plan
    case $3 in *pipedream*) no=clip ;; *) no=no ;; esac
    sed -e '/^plan/,$d' -e 's/^  data .*/  data = synthetic/' \
        -e "/^  $no /d" "$NDC_SOURCE/examples/$1.nd" >p.nd
    "$ndc" p.nd --plan plan $set -o p 2>err && return
    cat err
    return 1
}

same() { # OPTIONS OF THE PROGRAM
    run fresh ./p "$@" && run stale env NDRT_STALE=1 ./p "$@" &&
        cmp fresh stale && return
    fail "$(cat plan) $*"
    cat log
}

while IFS='|' read -r model sizes plan; do
    build "$model" "$sizes" "$plan" && same || fail "$model, $plan"
done <<END
gpt|batch=6 seq=16 vocab=13 d=12 heads=3 layers=2|mesh dp = 1
gpt|batch=6 seq=16 vocab=13 d=12 heads=3 layers=2|mesh dp = 2; shard batch -> dp; zero 1 over dp; microbatches 3
gpt|batch=6 seq=15 vocab=13 d=12 heads=3 layers=2|mesh dp = 2; shard batch -> dp; zero 2 over dp; microbatches 3
gpt|batch=6 seq=15 vocab=13 d=12 heads=3 layers=2|mesh dp = 2; shard batch -> dp; zero 3 over dp; microbatches 3
gpt|batch=6 seq=16 vocab=13 d=12 heads=3 layers=4|mesh pp = 2; pipeline layers -> pp, schedule = zb_v, microbatches = 3
moe|batch=6 seq=15 vocab=13 d=16|mesh pp = 2; pipeline layers -> pp, schedule = pipedream, microbatches = 3
moe|batch=6 seq=15 vocab=13 d=16|mesh ep = 2; shard batch -> ep, expert -> ep; microbatches 3
gpt|batch=6 seq=16 vocab=13 d=12 heads=3 layers=3|mesh pp = 2; pipeline layers -> pp, schedule = zb_h1, microbatches = 3
END
for other in 1f1b gpipe; do      # of the last one
    same --schedule $other
done

cat >cc <<'END'
#!/bin/sh
for file; do
    case $file in *.c) sed -i 's/(r, r->adds/(r, true/' "$file" ;; esac
done
exec "${REAL_CC:-cc}" "$@"
END
chmod +x cc
REAL_CC=${CC:-} CC=$work/cc \
    build gpt "batch=6 seq=16 vocab=13 d=12 heads=3 layers=2" "mesh dp = 1" ||
    fail "no program that adds"
run fresh ./p || fail "a program that adds"
if run stale env NDRT_STALE=1 ./p || ! grep -q 'not finite' log; then
    fail "the last step's gradients are added to, and nobody sees it"
fi
[ $failed = 0 ]
