// SPDX-License-Identifier: Apache-2.0
//
// The models that a replay knows: how many bytes of KV a token takes in which shape.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kvferry/status.hpp"
#include "kvferry/tensor.hpp"

namespace kvferry::replay {

struct Model {
  const char* name;
  int layers;
  int kv_heads;
  int head_size;  // elements of K, and of V where there is one
  DType dtype;
  bool mla;  // one latent row a token, no V; tensor parallelism does not divide it
  const char* note;
};

std::span<const Model> models();
std::string model_names();  // "llama-3.1-8b, llama-3.1-70b, ..."
// The message of a failure lists the names.
Result<Model> find_model(std::string_view name);

// What one of `tp` ranks holds of each layer.
struct Shard {
  Model model;
  int tp = 1;
  std::int64_t heads = 0;
  std::int64_t key_row_bytes = 0;    // a token of one layer
  std::int64_t value_row_bytes = 0;  // 0: no V

  std::int64_t token_layer_bytes() const { return key_row_bytes + value_row_bytes; }
  // Ranks that hold different bytes: what the whole model's bytes are a multiple of.
  int distinct_ranks() const { return model.mla ? 1 : tp; }
};

// Refuses a tp that does not divide the KV heads; MLA models have one head that every rank keeps whole.
Result<Shard> shard(const Model& model, int tp);

}  // namespace kvferry::replay
