# resume.sh - what a run that is resumed finds out by itself: a checkpoint or
# weights with a bit turned over, by which seed, optimizer, shapes and data the
# run so far went, and that there is nothing left to do.
. "$(dirname "$0")/../lib.sh"
[ -x "$ndc" ] || exit 77
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
[ -n "${NDC_LONG:-}" ] || export NDC_CFLAGS=-Og
cd "$work" || exit 2

# build OUT OPTIMIZER DATA [SET]...: on two ranks, with all that zero has
build() {
    out=$1 rule=$2 data=$3
    shift 3
    cat >"$out.nd" <<END
axis batch = 3
axis d = 5
model m(x: f32[batch, d]) {
  w = param [d] ~ normal(0.7)
  u = param [d] ~ normal(0.7)
  return mean[batch](sum[d](dropout(x, 0.5) * w * u)^2)
}
train {
  data = $data
  optimizer = $rule
  steps = 6
  checkpoint = every(3)
}
plan {
  mesh dp = 2
  shard batch -> dp
  zero 3 over dp
}
END
    "$ndc" "$out.nd" -o "$out" "$@" 2>err || fail "$out: $(cat err)"
}

# ends STATUS WORD COMMAND...: says that word
ends() {
    want=$1 word=$2
    shift 2
    timeout 60 "$@" >out 2>&1 </dev/null
    got=$?
    [ "$got" = "$want" ] || fail "status $got, not $want: $* $(cat out)"
    grep -q -e "$word" out || fail "no \"$word\" from $*: $(cat out)"
}

# half FOLDER: as if the run had been stopped after step 3
half() {
    rm -f "$1/step-6.safetensors"
}

# flip FILE BYTE BIT
flip() {
    old=$(od -An -tu1 -j"$2" -N1 "$1")
    printf "\\$(printf %03o $((old ^ 1 << $3)))" |
        dd of="$1" bs=1 seek="$2" conv=notrunc 2>dd.err
}

build adam 'adamw(lr = 0.1)' synthetic
build sgd 'sgd(lr = 0.1, momentum = 0.9)' synthetic
build plain 'sgd(lr = 0.1)' synthetic
build long 'adamw(lr = 0.1)' synthetic --set d=6
build wide 'adamw(lr = 0.1)' synthetic --set batch=5

# ---- bits ------------------------------------------------------------------

ends 0 'step 6/6' ./adam --checkpoints a --seed 4 --save whole
half a
file=a/step-3.safetensors
cp $file good
size=$(wc -c <good)
# a prime, so that all bits of a byte have their turn
step=13
[ -n "${NDC_LONG:-}" ] && step=1
at=0
while [ $at -lt "$size" ]; do
    cp good $file
    flip $file $at $((at % 8))
    ends 1 'step-3.safetensors' ./adam --checkpoints b --resume a --threads 1
    [ "$(grep -c error: out)" = 1 ] || fail "byte $at: $(cat out)"
    at=$((at + step))
done
cp good $file
flip $file $((size - 20)) 3                  # the last tensor but the counts
ends 1 'tensor "optimizer.2.u"' ./adam --checkpoints b --resume a
case " ${NDC_HAVE:-} " in
*" sanitize "*) ;;
*" mpi "*)
    for at in $((size - 20)) 3 40 $((size / 2)) $((size - 60)) $((size - 1))
    do
        cp good $file
        flip $file "$at" 3
        ends 1 'step-3.safetensors' mpirun --oversubscribe -n 2 ./adam \
            --checkpoints b --resume a
        [ "$(grep -c error: out)" = 1 ] || fail "mpi, byte $at: $(cat out)"
    done
    cp good $file
    ends 0 'the seed is 4' mpirun --oversubscribe -n 2 ./adam \
        --checkpoints b --resume a --save again
    cmp whole again || fail "resumed under mpirun"
    rm -rf b
    ;;
esac
cp whole bad
flip bad $(($(wc -c <bad) - 2)) 6
ends 1 '"bad".*tensor "u"' ./adam --load bad --checkpoints b
ends 0 'step 1/1' ./adam --load whole --checkpoints b --steps 1
rm -rf b

# ---- the run so far ----------------------------------------------------------

cp good $file
ends 0 'the seed is 4' ./adam --checkpoints b --resume a --save again
cmp whole again || fail "resumed without --seed"
cp -r a c
ends 0 'step 6/6' ./adam --checkpoints c --resume c --seed 4 --save again
cmp whole again || fail "resumed with the same --seed"
rm -rf b
ends 1 '--seed 5.*seed 4' ./adam --checkpoints b --resume a --seed 5
ends 1 'adamw.*sgd with momentum' ./sgd --checkpoints b --resume a
ends 1 'adamw.*sgd' ./plain --checkpoints b --resume a
ends 1 'x\[batch=3, d=5\].*x\[batch=5, d=5\]' ./wide --checkpoints b --resume a
ends 1 'd=5.*d=6' ./long --checkpoints b --resume a
ends 2 '--load and --resume' ./adam --resume a --load good
ends 0 'nothing is left to train' ./adam --checkpoints c --resume c
ends 0 'nothing is left to train' ./adam --checkpoints c --resume c --seed 9

# ---- other data are told of --------------------------------------------------

cat >data.py <<'END'
import json, struct, sys
for name, n in ("one", 7), ("two", 8), ("other", 7):
    x = struct.pack("<%df" % (5 * n), *(i + len(name) for i in range(5 * n)))
    h = json.dumps({"x": {"dtype": "F32", "shape": [n, 5],
                          "data_offsets": [0, len(x)]}}).encode()
    open(name + ".safetensors", "wb").write(struct.pack("<Q", len(h)) + h + x)
# a checkpoint as it was before there were notes in it
raw = open("good", "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
h = json.loads(raw[8:8 + n])
assert h.pop("__metadata__")
h = json.dumps(h).encode()
open("old", "wb").write(struct.pack("<Q", len(h)) + h + raw[8 + n:])
END
python3 data.py || exit 77
build arrays 'sgd(lr = 0.001)' 'arrays("one.safetensors")'
ends 0 'step 6/6' ./arrays --checkpoints e
half e
cp one.safetensors moved.safetensors
for data in one two other moved; do
    rm -rf f
    ends 0 'step 6/6' ./arrays --checkpoints f --resume e \
        --data $data.safetensors
    case $data in one | moved) want=0 ;; *) want=1 ;; esac
    [ "$(grep -c 'other data' out)" = $want ] || fail "$data: $(cat out)"
done

# ---- old ones ------------------------------------------------------------------

cp old $file
rm -rf b
ends 0 'step 6/6' ./adam --checkpoints b --resume a --seed 4 --save again
cmp whole again || fail "resumed from an old checkpoint"
rm -rf b
ends 1 'holds "optimizer.2.w"' ./sgd --checkpoints b --resume a
[ $failed = 0 ]
