#pragma once
// Macros for functions of host and kernels, and for loops that nvcc unrolls.

#ifdef __CUDACC__
#define PITH_BOTH_SIDES __host__ __device__
#define PITH_UNROLL _Pragma("unroll")
#else
#define PITH_BOTH_SIDES
#define PITH_UNROLL
#endif
