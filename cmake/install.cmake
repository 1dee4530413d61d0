# The sample package beside the executable, and what `cmake --install` puts where.
include(GNUInstallDirs)

# `bolt` without -m finds DIR/sample.bolt beside itself, then DIR/../share/bolt/sample.bolt. Made
# again when the packer or the checkpoint changes, not when the executable is linked again.
set(BOLT_SAMPLE "${PROJECT_BINARY_DIR}/sample.bolt")
file(GLOB sample_sources CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/testdata/sample-model/*.json
  ${PROJECT_SOURCE_DIR}/testdata/sample-model/*.jinja
  ${PROJECT_SOURCE_DIR}/testdata/sample-model/*.safetensors
  ${PROJECT_SOURCE_DIR}/testdata/sample-model/drafters/dspark/*)
add_custom_command(OUTPUT "${BOLT_SAMPLE}/package.json"
  # ninja makes the output's folder first, and convert replaces none that is no package.
  COMMAND ${CMAKE_COMMAND} -E rm -rf "${BOLT_SAMPLE}" "${BOLT_SAMPLE}.target"
  COMMAND bolt convert --quiet --receipts "${PROJECT_BINARY_DIR}/conversions"
          "${PROJECT_SOURCE_DIR}/testdata/sample-model" "${BOLT_SAMPLE}.target"
  COMMAND bolt convert --quiet --receipts "${PROJECT_BINARY_DIR}/conversions"
          "${PROJECT_SOURCE_DIR}/testdata/sample-model/drafters/dspark" "${BOLT_SAMPLE}"
          --drafter-for "${BOLT_SAMPLE}.target"
  COMMAND ${CMAKE_COMMAND} -E rm -rf "${BOLT_SAMPLE}.target" "${BOLT_SAMPLE}.target.bolt.jsonl"
  DEPENDS bolt_pack bolt_text ${sample_sources}
  COMMENT "Converting the sample model" VERBATIM)
add_custom_target(sample ALL DEPENDS "${BOLT_SAMPLE}/package.json")

install(TARGETS bolt RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY "${BOLT_SAMPLE}" DESTINATION ${CMAKE_INSTALL_DATADIR}/bolt)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/THIRD-PARTY.md
              ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/core/ops/arithmetic.md
  DESTINATION ${CMAKE_INSTALL_DOCDIR})
# The notices of what is linked in (THIRD-PARTY.md), as Debian ships them.
string(REGEX MATCH "^[0-9]+" gcc_major ${CMAKE_CXX_COMPILER_VERSION})
foreach(package libcli11-dev libfmt-dev libssl-dev libpcre2-dev libedit-dev libncurses-dev libbsd-dev
        libmd-dev libstdc++-${gcc_major}-dev libc6-dev)
  install(FILES /usr/share/doc/${package}/copyright RENAME ${package} OPTIONAL
    DESTINATION ${CMAKE_INSTALL_DOCDIR}/third-party)
endforeach()
install(FILES ${BOLT_DEPS_DIR}/simdjson/LICENSE RENAME simdjson
  DESTINATION ${CMAKE_INSTALL_DOCDIR}/third-party)
foreach(section 1 5)
  file(GLOB pages CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/man/*.${section})
  install(FILES ${pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section})
endforeach()

if(BOLT_TESTS)
  add_test(NAME install COMMAND ${CMAKE_COMMAND} -DBUILD=${PROJECT_BINARY_DIR}
    -DPREFIX=${PROJECT_BINARY_DIR}/install_test -DSTATIC=$<AND:$<BOOL:${BOLT_STATIC}>,$<NOT:$<BOOL:${BOLT_CUDA}>>>
    -P ${PROJECT_SOURCE_DIR}/cmake/install_test.cmake)
  find_program(MANDOC mandoc)
  if(MANDOC)
    add_test(NAME man COMMAND sh -c "${MANDOC} -T lint -W warning man/*.[15]"
      WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  endif()
endif()
