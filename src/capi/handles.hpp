// SPDX-License-Identifier: Apache-2.0
//
// What the C API's handles hold, and how a function of it ends.
#pragma once

#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "kvferry/context.hpp"
#include "kvferry/kvferry.h"
#include "kvferry/memory.hpp"
#include "kvferry/plan.hpp"

struct kvferry_stream {
  kvferry::Stream stream;
};

struct kvferry_context {
  kvferry::Context context;
};

struct kvferry_pinned_buffer {
  kvferry::PinnedBuffer buffer;
};

struct kvferry_plan {
  explicit kvferry_plan(kvferry::Plan p) : plan(std::move(p)) {}

  kvferry::Plan plan;
  mutable std::once_flag described;
  mutable std::string description;
};

namespace kvferry::capi {

// The status as C's, its message kept for kvferry_last_error_message().
kvferry_status finish(Status status) noexcept;

// Runs `body`, which returns a Status, and lets no exception out.
template <class Body>
kvferry_status call(Body body) noexcept {
  try {
    return finish(body());
  } catch (const std::bad_alloc&) {
    return finish({StatusCode::kOutOfMemory, std::string()});
  } catch (const std::length_error&) {  // more than a container can count
    return finish({StatusCode::kOutOfMemory, std::string()});
  } catch (const std::exception& error) {  // the system refuses a thread
    return finish({StatusCode::kUnavailable, error.what()});
  }
}

}  // namespace kvferry::capi
