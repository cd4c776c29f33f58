// SPDX-License-Identifier: Apache-2.0
#include "acl_phase_one.hpp"

#include <fmt/format.h>

#include "acl_tensors.hpp"

namespace kvferry::acl {
namespace {

std::optional<DType> to_dtype(aclDataType dtype) noexcept {
  switch (dtype) {
    case ACL_FLOAT:
      return DType::kFloat32;
    case ACL_FLOAT16:
      return DType::kFloat16;
    case ACL_BF16:
      return DType::kBFloat16;
    case ACL_INT8:
      return DType::kInt8;
    case ACL_UINT8:
      return DType::kUInt8;
    case ACL_INT16:
      return DType::kInt16;
    case ACL_UINT16:
      return DType::kUInt16;
    case ACL_INT32:
      return DType::kInt32;
    case ACL_UINT32:
      return DType::kUInt32;
    case ACL_INT64:
      return DType::kInt64;
    case ACL_UINT64:
      return DType::kUInt64;
    case ACL_HIFLOAT8:
      return DType::kHiFloat8;
    case ACL_FLOAT8_E5M2:
      return DType::kFloat8E5M2;
    case ACL_FLOAT8_E4M3FN:
      return DType::kFloat8E4M3FN;
    default:
      return std::nullopt;
  }
}

// Formats whose memory is what dimensions and strides say. Callers name a rank rather than a layout:
// PyTorch's tensors of 4 dimensions come as NCHW.
bool is_plain(aclFormat format) noexcept {
  switch (format) {
    case ACL_FORMAT_ND:
    case ACL_FORMAT_NCHW:
    case ACL_FORMAT_NHWC:
    case ACL_FORMAT_HWCN:
    case ACL_FORMAT_NDHWC:
    case ACL_FORMAT_NCDHW:
    case ACL_FORMAT_NC:
    case ACL_FORMAT_NCL:
      return true;
    default:
      return false;
  }
}

// -1: unknown; nothing: no number.
std::optional<std::int64_t> storage_elements(const aclTensor& tensor) noexcept {
  if (tensor.storage_dims.empty()) return -1;
  std::int64_t count = 1;
  for (const std::int64_t n : tensor.storage_dims) {
    if (n < 0 || __builtin_mul_overflow(count, n, &count)) return std::nullopt;
  }
  return count;
}

}  // namespace

PhaseOne::PhaseOne(Operator op, std::uint64_t* workspace_size, aclOpExecutor** executor)
    : op_(op), workspace_size_(workspace_size), executor_(executor) {
  // A caller that overlooks the refusal holds nothing rather than garbage.
  if (workspace_size != nullptr) *workspace_size = 0;
  if (executor != nullptr) *executor = nullptr;
  if (workspace_size == nullptr) null("workspaceSize");
  if (executor == nullptr) null("executor");
}

TensorView PhaseOne::tensor(const char* name, const aclTensor* tensor, bool may_be_nz) {
  if (tensor == nullptr) null(name);
  return optional(name, tensor, may_be_nz).value_or(TensorView{});
}

std::optional<TensorView> PhaseOne::optional(const char* name, const aclTensor* tensor, bool may_be_nz) {
  const std::uint32_t bit = next_bit_;
  next_bit_ <<= 1;
  if (tensor == nullptr) return std::nullopt;
  present_ |= bit;
  return view(name, *tensor, may_be_nz);
}

void PhaseOne::unimplemented(const char* name, const aclTensor* tensor) {
  next_bit_ <<= 1;
  if (tensor != nullptr)
    refuse({StatusCode::kUnimplemented,
            fmt::format("{}: not null, expected null: its modes are not implemented", name)});
}

TensorView PhaseOne::view(const char* name, const aclTensor& tensor, bool may_be_nz) {
  const std::optional<DType> dtype = to_dtype(tensor.dtype);
  if (!dtype)
    refuse({StatusCode::kInvalidArgument, fmt::format("{}: dtype is aclDataType {}, which no operator takes",
                                                      name, static_cast<int>(tensor.dtype))});
  if (!is_plain(tensor.format) && !(may_be_nz && tensor.format == ACL_FORMAT_FRACTAL_NZ))
    refuse({StatusCode::kInvalidArgument,
            fmt::format("{}: format is aclFormat {}, expected ACL_FORMAT_ND (2){}", name,
                        static_cast<int>(tensor.format), may_be_nz ? " or ACL_FORMAT_FRACTAL_NZ (29)" : "")});
  const std::optional<std::int64_t> elements = storage_elements(tensor);
  if (!elements)
    refuse({StatusCode::kInvalidArgument,
            fmt::format("{}: storageDims are negative or their product overflows 64 bits", name)});
  TensorView made =
      strided(tensor.data, dtype.value_or(DType::kUInt8), tensor.dims, tensor.strides, tensor.offset);
  made.storage_elements = elements.value_or(-1);
  made.device = backend().place_of(tensor.data, device().id());
  return made;
}

void PhaseOne::null(const char* name) {
  nulls_ += fmt::format("{}{}", nulls_.empty() ? "" : ", ", name);
}

void PhaseOne::refuse(Status status) {
  if (refusal_.ok()) refusal_ = std::move(status);
}

int PhaseOne::failure() {
  if (!nulls_.empty())
    return fail(ACLNN_ERR_PARAM_NULLPTR,
                fmt::format("{}: null, expected not to be: {}", to_string(op_), nulls_));
  if (refusal_.ok()) return ACLNN_SUCCESS;
  return fail(aclnn_code(refusal_.code()), fmt::format("{}: {}", to_string(op_), refusal_.message()));
}

int PhaseOne::fail_profile(Profile profile, const std::string& why) const {
  return fail(ACLNN_ERR_PARAM_INVALID,
              fmt::format("{}: profile {} does not take {} (KVFERRY_ACL_PROFILE, aclKvferrySetProfile)",
                          to_string(op_), profile == Profile::kA2 ? "a2" : "950", why));
}

}  // namespace kvferry::acl
