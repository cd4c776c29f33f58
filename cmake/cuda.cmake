# SPDX-License-Identifier: Apache-2.0
# KVFERRY_HAVE_CUDA: whether the kernels are compiled for GPUs. Their tests on the CPU need no CUDA.

set(KVFERRY_CUDA AUTO CACHE STRING "Compile the CUDA kernels: ON, OFF, or AUTO, where nvcc is found")
set_property(CACHE KVFERRY_CUDA PROPERTY STRINGS AUTO ON OFF)
set(KVFERRY_HAVE_CUDA OFF)

if(NOT KVFERRY_CUDA STREQUAL OFF)
  find_program(KVFERRY_NVCC nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
  mark_as_advanced(KVFERRY_NVCC)
  if(KVFERRY_NVCC)
    set(KVFERRY_HAVE_CUDA ON)
    # Both before the language is enabled. The PTX of the last is for GPUs to come.
    set(CMAKE_CUDA_COMPILER ${KVFERRY_NVCC})
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100)
    endif()
    enable_language(CUDA)
  elseif(KVFERRY_CUDA STREQUAL ON OR "$ENV{KVFERRY_REQUIRE_CUDA}" STREQUAL 1)
    message(FATAL_ERROR "CUDA is required, and there is no nvcc in PATH, CUDA_HOME or /usr/local/cuda")
  else()
    message(STATUS "No nvcc: the CUDA kernels are not compiled")
  endif()
endif()
