#!/bin/sh
# Context parallelism as it runs: one step of SGD on threads gives the gradients
# of the source, in every form; ten steps of gpt with clipping give the losses
# of one rank, and under mpirun the same bits as threads.
. "$(dirname "$0")/../lib.sh"
[ -n "${NDC_LONG:-}" ] || export NDC_CFLAGS=-Og

make_plan() { # MESH RULES LINES, which `;` parts
    { printf 'plan {\n  mesh %s\n  shard %s\n' "$1" "$2"
      printf '%s\n}\n' "$3" | tr ';' '\n'; } >"$work/plan"
}

while IFS='|' read -r name mesh rules more; do
    make_plan "$mesh" "$rules" "$more"
    out=$("$NDC_BUILD/tests/nd_diff" --work "$work/p" --plan "$work/plan" \
        "$NDC_SOURCE/tests/eval/context/$name.nd" 2>&1) ||
        fail "$name $mesh $rules $more: $out"
done <<'END'
causal|cp = 5|seq -> cp|context ring over cp; recompute attention
causal|cp = 3, tp = 2|heads -> tp, vocab -> tp, seq -> (cp, tp)|context ring over cp
causal|cp = 3, tp = 2|heads -> tp, vocab -> tp, seq -> (cp, tp)|context all_to_all over cp
causal|pp = 2, cp = 3|seq -> cp|context ring over cp; pipeline layers -> pp, microbatches = 2
grouped|cp = 5|seq -> cp|context ring over cp; recompute attention; microbatches 2
grouped|cp = 2, tp = 2|kvheads -> tp, seq -> cp|context all_to_all over cp
patches|cp = 5|patch -> cp|context ring over cp
crossing|cp = 5|tgt -> cp, src -> cp|context ring over cp
mixing|cp = 3|seq -> cp|context ring zigzag over cp; recompute attention
mixing|cp = 2, tp = 2|seq -> cp, d -> tp|context ring zigzag over cp
END

sed 's/cosine(3e-4, warmup = 100, min = 3e-5)/3e-3/' \
    "$NDC_SOURCE/examples/gpt.nd" >"$work/f32.nd"
sed 's/seed      = 1/&\n  precision = bf16/' "$work/f32.nd" >"$work/bf16.nd"
grep -q bf16 "$work/bf16.nd" || fail "gpt.nd has no line with its seed"
cat "$NDC_SOURCE"/ir/*.c >"$work/text"
toy="--set batch=6 --set seq=18 --set d=24 --set heads=3 --set layers=2"

losses() { # NAME COMMAND...: the losses of ten steps in NAME.loss
    out=$1
    shift
    timeout 100 "$@" --data "$work/text" --steps 10 --log "$work/log" \
        >"$work/out" 2>&1 || fail "$out: $(cat "$work/out")"
    sed -n 's/.*"step".*"loss":\([-0-9.e+]*\).*/\1/p' "$work/log" \
        >"$work/$out.loss"
}

train() { # NAME PRECISION MESH RULES LINES
    make_plan "$3" "$4" "$5"
    "$ndc" "$work/$2.nd" $toy --plan "$work/plan" -o "$work/$1" \
        >"$work/out" 2>&1 || fail "$1: $(cat "$work/out")"
    losses "$1" "$work/$1"
}

near() { # A B MOST: the largest relative difference
    paste "$work/$1.loss" "$work/$2.loss" | awk -v most="$3" '
        { d = $1 / $2 - 1; d = d < 0 ? -d : d; m = d > m ? d : m }
        END { if (NR != 10 || !(m <= most)) { print "most " m; exit 1 } }' ||
        fail "$1 against $2"
}

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
for type in f32 bf16; do
    train "$type" $type 'cp = 1' 'seq -> cp' ''
    tol=1e-5
    [ $type = f32 ] || tol=1e-3
    for form in ring "ring zigzag" all_to_all; do
        train "$form-$type" $type 'cp = 3' 'seq -> cp' "context $form over cp"
        near "$form-$type" $type $tol
        case " ${NDC_HAVE:-} " in
        *' sanitize '*) ;;           # MPI's own leaks would be reported
        *' mpi '*)
            losses mpi mpirun --oversubscribe -n 3 "$work/$form-$type"
            cmp "$work/mpi.loss" "$work/$form-$type.loss" ||
                fail "$form $type under mpirun"
            ;;
        esac
    done
done
echo "$failed failed"
[ $failed = 0 ]
