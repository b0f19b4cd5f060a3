#!/usr/bin/env bash
# Bits and speed on a machine with an NVIDIA GPU and no network, within a quarter of an hour.
#
#   python -m benchmarks.gpu.pack     before, on a machine with a network: writes build/gpu/pack
#   benchmarks/gpu/run.sh 1           on the GPU machine, 440 s: bits, then times, then engines
#   benchmarks/gpu/run.sh 2           260 s: hardware counters, memcheck, other ways
#
# Each step is a process of its own with a limit. Whatever it does, crash, hang or find a wrong bit,
# the next one runs; a step for which too little time is left is left out, and the table says so.
# Without what the archive holds nothing can run.
# All results are in build/gpu/results, and copies of what matters are in $OUT after each step, if
# that is set. The last lines are a table, and the sentence that says what to do next; the status is
# 0 if all bits are equal, and memcheck has found nothing.
#
# PYTHON is the Python with torch. For a rehearsal without a GPU: SECONDS_IN_ALL is the limit of the
# call, SLOWER a factor for those of steps, DEVICE cuda or cpu, SHAPE 8B or tiny.
set -u
cd "$(dirname "$0")/../.."
call=${1:-}
case $call in
  1) total=${SECONDS_IN_ALL:-440} ;;
  2) total=${SECONDS_IN_ALL:-260} ;;
  *) echo "error: name the call: benchmarks/gpu/run.sh 1, or 2 when the bits of 1 were equal." >&2; exit 2 ;;
esac
python=$(command -v "${PYTHON:-python3}") || { echo "error: there is no ${PYTHON:-python3}." >&2; exit 2; }
device=${DEVICE:-cuda} shape=${SHAPE:-8B}
folder=build/gpu results=build/gpu/results
mkdir -p "$results"
[ "$call" = 2 ] || rm -rf "$results"/*

# No address but loopback: this machine may have no other.
export VLLM_HOST_IP=127.0.0.1 MASTER_ADDR=127.0.0.1 GLOO_SOCKET_IFNAME=lo NCCL_SOCKET_IFNAME=lo
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1
export TRITON_CACHE_DIR="$PWD/$folder/triton" XDG_CACHE_HOME="$PWD/$folder/cache"
# Of an earlier attempt: kernels are tried as users have them.
unset VLLM_FORK_CUDA_DEPENDENT_LAUNCH VLLM_FORK_CUDA_TENSOR_CORES VLLM_FORK_OTHER_BITS VLLM_BATCH_INVARIANT
export PYTHONPATH="$PWD/$folder/site:$PWD" VLLM_FORK_LIBRARY="$PWD/$folder/site/vllm/_fork_C.abi3.so"

# Copies what matters to $OUT; a full disk stops nothing.
publish() {
  "$python" benchmarks/gpu/summary.py "$results" >"$results/table.txt" 2>&1
  good=$?
  [ -n "${OUT:-}" ] || return 0
  { mkdir -p "$OUT" && cp "$results"/table.txt "$results"/results.json "$OUT/" &&
    (cd "$results" && { head -c 100000 ./memcheck.out; tail -c 20000 ./*.err ./*.out; } || # its first errors count
      true) >"$OUT/log.txt"; } 2>/dev/null ||
    echo "note: $OUT has no copy of the results; they are in $results." >&2
}

# step NAME LIMIT COMMAND...: runs it, unless its time does not fit, and notes how it ended.
step() {
  local name=$1 limit=$(($2 * ${SLOWER:-1})) file begin status left
  shift 2
  file=$results/${name//[^a-z0-9]/-}
  left=$((total - SECONDS))
  [ "$limit" -le "$left" ] || limit=$left
  if [ "$limit" -lt 10 ]; then
    printf '%s\t%s\t0\n' "$name" "no time" >>"$results/steps.tsv"
    return 1
  fi
  begin=$SECONDS
  timeout --kill-after=3 "$limit" "$@" >"$file.out" 2>"$file.err" </dev/null &
  child=$!
  wait "$child" # a signal ends this at once, and would wait for a program in the foreground
  status=$?
  printf '%s\t%s\t%s\n' "$name" "$status" $((SECONDS - begin)) >>"$results/steps.tsv"
  printf '%4d s  %-28s status %s\n' "$SECONDS" "$name" "$status"
  return "$status"
}

with=() # put before the commands of measure
measure() { # NAME LIMIT MODULE ARGUMENTS...
  local name=$1 limit=$2
  shift 2
  step "$name" "$limit" "${with[@]}" "$python" -m "benchmarks.gpu.$1" "${@:2}"
}

beside() { # the same, beside what follows
  (
    child=
    trap 'kill $child; exit 143' TERM
    measure "$@"
  ) &
}

passed() { grep -q "^$1	0	" "$results/steps.tsv"; }

finish() {
  trap - INT TERM HUP
  kill $(jobs -p) 2>/dev/null
  publish
  echo
  cat "$results/table.txt"
  exit "$good"
}
trap finish INT TERM HUP

unpack() { # without it, nothing can run
  step unpack 60 "$python" -m benchmarks.gpu.pack --unpack || finish
}

first_call() {
  unpack
  step nvidia-smi 10 nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,power.limit --format=csv
  measure probes 70 probes
  # A hang and a crash count as kernels that begin early and go wrong.
  case $? in 0 | 1) ;; *) export VLLM_FORK_CUDA_DEPENDENT_LAUNCH=0 ;; esac
  publish

  # Bits of operations, all at once.
  beside "bits: start" 60 bits start --device "$device"
  beside "bits: operations" 60 bits operations --device "$device"
  beside "bits: shapes" 75 bits shapes --device "$device"
  beside "bits: draws" 60 bits draws --device "$device"
  beside "generate" 60 generate "$results/default.npz" --device "$device"
  beside "generate without cudnn" 60 generate "$results/no-cudnn.npz" --device "$device" --no-cudnn
  wait
  publish
  if ! passed "bits: start"; then # which of two features is to blame?
    VLLM_FORK_CUDA_TENSOR_CORES=mma beside "bits: start with mma" 40 bits start --device "$device"
    VLLM_FORK_CUDA_DEPENDENT_LAUNCH=0 beside "bits: start in turn" 40 bits start --device "$device"
    wait
    # Engines start with the feature off, or with a warning: other faults are to be found, too.
    with=(env VLLM_FORK_OTHER_BITS=1)
    ! passed "bits: start in turn" || with=(env VLLM_FORK_CUDA_DEPENDENT_LAUNCH=0)
    ! passed "bits: start with mma" || with=(env VLLM_FORK_CUDA_TENSOR_CORES=mma)
    printf '%s\t0\t0\n' "bits of engines are tried with ${with[1]}" >>"$results/steps.tsv"
    publish
  fi

  # Bits of engines, all at once.
  beside "bits: engine" 100 model_bits engine --device "$device"
  beside "bits: engine with graphs" 100 model_bits graphs --device "$device"
  beside "bits: attached model" 100 model_bits attached --device "$device"
  beside "bits: exact" 100 exact_bits exact "$results/default.npz" "$results/no-cudnn.npz"
  beside "hf_compat" 100 exact_bits hf_compat "$results/default.npz"
  wait
  with=()
  publish

  # Times, one after the other; what is answered under the variable may be wrong, and bits say so.
  export VLLM_FORK_OTHER_BITS=1
  measure "times" 90 times ceilings products attention --shape "$shape" --device "$device"
  publish
  for mode in deterministic plain batch-invariant; do
    measure "engine: $mode" 100 engines "$mode" --shape "$shape"
    publish
  done
}

count() { # NAME METRICS
  step "$1" 75 ncu --clock-control none --target-processes all \
    --kernel-name "regex:multiply|attention_kernel" --launch-count 40 --metrics "$2" --csv \
    "$python" -m benchmarks.gpu.times products attention --rows 2048 8 --rounds 0 \
    --shape "$shape" --device "$device"
}

second_call() {
  unpack # on another machine; there is nothing to do on the same
  export VLLM_FORK_OTHER_BITS=1
  VLLM_FORK_CUDA_DEPENDENT_LAUNCH=0 measure "times in turn" 35 times products --rows 1 8 --shape "$shape" \
    --device "$device"
  publish
  counters="sm__throughput.avg.pct_of_peak_sustained_elapsed"
  counters+=",sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active"
  counters+=",lts__t_bytes.avg.pct_of_peak_sustained_elapsed"
  counters+=",l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed"
  counters+=",smsp__average_warps_issue_stalled_membar_per_issue_active.ratio"
  counters+=",gpu__time_duration.sum"
  count "counters" "$counters" || # an unknown name
    count "fewer counters" "sm__throughput.avg.pct_of_peak_sustained_elapsed,gpu__time_duration.sum"
  [ -z "${OUT:-}" ] || cat "$results"/*counters.out 2>/dev/null >"$OUT/counters.csv"
  publish
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 step "memcheck" 75 compute-sanitizer --tool memcheck \
    --print-limit 100 --error-exitcode 9 --kernel-name kernel_substring=vllm_fork \
    "$python" -m benchmarks.gpu.bits start --device "$device"
  publish
  [ $((total - SECONDS)) -lt 110 ] || measure "engine: compiled" 180 engines compiled --shape "$shape"
}

if [ "$call" = 1 ]; then first_call; else second_call; fi
finish
