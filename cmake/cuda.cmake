# The CUDA backend: *.cu and *_cuda.cc, cuda/*.cc below src. Needs nvcc; runs on sm_80 and newer.
file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS src/*.cu)

# Or on a card emulated on the CPU, for tests where there is no GPU (tests/emulated): g++ compiles
# the kernels, of the toolkit only headers are used.
if(PITH_CUDA_EMULATED)
  list(FILTER sources EXCLUDE REGEX "/tensor_map\\.cc$")  # the driver's: tests/emulated has its own
  list(APPEND sources ${cuda_sources})
  add_subdirectory(tests/emulated)
  function(pith_kernels)  # .cu files, of the folder that calls it
    set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS
      "-xc++;-include;emulated/kernel_language.h;-O2;-march=native;-fno-strict-aliasing;-Wno-unknown-pragmas;-Wno-psabi;-Wno-sign-compare;-Wno-shadow;-Wno-missing-field-initializers;-Wno-maybe-uninitialized")
  endfunction()
  pith_kernels(${cuda_sources})
  function(pith_use_cuda target)
    # Before src: it has the instructions that g++ does not know under the same names.
    target_include_directories(${target} BEFORE PRIVATE ${PROJECT_SOURCE_DIR}/tests/emulated)
    target_link_libraries(${target} PUBLIC emulated_card)
  endfunction()
  return()
endif()

include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "PITH_CUDA is ON but nvcc was not found: install the CUDA toolkit (12.4 or "
                      "newer) and put nvcc on PATH, or configure with -DPITH_CUDA=OFF")
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real)
endif()
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know nvcc's flag for C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
find_package(CUDAToolkit REQUIRED)
list(APPEND sources ${cuda_sources})

function(pith_kernels)  # nvcc knows them
endfunction()
function(pith_use_cuda target)
  target_link_libraries(${target} PUBLIC CUDA::cudart_static CUDA::cublasLt)
endfunction()
