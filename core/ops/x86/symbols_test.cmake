# Run by CTest: files built for a wider instruction set must define nothing that the linker could take
# for the whole program (an inline function compiled with AVX-512 would crash older processors).
#   cmake -DNM=nm -DARCHIVE=libbolt_ops.a -P symbols_test.cmake
execute_process(COMMAND ${NM} -A ${ARCHIVE} OUTPUT_VARIABLE symbols RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "nm does not read ${ARCHIVE}")
endif()
string(REGEX MATCHALL "[^\n]*_(fma|avx2|avx512)\\.cpp\\.[^\n]* [WVu] [^\n]*" shared "${symbols}")
if(shared)
  string(JOIN "\n" lines ${shared})
  message(FATAL_ERROR "shared between instruction sets:\n${lines}")
endif()
# The search itself works: ordinary files do define such functions, and kernels are there.
string(REGEX MATCH "[^\n]*linear\\.cpp\\.[^\n]* [WVu] [^\n]*" ordinary "${symbols}")
string(REGEX MATCH "linear_avx512\\.cpp\\.[^\n]* [TRDVB] [^\n]*kLinearAvx512" kernels "${symbols}")
if(NOT ordinary OR NOT kernels)
  message(FATAL_ERROR "the search finds no symbols in ${ARCHIVE}: it would miss shared ones too")
endif()
