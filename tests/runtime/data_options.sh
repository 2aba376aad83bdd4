# data_options.sh - data that a program cannot use: refused before anything runs,
# with what would do.
. "$(dirname "$0")/../lib.sh"
[ -x "$ndc" ] || exit 77
export NDC_CFLAGS=-Og
cd "$work" || exit 2

compile() { # NAME DATA MORE
    cat >"$1.nd" <<ND
axis batch = 3
axis d = 5
model m(x: f32[batch, d]) {
  w = param [d] ~ normal(0.3)
  return mean[batch, d]((x - w) * (x - w))
}
train m {
  data = $2
  optimizer = sgd(lr = 0.1)
  steps = 1
  $3
}
ND
    "$ndc" "$1.nd" -o "$1" || fail "$1"
}
refuses() { # STATUS TEXT PROGRAM OPTIONS...
    want=$1 text=$2 name=$3
    shift 3
    timeout 60 "./$name" "$@" >out 2>&1
    got=$?
    [ $got = "$want" ] && [ "$(grep -c . out)" = 1 ] &&
        grep -q -F -e "$text" out || {
        cat out
        fail "status $got, expected $want and \"$text\": $name $*"
    }
}

compile arrays 'arrays("none.safetensors")' ''
compile made_up 'synthetic' ''
compile evaluates 'synthetic' 'eval = every(1)'
printf 'some text, which is no array of numbers' >o.bin
for name in arrays made_up; do
    refuses 1 '--data "o.bin": arrays need .safetensors or .npz' $name \
        --data o.bin
    refuses 1 'cannot read "none.npz"' $name --data none.npz
done
refuses 2 '--eval-data: the program evaluates nothing' arrays \
    --eval-data none.npz
refuses 2 '--eval-data: the program evaluates nothing' made_up \
    --data none.npz --eval-data none.npz
refuses 2 "--eval-data: the program's data are made up; give --data too" \
    evaluates --eval-data none.npz
refuses 1 'cannot read "none.npz"' evaluates --data none.npz \
    --eval-data none.npz
./evaluates >out 2>&1 || fail "without options"
[ $failed = 0 ]
