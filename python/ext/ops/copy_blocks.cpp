// SPDX-License-Identifier: Apache-2.0
#include "kvferry/ops/copy_blocks.hpp"

#include "binding.hpp"
#include "ops/operators.hpp"

namespace kvferry::python {
namespace {

struct CopyBlocks {
  using Args = CopyBlocksArgs;
  static constexpr Operator kOp = Operator::kCopyBlocks;
  static constexpr const char* kName = "copy_blocks";
  static constexpr const char* kPlanName = "CopyBlocksPlan";
  static constexpr std::size_t kPositional = 2;
  static constexpr std::tuple kFields{
      list("caches", &Args::caches, 0, always<Args>),
      in("mapping", &Args::mapping),
      in("count", &Args::count),
      index_policy<Args>(),
      RecordField<Args>{},
  };
  static constexpr const char* kDoc =
      R"(Blocks of paged caches onto other blocks of the same caches, in place.

caches:  written, tensors [blocks, ...] that share their first length; any dtype and strides, each its own
mapping: [pairs, 2], int32 or int64: source block, destination block; a pair with a negative id is skipped
count:   [] or [1], int32 or int64: so many of the pairs run

There is no order between pairs. A pair with an id beyond the blocks is skipped; of a destination that an earlier
pair has, or that is a source, the bytes are unspecified. "report" also counts both in error_record (batch = pair,
BAD_SOURCE, BAD_DESTINATION, BAD_DUPLICATE); "reject" raises IndexError before anything is written.

Caches may not overlap each other nor the inputs.)";

  static CopyBlocksBuffers make_buffers(const Args& args, std::vector<void*>& pointers) {
    pointers.resize(args.caches.size());
    return buffers(args, pointers.data());
  }
};

}  // namespace

void define_copy_blocks(nb::module_& module) {
  define_operator<CopyBlocks>(module);
}

}  // namespace kvferry::python
