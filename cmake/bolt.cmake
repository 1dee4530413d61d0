# Flags and helpers that every folder's CMakeLists.txt uses.

# The arithmetic contract forbids contraction and reassociation; equal sources must give equal bytes.
add_compile_options(
  -ffp-contract=off -fno-math-errno
  -ffile-prefix-map=${PROJECT_SOURCE_DIR}=. -fmacro-prefix-map=${PROJECT_SOURCE_DIR}=.
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wcast-align -Wunused -Woverloaded-virtual
  -Wdouble-promotion -Wimplicit-fallthrough)
if(BOLT_WERROR)
  add_compile_options(-Werror)
endif()
include_directories(${PROJECT_SOURCE_DIR})

# bolt_library(NAME [LIBS ...]): every .cpp of the folder but *_test.cpp is the library bolt_NAME;
# the *_test.cpp are one test binary, NAME_test, of doctest cases.
function(bolt_library name)
  cmake_parse_arguments(ARG "" "" "LIBS;TEST_LIBS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  set(tests ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  list(FILTER sources EXCLUDE REGEX "_test\\.cpp$")
  add_library(bolt_${name} STATIC ${sources})
  target_link_libraries(bolt_${name} PUBLIC ${ARG_LIBS})
  if(BOLT_TESTS AND tests)
    add_executable(${name}_test ${tests} ${PROJECT_SOURCE_DIR}/core/base/test_main.cc)
    target_link_libraries(${name}_test PRIVATE bolt_${name} ${ARG_TEST_LIBS})
    target_compile_definitions(${name}_test PRIVATE
      BOLT_SOURCE_DIR="${PROJECT_SOURCE_DIR}" BOLT_BINARY_DIR="${PROJECT_BINARY_DIR}")
    add_test(NAME ${name} COMMAND ${name}_test)
  endif()
endfunction()
