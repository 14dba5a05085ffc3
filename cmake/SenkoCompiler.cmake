# Flags every target shares.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

# Rooms of kernels ask for -O3 themselves (senko_kernels); elsewhere it only costs compile time.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(SENKO_CCACHE ccache)
if(SENKO_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SENKO_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${SENKO_CCACHE})
endif()

add_library(senko_flags INTERFACE)
target_compile_options(senko_flags INTERFACE
  # A fused multiply-add happens only where the code says so: canonical arithmetic depends on it.
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>
  $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false> $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-ffp-contract=off>
  $<$<COMPILE_LANGUAGE:CXX>:-Wall> $<$<COMPILE_LANGUAGE:CXX>:-Wextra>
  $<$<COMPILE_LANGUAGE:CXX>:-Wshadow> $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-psabi>
  # gcc 12 reports it for "literal" + std::to_string(n) (GCC bug 105651).
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict>)
# SIMD targets Highway builds for run-time dispatch (numerics/simd/README.md): portable, AVX2, AVX-512, NEON. Set for
# every file, because files that disagree would break the one-definition rule.
target_compile_definitions(senko_flags INTERFACE
  "HWY_DISABLED_TARGETS=(~(HWY_SCALAR|HWY_EMU128|HWY_AVX2|HWY_AVX3|HWY_NEON))")

# A program needs only the shared libraries it calls into.
target_link_options(senko_flags INTERFACE LINKER:--as-needed)

if(SENKO_WERROR)
  target_compile_options(senko_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(SENKO_SANITIZE)
  target_compile_options(senko_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${SENKO_SANITIZE}>
    $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>
    $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all>)
  target_link_options(senko_flags INTERFACE -fsanitize=${SENKO_SANITIZE})
endif()
if(SENKO_FUZZ)
  target_compile_options(senko_flags INTERFACE -fsanitize=fuzzer-no-link)
  target_link_options(senko_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

if(SENKO_CUDA)
  # What each kernel takes: kept beside its object, checked by tools/kernel_report.sh.
  list(PREPEND CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CURRENT_LIST_DIR}/keep_ptxas_report.sh)
  target_compile_options(senko_flags INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-v>)
  set(CMAKE_CUDA_ARCHITECTURES 90a-real)
  enable_language(CUDA)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  # CMake 3.25 does not know nvcc's flag for C++20; later ones define these themselves.
  if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
endif()
