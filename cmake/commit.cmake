# Writes OUT with the commit of SOURCE, where SOURCE is a checkout of its own; else an empty one.
# The file is touched only when it changes, so that a commit recompiles one source of the program.
#   cmake -D SOURCE=FOLDER -D OUT=FILE -P cmake/commit.cmake
set(commit "")
if(EXISTS ${SOURCE}/.git)
  execute_process(COMMAND git -C ${SOURCE} rev-parse --short=8 HEAD OUTPUT_VARIABLE commit
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(failed)
    set(commit "")
  endif()
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "#define PITH_COMMIT \"${commit}\"\n")
