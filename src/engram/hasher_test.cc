// The hash against model.md 3.7 written out literally, with the released constants and small configurations.
#include "engram/hasher.h"

#include <algorithm>
#include <random>
#include <set>

#include "base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace senko::engram {
namespace {

config::ModelConfig SmallConfig() {
  config::ModelConfig c;
  c.vocab_size = 300;
  c.image_token_id = 290;
  c.engram.layers = {1, 3};
  c.engram.rows = {0, 0};
  c.engram.max_ngram = 4;
  c.engram.vocab_size = 1000;
  c.engram.num_heads = 3;
  c.engram.head_dim = 32;
  c.engram.pad_token_id = 2;
  c.engram.compressed_vocab_size = 120;
  return c;
}

// Not the identity, and map[pad] != pad.
std::vector<int32_t> SomeMap(const config::ModelConfig& c, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> map(static_cast<size_t>(c.vocab_size));
  for (int32_t& m : map) m = static_cast<int32_t>(random() % static_cast<uint64_t>(c.engram.compressed_vocab_size));
  map[static_cast<size_t>(c.engram.pad_token_id)] = 7;
  return map;
}

// Every lookback gets its own full pass over "is anything from here to i blocked", in 128-bit arithmetic.
std::vector<int64_t> Literal(const config::ModelConfig& c, const std::vector<int32_t>& map, size_t layer,
                             const std::vector<int32_t>& tokens, int64_t i) {
  const config::EngramLayerHash hash = config::MakeEngramHash(c.engram)[layer];
  std::vector<int64_t> rows;
  for (int64_t g = 2; g <= c.engram.max_ngram; ++g) {
    for (int64_t head = 0; head < c.engram.num_heads; ++head) {
      __extension__ unsigned __int128 h = 0;
      for (int64_t s = 0; s < g; ++s) {
        bool blocked = false;
        for (int64_t t = 0; t <= s; ++t) blocked |= i - t < 0 || tokens[static_cast<size_t>(i - t)] == c.image_token_id;
        const int64_t token = blocked ? c.engram.pad_token_id : tokens[static_cast<size_t>(i - s)];
        __extension__ const unsigned __int128 product =
            static_cast<unsigned __int128>(map[static_cast<size_t>(token)]) * hash.multipliers[static_cast<size_t>(s)];
        EXPECT_EQ(static_cast<uint64_t>(product >> 63), 0u) << "overflows int64";
        h ^= product;
      }
      const size_t k = static_cast<size_t>((g - 2) * c.engram.num_heads + head);
      rows.push_back(static_cast<int64_t>(h % static_cast<uint64_t>(hash.primes[k])) + hash.offsets[k]);
    }
  }
  return rows;
}

TEST(Hasher, MatchesTheFormulaAroundEdgesAndImages) {
  const config::ModelConfig c = SmallConfig();
  const auto map = SomeMap(c, 1);
  const Hasher hasher(c, map);
  ASSERT_EQ(hasher.slots(), 9);
  ASSERT_EQ(hasher.num_layers(), 2);
  std::mt19937_64 random(2);
  for (int round = 0; round < 20; ++round) {
    std::vector<int32_t> tokens(40);
    for (int32_t& t : tokens) t = random() % 5 == 0 ? 290 : static_cast<int32_t>(random() % 300);
    for (int64_t layer = 0; layer < 2; ++layer) {
      for (int64_t i = 0; i < 40; ++i) {
        std::vector<int64_t> rows(9, -1);
        hasher.Rows(layer, tokens.data(), 0, i, rows.data());
        EXPECT_EQ(rows, Literal(c, map, static_cast<size_t>(layer), tokens, i)) << i;
      }
    }
  }
}

TEST(Hasher, ReleasedConstants) {
  config::ModelConfig c = SmallConfig();
  c.vocab_size = 129280;
  c.image_token_id = 129264;
  c.engram.layers = {1, 14};
  c.engram.vocab_size = 16000000;
  c.engram.num_heads = 8;
  c.engram.compressed_vocab_size = 99092;
  const auto map = SomeMap(c, 3);
  const Hasher hasher(c, map);
  // Literal numbers of model.md 3.7: layer 1's first bigram head, layer 14's last 4-gram head.
  const std::vector<int32_t> tokens = {671, 50000, 129279, 17};
  std::vector<int64_t> rows(24, -1);
  hasher.Rows(0, tokens.data(), 0, 3, rows.data());
  const auto id = [&](int64_t s) {
    return static_cast<uint64_t>(map[static_cast<size_t>(tokens[static_cast<size_t>(3 - s)])]);
  };
  const uint64_t h2 = (id(0) * 76632096046245u) ^ (id(1) * 4839876093313u);
  EXPECT_EQ(rows[0], static_cast<int64_t>(h2 % 16000057));
  EXPECT_EQ(rows[1], static_cast<int64_t>(h2 % 16000079) + 16000057);
  hasher.Rows(1, tokens.data(), 0, 3, rows.data());
  const uint64_t h4 =
      (id(0) * 67716810739261u) ^ (id(1) * 51510806800915u) ^ (id(2) * 30921347202721u) ^ (id(3) * 82619226485591u);
  EXPECT_EQ(rows[23], static_cast<int64_t>(h4 % 16000889) + (384016682 - 16000889));
  std::mt19937_64 random(4);
  std::vector<int32_t> many(2000);
  for (int32_t& t : many) t = static_cast<int32_t>(random() % 129280);
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 2000; ++i) {
    hasher.Rows(1, many.data(), 0, i, rows.data());
    for (const int64_t r : rows) ASSERT_TRUE(r >= 0 && r < 384016682);
    seen.insert(rows.begin(), rows.end());
  }
  EXPECT_GT(seen.size(), 47000u);  // 48,000 draws from 384 million hardly collide
}

TEST(Hasher, BadIdsAndMapsAreRefusedByName) {
  const config::ModelConfig c = SmallConfig();
  const Hasher hasher(c, SomeMap(c, 5));
  std::vector<int64_t> rows(9);
  for (const int32_t bad : {-1, 300, 2000000000}) {
    const std::vector<int32_t> tokens = {1, bad, 3};
    hasher.Rows(0, tokens.data(), 0, 0, rows.data());
    EXPECT_THAT([&] { hasher.Rows(0, tokens.data(), 0, 2, rows.data()); },
                testing::ThrowsMessage<Error>(testing::HasSubstr("position 1")));
  }
  auto map = SomeMap(c, 6);
  map.pop_back();
  EXPECT_THAT([&] { Hasher(c, map); }, testing::ThrowsMessage<Error>(testing::HasSubstr("299 entries")));
  map.push_back(120);
  EXPECT_THAT([&] { Hasher(c, map); }, testing::ThrowsMessage<Error>(testing::HasSubstr("token 299")));
  map.back() = -1;
  EXPECT_THAT([&] { Hasher(c, map); }, testing::ThrowsMessage<Error>(testing::HasSubstr("token 299")));
  config::ModelConfig no_pad = c;
  no_pad.engram.pad_token_id = 300;
  EXPECT_THAT([&] { Hasher(no_pad, SomeMap(c, 7)); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("engram_pad_token_id")));
}

}  // namespace
}  // namespace senko::engram
