#pragma once
// Marks functions that nvcc compiles for the device too, and their loops that it unrolls.

#if defined(__CUDACC__)
#define PITH_HOST_DEVICE __host__ __device__
#define PITH_UNROLL _Pragma("unroll")
#else
#define PITH_HOST_DEVICE
#define PITH_UNROLL
#endif
