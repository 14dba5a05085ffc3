// Engram of sm_90a: table rows against model.md 3.7 written out plainly, what they hold against the reference bit for
// bit, injection against the reference.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "cuda/mapped_buffer.h"
#include "cuda/test_device.h"
#include "numerics/bf16.h"
#include "ops/engram/engram.h"
#include "ops/engram/engram_sm90.h"

namespace senko::ops {
namespace {

using cuda::DeviceBuffer;
using cuda::MappedBuffer;
using cuda::ToDevice;
using cuda::ToHost;

constexpr uint16_t kPoison = 0x7FA5;  // a NaN
constexpr int32_t kImage = 7;

class EngramSm90Test : public cuda::DeviceTest {};

__nv_bfloat16* Bf16(const DeviceBuffer<uint16_t>& b) { return reinterpret_cast<__nv_bfloat16*>(b.data()); }
bool IsNan(uint16_t code) { return (code & 0x7FFF) > 0x7F80; }

struct Shape {
  int32_t max_ngram, heads;
  int64_t dim;
};

struct Sequence {
  int64_t begin;             // position of ids[0]
  std::vector<int32_t> ids;  // with image tokens and ids that no vocabulary has
};

// A table of made-up primes, sequences, and rows that are positions of them.
struct World {
  Shape shape;
  EngramHashSm90 hash;
  int64_t vocab = 500, table_rows = 0;
  int32_t pad = 0;
  std::vector<int32_t> map;
  std::vector<uint8_t> values, scales;
  std::vector<Sequence> sequences;
  std::vector<int64_t> positions;
  std::vector<int32_t> of;  // sequences of the rows

  int64_t slots() const { return hash.slots(); }
};

World MakeWorld(const Shape& shape, int64_t rows, std::mt19937_64& random) {
  World w;
  w.shape = shape;
  w.hash.max_ngram = shape.max_ngram;
  w.hash.heads = shape.heads;
  for (int i = 0; i < shape.max_ngram; ++i) w.hash.multipliers[i] = (random() >> 1) / 99092 | 1;
  for (int64_t s = 0; s < w.slots(); ++s) {
    w.hash.primes[s] = 301 + random() % 100;
    w.hash.offsets[s] = w.table_rows;
    w.table_rows += static_cast<int64_t>(w.hash.primes[s]);
  }
  w.map.resize(static_cast<size_t>(w.vocab));
  for (int32_t& m : w.map) m = static_cast<int32_t>(random() % 99092);
  w.pad = w.map[2];
  w.values.resize(static_cast<size_t>(w.table_rows * shape.dim));
  w.scales.resize(w.values.size() / 32);
  for (uint8_t& v : w.values) v = static_cast<uint8_t>(random());  // NaN codes among them
  for (uint8_t& s : w.scales) s = static_cast<uint8_t>(random());
  for (int s = 0; s < 5; ++s) {
    Sequence sequence{s % 2 == 0 ? 0 : static_cast<int64_t>(100 + random() % 100000), {}};
    for (int64_t i = 0; i < 40; ++i) {
      const uint64_t draw = random() % 20;
      sequence.ids.push_back(draw == 0   ? kImage
                             : draw == 1 ? static_cast<int32_t>(w.vocab + static_cast<int64_t>(random() % 5))
                             : draw == 2 ? -static_cast<int32_t>(random() % 5) - 1
                                         : static_cast<int32_t>(random() % static_cast<uint64_t>(w.vocab)));
    }
    w.sequences.push_back(sequence);
  }
  for (int64_t r = 0; r < rows; ++r) {
    w.of.push_back(static_cast<int32_t>(random() % w.sequences.size()));
    const Sequence& s = w.sequences[static_cast<size_t>(w.of.back())];
    // A sequence that begins later has its look-back in front.
    const int64_t first = s.begin == 0 ? 0 : shape.max_ngram - 1;
    w.positions.push_back(s.begin + first + static_cast<int64_t>(random() % static_cast<uint64_t>(40 - first)));
  }
  return w;
}

// model.md 3.7, one position: c_0 .. c_{n-1}, the pad from the first dead place on, and per n-gram and head a hash.
std::vector<int64_t> TableRows(const World& w, size_t row) {
  const Sequence& s = w.sequences[static_cast<size_t>(w.of[row])];
  std::vector<uint64_t> c;
  bool dead = false;
  for (int64_t back = 0; back < w.shape.max_ngram; ++back) {
    const int64_t at = w.positions[row] - back;
    if (at < 0) dead = true;
    int32_t id = -1;
    if (!dead) id = s.ids.at(static_cast<size_t>(at - s.begin));
    if (id == kImage) dead = true;
    const bool known = !dead && id >= 0 && id < w.vocab;
    c.push_back(static_cast<uint64_t>(known ? w.map[static_cast<size_t>(id)] : w.pad));
  }
  std::vector<int64_t> rows;
  for (int n = 2; n <= w.shape.max_ngram; ++n) {
    uint64_t h = 0;
    for (int i = 0; i < n; ++i) h ^= c[static_cast<size_t>(i)] * w.hash.multipliers[i];
    for (int head = 0; head < w.shape.heads; ++head) {
      const int slot = (n - 2) * w.shape.heads + head;
      rows.push_back(static_cast<int64_t>(h % w.hash.primes[slot]) + w.hash.offsets[slot]);
    }
  }
  return rows;
}

// What the rows hold, as bf16 codes.
std::vector<uint16_t> Want(const World& w) {
  ThreadPool pool(1);
  std::vector<int64_t> indices;
  for (size_t r = 0; r < w.positions.size(); ++r) {
    for (const int64_t i : TableRows(w, r)) indices.push_back(i);
  }
  std::vector<float> out(indices.size() * static_cast<size_t>(w.shape.dim));
  EngramGatherReference({static_cast<int64_t>(w.positions.size()),
                         w.slots(),
                         indices.data(),
                         {w.values.data(), w.scales.data(), w.table_rows, w.shape.dim},
                         out.data()},
                        pool);
  std::vector<uint16_t> codes(out.size());
  for (size_t i = 0; i < out.size(); ++i) codes[i] = numerics::FloatToBf16(out[i]);
  return codes;
}

// The device's side of a world. Tables in host memory, or in the device's.
struct OnDevice {
  MappedBuffer<uint8_t> host_values, host_scales;
  DeviceBuffer<uint8_t> values, scales;
  std::vector<DeviceBuffer<int32_t>> ids;
  DeviceBuffer<const int32_t*> tokens;
  DeviceBuffer<int64_t> begins, positions;
  DeviceBuffer<int32_t> of, map, count;
  DeviceBuffer<uint16_t> out;
  EngramGatherSm90Params p;

  OnDevice(const World& w, int64_t max_rows, bool host_table, int32_t max_blocks) {
    std::vector<const int32_t*> pointers;
    std::vector<int64_t> begin;
    for (const Sequence& s : w.sequences) {
      ids.push_back(ToDevice(s.ids));
      pointers.push_back(ids.back().data());
      begin.push_back(s.begin);
    }
    tokens = ToDevice(pointers);
    begins = ToDevice(begin);
    positions = ToDevice(w.positions);
    of = ToDevice(w.of);
    map = ToDevice(w.map);
    count = DeviceBuffer<int32_t>(1);
    out = ToDevice(std::vector<uint16_t>(static_cast<size_t>(max_rows * w.slots() * w.shape.dim), kPoison));
    if (host_table) {
      host_values = MappedBuffer<uint8_t>(w.values.size());
      host_scales = MappedBuffer<uint8_t>(w.scales.size());
      std::copy(w.values.begin(), w.values.end(), host_values.data());
      std::copy(w.scales.begin(), w.scales.end(), host_scales.data());
    } else {
      values = ToDevice(w.values);
      scales = ToDevice(w.scales);
    }
    p.rows = count.data();
    p.max_rows = max_rows;
    p.positions = positions.data();
    p.sequences = of.data();
    p.tokens = tokens.data();
    p.tokens_begin = begins.data();
    p.token_map = map.data();
    p.vocab = w.vocab;
    p.image_token = kImage;
    p.pad = w.pad;
    p.hash = w.hash;
    p.values = host_table ? host_values.device() : values.data();
    p.scales = host_table ? host_scales.device() : scales.data();
    p.table_rows = w.table_rows;
    p.dim = w.shape.dim;
    p.out = Bf16(out);
    p.max_blocks = max_blocks;
  }
  std::vector<uint16_t> Run(int32_t rows) {
    SENKO_CUDA(cudaMemcpy(count.data(), &rows, 4, cudaMemcpyHostToDevice));
    EngramGatherSm90(p, nullptr);
    SENKO_CUDA(cudaDeviceSynchronize());
    return ToHost(out);
  }
};

void Compare(const std::vector<uint16_t>& got, const std::vector<uint16_t>& want, size_t live, const char* what) {
  int64_t other = 0, touched = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (i >= live) {
      touched += got[i] != kPoison;
    } else {
      other += IsNan(want[i]) ? !IsNan(got[i]) || got[i] == kPoison : got[i] != want[i];
    }
  }
  EXPECT_EQ(other, 0) << what;
  EXPECT_EQ(touched, 0) << what;
}

TEST_F(EngramSm90Test, GathersTheRowsOfTheModelsHash) {
  std::mt19937_64 random(std::random_device{}());
  for (const Shape& shape : {Shape{4, 8, 256}, Shape{3, 2, 32}, Shape{2, 1, 64}, Shape{8, 9, 96}, Shape{4, 4, 256}}) {
    for (const int64_t rows : {1, 2, 7, 64, 333}) {
      const World w = MakeWorld(shape, rows, random);
      const std::vector<uint16_t> want = Want(w);
      for (const bool host : {true, false}) {
        for (const int32_t max_blocks : {1, 4, 1000}) {
          OnDevice d(w, rows + 2, host, max_blocks);
          Compare(d.Run(static_cast<int32_t>(rows)), want, want.size(), host ? "host" : "device");
        }
      }
    }
  }
}

// One captured launch for any number of rows.
TEST_F(EngramSm90Test, AGraphServesOtherCounts) {
  std::mt19937_64 random(std::random_device{}());
  const World w = MakeWorld({4, 8, 256}, 50, random);
  const std::vector<uint16_t> want = Want(w);
  OnDevice d(w, 50, true, 4);
  cuda::CapturedGraph graph([&](cudaStream_t stream) { EngramGatherSm90(d.p, stream); });
  for (const int32_t rows : {50, 1, 0, 33}) {
    cuda::Overwrite(d.out, std::vector<uint16_t>(d.out.size(), kPoison));
    cuda::Overwrite(d.count, {rows});
    graph.Run();
    Compare(ToHost(d.out), want, static_cast<size_t>(rows * w.slots() * w.shape.dim), "graph");
  }
}

// Rows past the table's end, and tokens that nobody brought, are NaN and nothing is read for them.
TEST_F(EngramSm90Test, WhatIsNotThereIsNan) {
  std::mt19937_64 random(std::random_device{}());
  World w = MakeWorld({3, 2, 64}, 40, random);
  std::fill(w.values.begin(), w.values.end(), uint8_t{0x38});
  std::fill(w.scales.begin(), w.scales.end(), uint8_t{127});
  const auto late = std::find_if(w.of.begin(), w.of.end(), [](int32_t s) { return s % 2 == 1; }) - w.of.begin();
  ASSERT_LT(late, 40);
  // Its bigrams are there, its trigrams need a token before the first.
  Sequence& sequence = w.sequences[static_cast<size_t>(w.of[static_cast<size_t>(late)])];
  w.positions[static_cast<size_t>(late)] = sequence.begin + 1;
  sequence.ids[0] = sequence.ids[1] = 3;
  OnDevice d(w, 40, true, 2);
  const int64_t kept = w.hash.offsets[3];
  d.p.table_rows = kept;  // the last head's rows are cut off
  const std::vector<uint16_t> got = d.Run(40);
  for (size_t r = 0; r < 40; ++r) {
    for (size_t slot = 0; slot < 4; ++slot) {
      const bool missing = slot == 3 || (static_cast<int64_t>(r) == late && slot >= 2);
      for (size_t i = 0; i < 64; ++i) {
        const uint16_t code = got[(r * 4 + slot) * 64 + i];
        if (missing) {
          ASSERT_TRUE(IsNan(code) && code != kPoison) << r << ' ' << slot;
        } else {
          ASSERT_EQ(code, 0x3F80) << r << ' ' << slot;
        }
      }
    }
  }
}

struct Injection {
  int64_t rows, hidden;
  std::vector<float> kv, q, k, x;
  std::vector<uint8_t> is_image;
};

Injection MakeInjection(int64_t rows, int64_t hidden, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  const auto fill = [&](int64_t n, bool bf16) {
    std::vector<float> v(static_cast<size_t>(n));
    for (float& f : v) f = bf16 ? numerics::RoundToBf16(normal(random)) : normal(random);
    return v;
  };
  Injection in{rows,
               hidden,
               fill(rows * 5 * hidden, true),
               fill(4 * hidden, false),
               fill(4 * hidden, false),
               fill(rows * 4 * hidden, true),
               {}};
  for (int64_t r = 0; r < rows; ++r) in.is_image.push_back(random() % 5 == 0);
  return in;
}

std::vector<uint16_t> Codes(const std::vector<float>& v) {
  std::vector<uint16_t> codes(v.size());
  for (size_t i = 0; i < v.size(); ++i) codes[i] = numerics::FloatToBf16(v[i]);
  return codes;
}

struct InjectionOnDevice {
  DeviceBuffer<uint16_t> kv, streams;
  DeviceBuffer<float> q, k;
  DeviceBuffer<uint8_t> is_image;
  DeviceBuffer<int32_t> count;
  EngramInjectSm90Params p;

  InjectionOnDevice(const Injection& in, int64_t max_rows, bool images) {
    const auto poisoned = [](std::vector<uint16_t> codes, int64_t size) {
      codes.resize(static_cast<size_t>(size), kPoison);
      return codes;
    };
    kv = ToDevice(poisoned(Codes(in.kv), std::max(in.rows, max_rows) * 5 * in.hidden));
    streams = ToDevice(poisoned(Codes(in.x), std::max(in.rows, max_rows) * 4 * in.hidden));
    q = ToDevice(in.q);
    k = ToDevice(in.k);
    is_image = ToDevice(in.is_image);
    count = DeviceBuffer<int32_t>(1);
    p.rows = count.data();
    p.max_rows = max_rows;
    p.hidden = in.hidden;
    p.kv = Bf16(kv);
    p.q_weight = q.data();
    p.k_weight = k.data();
    p.rms_eps = 1e-20f;
    p.is_image = images ? is_image.data() : nullptr;
    p.streams = Bf16(streams);
  }
  std::vector<uint16_t> Run(int32_t rows) {
    SENKO_CUDA(cudaMemcpy(count.data(), &rows, 4, cudaMemcpyHostToDevice));
    EngramInjectSm90(p, nullptr);
    SENKO_CUDA(cudaDeviceSynchronize());
    return ToHost(streams);
  }
};

double GateOf(double dot) { return 1 / (1 + std::exp(-std::copysign(std::sqrt(std::max(std::abs(dot), 1e-6)), dot))); }

// In double; the bound is what float32 sums may move the gate by (8 columns in a row, a product's two roundings, 5
// steps over a warp, up to 20 warps: below 40 roundings), across the sign's jump where dot's sign is not certain, and
// one step of bf16.
void CheckInjection(const Injection& in, const std::vector<uint16_t>& got, bool images) {
  int64_t far = 0, other = 0;
  const int64_t d = in.hidden;
  for (int64_t r = 0; r < in.rows; ++r) {
    for (int64_t s = 0; s < 4; ++s) {
      const float* x = in.x.data() + (r * 4 + s) * d;
      const float* key = in.kv.data() + (r * 5 + s) * d;
      const float* value = in.kv.data() + (r * 5 + 4) * d;
      double a = 0, x2 = 0, k2 = 0, size = 0;
      for (int64_t c = 0; c < d; ++c) {
        const float weight = in.q[static_cast<size_t>(s * d + c)] * in.k[static_cast<size_t>(s * d + c)];
        const double term = double{x[c]} * double{weight} * double{key[c]};
        a += term;
        size += std::abs(term);
        x2 += double{x[c]} * x[c];
        k2 += double{key[c]} * key[c];
      }
      const double n = static_cast<double>(d);
      const double rs = 1 / std::sqrt(x2 / n + 1e-20) / std::sqrt(k2 / n + 1e-20) / std::sqrt(n);
      const double slack = 40 * 0x1p-24 * size * rs, gate = GateOf(a * rs);
      const double gate_error = std::max(GateOf(a * rs + slack) - gate, gate - GateOf(a * rs - slack)) + 3e-7;
      for (int64_t c = 0; c < d; ++c) {
        const float y = numerics::Bf16ToFloat(got[static_cast<size_t>((r * 4 + s) * d + c)]);
        if (images && in.is_image[static_cast<size_t>(r)] != 0) {
          other += numerics::FloatBits(y) != numerics::FloatBits(x[c]);
          continue;
        }
        const double want = x[c] + gate * value[c];
        const double bound = gate_error * std::abs(value[c]) + 0x1p-23 * (std::abs(want) + std::abs(value[c])) +
                             0x1.01p-8 * std::abs(want);
        far += !(std::abs(y - want) <= bound);
      }
    }
  }
  EXPECT_EQ(far, 0) << d;
  EXPECT_EQ(other, 0) << d;
}

TEST_F(EngramSm90Test, InjectionIsTheModels) {
  std::mt19937_64 random(std::random_device{}());
  ThreadPool pool(1);
  for (const int64_t hidden : {32, 128, 256, 512, 4096, 5120}) {
    for (const bool images : {true, false}) {
      const Injection in = MakeInjection(33, hidden, random);
      InjectionOnDevice d(in, 35, images);
      const std::vector<uint16_t> got = d.Run(33);
      CheckInjection(in, got, images);
      for (size_t i = in.x.size(); i < got.size(); ++i) ASSERT_EQ(got[i], kPoison);
      // The reference itself, nearly always its very bits.
      std::vector<float> x = in.x;
      EngramInjectReference({in.rows, 4, hidden, in.kv.data(), in.q.data(), in.k.data(), 1e-20f,
                             images ? in.is_image.data() : nullptr, true, x.data()},
                            pool);
      int64_t other = 0;
      for (size_t i = 0; i < x.size(); ++i) other += numerics::FloatToBf16(x[i]) != got[i];
      EXPECT_LE(other, static_cast<int64_t>(x.size()) / 50) << hidden;  // a dot near zero moves a stream
    }
  }
}

// A row's bits do not depend on the others, nor on a launch's size; a captured launch serves other counts.
TEST_F(EngramSm90Test, AnInjectedRowHasTheSameBitsAmongAnyRows) {
  std::mt19937_64 random(std::random_device{}());
  const int64_t hidden = 5120, most = 300;
  const Injection in = MakeInjection(most, hidden, random);
  const std::vector<uint16_t> all = InjectionOnDevice(in, most, true).Run(static_cast<int32_t>(most)),
                              before = Codes(in.x);
  for (const int64_t max_rows : {int64_t{1}, int64_t{20}, most}) {
    InjectionOnDevice d(in, max_rows, true);
    cuda::CapturedGraph graph([&](cudaStream_t stream) { EngramInjectSm90(d.p, stream); });
    for (const int32_t rows : {0, 1, 19, 299}) {
      if (rows > max_rows) continue;
      cuda::Overwrite(d.streams, before);
      cuda::Overwrite(d.count, {rows});
      graph.Run();
      const std::vector<uint16_t> got = ToHost(d.streams);
      const auto live = static_cast<size_t>(rows * 4 * hidden);
      EXPECT_EQ(std::memcmp(got.data(), all.data(), live * 2), 0) << rows;
      EXPECT_EQ(std::memcmp(got.data() + live, before.data() + live, (before.size() - live) * 2), 0) << rows;
    }
  }
}

// A stream of zeros: dot is +0 and gates a little above a half. All but zero: each root takes its factor alone.
TEST_F(EngramSm90Test, SmallStreamsAndNan) {
  std::mt19937_64 random(std::random_device{}());
  Injection in = MakeInjection(4, 256, random);
  std::fill(in.is_image.begin(), in.is_image.end(), uint8_t{0});
  std::fill_n(in.x.begin(), 256, 0.0f);                                       // row 0, stream 0
  for (int i = 0; i < 256; ++i) in.x[static_cast<size_t>(256 + i)] = 1e-16f;  // row 0, stream 1 and its key
  for (int i = 0; i < 256; ++i) in.kv[static_cast<size_t>(256 + i)] = -1e-16f;
  for (float& f : in.x) f = numerics::RoundToBf16(f);
  for (float& f : in.kv) f = numerics::RoundToBf16(f);
  CheckInjection(in, InjectionOnDevice(in, 4, false).Run(4), false);

  const auto nans = [&](const std::function<void(Injection&)>& put) {
    Injection with = in;
    put(with);
    const std::vector<uint16_t> got = InjectionOnDevice(with, 4, false).Run(4);
    std::vector<int64_t> count(16);
    for (size_t i = 0; i < got.size(); ++i) count[i / 256] += IsNan(got[i]);
    return count;
  };
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::vector<int64_t> want(16);
  want[6] = 256;  // row 1, stream 2
  EXPECT_EQ(nans([&](Injection& i) { i.kv[(5 + 2) * 256 + 77] = kNan; }), want);
  EXPECT_EQ(nans([&](Injection& i) { i.x[(4 + 2) * 256 + 255] = kNan; }), want);
  want.assign(16, 0);
  for (size_t s = 8; s < 12; ++s) want[s] = 1;  // a value: its column of row 2's streams
  EXPECT_EQ(nans([&](Injection& i) { i.kv[(10 + 4) * 256 + 3] = kNan; }), want);
  for (size_t r = 0; r < 4; ++r) {
    for (size_t s = 0; s < 4; ++s) want[4 * r + s] = s == 3 ? 256 : 0;  // a weight: its stream
  }
  EXPECT_EQ(nans([&](Injection& i) { i.k[3 * 256 + 9] = kNan; }), want);
}

// Without rounding points, for any number of streams.
TEST_F(EngramSm90Test, FloatInjectionIsTheReferences) {
  std::mt19937_64 random(std::random_device{}());
  ThreadPool pool(2);
  std::normal_distribution<float> normal;
  for (const int64_t hidden : {64, 288, 5120}) {
    for (int64_t streams = 1; streams <= 4; ++streams) {
      constexpr int64_t kRows = 29, kMost = 31;
      const auto floats = [&](int64_t count) {
        std::vector<float> v(static_cast<size_t>(count));
        for (float& f : v) f = normal(random);
        return v;
      };
      std::vector<float> kv = floats(kMost * (streams + 1) * hidden), x = floats(kMost * streams * hidden);
      const std::vector<float> q = floats(streams * hidden), k = floats(streams * hidden);
      std::vector<uint8_t> image(kMost);
      for (uint8_t& i : image) i = random() % 4 == 0;
      kv[static_cast<size_t>((2 * (streams + 1) + streams) * hidden + 9)] = NAN;
      const DeviceBuffer<float> d_kv = ToDevice(kv), d_x = ToDevice(x), d_q = ToDevice(q), d_k = ToDevice(k);
      const DeviceBuffer<uint8_t> d_image = ToDevice(image);
      const DeviceBuffer<int32_t> count = ToDevice(std::vector<int32_t>{static_cast<int32_t>(kRows)});
      BasicEngramInjectSm90Params<float> p;
      p.rows = count.data();
      p.max_rows = kMost;
      p.num_streams = streams;
      p.hidden = hidden;
      p.kv = d_kv.data();
      p.q_weight = d_q.data();
      p.k_weight = d_k.data();
      p.rms_eps = 1e-20f;
      p.is_image = d_image.data();
      p.streams = d_x.data();
      EngramInjectSm90(p, nullptr);
      SENKO_CUDA(cudaDeviceSynchronize());
      EngramInjectReference(
          {kRows, streams, hidden, kv.data(), q.data(), k.data(), 1e-20f, image.data(), false, x.data()}, pool);
      const std::vector<float> got = ToHost(d_x);
      for (size_t i = 0; i < x.size(); ++i) {
        if (std::isnan(x[i])) {
          ASSERT_TRUE(std::isnan(got[i])) << i;
        } else {  // a gate's root of a dot near zero magnifies the dot's error
          ASSERT_LE(std::abs(got[i] - x[i]), 2e-4f) << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace senko::ops
