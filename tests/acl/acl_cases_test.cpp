// SPDX-License-Identifier: Apache-2.0
//
// The cases of the operators through the ACL front end, against the same oracles: registered ones, random
// ones and every broken rule of plan(), in both profiles.
#include <fmt/format.h>

#include <optional>

#include "acl_testing.hpp"
#include "aclnnop/aclnn_gather_pa_kv_cache.h"
#include "aclnnop/aclnn_gather_selection_kv_cache.h"
#include "aclnnop/aclnn_group_memcpy.h"
#include "aclnnop/aclnn_scatter_pa_kv_cache.h"
#include "harness/testing.hpp"
#include "ops/gather_pa_kv_cache/gather_pa_kv_cache_cases.hpp"
#include "ops/gather_selection_kv_cache/gather_selection_kv_cache_cases.hpp"
#include "ops/group_memcpy/group_memcpy_cases.hpp"
#include "ops/scatter_pa_kv_cache/scatter_pa_kv_cache_cases.hpp"

namespace kvferry::harness {
namespace {

// A second table of the numbers, from DType.
std::optional<aclDataType> to_acl(DType dtype) {
  constexpr std::pair<DType, int> kNumbers[] = {
      {DType::kFloat32, 0},     {DType::kFloat16, 1},      {DType::kInt8, 2},      {DType::kInt32, 3},
      {DType::kUInt8, 4},       {DType::kInt16, 6},        {DType::kUInt16, 7},    {DType::kUInt32, 8},
      {DType::kInt64, 9},       {DType::kUInt64, 10},      {DType::kBFloat16, 27}, {DType::kHiFloat8, 34},
      {DType::kFloat8E5M2, 35}, {DType::kFloat8E4M3FN, 36}};
  for (const auto& [type, number] : kNumbers) {
    if (type == dtype) return static_cast<aclDataType>(number);
  }
  return std::nullopt;
}

// ACL has no way to say these.
bool inexpressible(const TensorView& view) {
  return view.rank < 0 || view.rank > kMaxRank || !to_acl(view.dtype) || view.device != Device{};
}
bool inexpressible(const std::optional<TensorView>& view) {
  return view && inexpressible(*view);
}

// The tensors of one call.
class Tensors {
 public:
  Tensors() = default;
  ~Tensors() {
    for (const aclTensor* tensor : made_) aclDestroyTensor(tensor);
  }
  Tensors(const Tensors&) = delete;
  Tensors& operator=(const Tensors&) = delete;

  aclTensor* operator()(const TensorView& view, aclFormat format = ACL_FORMAT_ND) {
    const std::uint64_t storage_dims = view.storage_elements < 0 ? 0 : 1;
    made_.push_back(aclCreateTensor(view.shape.data(), static_cast<std::uint64_t>(view.rank),
                                    to_acl(view.dtype).value(), view.strides.data(), view.offset, format,
                                    &view.storage_elements, storage_dims, view.data));
    return made_.back();
  }
  aclTensor* operator()(const std::optional<TensorView>& view, aclFormat format = ACL_FORMAT_ND) {
    return view ? (*this)(*view, format) : nullptr;
  }
  aclTensor* nothing(aclDataType dtype) {
    const std::int64_t none = 0;
    made_.push_back(aclCreateTensor(&none, 1, dtype, nullptr, 0, ACL_FORMAT_ND, &none, 1, nullptr));
    return made_.back();
  }

 private:
  std::vector<aclTensor*> made_;
};

Status to_status(int code) {
  const StatusCode status = code == 0        ? StatusCode::kOk
                            : code == 161001 ? StatusCode::kNull
                            : code == 161002 ? StatusCode::kInvalidArgument
                            : code == 507000 ? StatusCode::kIndex
                            : code == 561003 ? StatusCode::kUnimplemented
                                             : StatusCode::kOutOfMemory;
  return {status, code == 0 ? "" : acl::last_error()};
}

// Both phases and the wait, with a workspace whose neighbours are watched.
template <class One, class Two>
Status call_phases(One one, Two two) {
  static acl::OwnStream stream;
  std::uint64_t bytes = 1;
  auto* executor = reinterpret_cast<aclOpExecutor*>(1);
  int code = one(&bytes, &executor);
  if (code != ACLNN_SUCCESS) {
    EXPECT_EQ(executor, nullptr);
    return to_status(code);
  }
  const Memory workspace(static_cast<std::int64_t>(bytes), Placement::kGuarded, 1);
  code = two(bytes == 0 ? nullptr : workspace.data(), bytes, executor, stream.handle);
  if (code == ACLNN_SUCCESS) code = aclrtSynchronizeStream(stream.handle);
  Status status = to_status(code);
  EXPECT_FALSE(workspace.damage().has_value());
  EXPECT_NE(two(workspace.data(), bytes, executor, stream.handle), ACLNN_SUCCESS) << "an executor ran twice";
  return status;
}

void set_policy(IndexPolicy policy) {
  aclKvferrySetIndexPolicy(policy == IndexPolicy::kReject ? "reject" : "default");
}

std::string mode_name(CacheMode mode) {
  return mode == CacheMode::kPaNz ? "PA_NZ" : "Norm";
}
aclFormat cache_format(CacheMode mode) {
  return mode == CacheMode::kPaNz ? ACL_FORMAT_FRACTAL_NZ : ACL_FORMAT_ND;
}

// Each operator: what ACL cannot say, what a profile takes (written from the products' tables, not from the
// library's), and the call.

enum class Profile { k950, kA2 };
Profile profile_in_force = Profile::k950;

bool a2_cache(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16 || dtype == DType::kInt8;
}

bool skip(const GatherPaKvCacheArgs& a) {
  return inexpressible(a.key_cache) || inexpressible(a.value_cache) || inexpressible(a.block_tables) ||
         inexpressible(a.seq_lens) || inexpressible(a.key) || inexpressible(a.value) ||
         inexpressible(a.seq_offset) || a.cache_mode > CacheMode::kPaNz ||
         a.index_policy > IndexPolicy::kReject;
}

bool takes(const GatherPaKvCacheArgs& a) {
  const DType k = a.key_cache.dtype, v = a.value_cache.dtype;
  const bool nz = a.cache_mode == CacheMode::kPaNz;
  if (profile_in_force == Profile::k950) {
    const bool mixed = k == DType::kFloat8E4M3FN && (v == DType::kFloat16 || v == DType::kBFloat16);
    return (k == v || mixed) && (nz || a.key_cache.dim(2) == a.value_cache.dim(2));
  }
  const auto fits = [&](const TensorView& rows) {
    return !nz || rows.dim(1) * item_bytes(rows.dtype) <= 151552;
  };
  return a2_cache(k) && k == v && a.block_tables.dtype == DType::kInt32 && fits(a.key) && fits(a.value);
}

Status call(const GatherPaKvCacheArgs& a) {
  set_policy(a.index_policy);
  Tensors t;
  std::string mode = mode_name(a.cache_mode);
  const aclFormat format = cache_format(a.cache_mode);
  return call_phases(
      [&](std::uint64_t* bytes, aclOpExecutor** executor) {
        return aclnnGatherPaKvCacheGetWorkspaceSize(
            t(a.key_cache, format), t(a.value_cache, format), t(a.block_tables), t(a.seq_lens), t(a.key),
            t(a.value), t(a.seq_offset), mode.data(), a.is_seq_lens_cumsum, bytes, executor);
      },
      aclnnGatherPaKvCache);
}

bool skip(const ScatterPaKvCacheArgs& a) {
  return inexpressible(a.key) || inexpressible(a.key_cache) || inexpressible(a.slot_mapping) ||
         inexpressible(a.value) || inexpressible(a.value_cache) || a.cache_mode > CacheMode::kPaNz ||
         a.scatter_mode > ScatterMode::kNct || a.index_policy > IndexPolicy::kReject;
}

bool takes(const ScatterPaKvCacheArgs& a) {
  return profile_in_force == Profile::k950 ||
         (a2_cache(a.key_cache.dtype) && (!a.value_cache || a2_cache(a.value_cache->dtype)) &&
          a.slot_mapping.dtype == DType::kInt32);
}

Status call(const ScatterPaKvCacheArgs& a) {
  set_policy(a.index_policy);
  Tensors t;
  std::string mode = mode_name(a.cache_mode);
  std::string scatter = a.scatter_mode == ScatterMode::kNct    ? "Nct"
                        : a.scatter_mode == ScatterMode::kNhsd ? "NHSD"
                                                               : "None";
  const aclFormat format = cache_format(a.cache_mode);
  const aclIntArray* strides = aclCreateIntArray(a.nct_strides.data(), 2);
  const aclIntArray* offsets = aclCreateIntArray(a.nct_offsets.data(), 2);
  Status status = call_phases(
      [&](std::uint64_t* bytes, aclOpExecutor** executor) {
        return aclnnScatterPaKvCacheGetWorkspaceSize(
            t(a.key), t(a.key_cache, format), t(a.slot_mapping), t(a.value), t(a.value_cache, format),
            nullptr, nullptr, nullptr, mode.data(), scatter.data(), strides, offsets, bytes, executor);
      },
      aclnnScatterPaKvCache);
  aclDestroyIntArray(strides);
  aclDestroyIntArray(offsets);
  return status;
}

bool skip(const GatherSelectionKvCacheArgs& a) {
  for (const TensorView* view : {&a.selection_kv_cache, &a.selection_kv_block_table,
                                 &a.selection_kv_block_status, &a.selection_topk_indices, &a.full_kv_cache,
                                 &a.full_kv_block_table, &a.full_kv_actual_seq, &a.selection_kv_actual_seq}) {
    if (inexpressible(*view)) return true;
  }
  const bool absent = !a.full_q_actual_seq && a.q_len_mode != QLenMode::kAllRows;  // in ACL a null pointer
  return inexpressible(a.selection_k_rope) || inexpressible(a.full_k_rope) ||
         inexpressible(a.full_q_actual_seq) || absent || a.status_row || a.counters || a.fetch_counts ||
         a.q_len_mode > QLenMode::kAllRows || a.index_policy > IndexPolicy::kReject;
}

bool takes(const GatherSelectionKvCacheArgs& a) {
  return profile_in_force == Profile::k950 || a2_cache(a.selection_kv_cache.dtype);
}

Status call(const GatherSelectionKvCacheArgs& a) {
  set_policy(a.index_policy);
  aclKvferrySetSelectionQLen(a.q_len_mode == QLenMode::kCounts      ? "counts"
                             : a.q_len_mode == QLenMode::kPrefixSum ? "prefix_sum"
                                                                    : "all_rows");
  Tensors t;
  const auto rope = [&](const std::optional<TensorView>& view) {
    return view ? t(view) : t.nothing(to_acl(a.selection_kv_cache.dtype).value());
  };
  return call_phases(
      [&](std::uint64_t* bytes, aclOpExecutor** executor) {
        return aclnnGatherSelectionKvCacheGetWorkspaceSize(
            rope(a.selection_k_rope), t(a.selection_kv_cache), t(a.selection_kv_block_table),
            t(a.selection_kv_block_status), t(a.selection_topk_indices), rope(a.full_k_rope),
            t(a.full_kv_cache), t(a.full_kv_block_table), t(a.full_kv_actual_seq), t(a.full_q_actual_seq),
            a.selection_topk_block_size, t(a.selection_kv_actual_seq), bytes, executor);
      },
      aclnnGatherSelectionKvCache);
}

bool skip(const GroupMemcpyArgs& a) {
  return inexpressible(a.addr_table) || a.sizes || a.count || a.host_count || a.skip_null || a.checked;
}

bool takes(const GroupMemcpyArgs&) {
  return true;
}

Status call(const GroupMemcpyArgs& a) {
  Tensors t;
  return call_phases(
      [&](std::uint64_t* bytes, aclOpExecutor** executor) {
        return aclnnGroupMemcpyGetWorkspaceSize(t(a.addr_table), a.copy_bytes, bytes, executor);
      },
      aclnnGroupMemcpy);
}

// Thrown for cases that ACL cannot say.
struct Inexpressible : CaseError {
  Inexpressible() : CaseError("not in ACL") {}
};

// An operator's cases with the ACL call in the place of the one-call form.
template <const OperatorInfo& (*kInfo)(), class Args>
std::unique_ptr<Instance> make(const Case& from) {
  std::unique_ptr<Instance> made = kInfo().make(from);
  const auto args = std::any_cast<std::shared_ptr<const Args>>(made->args);
  if (skip(*args)) throw Inexpressible();
  const bool planned = made->expect.code == StatusCode::kOk || made->expect.at == Expectation::At::kRun;
  if (planned && !takes(*args)) {
    made->expect = {StatusCode::kInvalidArgument, Expectation::At::kPlan, {"profile"}};
  }
  made->call = [args](ErrorRecord*, const Context&) { return call(*args); };
  return made;
}

// Cases of gigabytes: they are about the library's arithmetic, which is the same behind every front end.
bool is_large(const RegisteredCase& one) {
  const std::string_view name = one.name, text = one.text;
  for (const char* part :
       {"above", "article_shapes", "_gib", "_mib", "4e9", "2_31", "million", "limit", "large_call"}) {
    if (name.find(part) != std::string_view::npos) return true;
  }
  return text.find("fold=") != std::string_view::npos;
}

class AclCases {
 public:
  AclCases(const OperatorInfo& info, std::unique_ptr<Instance> (*make)(const Case&)) : info_(info) {
    info_.make = make;
  }
  ~AclCases() { aclKvferrySetProfile("950"); }
  AclCases(const AclCases&) = delete;
  AclCases& operator=(const AclCases&) = delete;

  void run(Case what, Profile profile) {
    if (what.text("policy", "") == "report") what.set("policy", "default");  // ACL has no record
    what.set("via", "call");
    if (info_.op == Operator::kGatherSelectionKvCache) {
      what.set("counters", 0);
      what.set("parts", "run");  // nor schedules
      for (const char* key : {"cl", "fl"}) what.erase(key);
    }
    profile_in_force = profile;
    aclKvferrySetProfile(profile == Profile::kA2 ? "a2" : "950");
    const Report report = runner_.run(info_, what);
    if (report.bad_case && report.failure->what == Inexpressible().what()) return;
    if (!report.ok()) ADD_FAILURE() << (profile == Profile::kA2 ? "a2: " : "950: ") << report.to_string();
    ++ran;
  }
  void run_both(std::string_view text) {
    for (const auto& [info, what] : resolve(text)) {
      run(what, Profile::k950);
      run(what, Profile::kA2);
    }
  }
  void run_registered() {
    for (const RegisteredCase& one : info_.cases) {
      if (one.slow || is_large(one)) continue;
      for (const auto& [info, what] : resolve(one.name)) run(what, Profile::k950);
    }
  }
  void run_random(std::int64_t count) {
    for (std::int64_t i = 1; i <= count && !testing::Test::HasFailure(); ++i) {
      const Case what = info_.random_case(static_cast<std::uint64_t>(i));
      run(what, Profile::k950);
      run(what, Profile::kA2);
    }
  }

  int ran = 0;

 private:
  OperatorInfo info_;
  Runner runner_{{1}};
};

using Gather = GatherPaKvCacheArgs;
using Scatter = ScatterPaKvCacheArgs;
using Selection = GatherSelectionKvCacheArgs;

TEST(AclCases, GatherPaKvCache) {
  AclCases cases(gather_pa_kv_cache_info(), make<gather_pa_kv_cache_info, Gather>);
  cases.run_registered();
  EXPECT_GT(cases.ran, 100);
  cases.run_random(random_cases(1000));
}

TEST(AclCases, GatherPaKvCacheEveryRuleOfPlan) {
  AclCases cases(gather_pa_kv_cache_info(), make<gather_pa_kv_cache_info, Gather>);
  for (const GatherBreaker& rule : gather_breakers()) {
    const std::string name = rule.name;
    for (const std::string mode : {"nd", "nz"}) {
      if (name.starts_with("nz_") && mode == "nd") continue;
      if (name == "key_heads" && mode == "nz") continue;
      cases.run_both(fmt::format(
          "gather_pa_kv_cache:lens=5;3,offset=4;0,w=3,h=2,dk=16,dv=8,cumsum={{0|1}},idx={{i32|i64}},mode={},"
          "policy={{default|reject}},break={}",
          mode, name));
    }
  }
  EXPECT_GT(cases.ran, 300);
}

TEST(AclCases, ScatterPaKvCache) {
  AclCases cases(scatter_pa_kv_cache_info(), make<scatter_pa_kv_cache_info, Scatter>);
  cases.run_registered();
  EXPECT_GT(cases.ran, 100);
  cases.run_random(random_cases(1000));
}

TEST(AclCases, ScatterPaKvCacheEveryRuleOfPlan) {
  AclCases cases(scatter_pa_kv_cache_info(), make<scatter_pa_kv_cache_info, Scatter>);
  for (const ScatterBreaker& rule : scatter_breakers()) {
    for (const std::string& mode : split(rule.modes, ' ')) {
      cases.run_both(
          fmt::format("scatter_pa_kv_cache:t=7,h=3,dk=32,dv=16,bs=4,idx={{i32|i64}},mode={},policy={{default|"
                      "reject}},break={}",
                      mode, rule.name));
    }
  }
  EXPECT_GT(cases.ran, 300);
}

TEST(AclCases, GatherSelectionKvCache) {
  AclCases cases(gather_selection_kv_cache_info(), make<gather_selection_kv_cache_info, Selection>);
  cases.run_registered();
  EXPECT_GT(cases.ran, 100);
  cases.run_random(random_cases(500));
}

TEST(AclCases, GatherSelectionKvCacheEveryRuleOfPlan) {
  AclCases cases(gather_selection_kv_cache_info(), make<gather_selection_kv_cache_info, Selection>);
  for (const SelectionBreaker& rule : selection_breakers()) {
    const std::string name = rule.name;
    if (name.find("status_row") != std::string::npos || name.starts_with("counters") ||
        name.starts_with("fetch_counts"))
      continue;
    for (const std::string& form : split(rule.forms, ' ')) {
      cases.run_both(fmt::format(
          "gather_selection_kv_cache:b=2,s=2,k=6,bs=2,sblk=4,fblk=6,kv=9;14,snb=12,form={},policy={{"
          "default|reject}},break={}",
          form, name));
    }
  }
  EXPECT_GT(cases.ran, 200);
}

TEST(AclCases, GroupMemcpy) {
  AclCases cases(group_memcpy_info(), make<group_memcpy_info, GroupMemcpyArgs>);
  cases.run_registered();
  EXPECT_GT(cases.ran, 30);
  cases.run_random(random_cases(1000));
  for (const GroupMemcpyBreaker& rule : group_memcpy_breakers()) {
    cases.run_both("group_memcpy:h=5,w=24,table={flat|pairs},tt={i64|u64},break=" + std::string(rule.name));
  }
}

}  // namespace
}  // namespace kvferry::harness
