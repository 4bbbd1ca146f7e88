#!/usr/bin/env bash
# Everything that is measured on a GPU, in one command of at most eight minutes. No network is needed.
#
#   benchmarks/gpu.sh           on an NVIDIA GPU
#   benchmarks/gpu.sh --tiny    the same commands on the CPU at tiny sizes, to see that each of them runs
#
# Each part prints its rows beside a reference of the same run, and is also written to $OUT (default: runs/gpu).
# A part that fails or runs out of time does not stop the others; the exit status is that of the worst.
# $PYTHON is the interpreter (default: .venv/bin/python, else python3).
set -u
cd "$(dirname "$0")/.." || exit 1
PYTHON=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
OUT=${OUT:-runs/gpu}
mkdir -p "$OUT"
export HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1 PYTHONPATH="$PWD/src:$PWD${PYTHONPATH:+:$PYTHONPATH}"
status=0

part() { # name, seconds, command...
    local name=$1 seconds=$2
    shift 2
    echo "== $name: $*"
    timeout "$((seconds * limited))" "$@" 2>&1 | tee "$OUT/$name.txt"
    local code=${PIPESTATUS[0]}
    [ "$code" = 0 ] || { echo "$name failed with status $code"; status=$code; }
}

if [ "${1:-}" = --tiny ]; then
    limited=0  # for `timeout` no limit
    device=cpu tests="tests/gpu/test_mining.py" precisions=bf16 models=world
    mine="--images 40 --texts 200 --dim 16 --k 3" train="--batch 8 --corpus 40 --steps 1" embed="--images 3 --texts 20 --batch 4"
    export REPAIR_HF_GPU_TESTS=cpu
else
    limited=1
    device=cuda tests=tests/gpu precisions="bf16 fp16" models="vit-b-32 vit-l-14"
    mine=--paper train="--batch 256 --corpus 2000 --steps 8" embed="--images 2000 --texts 10000"
    nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader | tee "$OUT/machine.txt"
fi
git log -1 --format=%H 2>/dev/null | tee "$OUT/commit.txt"

# shellcheck disable=SC2086  # the options are words
{
    part mine 50 "$PYTHON" benchmarks/mine.py $mine --device $device --repeat 2 --rows product mine "mine 5/1" evaluate
    for model in $models; do
        for precision in $precisions; do
            part "train-$model-$precision" 60 "$PYTHON" benchmarks/train.py $train --device $device --repeat 1 \
                --architecture "$model" --precision "$precision" --rows run_clip plain batch paper chunks
        done
    done
    part embed 40 "$PYTHON" benchmarks/embed.py $embed --device $device --repeat 1 --rows loop ours cached library
    part tests 150 "$PYTHON" -m pytest -q -rs -m gpu -p no:cacheprovider $tests
}
exit "$status"
