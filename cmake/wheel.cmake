# SPDX-License-Identifier: Apache-2.0
# What the Python wheel holds besides python/kvferry: the extension, the library beside it, and the command line
# tool. Only scikit-build-core comes here.

# A wheel has no symbolic links: with a version in the name the library would be in it three times.
set_property(TARGET kvferry PROPERTY VERSION)
set_property(TARGET kvferry PROPERTY SOVERSION)
set_target_properties(_core PROPERTIES INSTALL_RPATH "$ORIGIN")

add_custom_target(kvferry_wheel DEPENDS _core kvferry kvferry_cli)
install(TARGETS _core kvferry LIBRARY DESTINATION kvferry COMPONENT wheel)
install(TARGETS kvferry_cli RUNTIME DESTINATION kvferry/bin COMPONENT wheel)
