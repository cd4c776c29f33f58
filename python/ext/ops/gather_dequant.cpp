// SPDX-License-Identifier: Apache-2.0
#include "kvferry/ops/gather_dequant.hpp"

#include "binding.hpp"
#include "ops/operators.hpp"

namespace kvferry::python {
namespace {

struct GatherDequant {
  using Args = GatherDequantArgs;
  static constexpr Operator kOp = Operator::kGatherDequant;
  static constexpr const char* kName = "gather_dequant";
  static constexpr const char* kPlanName = "GatherDequantPlan";
  static constexpr std::size_t kPositional = 4;
  static constexpr std::tuple kFields{
      in("cache", &Args::cache),
      in("block_tables", &Args::block_tables),
      in("seq_lens", &Args::seq_lens),
      out("out", &Args::out),
      in("seq_offset", &Args::seq_offset),
      value("is_seq_lens_cumsum", &Args::is_seq_lens_cumsum, false, "bool = False"),
      index_policy<Args>(),
      RecordField<Args>{},
  };
  static constexpr const char* kDoc = R"(Quantised tokens of a paged cache to contiguous bfloat16, in place.

cache:        [blocks, block_size, 656], uint8 or int8: 512 float8_e4m3fn, 4 float32 scales of 128 values each, 64
              bfloat16 of rope
out:          written, bfloat16 [rows, 576]: value * scale, rounded to float32 and then to bfloat16, and rope bit
              for bit; every NaN product is 0x7fc0
block_tables, seq_lens, seq_offset, is_seq_lens_cumsum, index_policy, error_record: as for gather_pa_kv_cache

Bad entries give zero rows. out may not overlap an input.)";
};

}  // namespace

void define_gather_dequant(nb::module_& module) {
  define_operator<GatherDequant>(module);
}

}  // namespace kvferry::python
