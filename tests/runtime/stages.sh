# stages.sh - several stages per device: weights, losses, evaluation and
# generation are those of one device with the same microbatches, to the bit
# where gradients add up in the same order and nothing is tied; what is saved,
# loaded and resumed is too; so is muon, whose matrices are layers.
. "$(dirname "$0")/../lib.sh"
[ -x "$ndc" ] || exit 77
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
[ -n "${NDC_LONG:-}" ] || export NDC_CFLAGS=-Og

# The fixture with a head of its own, dropout, evaluation and checkpoints.
program() { # RULE
    sed -e '/^plan/,$d' -e 's/^let p_drop.*/let p_drop = 0.1/' \
        -e 's/ as ln_f \* wte)/ as ln_f * out)/' \
        -e 's/^  wpe = .*/&\n  out = param [vocab -> d] ~ normal(0.2)/' \
        -e 's/^  data .*/  data = synthetic/' -e '/^  clip/d' \
        -e "s/^  optimizer .*/  optimizer = $1/" \
        -e 's/^  steps .*/&\n  eval = every(2)\n  checkpoint = every(2)/' \
        "$NDC_SOURCE/tests/cases/g.nd"
}

build() { # OUT PLAN
    printf 'plan {\n%s\n}\n' "$2" | tr ';' '\n' >"$work/plan"
    "$ndc" "$work/g.nd" --plan "$work/plan" --set batch=8 --set seq=6 --set d=16 \
        --set layers=11 --set ffn=16 --set group=1 -o "$work/$1" \
        2>"$work/err" || {
        cat "$work/err"
        fail "$2"
        return 1
    }
}

run() { # OUT COMMAND...
    out=$1
    shift
    timeout 100 "$@" --save "$work/$out.save" --log "$work/$out.log" \
        --generate an --tokens 5 --temperature 0 >"$work/$out.text" \
        2>"$work/err" </dev/null || {
        cat "$work/err"
        fail "$name: $out: $*"
    }
    grep -v '^step\|^eval' "$work/$out.text" >"$work/$out.said"
    sed 's/"grad_norm.*//; s/,"tokens_per_s.*//' "$work/$out.log" \
        >"$work/$out.loss"
}

same() { # OUT WHAT...
    out=$1
    shift
    for what; do
        cmp "$work/one.$what" "$work/$out.$what" || fail "$name: $out.$what"
    done
}

name=one
program 'sgd(lr = 0.1, momentum = 0.9)' >"$work/g.nd"
build one 'microbatches 4' && run one "$work/one" --steps 4 \
    --checkpoints "$work/one.steps"

# A line: mesh, ranks, schedule, what else the plan has, what is the same.
while IFS='|' read -r n mesh schedule more what; do
    name="$mesh $schedule $more"
    rm -rf "$work/steps" "$work/g"
    build g "  mesh $mesh; $more; pipeline layers -> pp, schedule = $schedule, \
microbatches = 4" || continue
    run g "$work/g" --steps 4 --checkpoints "$work/steps" --check-replicas
    same g $what
    rm -f "$work/steps/step-4.safetensors"
    run again "$work/g" --steps 4 --checkpoints "$work/steps" \
        --resume "$work/steps"
    cmp "$work/g.save" "$work/again.save" || fail "$name: resumed"
    rm -f "$work/steps/step-4.safetensors"
    timeout 100 "$work/g" --steps 4 --checkpoints "$work/steps" \
        --resume "$work/steps" --trace "$work/trace" --trace-step 2 \
        >"$work/out" 2>&1
    [ $? = 2 ] && grep -q 'the run has steps 3 to 4' "$work/out" ||
        fail "$name: a step before the resumed run is traced"
    # and on one device
    rm -f "$work/steps/step-4.safetensors"
    run on "$work/one" --steps 4 --checkpoints "$work/steps" \
        --resume "$work/steps"
    case "$what" in *save*) same on save ;; esac
    case "$n ${NDC_HAVE:-} " in
    0*) ;;
    *" sanitize "*) ;;
    *" mpi "*)
        run mpi mpirun --oversubscribe -n "$n" "$work/g" --steps 4 \
            --checkpoints "$work/other"
        cmp "$work/g.save" "$work/mpi.save" || fail "$name: mpi"
        rm -rf "$work/other"
        ;;
    esac
done <<'END'
2|pp = 2|interleaved(2)||loss said save
0|pp = 2|zb_v||loss said save
0|pp = 2|interleaved(3), stages = [1, 2, 3, 2, 2, 1]||loss said save
0|pp = 2|bfs(2)||said
4|pp = 2, dp = 2|interleaved(2)|shard batch -> dp; zero 3 over dp|said
0|pp = 2, tp = 2|zb_v|shard head -> tp, ffn -> tp, vocab -> tp|said
END

# Layers of other stages lie between those of one: each is its own matrix.
name=muon
program 'muon(lr = 0.02, adamw = ["wte", "wpe", "out"])' >"$work/g.nd"
build one 'microbatches 4' && run one "$work/one" --steps 3 \
    --checkpoints "$work/a"
for schedule in 'interleaved(2)' zb_v; do
    build g "  mesh pp = 2; pipeline layers -> pp, schedule = $schedule, \
microbatches = 4" && run g "$work/g" --steps 3 --checkpoints "$work/b"
    same g loss said save
    rm -rf "$work/b"
done
[ $failed = 0 ]
