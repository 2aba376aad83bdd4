#!/bin/sh
# run.sh [--bless] FILE... - runs test files whose comments say what to expect.
#
#   # RUN: ndc %s --emit=ir      a command; %s the file, %t a scratch prefix.
#                                Without RUN: .ndir files are read and printed
#                                twice (the round trip), .nd files compiled.
#   foo.out beside foo.nd        what all RUN lines print to stdout
#   # COUNT all_reduce 2         so many times that word is in stdout
#   x = y   # ERROR: text        an error with that text on this line, exit
#                                status 1; WARNING: and PERF: likewise; and no
#                                other errors or warnings. ERROR@+1: is about
#                                the next line, ERROR@3: about line 3
#   # EXIT: 2                    another exit status
#   # REQUIRES: mpi              skipped (77) unless $NDC_HAVE lists the word
#   # SKIP: reason               skipped, and the reason is printed
#
# Commands run in the file's folder, so that output holds no machine's paths;
# `ndc` and the programs of tests/tools are on PATH. --bless writes foo.out.
# NDC_BUILD names the build folder (default: build beside tests).
set -u

here=$(cd "$(dirname "$0")" && pwd)
build=${NDC_BUILD:-$here/../build}
build=$(cd "$build" 2>/dev/null && pwd) || {
    echo "run.sh: no build folder; configure first" >&2
    exit 2
}
PATH=$build:$build/tests:$PATH
export PATH

bless=no
if [ "${1:-}" = --bless ]; then
    bless=yes
    shift
fi
[ $# -gt 0 ] || {
    echo "usage: run.sh [--bless] FILE..." >&2
    exit 2
}

tmp=$(mktemp -d "${TMPDIR:-/tmp}/ndc-test.XXXXXX") || exit 2
trap 'rm -rf "$tmp"' EXIT
trap 'exit 2' HUP INT TERM

fail() {
    echo "FAIL $file: $*"
    [ -s "$tmp/err" ] && sed 's/^/  | /' "$tmp/err" | head -40
    return 1
}

# The text after `# WORD:` at the start of a line.
directive() {
    sed -n "s/^# *$1: *//p" "$base"
}

# Compares the diagnostics in $tmp/err with the annotations in the file.
# Prints what is missing or unexpected; exits 0 if all agree.
match_diagnostics() {
    awk -v name="$base" '
    BEGIN { note = "# (ERROR|WARNING|PERF)(@[+-]?[0-9]+)?: " }
    FNR == NR {
        s = $0
        while (match(s, note)) {
            head = substr(s, RSTART + 2, RLENGTH - 4)
            s = substr(s, RSTART + RLENGTH)
            text = match(s, note) ? substr(s, 1, RSTART - 1) : s
            sub(/[ \t]+$/, "", text)
            kind = tolower(head)
            sub(/@.*/, "", kind)
            line = FNR
            if (sub(/^[A-Z]*@/, "", head))
                line = (head ~ /^[+-]/) ? FNR + head : head + 0
            n++
            at[n] = line; want[n] = text; what[n] = kind
            wanted[kind] = 1
        }
        next
    }
    match($0, /^[^ :]+:[0-9]+:[0-9]+: (error|warning|perf): /) {
        split($0, part, ":")
        kind = part[4]
        sub(/^ /, "", kind)
        text = substr($0, RSTART + RLENGTH)
        found = 0
        for (i = 1; i <= n && !found; i++)
            if (!used[i] && part[1] == name && at[i] == part[2] + 0 &&
                what[i] == kind && index(text, want[i])) {
                used[i] = 1
                found = 1
            }
        if (!found && (kind != "perf" || wanted["perf"])) {
            print "unexpected: " $0
            bad = 1
        }
    }
    END {
        for (i = 1; i <= n; i++)
            if (!used[i]) {
                print "missing: line " at[i] ": " what[i] ": " want[i]
                bad = 1
            }
        exit bad
    }' "$base" "$tmp/err"
}

# Reads the file's IR, prints it, reads that, prints it: both must agree.
round_trip() {
    ndc --verify-each --emit=ir "$base" >"$tmp/out" 2>"$tmp/err" || {
        fail "exit status $? from ndc --emit=ir"
        return 1
    }
    cp "$tmp/out" "$tmp/again.ndir"
    ndc --verify-each --emit=ir "$tmp/again.ndir" >"$tmp/again" 2>"$tmp/err" || {
        fail "the printed form is not accepted"
        return 1
    }
    diff -u "$tmp/out" "$tmp/again" >"$tmp/diff" || {
        sed 's/^/  | /' "$tmp/diff"
        fail "printing changes on the second trip"
    }
}

run_lines() {
    : >"$tmp/out"
    : >"$tmp/err"
    directive RUN >"$tmp/run"
    [ -s "$tmp/run" ] || echo "ndc --verify-each --emit=ir %s" >"$tmp/run"
    while IFS= read -r line <&3; do
        cmd=$(printf '%s\n' "$line" | sed "s|%s|$base|g; s|%t|$tmp/t|g")
        sh -c "$cmd" >>"$tmp/out" 2>>"$tmp/err" </dev/null
        got=$?
        if [ "$got" -ne "$exit_want" ]; then
            fail "exit status $got, expected $exit_want: $line"
            return 1
        fi
    done 3<"$tmp/run"
}

check_counts() {
    sed -n 's/^# *COUNT:\{0,1\} *//p' "$base" >"$tmp/counts"
    while read -r word want <&3; do
        # A whole word: neither %word, a value's name, nor a path's part.
        got=$(sed 's/[^A-Za-z0-9_.%]/ /g' "$tmp/out" | tr ' ' '\n' |
              grep -c -x -F -e "$word")
        [ "$got" -eq "$want" ] || {
            fail "'$word' occurs $got times, expected $want"
            return 1
        }
    done 3<"$tmp/counts"
}

check_golden() {
    golden=${base%.*}.out
    if [ $bless = yes ]; then
        if [ -e "$golden" ] || { [ $annotated = no ] &&
                                 [ ! -s "$tmp/counts" ]; }; then
            [ -s "$tmp/out" ] || {   # a command before a pipe has failed
                fail "nothing was printed: nothing to bless"
                return 1
            }
            cp "$tmp/out" "$golden"
            echo "blessed $golden"
        fi
    elif [ -e "$golden" ]; then
        diff -u "$golden" "$tmp/out" >"$tmp/diff" || {
            sed 's/^/  | /' "$tmp/diff"
            fail "output differs from $golden (--bless if it is right)"
            return 1
        }
    elif [ $annotated = no ] && [ ! -s "$tmp/counts" ] &&
         [ $tripped = no ]; then
        fail "nothing to check: no $golden, ERROR or COUNT (try --bless)"
        return 1
    fi
}

run_file() {
    file=$1
    base=$(basename "$file")
    cd "$(dirname "$file")" || return 1
    reason=$(directive SKIP)
    for word in $(directive REQUIRES); do
        case " ${NDC_HAVE:-} " in
        *" $word "*) ;;
        *) reason="needs $word" ;;
        esac
    done
    if [ -n "$reason" ]; then
        echo "SKIP $file: $reason"
        return 77
    fi
    : >"$tmp/err"
    annotated=no
    exit_want=0
    grep -q -E '# (WARNING|PERF)(@[+-]?[0-9]+)?: ' "$base" && annotated=yes
    grep -q -E '# ERROR(@[+-]?[0-9]+)?: ' "$base" && {
        annotated=yes
        exit_want=1
    }
    given=$(directive EXIT)
    exit_want=${given:-$exit_want}
    tripped=no
    case $base in
    *.ndir)
        if [ "$exit_want" -eq 0 ]; then
            round_trip || return 1
            tripped=yes
        fi
        ;;
    esac
    if [ $tripped = no ] || [ -n "$(directive RUN)" ]; then
        run_lines || return 1
    fi
    if [ $annotated = yes ]; then
        match_diagnostics || {
            fail "diagnostics"
            return 1
        }
    fi
    check_counts && check_golden && echo "ok $file"
}

status=0
top=$PWD
for f in "$@"; do
    case $f in
    *.out) continue ;;               # so that a glob can name the files
    esac
    cd "$top" || exit 2
    run_file "$f"
    rc=$?
    if [ $rc -eq 77 ] && [ $# -eq 1 ]; then
        exit 77
    elif [ $rc -ne 0 ] && [ $rc -ne 77 ]; then
        status=1
    fi
done
exit $status
