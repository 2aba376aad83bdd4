#!/bin/sh
# No kind of long program costs more than its length: models of 2,000 lines, and
# a value doubled over 60 lines, compile in little memory and in little time of
# the processor, whatever else runs. Sanitizers need memory of their own: there,
# time alone.
. "$(dirname "$0")/../lib.sh"
model=$NDC_SOURCE/benchmarks/model.sh
limit=30 lines=2000

case " $NDC_HAVE " in
*" sanitize "*) limit=120 lines=300 ;;
*) ulimit -v 400000 ;;               # KiB
esac
ulimit -t $limit                     # seconds of each process

for kind in $("$model" list); do
    n=$lines
    [ "$kind" = double ] && n=60
    for plan in one many; do
        "$model" "$kind" "$n" $plan > "$work/m.nd"
        "$ndc" "$work/m.nd" --emit=c > "$work/m.c" 2> "$work/err" || {
            fail "$kind $plan: status $?"
            head -5 "$work/err"
        }
    done
done
[ $failed = 0 ]
