#!/bin/sh
# Bits and speed of this distribution on a machine with an NVIDIA GPU and no network.
#
#   python -m benchmarks.gpu.pack      before, on a machine with a network: writes build/gpu/pack
#   benchmarks/gpu/run.sh                         on the GPU machine: builds, then measures
#   benchmarks/gpu/run.sh build|bits|bench...     these alone
#   benchmarks/gpu/run.sh plan                    what is measured, in which order, for how long
#
# Each call goes on where the last one ended: what is built is not built again, and what has been
# measured is not measured again. MINUTES limits one call (9), and nothing is started that might not
# be done by then. Numbers and all output are in build/gpu/results, and what matters of them in $OUT,
# if that is set. OPTIONS are more of benchmarks/gpu/measure.py: --retry for what has failed, or
# --device cpu; ARCHITECTURE is that of a machine without a GPU, PYTHON the Python with torch.
set -eu
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 TOKENIZERS_PARALLELISM=false
began=$(date +%s)
PYTHON=$(command -v "${PYTHON:-python3}") || { echo "error: there is no $PYTHON." >&2; exit 2; }
case $PYTHON in /*) ;; *) PYTHON=$PWD/$PYTHON ;; esac
case ${OUT:-/} in /*) ;; *) export OUT="$PWD/$OUT" ;; esac
cd "$(dirname "$0")/../.."

measure() {
  python=build/gpu/venv/bin/python
  if [ ! -x $python ]; then
    case " $* " in
      *" --plan "*) python=$PYTHON ;;
      *) echo "error: nothing is built yet: call benchmarks/gpu/run.sh build before." >&2; exit 2 ;;
    esac
  fi
  # OPTIONS are several words.
  "$python" -m benchmarks.gpu.measure --minutes "${MINUTES:-9}" --began "$began" ${OPTIONS:-} "$@"
}

[ $# -gt 0 ] || set -- build all
status=0
for stage in "$@"; do
  case $stage in
    build) "$PYTHON" benchmarks/gpu/build.py ${ARCHITECTURE:+--architecture "$ARCHITECTURE"} ;;
    all) measure || status=$? ;;
    bits | bench) measure --only "$stage" || status=$? ;;
    plan) measure --plan || status=$? ;;
    *) echo "error: $stage is no stage: use build, bits, bench, all or plan." >&2; exit 2 ;;
  esac
done
exit $status
