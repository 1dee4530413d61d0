# Writes what a binary was built from as a C++ initialiser for cmd/build_info.cpp. Run at each build
# with -P. Outside a git checkout the commit is given by BOLT_COMMIT in the environment, or empty.
set(ENV{GIT_OPTIONAL_LOCKS} 0)  # a build leaves the index alone
function(git out)
  set(status none)
  if(EXISTS ${SOURCE_DIR}/.git)  # not the repository of some folder above
    execute_process(COMMAND git -C ${SOURCE_DIR} ${ARGN} OUTPUT_VARIABLE text RESULT_VARIABLE status
                    ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
  if(NOT status EQUAL 0)
    set(text "")
  endif()
  set(${out} "${text}" PARENT_SCOPE)
endfunction()

git(commit rev-parse HEAD)
git(tree rev-parse HEAD^{tree})
set(diff "")
if(commit)
  # What differs from the commit: tracked files' changes and untracked files that are not ignored.
  git(changes status --porcelain --untracked-files=all)
  if(changes)
    git(patch -c diff.algorithm=myers -c diff.indentHeuristic=false diff HEAD --binary --full-index
        --no-ext-diff --no-textconv --no-color --no-renames -U3 --src-prefix=a/ --dst-prefix=b/)
    git(untracked ls-files --others --exclude-standard)
    string(REPLACE ";" "\;" untracked "${untracked}")
    string(REPLACE "\n" ";" names "${untracked}")
    set(hashes "")
    foreach(name IN LISTS names)
      if(EXISTS "${SOURCE_DIR}/${name}" AND NOT IS_DIRECTORY "${SOURCE_DIR}/${name}")
        file(SHA256 "${SOURCE_DIR}/${name}" hash)
        string(APPEND hashes "${hash}  ${name}\n")
      endif()
    endforeach()
    string(SHA256 diff "${patch}\n${hashes}")
  endif()
elseif(DEFINED ENV{BOLT_COMMIT})
  set(commit "$ENV{BOLT_COMMIT}")
endif()

set(text "\"${VERSION}\", \"${commit}\", \"${tree}\", \"${diff}\", \"${COMPILER}\", \"${BUILD_TYPE}\",
\"${FLAGS}\", \"${OPENSSL}\", \"${CUDA}\", \"${STATIC}\",
")
set(old "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT "${text}" STREQUAL "${old}")
  file(WRITE ${OUTPUT} "${text}")
endif()
