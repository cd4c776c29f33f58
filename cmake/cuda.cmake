# SPDX-License-Identifier: Apache-2.0
# KVFERRY_HAVE_CUDA: whether the CUDA backend is built. The tests of its kernels on the CPU need no CUDA.

# As a subproject it would ask for a language that the project may not want.
set(default AUTO)
if(NOT PROJECT_IS_TOP_LEVEL)
  set(default OFF)
endif()
set(KVFERRY_CUDA ${default} CACHE STRING "Build the CUDA backend: ON, OFF, or AUTO, where nvcc is found")
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
    find_package(CUDAToolkit 12.8 REQUIRED)
  elseif(KVFERRY_CUDA STREQUAL ON OR "$ENV{KVFERRY_REQUIRE_CUDA}" STREQUAL 1)
    message(FATAL_ERROR "CUDA is required, and there is no nvcc in PATH, CUDA_HOME or /usr/local/cuda")
  else()
    message(STATUS "No nvcc: the CUDA backend is not built")
  endif()
endif()

# add_kernels(<target> <source>...): an object library of kernels. What ptxas says of registers goes beside each
# object, for a test to read.
function(add_kernels target)
  add_library(${target} OBJECT ${ARGN})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
  # -std as an option and no CUDA_STANDARD: CMake 3.25 does not know C++20 for CUDA.
  target_compile_options(${target} PRIVATE -std=c++20 -Xptxas=-v,-warn-spills -Werror=all-warnings
                                           -Xcompiler=-Wall,-Wextra)
  set(launcher ${PROJECT_SOURCE_DIR}/cmake/cuda_report.sh)
  if(CCACHE_PROGRAM)
    list(APPEND launcher ${CCACHE_PROGRAM})
  endif()
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON CUDA_VISIBILITY_PRESET hidden
                                             CUDA_COMPILER_LAUNCHER "${launcher}")
endfunction()
