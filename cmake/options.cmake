# SPDX-License-Identifier: Apache-2.0
# What every target of the project is compiled with. Nothing here reaches a user's targets.

add_library(kvferry_options INTERFACE)
target_compile_features(kvferry_options INTERFACE cxx_std_20)

# As a subproject the warnings would be noise in somebody else's build.
if(PROJECT_IS_TOP_LEVEL)
  # Designated initialisers leave out, on purpose, what keeps its default.
  target_compile_options(
    kvferry_options INTERFACE -Wall -Wextra -Wno-missing-field-initializers -Wpedantic -Wshadow -Wconversion
                              -Wsign-conversion "$<$<COMPILE_LANGUAGE:CXX>:-Wold-style-cast;-Wnon-virtual-dtor>")

  if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
    find_program(CCACHE_PROGRAM ccache)
    mark_as_advanced(CCACHE_PROGRAM)
    if(CCACHE_PROGRAM)
      set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
    endif()
  endif()
endif()

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
