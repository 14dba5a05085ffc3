// `senko logits --dump` and `--inject`: what flows between operators, as safetensors named
// prompt_{k}.layer_{l}.{point}, with the rows' positions in {name}.positions and, where a point was injected, what had
// been computed there in {name}.computed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"
#include "model/probe.h"

namespace senko::cli {

// Collects every point of one prompt, in row order of appearance, and writes one file per prompt:
// DIR/prompt_{k}.safetensors. Values are those after injection.
class DumpProbe : public model::Probe {
 public:
  // Either folder may be empty. Injected tensors: DIR/prompt_{k}.safetensors of the same names, all of which must name
  // points that run; a point that is absent is left as computed, and rows beyond the tensor's are too. Integer rows end
  // at the first -1.
  // from: rows before that position are not dumped; entries, of which later rows may choose any, are.
  DumpProbe(std::filesystem::path dump, int64_t from, std::filesystem::path inject);

  void BeginPrompt(int64_t k);
  void EndPrompt();  // writes the file

  bool Wants(int64_t layer, std::string_view point, int64_t last) const override;
  void Floats(int64_t layer, std::string_view point, const int64_t* positions, int64_t rows, int64_t width,
              float* data) override;
  void Ints(int64_t layer, std::string_view point, const int64_t* positions, int64_t rows, int64_t width,
            const int64_t* limits, int32_t* data, int32_t* counts) override;

 private:
  template <typename T>
  struct Series {
    int64_t width = 0;
    std::vector<T> values;  // [positions.size(), width]
    std::vector<int64_t> positions;
  };
  template <typename T>
  static void Record(std::map<std::string, Series<T>>& all, const std::string& name, int64_t from,
                     const int64_t* positions, int64_t rows, int64_t width, const T* data);
  int64_t From(std::string_view point) const;  // the first row of a point that is dumped
  std::string Name(int64_t layer, std::string_view point) const;
  const checkpoint::TensorRef* Injected(const std::string& name, DType type, int64_t width);

  std::filesystem::path dump_, inject_;
  int64_t from_;
  int64_t prompt_ = 0;
  std::unique_ptr<checkpoint::SafetensorsFile> injected_;
  std::map<std::string, checkpoint::TensorRef> injected_tensors_;
  std::set<std::string> used_;  // injected tensors that met their point
  std::map<std::string, Series<float>> floats_;
  std::map<std::string, Series<int32_t>> ints_;
};

}  // namespace senko::cli
