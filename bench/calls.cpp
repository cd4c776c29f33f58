// SPDX-License-Identifier: Apache-2.0
//
// The smallest call of an operator, to hold calls from elsewhere against: 32 bytes of K or V a tensor, one
// id.
#include <cstring>
#include <deque>

#include "bench/problem.hpp"
#include "kvferry/ops/gather_pa_kv_cache.hpp"
#include "kvferry/ops/gather_selection_kv_cache.hpp"
#include "kvferry/ops/group_memcpy.hpp"
#include "kvferry/ops/scatter_pa_kv_cache.hpp"

namespace kvferry::bench {
namespace {

// `arrays` are the arguments of the Python function of that name, in its order.
class CallProblem : public Problem {
 public:
  explicit CallProblem(const Spec& spec) {
    bytes = 2 * kRow;
    const std::string op = spec.text("op", "gather_pa_kv_cache");
    if (op == "gather_pa_kv_cache")
      add_gather();
    else if (op == "scatter_pa_kv_cache")
      add_scatter();
    else if (op == "gather_selection_kv_cache")
      add_selection();
    else if (op == "group_memcpy")
      add_group_memcpy();
    else
      throw SpecError("op=" + op +
                      " is none of gather_pa_kv_cache, scatter_pa_kv_cache, gather_selection_kv_cache, "
                      "group_memcpy");
  }

 private:
  static constexpr std::int64_t kRow = 32, kHead = kRow / 2;

  void add_gather() {
    GatherPaKvCacheArgs args;
    args.key_cache = halves("key_cache", {1, 1, 1, kHead});
    args.value_cache = halves("value_cache", {1, 1, 1, kHead});
    args.block_tables = integers<std::int32_t>("block_tables", {1, 1}, {0});
    args.seq_lens = integers<std::int32_t>("seq_lens", {1}, {1});
    args.key = halves("key", {1, 1, kHead});
    args.value = halves("value", {1, 1, kHead});
    args.is_seq_lens_cumsum = false;
    add_calls(args);
  }

  void add_scatter() {
    ScatterPaKvCacheArgs args;
    args.key = halves("key", {1, 1, kHead});
    args.value = halves("value", {1, 1, kHead});
    args.key_cache = halves("key_cache", {1, 1, 1, kHead});
    args.value_cache = halves("value_cache", {1, 1, 1, kHead});
    args.slot_mapping = integers<std::int32_t>("slot_mapping", {1}, {0});
    add_calls(args);
  }

  // The one token may be a draft: each call fetches it again.
  void add_selection() {
    GatherSelectionKvCacheArgs args;
    args.selection_k_rope = halves("selection_k_rope", {1, 1, kHead});
    args.selection_kv_cache = halves("selection_kv_cache", {1, 1, kHead});
    args.selection_kv_block_table = integers<std::int32_t>("selection_kv_block_table", {1, 1}, {0});
    args.selection_kv_block_status =
        integers<std::int32_t>("selection_kv_block_status", {1, 1, 1, 2}, {-1, 0});
    args.selection_topk_indices = integers<std::int32_t>("selection_topk_indices", {1, 1, 1, 1}, {0});
    args.full_k_rope = halves("full_k_rope", {1, 1, kHead});
    args.full_kv_cache = halves("full_kv_cache", {1, 1, kHead});
    args.full_kv_block_table = integers<std::int32_t>("full_kv_block_table", {1, 1}, {0});
    args.full_kv_actual_seq = integers<std::int32_t>("full_kv_actual_seq", {1}, {1});
    args.full_q_actual_seq = integers<std::int32_t>("full_q_actual_seq", {1}, {1});
    args.selection_kv_actual_seq = integers<std::int32_t>("selection_kv_actual_seq", {1}, {0});
    args.selection_topk_block_size = 1;
    add_calls(args);
  }

  // Besides the argument, the memory behind its addresses.
  void add_group_memcpy() {
    const auto address = [](const TensorView& view) { return reinterpret_cast<std::int64_t>(view.data); };
    const TensorView source = halves("source", {2, kHead}), destination = halves("destination", {2, kHead});
    GroupMemcpyArgs args;
    args.addr_table = integers<std::int64_t>(
        "addr_table", {2, 2},
        {address(source), address(destination), address(source) + kRow, address(destination) + kRow});
    args.copy_bytes = kRow;
    add_calls(args);
  }

  template <class Args>
  void add_calls(const Args& args) {
    Result<Plan> made = kvferry::plan(args, context_);
    require(made.status());
    workspace_.resize(to_size(made->workspace_bytes()));
    auto given = buffers(args);
    given.workspace = {workspace_.data(), std::ssize(workspace_)};
    add("plan_run", [this, args](std::int64_t) {
      const Result<Plan> each = kvferry::plan(args, context_);
      require(each.status());
      auto to = buffers(args);
      to.workspace = {workspace_.data(), std::ssize(workspace_)};
      require(kvferry::run(each.value(), to, context_));
    });
    add("run", [this, plan = std::move(made).value(), given](std::int64_t) {
      require(kvferry::run(plan, given, context_));
    });
  }

  TensorView tensor(const std::string& name, DType dtype, const std::string& numpy_dtype,
                    const std::vector<std::int64_t>& shape, std::vector<std::byte> contents) {
    void* data = memory_.emplace_back(std::move(contents)).data();
    arrays.push_back({name, data, numpy_dtype, shape});
    return contiguous(data, dtype, shape);
  }

  TensorView halves(const std::string& name, const std::vector<std::int64_t>& shape) {
    std::int64_t count = 1;
    for (const std::int64_t n : shape) count *= n;
    std::vector<std::byte> contents(to_size(2 * count));
    for (std::byte& byte : contents) byte = static_cast<std::byte>(random_.below(64));  // no NaN among them
    return tensor(name, DType::kFloat16, "float16", shape, std::move(contents));
  }

  template <class T>
  TensorView integers(const std::string& name, const std::vector<std::int64_t>& shape,
                      const std::vector<T>& values) {
    std::vector<std::byte> contents(values.size() * sizeof(T));
    std::memcpy(contents.data(), values.data(), contents.size());
    const bool wide = sizeof(T) == 8;
    return tensor(name, wide ? DType::kInt64 : DType::kInt32, wide ? "int64" : "int32", shape,
                  std::move(contents));
  }

  const Context context_;
  Random random_{1};
  std::deque<std::vector<std::byte>> memory_;
  std::vector<std::byte> workspace_;
};

}  // namespace

std::unique_ptr<Problem> make_call_problem(const Spec& spec) {
  return std::make_unique<CallProblem>(spec);
}

}  // namespace kvferry::bench
