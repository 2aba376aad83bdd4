#!/bin/sh
# Schedules that are searched for, and measured times: ndc schedule auto, and
# --times of ndc and of ndc schedule.
. "$(dirname "$0")/../lib.sh"
cd "$work" || exit 2
# expect STATUS 'TEXT of stdout or stderr' arguments...
expect() {
    want=$1 text=$2
    shift 2
    "$ndc" "$@" >out 2>&1
    got=$?
    if [ $got -ne "$want" ] || ! grep -q -F -e "$text" out; then
        fail "ndc $*: status $got, expected $want and \"$text\""
        cat out
    fi
}

# Searched for: as zb_h1, as 1f1b would keep it, and in a vee.
expect 0 '27 slots' schedule auto --ranks 4 --microbatches 8
expect 0 '27 slots' schedule auto --ranks 4 --microbatches 8 --room 4
expect 0 'auto' schedule auto --ranks 4 --microbatches 8 --room 2
expect 0 '51 slots' schedule 'auto(2)' --ranks 4 --microbatches 8 --room 8
expect 1 'rank 0 keeps at least 2' schedule 'auto(2)' --ranks 2 \
    --microbatches 3 --room 1
expect 1 '--room zero: expected a number' schedule auto --ranks 2 \
    --microbatches 3 --room zero
expect 1 '--room goes with auto' schedule 1f1b --ranks 2 --microbatches 3 \
    --room 4

# Measured: the second stage is slow, so there is no gap in its row.
cat >times.csv <<'CSV'
stage,F,I,W,B,ahead,back
0,0.001,0.001,0.001,0.002,0.0001,0
1,0.003,0,0,0.006,0,0.0001
CSV
expect 0 '30.2 ms' schedule 1f1b --ranks 2 --microbatches 3 --times times.csv
expect 0 '28.' schedule auto --ranks 2 --microbatches 3 --times times.csv
"$ndc" schedule 1f1b --ranks 2 --microbatches 3 --emit=csv -o made.csv
expect 0 '30.2 ms' schedule made.csv --times times.csv
expect 1 'times.csv has the times of 2 stages; the schedule has 3' schedule 1f1b --ranks 3 \
    --microbatches 3 --times times.csv
expect 1 '--costs or --times FILE, not both' schedule 1f1b --ranks 2 --microbatches 3 \
    --times times.csv --costs 1,1,1
expect 1 'cannot read `none.csv`: No such file' schedule 1f1b --ranks 2 \
    --microbatches 3 --times none.csv
sed 's/0.003/0.003s/' times.csv >bad.csv
expect 1 'row 3, column 2 (F): `0.003s` is not a number' schedule 1f1b \
    --ranks 2 --microbatches 3 --times bad.csv

# Of a program.
cat >two.nd <<'ND'
plan {
  mesh     pp = 2
  pipeline layers -> pp
  microbatches 3
}
ND
gpt=$NDC_SOURCE/examples/gpt.nd
small="--set batch=6 --set d=66 --set seq=16 --set vocab=61"
expect 0 '30.' "$gpt" --plan two.nd $small --emit=schedule --times times.csv
expect 0 '30.' "$gpt" --plan two.nd $small --emit=schedule.svg --times times.csv
expect 0 'class="kept"' "$gpt" --plan two.nd $small --emit=schedule.svg
expect 0 ' KiB</text>' "$gpt" --plan two.nd $small --emit=schedule.svg
expect 1 '--times bad.csv: row 3, column 2' "$gpt" --plan two.nd $small \
    --emit=schedule --times bad.csv
expect 1 '--times none.csv: No such file' "$gpt" --plan two.nd $small \
    --emit=schedule --times none.csv
sed 2d times.csv | sed 's/^1/0/' >one.csv
expect 1 'it is of 1 stages; the program has 2' "$gpt" --plan two.nd $small \
    --emit=schedule --times one.csv
expect 2 '--emit=ast has no stages' "$gpt" --emit=ast --times times.csv

[ $failed -eq 0 ] || exit 1
echo "times: ok"
