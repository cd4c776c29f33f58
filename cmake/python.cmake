# SPDX-License-Identifier: Apache-2.0
# KVFERRY_BUILD_PYTHON=AUTO, of the presets: with the interpreter of .venv, which `make setup` makes, or not at all.
if(KVFERRY_BUILD_PYTHON STREQUAL "AUTO")
  set(Python_EXECUTABLE ${PROJECT_SOURCE_DIR}/.venv/bin/python)
  execute_process(COMMAND ${Python_EXECUTABLE} -c "import nanobind, pytest" RESULT_VARIABLE missing OUTPUT_QUIET
                  ERROR_QUIET)
  if(missing)
    message(STATUS "The Python package and its tests are left out: no .venv with nanobind and pytest (make setup)")
    set(KVFERRY_BUILD_PYTHON OFF)
  endif()
endif()
