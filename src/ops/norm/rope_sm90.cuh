// The rotary table's pairs on the GPU.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace senko::ops::sm90 {

// A pair {cos, sin} of RopeTable (norm.h): the angle is float32 by definition, its cosine and sine are taken in float64
// and rounded once. They are the GPU's, so that a value may be the float next to the host's where the true one lies
// within some 2^-52 of their middle. In both tables of the released model no position up to 1,048,576 has such a value
// (rope_sm90_test.cu). Angles past 105,615 reduce the long way.
__device__ inline float2 RopePair(int64_t position, float inv_freq) {
  double sine, cosine;
  sincos(double{__fmul_rn(__ll2float_rn(position), inv_freq)}, &sine, &cosine);
  return make_float2(__double2float_rn(cosine), __double2float_rn(sine));
}

}  // namespace senko::ops::sm90
