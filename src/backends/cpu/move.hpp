// SPDX-License-Identifier: Apache-2.0
//
// Mover: runs of tokens through the copy kernels. One lives on the stack of each claim.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "backends/cpu/copy.hpp"
#include "core/layout.hpp"

namespace kvferry::internal::cpu {

// True if a call of this many bytes should use non-temporal stores.
bool use_nontemporal(std::int64_t bytes, bool streaming) noexcept;

// Collects pieces for the lanes: they need several at a time, from different blocks.
class PieceQueue {
 public:
  PieceQueue(const CopyKernels& kernels, bool nontemporal) noexcept
      : kernels_(kernels), nontemporal_(nontemporal) {}
  PieceQueue(const PieceQueue&) = delete;
  PieceQueue& operator=(const PieceQueue&) = delete;
  // The fence makes the claim's non-temporal stores visible before the claim counts as done.
  ~PieceQueue() {
    flush();
    if (nontemporal_) kernels_.fence();
  }

  void push(const std::byte* src, std::byte* dst, std::int64_t bytes) noexcept {
    pieces_[static_cast<std::size_t>(count_++)] = {src, dst, bytes};
    if (count_ == kCapacity) flush();
  }
  void flush() noexcept {
    kernels_.pieces(pieces_.data(), count_, nontemporal_);
    count_ = 0;
  }

 private:
  static constexpr std::int64_t kCapacity = 128;
  const CopyKernels& kernels_;
  const bool nontemporal_;
  std::int64_t count_ = 0;
  std::array<Piece, kCapacity> pieces_;
};

class Mover {
 public:
  Mover(const TokenMove& move, const CopyKernels& kernels, bool nontemporal) noexcept
      : move_(move), kernels_(kernels), nontemporal_(nontemporal), queue_(kernels, nontemporal) {}

  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;
  ~Mover() { transpose_waiting(nullptr); }

  // `tokens` tokens, the next one at the move's token steps. Done when the mover is gone.
  void copy(const std::byte* src, std::byte* dst, std::int64_t tokens) noexcept;
  void zero(std::byte* dst, std::int64_t tokens) const noexcept;

 private:
  void copy_nest(const Nest& nest, const std::byte* src, std::byte* dst, std::int64_t tokens) noexcept;
  void pieces(const Axis& axis, const std::byte* src, std::byte* dst, std::int64_t bytes) noexcept;
  // Runs the transpose that waits, if one does.
  void transpose_waiting(const std::byte* next) noexcept;

  const TokenMove& move_;
  const CopyKernels& kernels_;
  const bool nontemporal_;
  PieceQueue queue_;
  Piece waiting_{};  // a transpose, `bytes` tokens of it: it runs when the next source is known
};

}  // namespace kvferry::internal::cpu
