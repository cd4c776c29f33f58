// SPDX-License-Identifier: Apache-2.0
#include "tensors.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "dlpack.hpp"
#include "errors.hpp"

namespace kvferry::python {

// What is known of a type.
struct Kind {
  enum Source { kNone, kExchange, kNumpy, kDlpack } source = kNone;
  const dlpack::ExchangeApi* api = nullptr;
  bool torch = false;
  bool jax = false;
  bool cupy = false;
};

namespace {

struct DTypeRow {
  std::uint8_t code;
  std::uint8_t bits;
  DType dtype;
};
constexpr DTypeRow kDTypes[] = {
    {dlpack::kFloat, 16, DType::kFloat16},
    {dlpack::kBFloat, 16, DType::kBFloat16},
    {dlpack::kInt, 32, DType::kInt32},
    {dlpack::kInt, 64, DType::kInt64},
    {dlpack::kFloat, 32, DType::kFloat32},
    {dlpack::kInt, 8, DType::kInt8},
    {dlpack::kUInt, 8, DType::kUInt8},
    {dlpack::kInt, 16, DType::kInt16},
    {dlpack::kUInt, 16, DType::kUInt16},
    {dlpack::kUInt, 32, DType::kUInt32},
    {dlpack::kUInt, 64, DType::kUInt64},
    {dlpack::kFloat8E5M2, 8, DType::kFloat8E5M2},
    {dlpack::kFloat8E4M3FN, 8, DType::kFloat8E4M3FN},
};

struct Subject {
  const char* op;
  TensorName tensor;
  bool on_cuda = false;  // the call
};

template <class... Values>
[[noreturn]] void refuse(PyObject* type, const Subject& subject, fmt::format_string<Values...> text,
                         Values&&... values) {
  raise(type, "{}: {}: {}", subject.op, subject.tensor.text(),
        fmt::format(text, std::forward<Values>(values)...));
}

// The pending Python error, with the tensor's name in front. Only its first line: frameworks append C++
// stack traces.
[[noreturn]] void refuse_by_producer(const Subject& subject, nb::python_error& error) {
  // No fault of the tensor: KeyboardInterrupt, say.
  if (!error.matches(PyExc_Exception) || error.matches(PyExc_MemoryError)) throw nb::python_error(error);
  std::string text = nb::str(error.value()).c_str();
  text = text.substr(0, text.find('\n'));
  try {
    refuse(PyExc_ValueError, subject, "{} gives no memory: {}", nb::type_name(error.type()).c_str(), text);
  } catch (nb::python_error& named) {
    PyException_SetCause(named.value().ptr(), Py_NewRef(error.value().ptr()));
    throw;
  }
}

// The last few keys (types, NumPy dtypes) and what is known about them. Holds the keys: an address cannot
// come to mean something else. Used with the GIL.
template <class Value>
class Recent {
 public:
  template <class Make>
  Value find(PyObject* key, Make make) {
    for (const Row& row : rows_) {
      if (row.key == key) return row.value;
    }
    const Value value = make();
    Row& row = rows_[next_++ % rows_.size()];
    PyObject* old = row.key;
    row = {Py_NewRef(key), value};
    Py_XDECREF(old);
    return value;
  }

 private:
  struct Row {
    PyObject* key = nullptr;
    Value value{};
  };
  std::array<Row, 16> rows_{};
  std::size_t next_ = 0;
};

const dlpack::ExchangeApi* exchange_api(nb::handle type) {
  const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return nullptr;
  auto* api =
      static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (api != nullptr && api->version.major != dlpack::kMajor) api = api->older;
  return api != nullptr && api->borrow != nullptr ? api : nullptr;
}

bool is_from(nb::handle type, std::string_view package) {
  for (const nb::handle base : type.attr("__mro__")) {
    const nb::object module = nb::getattr(base, "__module__", nb::none());
    if (!nb::isinstance<nb::str>(module)) continue;
    const std::string_view name = nb::borrow<nb::str>(module).c_str();
    if (name.substr(0, name.find('.')) == package) return true;
  }
  return false;
}

bool is_numpy(nb::handle type) {
  // Not imported here: who has an array has the module.
  const nb::object numpy = nb::steal(PyImport_GetModule(nb::str("numpy").ptr()));
  if (!numpy.is_valid()) return false;
  return PyObject_IsSubclass(type.ptr(), numpy.attr("ndarray").ptr()) == 1;
}

Kind kind_of(nb::handle object) {
  static Recent<Kind> kinds;
  const nb::handle type = object.type();
  return kinds.find(type.ptr(), [&] {
    Kind kind;
    if (is_numpy(type)) {
      kind.source = Kind::kNumpy;
      return kind;
    }
    kind.torch = is_from(type, "torch");
    kind.jax = is_from(type, "jaxlib") || is_from(type, "jax");
    kind.cupy = is_from(type, "cupy");
    // A borrowed tensor does not tell that it is immutable, nor waits for its values.
    if (!kind.jax) kind.api = exchange_api(type);
    kind.source = kind.api != nullptr               ? Kind::kExchange
                  : nb::hasattr(type, "__dlpack__") ? Kind::kDlpack
                                                    : Kind::kNone;
    return kind;
  });
}

std::string name_of(const dlpack::DataType& dtype) {
  static constexpr const char* kNames[] = {"int", "uint", "float", nullptr, "bfloat", "complex", "bool"};
  const char* name = dtype.code < std::size(kNames) ? kNames[dtype.code] : nullptr;
  if (dtype.lanes == 1 && dtype.code == dlpack::kBool) return "bool";
  if (dtype.lanes == 1 && name != nullptr) return fmt::format("{}{}", name, dtype.bits);
  return fmt::format("of DLPack code {}, {} bits, {} lanes", dtype.code, dtype.bits, dtype.lanes);
}

DType dtype_of(const Subject& subject, const dlpack::DataType& dtype) {
  for (const DTypeRow& row : kDTypes) {
    if (row.code == dtype.code && row.bits == dtype.bits && dtype.lanes == 1) return row.dtype;
  }
  refuse(PyExc_ValueError, subject, "dtype is {}, expected one of {}", name_of(dtype), kDTypeNames);
}

void check_rank(const Subject& subject, int rank) {
  if (rank < 0 || rank > kMaxRank)
    refuse(PyExc_ValueError, subject, "{} dimensions, expected at most {}", rank, kMaxRank);
}

Device device_of(const Subject& subject, const dlpack::Device& device) {
  switch (device.type) {
    case dlpack::kCpu:
      return {};
    case dlpack::kCudaHost:
      // One kind of memory for all devices, and to the CPU it is memory.
      return subject.on_cuda ? Device{DeviceType::kCudaHost, 0} : Device();
    case dlpack::kCuda:
      return {DeviceType::kCuda, device.index};
    case dlpack::kCudaManaged:
      return {DeviceType::kCudaManaged, device.index};
    default:
      refuse(PyExc_RuntimeError, subject, "on a device of DLPack type {}, expected CPU or CUDA", device.type);
  }
}

TensorView view_of(const Subject& subject, const dlpack::Tensor& tensor) {
  check_rank(subject, tensor.rank);
  const std::span shape(tensor.shape, static_cast<std::size_t>(tensor.rank));
  // The offset goes into the pointer, so one plan serves slices at any place.
  void* data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  TensorView view = contiguous(data, dtype_of(subject, tensor.dtype), shape);
  if (tensor.strides != nullptr) std::copy_n(tensor.strides, shape.size(), view.strides.begin());
  view.device = device_of(subject, tensor.device);
  return view;
}

bool flag_of(nb::handle object, const char* name) {
  return nb::cast<bool>(nb::bool_(nb::getattr(object, name, nb::bool_(false))));
}

// What torch's memory does not tell.
void check_torch(const Subject& subject, nb::handle object, const TensorView& view, Access access) {
  // Autograd would not know of the write.
  if (access == Access::kWrite && flag_of(object, "requires_grad"))
    refuse(PyExc_ValueError, subject,
           "is written and requires grad; pass {}.detach(), which shares its memory", subject.tensor.text());
  // The imaginary part of a conjugated tensor has the wrong sign in memory; it takes every second element.
  bool maybe_imaginary = view.dtype == DType::kFloat32 || view.dtype == DType::kFloat16;
  for (int axis = 0; maybe_imaginary && axis < view.rank; ++axis)
    maybe_imaginary = view.dim(axis) <= 1 || view.stride(axis) % 2 == 0;
  if (maybe_imaginary && nb::cast<bool>(object.attr("is_neg")()))
    refuse(PyExc_ValueError, subject, "has its negative bit set; pass {}.resolve_neg()",
           subject.tensor.text());
}

// Torch's DLPack does not tell whether memory of the host is pinned.
void pin(const Subject& subject, nb::handle object, TensorView& view) {
  if (subject.on_cuda && view.device == Device() && nb::cast<bool>(object.attr("is_pinned")()))
    view.device = {DeviceType::kCudaHost, 0};
}

TensorView view_of_exchange(const Subject& subject, nb::handle object, const Kind& kind, Access access) {
  dlpack::Tensor tensor;
  if (kind.api->borrow(object.ptr(), &tensor) != 0) {
    nb::python_error error;
    refuse_by_producer(subject, error);
  }
  TensorView view = view_of(subject, tensor);
  if (kind.torch) {
    check_torch(subject, object, view, access);
    pin(subject, object, view);
  }
  return view;
}

// The head of NumPy's PyArrayObject and PyArray_Descr. Every extension compiled against NumPy reads these
// members in place, so they are part of its ABI.
struct NumpyArray {
  PyObject head;
  char* data;
  int rank;
  Py_ssize_t* shape;
  Py_ssize_t* strides;  // bytes
  PyObject* base;
  PyObject* dtype;
  int flags;
};
constexpr int kNumpyWriteable = 0x400;

std::optional<DType> numpy_dtype(PyObject* dtype) {
  static Recent<std::optional<DType>> dtypes;
  return dtypes.find(dtype, [&]() -> std::optional<DType> {
    const nb::handle object(dtype);
    if (!nb::cast<bool>(object.attr("isnative"))) return {};
    return dtype_named(nb::cast<nb::str>(object.attr("name")).c_str());
  });
}

TensorView view_of_numpy(const Subject& subject, nb::handle object, Access access) {
  const auto& array = *reinterpret_cast<const NumpyArray*>(object.ptr());
  const std::optional<DType> dtype = numpy_dtype(array.dtype);
  if (!dtype)
    refuse(PyExc_ValueError, subject, "dtype is {}, expected one of {}", nb::repr(array.dtype).c_str(),
           kDTypeNames);
  if (access == Access::kWrite && (array.flags & kNumpyWriteable) == 0)
    refuse(PyExc_ValueError, subject, "is written and the array is read-only; pass a writable one");
  check_rank(subject, array.rank);
  const auto rank = static_cast<std::size_t>(array.rank);
  const Py_ssize_t size = size_of(*dtype);
  TensorView view;
  view.data = array.data;
  view.dtype = *dtype;
  view.rank = array.rank;
  for (std::size_t axis = 0; axis < rank; ++axis) {
    view.shape[axis] = array.shape[axis];
    view.strides[axis] = array.strides[axis] / size;
    if (array.strides[axis] % size != 0 && array.shape[axis] > 1)
      refuse(PyExc_ValueError, subject, "strides are ({}) bytes, expected multiples of the {} of an element",
             fmt::join(std::span(array.strides, rank), ", "), size);
  }
  return view;
}

// `stream`: null for memory of the host.
nb::object export_capsule(nb::handle object, nb::handle stream) {
  const nb::object method = object.attr("__dlpack__");
  const nb::object version = nb::make_tuple(dlpack::kMajor, 0);
  try {
    if (stream.is_valid()) return method(nb::arg("stream") = stream, nb::arg("max_version") = version);
    return method(nb::arg("max_version") = version);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  // A producer from before DLPack 1.0.
  return stream.is_valid() ? method(nb::arg("stream") = stream) : method();
}

bool is_device_memory(Device device) {
  return device.type == DeviceType::kCuda || device.type == DeviceType::kCudaManaged;
}

nb::object streams_module() {
  return nb::module_::import_("kvferry._cuda_streams");
}

// That the tensor's framework launches on. Nothing if it has none.
std::optional<void*> current_stream(const Kind& kind, std::int32_t device) {
  if (kind.api != nullptr && kind.api->current_stream != nullptr) {
    void* stream = nullptr;
    if (kind.api->current_stream(dlpack::kCuda, device, &stream) != 0) throw nb::python_error();
    return stream;
  }
  if (!kind.torch && !kind.cupy) return {};
  const nb::object address = streams_module().attr(kind.torch ? "torch_stream" : "cupy_stream")(device);
  void* const stream = PyLong_AsVoidPtr(address.ptr());
  if (stream == nullptr && PyErr_Occurred() != nullptr) throw nb::python_error();
  return stream;
}

TensorView view_of_capsule(const Subject& subject, nb::handle capsule, Access access) {
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    return view_of(
        subject,
        static_cast<const dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))->tensor);
  }
  if (!PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned"))
    refuse(PyExc_ValueError, subject, "__dlpack__() returned {}, expected a capsule with a tensor",
           nb::repr(capsule).c_str());
  const auto& managed =
      *static_cast<const dlpack::VersionedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
  if (managed.version.major != dlpack::kMajor)
    refuse(PyExc_ValueError, subject, "__dlpack__() returned version {}.{}, expected {}",
           managed.version.major, managed.version.minor, dlpack::kMajor);
  if ((managed.flags & dlpack::kCopied) != 0)
    refuse(PyExc_ValueError, subject, "__dlpack__() returned a copy, expected the tensor's own memory");
  if (access == Access::kWrite && (managed.flags & dlpack::kReadOnly) != 0)
    refuse(PyExc_ValueError, subject, "is written and its memory is read-only; pass a writable tensor");
  return view_of(subject, managed.tensor);
}

}  // namespace

std::optional<DType> dtype_named(std::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (name == to_string(row.dtype)) return row.dtype;
  }
  return {};
}

dlpack::DataType dlpack_dtype(DType dtype) {
  const auto* const row = std::find_if(std::begin(kDTypes), std::end(kDTypes),
                                       [&](const DTypeRow& known) { return known.dtype == dtype; });
  return {row->code, row->bits, 1};
}

std::uintptr_t stream_number(void* stream) {
  return stream == nullptr ? 1 : reinterpret_cast<std::uintptr_t>(stream);
}

TensorView Intake::tensor(TensorName name, nb::handle object, Access access) {
  const Kind kind = kind_of(object);
  const TensorView seen = view(name, object, kind, access);
  if (context_ != nullptr && !on_cuda()) return seen;
  if (!is_device_memory(seen.device)) {
    early_ = early_ || !on_cuda();
    return seen;
  }
  if (!on_cuda()) {
    device_ = {DeviceType::kCuda, seen.device.index};
    device_tensor_ = name;
    early_ = early_ || kind.source == Kind::kDlpack;  // exported without a stream
  }
  if (seen.device.index == device_.index) follow(kind, device_.index);
  return seen;
}

void Intake::follow(const Kind& kind, std::int32_t device) {
  if (has_stream_ && (!kind.torch || kind.api == nullptr || torch_waited_for_)) return;
  const std::optional<void*> current = current_stream(kind, device);
  if (!current) return;
  if (!has_stream_) {
    stream_ = *current;
    has_stream_ = true;
    if (kind.api != nullptr && kind.api->allocate != nullptr) allocator_ = kind.api;
  } else if (stream_number(*current) != stream_number(stream_)) {
    // What was borrowed waits for nothing by itself.
    streams_module().attr("wait_for_torch")(device, reinterpret_cast<std::uintptr_t>(stream_));
    torch_waited_for_ = true;
  }
}

nb::object Intake::consumer_stream(TensorName name, nb::handle object, const Kind& kind) {
  // To ask all would cost calls on the CPU: without a context the first tensor on a device is exported twice.
  if (!on_cuda() && !kind.cupy) return {};
  const nb::object device = object.attr("__dlpack_device__")();
  const auto type = nb::cast<std::int32_t>(nb::int_(device[0]));
  const auto index = nb::cast<std::int32_t>(nb::int_(device[1]));
  if (type != dlpack::kCuda && type != dlpack::kCudaManaged) return {};
  if (!on_cuda()) {
    if (context_ != nullptr) return {};  // of the CPU: the library refuses the tensor
    device_ = {DeviceType::kCuda, index};
    device_tensor_ = name;
    follow(kind, index);
  }
  return nb::int_(stream_number(stream_));
}

ErrorRecord* Intake::record(nb::handle object) {
  if (object.is_none()) return nullptr;
  const char* const op = to_string(op_);
  if (nb::isinstance<ErrorRecord>(object)) {
    if (on_cuda())
      raise(PyExc_ValueError,
            "{}: error_record: is a kvferry.ErrorRecord, which is memory of the host; expected a tensor "
            "uint8 [40] "
            "or int64 [5] on {}, to be read by ErrorRecord.from_bytes()",
            op, to_string(device_));
    hold(object);
    return nb::cast<ErrorRecord*>(object);
  }
  if (!on_cuda())
    raise(PyExc_TypeError, "{}: error_record: {}, expected a kvferry.ErrorRecord", op,
          nb::inst_name(object).c_str());
  const TensorView view = tensor({"error_record"}, object, Access::kWrite);
  const bool fits = is_contiguous(view) && view.rank == 1 &&
                    ((view.dtype == DType::kUInt8 && view.dim(0) == sizeof(ErrorRecord)) ||
                     (view.dtype == DType::kInt64 && view.dim(0) == sizeof(ErrorRecord) / 8));
  if (!fits || reinterpret_cast<std::uintptr_t>(view.data) % alignof(ErrorRecord) != 0)
    raise(PyExc_ValueError,
          "{}: error_record: {} at {}, expected uint8 [40] or int64 [5], aligned to 8 bytes", op,
          to_string(view), fmt::ptr(view.data));
  if (!is_device_memory(view.device) || view.device.index != device_.index)
    raise(PyExc_ValueError, "{}: error_record: lives on device {}, expected {}", op, to_string(view.device),
          to_string(device_));
  return static_cast<ErrorRecord*>(view.data);
}

std::shared_ptr<void> Intake::device_memory(std::int64_t bytes) const {
  if (context_ != nullptr || allocator_ == nullptr || bytes == 0) return nullptr;
  dlpack::Tensor prototype{};
  prototype.device = {dlpack::kCuda, device_.index};
  prototype.rank = 1;
  prototype.dtype = {dlpack::kUInt, 8, 1};
  prototype.shape = &bytes;
  const std::int64_t dense = 1;
  prototype.strides = &dense;
  dlpack::VersionedTensor* made = nullptr;
  std::string reason = "no reason given";
  const auto set_reason = [](void* to, const char* kind, const char* message) {
    if (kind != nullptr && message != nullptr)
      *static_cast<std::string*>(to) = fmt::format("{}: {}", kind, message);
  };
  if (allocator_->allocate(&prototype, &made, &reason, set_reason) != 0) {
    PyErr_Clear();
    raise(PyExc_MemoryError, "{}: no {} bytes on {} for the workspace: {}", to_string(op_), bytes,
          to_string(device_), reason);
  }
  const std::shared_ptr<dlpack::VersionedTensor> owner(made, [](dlpack::VersionedTensor* tensor) {
    if (tensor->deleter != nullptr) tensor->deleter(tensor);
  });
  return {owner, static_cast<std::byte*>(made->tensor.data) + made->tensor.byte_offset};
}

void Intake::raise_unless_ok(const Status& status) const {
  if (status.code() == StatusCode::kUnavailable && context_ == nullptr && device_ != Device())
    refuse(PyExc_RuntimeError, {to_string(op_), device_tensor_}, "lives on device cuda:{}: {}", device_.index,
           status.message());
  kvferry::python::raise_unless_ok(status);
}

TensorView Intake::view(TensorName name, nb::handle object, const Kind& kind, Access access) {
  const Subject subject{to_string(op_), name, on_cuda()};
  hold(object);
  if (kind.source == Kind::kExchange) return view_of_exchange(subject, object, kind, access);
  if (kind.source == Kind::kNumpy) return view_of_numpy(subject, object, access);
  if (kind.source == Kind::kNone)
    refuse(PyExc_TypeError, subject,
           "{}, expected a tensor: a NumPy array or an object with __dlpack__ (torch, JAX, CuPy, ...)",
           nb::inst_name(object).c_str());
  if (kind.jax && access == Access::kWrite)
    refuse(PyExc_ValueError, subject,
           "is written and JAX arrays are immutable; use kvferry.{}_functional, which returns new arrays",
           subject.op);

  nb::object exported = nb::borrow(object);
  std::optional<DType> dtype;
  try {
    if (kind.torch) {
      // An older torch exports neither float8 nor what requires grad: bytes of the same memory, detached.
      const nb::object torch_dtype = object.attr("dtype");
      const nb::str dtype_text(nb::handle(torch_dtype.ptr()));
      dtype = dtype_named(std::string_view(dtype_text.c_str()).substr(std::string_view("torch.").size()));
      if (flag_of(object, "requires_grad")) exported = exported.attr("detach")();
      if (dtype == DType::kFloat8E5M2 || dtype == DType::kFloat8E4M3FN)
        exported = exported.attr("view")(nb::module_::import_("torch").attr("uint8"));
    }
    if (kind.jax) exported.attr("block_until_ready")();
    const nb::object stream = consumer_stream(name, exported, kind);
    exported = export_capsule(exported, stream);
  } catch (nb::python_error& error) {
    refuse_by_producer(subject, error);
  }
  TensorView view = view_of_capsule(subject, exported, access);
  if (dtype) view.dtype = *dtype;
  if (kind.torch) {
    check_torch(subject, object, view, access);
    pin(subject, object, view);
  }
  keep(std::move(exported));
  return view;
}

std::vector<TensorView> Intake::list(const char* name, nb::handle objects, Access access) {
  if (!PySequence_Check(objects.ptr()) || kind_of(objects).source != Kind::kNone)
    raise(PyExc_TypeError, "{}: {}: {}, expected a sequence of tensors, such as a list", to_string(op_), name,
          nb::inst_name(objects).c_str());
  // A list may change while the call runs without the GIL: the tuple holds what was seen.
  nb::object tuple = nb::steal(PySequence_Tuple(objects.ptr()));
  if (!tuple.is_valid()) throw nb::python_error();
  std::vector<TensorView> views;
  const Py_ssize_t size = PyTuple_GET_SIZE(tuple.ptr());
  views.reserve(static_cast<std::size_t>(size));
  for (Py_ssize_t i = 0; i < size; ++i)
    views.push_back(tensor({name, i}, PyTuple_GET_ITEM(tuple.ptr(), i), access));
  keep(std::move(tuple));
  return views;
}

}  // namespace kvferry::python
