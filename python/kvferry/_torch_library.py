# SPDX-License-Identifier: Apache-2.0
"""How kvferry.torch and kvferry.compat register operators with PyTorch.

An operator of PyTorch's `Library` that does nothing costs 2 us a call; ours cost 3 to 7 over the function of
kvferry, by the number of arguments. One of its `custom_op` costs 20.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch import library as torch_library
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

_is_grad_enabled = torch.is_grad_enabled
# Every operator takes any strides: the compiler copies nothing to restore those of eager mode.
_TAGS = (torch.Tag.flexible_layout,)
_increment_version: Callable[[Iterable[Tensor]], None] = torch._C._increment_version


class Operators:
    """Operators of one namespace. They live as long as this object."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._library = torch_library.Library(namespace, "FRAGMENT")  # type: ignore[no-untyped-call]
        self._impl: Callable[..., None] = self._library.impl

    def define(
        self,
        schema: str,
        run: Callable[..., Any],
        *,
        fake: Callable[..., Any] | None = None,
        effect: bool = False,
    ) -> None:
        """Defines an operator whose kernel on the CPU and on CUDA devices is `run`; other devices are refused.

        `fake` makes the results' shapes; without it there are no results. `effect` is for what writes memory
        that the schema does not name: it is never removed, and keeps its place among its like.
        """
        self._library.define(schema, tags=_TAGS)  # type: ignore[no-untyped-call]
        operator = self._overload(schema[: schema.index("(")])
        parsed = operator._schema

        def refuse(*args: Any, **kwargs: Any) -> None:
            _refuse_devices(parsed, args, kwargs)

        def fake_kernel(*args: Any, **kwargs: Any) -> Any:
            _refuse_devices(parsed, args, kwargs)
            _refuse_grad(parsed, args, kwargs)
            return None if fake is None else fake(*args, **kwargs)

        self.implement(operator, run, ("CPU", "CUDA"))
        self._impl(operator, torch_library.fallthrough_kernel, "Autograd")  # the kernel looks itself
        self._impl(operator, refuse, "CompositeExplicitAutograd")
        torch_library.register_fake(operator, fake_kernel, lib=self._library)
        if effect:
            _register_effectful_op(operator, _EffectType.ORDERED)

    def implement(
        self, operator: torch._ops.OpOverload, run: Callable[..., Any], keys: Iterable[str]
    ) -> None:
        """Gives a defined operator its kernels for these dispatch keys."""
        schema = operator._schema
        written = [(i, a) for i, a in enumerate(schema.arguments) if a.alias_info and a.alias_info.is_write]
        placed = [i for i, a in written if not a.kwarg_only]
        named = [a.name for _, a in written if a.kwarg_only]
        # Tensors and None alone: most calls are here, and short.
        types = {str(a.type) for a in schema.arguments if not a.kwarg_only}
        plain = types <= {"Tensor", "Optional[Tensor]"}

        def kernel(*args: Any, **kwargs: Any) -> Any:
            if _is_grad_enabled():
                for tensor in args if plain else _tensors(args):  # tensors among the options are of integers
                    if tensor is not None and tensor.requires_grad:
                        _refuse_grad(schema, args, kwargs)
            result = run(*args, **kwargs)
            # A backward pass may not use what it saved before this.
            outputs = [args[i] for i in placed]
            if named:
                outputs += [kwargs.get(name) for name in named]
            _bump([tensor for tensor in outputs if tensor is not None] if plain else _tensors(outputs))
            return result

        def cuda_kernel(*args: Any, **kwargs: Any) -> Any:
            # The function of kvferry takes torch's current stream of the tensors' device, and torch's allocator.
            with torch.cuda.device(_cuda_device(args, kwargs)):
                return kernel(*args, **kwargs)

        for key in keys:
            self._impl(operator, cuda_kernel if key == "CUDA" else kernel, key)

    def defined(self, name: str) -> bool:
        """Whether somebody has defined the operator, with any overload."""
        return hasattr(getattr(torch.ops, self.namespace), name)

    def _overload(self, name: str) -> torch._ops.OpOverload:
        packet, _, overload = name.partition(".")
        namespace = getattr(torch.ops, self.namespace)
        found: torch._ops.OpOverload = getattr(getattr(namespace, packet), overload or "default")
        return found


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(_tensors(value))
    return found


def _cuda_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Of the first tensor that is on one: there may be pinned ones of the host before it."""
    for tensor in _tensors((*args, *kwargs.values())):
        if tensor.is_cuda:
            index: int = tensor.get_device()
            return index
    return -1  # none: torch takes it for the current one


def _bump(tensors: list[Tensor]) -> None:
    try:
        _increment_version(tensors)
    except RuntimeError:  # tensors made in inference mode have no version
        _increment_version([tensor for tensor in tensors if not tensor.is_inference()])


def _named_tensors(
    schema: torch._C.FunctionSchema, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, Tensor]]:
    for name, value in [*zip((a.name for a in schema.arguments), args, strict=False), *kwargs.items()]:
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, (list, tuple)):
            yield from ((f"{name}[{i}]", item) for i, item in enumerate(value) if isinstance(item, Tensor))


def _refuse_devices(schema: torch._C.FunctionSchema, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    named = list(_named_tensors(schema, args, kwargs))
    meta = bool(named) and all(tensor.is_meta for _, tensor in named)  # shapes alone
    for name, tensor in named:
        if tensor.device.type not in ("cpu", "cuda") and not meta:
            raise NotImplementedError(f"{schema.name}: {name} is on {tensor.device}, expected cpu or cuda")
        if tensor.layout is not torch.strided:
            raise NotImplementedError(f"{schema.name}: {name} is {tensor.layout}, expected torch.strided")
        if tensor.is_quantized:
            raise NotImplementedError(f"{schema.name}: {name} is quantized, expected int_repr() of it")


def _refuse_grad(schema: torch._C.FunctionSchema, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    written = {a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write}
    for name, tensor in _named_tensors(schema, args, kwargs):
        if tensor.requires_grad and _is_grad_enabled():
            # What is written is refused without grad mode too, by the kernel.
            instead = "" if name.partition("[")[0] in written else "call it under torch.no_grad(), or "
            raise RuntimeError(
                f"{schema.name}: {name} requires grad, and the operator has no derivative: "
                f"{instead}pass {name}.detach()"
            )
