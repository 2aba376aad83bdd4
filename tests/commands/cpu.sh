# cpu.sh - --cpu: the processor that a program is built for, and what the
# program says on one that has less.
ndc=$NDC_BUILD/ndc
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
bad=0

fail() {
    echo "FAIL: $*"
    bad=1
}

cat >"$dir/m.nd" <<'END'
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
"$ndc" "$dir/m.nd" --cpu=pentium9 -o "$dir/none" 2>"$dir/err"
[ $? = 2 ] || fail "status of a name that is not known"
grep -q -- '--cpu=pentium9: .* knows no such processor' "$dir/err" ||
    fail "message: $(cat "$dir/err")"
[ "$(ls "$dir")" = "$(printf 'err\nm.nd')" ] || fail "left $(ls "$dir")"
"$ndc" "$dir/m.nd" --cpu=native --emit=c >"$dir/out" 2>"$dir/err"
[ $? = 2 ] || fail "--cpu with --emit=c"

# What the C compiler is told.
cat >"$dir/cc" <<'END'
#!/bin/sh
echo "$@" >>"$0.args"
case "$*" in *-E*) ;; *) exit 1 ;; esac
END
chmod +x "$dir/cc"
CC=$dir/cc "$ndc" "$dir/m.nd" -o "$dir/told" 2>/dev/null
grep -q -- '-march=native .*-o' "$dir/cc.args" || fail "-march=native"
CC=$dir/cc "$ndc" "$dir/m.nd" --cpu=core2 -o "$dir/told" 2>/dev/null
grep -q -- '-march=core2 .*-o' "$dir/cc.args" || fail "-march=core2"

[ "$(uname -m)" = x86_64 ] || exit $bad

# For the oldest: starts although everything else is lacking.
"$ndc" "$dir/m.nd" --cpu=x86-64 -o "$dir/old" || fail "build for x86-64"
all=sse3,ssse3,sse4.1,sse4.2,popcnt,avx,avx2,bmi,bmi2,fma,avx512f
NDRT_CPU_LACKS=$all "$dir/old" --help >"$dir/out" 2>&1 ||
    fail "x86-64: $(cat "$dir/out")"

grep -m 1 '^flags' /proc/cpuinfo | grep -qw avx2 || exit $bad

# For x86-64-v3, where that is missing in part: says what to do. The check is
# before all else, --help too.
"$ndc" "$dir/m.nd" --cpu=x86-64-v3 -o "$dir/new" || fail "build for x86-64-v3"
NDRT_CPU_LACKS=avx2,fma,gfni "$dir/new" --help >"$dir/out" 2>"$dir/err"
[ $? = 2 ] || fail "status of a program for a newer processor"
echo "m: error: this processor lacks fma, avx2, for which the program was" \
    "built; build it with --cpu=x86-64-v2" >"$dir/want"
cmp -s "$dir/err" "$dir/want" || fail "message: $(cat "$dir/err")"
[ -s "$dir/out" ] && fail "output: $(cat "$dir/out")"
exit $bad
