// SPDX-License-Identifier: Apache-2.0
//
// Planners take batches one by one, and leave for each row what to move and to fetch, O(K) a row.
#include "ops/gather_selection_kv_cache/gather_selection_kv_cache_schedule.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>
#include <type_traits>

#include "backends/cpu/parallel_for.hpp"
#include "backends/cpu/tuning.hpp"
#include "core/error_record.hpp"

namespace kvferry::internal {
namespace {

using PlanT = GatherSelectionKvCachePlan;
using Buffers = GatherSelectionKvCacheBuffers;
using cpu::IdTable;

// A miss of a batch with several rows, linked to those of other rows for the same id.
struct Miss {
  SelectionCopy copy;
  std::int32_t next;  // -1: the last
  std::int32_t last;  // of the first one: where to append
  bool first;
};

// Power-of-two pages are what models use: a shift is 2 ns less than a division, twice for each miss.
class Divisor {
 public:
  explicit Divisor(std::int64_t value)
      : value_(static_cast<std::uint32_t>(value)),
        shift_(std::has_single_bit(value_) ? std::countr_zero(value_) : -1) {}
  std::int32_t quotient(std::int32_t of) const {
    const auto n = static_cast<std::uint32_t>(of);
    return static_cast<std::int32_t>(shift_ >= 0 ? n >> shift_ : n / value_);
  }
  int shift() const { return shift_; }  // -1: no power of two
  std::int32_t remainder(std::int32_t of, std::int32_t quotient_of) const {
    return of - quotient_of * static_cast<std::int32_t>(value_);
  }

 private:
  std::uint32_t value_;
  int shift_;
};

constexpr bool fits_16_bits(std::int64_t ids) {
  return ids < std::numeric_limits<std::uint16_t>::max();
}

// Entries behind those asked for, which the id kernels may write.
constexpr std::int64_t kKernelRoom = 16;

// What one planner works with, in the workspace.
struct Scratch {
  std::int64_t table = 0;     // u16 or u32 entries
  std::int64_t ids = 0;       // int32[1 + k], the first for "no id"
  std::int64_t resident = 0;  // int32[k]
  std::int64_t left = 0;      // int32[k + kKernelRoom]
  std::int64_t right = 0;     // int32[k + kKernelRoom]
  std::int64_t taken = 0;     // int32[k + 1]
  std::int64_t pages = 0;     // int32: the row's selection table
  std::int64_t record = 0;    // ErrorRecord
  // With several rows a batch:
  std::int64_t misses = 0;       // Miss[rows_per_batch * k]
  std::int64_t miss_ids = 0;     // int32[1 + rows_per_batch * k]
  std::int64_t group_table = 0;  // u32 entries
  std::int64_t total = 0;
  bool overflow = false;
};

std::int64_t pages_of_row(const PlanT& plan) {
  return ceil_div(plan.k, plan.selection.per_page);
}

Scratch scratch_of(const PlanT& plan) {
  Scratch s;
  PartsLayout layout(0);
  s.table = fits_16_bits(plan.k) ? layout.add(IdTable<std::uint16_t>::entries_for(plan.k), 2)
                                 : layout.add(IdTable<std::uint32_t>::entries_for(plan.k), 4);
  s.ids = layout.add(plan.k + 1, 4);
  s.resident = layout.add(plan.k, 4);
  s.left = layout.add(plan.k + kKernelRoom, 4);
  s.right = layout.add(plan.k + kKernelRoom, 4);
  s.taken = layout.add(plan.k + 1, 4);
  s.pages = layout.add(pages_of_row(plan), 4);
  s.record = layout.add(1, sizeof(ErrorRecord));
  if (plan.rows_per_batch > 1) {
    const Checked misses = Checked(plan.rows_per_batch) * plan.k;
    s.misses = layout.add(misses, sizeof(Miss));
    s.miss_ids = layout.add(misses + 1, 4);
    if (!layout.overflow()) s.group_table = layout.add(IdTable<std::uint32_t>::entries_for(misses.value), 4);
    s.overflow = misses.overflow || misses.value >= std::numeric_limits<std::int32_t>::max();
  }
  s.total = layout.end();
  s.overflow = s.overflow || layout.overflow();
  return s;
}

std::int32_t clamp_int32(std::int64_t value) {
  return static_cast<std::int32_t>(std::min<std::int64_t>(value, std::numeric_limits<std::int32_t>::max()));
}

struct Lengths {
  std::int64_t kv;
  std::int64_t q;
};

Lengths lengths_of(const PlanT& plan, const Buffers& buffers, std::int64_t b) {
  Lengths l{plan.kv_len.at(buffers.full_kv_actual_seq, b), plan.rows_per_batch};
  if (plan.q_len_mode == QLenMode::kAllRows) return l;
  l.q = plan.q_len.at(buffers.full_q_actual_seq, b);
  if (plan.q_len_mode == QLenMode::kPrefixSum && b > 0)
    l.q -= plan.q_len.at(buffers.full_q_actual_seq, b - 1);
  return l;
}

template <class Entry>
class Planner {
 public:
  Planner(const PlanT& plan, const Buffers& buffers, Schedule* schedule, const Scratch& scratch,
          std::byte* memory, bool writes, const cpu::IdKernels& kernels)
      : plan_(plan),
        kernels_(kernels),
        buffers_(buffers),
        schedule_(schedule),
        writes_(writes),
        table_(reinterpret_cast<Entry*>(memory + scratch.table), IdTable<Entry>::bits_for(plan.k)),
        ids_(reinterpret_cast<std::int32_t*>(memory + scratch.ids) + 1),
        resident_(reinterpret_cast<std::int32_t*>(memory + scratch.resident)),
        left_(reinterpret_cast<std::int32_t*>(memory + scratch.left)),
        right_(reinterpret_cast<std::int32_t*>(memory + scratch.right)),
        taken_(reinterpret_cast<std::int32_t*>(memory + scratch.taken)),
        pages_(reinterpret_cast<std::int32_t*>(memory + scratch.pages)),
        record_(*reinterpret_cast<ErrorRecord*>(memory + scratch.record)),
        misses_(reinterpret_cast<Miss*>(memory + scratch.misses)),
        miss_ids_(reinterpret_cast<std::int32_t*>(memory + scratch.miss_ids) + 1),
        groups_(reinterpret_cast<std::uint32_t*>(memory + scratch.group_table),
                IdTable<std::uint32_t>::bits_for(std::max<std::int64_t>(plan.rows_per_batch, 1) * plan.k)),
        slots_per_page_(plan.selection.per_page),
        ids_per_page_(plan.full.per_page) {
    ids_[-1] = -1;
    if (groups_misses()) miss_ids_[-1] = -1;
  }

  void plan_batch(std::int64_t b) {
    batch_ = b;
    lengths_ = lengths_of(plan_, buffers_, b);
    copies_ = part<SelectionCopy>(schedule_, plan_.parts.copies) + b * plan_.rows_per_batch * plan_.k;
    copy_count_ = miss_count_ = fetch_count_ = 0;
    if (groups_misses()) groups_.clear();
    for (std::int64_t s = 0; s < plan_.rows_per_batch; ++s) plan_row(s);
    append_groups();
    part<std::int64_t>(schedule_, plan_.parts.ends)[b + 1] = copy_count_;
    if (writes_ && plan_.has_fetch_counts) plan_.fetch_counts.put(buffers_.fetch_counts, fetch_count_, b);
  }

 private:
  static constexpr std::int32_t kMiss = -1;

  bool groups_misses() const { return plan_.rows_per_batch > 1; }

  void plan_row(std::int64_t s) {
    row_ = batch_ * plan_.rows_per_batch + s;
    hits_ = row_misses_ = moved_ = 0;
    part<SelectionCopy>(schedule_, plan_.parts.leaving)[row_].tokens = 0;
    state_ = plan_.has_status_row ? part<std::int32_t>(schedule_, plan_.parts.status_rows)[row_] : row_;
    const std::int64_t visible = s < lengths_.q ? lengths_.kv - (lengths_.q - 1 - s) : lengths_.kv;
    if (state_ < 0 || visible <= 0) return finish_row(0);

    status_ = static_cast<std::byte*>(buffers_.selection_kv_block_status) + plan_.state.row(state_);
    const std::int64_t bs = plan_.block_tokens;
    num_ids_ = static_cast<std::int32_t>(ceil_div(visible, bs));
    tail_ = static_cast<std::int32_t>(visible - (num_ids_ - 1) * bs);
    select();
    load_pages();
    find_residents();
    const std::int32_t tail_index = tail_ < bs ? table_.find(num_ids_ - 1, ids_) : -1;
    place(tail_index);
    for (std::int64_t p = n_; p < plan_.k; ++p) store_status(p, -1);
    const std::int64_t tokens = n_ * bs - (tail_index >= 0 ? bs - tail_ : 0);
    store_status(plan_.k, static_cast<std::int32_t>(tokens));
    finish_row(static_cast<std::int32_t>(tokens));
  }

  void finish_row(std::int32_t tokens) {
    if (!writes_) return;
    plan_.actual_seq.put(buffers_.selection_kv_actual_seq, tokens, row_);
    if (!plan_.has_counters) return;
    plan_.counters.put(buffers_.counters, hits_, row_, 0);
    plan_.counters.put(buffers_.counters, row_misses_, row_, 1);
    plan_.counters.put(buffers_.counters, moved_, row_, 2);
  }

  // Below, what a loop needs stands in locals: a store to the caller's memory may change any member, for all
  // that the compiler knows.

  // ids_[0 .. n_): the selected ids, in order of first occurrence.
  void select() {
    const std::byte* at =
        static_cast<const std::byte*>(buffers_.selection_topk_indices) + plan_.topk.row(row_);
    const std::int64_t step = plan_.topk.column_step, k = plan_.k;
    const auto num_ids = static_cast<std::uint32_t>(num_ids_);
    std::int32_t* const ids = ids_;
    IdTable<Entry> table = table_;
    table.clear();
    std::int32_t n = 0;
    for (std::int64_t i = 0; i < k; ++i, at += step) {
      const std::int32_t id = load_int32(at);
      if (static_cast<std::uint32_t>(id) >= num_ids) {
        if (id < 0) break;
        continue;
      }
      ids[n] = id;
      n += table.find_or_insert(id, n, ids) < 0 ? 1 : 0;
    }
    n_ = n;
  }

  // -1 for pages that do not exist.
  void load_pages() {
    const std::int64_t count = pages_of_row(plan_);
    lacks_pages_ = false;
    for (std::int64_t c = 0; c < count; ++c) {
      const std::int64_t page = plan_.selection_table.at(buffers_.selection_kv_block_table, state_, c);
      const bool exists = page >= 0 && page < plan_.selection.pages;
      pages_[c] = exists ? static_cast<std::int32_t>(page) : -1;
      lacks_pages_ = lacks_pages_ || !exists;
    }
  }

  // resident_[j]: the slot that holds ids_[j] and may be re-used, or kMiss.
  void find_residents() {
    std::int32_t found = 0;  // pairs (left_: index into ids_, right_: slot)
    const std::int64_t bs = plan_.block_tokens, step = plan_.state.column_step;
    const std::int64_t length = load_int32(status_ + plan_.k * step);
    const std::int64_t stable = (lengths_.kv - std::max<std::int64_t>(lengths_.q, 0)) / bs;  // ids below it
    if (length > 0 && stable > 0) {
      const auto valid = static_cast<std::int32_t>(std::min(plan_.k, ceil_div(length, bs)));
      const std::int64_t old_tail = length % bs != 0 ? length / bs : -1;
      const cpu::IdSearch search{ids_, resident_, valid, clamp_int32(stable), clamp_int32(old_tail)};
      for (std::int32_t p = 0; p < valid; ++p) resident_[p] = load_int32(status_ + p * step);
      if constexpr (sizeof(Entry) == 2) {
        found = kernels_.find(table_, search, left_, right_);
      } else {
        found = cpu::find_ids(table_, search, left_, right_);
      }
    }
    std::fill_n(resident_, n_, kMiss);
    // Backwards: of several slots with the same id the first one stays.
    for (std::int32_t i = found; i-- > 0;) {
      if (lacks_pages_ && pages_[slots_per_page_.quotient(right_[i])] < 0) continue;
      resident_[left_[i]] = right_[i];
    }
  }

  // Gives every selected id its slot.
  void place(std::int32_t tail_index) {
    const std::int32_t slots = tail_index >= 0 ? n_ - 1 : n_;  // that (b) and (c) share out
    std::fill_n(taken_, slots, -1);
    for (std::int32_t j = 0; j < n_; ++j) {
      const auto p = static_cast<std::uint32_t>(resident_[j]), none = static_cast<std::uint32_t>(slots);
      taken_[std::min(p, none)] = 0;
    }
    // left_: indices of the ids that did not keep their slot; right_: the slots that are left.
    std::int32_t moving = kernels_.outside(resident_, n_, slots, left_);
    if (tail_index >= 0) {  // never stable, so it is among them
      std::int32_t* const at = std::lower_bound(left_, left_ + moving, tail_index);
      std::copy(at + 1, left_ + moving, at);
      --moving;
    }
    hits_ = slots - moving;
    kernels_.outside(taken_, slots, 1, right_);
    fill_slots(moving);
    if (tail_index >= 0) fill_slot(num_ids_ - 1, n_ - 1, kMiss);
  }

  // The ids left_[0 .. count) go to the slots right_[0 .. count).
  void fill_slots(std::int32_t count) {
    // What models use: shifts, int32 pages, one row a batch, all of which is asked once for the row. With it
    // 2,048 misses take 15.6 us to plan, without 17.3.
    const bool usual = !plan_.full_table.wide && ids_per_page_.shift() >= 0 && slots_per_page_.shift() >= 0 &&
                       !groups_misses() && !lacks_pages_ && writes_ &&
                       ids_per_page_.quotient(num_ids_ - 1) < plan_.full.columns;
    if (usual) return fill_usual_slots(count);
    for (std::int32_t i = 0; i < count; ++i) fill_slot(ids_[left_[i]], right_[i], resident_[left_[i]]);
  }

  void fill_usual_slots(std::int32_t count) {
    const std::int32_t* const ids = ids_;
    const std::int32_t* const pages = pages_;
    const int id_shift = ids_per_page_.shift(), slot_shift = slots_per_page_.shift();
    const auto id_mask = static_cast<std::int32_t>((1U << id_shift) - 1);
    const auto slot_mask = static_cast<std::int32_t>((1U << slot_shift) - 1);
    const IndexRow full_table = plan_.full_table.row(buffers_.full_kv_block_table, batch_);
    const auto full_pages = static_cast<std::uint32_t>(std::min(plan_.full.pages, std::int64_t{1} << 31));
    const std::int64_t status_step = plan_.state.column_step;
    std::byte* const status = status_;
    const auto tokens = static_cast<std::int32_t>(plan_.block_tokens);
    SelectionCopy* copy = copies_ + copy_count_;
    std::int32_t fetched = 0;
    for (std::int32_t i = 0; i < count; ++i) {
      const std::int32_t j = left_[i], id = ids[j], slot = right_[i];
      const std::int32_t page = full_table.at32(id >> id_shift);
      if (resident_[j] != kMiss || static_cast<std::uint32_t>(page) >= full_pages) [[unlikely]] {
        copy_count_ = copy - copies_;
        fill_slot(id, slot, resident_[j]);
        copy = copies_ + copy_count_;
        continue;
      }
      *copy++ = {page, id & id_mask, pages[slot >> slot_shift], slot & slot_mask, tokens, CopyKind::kFetch,
                 true};
      store_int32(status + slot * status_step, id);
      ++fetched;
    }
    copy_count_ = copy - copies_;
    fetch_count_ += fetched;
    row_misses_ += fetched;
  }

  // Id `id` goes to `slot`, from slot `from` or, if that is kMiss, from the full cache: every case.
  void fill_slot(std::int32_t id, std::int32_t slot, std::int32_t from) {
    const std::int32_t column = slots_per_page_.quotient(slot);
    SelectionCopy copy{};
    copy.dst_page = pages_[column];
    copy.dst_block = slots_per_page_.remainder(slot, column);
    copy.tokens = id == num_ids_ - 1 ? tail_ : static_cast<std::int32_t>(plan_.block_tokens);
    copy.starts_group = true;
    std::uint32_t bad = copy.dst_page < 0 ? kBadDestination : 0;
    if (from == kMiss) {
      ++row_misses_;
      bad |= locate(id, copy);
      if ((bad & kBadDestination) != 0) copy.tokens = 0;
      add_miss(id, copy);
    } else {
      ++hits_;
      ++moved_;
      const std::int32_t from_column = slots_per_page_.quotient(from);
      copy.kind = CopyKind::kMove;
      copy.src_page = pages_[from_column];
      copy.src_block = slots_per_page_.remainder(from, from_column);
      // From inside the row: only slot n-1, which the partial block takes, and which must be empty by then.
      if (bad == 0 && from < n_) {
        part<SelectionCopy>(schedule_, plan_.parts.leaving)[row_] = copy;
      } else if (bad == 0) {
        copies_[copy_count_++] = copy;
      }
    }
    store_status(slot, bad == 0 ? id : -1);
    if (bad != 0) add_to(record_, {1, row_, slot, id, bad, static_cast<std::uint32_t>(plan_.op)});
  }

  void store_status(std::int64_t column, std::int32_t value) {
    if (writes_) store_int32(status_ + column * plan_.state.column_step, value);
  }

  // Where the full cache holds `id`; what is wrong with its table entry, and zeros then.
  std::uint32_t locate(std::int32_t id, SelectionCopy& copy) const {
    const std::int32_t column = ids_per_page_.quotient(id);
    copy.kind = CopyKind::kZero;
    if (column >= plan_.full.columns) return kBadColumn;
    const std::int64_t page = plan_.full_table.at(buffers_.full_kv_block_table, batch_, column);
    if (page < 0 || page >= plan_.full.pages) return kBadSource;
    copy.kind = CopyKind::kFetch;
    copy.src_page = static_cast<std::int32_t>(page);
    copy.src_block = ids_per_page_.remainder(id, column);
    return 0;
  }

  void add_miss(std::int32_t id, const SelectionCopy& copy) {
    if (!groups_misses()) {
      ++fetch_count_;
      if (copy.tokens > 0) copies_[copy_count_++] = copy;
      return;
    }
    Miss& miss = misses_[miss_count_];
    miss = {copy, -1, miss_count_, true};
    miss_ids_[miss_count_] = id;
    const std::int32_t first = groups_.find_or_insert(id, miss_count_, miss_ids_);
    if (first >= 0) {
      miss.first = false;
      misses_[misses_[first].last].next = miss_count_;
      misses_[first].last = miss_count_;
    } else {
      ++fetch_count_;
    }
    ++miss_count_;
  }

  // The misses of all rows, those for one id together.
  void append_groups() {
    for (std::int32_t i = 0; i < miss_count_; ++i) {
      if (!misses_[i].first) continue;
      bool starts = true;
      for (std::int32_t j = i; j >= 0; j = misses_[j].next) {
        if (misses_[j].copy.tokens == 0) continue;
        copies_[copy_count_] = misses_[j].copy;
        copies_[copy_count_++].starts_group = starts;
        starts = false;
      }
    }
  }

  const PlanT& plan_;
  const cpu::IdKernels& kernels_;
  const Buffers& buffers_;
  Schedule* const schedule_;
  const bool writes_;
  IdTable<Entry> table_;
  std::int32_t* const ids_;
  std::int32_t* const resident_;
  std::int32_t* const left_;
  std::int32_t* const right_;
  std::int32_t* const taken_;  // of each slot: 0 or -1; one more for "none"
  std::int32_t* const pages_;
  ErrorRecord& record_;
  Miss* const misses_;
  std::int32_t* const miss_ids_;
  IdTable<std::uint32_t> groups_;
  const Divisor slots_per_page_;
  const Divisor ids_per_page_;

  // Of the batch.
  std::int64_t batch_ = 0;
  Lengths lengths_{};
  SelectionCopy* copies_ = nullptr;
  std::int64_t copy_count_ = 0;
  std::int32_t miss_count_ = 0;
  std::int32_t fetch_count_ = 0;
  // Of the row.
  std::int64_t row_ = 0;
  std::int64_t state_ = 0;  // its row of status and selection table
  std::byte* status_ = nullptr;
  std::int32_t num_ids_ = 0;
  std::int32_t tail_ = 0;
  bool lacks_pages_ = false;  // pages_ holds -1
  std::int32_t n_ = 0;
  std::int32_t hits_ = 0;
  std::int32_t row_misses_ = 0;
  std::int32_t moved_ = 0;
};

// Plans all batches; the bad slots go to `record`.
template <class Entry>
void plan_batches(const PlanT& plan, const Buffers& buffers, Schedule* schedule, ContextState& context,
                  const cpu::IdKernels& kernels, bool writes, ErrorRecord& record) {
  const Scratch scratch = scratch_of(plan);
  const bool serial = plan.rows * plan.k < cpu::kTuning.parallel_ids;
  const std::int64_t planners = serial ? 1 : plan.planners;
  const auto memory = [&](std::int64_t planner) {
    return part<std::byte>(schedule, plan.parts.planners + planner * plan.parts.planner_bytes);
  };
  const auto record_of = [&](std::int64_t planner) {
    return reinterpret_cast<ErrorRecord*>(memory(planner) + scratch.record);
  };
  for (std::int64_t i = 0; i < planners; ++i) *record_of(i) = {};
  std::atomic<std::int64_t> next{0};
  cpu::parallel_for(context, planners, [&](std::int64_t i) {
    Planner<Entry> planner(plan, buffers, schedule, scratch, memory(i), writes, kernels);
    for (std::int64_t b = next++; b < plan.batches; b = next++) planner.plan_batch(b);
  });
  for (std::int64_t i = 0; i < planners; ++i) add_to(record, *record_of(i));
}

template <class... T>
Status refuse(fmt::format_string<T...> format, T&&... args) {
  return {StatusCode::kIndex, "gather_selection_kv_cache: " + fmt::format(format, std::forward<T>(args)...)};
}

// status_row as the planners use it: in range and each row once, else -1.
void resolve_status_rows(const PlanT& plan, const Buffers& buffers, Schedule* schedule, ErrorRecord& record) {
  auto* rows = part<std::int32_t>(schedule, plan.parts.status_rows);
  auto* seen = part<std::uint64_t>(schedule, plan.parts.seen);
  std::fill_n(seen, ceil_div(plan.status_rows, 64), 0);
  for (std::int64_t r = 0; r < plan.rows; ++r) {
    const std::int64_t row = plan.status_row.at(buffers.status_row, r);
    std::uint32_t bad = row < -1 || row >= plan.status_rows ? kBadDestination : 0;
    if (bad == 0 && row >= 0) {
      const std::uint64_t bit = std::uint64_t{1} << (row % 64);
      if ((seen[row / 64] & bit) != 0) bad = kBadDuplicate;
      seen[row / 64] |= bit;
    }
    rows[r] = bad == 0 ? static_cast<std::int32_t>(row) : -1;
    if (bad != 0) add_to(record, {1, r, 0, row, bad, static_cast<std::uint32_t>(plan.op)});
  }
}

Status refuse_q_len(const PlanT& plan, const Buffers& buffers) {
  for (std::int64_t b = 0; b < plan.batches; ++b) {
    const Lengths l = lengths_of(plan, buffers, b);
    if (l.q <= plan.rows_per_batch) continue;
    return refuse(
        "full_q_actual_seq: batch {} has {} query tokens, expected <= {} (rows a batch; q_len_mode says "
        "whether the tensor holds counts or prefix sums)",
        b, l.q, plan.rows_per_batch);
  }
  return {};
}

Status refuse_status_row(const PlanT& plan, const ErrorRecord& first) {
  return refuse("status_row: index {} is {}, expected {}", first.batch, first.id,
                (first.which & kBadDuplicate) != 0 ? "a row that no lower index has"
                                                   : fmt::format("-1 to {}", plan.status_rows - 1));
}

Status refuse_slot(const PlanT& plan, const Buffers& buffers, Schedule* schedule, const ErrorRecord& first) {
  const std::int64_t row = first.batch, slot = first.column, batch = row / plan.rows_per_batch;
  const std::int64_t column = first.id / plan.full.per_page;
  if ((first.which & kBadColumn) != 0) {
    return refuse("full_kv_block_table: batch {}: id {} of row {} is in column {}, expected < {}", batch,
                  first.id, row, column, plan.full.columns);
  }
  if ((first.which & kBadSource) != 0) {
    return refuse(
        "full_kv_block_table: batch {} column {} is {}, expected 0 to {} (pages; for id {} of row {})", batch,
        column, plan.full_table.at(buffers.full_kv_block_table, batch, column), plan.full.pages - 1, first.id,
        row);
  }
  const std::int64_t state =
      plan.has_status_row ? part<std::int32_t>(schedule, plan.parts.status_rows)[row] : row;
  const std::int64_t page_column = slot / plan.selection.per_page;
  return refuse("selection_kv_block_table: row {} column {} is {}, expected 0 to {} (pages; for slot {})",
                state, page_column,
                plan.selection_table.at(buffers.selection_kv_block_table, state, page_column),
                plan.selection.pages - 1, slot);
}

}  // namespace

Status make_schedule(const PlanT& plan, const Buffers& buffers, Schedule* schedule, ContextState& context,
                     const cpu::CpuKernels& kernels) {
  schedule->plan_id = 0;
  const bool rejects = plan.policy == IndexPolicy::kReject;
  const auto planner = fits_16_bits(plan.k) ? plan_batches<std::uint16_t> : plan_batches<std::uint32_t>;
  if (rejects) {
    if (Status status = refuse_q_len(plan, buffers); !status.ok()) return status;
  }
  ErrorRecord record;
  if (plan.has_status_row) resolve_status_rows(plan, buffers, schedule, record);
  if (rejects) {
    if (record.bad > 0) return refuse_status_row(plan, record);
    planner(plan, buffers, schedule, context, kernels.ids, false, record);
    if (record.bad > 0) return refuse_slot(plan, buffers, schedule, record);
  }
  planner(plan, buffers, schedule, context, kernels.ids, true, record);
  if (plan.policy == IndexPolicy::kReport && buffers.error_record != nullptr)
    add_to(*buffers.error_record, record);
  for (std::int64_t r = plan.rows; r < plan.output_rows; ++r)
    plan.actual_seq.put(buffers.selection_kv_actual_seq, 0, r);

  auto* ends = part<std::int64_t>(schedule, plan.parts.ends);
  ends[0] = 0;
  for (std::int64_t b = 0; b < plan.batches; ++b) ends[b + 1] += ends[b];
  const auto* leaving = part<SelectionCopy>(schedule, plan.parts.leaving);
  schedule->leaving =
      std::count_if(leaving, leaving + plan.rows, [](const SelectionCopy& copy) { return copy.tokens > 0; });
  schedule->plan_id = plan.id;
  return {};
}

bool lay_out_workspace(GatherSelectionKvCachePlan& plan) {
  const Scratch scratch = scratch_of(plan);
  PartsLayout layout(64);
  const Checked copies = Checked(plan.rows) * plan.k;
  SelectionWorkspace& parts = plan.parts;
  parts.leaving = layout.add(plan.rows, sizeof(SelectionCopy));
  parts.copies = layout.add(copies, sizeof(SelectionCopy));
  parts.ends = layout.add(plan.batches + 1, 8);
  if (plan.has_status_row) {
    parts.status_rows = layout.add(plan.rows, 4);
    parts.seen = layout.add(ceil_div(plan.status_rows, 64), 8);
  }
  parts.planner_bytes = scratch.total;
  parts.planners = layout.add(Checked(plan.planners) * scratch.total, 1);
  const Checked total = Checked(layout.end()) + kWorkspaceAlign;
  plan.workspace_bytes = total.value;
  return !scratch.overflow && !layout.overflow() && !total.overflow;
}

}  // namespace kvferry::internal
