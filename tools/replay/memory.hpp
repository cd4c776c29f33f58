// SPDX-License-Identifier: Apache-2.0
//
// Memory of the replay: large buffers in huge pages, what the process and the machine have,
// and how fast the machine copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kvferry/context.hpp"
#include "kvferry/status.hpp"

namespace kvferry::replay {

// Zeroed memory from mmap, aligned to 2 MiB, with huge pages where the system gives them: first touch
// costs 11.5 us per 4 KiB page, 0.23 us with huge pages. Not touched until it is used or touch()ed.
class HugeBuffer {
 public:
  HugeBuffer() = default;
  static Result<HugeBuffer> make(std::int64_t bytes);
  HugeBuffer(HugeBuffer&& other) noexcept { swap(other); }
  HugeBuffer& operator=(HugeBuffer&& other) noexcept {
    HugeBuffer(std::move(other)).swap(*this);
    return *this;
  }
  ~HugeBuffer();

  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }
  // Touches the first `bytes` with all threads of the context.
  void touch(std::int64_t bytes, const Context& context) const;

 private:
  void swap(HugeBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(map_, other.map_);
    std::swap(map_bytes_, other.map_bytes_);
  }

  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
  void* map_ = nullptr;
  std::size_t map_bytes_ = 0;
};

// Bytes; -1 where the system does not say.
std::int64_t peak_memory();       // of this process (VmHWM)
std::int64_t available_memory();  // of the machine (MemAvailable)

// GB/s (payload counted once) of a contiguous copy with non-temporal stores from cold memory to cold memory
// with all threads of the context: the yardstick of every "share of the limit". Shares no code with the
// operators. Median of several samples of 256 MiB.
Result<double> measure_copy_limit(const Context& context);
// How that copy is made on this machine: "AVX2 non-temporal" or "memcpy".
const char* copy_limit_method();

}  // namespace kvferry::replay
