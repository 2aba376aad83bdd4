#!/bin/sh
# Does tests/run.sh notice what it must? A made-up `ndc` prints a file's lines
# that start with "say " to stdout and "err " to stderr, and exits with the
# number after "exit ".
set -u
run=$(cd "$(dirname "$0")/.." && pwd)/run.sh
dir=$(mktemp -d) || exit 2
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/build" "$dir/t"
cat >"$dir/build/ndc" <<'END'
#!/bin/sh
for f; do :; done
sed -n 's/^say //p' "$f"
sed -n 's/^err //p' "$f" >&2
exit "$(sed -n 's/^exit //p' "$f" | grep . || echo 0)"
END
chmod +x "$dir/build/ndc"
NDC_BUILD=$dir/build
NDC_HAVE="mpi"
export NDC_BUILD NDC_HAVE
bad=0

# expect STATUS TEXT FILE: run.sh exits so and its output holds the text.
expect() {
    out=$("$run" "$dir/t/$3" 2>&1)
    got=$?
    if [ $got -ne "$1" ] || ! printf '%s' "$out" | grep -q -e "$2"; then
        echo "$3: expected $1 and '$2', got $got and: $out"
        bad=1
    fi
}
file() { cat >"$dir/t/$1"; }

printf 'RUN: ndc %%s\nsay hello\n' | sed 's/^RUN/# RUN/' | file plain.nd
expect 1 "nothing to check" plain.nd
"$run" --bless "$dir/t/plain.nd" >/dev/null
expect 0 "ok" plain.nd
echo other >"$dir/t/plain.out"
expect 1 "+hello" plain.nd

file status.nd <<'END'
# RUN: ndc %s
# COUNT hello 1
say hello
exit 3
END
expect 1 "exit status 3, expected 0" status.nd

file count.nd <<'END'
# RUN: ndc %s
# COUNT all_reduce 2
say all_reduce [all_reduce]
say my_all_reduce %all_reduce = x.all_reduce
END
expect 0 ok count.nd
echo "say all_reduce" >>"$dir/t/count.nd"
expect 1 "'all_reduce' occurs 3 times, expected 2" count.nd

file error.nd <<'END'
x = 1  # ERROR: bad x  # ERROR: again
# ERROR@+1: bad y
y = 2
err error.nd:1:5: error: very bad x indeed
err error.nd:1:9: error: again
err error.nd:3:5: error: bad y
exit 1
END
expect 0 ok error.nd
echo "err error.nd:3:5: error: surprise" >>"$dir/t/error.nd"
expect 1 "unexpected: .*surprise" error.nd

file warning.nd <<'END'
x = 1  # ERROR: bad x
err warning.nd:1:5: error: bad x
err warning.nd:1:5: warning: odd x
err warning.nd:1:5: perf: slow x
exit 1
END
expect 1 "unexpected: .*odd" warning.nd

file line.nd <<'END'
x = 1
y = 2  # ERROR: bad x
err line.nd:1:5: error: bad x
exit 1
END
expect 1 "missing: line 2: error: bad x" line.nd

file zero.nd <<'END'
x = 1  # ERROR: bad x
err zero.nd:1:5: error: bad x
END
expect 1 "exit status 0, expected 1" zero.nd

file usage.nd <<'END'
# RUN: ndc %s
# EXIT: 2
# COUNT x 0
exit 2
END
expect 0 ok usage.nd

printf '# REQUIRES: mpi cuda\n' | file need.nd
expect 77 "needs cuda" need.nd
printf '# SKIP: because\n' | file skip.nd
expect 77 because skip.nd

# The made-up ndc is not a printer: what it prints is not what it reads.
printf 'say say a\nsay say b\n' | file trip.ndir
expect 1 "changes on the second trip" trip.ndir
exit $bad
