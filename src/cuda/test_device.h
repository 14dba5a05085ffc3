// What tests on a GPU share.
#pragma once

#include <gtest/gtest.h>

#include "cuda/device.h"
#include "cuda/device_buffer.h"

namespace senko::cuda {

// Skips its cases, saying so, where there is no GPU.
class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!HasDevice()) GTEST_SKIP() << "no CUDA device here";
    UseDevice(0);
  }
};

}  // namespace senko::cuda
