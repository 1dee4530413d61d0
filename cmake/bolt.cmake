# Flags and helpers that every folder's CMakeLists.txt uses.

# A compiler cache, where there is one.
find_program(BOLT_CCACHE ccache)
if(BOLT_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${BOLT_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${BOLT_CCACHE})
endif()

# Options of the host compiler; nvcc's are cuda/CMakeLists.txt's.
function(bolt_host_options)
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:${ARGN}>")
endfunction()

# Kernels are written with intrinsics: more than -O2 only costs time and bytes.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

# The arithmetic contract forbids contraction and reassociation.
bolt_host_options(
  -ffp-contract=off -fno-math-errno
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wcast-align -Wunused -Woverloaded-virtual
  -Wdouble-promotion -Wimplicit-fallthrough)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  bolt_host_options(-Wno-restrict)  # false alarms on `"text" + string`, GCC bug 105651
endif()
if(BOLT_WERROR)
  bolt_host_options(-Werror)
endif()
include_directories(${PROJECT_SOURCE_DIR})

# Equal sources give equal bytes wherever they lie: no absolute path, no date (`./dev reproducible`
# builds two clones and compares).
bolt_host_options(-ffile-prefix-map=${PROJECT_SOURCE_DIR}=. -Werror=date-time)
add_link_options(-Wl,--build-id=sha1)

# Receipts carry the hash of the executable, so it holds nothing that does not run.
bolt_host_options(-ffunction-sections -fdata-sections)
add_link_options(-Wl,--gc-sections)

if(BOLT_SANITIZE)
  bolt_host_options(-fsanitize=${BOLT_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${BOLT_SANITIZE})
endif()

# bolt_library(NAME [LIBS ...]): every .cpp of the folder but *_test.cpp is the library bolt_NAME;
# the *_test.cpp are one test binary, NAME_test, of doctest cases. What lies in testing/ is support
# for tests, the library bolt_NAME_testing; no product links it.
function(bolt_library name)
  cmake_parse_arguments(ARG "" "" "LIBS;TEST_LIBS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  set(tests ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  list(FILTER sources EXCLUDE REGEX "_test\\.cpp$")
  set(testing ${sources})
  list(FILTER testing INCLUDE REGEX "/testing/")
  list(FILTER sources EXCLUDE REGEX "/testing/")
  add_library(bolt_${name} STATIC ${sources})
  target_link_libraries(bolt_${name} PUBLIC ${ARG_LIBS})
  if(BOLT_TESTS AND testing)
    add_library(bolt_${name}_testing STATIC ${testing})
    target_link_libraries(bolt_${name}_testing PUBLIC bolt_${name} ${ARG_TEST_LIBS})
    target_compile_definitions(bolt_${name}_testing PRIVATE
      BOLT_SOURCE_DIR="${PROJECT_SOURCE_DIR}" BOLT_BINARY_DIR="${PROJECT_BINARY_DIR}")
    list(APPEND ARG_TEST_LIBS bolt_${name}_testing)
  endif()
  if(BOLT_TESTS AND tests)
    add_executable(${name}_test ${tests} ${PROJECT_SOURCE_DIR}/core/base/test_main.cc)
    target_link_libraries(${name}_test PRIVATE bolt_${name} ${ARG_TEST_LIBS})
    target_compile_definitions(${name}_test PRIVATE
      BOLT_SOURCE_DIR="${PROJECT_SOURCE_DIR}" BOLT_BINARY_DIR="${PROJECT_BINARY_DIR}")
    add_test(NAME ${name} COMMAND ${name}_test)
  endif()
endfunction()
