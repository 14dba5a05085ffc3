// Lets one inline function serve the host and, under nvcc, the device.
#pragma once

#if defined(__CUDACC__)
#define SENKO_HD __host__ __device__
#else
#define SENKO_HD
#endif
