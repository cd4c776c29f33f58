// SPDX-License-Identifier: Apache-2.0
//
// Pages of quantised tokens to rows of bfloat16: the kernel of gather_dequant.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cuda/kernel.hpp"
#include "backends/cuda/paged_loop.hpp"

namespace kvferry::internal::cuda {

// The bits are those of every CPU kernel (backends/cpu/dequant_generic.cpp): one product, rounded twice. It
// REQUIRES that subnormals are kept, as nvcc does unless it is told otherwise.
struct PagedDequant {
  static constexpr std::uint32_t kThreads = 256;
  static constexpr std::uint32_t kMinBlocks = 4;

  // A token: 512 float8_e4m3fn, 4 float32 scales, 64 bfloat16.
  static constexpr std::uint32_t kValues = 512;
  static constexpr std::uint32_t kGroup = 128;  // values of one scale
  static constexpr std::uint32_t kScalesAt = kValues;
  static constexpr std::uint32_t kRopeAt = kScalesAt + kValues / kGroup * 4;
  static constexpr std::uint32_t kRopeBytes = 128;

  struct Params {
    PagedLoopParams loop;
    DevicePtr<const std::uint8_t> cache;
    DevicePtr<std::uint8_t> out;
    // Bytes, but for the blocks.
    std::int64_t blocks, block_step, slot_step, row_step, element_step;
  };

  template <class X>
  struct Shared {
    PagedLoopShared<X, kThreads> loop;
  };

  template <class X>
  KVFERRY_KERNEL_FN static void run(X& x, Shared<X>& sh, const Params& p) {
    PagedLoop<kThreads>::run(x, sh.loop, p.loop, 1,
                             [&](std::int64_t, const PagedRun& run) { convert(x, p, run); });
  }

 private:
  // What a thread makes at a time: 8 elements of the output, 16 bytes.
  static constexpr std::uint32_t kUnit = 8;
  static constexpr std::uint32_t kValueUnits = kValues / kUnit;
  static constexpr std::uint32_t kUnits = kValueUnits + kRopeBytes / 16;  // of a token
  static constexpr std::uint32_t kInFlight = 4;                           // of a thread
  struct Unit {
    std::uint32_t words[4];  // of values two
    std::uint32_t scale;
  };

  template <class X>
  KVFERRY_KERNEL_FN static void convert(X& x, const Params& p, const PagedRun& run) {
    const std::uint8_t* src = nullptr;
    if (run.id >= 0 && run.id < p.blocks)
      src = p.cache.get() + run.id * p.block_step + run.slot * p.slot_step;
    std::uint8_t* const dst = p.out.get() + run.row * p.row_step;
    const std::uint32_t units = run.tokens * kUnits;
    for (std::uint32_t i = x.thread(); i < units; i += kInFlight * kThreads) {
      Unit loaded[kInFlight] = {};
      for (std::uint32_t u = 0; u < kInFlight; ++u) {
        const std::uint32_t n = i + u * kThreads;
        if (n < units && src != nullptr) load_unit(x, src + n / kUnits * p.slot_step, n % kUnits, loaded[u]);
      }
      for (std::uint32_t u = 0; u < kInFlight; ++u) {
        const std::uint32_t n = i + u * kThreads;
        if (n >= units) break;
        store_unit(x, p, dst + n / kUnits * p.row_step, n % kUnits, loaded[u]);
      }
    }
  }

  template <class X>
  KVFERRY_KERNEL_FN static void load_unit(X& x, const std::uint8_t* token, std::uint32_t unit, Unit& to) {
    if (unit < kValueUnits) {
      std::uint32_t codes[2] = {}, scale[1] = {};
      load_words<std::uint64_t>(x, token + std::size_t{unit} * kUnit, codes);
      load_words<std::uint32_t>(x, token + kScalesAt + std::size_t{unit} * kUnit / kGroup * 4, scale);
      to.words[0] = codes[0];
      to.words[1] = codes[1];
      to.scale = scale[0];
    } else {
      load_words<Vec16>(x, token + kRopeAt + std::size_t{unit - kValueUnits} * 16, to.words);
    }
  }

  // By one load of V, or whatever the alignment allows.
  template <class V, std::uint32_t Words, class X>
  KVFERRY_KERNEL_FN static void load_words(X& x, const std::uint8_t* at, std::uint32_t (&words)[Words]) {
    static_assert(sizeof(V) == std::size_t{4} * Words);
    struct Many {
      std::uint32_t words[Words];
    };
    const auto address = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(at));
    Many many{};
    if (address % sizeof(V) == 0) {
      many = bits_as<Many>(x.load_once(reinterpret_cast<const V*>(at)));
    } else if (address % 4 == 0) {
      for (std::uint32_t w = 0; w < Words; ++w)
        many.words[w] = x.load_once(reinterpret_cast<const std::uint32_t*>(at) + w);
    } else {
      for (std::uint32_t n = 0; n < 4 * Words; ++n)
        many.words[n / 4] |= std::uint32_t{x.load_once(at + n)} << n % 4 * 8;
    }
    for (std::uint32_t w = 0; w < Words; ++w) words[w] = many.words[w];
  }

  template <class X>
  KVFERRY_KERNEL_FN static void store_unit(X& x, const Params& p, std::uint8_t* row, std::uint32_t unit,
                                           const Unit& from) {
    std::uint32_t words[4];
    for (std::uint32_t w = 0; w < 4; ++w) {
      const std::uint32_t codes = from.words[w / 2] >> w % 2 * 16;
      words[w] = unit < kValueUnits ? product(codes, from.scale) | product(codes >> 8, from.scale) << 16
                                    : from.words[w];
    }
    std::uint8_t* at = row + std::int64_t{unit} * kUnit * p.element_step;
    if (p.element_step == 2 && reinterpret_cast<std::uintptr_t>(at) % sizeof(Vec16) == 0) {
      x.store_once(reinterpret_cast<Vec16*>(at), Vec16{words[0], words[1], words[2], words[3]});
      return;
    }
    for (std::uint32_t j = 0; j < kUnit; ++j, at += p.element_step) {
      const auto element = static_cast<std::uint16_t>(words[j / 2] >> j % 2 * 16);
      if (reinterpret_cast<std::uintptr_t>(at) % 2 == 0) {
        x.store_once(reinterpret_cast<std::uint16_t*>(at), element);
      } else {
        x.store_once(at, static_cast<std::uint8_t>(element));
        x.store_once(at + 1, static_cast<std::uint8_t>(element >> 8));
      }
    }
  }

  // The bfloat16 of the float8_e4m3fn in the low bits of `codes`, times the scale.
  KVFERRY_KERNEL_FN static std::uint32_t product(std::uint32_t codes, std::uint32_t scale) {
    // Sign, exponent and mantissa where float32 has them are the value times 2^-120, also of subnormals.
    const std::uint32_t magnitude = codes & 0x7fU;
    const float value = bits_as<float>((codes & 0x80U) << 24 | magnitude << 20) * 0x1p120F;
    const auto bits = bits_as<std::uint32_t>(value * bits_as<float>(scale));
    const bool nan = magnitude == 0x7fU || (bits & 0x7fffffffU) > 0x7f800000U;
    // To nearest even; the carry into the exponent makes infinity of what is too large.
    return nan ? 0x7fc0U : (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;
  }
};

}  // namespace kvferry::internal::cuda
