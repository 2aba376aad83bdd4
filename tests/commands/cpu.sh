# cpu.sh - --cpu: the processor that a program is built for, and what the
# program says on one that has less.
. "$(dirname "$0")/../lib.sh"

cat >"$work/m.nd" <<'END'
axis n = 5
model m(x: f32[n]) {
  w = param [n] ~ normal(1)
  return mean[n](exp(w * x))
}
train m {
  steps = 2
}
END

# A name that nobody knows: an error, and nothing is written.
"$ndc" "$work/m.nd" --cpu=pentium9 -o "$work/none" 2>"$work/err"
[ $? = 2 ] || fail "status of a name that is not known"
grep -q -- '--cpu=pentium9: .* knows no such processor' "$work/err" ||
    fail "message: $(cat "$work/err")"
[ "$(ls "$work")" = "$(printf 'err\nm.nd')" ] || fail "left $(ls "$work")"
"$ndc" "$work/m.nd" --cpu=native --emit=c >"$work/out" 2>"$work/err"
[ $? = 2 ] || fail "--cpu with --emit=c"

# What the C compiler is told.
cat >"$work/cc" <<'END'
#!/bin/sh
echo "$@" >>"$0.args"
case "$*" in *-E*) ;; *) exit 1 ;; esac
END
chmod +x "$work/cc"
CC=$work/cc "$ndc" "$work/m.nd" -o "$work/told" 2>/dev/null
grep -q -- '-march=native .*-o' "$work/cc.args" || fail "-march=native"
CC=$work/cc "$ndc" "$work/m.nd" --cpu=core2 -o "$work/told" 2>/dev/null
grep -q -- '-march=core2 .*-o' "$work/cc.args" || fail "-march=core2"

[ "$(uname -m)" = x86_64 ] || exit $((failed > 0))

# For the oldest: starts although everything else is lacking.
"$ndc" "$work/m.nd" --cpu=x86-64 -o "$work/old" || fail "build for x86-64"
all=sse3,ssse3,sse4.1,sse4.2,popcnt,avx,avx2,bmi,bmi2,fma,avx512f
NDRT_CPU_LACKS=$all "$work/old" --help >"$work/out" 2>&1 ||
    fail "x86-64: $(cat "$work/out")"

grep -m 1 '^flags' /proc/cpuinfo | grep -qw avx2 || exit $((failed > 0))

# For x86-64-v3, where that is missing in part: says what to do. The check is
# before all else, --help too.
"$ndc" "$work/m.nd" --cpu=x86-64-v3 -o "$work/new" || fail "build for x86-64-v3"
NDRT_CPU_LACKS=avx2,fma,gfni "$work/new" --help >"$work/out" 2>"$work/err"
[ $? = 2 ] || fail "status of a program for a newer processor"
echo "m: error: this processor lacks fma, avx2, for which the program was" \
    "built; build it with --cpu=x86-64-v2" >"$work/want"
cmp -s "$work/err" "$work/want" || fail "message: $(cat "$work/err")"
[ -s "$work/out" ] && fail "output: $(cat "$work/out")"
[ $failed = 0 ]
