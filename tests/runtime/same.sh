# same.sh - ranks that were not started alike (other options, options of which
# one is refused, other data) end at once, with one line that says who differs
# in what; what each rank may have for itself does not matter.
# Run by ctest with NDC_BUILD and NDC_HAVE set.
. "$(dirname "$0")/../lib.sh"
case " ${NDC_HAVE:-} " in
*" sanitize "*) exit 77 ;;         # MPI's own leaks would be reported
*" mpi "*) ;;
*) exit 77 ;;
esac
[ -x "$ndc" ] || exit 77
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export NDC_CFLAGS=-Og
cd "$work" || exit 2

cat >a.nd <<'ND'
axis batch = 3
axis seq = 5
axis vocab = 61
axis d = 7
use nn
model a(tokens: i32[batch, seq], targets: i32[batch, seq]) {
  e = param [vocab -> d] ~ normal(0.3)
  l = sum[d](e[vocab: tokens] * e)
  return mean[batch, seq](cross_entropy[vocab](l, targets))
}
train a {
  data      = tokens("data.bin", u8)
  optimizer = sgd(lr = 0.1)
  steps     = 3
  eval      = every(2)
}
plan {
  mesh  dp = 3
  shard batch -> dp
}
ND
"$ndc" a.nd -o a || fail "the program"
words() { # N
    printf "%$1s" '' | tr ' ' '\061'
}
mkdir other
words 86 >data.bin                       # 17 windows
words 97 >other/data.bin                 # 19
words 86 >other/same.bin
words 20 >eval.bin
words 25 >other/eval.bin

# One rank has options, and a folder, of its own.
cat >one.sh <<'SH'
#!/bin/sh
more=$ELSE
if [ "$OMPI_COMM_WORLD_RANK" = "$WHO" ]; then
    more=$MORE
    cd "$PLACE" || exit 9
fi
exec "$PROGRAM" $more
SH
chmod +x one.sh
export WHO MORE ELSE PLACE PROGRAM="$work/a"

launch() {
    timeout 60 mpirun --oversubscribe -n 3 ./one.sh >out 2>&1 </dev/null
    got=$?
}

# ends STATUS TEXT: with one line of error, before the first step
ends() {
    launch
    [ $got = "$1" ] && [ "$(grep -c 'error:' out)" = 1 ] &&
        grep -q -F -e "$2" out && ! grep -q '^ *step' out || {
        cat out
        fail "status $got, expected $1 and \"$2\": $WHO $PLACE $MORE / $ELSE"
    }
}

# A line: who, its options, those of the others, what is said.
PLACE=.
while IFS='|' read -r WHO MORE ELSE text; do
    ends 2 "$text"
done <<'END'
1|--steps 6|--steps 4|rank 1: --steps is 6 here and 4 on rank 0
0|--steps 6|--steps 4|rank 1: --steps is 4 here and 6 on rank 0
2|--seed 7||rank 2: --seed is 7 here and 1 on rank 0
2|--seed 9007199254740993|--seed 9007199254740992|rank 2: --seed is
1|--lr 0.3||rank 1: --lr is 0.3 here and 0.1 on rank 0
2|--lr 0.1000000000000001||rank 2: --lr is 0.1000000000000001 here
1|--save w.safetensors||rank 1: --save is given here and not on rank 0
1||--save w.safetensors|rank 1: --save is given on rank 0 and not here
2|--generate a|--generate b|rank 2: --generate is another one than on rank 0
2|--tokens 3||rank 2: --tokens is 3 here and 200 on rank 0
1|--clip 0.5||rank 1: --clip is 0.5 here and 0 on rank 0
1|--check-replicas||rank 1: --check-replicas is given here and not on rank 0
2|--comm c.json||rank 2: --comm is given here and not on rank 0
2|--overlap on|--overlap off|rank 2: --overlap is another one than on rank 0
1|--eval-data eval.bin||rank 1: --eval-data is given here and not on rank 0
1|--stepz 3||unknown option "--stepz"; did you mean "--steps"?
0|--stepz 3||unknown option "--stepz"; did you mean "--steps"?
2|--steps x|--lr y|--lr "y" is not a number
END

PLACE=other WHO=2 MORE='' ELSE=''
ends 1 'rank 2: the training data have 97 bytes here and 86 on rank 0'
WHO=1 MORE='--data same.bin --eval-data eval.bin'
ELSE='--data data.bin --eval-data eval.bin'
ends 1 'rank 1: the evaluation data have 25 bytes here and 20 on rank 0'

# Of its own: the name of a file, threads.
MORE='--data same.bin --threads 1 --log log' ELSE='--threads 2'
launch
[ $got = 0 ] || {
    cat out
    fail "a file of another name"
}

# Another checkpoint.
sed -i 's/^  eval .*/&\n  checkpoint = every(1)/' a.nd
"$ndc" a.nd -o a || fail "with checkpoints"
./a --steps 2 >out 2>&1 || fail "checkpoints"
mkdir other/checkpoints
cp checkpoints/step-1.safetensors other/checkpoints
WHO=2 MORE='--data same.bin --resume checkpoints' ELSE='--resume checkpoints'
ends 1 'rank 2: the run goes on after step 1 here and 2 on rank 0'
[ $failed = 0 ]
