#!/bin/sh
# What `ndc --emit=comm` says of every rank is what the running program counts:
# calls and bytes of each kind along each group of mesh axes, in one training
# step, as threads and, for every third plan, under mpirun. Sizes do not divide.
. "$(dirname "$0")/../lib.sh"
export NDC_CFLAGS=-O0            # only what is sent counts
count=0 plans=0
cd "$work" || exit 2

sizes() {
    case $1 in
    gpt) echo batch=10 seq=5 vocab=61 d=20 heads=5 layers=4 ;;
    llama) echo batch=9 seq=5 vocab=61 d=24 kvheads=3 group=2 ffn=13 layers=3 ;;
    moe) echo batch=10 seq=5 vocab=61 d=24 kvheads=1 group=3 expert=5 ffn=7 \
        layers=3 ;;
    vit) echo batch=10 d=15 heads=5 layers=4 ;;
    esac
}

# The example, or program of regress/, on made-up data and as further words say:
# under another optimizer, without a clip.
program() {
    example=$1
    if [ -f "$NDC_SOURCE/examples/$1.nd" ]; then
        sed -e 's/^  data .*/  data = synthetic/' -e '/^  metric /d' \
            "$NDC_SOURCE/examples/$1.nd" > p.nd
    else
        sed '/^plan/,$d' "$NDC_SOURCE/tests/regress/$1.nd" > p.nd
        echo 'train { data = synthetic }' >> p.nd
    fi
    case " $* " in *" muon "*) sed -i \
        's/^  optimizer .*/  optimizer = muon(lr = 0.02, adamw = ["w?e"])/' p.nd
    esac
    case " $* " in *" unclipped "*) sed -i '/^  clip /d' p.nd ;; esac
}

# "rank kind over calls bytes" of every rank, sorted; "?" for bytes that depend
# on the data
said() {
    for r in $(seq 0 $((ranks - 1))); do
        echo "rank $r"
        "$ndc" "$@" --emit=comm --rank "$r" 2> err
    done | tr -d , | awk '
        /^rank [0-9]+$/ { rank = $2; sums = 0 }
        /^  sums/ { sums = 1 }
        sums && $2 == "over" && $1 != "all" {
            print rank, $1, $3, $4, $6 ~ /~/ ? "?" : $6 }' | sort
}

# The same of the file that the run wrote.
was() {
    tr -d , < counted | awk '
        NR == FNR { if ($5 == "?") data[$1, $2, $3] = 1; next }
        !/^#/ { if (($1, $2, $3) in data) $5 = "?"; print }' said - | sort
}

compare() {
    count=$((count + 1))
    was | cmp -s said - && return
    fail "$name, $1: said, counted"
    cat plan
    was | diff said - | head -20
}

while IFS='|' read -r name mesh rules more; do
    program $name
    printf 'plan {\n  mesh %s\n  %s\n  %s\n}\n' "$mesh" "$rules" \
        "$(echo "$more" | sed 's/; /\n  /')" > plan
    set -- p.nd --plan plan
    for size in $(sizes "$example"); do
        set -- "$@" --set "$size"
    done
    ranks=$("$ndc" "$@" --emit=comm 2> err | sed -n 's/^  ranks  *\([0-9]*\) .*/\1/p')
    "$ndc" "$@" -o p 2> err || { cat err; exit 1; }
    said "$@" > said
    rm -f counted
    ./p --steps 2 --comm counted < /dev/null > log 2>&1 || cat log
    compare threads
    plans=$((plans + 1))
    third=$((plans % 3 == 0))
    case "${NDC_HAVE:-} ${NDC_LONG:+long} $third" in
    *mpi*long* | *mpi*1)
        rm -f counted
        mpirun -n "$ranks" ./p --steps 1 --comm counted \
            < /dev/null > log 2>&1 || cat log
        compare mpirun
        ;;
    esac
done < "$NDC_SOURCE/tests/codegen/comm_volume.txt"
echo "$((count - failed)) passed, $failed failed"
[ $failed = 0 ]
