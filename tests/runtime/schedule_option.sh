# schedule_option.sh - --schedule and --microbatches: what a program runs instead
# of its own schedule, and what it refuses, with the reason, before it starts.
. "$(dirname "$0")/../lib.sh"
[ -x "$ndc" ] || exit 77
[ -n "${NDC_LONG:-}" ] || export NDC_CFLAGS=-Og

compile() { # NAME PIPELINE BATCH
    printf 'plan {\n  mesh pp = 2\n  pipeline layers -> pp, %s\n}\n' "$2" \
        >"$work/plan"
    sed -e '/^plan/,$d' -e 's/^  data .*/  data = synthetic/' \
        "$NDC_SOURCE/tests/cases/g.nd" >"$work/g.nd"
    "$ndc" "$work/g.nd" --plan "$work/plan" --set batch="$3" --set seq=4 \
        --set layers=4 -o "$work/$1" 2>"$work/err" || {
        cat "$work/err"
        fail "$1"
    }
}

refuses() { # STATUS WORDS PROGRAM OPTIONS...
    want=$1 words=$2 name=$3
    shift 3
    timeout 60 "$work/$name" --steps 1 "$@" >"$work/out" 2>&1
    got=$?
    [ $got = "$want" ] || fail "status $got, expected $want: $name $*"
    grep -q -e "$words" "$work/out" || {
        cat "$work/out"
        fail "no \"$words\": $name $*"
    }
    grep -q '^step 1/' "$work/out" && fail "it ran: $name $*"
}

runs() { # PROGRAM OPTIONS...
    name=$1
    shift
    timeout 60 "$work/$name" --steps 1 --save "$work/w" "$@" >"$work/out" 2>&1 || {
        cat "$work/out"
        fail "$*"
    }
}

compile whole "schedule = 1f1b, microbatches = 2" 7
compile halves "schedule = zb_h1, microbatches = 2" 7
compile two "schedule = interleaved(2), microbatches = 2" 7
compile one "schedule = 1f1b, microbatches = 1" 7
compile even "schedule = 1f1b, microbatches = 2" 8

refuses 2 'two halves (0I0), the program in one' whole --schedule zb_h1
refuses 2 'has 2 stages per device, the program was compiled with 1' \
    whole --schedule zb_v
refuses 2 'changes what is computed' whole --schedule pipedream
refuses 2 'only the compiler knows' whole --schedule auto
refuses 2 'no schedule is called "one_f_one_b"; there are gpipe 1f1b' \
    whole --schedule one_f_one_b
refuses 2 'has stage 2 on rank 1, the program on 0' two --schedule zb_v
refuses 2 '"0" is not a number of that kind (at least 1, whole)' \
    whole --microbatches 0
refuses 2 'room for 4: 2 to 7 fit; or compile it for 1' whole --microbatches 1
refuses 2 'all of size 4 (batch/micro), which is a constant in it: only 2 fit; compile it for 4' \
    even --microbatches 4
refuses 2 'compiled for 1, and nothing in it is cut in more; compile it for 2' \
    one --microbatches 2
refuses 2 'is not a number of that kind' whole --microbatches 4294967299
refuses 2 'legal are' two --schedule 'interleaved(2)' --microbatches 5

refuses 2 'no schedule is called "bfs"; there are gpipe 1f1b .* bfs(2) ' \
    two --schedule bfs
refuses 1 'cannot read "./none"' two --schedule ./none

# A file: its own microbatches, with messages or without.
printf '0F0,0F1,0F2,0B0,0B1,0B2\n,1F0,1B0,1F1,1B1,1F2,1B2\n' >"$work/three.csv"
runs whole --schedule "$work/three.csv"
mv "$work/w" "$work/file"
runs whole --schedule gpipe --microbatches 3
cmp "$work/w" "$work/file" || fail "a file and gpipe differ"
runs whole --microbatches 3
cmp "$work/w" "$work/file" || fail "1f1b and gpipe differ"
runs halves --schedule "$work/three.csv"
refuses 2 'nothing in it is cut' one --schedule "$work/three.csv"
refuses 2 'has 3 microbatches, --microbatches says 4' whole \
    --schedule "$work/three.csv" --microbatches 4
{
    echo 0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1
    echo 1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1
} >"$work/two.csv"
runs whole --schedule "$work/two.csv"

# Faults are told with the rows around them.
printf '0F0,0B0,0F1,0B1\n1F0,1F1,1B1,1B0,1B0\n' >"$work/twice.csv"
refuses 1 '1B0' whole --schedule "$work/twice.csv"
{
    echo 0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1
    echo 1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1
} >"$work/hangs.csv"
refuses 1 'rank 0' whole --schedule "$work/hangs.csv"
printf '0F0,0X0\n1F0,1B0\n' >"$work/word.csv"
refuses 1 '`0X0` is no action' whole --schedule "$work/word.csv"
[ $failed = 0 ]
