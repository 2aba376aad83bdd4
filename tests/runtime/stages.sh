# stages.sh - several stages per device: weights, losses, evaluation and
# generation are those of one device with the same microbatches, to the bit
# where gradients add up in the same order and nothing is tied; what is saved,
# loaded and resumed is too; so is muon, whose matrices are layers.
ndc=$NDC_BUILD/ndc
[ -x "$ndc" ] || exit 77
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
[ -n "${NDC_LONG:-}" ] || export NDC_CFLAGS=-Og
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
bad=0

fail() {
    echo "FAIL: $*"
    bad=1
}

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
    printf 'plan {\n%s\n}\n' "$2" | tr ';' '\n' >"$dir/plan"
    "$ndc" "$dir/g.nd" --plan "$dir/plan" --set batch=8 --set seq=6 --set d=16 \
        --set layers=11 --set ffn=16 --set group=1 -o "$dir/$1" \
        2>"$dir/err" || {
        cat "$dir/err"
        fail "$2"
        return 1
    }
}

run() { # OUT COMMAND...
    out=$1
    shift
    timeout 100 "$@" --save "$dir/$out.save" --log "$dir/$out.log" \
        --generate an --tokens 5 --temperature 0 >"$dir/$out.text" \
        2>"$dir/err" </dev/null || {
        cat "$dir/err"
        fail "$name: $out: $*"
    }
    grep -v '^step\|^eval' "$dir/$out.text" >"$dir/$out.said"
    sed 's/"grad_norm.*//; s/,"tokens_per_s.*//' "$dir/$out.log" \
        >"$dir/$out.loss"
}

same() { # OUT WHAT...
    out=$1
    shift
    for what; do
        cmp "$dir/one.$what" "$dir/$out.$what" || fail "$name: $out.$what"
    done
}

name=one
program 'sgd(lr = 0.1, momentum = 0.9)' >"$dir/g.nd"
build one 'microbatches 4' && run one "$dir/one" --steps 4 \
    --checkpoints "$dir/one.steps"

# A line: mesh, ranks, schedule, what else the plan has, what is the same.
while IFS='|' read -r n mesh schedule more what; do
    name="$mesh $schedule $more"
    rm -rf "$dir/steps" "$dir/g"
    build g "  mesh $mesh; $more; pipeline layers -> pp, schedule = $schedule, \
microbatches = 4" || continue
    run g "$dir/g" --steps 4 --checkpoints "$dir/steps" --check-replicas
    same g $what
    rm -f "$dir/steps/step-4.safetensors"
    run again "$dir/g" --steps 4 --checkpoints "$dir/steps" \
        --resume "$dir/steps"
    cmp "$dir/g.save" "$dir/again.save" || fail "$name: resumed"
    rm -f "$dir/steps/step-4.safetensors"
    timeout 100 "$dir/g" --steps 4 --checkpoints "$dir/steps" \
        --resume "$dir/steps" --trace "$dir/trace" --trace-step 2 \
        >"$dir/out" 2>&1
    [ $? = 2 ] && grep -q 'the run has steps 3 to 4' "$dir/out" ||
        fail "$name: a step before the resumed run is traced"
    # and on one device
    rm -f "$dir/steps/step-4.safetensors"
    run on "$dir/one" --steps 4 --checkpoints "$dir/steps" \
        --resume "$dir/steps"
    case "$what" in *save*) same on save ;; esac
    case "$n ${NDC_HAVE:-} " in
    0*) ;;
    *" sanitize "*) ;;
    *" mpi "*)
        run mpi mpirun --oversubscribe -n "$n" "$dir/g" --steps 4 \
            --checkpoints "$dir/other"
        cmp "$dir/g.save" "$dir/mpi.save" || fail "$name: mpi"
        rm -rf "$dir/other"
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
program 'muon(lr = 0.02, adamw = ["wte", "wpe", "out"])' >"$dir/g.nd"
build one 'microbatches 4' && run one "$dir/one" --steps 3 \
    --checkpoints "$dir/a"
for schedule in 'interleaved(2)' zb_v; do
    build g "  mesh pp = 2; pipeline layers -> pp, schedule = $schedule, \
microbatches = 4" && run g "$dir/g" --steps 3 --checkpoints "$dir/b"
    same g loss said save
    rm -rf "$dir/b"
done
exit $bad
