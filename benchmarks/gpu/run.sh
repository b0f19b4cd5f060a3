#!/bin/sh
# Bits and speed of this distribution on a machine with an NVIDIA GPU and no network.
#
#   python -m benchmarks.gpu.pack      before, on a machine with a network: writes build/gpu/pack
#   benchmarks/gpu/run.sh [build|bits|bench]...   on the GPU machine; without a name, all of them
#   benchmarks/gpu/run.sh plan                    what is measured, in which order, for how long
#
# Each call goes on where the last one ended: what is built is not built again, and what has been
# measured is not measured again. MINUTES limits one call (9), and nothing is started that might not
# be done by then. Numbers and all output are in build/gpu/results, and what matters of them in $OUT,
# if that is set. OPTIONS are more of benchmarks/gpu/measure.py: --retry for what has failed, or
# --device cpu; ARCHITECTURE is that of a machine without a GPU.
set -eu
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 TOKENIZERS_PARALLELISM=false
cd "$(dirname "$0")/../.."
begin=$(date +%s)
all=$((${MINUTES:-9} * 60))

measure() {
  left=$((all - $(date +%s) + begin))
  build/gpu/venv/bin/python -m benchmarks.gpu.measure --minutes "$((left / 60)).$((left % 60 * 10 / 60))" \
    ${OPTIONS:-} "$@"
}

[ $# -gt 0 ] || set -- build all
status=0
for stage in "$@"; do
  case $stage in
    build) "${PYTHON:-python3}" benchmarks/gpu/build.py ${ARCHITECTURE:+--architecture "$ARCHITECTURE"} ;;
    all) measure || status=$? ;;
    bits | bench) measure --only "$stage" || status=$? ;;
    plan) measure --plan || status=$? ;;
    *) echo "error: $stage is no stage: use build, bits, bench or plan." >&2; exit 2 ;;
  esac
done
exit $status
