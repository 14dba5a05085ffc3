// The GPU that this process uses.
#pragma once

#include <string>

namespace senko::cuda {

struct Device {
  int ordinal = 0;
  std::string name;
  int multiprocessors = 0;
};

// Makes GPU `ordinal` this thread's. Errors: kNotFound when there is no driver or no such GPU; kUnsupported naming the
// GPU and its architecture when it is not sm_90, which the kernels are built for.
Device UseDevice(int ordinal);

// Whether there is any GPU at all; false also without a driver.
bool HasDevice();

}  // namespace senko::cuda
