// SPDX-License-Identifier: Apache-2.0
//
// What comes before and behind the planning of gather_selection_kv_cache where it is asked for: one block
// each.
#pragma once

#include <cstdint>

#include "backends/cuda/id_table.hpp"
#include "backends/cuda/indices.hpp"
#include "backends/cuda/kernel.hpp"
#include "backends/cuda/selection_schedule.hpp"

namespace kvferry::internal::cuda {

// status_row as the planner takes it: in range and each row once, else -1.
struct SelectionStates {
  static constexpr std::uint32_t kThreads = 512;
  static constexpr std::uint32_t kMinBlocks = 1;
  static constexpr std::uint32_t kSharedRows = 1024;  // more take the table of the workspace
  static constexpr std::uint32_t kSharedEntries = 2048;

  struct Params {
    Indices status_row;
    DevicePtr<std::int32_t> states;  // [rows]
    DevicePtr<std::int32_t> table;   // 2 << table_bits words, more than kSharedRows only
    DevicePtr<Record> record;        // is overwritten; null: none
    std::int64_t rows, status_rows;
    std::uint32_t table_bits, op;
  };

  template <class X>
  struct Shared {
    FoundShared<X> found;
    SharedArray<X, std::int32_t, kSharedEntries> keys, first;
  };

  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    if (p.rows <= kSharedRows) {
      using Words = SharedWords<SharedArray<X, std::int32_t, kSharedEntries>>;
      resolve(x, sh, p, Words(sh.keys), Words(sh.first));
    } else {
      std::int32_t* const table = p.table.get();
      resolve(x, sh, p, DeviceWords(table), DeviceWords(table + (std::int64_t{1} << p.table_bits)));
    }
  }

 private:
  // `first`: the lowest row that wants the state.
  template <class X, class Words>
  KVFERRY_KERNEL_FN static void resolve(X& x, Shared<X>& sh, const Params& p, Words keys, Words first) {
    const IdTable table(keys, p.table_bits);
    const auto rows = static_cast<std::uint32_t>(p.rows);
    for (std::uint32_t i = x.thread(); i < table.entries(); i += kThreads) {
      keys.set(x, i, IdTable<Words>::kFree);
      first.set(x, i, 0x7fffffff);
    }
    x.sync();
    for (std::uint32_t r = x.thread(); r < rows; r += kThreads) {
      const std::int64_t state = load_index(x, p.status_row, r);
      if (state < 0 || state >= p.status_rows) continue;
      bool is_new = false;
      first.lower(x, table.insert(x, static_cast<std::int32_t>(state), is_new), static_cast<std::int32_t>(r));
    }
    x.sync();
    Found found;
    std::int64_t bad_state = 0;
    std::uint32_t bad_bits = 0;
    for (std::uint32_t r = x.thread(); r < rows; r += kThreads) {
      const std::int64_t state = load_index(x, p.status_row, r);
      std::uint32_t bad = 0;
      if (state < -1 || state >= p.status_rows) {
        bad = kDestinationBit;
      } else if (state >= 0) {
        const std::uint32_t at = table.find(x, static_cast<std::int32_t>(state));
        if (first.get(x, at) != static_cast<std::int32_t>(r)) bad = kDuplicateBit;
      }
      x.store(p.states.get() + r, bad == 0 ? static_cast<std::int32_t>(state) : -1);
      if (bad != 0 && found.add(r, 0, 1)) {
        bad_state = state;
        bad_bits = bad;
      }
    }
    if (p.record.get() == nullptr) return;
    found.gather(x, sh.found);
    if (found.has_lowest(sh.found)) {
      x.store(p.record.get(), Record{sh.found.bad[0], sh.found.batch[0], 0, bad_state, bad_bits, p.op});
    } else if (x.thread() == 0 && sh.found.bad[0] == 0) {
      x.store(p.record.get(), Record{});
    }
  }
};

// The sums of the rows' copies, where SelectionCopy does not add them up, and the record of all batches.
struct SelectionFinish {
  static constexpr std::uint32_t kThreads = 512;
  static constexpr std::uint32_t kMinBlocks = 1;

  struct Params {
    DevicePtr<const std::int32_t> counts;  // [rows]
    DevicePtr<std::int64_t> ends;          // [rows + 1]; null: none
    DevicePtr<const Record> records;
    std::int64_t rows, record_count;
    DevicePtr<Record> record;  // adds to it; null: none
  };

  template <class X>
  struct Shared {
    ScanShared<X, kThreads> scan;
    FoundShared<X> found;
  };

  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    std::int64_t* const ends = p.ends.get();
    if (ends != nullptr) {
      sum_counts<kThreads>(x, sh.scan, p.counts.get(), p.rows,
                           [&](std::int64_t row, std::int64_t sum) { x.store(ends + row, sum); });
    }
    if (p.record.get() == nullptr) return;
    Found found;
    std::int64_t lowest = 0;
    for (std::int64_t i = x.thread(); i < p.record_count; i += kThreads) {
      const Record one = x.load(p.records.get() + i);
      if (one.bad != 0 && found.add(one.batch, one.column, one.bad)) lowest = i;
    }
    found.gather(x, sh.found);
    if (!found.has_lowest(sh.found)) return;
    Record sum = x.load(p.records.get() + lowest);
    sum.bad = sh.found.bad[0];
    add_to_record(x, p.record.get(), sum);
  }
};

}  // namespace kvferry::internal::cuda
