# Debian's libraries, linked statically; simdjson is built here from Debian's source package, which
# `./dev deps` unpacks (Debian ships it only as a shared library).
set(BOLT_DEPS_DIR "${PROJECT_SOURCE_DIR}/.deps" CACHE PATH "Where ./dev deps unpacked sources")

set(OPENSSL_USE_STATIC_LIBS TRUE)
find_package(OpenSSL 3 REQUIRED COMPONENTS Crypto)

find_path(FMT_INCLUDE_DIR fmt/format.h REQUIRED)
add_library(bolt_fmt STATIC ${PROJECT_SOURCE_DIR}/cmake/fmt_instances.cc)
target_include_directories(bolt_fmt SYSTEM PUBLIC ${FMT_INCLUDE_DIR})
target_compile_options(bolt_fmt PRIVATE -w)
add_library(bolt::fmt ALIAS bolt_fmt)

find_library(PCRE2_LIBRARY NAMES libpcre2-8.a REQUIRED)
find_path(PCRE2_INCLUDE_DIR pcre2.h REQUIRED)
add_library(bolt_pcre2 INTERFACE)
target_compile_definitions(bolt_pcre2 INTERFACE PCRE2_STATIC PCRE2_CODE_UNIT_WIDTH=8)
target_link_libraries(bolt_pcre2 INTERFACE ${PCRE2_LIBRARY})
add_library(bolt::pcre2 ALIAS bolt_pcre2)

if(NOT EXISTS "${BOLT_DEPS_DIR}/simdjson/simdjson.cpp")
  message(FATAL_ERROR "simdjson's source is not in ${BOLT_DEPS_DIR}: run ./dev deps")
endif()
add_library(bolt_simdjson STATIC ${BOLT_DEPS_DIR}/simdjson/simdjson.cpp)
target_include_directories(bolt_simdjson SYSTEM PUBLIC ${BOLT_DEPS_DIR}/simdjson)
target_compile_options(bolt_simdjson PRIVATE -w)
add_library(bolt::simdjson ALIAS bolt_simdjson)

# libedit's chat line, and what its static library needs.
find_library(EDIT_LIBRARY NAMES libedit.a REQUIRED)
find_library(TINFO_LIBRARY NAMES libtinfo.a REQUIRED)
find_library(BSD_LIBRARY NAMES libbsd.a REQUIRED)
find_library(MD_LIBRARY NAMES libmd.a REQUIRED)
add_library(bolt_edit INTERFACE)
target_link_libraries(bolt_edit INTERFACE ${EDIT_LIBRARY} ${TINFO_LIBRARY} ${BSD_LIBRARY} ${MD_LIBRARY})
add_library(bolt::edit ALIAS bolt_edit)
