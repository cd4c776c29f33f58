// SPDX-License-Identifier: Apache-2.0
//
// The harness itself: a fake operator with planted defects. A harness that finds nothing proves nothing.
#include "harness/harness.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "core/impl.hpp"
#include "harness/fault.hpp"
#include "ops/registry.hpp"

namespace kvferry::harness {
namespace {

// Copies src [4, 3] uint8 into every second row of a padded dst [4, 3].
struct FakeBody final : internal::PlanBody {
  FakeBody() : PlanBody(Operator::kGroupMemcpy) { workspace_bytes = 16; }
  std::string describe_problem() const override { return ""; }
};

struct Fake {
  Array src;
  Array dst;
  Memory* src_memory = nullptr;
  Memory* dst_memory = nullptr;
  std::string defect;
  std::string policy;
};

Status run_fake(const Fake& fake, const std::string& implementation, const Workspace& workspace,
                ErrorRecord* record) {
  const bool broken = implementation == "second";
  const auto is = [&](const char* name) { return broken && fake.defect == name; };
  if (fake.policy == "reject") {
    if (is("writes before it refuses")) *fake.dst.at({0, 0}) ^= std::byte{1};
    if (is("accepts")) return {};
    if (is("wrong code")) return {StatusCode::kNull, "group_memcpy: src: index 3 is bad"};
    if (is("says nothing")) return {StatusCode::kIndex, "group_memcpy: bad"};
    return {StatusCode::kIndex, "group_memcpy: src: index 3 is bad"};
  }
  for (std::int64_t i = 0; i < 4; ++i) {
    if (i % 2 == 1) continue;
    if (is("forgets a row") && i == 2) continue;
    for (std::int64_t j = 0; j < 3; ++j)
      *fake.dst.at({i, j}) = *fake.src.at({i, is("shifted") ? (j + 1) % 3 : j});
  }
  if (is("writes a row that must stay")) *fake.dst.at({3, 1}) ^= std::byte{1};
  if (is("writes padding")) *(fake.dst.at({1, 2}) + 1) ^= std::byte{1};
  if (is("writes behind")) fake.dst_memory->data()[fake.dst_memory->size()] ^= std::byte{1};
  if (is("writes in front")) fake.dst_memory->data()[-1] ^= std::byte{1};
  if (is("changes the input")) *fake.src.at({1, 1}) ^= std::byte{1};
  if (is("writes behind the input")) fake.src_memory->data()[fake.src_memory->size()] ^= std::byte{1};
  if (is("workspace overrun") && workspace.data != nullptr)
    static_cast<std::byte*>(workspace.data)[16] ^= std::byte{1};
  if (is("fails")) return {StatusCode::kOutOfMemory, "group_memcpy: no"};
  if (fake.policy == "report") {
    record->bad = is("miscounts") ? 4 : 3;
    record->batch = is("names another entry") ? 2 : 1;
    record->which = is("wrong which") ? 2 : 1;
    record->op = static_cast<std::uint32_t>(Operator::kGroupMemcpy);
  }
  if (is("touches an unused record")) record->column = 1;
  return {};
}

constexpr KeyHelp kFakeKeys[] = {{"defect", ""}, {"policy", ""}, {"plan", ""}, {"unused", ""}};

std::unique_ptr<Instance> make_fake(const Case& from) {
  auto instance = std::make_unique<Instance>(from);
  const std::vector<std::int64_t> shape = {4, 3};
  const std::size_t src = instance->add_tensor("src", false, DType::kUInt8, shape, "");
  const std::size_t dst = instance->add_tensor("dst", true, DType::kUInt8, shape, "pad1:2");
  instance->seal();
  auto fake = std::make_shared<Fake>();
  fake->defect = from.text("defect", "");
  fake->policy = from.text("policy", "default");
  fake->src = instance->array(src);
  fake->dst = instance->array(dst);
  fake->src_memory = &instance->storages[0].live;
  fake->dst_memory = &instance->storages[1].live;
  const std::string planning = from.text("plan", "");
  if (fake->policy == "reject") {
    instance->expect = {StatusCode::kIndex, Expectation::At::kRun, {"src", "index", "3"}};
  } else if (planning == "refuses" || planning == "should refuse") {
    instance->expect = {StatusCode::kInvalidArgument, Expectation::At::kPlan, {"src"}};
  } else {
    const Array expected = instance->expected_array(dst);
    for (std::int64_t i = 0; i < 4; i += 2) {
      for (std::int64_t j = 0; j < 3; ++j) *expected.at({i, j}) = *fake->src.at({i, j});
    }
  }
  if (fake->policy == "report") instance->record = ExpectedRecord{3, 1, 0, 0, 1};
  instance->bytes_moved = 6;
  instance->plan = [planning](const Context& context) -> Result<Plan> {
    if (planning == "refuses") return Status(StatusCode::kInvalidArgument, "group_memcpy: src: no");
    if (planning == "refuses good") return Status(StatusCode::kInvalidArgument, "group_memcpy: src: no");
    const std::string& forced = context.options().implementation;
    if (forced == "third") return Status(StatusCode::kUnavailable, "group_memcpy: third: needs a unicorn");
    if (planning == "nothing runs") return Status(StatusCode::kUnavailable, "group_memcpy: no machine");
    auto body = std::make_shared<FakeBody>();
    body->implementation = forced == "second" && planning != "picks another" ? "second" : "first";
    return Plan(std::move(body));
  };
  instance->run = [fake](const Plan& plan, const Workspace& workspace, ErrorRecord* record, const Context&) {
    return run_fake(*fake, std::string(plan.implementation()), workspace, record);
  };
  instance->call = [fake](ErrorRecord* record, const Context& context) {
    return run_fake(*fake, context.options().implementation, {}, record);
  };
  return instance;
}

OperatorInfo fake_info() {
  return {.op = Operator::kGroupMemcpy,
          .name = "group_memcpy",
          .summary = nullptr,
          .keys = kFakeKeys,
          .cases = {},
          .make = make_fake,
          .random_case = nullptr,
          .implementations = [] {
            return std::vector<std::string>{"first", "second", "third"};
          }};
}

Report run_text(const std::string& keys) {
  static const OperatorInfo info = fake_info();
  Runner runner({1, 2});
  return runner.run(info, Case::parse("group_memcpy:" + keys));
}

TEST(Runner, PassesWhatIsRight) {
  for (const char* keys : {"", "policy=report", "guard=before", "guard=after,align=0", "align=3;7"}) {
    const Report report = run_text(keys);
    EXPECT_TRUE(report.ok()) << report.to_string();
    // Two implementations x two thread counts, one unforced, stream, call. The third implementation cannot
    // run.
    EXPECT_EQ(report.runs, 7) << keys;
  }
  const Report report = run_text("");
  EXPECT_EQ(report.ran, (std::vector<std::string>{"first", "second"}));
  ASSERT_EQ(report.skipped.size(), 1U);
  EXPECT_NE(report.skipped[0].find("unicorn"), std::string::npos);
  EXPECT_NE(report.to_string().find("skipped"), std::string::npos);
  EXPECT_TRUE(run_text("policy=reject,via=run;call").ok());
  EXPECT_TRUE(run_text("plan=refuses,via=run;stream").ok());
}

struct Defect {
  const char* keys;
  const char* says;
};

TEST(Runner, FindsEveryDefect) {
  const Defect defects[] = {
      {"defect=shifted", "wrong byte: byte 0 of the storage, dst[0, 0]"},
      {"defect=forgets a row", "wrong byte: byte 10 of the storage, dst[2, 0]"},
      {"defect=writes a row that must stay", "dst[3, 1]"},
      {"defect=writes padding", "wrong byte: byte 8 of the storage, in no tensor of dst"},
      {"defect=writes behind", "write outside: dst: byte 1 behind"},
      {"defect=writes in front", "write outside: dst: byte 1 before"},
      {"defect=changes the input", "input changed: byte 4 of the storage, src[1, 1]"},
      {"defect=writes behind the input", "write outside: src: byte 1 behind"},
      {"defect=workspace overrun", "workspace: write at byte 16 of 16"},
      {"defect=fails", "status out_of_memory"},
      {"defect=miscounts,policy=report", "error record: seen bad 4"},
      {"defect=names another entry,policy=report", "error record: seen bad 3 batch 2"},
      {"defect=wrong which,policy=report", "which 2"},
      {"defect=touches an unused record", "error record"},
      {"defect=writes before it refuses,policy=reject,via=run",
       "refused, but written: byte 0 of the storage, dst[0, 0]"},
      {"defect=accepts,policy=reject,via=run", "status ok"},
      {"defect=wrong code,policy=reject,via=run", "status null"},
      {"defect=says nothing,policy=reject,via=run", "does not name 'src'"},
      {"plan=should refuse", "plan() accepted it"},
      {"plan=refuses good", "status invalid_argument"},
      {"plan=picks another", "picked 'first', forced was 'second'"},
      {"plan=nothing runs", "status unavailable"},
      {"expect_impl=second", "picked 'first', expected 'second'"},
      {"policy=reject,via=stream", "were checked when the work was enqueued"},
      {"impl=third", "nothing ran"},
  };
  for (const Defect& defect : defects) {
    const Report report = run_text(defect.keys);
    ASSERT_FALSE(report.ok()) << defect.keys;
    EXPECT_NE(report.failure->what.find(defect.says), std::string::npos) << report.to_string();
    EXPECT_NE(
        report.to_string().find("repeat: kvferry run 'group_memcpy:" + std::string(defect.keys).substr(0, 5)),
        std::string::npos);
  }
}

TEST(Runner, FailureIsComplete) {
  const Report report = run_text("defect=shifted,seed=5");
  ASSERT_FALSE(report.ok());
  const Failure& failure = *report.failure;
  EXPECT_EQ(failure.tensor, "dst");
  EXPECT_EQ(failure.index, (std::vector<std::int64_t>{0, 0}));
  EXPECT_NE(failure.seen, failure.expected);
  EXPECT_EQ(failure.implementation, "second");
  EXPECT_EQ(failure.threads, 1);
  EXPECT_EQ(failure.via, "run");
  EXPECT_EQ(failure.repeat, "kvferry run 'group_memcpy:defect=shifted,seed=5,impl=second,threads=1,via=run'");
  // The command repeats it, and it alone.
  const std::string keys = failure.repeat.substr(std::string("kvferry run 'group_memcpy:").size());
  const Report again = run_text(keys.substr(0, keys.size() - 1));
  EXPECT_FALSE(again.ok());
  EXPECT_EQ(again.failure->what, failure.what);
}

TEST(Runner, CaseErrorsAreFailures) {
  for (const auto& [keys, says] :
       {Defect{"nonsense=1", "unknown key 'nonsense'; valid keys: defect, policy, plan, unused, seed"},
        Defect{"unused=1", "'unused' has no effect"}, Defect{"threads=0", "0 is outside [1, 1024]"},
        Defect{"threads=", "the list is empty"},
        Defect{"impl=fourth", "'fourth' is none of: first, second, third"},
        Defect{"via=telephone", "is none of: run, stream, call"}, Defect{"align=64", "64 is outside [0, 63]"},
        Defect{"guard=none", "is none of: canary, before, after"}}) {
    const Report report = run_text(keys);
    ASSERT_FALSE(report.ok()) << keys;
    EXPECT_NE(report.failure->what.find(says), std::string::npos) << report.to_string();
  }
}

TEST(Runner, CountsOverItsLife) {
  const OperatorInfo info = fake_info();
  Runner runner({1});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(runner.run(info, Case::parse("group_memcpy:via=run")).ok());
  EXPECT_EQ(runner.cases(), 3);
  EXPECT_EQ(runner.runs(), 9);
  EXPECT_EQ(runner.runs_by_implementation().at("second"), 3);
  EXPECT_EQ(runner.skips().at("group_memcpy: third: needs a unicorn"), 3);
  EXPECT_NE(runner.summary().find("skipped 3 times"), std::string::npos);
}

TEST(Words, AreWholeWords) {
  EXPECT_TRUE(contains_word("key: dimension 2 is 96", "key"));
  EXPECT_FALSE(contains_word("key_cache: dimension 2", "key"));
  EXPECT_TRUE(contains_word("key_cache: key: dimension 2", "key"));
  EXPECT_FALSE(contains_word("is 196, expected 12", "96"));
  EXPECT_FALSE(contains_word("is -1", "1"));
  EXPECT_TRUE(contains_word("is -1", "-1"));
  EXPECT_TRUE(contains_word("dimension 2 is", "dimension 2"));
  EXPECT_FALSE(contains_word("dimension 23 is", "dimension 2"));
}

TEST(FindElement, AgreesWithTheLayout) {
  Random random(11);
  for (int round = 0; round < 200; ++round) {
    Tensor tensor;
    tensor.dtype = DType::kFloat16;
    tensor.shape = {random.between(1, 3), random.between(1, 4), random.between(1, 5)};
    tensor.layout = make_layout(tensor.shape, random_layout(random, 3));
    std::int64_t found = 0;
    for (std::int64_t element = 0; element < tensor.layout.storage_elements; ++element) {
      const auto index = find_element(tensor, element * 2 + 1);
      if (!index) continue;
      ++found;
      std::int64_t at = tensor.layout.offset;
      for (std::size_t axis = 0; axis < 3; ++axis) {
        if ((*index)[axis] != 0) at += (*index)[axis] * tensor.layout.strides[axis];
      }
      EXPECT_EQ(at, element);
    }
    EXPECT_EQ(found, tensor.shape[0] * tensor.shape[1] * tensor.shape[2]);
  }
  Tensor overlapping;
  overlapping.shape = {4, 8};
  overlapping.layout = make_layout(overlapping.shape, "set0:3");
  for (std::int64_t byte = 0; byte < 17; ++byte) EXPECT_TRUE(find_element(overlapping, byte)) << byte;
  EXPECT_FALSE(find_element(overlapping, 17));
}

TEST(FaultReport, NamesTheCaseAndTheBuffer) {
  const auto touch = [] {
    const Case what = Case::parse("x:guard=before");
    Instance instance(what);
    instance.add_tensor("pages", false, DType::kUInt8, std::vector<std::int64_t>{100}, "");
    const std::string repeat = "kvferry run 'x:guard=before'";
    const FaultReport report(instance, repeat);
    static_cast<volatile std::byte*>(instance.storages[0].live.data())[100] = std::byte{};
  };
  EXPECT_DEATH(touch(), "fault in the guard page behind pages\n  repeat: kvferry run 'x:guard=before'");
}

TEST(Timing, MeasuresWhatItVerified) {
  const OperatorInfo& info = *find_operator("gather_pa_kv_cache");
  TimingOptions options;
  options.samples = 3;
  options.sample_seconds = 1e-4;
  const Case what = Case::parse("gather_pa_kv_cache:lens=40;3,impl=generic,threads=1;2");
  const std::vector<Timing> timings = time_case(info, what, options);
  ASSERT_EQ(timings.size(), 2U);
  for (const Timing& timing : timings) {
    EXPECT_EQ(timing.implementation, "generic");
    EXPECT_EQ(timing.bytes, 43 * 2 * 16 * 2 * 2);  // tokens, heads, head size, bytes, K and V
    EXPECT_EQ(timing.samples, 3);
    EXPECT_GT(timing.least_seconds, 0);
    EXPECT_LE(timing.least_seconds, timing.median_seconds);
    EXPECT_LE(timing.median_seconds, timing.most_seconds);
    EXPECT_NEAR(timing.gb_per_second, static_cast<double>(timing.bytes) / timing.median_seconds / 1e9, 1e-6);
  }
  EXPECT_EQ(timings[0].threads, 1);
  EXPECT_EQ(timings[1].threads, 2);
  EXPECT_THROW(time_case(info, Case::parse("gather_pa_kv_cache:lens=3;-1,policy=reject"), options),
               CaseError);
  EXPECT_THROW(time_case(info, Case::parse("gather_pa_kv_cache:nonsense=1"), options), CaseError);
  EXPECT_THROW(time_case(fake_info(), Case::parse("group_memcpy:defect=shifted"), options), CaseError);
}

}  // namespace
}  // namespace kvferry::harness
