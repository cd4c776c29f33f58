// SPDX-License-Identifier: Apache-2.0
#include "bench/cuda/problem.hpp"

#include <cstring>

namespace kvferry::bench::gpu {

void require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw CudaError(std::string(what) + ": " + cudaGetErrorString(error));
}

void require(const Status& status) {
  if (status.ok()) return;
  if (status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kUnimplemented)
    throw Unavailable(status.message());
  throw std::runtime_error(status.message());
}

Buffer::Buffer(Kind kind, std::int64_t bytes) : kind_(kind), bytes_(bytes) {
  const std::size_t size = to_size(bytes > 0 ? bytes : 1);
  if (kind == Kind::kDevice) {
    require(cudaMalloc(&data_, size), "cudaMalloc");
  } else {
    require(cudaHostAlloc(&data_, size, cudaHostAllocMapped), "cudaHostAlloc");
  }
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  if (kind_ == Kind::kDevice) {
    cudaFree(data_);
  } else {
    cudaFreeHost(data_);
  }
}

std::vector<std::byte> download(const std::byte* from, std::int64_t bytes) {
  std::vector<std::byte> to(to_size(bytes));
  require(cudaMemcpy(to.data(), from, to.size(), cudaMemcpyDefault), "cudaMemcpy");
  return to;
}

const Buffer& host_pool() {
  static const Buffer pool = [] {
    Buffer buffer(Buffer::Kind::kPinned, kPoolBytes);
    Random random(11);
    for (std::int64_t i = 0; i < kPoolBytes; i += 8) {
      const std::uint64_t word = random.next();
      std::memcpy(buffer.data() + i, &word, 8);
    }
    return buffer;
  }();
  return pool;
}

Context Gpu::context() const {
  ContextOptions options;
  options.device = {DeviceType::kCuda, 0};
  options.cuda_stream = stream;
  return Context(options);
}

std::unique_ptr<Problem> make_problem(const Spec& spec, const Gpu& gpu) {
  const std::string& kind = spec.kind();
  if (kind == "gather" || kind == "scatter") return make_paged_problem(spec, gpu);
  if (kind == "copies") return make_copies_problem(spec, gpu);
  if (kind == "swap") return make_swap_problem(spec, gpu);
  if (kind == "selection") return make_selection_problem(spec, gpu);
  throw SpecError("no problem '" + kind + "'");
}

}  // namespace kvferry::bench::gpu
