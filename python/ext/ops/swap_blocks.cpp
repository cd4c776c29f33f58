// SPDX-License-Identifier: Apache-2.0
#include "kvferry/ops/swap_blocks.hpp"

#include "binding.hpp"
#include "ops/operators.hpp"

namespace kvferry::python {
namespace {

struct SwapBlocks {
  using Args = SwapBlocksArgs;
  static constexpr Operator kOp = Operator::kSwapBlocks;
  static constexpr const char* kName = "swap_blocks";
  static constexpr const char* kPlanName = "SwapBlocksPlan";
  static constexpr std::size_t kPositional = 3;
  static constexpr std::tuple kFields{
      list("src", &Args::src, 0, never<Args>),
      list("dst", &Args::dst, 1, always<Args>),
      in("mapping", &Args::mapping),
      in("count", &Args::count),
      index_policy<Args>(),
      RecordField<Args>{},
  };
  static constexpr const char* kDoc =
      R"(Blocks from one pool of caches to another, in place. Nothing is exchanged.

src:     tensors [source_blocks, ...] that share their first length; any dtype and strides, each its own
dst:     written, as many tensors [destination_blocks, ...], each with the dtype and the other lengths of its source
mapping: [pairs, 2], int32 or int64: block of src, block of dst; a pair with a negative id is skipped
count:   [] or [1], int32 or int64: so many of the pairs run

There is no order between pairs. A pair with an id beyond its blocks is skipped; of a destination that an earlier
pair has the bytes are unspecified. "report" also counts both in error_record (batch = pair, BAD_SOURCE,
BAD_DESTINATION, BAD_DUPLICATE); "reject" raises IndexError before anything is written.

Tensors of dst may not overlap each other nor an input.)";

  static SwapBlocksBuffers make_buffers(const Args& args, std::vector<void*>& pointers) {
    pointers.resize(args.src.size() + args.dst.size());
    return buffers(args, const_cast<const void**>(pointers.data()), pointers.data() + args.src.size());
  }
};

}  // namespace

void define_swap_blocks(nb::module_& module) {
  define_operator<SwapBlocks>(module);
}

}  // namespace kvferry::python
