// SPDX-License-Identifier: Apache-2.0
//
// The kernels of aarch64 against plain loops, byte for byte. A program of its own: the cross compiler has no
// GoogleTest. Sources and destinations lie against pages that must not be touched.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "backends/cpu/kernels.hpp"

namespace {

using kvferry::internal::cpu::CopyKernels;
using kvferry::internal::cpu::Piece;
using Bytes = std::vector<std::byte>;

// [begin(), begin() + bytes) between two pages that fault; at one of them exactly.
class Memory {
 public:
  Memory(std::int64_t bytes, bool at_end) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE)), size = static_cast<std::size_t>(bytes);
    const std::size_t inside = (size + page - 1) / page * page;
    mapped_ = inside + 2 * page;
    map_ = static_cast<std::byte*>(
        mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (map_ == MAP_FAILED || mprotect(map_ + page, inside, PROT_READ | PROT_WRITE) != 0) std::abort();
    begin_ = map_ + page + (at_end ? inside - size : 0);
    for (std::size_t i = 0; i < size; ++i) begin_[i] = next_byte();
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { munmap(map_, mapped_); }
  std::byte* begin() const { return begin_; }

 private:
  static std::byte next_byte() {
    static std::uint64_t state = 1;
    state = state * 6364136223846793005U + 1442695040888963407U;
    return static_cast<std::byte>(state >> 56);
  }
  std::byte* map_;
  std::byte* begin_;
  std::size_t mapped_;
};

int checks = 0, wrong = 0;

// Calls kernel(dst) on `bytes` bytes of memory; they must then be what plain(copy of them) makes of them.
template <class Kernel, class Plain>
void check(const std::string& what, std::int64_t bytes, bool at_end, Kernel kernel, Plain plain) {
  const Memory dst(bytes, at_end);
  Bytes expected(dst.begin(), dst.begin() + bytes);
  plain(expected.data());
  kernel(dst.begin());
  ++checks;
  if (expected.empty() || std::memcmp(dst.begin(), expected.data(), expected.size()) == 0) return;
  if (++wrong <= 10) std::printf("WRONG %s\n", what.c_str());
}

void copy_bytes(std::byte* dst, const std::byte* src, std::int64_t bytes) {
  for (std::int64_t i = 0; i < bytes; ++i) dst[i] = src[i];
}

// `count` pieces, `src_gap` and `dst_gap` bytes apart; the last one ends where the memory ends.
void check_pieces(const CopyKernels& kernels, std::int64_t count, std::int64_t bytes, std::int64_t src_gap,
                  std::int64_t dst_gap, bool nontemporal, bool at_end) {
  const Memory src(count * (bytes + src_gap) - src_gap, at_end);
  const auto pieces = [&](std::byte* dst) {
    std::vector<Piece> list;
    for (std::int64_t i = 0; i < count; ++i)
      list.push_back({src.begin() + i * (bytes + src_gap), dst + i * (bytes + dst_gap), bytes});
    return list;
  };
  check(
      "pieces: " + std::to_string(count) + " of " + std::to_string(bytes) + " gaps " +
          std::to_string(src_gap) + " " + std::to_string(dst_gap),
      count * (bytes + dst_gap) - dst_gap, at_end,
      [&](std::byte* dst) {
        const auto list = pieces(dst);
        kernels.pieces(list.data(), count, nontemporal);
        kernels.fence();
      },
      [&](std::byte* dst) {
        for (const Piece& piece : pieces(dst)) copy_bytes(piece.dst, piece.src, piece.bytes);
      });
}

void check_rows(const CopyKernels& kernels, std::int64_t count, std::int64_t bytes, std::int64_t src_gap,
                std::int64_t dst_gap, bool at_end) {
  const std::int64_t src_step = bytes + src_gap, dst_step = bytes + dst_gap;
  const Memory src(count * src_step - src_gap, at_end);
  check(
      "rows: " + std::to_string(count) + " of " + std::to_string(bytes), count * dst_step - dst_gap, at_end,
      [&](std::byte* dst) { kernels.rows(dst, dst_step, src.begin(), src_step, count, bytes); },
      [&](std::byte* dst) {
        for (std::int64_t i = 0; i < count; ++i)
          copy_bytes(dst + i * dst_step, src.begin() + i * src_step, bytes);
      });
}

void check_transpose(const CopyKernels& kernels, std::int64_t rows, std::int64_t columns,
                     std::int64_t src_gap, std::int64_t dst_gap, bool nontemporal, bool at_end,
                     bool follows) {
  const std::int64_t src_pitch = rows * 32 + src_gap, dst_pitch = columns * 32 + dst_gap;
  const Memory src(columns * src_pitch - src_gap, at_end);
  check(
      "transpose: " + std::to_string(rows) + " x " + std::to_string(columns) + " gaps " +
          std::to_string(src_gap) + " " + std::to_string(dst_gap),
      rows * dst_pitch - dst_gap, at_end,
      [&](std::byte* dst) {
        kernels.transpose(dst, dst_pitch, src.begin(), src_pitch, rows, columns, nontemporal,
                          follows ? src.begin() + columns * src_pitch : nullptr);
        kernels.fence();
      },
      [&](std::byte* dst) {
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t c = 0; c < columns; ++c)
            copy_bytes(dst + r * dst_pitch + c * 32, src.begin() + c * src_pitch + r * 32, 32);
        }
      });
}

// The checks themselves: a kernel that reads one byte too many must die of it.
bool notices_over_read() {
  constexpr int kFault = 9;
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGSEGV, [](int) { _exit(kFault); });
    CopyKernels careless = kvferry::internal::cpu::kGenericCopy;
    careless.pieces = [](const Piece* pieces, std::int64_t, bool) {
      volatile std::byte beyond = pieces->src[pieces->bytes];
      (void)beyond;
    };
    check_pieces(careless, 1, 300, 0, 0, false, true);
    _exit(0);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == kFault;
}

void check_all(const CopyKernels& kernels) {
  for (const bool at_end : {false, true}) {
    for (const bool nontemporal : {false, true}) {
      for (const std::int64_t bytes :
           {1, 31, 32, 63, 64, 65, 127, 128, 255, 256, 257, 320, 1000, 1152, 4096, 70000}) {
        for (const std::int64_t count : {1, 2, 7}) {
          for (const std::int64_t gap : {0, 1, 16, 64}) {
            check_pieces(kernels, count, bytes, gap, 0, nontemporal, at_end);
            check_pieces(kernels, count, bytes, 0, gap, nontemporal, at_end);
          }
        }
      }
      for (const std::int64_t rows : {1, 2, 3, 16, 33, 128, 129, 260}) {
        for (const std::int64_t columns : {1, 2, 3, 4, 5, 6, 8, 11, 16}) {
          for (const std::int64_t gap : {0, 1, 32, 64}) {
            check_transpose(kernels, rows, columns, gap, 0, nontemporal, at_end, gap == 0);
            check_transpose(kernels, rows, columns, 0, gap, nontemporal, at_end, gap != 0);
          }
        }
      }
    }
    for (const std::int64_t bytes : {1, 2, 3, 4, 8, 16, 32, 64, 100, 128, 256, 511}) {
      for (const std::int64_t count : {1, 2, 9}) {
        check_rows(kernels, count, bytes, 0, 0, at_end);
        check_rows(kernels, count, bytes, 5, 3, at_end);
      }
    }
  }
}

}  // namespace

int main() {
  if (!notices_over_read()) {
    std::puts("WRONG an over-read goes unnoticed");
    return 1;
  }
  std::string names;
  for (const auto& set : kvferry::internal::cpu::instruction_sets()) {
    names += std::string(names.empty() ? "" : " ") + set.name;
    if (set.why_not().empty()) check_all(set.kernels.copy);
  }
  std::printf("%s: %d checks, %d wrong\n", names.c_str(), checks, wrong);
  return wrong == 0 && names == "neon generic" ? 0 : 1;
}
