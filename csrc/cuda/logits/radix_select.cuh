// Which logits of a row come first: no sort, but a search for the last one, digit by digit.
//
// Specification: docs/numerics/operations.md, "Order of logits" and "Which tokens". Keys have three
// digits. A launch for each counts, and weighs, the logits that have the digits found so far by
// their next one; the last block of a row to be done chooses it. All sums are of integers, so that
// neither their order nor the number of blocks changes a bit.
#pragma once

#include "cuda/logits/row_parts.cuh"
#include "cuda/primitives/tickets.cuh"
#include "portable/vocabulary.h"

namespace vllm_fork {

constexpr int kSelectBlocks = 1;  // of a multiprocessor, at least: so that no registers are spilled
constexpr int kBins = 2 * kRowThreads;  // two for a thread
constexpr int kKeyDigits = 3;           // of 11, 11 and 10 bits

// The order of logits as unsigned integers.
__device__ __forceinline__ uint32_t radix_key(float x) {
  return static_cast<uint32_t>(ordered_key(x)) ^ kSignBit;
}
__device__ __forceinline__ float number_of_radix_key(uint32_t key) {
  return number_of_key(static_cast<int32_t>(key ^ kSignBit));
}

// The bits of a key behind a digit: the first one is sought while three are left.
__device__ __forceinline__ int bits_behind(int digits_left) {
  return digits_left == 3 ? 21 : digits_left == 2 ? 10 : 0;
}
__device__ __forceinline__ uint32_t digit_of(uint32_t key, int digits_left) {
  return key >> bits_behind(digits_left) & (digits_left == 1 ? 1023u : 2047u);
}

// What a row's blocks have found together, in memory.
struct RowBins {
  uint32_t counts[kBins];
  unsigned long long weights[kBins];  // the type that atomics of 64 bits have

  __device__ __forceinline__ void clear() {
    for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kRowThreads) {
      counts[bin] = 0;
      weights[bin] = 0;
    }
  }
};

// What a block finds. Shared memory adds 32 bits at once: of kMostOfPart weights, which are at most
// 2^34, it adds the halves.
struct BlockBins {
  static constexpr int kHalf = 17;
  static_assert(kMostOfPart <= int64_t{1} << 14, "sums of halves fit 32 bits");

  uint32_t counts[kBins];
  uint32_t low[kBins];
  uint32_t high[kBins];

  __device__ __forceinline__ void clear() {
    for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kRowThreads) {
      counts[bin] = low[bin] = high[bin] = 0;
    }
    __syncthreads();
  }

  __device__ __forceinline__ void add(uint32_t bin, int64_t weight) {
    add_atomically(&counts[bin], uint32_t{1});
    if (weight == 0) return;
    add_atomically(&low[bin], static_cast<uint32_t>(weight) & ((1u << kHalf) - 1));
    add_atomically(&high[bin], static_cast<uint32_t>(weight >> kHalf));
  }

  __device__ __forceinline__ void add_to(RowBins& row) const {
    __syncthreads();  // after what all threads have added
    for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kRowThreads) {
      if (counts[bin] == 0) continue;
      const auto weight = (static_cast<unsigned long long>(high[bin]) << kHalf) + low[bin];
      add_atomically(&row.counts[bin], counts[bin]);
      if (weight != 0) add_atomically(&row.weights[bin], weight);
    }
  }
};

// A search for the last logit that stays, if they are gone through in order until their number, or
// their weights, reach a bound of at least 1. All of them do. Zeros stand for no search.
struct KeySearch {
  int32_t digits_left;
  bool is_by_weight;
  uint32_t key;  // of the last one; digits that are left are 0
  int64_t bound;
  int64_t count_above;  // of the logits above those that have the digits found so far
  int64_t weight_above;
  int64_t equal;  // how many have the digits found so far
  int64_t ties;   // how many of them stay, once all digits are found

  __device__ __forceinline__ static KeySearch by_count(int64_t limit) {
    return {kKeyDigits, false, 0, limit, 0, 0, 0, 0};
  }
  __device__ __forceinline__ static KeySearch by_weight(int64_t bound) {
    return {kKeyDigits, true, 0, bound, 0, 0, 0, 0};
  }

  // Whether a logit has the digits found so far, of which there is one at least.
  __device__ __forceinline__ bool is_among(uint32_t other) const {
    return (other ^ key) >> bits_behind(digits_left + 1) == 0;
  }

  __device__ __forceinline__ int64_t measure(const RowBins& bins, int bin) const {
    return is_by_weight ? static_cast<int64_t>(bins.weights[bin]) : bins.counts[bin];
  }

  // By all threads of a block, each of which has the search.
  __device__ __forceinline__ void find_digit(const RowBins& bins) {
    const int upper = kBins - 1 - 2 * static_cast<int>(threadIdx.x);
    const int64_t at_upper = measure(bins, upper);
    const int64_t at_both = at_upper + measure(bins, upper - 1);
    const int64_t before = (is_by_weight ? weight_above : count_above) + block_sum_before(at_both);
    const bool is_own = before < bound && before + at_both >= bound;
    const int own = before + at_upper >= bound ? upper : upper - 1;
    const int digit = block_largest(is_own ? own : 0);
    equal = bins.counts[digit];
    int64_t count = 0;
    int64_t weight = 0;
    for (int bin = upper; bin >= upper - 1 && bin > digit; --bin) {
      count += bins.counts[bin];
      weight += static_cast<int64_t>(bins.weights[bin]);
    }
    count_above += block_sum(count);
    weight_above += block_sum(weight);
    key |= static_cast<uint32_t>(digit) << bits_behind(digits_left);
    --digits_left;
  }

  // Of equal logits the first stay: all of them weigh the same.
  __device__ __forceinline__ void find_ties(int64_t each) {
    const int64_t missing = bound - (is_by_weight ? weight_above : count_above);
    ties = is_by_weight ? (missing + each - 1) / each : missing;
  }

  // --- once all is found -----------------------------------------------------------------------

  // The end of the logits in the block's part that stay if they have the key. Logits below the key
  // and ties that do not stay may have been removed in the meantime, which is no reason to wait: a
  // part behind one without its last ties has none to keep, however many it counts.
  template <typename Row>
  __device__ __forceinline__ int64_t end_of_ties(const Row& row, const RowPart& own) const {
    if (ties == equal) return own.last;
    const auto is_tie = [&](int64_t i) { return i < own.last && radix_key(row(i)) == key; };
    int64_t found = 0;
    for (int64_t i = threadIdx.x; i < own.first; i += kRowThreads) found += is_tie(i) ? 1 : 0;
    int64_t missing = ties - block_sum(found);
    if (missing <= 0) return own.first;
    for (int64_t start = own.first; start < own.last; start += kRowThreads) {
      const int64_t i = start + threadIdx.x;
      const int64_t before = block_sum_before(int64_t{is_tie(i)});
      const int64_t last = block_largest<int64_t>(is_tie(i) && before + 1 == missing ? i : -1);
      if (last >= 0) return last + 1;
      missing -= block_sum(is_tie(i) ? 1 : 0);
    }
    return own.last;
  }

  __device__ __forceinline__ bool keeps(float x, int64_t i, int64_t end) const {
    const uint32_t own = radix_key(x);
    return own > key || (own == key && i < end);
  }
};

// The weight at which no more tokens are needed for the probability top_p.
__device__ __forceinline__ int64_t bound_of(int64_t sum, float top_p) {
  const double bound = static_cast<double>(sum) * static_cast<double>(top_p);
  const auto below = static_cast<int64_t>(bound);
  const int64_t whole = below + (static_cast<double>(below) < bound ? 1 : 0);
  return whole < 1 ? 1 : whole;  // the first always stays
}

// What is to stay of a row.
struct Limits {
  int64_t count;  // so many logits, or any number if it is 0
  float top_p;    // of those, what reaches so much of their weight; 1 if nothing is to be weighed
  float largest;  // of the row; weights are relative to it

  __device__ __forceinline__ bool weighs() const { return top_p < 1.0f; }
  __device__ __forceinline__ int64_t weight_of(float x) const {
    return weighs() ? probability_units(exponential(x - largest)) : 0;
  }
};

// What a row keeps in memory between launches; zeros at first.
struct RowSelection {
  Limits limits;
  KeySearch search;
  int32_t tickets;
  int32_t collected;  // how many of those that stay have been written elsewhere
  RowBins first;      // by the first digit
  RowBins later;      // by another one; zeros between launches

  // By each of the blocks of a row, which has its logits in bins. The last one begins the search.
  __device__ __forceinline__ void begin(const BlockBins& bins, int64_t blocks, const Limits& own) {
    bins.add_to(first);
    if (is_last_of(static_cast<int>(blocks), &tickets)) begin_search(own);
  }

  // By the last block of the row, once the logits with the digits found are in the later bins. What
  // is to be weighed are the logits that have been counted: then the search begins anew.
  __device__ __forceinline__ void go_on(KeySearch found) {
    const RowBins* bins = &later;
#pragma unroll 1
    for (;;) {
      found.find_digit(*bins);
      if (found.digits_left > 0) break;
      const int64_t each = limits.weight_of(number_of_radix_key(found.key));
      found.find_ties(each);
      if (found.is_by_weight || !limits.weighs()) break;
      const int64_t sum = found.weight_above + found.ties * each;
      found = KeySearch::by_weight(bound_of(sum, limits.top_p));
      bins = &first;
    }
    later.clear();
    if (threadIdx.x == 0) search = found;
  }

 private:
  __device__ __forceinline__ void begin_search(const Limits& own) {
    int64_t sum = 0;
    for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kRowThreads) {
      sum += static_cast<int64_t>(first.weights[bin]);
    }
    sum = block_sum(sum);
    find_first_digit(own.count > 0 ? KeySearch::by_count(own.count)
                                   : KeySearch::by_weight(bound_of(sum, own.top_p)));
    if (threadIdx.x == 0) limits = own;
  }

  __device__ __forceinline__ void find_first_digit(KeySearch sought) {
    sought.find_digit(first);
    if (threadIdx.x == 0) search = sought;
  }
};

static_assert(sizeof(RowSelection) % sizeof(uint64_t) == 0, "rows lie one behind the other");

int64_t selection_words() { return sizeof(RowSelection) / sizeof(uint64_t); }

// Finds a digit more of the rows whose search is not at its end.
template <typename Number>
__global__ void __launch_bounds__(kRowThreads, kSelectBlocks)
    find_digit_kernel(LogitRows logits, RowParts parts, RowSelection* selections) {
  const LogitRow<Number> row(logits);
  const RowPart own(row.count, parts);
  RowSelection& selection = selections[own.row];
  const KeySearch search = selection.search;
  if (search.digits_left == 0) return;
  const Limits limits = selection.limits;
  BlockBins& bins = block_shared<BlockBins>();
  bins.clear();
  own.for_each_in_turn([&](int64_t i) {
    const float x = row(i);
    const uint32_t key = radix_key(x);
    if (search.is_among(key)) bins.add(digit_of(key, search.digits_left), limits.weight_of(x));
  });
  bins.add_to(selection.later);
  if (is_last_of(static_cast<int>(parts.count), &selection.tickets)) selection.go_on(search);
}

}  // namespace vllm_fork
