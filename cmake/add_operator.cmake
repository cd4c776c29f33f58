# SPDX-License-Identifier: Apache-2.0

# add_operator(<name> [<more library sources>...])
#
# The operator of the folder src/ops/<name>: <name>_plan.cpp and <name>_cpu.cpp go into the library, the
# three *_cases.cpp into the harness, and <name>_test.cpp becomes a test.
function(add_operator name)
  set(prefix ${PROJECT_SOURCE_DIR}/src/ops/${name}/${name})
  target_sources(kvferry_objects PRIVATE ${prefix}_plan.cpp ${prefix}_cpu.cpp)
  if(EXISTS ${prefix}_cuda.cpp)
    target_sources(kvferry_objects PRIVATE ${prefix}_cuda.cpp)
  endif()
  foreach(source IN LISTS ARGN)
    target_sources(kvferry_objects PRIVATE ${PROJECT_SOURCE_DIR}/src/ops/${name}/${source})
  endforeach()
  # For the harness and the tests, which come later.
  set_property(GLOBAL APPEND PROPERTY KVFERRY_OPERATORS ${name})
  set_property(GLOBAL APPEND PROPERTY KVFERRY_CASES ${prefix}_cases.cpp ${prefix}_refusal_cases.cpp
                                                    ${prefix}_registered_cases.cpp)
endfunction()
