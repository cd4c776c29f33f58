// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/options.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "harness/case.hpp"

namespace kvferry::replay {
namespace {

// Reads values into variables; the first problem sticks, absent options are skipped.
class Parser {
 public:
  template <class T>
  void integer(const char* option, const std::string& text, T& value, std::int64_t least, std::int64_t most) {
    if (text.empty() || !status_.ok()) return;
    try {
      const std::int64_t v = harness::parse_integer(text);
      if (v >= least && v <= most) {
        value = static_cast<T>(v);
        return;
      }
    } catch (const harness::CaseError&) {
    }
    fail(option, text, fmt::format("an integer from {} to {} (4k, 3M, 2G are powers of 1024)", least, most));
  }

  // Above zero.
  void real(const char* option, const std::string& text, double& value) {
    if (text.empty() || !status_.ok()) return;
    double v = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
    if (error == std::errc() && end == text.data() + text.size() && std::isfinite(v) && v > 0 && v <= 1e12) {
      value = v;
    } else {
      fail(option, text, "a number above 0");
    }
  }

  void bytes(const char* option, const std::string& text, std::int64_t& value) {
    std::string number = text;
    if (number.ends_with("iB")) {
      number.resize(number.size() - 2);
    } else if (number.ends_with('B')) {
      fail(option, text, "bytes as in 4G or 512MiB (powers of 1024)");
      return;
    }
    integer(option, number, value, 0, std::int64_t{1} << 50);
  }

  void verify(const std::string& text, VerifyShare& share) {
    if (text.empty() || !status_.ok()) return;
    if (text == "all") {
      share.all = true;
      return;
    }
    percentage("--verify", text, share.percent, "'all' or a percentage");
  }

  void percentage(const char* option, const std::string& text, double& value,
                  const char* expected = "a percentage") {
    if (text.empty() || !status_.ok()) return;
    std::string number = text;
    if (number.ends_with('%')) number.pop_back();
    double v = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), v);
    if (error == std::errc() && end == number.data() + number.size() && v >= 0 && v <= 100) {
      value = v;
    } else {
      fail(option, text, fmt::format("{} from 0 to 100, as in 5%", expected));
    }
  }

  void fail(const char* option, const std::string& text, const std::string& allowed) {
    refuse(fmt::format("{}: '{}', expected {}", option, text, allowed));
  }
  void refuse(std::string message) {
    if (status_.ok()) status_ = Status(StatusCode::kInvalidArgument, std::move(message));
  }
  void absorb(const Status& status) {
    if (!status.ok()) refuse(status.message());
  }

  bool ok() const { return status_.ok(); }
  Status take() { return std::move(status_); }

 private:
  Status status_;
};

}  // namespace

Result<Options> parse_options(const OptionTexts& texts) {
  constexpr std::int64_t kMany = std::int64_t{1} << 30;
  Options o;
  Parser p;
  if (!texts.model.empty()) o.model = texts.model;
  const Result<Model> model = find_model(o.model);
  if (!model.ok()) return model.status();
  const bool mla = model->mla;
  // The default tp is for the default model; others start with what they have.
  if (texts.tp.empty() && !mla && model->kv_heads % o.tp != 0) o.tp = model->kv_heads;
  if (texts.tp.empty() && mla) o.tp = 1;
  p.integer("--tp", texts.tp, o.tp, 1, 1024);
  if (!p.ok()) return p.take();
  const Result<Shard> part = shard(model.value(), o.tp);
  if (!part.ok()) return part.status();

  p.integer("--layers", texts.layers, o.layers, 1, model->layers);
  p.integer("--block", texts.block, o.block, 1, 65536);
  p.integer("--max-running", texts.max_running, o.max_running, 1, 65536);
  p.integer("--chunk", texts.chunk, o.chunk, 1, 1 << 24);
  p.integer("--requests", texts.requests, o.requests, 1, kMany);
  p.integer("--seed", texts.seed, o.seed, 0, INT64_MAX);
  p.integer("--threads", texts.threads, o.threads, 1, 4096);
  p.real("--speed", texts.speed, o.speed);
  p.real("--step-ms", texts.step_ms, o.step_ms);
  p.real("--link-gbps", texts.link_gbps, o.link_gbps);
  p.verify(texts.verify, o.verify);

  const auto pool = [&](const char* tokens_option, const std::string& tokens_text, const char* bytes_option,
                        const std::string& bytes_text, std::int64_t least, std::int64_t& tokens) {
    if (!tokens_text.empty() && !bytes_text.empty()) {
      p.refuse(fmt::format("{} and {}: '{}' and '{}', expected one of the two", tokens_option, bytes_option,
                           tokens_text, bytes_text));
    }
    p.integer(tokens_option, tokens_text, tokens, least, kMaxPoolTokens);
    if (bytes_text.empty() || !p.ok()) return;
    std::int64_t bytes = 0;
    p.bytes(bytes_option, bytes_text, bytes);
    if (!p.ok()) return;
    const std::int64_t token_bytes = part->token_layer_bytes() * o.layers;
    tokens = bytes / token_bytes;
    if (tokens < least || tokens > kMaxPoolTokens) {
      p.fail(bytes_option, bytes_text,
             fmt::format("room for {} to {} tokens of {} bytes (--layers {}, --tp {})", least, kMaxPoolTokens,
                         token_bytes, o.layers, o.tp));
    }
  };
  p.integer("--select", texts.select, o.select, 1, kMostSelected);
  p.percentage("--overlap", texts.overlap, o.overlap);
  const auto given = [&](const char* option, const std::string& text, bool with_select, const char* why) {
    if (text.empty() || with_select == (o.select > 0)) return;
    p.refuse(fmt::format("{}: '{}' {} --select, expected {}", option, text, with_select ? "without" : "with",
                         why));
  };
  const char* pools = "--host-tokens or --host-bytes: the whole cache is on the host tier then";
  given("--device-tokens", texts.device_tokens, false, pools);
  given("--device-bytes", texts.device_bytes, false, pools);
  given("--overlap", texts.overlap, true, "both: it says which tokens decode selects");
  given("--topk", texts.topk, true, "both: it says which tokens decode selects");
  if (!texts.overlap.empty() && !texts.topk.empty()) {
    p.refuse(fmt::format("--overlap and --topk: '{}' and '{}', expected one of the two", texts.overlap,
                         texts.topk));
  }
  pool("--device-tokens", texts.device_tokens, "--device-bytes", texts.device_bytes, o.block,
       o.device_tokens);
  pool("--host-tokens", texts.host_tokens, "--host-bytes", texts.host_bytes, o.select > 0 ? o.block : 0,
       o.host_tokens);

  o.trace = texts.trace;
  o.topk = texts.topk;
  o.implementation = texts.impl;
  const auto file = [](const std::string& text, std::string& value) {
    if (!text.empty()) value = text == "none" ? "" : text;
  };
  file(texts.json, o.json);
  file(texts.html, o.html);
  if (!o.json.empty() && o.json == o.html) {
    p.refuse(fmt::format("--json and --html: '{}' twice, expected two files", o.json));
  }
  if (!p.ok()) return p.take();
  return o;
}

}  // namespace kvferry::replay
