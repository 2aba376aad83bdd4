# generated.sh - what the runtime's header and tables mean inside a whole
# program: division by integers that only data decide, and wsd's decay.
. "$(dirname "$0")/../lib.sh"
diff=$NDC_BUILD/tests/nd_diff
[ -x "$ndc" ] && [ -x "$diff" ] || exit 77

# The evaluator and the program agree on x // 0, x % 0 and the least integer.
cat >"$work/division.nd" <<'END'
axis batch = 6
axis seq = 5
model m(x: i32[batch, seq], y: i32[batch, seq]) {
  w = param [seq] ~ normal(0.5)
  zero = y - y
  least = (zero - 2147483647) - 1
  a = x // zero + x % zero + 3
  b = x // (zero - 1) + x % (zero - 1)
  c = least % (zero - 1)
  d = where(least // (zero - 1) == least, 5, 7)
  e = (0 - x) // (y % 3 - 1) + (0 - x) % (y % 3 - 1)
  return mean[batch, seq](w * w * (a + b + c + d + e))
}
train m {
  steps = 1
}
END
"$diff" --work "$work/p" "$work/division.nd" >"$work/out" 2>&1 || {
    cat "$work/out"
    fail "division"
}

# rates OPTIONS...: the learning rates of the steps, in one line
rates() {
    "$work/wsd" --log "$work/log" "$@" >"$work/out" 2>&1 || fail "wsd $*"
    sed 's/.*"lr":\([^,]*\),.*/\1/' "$work/log" | tr '\n' ' '
}
# wsd DECAY: a program of 10 steps with that decay
wsd() {
    cat >"$work/wsd.nd" <<END
axis batch = 2
axis d = 3
model m(x: f32[batch]) {
  w = param [d] ~ ones
  return mean[batch, d](w * w * x)
}
train m {
  data = synthetic
  optimizer = sgd(lr = wsd(1.0, warmup = 0$1))
  steps = 10
}
END
    "$ndc" "$work/wsd.nd" -o "$work/wsd" 2>"$work/err" || {
        cat "$work/err"
        fail "ndc, wsd$1"
    }
}
is() {
    [ "$1" = "$2" ] || fail "rates \"$1\", expected \"$2\""
}
wsd ', decay = 0.5'
is "$(rates)" '1 1 1 1 1 0.8 0.6 0.4 0.2 0 '
is "$(rates --steps 4)" '1 1 0.5 0 '
wsd ', decay = 4'
is "$(rates)" '1 1 1 1 1 1 0.75 0.5 0.25 0 '
wsd ''
is "$(rates)" '1 1 1 1 1 1 1 1 0.5 0 '
wsd ', decay = 0'
is "$(rates)" '1 1 1 1 1 1 1 1 1 1 '
[ $failed = 0 ]
