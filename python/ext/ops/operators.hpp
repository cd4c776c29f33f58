// SPDX-License-Identifier: Apache-2.0
//
// One file an operator.
#pragma once

#include <nanobind/nanobind.h>

namespace kvferry::python {

void define_gather_pa_kv_cache(nanobind::module_& module);
void define_scatter_pa_kv_cache(nanobind::module_& module);
void define_gather_selection_kv_cache(nanobind::module_& module);
void define_group_memcpy(nanobind::module_& module);
void define_copy_blocks(nanobind::module_& module);
void define_swap_blocks(nanobind::module_& module);
void define_transfer_layers(nanobind::module_& module);
void define_gather_dequant(nanobind::module_& module);

}  // namespace kvferry::python
