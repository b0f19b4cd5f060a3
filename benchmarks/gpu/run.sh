#!/bin/sh
# Bits and speed of this distribution on a machine with an NVIDIA GPU and no network.
#
#   python -m benchmarks.gpu.pack      before, on a machine with a network: writes build/gpu/pack
#   benchmarks/gpu/run.sh [build|bits|bench]...   on the GPU machine; without a name, all of them
#
# Each stage goes on where it ended: what has been measured, and is in build/gpu/results, is not
# measured again. MINUTES limits one call of a stage (9). Tables are printed; the numbers are in
# build/gpu/results as JSON, and in $OUT, if that is set. `build/gpu/venv/bin/python -m
# benchmarks.gpu.stages --help` tells how to choose models.
set -eu
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 TOKENIZERS_PARALLELISM=false
cd "$(dirname "$0")/../.."
[ $# -gt 0 ] || set -- build bits bench
for stage in "$@"; do
  case $stage in
    build) "${PYTHON:-python3}" benchmarks/gpu/build.py ;;
    bits | bench) build/gpu/venv/bin/python -m benchmarks.gpu.stages "$stage" ;;
    *) echo "error: $stage is no stage: use build, bits or bench." >&2; exit 2 ;;
  esac
done
