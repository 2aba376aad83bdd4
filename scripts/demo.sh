#!/bin/sh
# demo.sh - trains a small GPT on the King James Bible and lets it speak.
set -eu
cd "$(dirname "$0")/.."

scripts/setup.sh
echo "== build"
cmake -S . -B build >/dev/null
cmake --build build -j "${JOBS:-2}" >/dev/null

dir=build/demo
mkdir -p $dir
# The name of the book and verse before each line is not part of the text.
bible -f gen1:1-rev22:21 | sed 's/^[^ ]* //' >$dir/kjv.txt

echo "== compile examples/gpt.nd"
build/ndc examples/gpt.nd --set batch=8 -o $dir/train
echo "== train 200 steps"
$dir/train --data $dir/kjv.txt --lr 1e-3 --warmup 20 --steps 200 \
    --save $dir/gpt.safetensors
echo "== sample"
$dir/train --load $dir/gpt.safetensors --steps 0 --generate "In the beginning"
