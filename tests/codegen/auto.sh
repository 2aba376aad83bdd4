#!/bin/sh
# schedule = auto: what is chosen as memory shrinks and messages take longer, that
# it is as fast as the best schedule with a name, that the program has the bytes
# that were told, and that it computes what 1f1b computes, every bit.
. "$(dirname "$0")/../lib.sh"
[ -n "${NDC_LONG:-}" ] || export NDC_CFLAGS=-Og
cd "$work" || exit 2

cat >model.nd <<'ND'
axis batch = 48
axis d = 13
axis ffn = 61
axis layers = 9
use nn
model m(x: f32[batch, d]) {
  y = linear[d -> d](x) as first
  repeat layers {
    h = gelu(linear[d -> ffn](rmsnorm[d](y) as n) as up)
    y = y + linear[ffn -> d](h) as down
  }
  return mean[batch](mse[d](y, x))
}
train {
  data      = synthetic
  optimizer = sgd(lr = 0.01)
  clip      = 0
}
ND
large="--set batch=2048 --set d=512 --set ffn=2048 --set layers=16"

# plan SCHEDULE MORE [PP [M]]
plan() {
    printf 'plan {\n  mesh pp = %s\n  pipeline layers -> pp, schedule = %s, ' \
        "${3:-4}" "$1"
    printf 'microbatches = %s%s\n}\n' "${4:-8}" "${2:+, $2}"
}

# table SCHEDULE MORE SIZES [PP [M]]: the rows as
# "name|ns|bytes|remark|ns of the last digit"
table() {
    plan "$1" "$2" "${4:-4}" "${5:-8}" >p.nd
    "$ndc" model.nd --plan p.nd $3 --emit=plan >report || {
        fail "no plan: $*"
        return 1
    }
    awk '/^schedule auto/ { on = 1; getline; next }
         !NF { on = 0 }
         on && / a step / {
             sub(/^ +/, "")
             gsub(/,/, "")
             name = $0
             sub(/ +[0-9.]+ [num]?s a step.*/, "", name)
             rest = substr($0, length(name) + 1)
             split(rest, f, " ")
             unit["s"] = 1e9; unit["ms"] = 1e6; unit["us"] = 1e3; unit["ns"] = 1
             printf "%s|%.0f|%s|%s %s|%.0f\n", name, f[1] * unit[f[2]], f[5],
                 f[7], f[8], unit[f[2]] / 10
         }' report >rows
    grep -q chosen rows || fail "nothing is chosen: $*"
}

chosen() {
    sed -n 's/|.*|chosen.*//p' rows
}

bytes_of() {
    awk -F'|' -v n="$1" '$1 == n { print $3 }' rows
}

# Is it within the limit, exact, and as fast as what has a name and fits? Times
# are told to a tenth, which is more than 1.5% of small ones.
sound() {
    awk -F'|' -v limit="$1" '
        $4 ~ /chosen/ { time = $2; bytes = $3 }
        { name[NR] = $1; t[NR] = $2; b[NR] = $3; remark[NR] = $4
          slack[NR] = 0.015 * $2 > $5 ? 0.015 * $2 : $5 }
        END {
            bad = limit && bytes > limit
            for (i = 1; i <= NR; i++) {
                if (b[i] <= limit && t[i] + slack[i] < time) {
                    print name[i] " fits and is faster"
                    bad = 1
                }
                if (limit && (b[i] > limit) != (remark[i] ~ /too many/)) {
                    print name[i] " is told wrong"
                    bad = 1
                }
            }
            exit bad
        }' rows || fail "limit $1"
    least=$(awk -F'|' '$4 ~ /chosen/ { print $3 }' rows)
    grep -q "^  memory .*($(echo "$least" | sed ':a
        s/\([0-9]\)\([0-9][0-9][0-9]\)\($\|,\)/\1,\2\3/
        ta') bytes)" report || fail "$least bytes are told, the program has $(
        grep '^  memory ' report)"
}

# ---- what is chosen ------------------------------------------------------------

# Without a limit as fast as can be, but not with much more memory for nothing.
table auto '' "$large"
[ "$(chosen)" = zb_v ] || fail "large: $(chosen)"
[ "$("$ndc" model.nd --plan p.nd $large --emit=schedule | sed 's/:.*//;q')" = \
    zb_v ] || fail "the name of the schedule"

# Less and less memory: what each of these needs, and it is chosen or beaten.
cp rows all
slower=0
for name in zb_v v_half v_min; do
    limit=$(awk -F'|' -v n=$name '$1 == n { print $3 }' all)
    table auto "memory = $limit" "$large"
    sound "$limit"
    now=$(awk -F'|' '$4 ~ /chosen/ { print $2 }' rows)
    [ "$now" -ge "$slower" ] || fail "less memory is faster: $name"
    slower=$now
    last=$(chosen)
done
case $last in v_min | 'auto(2) in a vee') ;; *) fail "at v_min's: $last" ;; esac
table 'auto(1)' '' "$large"
cp rows all
found=
for name in zb_h2 zb_h1 1f1b; do
    limit=$(awk -F'|' -v n=$name '$1 == n { print $3 }' all)
    table 'auto(1)' "memory = $limit" "$large"
    sound "$limit"
    found="$found $(sed -n 's/^  [0-9] stage.* backward in //p' report |
        head -1),"
done
[ "$found" = ' two halves, two halves, one,' ] || fail "halves: $found"

# The same model where messages take all the time: no stage more than needed.
table auto '' '--set layers=16'
case $(chosen) in auto | gpipe | zb_h2) ;; *) fail "small: $(chosen)" ;; esac

# Where there are too few layers, no more stages; where one device, no pipeline.
table auto '' '--set layers=5'
! grep -q '(2)' rows || fail 'two stages for one layer'
plan auto '' 1 >p.nd
"$ndc" model.nd --plan p.nd --emit=schedule | grep -q '^no pipeline' ||
    fail 'p = 1'
plan auto 'stages = [1, 1, 1, 1, 1, 1, 1, 2]' >p.nd
"$ndc" model.nd --plan p.nd --emit=plan | grep -q ' 2 stages on a device' ||
    fail 'stages say how many'

# What does not fit: how much it needs.
plan auto 'memory = 47000' >p.nd
if "$ndc" check model.nd --plan p.nd >out 2>&1 ||
    ! grep -q 'no schedule fits a device in 47000 bytes' out ||
    ! grep -q 'needs least: [0-9]* bytes on device [0-9], of which' out; then
    fail 'no room'
    cat out
fi

# recompute auto gives the limit; the program is within it.
printf 'plan {\n  mesh pp = 4\n  pipeline layers -> pp, schedule = auto, %s\n%s' \
    'microbatches = 8' '  recompute auto(95000000)
}
' >p.nd
"$ndc" model.nd --plan p.nd $large --emit=plan >report ||
    fail 'recompute auto beside auto'
awk '/^  memory  / { sub(/.*\(/, ""); gsub(/,/, ""); n = $1 }
     END { exit !(n > 0 && n <= 95000000) }' report ||
    fail "recompute auto: $(grep '^  memory ' report)"

# ---- the same text again, in time -----------------------------------------------

plan auto 'memory = 9000000' 8 32 >p.nd
for i in 1 2; do
    (ulimit -t 20 && "$ndc" model.nd --plan p.nd --set layers=32 --emit=c \
        --set batch=96 --set d=64 --set ffn=256 -o out$i.c) || fail "p = 8"
done
cmp out1.c out2.c || fail 'not the same again'
grep -q '^ \* *schedule auto, at most 9,000,000 bytes' out1.c ||
    fail 'nothing in the header'

# ---- it computes what 1f1b computes ---------------------------------------------

plan 1f1b '' 3 7 >p.nd
"$ndc" model.nd --plan p.nd -o base &&
    ./base --steps 3 --micro-losses --save base.safetensors >base.log 2>&1 ||
    fail '1f1b does not run'
for how in 'auto' 'auto(2)' 'auto(3)' 'auto|memory = 60000'; do
    more=${how#"${how%%|*}"}
    plan "${how%%|*}" "${more#|}" 3 7 >p.nd
    rm -f two two.safetensors
    "$ndc" model.nd --plan p.nd -o two &&
        ./two --steps 3 --micro-losses --save two.safetensors >two.log 2>&1
    cmp base.safetensors two.safetensors || fail "$how: other weights"
    grep microbatch base.log >x
    grep microbatch two.log | cmp -s - x || fail "$how: other losses"
    "$ndc" verify model.nd --plan p.nd | grep -q '^equal to one device' ||
        fail "$how: verify"
done

# ---- measured times -------------------------------------------------------------

plan 'auto(2)' '' 3 7 >p.nd
"$ndc" model.nd --plan p.nd -o two && ./two --steps 3 --times times.csv >log 2>&1
plan auto '' 3 7 >p.nd
"$ndc" model.nd --plan p.nd --times times.csv --emit=plan >report
grep -q 'times of 6 stages are given' report || fail 'measured times'
! grep -q '^  1f1b ' report || fail 'one stage has no times'
head -6 times.csv >five.csv
"$ndc" model.nd --plan p.nd --times five.csv --emit=plan 2>&1 |
    grep -q 'of 5 stages; auto tries 1, 2 and 4' || fail 'times of five stages'
{ head -1 times.csv; sed -n '2,4p' times.csv | awk -F, -v OFS=, \
    '{ $6 = NR < 3 ? 10 : 0; $7 = NR > 1 ? 10 : 0; print }'; } >slow.csv
"$ndc" model.nd --plan p.nd --times slow.csv --emit=plan >report
grep -q '^  gpipe .*chosen\|^  auto .*chosen' report || fail 'slow messages'

[ $failed -eq 0 ] || exit 1
echo "auto: ok"
