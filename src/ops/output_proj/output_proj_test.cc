// OutputProjCpu against OutputProjReference, and row by row bit for bit.
#include "ops/output_proj/output_proj.h"

#include <cmath>
#include <string>

#include "gtest/gtest.h"
#include "ops/linear/linear_test_util.h"

namespace senko::ops {
namespace {

using test::Poisoned;
using test::RandomFloats;
using test::Weight;

struct Case {
  int64_t rows, groups, rank, in, hidden;
  WeightFormat a, b;
};

std::vector<float> RunOp(void (*op)(const OutputProjParams&, ThreadPool&), const Case& c, const Weight& a,
                         const Weight& b, const float* o, int64_t rows, bool round, ThreadPool& pool,
                         std::vector<float>& u) {
  u = Poisoned(rows * c.groups * c.rank);
  std::vector<float> y = Poisoned(rows * c.hidden);
  OutputProjParams p;
  p.rows = rows;
  p.groups = c.groups;
  p.o = o;
  p.wo_a = a.view;
  p.wo_b = b.view;
  p.u = u.data();
  p.y = y.data();
  p.round_bf16 = round;
  p.round_activations = round;
  op(p, pool);
  return y;
}

double Rms(const std::vector<float>& x) {
  double sum = 0;
  for (float value : x) sum += static_cast<double>(value) * value;
  return std::sqrt(sum / static_cast<double>(x.size()));
}

// Float mode: two dot products, each within 150 * 2^-24 of its magnitude sum, some 10 times the rms: 1e-4 of the rms.
// Rounded: u may take the other side of a rounding boundary now and then, which moves y by about one bf16 step.
TEST(OutputProj, MatchesTheReferenceAndARowStandsAlone) {
  std::mt19937 random(std::random_device{}());
  const Case cases[] = {
      {1, 1, 32, 64, 96, WeightFormat::kFp8, WeightFormat::kFp8},
      {5, 2, 16, 96, 64, WeightFormat::kFp8, WeightFormat::kFp8},  // a group starts inside a scale tile
      {12, 4, 40, 128, 100, WeightFormat::kFp8, WeightFormat::kFp8},
      {3, 8, 100, 1056, 130, WeightFormat::kBf16, WeightFormat::kFp8},
      {9, 2, 32, 64, 96, WeightFormat::kF32, WeightFormat::kBf16},
  };
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    const test::OnTarget on(target);
    for (const Case& c : cases) {
      SCOPED_TRACE(std::string(hwy::TargetName(target)) + " groups " + std::to_string(c.groups) + " rank " +
                   std::to_string(c.rank));
      ThreadPool pool(3), one(1);
      const Weight a(c.a, c.groups * c.rank, c.in, random), b(c.b, c.hidden, c.groups * c.rank, random);
      const std::vector<float> o = RandomFloats(c.rows * c.groups * c.in, random);
      std::vector<float> u, want_u;
      for (bool round : {false, true}) {
        const std::vector<float> want = RunOp(OutputProjReference, c, a, b, o.data(), c.rows, round, pool, want_u);
        const std::vector<float> got = RunOp(OutputProjCpu, c, a, b, o.data(), c.rows, round, pool, u);
        std::vector<float> difference(want.size());
        for (size_t i = 0; i < want.size(); ++i) {
          difference[i] = got[i] - want[i];
          ASSERT_LE(std::fabs(difference[i]), Rms(want) * (round ? 0x1p-4 : 1e-4));
        }
        ASSERT_LE(Rms(difference), Rms(want) * (round ? 0x1p-8 : 1e-4));
        for (int64_t r = 0; r < c.rows; ++r) {
          std::vector<float> u1;
          const std::vector<float> alone =
              RunOp(OutputProjCpu, c, a, b, o.data() + r * c.groups * c.in, 1, round, one, u1);
          ASSERT_TRUE(test::SameBits(alone.data(), got.data() + r * c.hidden, c.hidden)) << r;
        }
      }
    }
  }
}

}  // namespace
}  // namespace senko::ops
