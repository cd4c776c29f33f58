// SPDX-License-Identifier: Apache-2.0
//
// From a case of the selection gather to an Instance. A case may be the last of several steps: the oracle
// carries out those before it on the memory that the library then starts from.
#include "ops/gather_selection_kv_cache/gather_selection_kv_cache_cases.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <unordered_set>
#include <utility>

#include "core/context_state.hpp"
#include "core/device_queue.hpp"
#include "harness/operator_cases.hpp"
#include "harness/random.hpp"
#include "ops/gather_selection_kv_cache/gather_selection_kv_cache_oracle.hpp"
#include "ops/gather_selection_kv_cache/gather_selection_kv_cache_plan.hpp"
#include "ops/registry.hpp"

namespace kvferry::harness {
namespace {

constexpr std::array kKeys = {
    KeyHelp{"form", "shape of status and top-k: bsnd, tnd (default bsnd)"},
    KeyHelp{"b", "batches (default 1)"},
    KeyHelp{"s", "query rows a batch (default 1)"},
    KeyHelp{"k", "top-k (default 4)"},
    KeyHelp{"bs", "tokens of a selectable block (default 1)"},
    KeyHelp{"sblk", "tokens of a page of the selection cache (default 4*bs)"},
    KeyHelp{"fblk", "tokens of a page of the full cache (default 4*bs)"},
    KeyHelp{"kd", "row of the kv caches (default 8)"},
    KeyHelp{"rd", "row of the rope caches (default 4; 0: no rope)"},
    KeyHelp{"rope", "how rope is absent with rd=0: none (nullopt), rank1, empty (default none)"},
    KeyHelp{"dtype", "of the caches: f16 bf16 f32 i8 u8 i16 u16 i32 u32 hif8 e5m2 e4m3 (default bf16)"},
    KeyHelp{"steps",
            "steps joined by ':', of which the library runs the last: kv, q, topk, srow have one "
            "value each or the last for the rest (default: as many as the longest has)"},
    KeyHelp{"kv", "tokens of each batch, a list dealt out in turn; steps joined by ':' (default 20)"},
    KeyHelp{"q", "full_q_actual_seq as stored, likewise (default: s, or its sums)"},
    KeyHelp{"qmode", "counts, sums, all, all_absent (without full_q_actual_seq) (default counts)"},
    KeyHelp{"topk",
            "ids: random (distinct), shared (the same of a batch's rows), mixed (with repeats, ends "
            "and ids that are too large), or rows joined by '/', dealt out in turn; steps joined by "
            "':' (default random)"},
    KeyHelp{"overlap", "percent of the step before that a random row selects again (default 60)"},
    KeyHelp{"take", "ids of a random row, at most k; steps joined by ':' (default k)"},
    KeyHelp{"rewrite", "the last q tokens get new bytes before every step, a flag (default 1)"},
    KeyHelp{"renew", "the whole full cache gets new bytes before the last step, a flag (default 0)"},
    KeyHelp{"state", "entries of status before the last step, row/slot/value joined by ';'"},
    KeyHelp{"srow", "status_row, a list dealt out in turn; steps joined by ':' (default: no tensor)"},
    KeyHelp{"nr", "rows of status (default: b*s, with srow what it needs)"},
    KeyHelp{"tr", "rows of the selection table (default: rows of status)"},
    KeyHelp{"smax", "columns of the selection table (default: what k*bs tokens need)"},
    KeyHelp{"snb", "pages of the selection caches (default: 2 more than the table has)"},
    KeyHelp{"fmax", "columns of the full table (default: one more than kv needs)"},
    KeyHelp{"fnb", "pages of the full caches (default: one more than kv needs)"},
    KeyHelp{"table", "pages of the full cache: random (distinct while they last), dup, same"},
    KeyHelp{"stp", "entries of the selection table in the last step, row/column/page joined by ';'"},
    KeyHelp{"ftp", "entries of the full table in the last step, batch/column/page joined by ';'"},
    KeyHelp{"counters", "pass counters and fetch_counts, a flag (default 1)"},
    KeyHelp{"policy", "default, report, reject"},
    KeyHelp{"parts",
            "run (one call), split (schedule and copy), layers (one schedule, copies of two layers)"},
    KeyHelp{"restore",
            "every call first puts the status back, a flag (default 0). For bench, with steps=2 and overlap: "
            "without it all calls after the first find everything there. The time includes putting it back"},
    KeyHelp{"sk", "layout of selection_kv_cache (words: harness/layout.hpp)"},
    KeyHelp{"sr", "layout of selection_k_rope"},
    KeyHelp{"fk", "layout of full_kv_cache"},
    KeyHelp{"fr", "layout of full_k_rope"},
    KeyHelp{"st", "layout of selection_kv_block_table"},
    KeyHelp{"ss", "layout of selection_kv_block_status"},
    KeyHelp{"tk", "layout of selection_topk_indices"},
    KeyHelp{"ft", "layout of full_kv_block_table"},
    KeyHelp{"len", "layout of full_kv_actual_seq"},
    KeyHelp{"ql", "layout of full_q_actual_seq"},
    KeyHelp{"out", "layout of selection_kv_actual_seq"},
    KeyHelp{"rl", "layout of status_row"},
    KeyHelp{"cl", "layout of counters"},
    KeyHelp{"fl", "layout of fetch_counts"},
    KeyHelp{"cat_sel", "both selection caches in one storage, joined along this axis"},
    KeyHelp{"cat_full", "both full caches in one storage, joined along this axis"},
    KeyHelp{"break", "break one rule of plan(), see selection_breakers()"},
};

enum class QMode { kCounts, kSums, kAll, kAllAbsent };
constexpr std::array<std::pair<const char*, QMode>, 4> kQModes = {{{"counts", QMode::kCounts},
                                                                   {"sums", QMode::kSums},
                                                                   {"all", QMode::kAll},
                                                                   {"all_absent", QMode::kAllAbsent}}};
enum class Parts { kRun, kSplit, kLayers };
constexpr std::array<std::pair<const char*, Parts>, 3> kParts = {
    {{"run", Parts::kRun}, {"split", Parts::kSplit}, {"layers", Parts::kLayers}}};
constexpr std::array<std::pair<const char*, bool>, 2> kForms = {{{"bsnd", false}, {"tnd", true}}};
constexpr std::int64_t kAny = std::int64_t{1} << 40;
constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kInt32Min = std::numeric_limits<std::int32_t>::min();

using Shape = std::vector<std::int64_t>;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return a <= 0 ? 0 : (a - 1) / b + 1;
}

// `count` different numbers below `range`, in random order; fewer if there are none left.
Shape distinct(std::int64_t count, std::int64_t range, Random& random) {
  count = std::min(count, range);
  Shape numbers;
  if (range <= 4 * count + 64) {
    numbers.resize(to_size(range));
    std::iota(numbers.begin(), numbers.end(), 0);
    random.shuffle(numbers);
    numbers.resize(to_size(count));
    return numbers;
  }
  std::unordered_set<std::int64_t> seen;
  while (static_cast<std::int64_t>(numbers.size()) < count) {
    const std::int64_t number = random.between(0, range - 1);
    if (seen.insert(number).second) numbers.push_back(number);
  }
  return numbers;
}

// The problem without memory.
struct Problem {
  const Case& from;
  bool tnd;
  std::int64_t b, s, k, bs;
  QMode q_mode;
  std::vector<std::string> kv_steps, q_steps, topk_steps, row_steps, take_steps;
  std::int64_t steps = 1;

  explicit Problem(const Case& text)
      : from(text),
        tnd(text.choice<bool>("form", kForms, false)),
        b(text.integer("b", 1, 0, 1 << 20)),
        s(text.integer("s", 1, 0, 1 << 20)),
        k(text.integer("k", 4, 1, 1 << 24)),
        bs(text.integer("bs", 1, 1, kInt32Max)),
        q_mode(text.choice<QMode>("qmode", kQModes, QMode::kCounts)),
        kv_steps(split(text.text("kv", "20"), ':')),
        q_steps(split(text.text("q", ""), ':')),
        topk_steps(split(text.text("topk", "random"), ':')),
        row_steps(split(text.text("srow", ""), ':')),
        take_steps(split(text.text("take", "2^24"), ':')) {
    std::size_t most = 1;
    for (const auto* list : {&kv_steps, &q_steps, &topk_steps, &row_steps, &take_steps})
      most = std::max(most, list->size());
    steps = text.integer("steps", static_cast<std::int64_t>(most), static_cast<std::int64_t>(most), 64);
  }

  std::int64_t rows() const { return b * s; }
  bool has_q() const { return q_mode != QMode::kAllAbsent; }
  bool has_status_row() const { return from.has("srow"); }

  static const std::string& at(const std::vector<std::string>& list, std::int64_t step) {
    return list[std::min(to_size(step), list.size() - 1)];
  }
  static Shape deal(const std::string& text, std::int64_t n) {
    const Shape list = parse_integers(text);
    Shape dealt(to_size(n));
    for (std::size_t i = 0; i < dealt.size(); ++i) dealt[i] = list.empty() ? 0 : list[i % list.size()];
    return dealt;
  }
  Shape kv(std::int64_t step) const { return deal(at(kv_steps, step), b); }
  Shape q_stored(std::int64_t step) const {
    if (!at(q_steps, step).empty()) return deal(at(q_steps, step), b);
    Shape stored(to_size(b), s);
    if (q_mode == QMode::kSums) std::partial_sum(stored.begin(), stored.end(), stored.begin());
    return stored;
  }
  Shape status_rows(std::int64_t step) const { return deal(at(row_steps, step), rows()); }

  std::int64_t most_kv() const {
    std::int64_t most = 0;
    for (std::int64_t step = 0; step < steps; ++step) {
      for (const std::int64_t tokens : kv(step)) most = std::max(most, tokens);
    }
    return most;
  }
};

// Top-k lists of one step.
class TopK {
 public:
  TopK(const Problem& problem, Random& random)
      : problem_(problem), random_(random), overlap_(problem.from.integer("overlap", 60, 0, 100)) {
    before_.resize(to_size(problem.rows()));
  }

  // `blocks`: how many ids each row may select.
  std::vector<Shape> step(std::int64_t step, const Shape& blocks) {
    const std::string& kind = Problem::at(problem_.topk_steps, step);
    const std::int64_t take = std::min(parse_integer(Problem::at(problem_.take_steps, step)), problem_.k);
    std::vector<Shape> rows(to_size(problem_.rows()));
    const std::vector<std::string> listed = split(kind, '/');
    for (std::size_t r = 0; r < rows.size(); ++r) {
      if (kind == "shared" && r % to_size(problem_.s) != 0) {
        rows[r] = rows[r - 1];
        continue;
      }
      if (kind == "random" || kind == "shared" || kind == "mixed") {
        rows[r] = select(before_[r], std::max<std::int64_t>(blocks[r], 0), take);
        if (kind == "mixed") spoil(rows[r], blocks[r]);
      } else {
        rows[r] = parse_integers(listed[r % listed.size()]);
      }
      if (static_cast<std::int64_t>(rows[r].size()) > problem_.k)
        problem_.from.fail("topk", fmt::format("{} ids do not fit into k={}", rows[r].size(), problem_.k));
    }
    before_ = rows;
    for (Shape& row : rows) {  // behind the end of the list anything may stand
      if (static_cast<std::int64_t>(row.size()) < problem_.k) row.push_back(-1);
      while (static_cast<std::int64_t>(row.size()) < problem_.k) row.push_back(random_.between(-1, 9));
    }
    return rows;
  }

 private:
  Shape select(const Shape& before, std::int64_t blocks, std::int64_t take) {
    take = std::min(take, blocks);
    std::unordered_set<std::int64_t> old;
    Shape ids;
    for (const std::int64_t id : before) {
      if (id < 0 || id >= blocks || !old.insert(id).second) continue;
      if (random_.between(1, 100) <= overlap_ && static_cast<std::int64_t>(ids.size()) < take)
        ids.push_back(id);
    }
    const auto room = static_cast<std::int64_t>(old.size());
    for (const std::int64_t id : distinct(take + room, blocks, random_)) {
      if (static_cast<std::int64_t>(ids.size()) >= take) break;
      if (!old.contains(id)) ids.push_back(id);
    }
    random_.shuffle(ids);
    return ids;
  }
  void spoil(Shape& row, std::int64_t blocks) {
    const Shape odd = {blocks, blocks + 3, kInt32Max};
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (random_.one_in(6)) row[i] = random_.pick(odd);
      if (random_.one_in(6)) row[i] = row[to_size(random_.between(0, static_cast<std::int64_t>(i)))];
    }
    if (!row.empty() && random_.one_in(3))
      row[to_size(random_.between(0, static_cast<std::int64_t>(row.size()) - 1))] =
          random_.pick(Shape{-1, -7, kInt32Min});
  }

  const Problem& problem_;
  Random& random_;
  std::int64_t overlap_;
  std::vector<Shape> before_;
};

// "0/3/-1;2/0/7" as triples.
std::vector<std::array<std::int64_t, 3>> read_puts(const Case& from, const char* key, std::int64_t rows,
                                                   std::int64_t columns) {
  std::vector<std::array<std::int64_t, 3>> puts;
  for (const std::string& put : from.texts(key, {})) {
    const std::vector<std::string> parts = split(put, '/');
    if (parts.size() != 3) from.fail(key, fmt::format("'{}' is no row/column/value", put));
    puts.push_back({parse_integer(parts[0]), parse_integer(parts[1]), parse_integer(parts[2])});
    if (puts.back()[0] < 0 || puts.back()[0] >= rows || puts.back()[1] < 0 || puts.back()[1] >= columns)
      from.fail(key, fmt::format("'{}' is outside [{}, {}]", put, rows, columns));
  }
  return puts;
}

// Numbers of the tensors in the Instance.
struct Tensors {
  struct Layer {
    TensorPair selection, full;  // kv, rope
  };
  std::vector<Layer> layers;
  std::size_t table = 0, status = 0, topk = 0, full_table = 0, kv = 0, q = 0, out = 0, status_row = 0,
              counters = 0, fetch_counts = 0;
};

class Maker {
 public:
  Maker(const Case& from, Instance& instance)
      : from_(from), instance_(instance), random_(instance.seed() ^ 0x5e1), problem_(from) {}
  void make();

 private:
  void add_tensors();
  void fill_tables();
  SelectionOracle oracle(bool expected) const;
  void prepare_step(std::int64_t step, TopK& topk);
  void write_full(std::int64_t batch, std::int64_t begin, std::int64_t end);
  void disturb();
  std::shared_ptr<GatherSelectionKvCacheArgs> make_args() const;
  void connect(const std::shared_ptr<const GatherSelectionKvCacheArgs>& args);

  const Case& from_;
  Instance& instance_;
  Random random_;
  Problem problem_;
  Tensors at_;
  Parts parts_ = Parts::kRun;
  bool has_rope_ = false;
  bool has_counters_ = false;
  bool rewrite_ = true;
  bool renew_ = false;
  std::int64_t sblk_ = 0, fblk_ = 0, status_rows_ = 0, table_rows_ = 0, s_max_ = 0, snb_ = 0, f_max_ = 0,
               fnb_ = 0;
  std::int64_t token_bytes_ = 0;
};

void Maker::add_tensors() {
  const Problem& p = problem_;
  const std::int64_t rows = p.rows();
  sblk_ = from_.integer("sblk", 4 * p.bs, 1, kAny);
  fblk_ = from_.integer("fblk", 4 * p.bs, 1, kAny);
  const std::int64_t kd = from_.integer("kd", 8, 1, kAny);
  const std::int64_t rd = from_.integer("rd", 4, 0, kAny);
  const DType dtype = from_.choice<DType>("dtype", data_types(), DType::kBFloat16);
  parts_ = from_.choice<Parts>("parts", kParts, Parts::kRun);
  has_rope_ = rd > 0;
  has_counters_ = from_.flag("counters", true);
  rewrite_ = from_.flag("rewrite", true);
  renew_ = from_.flag("renew", false);
  token_bytes_ = (kd + rd) * item_bytes(dtype);

  std::int64_t needed_rows = rows;
  if (p.has_status_row()) {
    for (std::int64_t step = 0; step < p.steps; ++step) {
      for (const std::int64_t row : p.status_rows(step))
        needed_rows = std::max(needed_rows, std::min(row + 1, rows + 64));
    }
  }
  status_rows_ = p.has_status_row() ? from_.integer("nr", needed_rows, 0, kAny) : rows;
  table_rows_ = from_.integer("tr", std::max(rows, status_rows_), 0, kAny);
  s_max_ = from_.integer("smax", ceil_div(p.k * p.bs, sblk_), 0, kAny);
  snb_ = from_.integer("snb", table_rows_ * s_max_ + 2, 0, kAny);
  const std::int64_t columns = ceil_div(p.most_kv(), fblk_);
  f_max_ = from_.integer("fmax", columns + 1, 0, 1 << 24);
  fnb_ = from_.integer("fnb", p.b * columns + 1, 0, kAny);

  const int layers = parts_ == Parts::kLayers ? 2 : 1;
  for (int i = 0; i < layers; ++i) {
    const TensorSpec selection_kv{"selection_kv_cache", dtype, {snb_, sblk_, kd}, from_.text("sk", "")};
    const TensorSpec full_kv{"full_kv_cache", dtype, {fnb_, fblk_, kd}, from_.text("fk", "")};
    TensorSpec selection_rope{"selection_k_rope", dtype, {snb_, sblk_, rd}, ""};
    TensorSpec full_rope{"full_k_rope", dtype, {fnb_, fblk_, rd}, ""};
    if (has_rope_) {
      selection_rope.layout = from_.text("sr", "");
      full_rope.layout = from_.text("fr", "");
    }
    at_.layers.push_back(
        {instance_.add_pair(from_, "cat_sel", true, selection_kv, has_rope_ ? &selection_rope : nullptr),
         instance_.add_pair(from_, "cat_full", false, full_kv, has_rope_ ? &full_rope : nullptr)});
  }
  const auto add = [&](const char* name, bool output, const Shape& shape, const char* key) {
    return instance_.add_tensor(name, output, DType::kInt32, shape, from_.text(key, ""));
  };
  Shape status = {status_rows_, 1, p.k + 1};
  Shape topk = {rows, 1, p.k};
  if (!p.tnd) {
    const bool even = p.s > 0 && status_rows_ % p.s == 0;
    status = {even ? status_rows_ / p.s : status_rows_, even ? p.s : 1, 1, p.k + 1};
    if (!p.has_status_row()) status = {p.b, p.s, 1, p.k + 1};
    topk = {p.b, p.s, 1, p.k};
  }
  at_.table = add("selection_kv_block_table", false, {table_rows_, s_max_}, "st");
  at_.status = add("selection_kv_block_status", true, status, "ss");
  at_.topk = add("selection_topk_indices", false, topk, "tk");
  at_.full_table = add("full_kv_block_table", false, {p.b, f_max_}, "ft");
  at_.kv = add("full_kv_actual_seq", false, {p.b}, "len");
  if (p.has_q()) at_.q = add("full_q_actual_seq", false, {p.b}, "ql");
  at_.out = add("selection_kv_actual_seq", true, {table_rows_}, "out");
  if (p.has_status_row()) at_.status_row = add("status_row", false, {rows}, "rl");
  if (has_counters_) {
    at_.counters = add("counters", true, {rows, 3}, "cl");
    at_.fetch_counts = add("fetch_counts", true, {p.b}, "fl");
  }
}

void Maker::fill_tables() {
  Shape pages = distinct(table_rows_ * s_max_, snb_, random_);
  pages.resize(to_size(table_rows_ * s_max_), -1);
  instance_.store(at_.table, pages);

  const std::string kind = from_.text("table", "random");
  if (kind != "random" && kind != "dup" && kind != "same")
    from_.fail("table", fmt::format("'{}' is none of: random, dup, same", kind));
  const std::int64_t entries = problem_.b * f_max_;
  Shape full = kind == "random" ? distinct(std::min<std::int64_t>(entries, 1 << 22), fnb_, random_) : Shape{};
  while (static_cast<std::int64_t>(full.size()) < entries) {
    full.push_back(fnb_ == 0 ? -1 : kind == "same" ? fnb_ - 1 : random_.between(0, fnb_ - 1));
  }
  instance_.store(at_.full_table, full);

  // Cold rows: a length that is not positive is all that makes them so.
  const Array status = instance_.array(at_.status);
  const bool all_minus_1 = random_.one_in(2);
  for (std::int64_t row = 0; row < rows_of(status); ++row) {
    for (std::int64_t i = 0; i < problem_.k; ++i)
      store_row(status, row, i, all_minus_1 ? -1 : random_.between(-2, 12));
    store_row(status, row, problem_.k, random_.pick(Shape{0, -1, -5, kInt32Min}));
  }
}

SelectionOracle Maker::oracle(bool expected) const {
  const auto output = [&](std::size_t i) {
    return expected ? instance_.expected_array(i) : instance_.array(i);
  };
  SelectionOracle made;
  for (const Tensors::Layer& layer : at_.layers) {
    SelectionLayer arrays{output(layer.selection.first), instance_.array(layer.full.first), {}, {}};
    if (has_rope_) {
      arrays.selection_rope = output(layer.selection.second);
      arrays.full_rope = instance_.array(layer.full.second);
    }
    made.layers.push_back(std::move(arrays));
  }
  made.selection_table = instance_.array(at_.table);
  made.status = output(at_.status);
  made.topk = instance_.array(at_.topk);
  made.full_table = instance_.array(at_.full_table);
  made.kv_lens = instance_.array(at_.kv);
  made.out = output(at_.out);
  if (problem_.has_q()) made.q_lens = instance_.array(at_.q);
  if (problem_.has_status_row()) made.status_row = instance_.array(at_.status_row);
  if (has_counters_) {
    made.counters = output(at_.counters);
    made.fetch_counts = output(at_.fetch_counts);
  }
  made.block_size = problem_.bs;
  made.q_mode = problem_.q_mode == QMode::kCounts ? QLengths::kCounts
                : problem_.q_mode == QMode::kSums ? QLengths::kPrefixSum
                                                  : QLengths::kAllRows;
  return made;
}

// New bytes at positions [begin, end) of a sequence, in every layer.
void Maker::write_full(std::int64_t batch, std::int64_t begin, std::int64_t end) {
  const Array table = instance_.array(at_.full_table);
  for (const Tensors::Layer& layer : at_.layers) {
    for (const bool rope : {false, true}) {
      if (rope && !has_rope_) continue;
      const Array cache = instance_.array(rope ? layer.full.second : layer.full.first);
      for (std::int64_t at = std::max<std::int64_t>(begin, 0); at < end && at / fblk_ < f_max_; ++at) {
        const std::int64_t page = load_index(table, {batch, at / fblk_});
        if (page < 0 || page >= fnb_) continue;
        for (std::int64_t d = 0; d < cache.dim(2); ++d) {
          const std::uint64_t bytes = random_.next();
          std::memcpy(cache.at({page, at % fblk_, d}), &bytes, to_size(cache.item));
        }
      }
    }
  }
}

void Maker::prepare_step(std::int64_t step, TopK& topk) {
  const Problem& p = problem_;
  instance_.store(at_.kv, p.kv(step));
  if (p.has_q()) instance_.store(at_.q, p.q_stored(step));
  if (p.has_status_row()) instance_.store(at_.status_row, p.status_rows(step));
  const SelectionOracle now = oracle(false);
  Shape blocks;
  for (std::int64_t r = 0; r < p.rows(); ++r) blocks.push_back(ceil_div(now.visible_of(r), p.bs));
  const std::vector<Shape> lists = topk.step(step, blocks);
  for (std::int64_t r = 0; r < p.rows(); ++r) {
    for (std::int64_t j = 0; j < p.k; ++j) store_row(now.topk, r, j, lists[to_size(r)][to_size(j)]);
  }
  const bool sparse =
      instance_.storages[instance_.tensors[at_.layers[0].full.first].storage].live.placement() ==
      Placement::kSparse;
  for (std::int64_t b = 0; b < p.b; ++b) {
    const std::int64_t kv = load_index(now.kv_lens, {b});
    if (rewrite_) write_full(b, kv - std::min<std::int64_t>(now.q_of(b), 64), kv);
    if (renew_ && step + 1 == p.steps) write_full(b, 0, kv);
    for (std::int64_t r = b * p.s; sparse && r < (b + 1) * p.s; ++r) {  // all the rest of it is zero
      for (const std::int64_t id : lists[to_size(r)]) {
        if (id >= 0 && id < blocks[to_size(r)]) write_full(b, id * p.bs, (id + 1) * p.bs);
      }
    }
  }
}

// Between the steps before and the last: entries that the case names, and garbage wherever nobody may look.
void Maker::disturb() {
  const Array status = instance_.array(at_.status);
  const Array table = instance_.array(at_.table);
  const Array full_table = instance_.array(at_.full_table);
  const Shape wild_pages = {-1, snb_, kInt32Min, kInt32Max};
  for (const auto& [row, slot, value] : read_puts(from_, "state", rows_of(status), problem_.k + 1))
    store_row(status, row, slot, value);
  for (std::int64_t row = 0; row < rows_of(status); ++row) {
    const std::int64_t length = load_row(status, row, problem_.k);
    for (std::int64_t p = ceil_div(length, problem_.bs); p < problem_.k && length > 0; ++p)
      store_row(status, row, p, random_.between(-1, 12));
  }

  // Twice, because an entry of this table decides what is trusted.
  const auto put_pages = [&] {
    for (const auto& [row, column, page] : read_puts(from_, "stp", table_rows_, s_max_))
      store_index(table, {row, column}, page);
  };
  put_pages();
  SelectionOracle last = oracle(false);
  last.decide();
  std::vector<std::int64_t> used(to_size(table_rows_), 0);  // columns of the selection table
  std::set<std::pair<std::int64_t, std::int64_t>> fetched;  // entries of the full table
  for (std::size_t r = 0; r < last.rows.size(); ++r) {
    const SelectionOracle::Row& row = last.rows[r];
    if (!row.active) continue;
    const std::int64_t old = load_row(status, row.state, problem_.k);
    const std::int64_t tokens = std::max(std::min(old, problem_.k * problem_.bs),
                                         static_cast<std::int64_t>(row.slots.size()) * problem_.bs);
    used[to_size(row.state)] = ceil_div(tokens, sblk_);
    for (const SelectionOracle::Slot& slot : row.slots) {
      if (slot.from < 0)
        fetched.emplace(static_cast<std::int64_t>(r) / problem_.s, slot.id * problem_.bs / fblk_);
    }
  }
  for (std::int64_t row = 0; row < table_rows_; ++row) {
    for (std::int64_t column = used[to_size(row)]; column < s_max_; ++column)
      store_index(table, {row, column}, random_.pick(wild_pages));
  }
  const Shape wild = {-1, fnb_, kInt32Min, kInt32Max};
  for (std::int64_t batch = 0; batch < problem_.b; ++batch) {
    for (std::int64_t column = 0; column < f_max_; ++column) {
      if (!fetched.contains({batch, column})) store_index(full_table, {batch, column}, random_.pick(wild));
    }
  }
  put_pages();
  for (const auto& [batch, column, page] : read_puts(from_, "ftp", problem_.b, f_max_))
    store_index(full_table, {batch, column}, page);
}

std::shared_ptr<GatherSelectionKvCacheArgs> Maker::make_args() const {
  auto args = std::make_shared<GatherSelectionKvCacheArgs>();
  const Tensors::Layer& layer = at_.layers.front();
  args->selection_kv_cache = instance_.view(layer.selection.first);
  args->full_kv_cache = instance_.view(layer.full.first);
  const std::string absent = from_.text("rope", "none");
  if (has_rope_) {
    args->selection_k_rope = instance_.view(layer.selection.second);
    args->full_k_rope = instance_.view(layer.full.second);
  } else if (absent == "rank1" || absent == "empty") {
    const DType dtype = args->full_kv_cache.dtype;
    void* const nothing = nullptr;
    const bool flat = absent == "rank1";
    args->selection_k_rope =
        flat ? contiguous(nothing, dtype, {0}) : contiguous(nothing, dtype, {snb_, sblk_, 0});
    args->full_k_rope = flat ? contiguous(nothing, dtype, {0}) : contiguous(nothing, dtype, {fnb_, fblk_, 0});
    args->selection_k_rope->device = args->full_k_rope->device = instance_.device();
  } else if (absent != "none") {
    from_.fail("rope", fmt::format("'{}' is none of: none, rank1, empty", absent));
  }
  args->selection_kv_block_table = instance_.view(at_.table);
  args->selection_kv_block_status = instance_.view(at_.status);
  args->selection_topk_indices = instance_.view(at_.topk);
  args->full_kv_block_table = instance_.view(at_.full_table);
  args->full_kv_actual_seq = instance_.view(at_.kv);
  if (problem_.has_q()) args->full_q_actual_seq = instance_.view(at_.q);
  args->selection_kv_actual_seq = instance_.view(at_.out);
  if (problem_.has_status_row()) args->status_row = instance_.view(at_.status_row);
  if (has_counters_) {
    args->counters = instance_.view(at_.counters);
    args->fetch_counts = instance_.view(at_.fetch_counts);
  }
  args->selection_topk_block_size = problem_.bs;
  args->q_len_mode = problem_.q_mode == QMode::kCounts ? QLenMode::kCounts
                     : problem_.q_mode == QMode::kSums ? QLenMode::kPrefixSum
                                                       : QLenMode::kAllRows;
  args->index_policy = from_.choice<IndexPolicy>("policy", kIndexPolicies, IndexPolicy::kDefault);
  return args;
}

void Maker::connect(const std::shared_ptr<const GatherSelectionKvCacheArgs>& args) {
  Instance* const instance = &instance_;  // holds the functions, so it outlives them
  // copy() looks at the caches only, schedule() at everything else.
  std::vector<GatherSelectionKvCacheBuffers> copies;
  for (const Tensors::Layer& layer : at_.layers) {
    GatherSelectionKvCacheBuffers caches;
    caches.selection_kv_cache = instance_.view(layer.selection.first).data;
    caches.full_kv_cache = instance_.view(layer.full.first).data;
    if (has_rope_) {
      caches.selection_k_rope = instance_.view(layer.selection.second).data;
      caches.full_k_rope = instance_.view(layer.full.second).data;
    }
    copies.push_back(caches);
  }
  instance_.args = args;
  instance_.plan = [args](const Context& context) { return kvferry::plan(*args, context); };
  const auto split_run = [args, copies](const Plan& plan, const Workspace& workspace, ErrorRecord* record,
                                        const Context& context) {
    GatherSelectionKvCacheBuffers pointers = buffers(*args);
    pointers.selection_kv_cache = pointers.selection_k_rope = nullptr;
    pointers.full_kv_cache = pointers.full_k_rope = nullptr;
    pointers.workspace = workspace;
    pointers.error_record = record;
    Status status = schedule(plan, pointers, context);
    for (GatherSelectionKvCacheBuffers caches : copies) {
      caches.workspace = workspace;
      if (status.ok()) status = copy(plan, caches, context);
    }
    return status;
  };
  instance_.run = [args, split_run, instance, whole = parts_ == Parts::kRun,
                   status_storage = instance_.tensors[at_.status].storage,
                   restore = from_.flag("restore", false)](const Plan& plan, const Workspace& workspace,
                                                           ErrorRecord* record, const Context& context) {
    Storage& state = instance->storages[status_storage];
    if (restore) copy_memory(state.live, state.initial);
    if (!whole) return split_run(plan, workspace, record, context);
    GatherSelectionKvCacheBuffers pointers = buffers(*args);
    pointers.workspace = workspace;
    pointers.error_record = record;
    return kvferry::run(plan, pointers, context);
  };
  instance_.call = [args](ErrorRecord* record, const Context& context) {
    return gather_selection_kv_cache(*args, context, record);
  };
  if (parts_ == Parts::kLayers) {  // has no one-call form
    auto memory = std::make_shared<std::vector<std::byte>>();
    instance_.call = [args, split_run, memory](ErrorRecord* record, const Context& context) {
      const Result<Plan> planned = kvferry::plan(*args, context);
      if (!planned.ok()) return planned.status();
      Workspace workspace{nullptr, planned->workspace_bytes()};
      if (internal::DeviceQueue* const queue = context.state().queue.get(); queue != nullptr) {
        workspace.data = queue->workspace(workspace.bytes).value();
      } else {
        memory->resize(to_size(workspace.bytes));
        workspace.data = memory->data();
      }
      return split_run(planned.value(), workspace, record, context);
    };
  }
}

void Maker::make() {
  add_tensors();
  fill_tables();
  TopK topk(problem_, random_);
  for (std::int64_t step = 0; step < problem_.steps; ++step) {
    prepare_step(step, topk);
    if (step + 1 < problem_.steps) oracle(false).run();
  }
  disturb();
  auto args = make_args();
  instance_.seal();
  if (break_rule(from_, selection_breakers(), *args, instance_)) {
    connect(args);
    return;
  }
  SelectionOracle last = oracle(true);
  last.reject = args->index_policy == IndexPolicy::kReject;
  last.run();
  if (instance_.poison_touched()) last.run();
  if (!last.refusal.empty()) instance_.expect = {StatusCode::kIndex, Expectation::At::kRun, last.refusal};
  if (args->index_policy == IndexPolicy::kReport) instance_.record = last.record;
  instance_.bytes_moved = last.tokens_copied * token_bytes_ * static_cast<std::int64_t>(at_.layers.size());
  connect(args);
}

std::unique_ptr<Instance> make_selection(const Case& from) {
  auto made = std::make_unique<Instance>(from);
  Maker(from, *made).make();
  return made;
}

}  // namespace

const OperatorInfo& gather_selection_kv_cache_info() {
  static const OperatorInfo info = {
      Operator::kGatherSelectionKvCache,
      "gather_selection_kv_cache",
      "top-k blocks of a long paged cache into a small one, with re-use from step to step",
      kKeys,
      selection_registered_cases(),
      make_selection,
      selection_random_case,
      implementation_names<internal::gather_selection_kv_cache_cpu>,
  };
  return info;
}

Case selection_random_case(std::uint64_t seed) {
  Random random(seed);
  Case made("gather_selection_kv_cache");
  const auto some = [&](std::int64_t n) { return random.one_in(n); };
  const auto pick = [&](const std::vector<std::string>& words) { return random.pick(words); };
  const bool tnd = some(2);
  made.set("form", tnd ? "tnd" : "bsnd");
  const std::int64_t b = some(20) ? 0 : random.between(1, 4);
  const std::int64_t s = some(6) ? random.between(5, 16) : random.between(1, 4);
  made.set("b", b);
  made.set("s", s);
  const std::int64_t bs = random.pick(Shape{1, 1, 2, 3, 4, 8, 16, 64});
  made.set("bs", bs);
  const std::int64_t rows = std::max<std::int64_t>(b * s, 1);
  const std::int64_t k = random.between(1, std::clamp<std::int64_t>(2048 / (rows * bs), 1, 70));
  made.set("k", k);
  made.set("sblk", bs * random.between(1, 5));
  made.set("fblk", bs * random.between(1, 5));
  made.set("dtype", data_types()[to_size(random.between(0, 11))].first);
  made.set("kd", some(6) ? random.between(1, 300) : random.between(1, 40));
  const bool rope = !some(4);
  made.set("rd", rope ? random.between(1, 20) : 0);
  if (!rope) made.set("rope", pick({"none", "rank1", "empty"}));

  const std::int64_t steps = random.between(1, 4);
  made.set("steps", steps);
  const auto joined = [&](auto&& one) {
    std::vector<std::string> parts;
    parts.reserve(to_size(steps));
    for (std::int64_t i = 0; i < steps; ++i) parts.push_back(one());
    return fmt::format("{}", fmt::join(parts, ":"));
  };
  const auto each_batch = [&](auto&& one) {
    Shape values;
    for (std::int64_t i = 0; i < std::max<std::int64_t>(b, 1); ++i) values.push_back(one());
    return print_integers(values);
  };
  Shape kv(to_size(std::max<std::int64_t>(b, 1)));
  for (std::int64_t& tokens : kv) tokens = random.between(0, 2 * k * bs + 2);
  made.set("kv", joined([&] {
             for (std::int64_t& tokens : kv) {
               tokens += random.between(-s, 2 * s);
               if (some(20)) tokens = random.between(-2, s);
             }
             return print_integers(kv);
           }));
  const std::string mode = pick({"counts", "counts", "sums", "all", "all_absent"});
  made.set("qmode", mode);
  const bool too_many = some(4);
  if (mode == "counts" && some(2)) {
    made.set("q", joined([&] {
               return each_batch(
                   [&] { return random.between(some(8) ? -2 : 0, too_many && some(3) ? s + 2 : s); });
             }));
  } else if (mode == "sums" && some(2)) {
    made.set("q", joined([&] {
               std::int64_t sum = 0;
               return each_batch(
                   [&] { return sum += random.between(some(8) ? -2 : 0, too_many && some(3) ? s + 2 : s); });
             }));
  } else if (mode == "all" && some(2)) {
    made.set("q", each_batch([&] { return random.between(kInt32Min, kInt32Max); }));  // not read
  }
  made.set("topk", joined([&] { return pick({"random", "random", "mixed", "shared"}); }));
  made.set("overlap", 10 * random.between(0, 10));
  if (some(3)) made.set("take", joined([&] { return std::to_string(random.between(0, k)); }));
  if (some(4)) made.set("rewrite", 0);
  if (some(5)) made.set("renew", 1);

  std::int64_t states = b * s;
  if (some(3)) {
    states += random.between(0, 3);
    made.set("nr", states);
    made.set("srow", joined([&] {
               Shape pool = distinct(states, states, random);
               pool.resize(to_size(std::max<std::int64_t>(b * s, 1)), -1);
               for (std::int64_t& row : pool) {
                 if (some(12)) row = -1;
                 if (some(40)) row = random.pick(Shape{0, states, -2, kInt32Max, kInt32Min});
               }
               return print_integers(pool);
             }));
  }
  const std::int64_t table_rows = states + (some(3) ? random.between(1, 3) : 0);
  made.set("tr", table_rows);
  const std::int64_t columns = ceil_div(k * bs, parse_integer(made.text("sblk", "")));
  if (states > 0 && some(4)) {
    made.set("state", fmt::format("{}/{}/{}", random.between(0, states - 1), random.between(0, k),
                                  random.between(-1, k * bs + 3)));
  }
  if (table_rows > 0 && some(4)) {
    made.set("stp", fmt::format("{}/{}/{}", random.between(0, table_rows - 1), random.between(0, columns - 1),
                                random.pick(Shape{-1, 100000, kInt32Max, kInt32Min})));
  }
  if (some(6)) made.set("fmax", random.between(1, 3));
  if (some(6)) made.set("fnb", random.between(rope ? 1 : 0, 6));  // rope without elements would be absent
  if (some(6)) made.set("table", pick({"dup", "same"}));
  if (some(4)) made.set("counters", 0);
  made.set("policy", pick({"default", "report", "reject"}));
  made.set("parts", pick({"run", "run", "split", "layers"}));

  if (some(2)) {
    made.set("sk", random_layout(random, 3));
    made.set("fk", random_layout(random, 3));
    if (rope) made.set("sr", random_layout(random, 3));
    if (rope) made.set("fr", random_layout(random, 3));
  } else if (rope && some(2)) {  // latent and rope in one row of one allocation
    made.set("cat_sel", 2);
    made.set("cat_full", 2);
  }
  const int list_rank = tnd ? 3 : 4;
  for (const auto& [key, rank] :
       {std::pair{"st", 2}, {"ss", list_rank}, {"tk", list_rank}, {"ft", 2}, {"len", 1}, {"out", 1}}) {
    if (some(4)) made.set(key, random_layout(random, rank));
  }
  if (mode != "all_absent" && some(4)) made.set("ql", random_layout(random, 1));
  if (made.has("srow") && some(4)) made.set("rl", random_layout(random, 1));
  if (!made.has("counters") && some(4)) {
    made.set("cl", random_layout(random, 2));
    made.set("fl", random_layout(random, 1));
  }
  set_random_memory(made, random, 5);
  if (some(4)) made.set("streaming", 1);
  if (some(4)) made.set("bound", 0);
  made.set("seed", static_cast<std::int64_t>(seed));
  return made;
}

}  // namespace kvferry::harness
