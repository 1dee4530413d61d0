# Whether cuda/resources.txt is of the kernels as they are: a change of theirs must bring its figures.
# Run by CTest in every build: cmake -DROOT=... -P check_cuda_resources.cmake
file(GLOB paths RELATIVE ${ROOT}/cuda ${ROOT}/cuda/*.cu ${ROOT}/cuda/*.cuh)
list(SORT paths)
set(lines "")
foreach(path IN LISTS paths)
  file(SHA256 ${ROOT}/cuda/${path} digest)
  string(APPEND lines "${path} ${digest}\n")
endforeach()
string(SHA256 sources "${lines}")
file(STRINGS ${ROOT}/cuda/resources.txt first LIMIT_COUNT 1)
if(NOT first STREQUAL "# sources ${sources}")
  message(FATAL_ERROR "cuda/resources.txt is of other sources: run `cuda/resources.py "
                      "--write 80 86 89 90 100 120` and read what changed")
endif()
