#pragma once
// What the host and kernels call alike.

#ifdef __CUDACC__
#define PITH_BOTH_SIDES __host__ __device__
#else
#define PITH_BOTH_SIDES
#endif
