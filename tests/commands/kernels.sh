# kernels.sh - --kernels, --emit=llvm and --emit=asm: who makes loop kernels, for
# which processor, and what one must not ask for.
ndc=$NDC_BUILD/ndc
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
bad=0

fail() {
    echo "FAIL: $*"
    bad=1
}

cat >"$dir/m.nd" <<'END'
axis n = 64
axis d = 37
model m(x: f32[n, d]) {
  w = param [d] ~ normal(1)
  return mean[n, d](exp(w * x) + random_normal[n, d])
}
train m {
  steps = 2
}
END

"$ndc" "$dir/m.nd" --emit=llvm -o "$dir/m.ll" 2>"$dir/err" || {
    cat "$dir/err"
    grep -q 'built without LLVM' "$dir/err" && exit 77
    exit 1
}

# What LLVM makes, and what it does not.
grep -q 'define void @m_bwd(ptr' "$dir/m.ll" || fail "no kernel in the IR"
grep -q '<16 x float>' "$dir/m.ll" || fail "no vectors in the IR"
grep -q '^; m_fwd draws normal numbers: the C compiler makes it' "$dir/m.ll" ||
    fail "a kernel by C is not told of"
grep -q '@m_fwd' "$dir/m.ll" && fail "a kernel by both"

# For which processor.
if [ "$(uname -m)" = x86_64 ]; then
    for v in v3:ymm:zmm v4:zmm:none; do
        IFS=: read -r cpu has lacks <<END
$v
END
        "$ndc" "$dir/m.nd" --emit=asm --cpu=x86-64-$cpu -o "$dir/m.s" ||
            fail "--cpu=x86-64-$cpu"
        grep -q "%$has" "$dir/m.s" || fail "$cpu: no $has"
        grep -q "%$lacks" "$dir/m.s" && fail "$cpu: $lacks"
    done
fi

# By whom, unless told: LLVM, but not where flags are meant for kernels. What is
# left to read is the whole program either way.
(unset NDC_CFLAGS && "$ndc" "$dir/m.nd" -o "$dir/m") || fail "the default"
"$ndc" "$dir/m.nd" --emit=c -o "$dir/whole.c"
cmp -s "$dir/m.c" "$dir/whole.c" || fail "not the whole program in C"
grep -q '^NDC_SANITIZE:STRING=.' "$NDC_BUILD/CMakeCache.txt" ||
    nm "$dir/m" | grep -q ' T m_bwd' || fail "a kernel that LLVM has not made"
NDC_CFLAGS=-Og "$ndc" "$dir/m.nd" -o "$dir/m" || fail "with flags"
nm "$dir/m" | grep -q ' T m_bwd' && fail "flags for a kernel by LLVM"

# A C compiler that fails: the whole program stays, and nothing else.
mkdir "$dir/bad"
printf '#!/bin/sh\ncase $* in *-E*) exec cc "$@" ;; esac\nexit 1\n' >"$dir/no_cc"
chmod +x "$dir/no_cc"
CC=$dir/no_cc "$ndc" "$dir/m.nd" --kernels=llvm -o "$dir/bad/m" 2>"$dir/err"
[ $? = 3 ] || fail "status of a C compiler that fails"
cmp -s "$dir/bad/m.c" "$dir/whole.c" || fail "not the whole program is kept"
[ "$(ls "$dir/bad")" = m.c ] || fail "left behind: $(ls "$dir/bad")"

# refused MESSAGE OPTIONS...
refused() {
    want=$1
    shift
    "$ndc" "$dir/m.nd" "$@" >"$dir/out" 2>"$dir/err"
    [ $? = 2 ] || fail "status of $*"
    grep -q -- "$want" "$dir/err" || fail "$*: $(cat "$dir/err")"
}
refused '--kernels=fast: kernels are made by `c` or by `llvm`' --kernels=fast
refused '--kernels: --emit=llvm builds nothing' --kernels=llvm --emit=llvm
refused 'no such processor' --emit=asm --cpu=pentium9
refused '--cpu: --emit=c builds nothing' --emit=c --cpu=x86-64-v3
exit $bad
