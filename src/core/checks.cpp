// SPDX-License-Identifier: Apache-2.0
#include "core/checks.hpp"

#include <algorithm>
#include <array>

#include "core/checked_math.hpp"
#include "core/context_state.hpp"

namespace kvferry::internal {
namespace {

__extension__ using Int128 = __int128;

// Looks for two indices with one address: steps d, not all 0, with |d[i]| < count[i] and sum of d[i] *
// stride[i] = 0. From the largest stride down, only few d can still be made up for by the strides below, one
// for any layout without overlap; the budget is for what nobody writes.
class OverlapSearch {
 public:
  void add(std::int64_t stride, std::int64_t count) {
    const Int128 size = stride < 0 ? -Int128{stride} : Int128{stride};  // a sign only mirrors the axis
    // Largest stride first.
    int i = n_++;
    for (; i > 0 && axes_[at(i - 1)].stride < size; --i) axes_[at(i)] = axes_[at(i - 1)];
    axes_[at(i)] = {size, count - 1};
  }

  bool found() {
    for (int i = n_ - 1; i >= 0; --i)
      reach_[at(i)] = reach_[at(i + 1)] + axes_[at(i)].stride * axes_[at(i)].most;
    return descend(0, 0, false);
  }

 private:
  struct Step {
    Int128 stride;
    Int128 most;
  };
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }

  bool descend(int level, Int128 sum, bool moved) {
    if (level == n_) return moved && sum == 0;
    const Step& axis = axes_[at(level)];
    if (axis.stride == 0) return true;  // and so are all behind it
    const Int128 rest = reach_[at(level + 1)];
    Int128 first = std::max(-axis.most, -((rest + sum) / axis.stride));
    const Int128 last = std::min(axis.most, (rest - sum) / axis.stride);
    if (!moved) first = 0;  // d and -d are the same pair
    for (Int128 d = first; d <= last && budget_ > 0; ++d) {
      --budget_;
      if (descend(level + 1, sum + d * axis.stride, moved || d != 0)) return true;
    }
    return false;
  }

  std::array<Step, kMaxRank> axes_{};
  std::array<Int128, kMaxRank + 1> reach_{};
  int n_ = 0;
  int budget_ = 10000;
};

// Memory that the device of the context reads and writes as its own.
bool reachable(Device memory, Device context) {
  return memory == context || memory.type == DeviceType::kCudaHost || memory.type == DeviceType::kCudaManaged;
}

}  // namespace

std::int64_t element_count(const TensorView& view) noexcept {
  // Zero first: the other axes of an empty view may be too large to multiply.
  for (int axis = 0; axis < view.rank; ++axis) {
    if (view.dim(axis) == 0) return 0;
  }
  std::int64_t count = 1;
  for (int axis = 0; axis < view.rank; ++axis) count *= view.dim(axis);
  return count;
}

bool overlaps_itself(const TensorView& view) noexcept {
  OverlapSearch search;
  for (int axis = 0; axis < view.rank; ++axis) {
    if (view.dim(axis) == 0) return false;
    if (view.dim(axis) > 1) search.add(view.stride(axis), view.dim(axis));
  }
  return search.found();
}

Checker::Checker(Operator op, const Context& context) : op_(op), device_(context.options().device) {
  const ContextState& state = context.state();
  if (!state.environment.ok()) {
    status_ = state.environment;
  } else if (Status here = state.queue != nullptr ? state.queue->check_process() : Status(); !here.ok()) {
    fail(here.code(), here.message());
  } else if (device_.type == DeviceType::kCuda ? state.queue == nullptr : device_ != Device{}) {
    fail(StatusCode::kUnavailable, fmt::format("the context asks for device {}, expected cpu:0 or cuda:N",
                                               kvferry::to_string(device_)));
  }
}

void Checker::fail(StatusCode code, std::string_view message) {
  status_ = Status(code, fmt::format("{}: {}", to_string(op_), message));
}

void Checker::index_policy(IndexPolicy policy) {
  that(policy <= IndexPolicy::kReject, "index_policy: {}, expected kDefault, kReport or kReject",
       static_cast<int>(policy));
  if (policy == IndexPolicy::kReject) {
    on_host("index_policy: kReject, expected kDefault or kReport");
  }
}

void Checker::index_policy(IndexPolicy policy, const TensorView& indices) {
  const bool reads = is_on_host(indices) && policy == IndexPolicy::kReject;
  index_policy(reads ? IndexPolicy::kDefault : policy);
}

void Checker::on_host(std::string_view what) {
  if (!ok() || device_.type != DeviceType::kCuda) return;
  fail(StatusCode::kUnimplemented,
       fmt::format("{} on device {}, where the host reads no indices", what, kvferry::to_string(device_)));
}

void Checker::tensor(const char* name, const TensorView& view) {
  this->view(name, view, false);
}

void Checker::indices(const char* name, const TensorView& view) {
  this->view(name, view, true);
}

void Checker::indices_beside(const char* name, const TensorView& view, const char* other_name,
                             const TensorView& other) {
  indices(name, view);
  that(device_.type == DeviceType::kCpu || is_on_host(view) == is_on_host(other),
       "{}: lives on device {}, expected {} as {} does", name, kvferry::to_string(view.device),
       is_on_host(other) ? "ordinary host memory" : "memory of the device or pinned memory", other_name);
}

void Checker::view(const char* name, const TensorView& view, bool may_be_on_host) {
  if (!ok()) return;
  that(view.rank >= 0 && view.rank <= kMaxRank,
       "{}: rank is {}, expected 0 to {}, with one stride a dimension", name, view.rank, kMaxRank);
  that(size_of(view.dtype) > 0, "{}: dtype {} is not a DType", name, static_cast<int>(view.dtype));
  if (!ok()) return;
  bool empty = false;
  for (int axis = 0; axis < view.rank; ++axis) {
    that(view.dim(axis) >= 0, "{}: dimension {} is {}, expected >= 0", name, axis, view.dim(axis));
    empty = empty || view.dim(axis) == 0;
  }
  that(reachable(view.device, device_) || (may_be_on_host && view.device == Device{}),
       "{}: lives on device {}, expected the context's {}", name, kvferry::to_string(view.device),
       kvferry::to_string(device_));
  if (!ok()) return;
  if (view.data == nullptr && !empty) {
    fail(StatusCode::kNull,
         fmt::format("{}: data is null, expected the memory of {}", name, to_string(view)));
    return;
  }

  // First and last element that the view can touch. The whole product dim * stride, one step more than is
  // touched, must fit too, even in an empty view: layout code multiplies them freely.
  const Checked size(size_of(view.dtype));
  Checked low(view.offset), high(view.offset), count(size);
  bool overflow = false;
  for (int axis = 0; axis < view.rank; ++axis) {
    count = count * view.dim(axis);
    if (view.dim(axis) <= 1) continue;
    const Checked whole = Checked(view.dim(axis)) * view.stride(axis) * size;
    const Checked reach = Checked(view.dim(axis) - 1) * view.stride(axis);
    (view.stride(axis) < 0 ? low : high) = (view.stride(axis) < 0 ? low : high) + reach;
    overflow = overflow || whole.overflow;
  }
  overflow = overflow || (count.overflow && !empty) || (low * size).overflow || ((high + 1) * size).overflow;
  // to_string only for what fails: plans of many caches come through here.
  if (overflow) {
    return fail(StatusCode::kInvalidArgument, fmt::format("{}: {} offset {} reaches beyond 2^63 bytes", name,
                                                          to_string(view), view.offset));
  }
  if (empty || view.storage_elements < 0) return;
  if (low.value < 0 || high.value >= view.storage_elements) {
    fail(StatusCode::kInvalidArgument,
         fmt::format("{}: {} offset {} touches elements {} to {}, expected 0 to {} (storage)", name,
                     to_string(view), view.offset, low.value, high.value, view.storage_elements - 1));
  }
}

void Checker::output(const char* name, const TensorView& view) {
  tensor(name, view);
  if (!ok() || !overlaps_itself(view)) return;
  fail(StatusCode::kInvalidArgument,
       fmt::format("{}: {} has two elements at one address, expected distinct ones (it is written)", name,
                   to_string(view)));
}

void Checker::rank(const char* name, const TensorView& view, int expected) {
  that(view.rank == expected, "{}: rank is {}, expected {}", name, view.rank, expected);
}

void Checker::dim(const char* name, const TensorView& view, int axis, std::int64_t expected,
                  std::string_view why) {
  that(view.dim(axis) == expected, "{}: dimension {} is {}, expected {} ({})", name, axis, view.dim(axis),
       expected, why);
}

void Checker::kv_dtype(const char* name, const TensorView& view) {
  that(view.dtype != DType::kInt64 && view.dtype != DType::kUInt64,
       "{}: dtype is {}, expected float16, bfloat16, float32, (u)int8, (u)int16, (u)int32, hifloat8, "
       "float8_e5m2 or "
       "float8_e4m3fn",
       name, to_string(view.dtype));
}

void Checker::index_dtype(const char* name, const TensorView& view) {
  that(view.dtype == DType::kInt32 || view.dtype == DType::kInt64, "{}: dtype is {}, expected int32 or int64",
       name, to_string(view.dtype));
}

void Checker::count(const char* name, const TensorView& view, const char* other_name,
                    const TensorView& other) {
  indices_beside(name, view, other_name, other);
  that(view.rank == 0 || (view.rank == 1 && view.dim(0) == 1), "{}: {}, expected [] or [1]", name,
       to_string(view));
  index_dtype(name, view);
}

void Checker::same_dtype(const char* name, const TensorView& view, const char* other_name,
                         const TensorView& other) {
  that(view.dtype == other.dtype, "{}: dtype is {}, expected {} ({})", name, to_string(view.dtype),
       to_string(other.dtype), other_name);
}

}  // namespace kvferry::internal
