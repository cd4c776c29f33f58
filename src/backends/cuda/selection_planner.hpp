// SPDX-License-Identifier: Apache-2.0
//
// Which blocks stay, move and are fetched: one block of threads takes a batch, row after row, O(K) a row and
// eight barriers. The host sees nothing of it.
#pragma once

#include <cstdint>

#include "backends/cuda/id_table.hpp"
#include "backends/cuda/indices.hpp"
#include "backends/cuda/kernel.hpp"
#include "backends/cuda/scan.hpp"
#include "backends/cuda/selection_schedule.hpp"

namespace kvferry::internal::cuda {

// [B, S, n] or [rows, n] of int32, any strides (in bytes) and alignment.
struct Int32Rows {
  DevicePtr<std::uint8_t> data;
  std::int64_t batch_step, row_step, column_step, rows_per_batch;
};

// The row that `r` names, column 0.
KVFERRY_KERNEL_FN std::uint8_t* row_start(const Int32Rows& rows, std::int64_t r) {
  const std::int64_t batch = r / rows.rows_per_batch;
  return rows.data.get() + batch * rows.batch_step + (r - batch * rows.rows_per_batch) * rows.row_step;
}

// A cache in blocks of `block_tokens` tokens.
struct BlockPages {
  std::int64_t pages;
  std::int64_t columns;  // of the block table
  std::uint32_t per_page;
};

struct SelectionPlanner {
  static constexpr std::uint32_t kThreads = 512;
  static constexpr std::uint32_t kMinBlocks = 1;
  static constexpr std::uint32_t kItems = 4;             // neighbours of a thread: one pass over 2,048
  static constexpr std::uint32_t kSharedIds = 2048;      // more of a row take the tables of the workspace
  static constexpr std::uint32_t kSharedEntries = 4096;  // 2^id_table_bits(kSharedIds)

  struct Params {
    Int32Rows status, topk;
    Indices selection_table, full_table, kv_len, q_len;
    Int32Outputs actual_seq, counters, fetch_counts;
    BlockPages selection, full;
    SelectionSchedule schedule;
    DevicePtr<const std::int32_t> states;  // [rows]: row of status, -1 for none; null: each its own
    DevicePtr<std::int32_t> tables;        // of each batch, words_of_tables(k): more than kSharedIds only
    DevicePtr<std::int32_t> groups;        // of each batch, 2 << group_bits words: several rows a batch only
    DevicePtr<Record> records;             // of each batch; null: none
    std::int64_t batches, rows_per_batch, output_rows, block_tokens;
    std::uint64_t plan_id;
    std::uint32_t k, table_bits, group_bits, op;
    bool reads_q, q_is_sum, has_counters, has_fetch_counts;
  };

  // By place in the table: first occurrence in top-k, lowest slot. By index: see Row.
  template <class X>
  struct Shared {
    ScanShared<X, kThreads> scan;
    FoundShared<X> found;
    SharedArray<X, std::int32_t, 1> end;
    SharedArray<X, std::int32_t, kSharedEntries> keys, first, slot;
    SharedArray<X, std::int32_t, kSharedIds> items, held, room, movers;
  };
  static constexpr std::int64_t words_of_tables(std::int64_t k) {
    return (std::int64_t{3} << id_table_bits(k)) + 4 * k;
  }

  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    const std::int64_t rows = p.batches * p.rows_per_batch;
    if (x.block() == 0 && x.thread() == 0) x.store(p.schedule.plan_id.get(), p.plan_id);
    for (std::int64_t r = rows + x.block() * kThreads + x.thread(); r < p.output_rows;
         r += std::int64_t{x.blocks()} * kThreads)
      store_output(x, p.actual_seq, 0, r);
    for (std::int64_t b = x.block(); b < p.batches; b += x.blocks()) {
      if (p.k <= kSharedIds) {
        plan_batch(x, sh, p, b,
                   Tables<SharedWords<SharedArray<X, std::int32_t, kSharedEntries>>,
                          SharedWords<SharedArray<X, std::int32_t, kSharedIds>>>{
                       words(sh.keys), words(sh.first), words(sh.slot), words(sh.items), words(sh.held),
                       words(sh.room), words(sh.movers)});
      } else {
        const std::int64_t entries = std::int64_t{1} << p.table_bits, k = p.k;
        std::int32_t* const at = p.tables.get() + b * (3 * entries + 4 * k);
        std::int32_t* const lists = at + 3 * entries;
        plan_batch(x, sh, p, b,
                   Tables<DeviceWords, DeviceWords>{DeviceWords(at), DeviceWords(at + entries),
                                                    DeviceWords(at + 2 * entries), DeviceWords(lists),
                                                    DeviceWords(lists + k), DeviceWords(lists + 2 * k),
                                                    DeviceWords(lists + 3 * k)});
      }
    }
  }

 private:
  static constexpr std::int32_t kNone = 0x7fffffff;

  template <class Entries, class Ids>
  struct Tables {
    Entries keys, first, slot;
    Ids items;   // top-k's ids, then their places in the table; -1 for what is not selected
    Ids held;    // the ids of trusted slots, then the places of those that are selected; or -1
    Ids room;    // free slots, ascending
    Ids movers;  // places of the ids that get them, in order
  };

  template <class Array>
  KVFERRY_KERNEL_FN static SharedWords<Array> words(Array& array) {
    return SharedWords<Array>(array);
  }

  struct Batch {
    std::int64_t index, kv, q;
    std::int32_t* group_heads;
    std::int32_t fetched;  // by this thread
    // The thread's lowest bad entry; Found has its place.
    Found found;
    std::int64_t bad_id;
    std::uint32_t bad_bits;
  };

  struct Row {
    std::int64_t index, state;
    std::uint8_t* status;
    std::uint32_t in_batch;
    std::int32_t num_ids, tail;
    std::uint32_t n;  // ids selected
    bool has_tail;    // a partial block among them
  };

  template <class X, class T>
  KVFERRY_KERNEL_FN static void plan_batch(X& x, Shared<X>& sh, const Params& p, std::int64_t b, T tables) {
    Batch batch{};
    batch.index = b;
    std::int32_t* group_keys = nullptr;
    if (p.rows_per_batch > 0) {
      batch.kv = load_index(x, p.kv_len, b);
      batch.q = p.rows_per_batch;
      if (p.reads_q) batch.q = load_index(x, p.q_len, b);
      if (p.q_is_sum && b > 0) batch.q -= load_index(x, p.q_len, b - 1);
    }
    if (p.rows_per_batch > 1) {
      const std::int64_t entries = std::int64_t{1} << p.group_bits;
      group_keys = p.groups.get() + b * 2 * entries;
      batch.group_heads = group_keys + entries;
      for (std::int64_t i = x.thread(); i < 2 * entries; i += kThreads) x.store(group_keys + i, -1);
    }
    const IdTable<DeviceWords> groups(DeviceWords(group_keys), p.group_bits);
    // The last row first: it sees the most tokens, so that whoever heads a group has all that others want.
    for (std::int64_t s = p.rows_per_batch; s-- > 0;) plan_row(x, sh, p, batch, s, tables, groups);
    if (p.has_fetch_counts) {
      std::int64_t total = 0;
      scan<kThreads>(x, sh.scan, batch.fetched, total);
      if (x.thread() == 0) store_output(x, p.fetch_counts, static_cast<std::int32_t>(total), b);
    }
    if (p.records.get() != nullptr) report(x, sh, p, batch);
  }

  template <class X>
  KVFERRY_KERNEL_FN static void report(X& x, Shared<X>& sh, const Params& p, const Batch& batch) {
    batch.found.gather(x, sh.found);
    Record* const record = p.records.get() + batch.index;
    if (batch.found.has_lowest(sh.found)) {
      x.store(record, Record{sh.found.bad[0], sh.found.batch[0], sh.found.column[0], batch.bad_id,
                             batch.bad_bits, p.op});
    } else if (x.thread() == 0 && sh.found.bad[0] == 0) {
      x.store(record, Record{});
    }
    x.sync();  // the next batch gathers again
  }

  template <class X>
  KVFERRY_KERNEL_FN static void finish_row(X& x, const Params& p, const Row& row, std::int32_t tokens,
                                           std::uint32_t copies, std::uint32_t misses, std::uint32_t moved) {
    if (x.thread() != 0) return;
    x.store(p.schedule.counts.get() + row.index, static_cast<std::int32_t>(copies));
    store_output(x, p.actual_seq, tokens, row.index);
    if (!p.has_counters) return;
    store_output(x, p.counters, static_cast<std::int32_t>(row.n - misses), row.index, 0);
    store_output(x, p.counters, static_cast<std::int32_t>(misses), row.index, 1);
    store_output(x, p.counters, static_cast<std::int32_t>(moved), row.index, 2);
  }

  template <class X, class T>
  KVFERRY_KERNEL_FN static void plan_row(X& x, Shared<X>& sh, const Params& p, Batch& batch, std::int64_t s,
                                         T& tables, const IdTable<DeviceWords>& groups) {
    Row row{};
    row.index = batch.index * p.rows_per_batch + s;
    row.in_batch = static_cast<std::uint32_t>(s);
    const std::int32_t* const states = p.states.get();
    row.state = states != nullptr ? x.load(states + row.index) : row.index;
    const std::int64_t visible = s < batch.q ? batch.kv - (batch.q - 1 - s) : batch.kv;
    if (row.state < 0 || visible <= 0) return finish_row(x, p, row, 0, 0, 0, 0);
    row.status = row_start(p.status, row.state);
    row.num_ids = static_cast<std::int32_t>((visible - 1) / p.block_tokens + 1);
    row.tail = static_cast<std::int32_t>(visible - (row.num_ids - 1) * p.block_tokens);

    const IdTable table(tables.keys, p.table_bits);
    load(x, sh, p, batch, row, tables, table);
    x.sync();
    select(x, sh, p, row, tables, table);
    x.sync();
    row.n = find_residents(x, sh, p, tables, table);
    const std::int32_t last = row.num_ids - 1, end = sh.end[0];
    std::uint32_t at = IdTable<DeviceWords>::kNowhere;
    if (row.tail < p.block_tokens) at = table.find(x, last);
    row.has_tail = at != IdTable<DeviceWords>::kNowhere && tables.first.get(x, at) < end;
    std::uint32_t moved = 0;
    const std::uint32_t movers = share_slots(x, sh, p, row, tables, moved);
    std::int64_t all_moved = 0;
    if (p.has_counters) scan<kThreads>(x, sh.scan, moved, all_moved);
    x.sync();

    const std::uint32_t copies = movers + (row.has_tail ? 1 : 0);
    for (std::uint32_t i = x.thread(); i < copies; i += kThreads)
      fill_slot(x, p, batch, row, tables, groups, i, i < movers);
    for (std::uint32_t slot = row.n + x.thread(); slot < p.k; slot += kThreads)
      store_status(x, p, row, slot, -1);
    const std::int64_t tokens =
        row.n * p.block_tokens - (row.has_tail ? p.block_tokens - row.tail : std::int64_t{0});
    if (x.thread() == 0) store_status(x, p, row, p.k, static_cast<std::int32_t>(tokens));
    finish_row(x, p, row, static_cast<std::int32_t>(tokens), copies,
               copies - static_cast<std::uint32_t>(all_moved), static_cast<std::uint32_t>(all_moved));
    x.sync();  // the next row takes the tables
  }

  // Clears the table and reads all that the row has, so that the latencies are one: items and held.
  template <class X, class T, class Table>
  KVFERRY_KERNEL_FN static void load(X& x, Shared<X>& sh, const Params& p, const Batch& batch, const Row& row,
                                     T& tables, const Table& table) {
    const std::uint8_t* const topk = row_start(p.topk, row.index);
    for (std::uint32_t i = x.thread(); i < p.k; i += kThreads)
      tables.items.set(x, i, load_int32(x, topk + i * p.topk.column_step));

    const std::int64_t bs = p.block_tokens, length = load_int32(x, row.status + p.k * p.status.column_step);
    const std::int64_t stable = (batch.kv - most(batch.q, std::int64_t{0})) / bs;  // ids below it
    const std::int64_t valid = length > 0 ? (length - 1) / bs + 1 : 0;
    const std::int64_t old_tail = length % bs != 0 ? length / bs : -1;
    for (std::uint32_t slot = x.thread(); slot < p.k; slot += kThreads) {
      std::int32_t id = -1;
      if (slot < valid && slot != old_tail) {
        id = load_int32(x, row.status + slot * p.status.column_step);
        if (id >= stable || page_of(x, p, row, slot) < 0) id = -1;
      }
      tables.held.set(x, slot, id);
    }
    for (std::uint32_t i = x.thread(); i < table.entries(); i += kThreads) {
      tables.keys.set(x, i, Table::kFree);
      tables.first.set(x, i, kNone);
      tables.slot.set(x, i, kNone);
    }
    if (x.thread() != 0) return;
    sh.end.set(0, static_cast<std::int32_t>(p.k));
    x.store(&p.schedule.leaving.get()[row.index].tokens, 0);
  }

  // Puts the ids into the table, those behind the end of the list too, and finds the end.
  template <class X, class T, class Table>
  KVFERRY_KERNEL_FN static void select(X& x, Shared<X>& sh, const Params& p, const Row& row, T& tables,
                                       const Table& table) {
    for (std::uint32_t base = 0; base < p.k; base += kThreads) {
      const std::uint32_t i = base + x.thread();
      const std::int32_t id = i < p.k ? tables.items.get(x, i) : 0;
      const std::uint32_t ends = x.ballot(id < 0);
      if (id < 0 && lowest_bit(ends) == 1U << x.lane()) x.atomic_min(sh.end, 0, static_cast<std::int32_t>(i));
      if (i >= p.k) continue;
      std::int32_t place = -1;
      if (id >= 0 && id < row.num_ids) {
        bool is_new = false;
        const std::uint32_t at = table.insert(x, id, is_new);
        tables.first.lower(x, at, static_cast<std::int32_t>(i));
        place = static_cast<std::int32_t>(at);
      }
      tables.items.set(x, i, place);
    }
  }

  // What the slots hold of the selected ids, and n.
  template <class X, class T, class Table>
  KVFERRY_KERNEL_FN static std::uint32_t find_residents(X& x, Shared<X>& sh, const Params& p, T& tables,
                                                        const Table& table) {
    const std::int32_t end = sh.end[0];
    std::uint32_t selected = 0;
    for (std::uint32_t i = x.thread(); i < p.k; i += kThreads) {
      const std::int32_t place = tables.items.get(x, i), index = static_cast<std::int32_t>(i);
      if (place >= 0) {
        if (index < end && tables.first.get(x, static_cast<std::uint32_t>(place)) == index) {
          ++selected;
        } else {
          tables.items.set(x, i, -1);
        }
      }
      const std::int32_t id = tables.held.get(x, i);
      if (id < 0) continue;
      const std::uint32_t at = table.find(x, id);
      const bool resident = at != Table::kNowhere && tables.first.get(x, at) < end;
      if (resident) tables.slot.lower(x, at, index);
      tables.held.set(x, i, resident ? static_cast<std::int32_t>(at) : -1);
    }
    std::int64_t n = 0;
    scan<kThreads>(x, sh.scan, selected, n);
    return static_cast<std::uint32_t>(n);
  }

  // Whether slot `slot` keeps what it has.
  template <class X, class T>
  KVFERRY_KERNEL_FN static bool keeps(X& x, T& tables, std::uint32_t slot) {
    const std::int32_t place = tables.held.get(x, slot);
    return place >= 0 &&
           tables.slot.get(x, static_cast<std::uint32_t>(place)) == static_cast<std::int32_t>(slot);
  }

  // Lists the ids that do not keep their slots and the slots that are left; how many. `moved`: those of this
  // thread that are resident elsewhere.
  template <class X, class T>
  KVFERRY_KERNEL_FN static std::uint32_t share_slots(X& x, Shared<X>& sh, const Params& p, const Row& row,
                                                     T& tables, std::uint32_t& moved) {
    const std::uint32_t slots = row.has_tail ? row.n - 1 : row.n;  // that are shared out
    const auto moves = [&](std::uint32_t i, std::int32_t& place) {
      place = i < p.k ? tables.items.get(x, i) : -1;
      if (place < 0) return false;
      const auto at = static_cast<std::uint32_t>(place);
      if (tables.slot.get(x, at) < static_cast<std::int32_t>(slots)) return false;
      return !row.has_tail || tables.keys.get(x, at) != row.num_ids - 1;
    };
    const auto is_free = [&](std::uint32_t slot) { return slot < slots && !keeps(x, tables, slot); };
    constexpr std::uint32_t kPass = kThreads * kItems;
    std::int64_t before = 0;  // movers << 32 | free slots
    for (std::uint32_t base = 0; base < p.k; base += kPass) {
      const std::uint32_t begin = base + x.thread() * kItems;
      std::int32_t place[kItems];
      std::uint32_t moving = 0, free = 0;
      std::int64_t count = 0, total = 0;
      for (std::uint32_t u = 0; u < kItems; ++u) {
        moving |= static_cast<std::uint32_t>(moves(begin + u, place[u])) << u;
        free |= static_cast<std::uint32_t>(is_free(begin + u)) << u;
        count += std::int64_t{moving >> u & 1} << 32 | (free >> u & 1);
      }
      const std::int64_t at = before + scan<kThreads>(x, sh.scan, count, total);
      before += total;
      auto mover = static_cast<std::uint32_t>(at >> 32), slot = static_cast<std::uint32_t>(at);
      for (std::uint32_t u = 0; u < kItems; ++u) {
        if ((moving >> u & 1) != 0) {
          tables.movers.set(x, mover++, place[u]);
          moved += tables.slot.get(x, static_cast<std::uint32_t>(place[u])) != kNone ? 1U : 0U;
        }
        if ((free >> u & 1) != 0) tables.room.set(x, slot++, static_cast<std::int32_t>(begin + u));
      }
    }
    return static_cast<std::uint32_t>(before >> 32);
  }

  // Copy `i` of the row: a mover into the slot for it, or the partial block.
  template <class X, class T>
  KVFERRY_KERNEL_FN static void fill_slot(X& x, const Params& p, Batch& batch, const Row& row, T& tables,
                                          const IdTable<DeviceWords>& groups, std::uint32_t i, bool mover) {
    std::int32_t id = row.num_ids - 1, from = kNone;
    std::uint32_t slot = row.n - 1;
    if (mover) {
      const auto at = static_cast<std::uint32_t>(tables.movers.get(x, i));
      id = tables.keys.get(x, at);
      from = tables.slot.get(x, at);
      slot = static_cast<std::uint32_t>(tables.room.get(x, i));
    }
    ScheduledCopy copy{};
    copy.next = -1;
    copy.dst_page = page_of(x, p, row, slot);
    copy.dst_block = static_cast<std::int32_t>(slot % p.selection.per_page);
    copy.tokens = id == row.num_ids - 1 ? row.tail : static_cast<std::int32_t>(p.block_tokens);
    if (!mover) copy.flags = kLastSlotCopy;
    std::uint32_t bad = copy.dst_page < 0 ? kDestinationBit : 0;
    const std::uint32_t in_batch = row.in_batch * p.k + i;
    ScheduledCopy* const list = p.schedule.copies.get() + batch.index * p.rows_per_batch * p.k;
    if (from == kNone) {
      bad |= locate(x, p, batch, static_cast<std::uint32_t>(id), copy);
      if ((bad & kDestinationBit) != 0) copy.tokens = 0;
      add_miss(x, p, batch, groups, list, id, static_cast<std::int32_t>(in_batch), copy);
    } else {
      const auto src = static_cast<std::uint32_t>(from);
      copy.flags |= kMoveCopy;
      copy.src_page = page_of(x, p, row, src);
      copy.src_block = static_cast<std::int32_t>(src % p.selection.per_page);
      if (bad == 0 && src < row.n) x.store(p.schedule.leaving.get() + row.index, copy);
      if (bad != 0 || src < row.n) copy.tokens = 0;
    }
    x.store(list + in_batch, copy);
    store_status(x, p, row, slot, bad == 0 ? id : -1);
    if (bad != 0 && batch.found.add(row.index, slot, 1)) {
      batch.bad_id = id;
      batch.bad_bits = bad;
    }
  }

  // A miss joins the copies of the rows before for the same id, if there are any.
  template <class X>
  KVFERRY_KERNEL_FN static void add_miss(X& x, const Params& p, Batch& batch,
                                         const IdTable<DeviceWords>& groups, ScheduledCopy* list,
                                         std::int32_t id, std::int32_t index, ScheduledCopy& copy) {
    bool is_new = true;
    if (p.rows_per_batch > 1) {
      std::int32_t* const head = batch.group_heads + groups.insert(x, id, is_new);
      if (copy.tokens > 0) {
        const std::int32_t first = x.load(static_cast<const std::int32_t*>(head));
        if (first < 0) {
          x.store(head, index);
        } else {
          copy.flags |= kFollows;
          copy.next = x.load(static_cast<const std::int32_t*>(&list[first].next));
          x.store(&list[first].next, index);
        }
      }
    }
    batch.fetched += is_new ? 1 : 0;
  }

  // Where the full cache holds `id`; what is wrong with its table entry, and zeros then.
  template <class X>
  KVFERRY_KERNEL_FN static std::uint32_t locate(X& x, const Params& p, const Batch& batch, std::uint32_t id,
                                                ScheduledCopy& copy) {
    const std::uint32_t column = id / p.full.per_page;
    std::uint32_t bad = kColumnBit;
    if (column < p.full.columns) {
      const std::int64_t page = load_index(x, p.full_table, batch.index, column);
      bad = page < 0 || page >= p.full.pages ? kSourceBit : 0;
      copy.src_page = static_cast<std::int32_t>(page);
      copy.src_block = static_cast<std::int32_t>(id - column * p.full.per_page);
    }
    if (bad != 0) copy.flags |= kZeroCopy;
    return bad;
  }

  // The page of a slot, -1 for one that does not exist.
  template <class X>
  KVFERRY_KERNEL_FN static std::int32_t page_of(X& x, const Params& p, const Row& row, std::uint32_t slot) {
    const std::int64_t page = load_index(x, p.selection_table, row.state, slot / p.selection.per_page);
    return page >= 0 && page < p.selection.pages ? static_cast<std::int32_t>(page) : -1;
  }

  template <class X>
  KVFERRY_KERNEL_FN static void store_status(X& x, const Params& p, const Row& row, std::uint32_t column,
                                             std::int32_t value) {
    store_int32(x, row.status + column * p.status.column_step, value);
  }
};

}  // namespace kvferry::internal::cuda
