// The ops of torch.ops.vllm_fork. Python documents them: the modules of vllm/fork_kernels.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(vllm_fork, library) {
  library.def("mark_seen_tokens(Tensor(a!) seen, Tensor slots, Tensor token_ids) -> ()");
  library.def(
      "apply_repetition_penalty(Tensor(a!) logits, Tensor seen, Tensor slots, Tensor penalties, "
      "bool reciprocal) -> ()");
  library.def(
      "draw_tokens(Tensor probs, Tensor(a!) states, Tensor slots, Tensor offsets) -> Tensor");
  library.def("row_products(Tensor x, Tensor weight, Tensor? bias, int block) -> Tensor");
  library.def("transposed_row_products(Tensor x, Tensor weight, int block) -> Tensor");
  library.def("ordered_products(Tensor x, Tensor weight, Tensor? bias, Tensor order) -> Tensor");
  library.def("has_ordered_products() -> bool");
  library.def("has_row_products() -> bool");
  library.def("has_row_chains() -> bool");
  library.def(
      "paged_sdpa(Tensor query, Tensor pages, Tensor blocks, Tensor starts, Tensor stops, "
      "int key_size, float? scale, bool enable_gqa, bool thread_per_request, bool in_one, "
      "Tensor? order) -> Tensor");
  library.def("has_token_attention() -> bool");
  library.def(
      "prompt_sdpa(Tensor query, Tensor pages, Tensor blocks, Tensor spans, int key_size, "
      "float? scale, bool enable_gqa, bool in_one, Tensor(a!) result) -> ()");
  library.def("has_prompt_order(int length) -> bool");
  library.def(
      "decoder_rows(Tensor x, Tensor[] weights, float[] epsilons, int[] orders, "
      "Tensor? attention_order, Tensor positions, Tensor cos_sin, bool is_neox, float scale, "
      "Tensor(a!)[] pages, Tensor[] places, int[] firsts, int[] place_of_layer, int[] at_once, "
      "int[] activated) -> (Tensor, Tensor)");
  library.def(
      "rotate_rounded(Tensor positions, Tensor query, Tensor key, Tensor cos_sin, int head_size, "
      "bool is_neox) -> (Tensor, Tensor)");
  library.def(
      "rms_norm_rounded(Tensor x, Tensor? residual, Tensor weight, float epsilon) -> "
      "(Tensor, Tensor)");
  library.def("silu_and_mul_rounded(Tensor x) -> Tensor");
  library.def(
      "append_to_pages(Tensor(a!) pages, Tensor key, Tensor value, Tensor slots) -> ()");
  library.def("channel_statistics(Tensor weight) -> Tensor");
  library.def("equalising_exponents(Tensor statistics) -> Tensor");
  library.def("pack_weight(Tensor weight, Tensor? exponents, int segments) -> Tensor");
  library.def(
      "repack_weight(Tensor(a!) packed, Tensor weight, Tensor? exponents, int segments) -> ()");
  library.def(
      "unpack_weight(Tensor packed, Tensor? exponents, int outputs, int inputs, int segments) -> "
      "Tensor");
  library.def(
      "portable_product(Tensor x, Tensor packed, Tensor? exponents, Tensor? bias, int outputs, "
      "int segments, ScalarType dtype) -> Tensor");
  library.def(
      "portable_digits_product(Tensor(a!) digits, Tensor packed, Tensor? bias, int rows, "
      "int outputs, int inputs, int segments, ScalarType dtype) -> Tensor");
  library.def("sum_partials(Tensor partials, Tensor? bias, ScalarType dtype) -> Tensor");
  library.def("cpu_isa() -> str");
  library.def("dependent_launches(Tensor like) -> str");
  library.def("portable_map(Tensor x, str function) -> Tensor");
  library.def("portable_gated(Tensor x, str function) -> Tensor");
  library.def(
      "portable_map_digits(Tensor x, str function, Tensor? exponents, int outputs, int segments) "
      "-> (Tensor, Tensor)");
  library.def(
      "portable_gated_digits(Tensor x, str function, Tensor? exponents, int outputs, "
      "int segments) -> (Tensor, Tensor)");
  library.def(
      "portable_norm_digits(Tensor x, Tensor(a!)? residual, Tensor? weight, Tensor? bias, "
      "float epsilon, float weight_offset, bool is_centred, Tensor? exponents, int outputs, "
      "int segments) -> (Tensor, Tensor)");
  library.def(
      "portable_norm(Tensor x, Tensor(a!)? residual, Tensor? weight, Tensor? bias, float epsilon, "
      "float weight_offset, bool is_centred) -> Tensor");
  library.def("portable_rotary_frequencies(int size, float base) -> Tensor");
  library.def("portable_rotary_table(Tensor frequencies, int positions, float scale) -> Tensor");
  library.def(
      "portable_rotate(Tensor(a!) x, Tensor positions, Tensor table, bool is_interleaved) -> ()");
  library.def(
      "portable_append(Tensor keys, Tensor values, Tensor(a!) cache, Tensor slots) -> ()");
  library.def(
      "portable_rotate_append(Tensor(a!) query, Tensor(b!) keys, Tensor values, Tensor positions, "
      "Tensor table, bool is_interleaved, Tensor(c!) cache, Tensor slots) -> ()");
  library.def(
      "portable_attention(Tensor query, Tensor cache, Tensor pages, Tensor query_starts, "
      "Tensor lengths, float scale, int window, float soft_cap, Tensor? slopes, Tensor? sinks, "
      "Tensor(a!) result) -> ()");
  library.def(
      "portable_attention_digits(Tensor query, Tensor cache, Tensor pages, Tensor query_starts, "
      "Tensor lengths, float scale, int window, float soft_cap, Tensor? slopes, Tensor? sinks, "
      "Tensor(a!) result, Tensor? exponents, int outputs, int segments) -> Tensor");
  library.def(
      "portable_decoder_layers(Tensor(a!) x, Tensor[] weights, float[] epsilons, int[] segments, "
      "int heads, int head_size, int intermediate_size, Tensor positions, Tensor table, "
      "bool is_interleaved, float scale, int window, Tensor(b!)[] caches, Tensor slots, "
      "Tensor pages, Tensor query_starts, Tensor lengths) -> Tensor");
  library.def(
      "portable_causal_conv(Tensor x, Tensor weight, Tensor? bias, Tensor(a!) states, "
      "Tensor slots, Tensor query_start_loc, Tensor has_state, bool has_silu) -> Tensor");
  library.def(
      "portable_mamba2_scan(Tensor x, Tensor dt, Tensor a_log, Tensor b, Tensor c, Tensor? d, "
      "Tensor dt_bias, Tensor(a!) states, Tensor slots, Tensor query_start_loc, "
      "Tensor has_state, float smallest_dt, float largest_dt) -> Tensor");
  library.def(
      "portable_gated_delta_rule(Tensor q, Tensor k, Tensor v, Tensor a, Tensor b, "
      "Tensor a_log, Tensor dt_bias, Tensor(a!) states, Tensor slots, Tensor query_start_loc, "
      "Tensor has_state, float scale, bool doubles_beta) -> Tensor");
  library.def(
      "portable_gated_rms_norm(Tensor x, Tensor gate, Tensor? weight, float epsilon, "
      "int group_size, bool norm_before_gate, str activation) -> Tensor");
  library.def("portable_log_softmax(Tensor logits) -> Tensor");
  library.def("portable_argmax(Tensor logits) -> Tensor");
  library.def("portable_top_k(Tensor logits, int k) -> (Tensor, Tensor)");
  library.def(
      "portable_filter(Tensor logits, Tensor temperatures, Tensor top_k, Tensor top_p, "
      "Tensor min_p) -> Tensor");
  library.def("portable_draw(Tensor logits, Tensor seeds, Tensor positions) -> Tensor");
}
