# SPDX-License-Identifier: Apache-2.0
"""A DLPack producer in pure Python: every field of the struct is ours to get wrong."""

from __future__ import annotations

import ctypes
from typing import Any

INT, UINT, FLOAT, OPAQUE, BFLOAT, COMPLEX, BOOL = range(7)
FLOAT8_E4M3FN, FLOAT8_E5M2, FLOAT8_E4M3, FLOAT4_E2M1FN = 10, 12, 8, 17
CPU, CUDA = 1, 2
READ_ONLY = 1

_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Managed(ctypes.Structure):
    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", _DELETER))


class ManagedVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


# Destructors get capsules that die: addresses, never objects.
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Destructor)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_NAMES = {True: b"dltensor_versioned", False: b"dltensor"}


def _destructor(versioned: bool) -> Any:
    struct = ManagedVersioned if versioned else Managed

    def destroy(dying: int) -> None:
        if not _valid(dying, _NAMES[versioned]):
            return  # taken
        managed = struct.from_address(_pointer(dying, _NAMES[versioned]))
        if managed.deleter:
            managed.deleter(ctypes.addressof(managed))

    return _Destructor(destroy)


_DESTRUCTORS = {versioned: _destructor(versioned) for versioned in (True, False)}

_CODES = {"i": INT, "u": UINT, "f": FLOAT, "b": BOOL, "c": COMPLEX}


class Producer:
    """Exports `array` unless told otherwise: keywords that are fields of the struct replace what it says.

    Its capsules do what those of frameworks do: one that nobody took calls the deleter when it dies.

    exported, deleted    how many capsules there were, how often deleters ran
    """

    def __init__(
        self, array: Any, *, versioned: bool = True, takes_max_version: bool = True, **fields: Any
    ) -> None:
        self.array, self.versioned, self.takes_max_version, self.fields = (
            array,
            versioned,
            takes_max_version,
            fields,
        )
        self.exported = self.deleted = 0
        self._alive: list[Any] = []  # what capsules point at

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.fields.get("device_type", CPU), self.fields.get("device_id", 0)

    def __dlpack__(self, *, stream: Any = None, **keywords: Any) -> Any:
        if keywords and not self.takes_max_version:
            raise TypeError(f"__dlpack__() got an unexpected keyword argument {next(iter(keywords))!r}")
        managed = ManagedVersioned() if self.versioned else Managed()
        self._describe(managed.tensor)
        if self.versioned:
            managed.major, managed.minor = self.fields.get("version", (1, 0))
            managed.flags = self.fields.get("flags", 0)
        if self.fields.get("deleter", True):
            managed.deleter = _DELETER(self._count)
        self._alive.append(managed)
        self.exported += 1
        name = _NAMES[self.versioned]
        return _new(ctypes.addressof(managed), name, _DESTRUCTORS[self.versioned])

    def _describe(self, tensor: DLTensor) -> None:
        array, fields = self.array, self.fields
        shape = fields.get("shape", array.shape)
        strides = fields.get("strides", [s // array.itemsize for s in array.strides])
        tensor.data = fields.get("data", array.ctypes.data)
        tensor.device_type, tensor.device_id = self.__dlpack_device__()
        tensor.ndim = fields.get("ndim", len(shape))
        tensor.code = fields.get("code", _CODES.get(array.dtype.kind, OPAQUE))
        tensor.bits, tensor.lanes = fields.get("bits", array.itemsize * 8), fields.get("lanes", 1)
        tensor.shape = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        tensor.strides = None if strides is None else (ctypes.c_int64 * max(len(strides), 1))(*strides)
        tensor.byte_offset = fields.get("byte_offset", 0)

    def _count(self, _: Any) -> None:
        self.deleted += 1


_foreign_names: list[bytes] = []  # a capsule points to its name


def capsule(name: bytes, address: int = 1) -> Any:
    """A capsule that is none of DLPack's."""
    _foreign_names.append(name)
    return _new(address, name, _Destructor())
