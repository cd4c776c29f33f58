// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/models.hpp"

#include <fmt/format.h>

#include <array>

namespace kvferry::replay {
namespace {

constexpr std::array<Model, 5> kModels{{
    {"llama-3.1-8b", 32, 8, 128, DType::kBFloat16, false, "8 KV heads of 128 bf16"},
    {"llama-3.1-70b", 80, 8, 128, DType::kBFloat16, false, "8 KV heads of 128 bf16"},
    {"qwen3-30b-a3b", 48, 4, 128, DType::kBFloat16, false, "4 KV heads of 128 bf16"},
    {"deepseek-v3.2", 61, 1, 576, DType::kBFloat16, true, "MLA: 512 latent + 64 rope bf16"},
    {"deepseek-v3.2-fp8", 61, 1, 656, DType::kUInt8, true,
     "MLA: 512 fp8 + 4 float32 scales + 64 rope bf16, 656 bytes"},
}};

}  // namespace

std::span<const Model> models() {
  return kModels;
}

std::string model_names() {
  std::string names;
  for (const Model& model : kModels) names += (names.empty() ? "" : ", ") + std::string(model.name);
  return names;
}

Result<Model> find_model(std::string_view name) {
  for (const Model& model : kModels) {
    if (name == model.name) return model;
  }
  return Status(StatusCode::kInvalidArgument,
                fmt::format("--model: '{}' is not known, expected one of {}", name, model_names()));
}

Result<Shard> shard(const Model& model, int tp) {
  if (tp < 1 || (!model.mla && model.kv_heads % tp != 0)) {
    return Status(StatusCode::kInvalidArgument, fmt::format("--tp: {} does not divide the {} KV heads of {}",
                                                            tp, model.kv_heads, model.name));
  }
  Shard s{model, tp, model.mla ? 1 : model.kv_heads / tp, 0, 0};
  s.key_row_bytes = s.heads * model.head_size * size_of(model.dtype);
  s.value_row_bytes = model.mla ? 0 : s.key_row_bytes;
  return s;
}

}  // namespace kvferry::replay
