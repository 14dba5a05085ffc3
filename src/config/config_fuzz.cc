// Any bytes either give a configuration every derivation accepts, or a senko::Error.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "config/engram_hash.h"
#include "config/kv_layout.h"
#include "config/layer_schedule.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace senko::config;
  try {
    const ModelConfig config = ParseModelConfig(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
    MakeLayerSchedule(config);
    MakePageLayout(config, 128);
    MakeSlotLayout(config, 8);
    if (!config.engram.layers.empty()) MakeEngramHash(config.engram);
    if (KvBytesPerToken(config) < 0 || WindowBytesPerSequence(config) <= 0) __builtin_trap();
  } catch (const senko::Error&) {
  }
  return 0;
}
