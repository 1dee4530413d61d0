# Run by ctest with -P: installs into an empty folder and uses what lies there as a user would, with
# nothing of the build folder in reach. BUILD, PREFIX, STATIC are given.
function(run out)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE text ERROR_VARIABLE errors RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "status ${status}: ${ARGN}\n${text}${errors}")
  endif()
  set(${out} "${text}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${PREFIX})
run(log ${CMAKE_COMMAND} --install ${BUILD} --prefix ${PREFIX})
foreach(name bin/bolt share/bolt/sample.bolt/package.json share/doc/bolt/LICENSE
        share/doc/bolt/THIRD-PARTY.md share/doc/bolt/third-party/simdjson
        share/man/man1/bolt.1 share/man/man5/bolt-package.5)
  if(NOT EXISTS ${PREFIX}/${name})
    message(SEND_ERROR "${name} was not installed")
  endif()
endforeach()

# A static executable names no program interpreter and no shared library.
run(headers readelf --wide --program-headers --dynamic ${PREFIX}/bin/bolt)
if(STATIC AND headers MATCHES "INTERP|NEEDED")
  message(SEND_ERROR "bin/bolt is not static:\n${headers}")
elseif(NOT STATIC AND NOT headers MATCHES "INTERP")
  message(SEND_ERROR "readelf shows no interpreter of a dynamic bin/bolt: this check sees nothing")
endif()

# The sample package is found from where the executable lies.
set(ENV{HOME} ${PREFIX}/home)
foreach(name BOLT_MODEL BOLT_RECEIPTS XDG_STATE_HOME XDG_CACHE_HOME)
  unset(ENV{${name}})
endforeach()
run(reply ${PREFIX}/bin/bolt run --temp 0 --no-think "Count from 1 to 10.")
if(NOT reply MATCHES "1.*2.*3.*9.*10")
  message(SEND_ERROR "the reply does not count: ${reply}")
endif()
file(GLOB receipts ${PREFIX}/home/.local/state/bolt/receipts/*.bolt.jsonl)
list(LENGTH receipts n_receipts)
if(NOT n_receipts EQUAL 1)
  message(SEND_ERROR "expected one receipt, found: ${receipts}")
endif()
run(verdict ${PREFIX}/bin/bolt receipt verify ${receipts})
