#!/bin/sh
# ndc schedule: makes, reads, proves and shows schedules; what it writes it
# reads, and others read. The same forms of a program's own schedule.
. "$(dirname "$0")/../lib.sh"
cd "$work" || exit 2
schedule() {
    "$ndc" schedule "$@" >out 2>err || fail "ndc schedule $*: $(cat err)"
}
# expect STATUS TEXT ARGUMENTS: ends so, says that, prints nothing
expect() {
    want=$1 text=$2
    shift 2
    "$ndc" schedule "$@" >out 2>err
    got=$?
    [ $got -eq "$want" ] && grep -q -F -e "$text" err && [ ! -s out ] ||
        fail "ndc schedule $*: status $got, expected $want and \"$text\""
}

# All kinds: as CSV, with messages, and back.
schedule --list
sed 's/ .*//; s/(v)/(2)/' out >names
[ "$(wc -l <names)" -ge 12 ] || fail "few schedules: $(cat names)"
while read -r name; do
    schedule "$name" --ranks 3 --microbatches 9
    sed 1d out >drawn
    for form in csv comms; do
        schedule "$name" --ranks 3 --microbatches 9 --emit=$form -o x.csv
        [ ! -s out ] || fail "$name: something on stdout"
        schedule x.csv
        sed 1d out | cmp -s - drawn || fail "$name: x.csv, $form, looks different"
        schedule x.csv --emit=$form
        cmp -s out x.csv || fail "$name: x.csv, $form, is written differently"
    done
    schedule "$name" --ranks 3 --microbatches 9 --emit=svg -o x.svg
    schedule "$name" --ranks 3 --microbatches 9 --emit=json --costs 1,.5,.5,.1 \
        -o x.json
    cp x.svg "$(echo "$name" | tr -d '()').svg"
    cp x.json "$(echo "$name" | tr -d '()').json"
done <names

# Perfetto and browsers would read them.
if command -v python3 >/dev/null; then
    python3 - *.svg *.json <<'PY' || fail "not what JSON and XML are"
import json, sys
import xml.dom.minidom as xml

for path in sys.argv[1:]:
    if path.endswith(".svg"):
        xml.parse(path)
        continue
    events = json.load(open(path))["traceEvents"]
    arrows = {}
    for e in events:
        assert e["ph"] in "MXsfC" and 0 <= e["pid"] < 3, e
        if e["ph"] == "X":
            assert e["tid"] in (0, 1) and e["dur"] >= 0, e
            assert e["name"] == "%d%s%d" % (
                e["args"]["stage"], e["cat"], e["args"]["microbatch"]), e
        if e["ph"] in "sf":
            arrows.setdefault(e["id"], []).append(e)
    for a, b in arrows.values():
        assert a["ph"] == "s" and b["ph"] == "f", (path, a, b)
        assert a["pid"] != b["pid"] and a["ts"] <= b["ts"], (path, a, b)
    # A device computes one thing at a time; those of a pair are one.
    for pid in range(3):
        spans = sorted({(e["ts"], e["ts"] + e["dur"]) for e in events
                        if e["ph"] == "X" and e["pid"] == pid and
                        e["tid"] == 0 and e["dur"] > 0})
        for a, b in zip(spans, spans[1:]):
            assert a[1] <= b[0] + 1e-6, (path, a, b)
PY
fi

# What is wrong is named, with the table around it.
printf '0F0,0F1,0B0,0B1\n1F0,1B1,1F1,1B0\n' >bad.csv
expect 1 "bad.csv: rank 1: 1B1 needs 1F1 first, which comes later" bad.csv
grep -q 'note: rank 1  1F0 1B1 1F1 1B0 .*<-- 1B1' err ||
    fail "no table: $(cat err)"
printf '0F0,0B0\n1F0,,2BW0\n' >worse.csv
expect 1 "worse.csv: row 2, column 6: \`2BW0\` is no action" worse.csv
expect 1 "cannot read \`none.csv\`" none.csv
expect 1 "did you mean \`1f1b\`?" 1f2b --ranks 2 --microbatches 2
expect 1 "did you mean \`interleaved(2)\`?" interleaved
expect 1 "for --ranks P and --microbatches M" gpipe --ranks 2
expect 1 "error: dualpipe_v over p = 3 ranks: m >= 2 p" \
    dualpipe_v --ranks 3 --microbatches 3
expect 1 "--ranks 0: expected a number from 1" gpipe --ranks 0 --microbatches 1
expect 1 "--microbatches 1x: expected" gpipe --ranks 1 --microbatches 1x
expect 1 "--costs 1,2: expected" gpipe --ranks 2 --microbatches 2 --costs 1,2
expect 1 "--costs 1,2,-1: exp" gpipe --ranks 2 --microbatches 2 --costs 1,2,-1
expect 1 "--costs 1,2,3,4,5: exp" gpipe --costs 1,2,3,4,5
expect 1 "--emit=png: a schedule is shown as" gpipe --emit=png
expect 1 "more than 20 million" gpipe --ranks 4096 --microbatches 99999
expect 2 "no schedule and no file"
expect 2 "a second schedule: \`b\`" a b
expect 2 "unknown option \`--rank\`; did you mean \`--ranks\`?" gpipe --rank 2
schedule gpipe --ranks 2 --microbatches 2 --emit=csv -o good.csv
cat >times.csv <<'CSV'
stage,F,I,W,B,ahead,back
0,0.002,0,0,0.004,0,0
1,0.003,0,0,0.006,0,0
CSV
schedule good.csv --times times.csv
grep -q '^good.csv: 2 stages, 2 microbatches, 24 ms, ' out ||
    fail "other times: $(cat out)"
schedule 'auto' --ranks 2 --microbatches 2 --times times.csv
expect 1 "times.csv has the times of 2 stages; the schedule has 3" gpipe \
    --ranks 3 --microbatches 2 --times times.csv
expect 1 "not both" gpipe --times times.csv --costs 1,1,1
expect 1 "good.csv: row 1" gpipe --ranks 2 --microbatches 2 --times good.csv
expect 1 "it is for 2 ranks and 2 microbatches" good.csv --ranks 3
expect 1 "is the source file" good.csv --emit=csv -o good.csv

# A program's own: the file that it writes is a plan's schedule again.
cp "$NDC_SOURCE/tests/passes/schedule/one_f_one_b.nd" a.nd
for form in schedule schedule.csv schedule.comms.csv schedule.svg \
    schedule.json; do
    "$ndc" a.nd --emit=$form -o "x.$form" || fail "--emit=$form"
done
grep -q '^stage 0 | F0' x.schedule || fail "no timeline"
grep -q '^0F0,0F1' x.schedule.csv || fail "no computations"
grep -q '0SEND_F0' x.schedule.comms.csv || fail "no messages"
if command -v python3 >/dev/null; then
    python3 -c 'import json, xml.dom.minidom as x
json.load(open("x.schedule.json")); x.parse("x.schedule.svg")' ||
        fail "not what JSON and XML are"
fi

# Each rank's figures, in both meanings of the bubble.
schedule 1f1b --ranks 4 --microbatches 8 --emit=figures
grep -q '^   3    24 slots     3 slots    27 slots .* 27.3%    37.5%          1$' \
    out || fail "no figures: $(cat out)"

# A program's own, of whose last stage nothing comes back: read again.
cat >vee.nd <<'ND'
plan {
  mesh     pp = 4
  pipeline layers -> pp, schedule = zb_v, microbatches = 8
}
ND
"$ndc" "${NDC_SOURCE:-../..}/examples/gpt.nd" --plan vee.nd --set batch=16 \
    --set seq=16 --set d=24 --set heads=3 --set layers=8 --set ffn=48 \
    --emit=schedule.comms.csv -o own.csv || fail "own schedule"
schedule own.csv

[ $failed = 0 ]
