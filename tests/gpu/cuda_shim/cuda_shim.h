// What g++ needs to compile a kernel's CUDA source: keywords, built-in variables and functions of one block.
//
// The kernel's own translation unit includes this header before its first line and is compiled with -fsanitize=thread,
// of which only the calls at every memory access are used: fibres.cc defines them. No header may be included here.

#pragma once

#define __global__
#define __device__ static
#define __launch_bounds__(threads)
#define __shared__ static __attribute__((section("shared_memory")))

struct ThreadIndex {
    unsigned x;
};
extern ThreadIndex threadIdx;
extern ThreadIndex blockDim;

void __syncthreads();
int warp_sum(unsigned mask, int value);
unsigned warp_read(unsigned mask, unsigned value, int from);  // from outside 0..31: the thread's own value
int atomicAdd(int* address, int value);
extern "C" float fminf(float a, float b);

inline float __int_as_float(int bits) {
    return __builtin_bit_cast(float, bits);
}
inline unsigned __float_as_uint(float value) {
    return __builtin_bit_cast(unsigned, value);
}
inline int __reduce_add_sync(unsigned mask, int value) {
    return warp_sum(mask, value);
}
inline float __shfl_sync(unsigned mask, float value, int from) {
    return __builtin_bit_cast(float, warp_read(mask, __float_as_uint(value), from));
}
inline float __shfl_up_sync(unsigned mask, float value, int distance) {
    return __shfl_sync(mask, value, static_cast<int>(threadIdx.x % 32) - distance);
}
