// Stored weights times rows of pairs, one function per format, for linear_dot.cc alone, which includes this between its
// target attributes.
#pragma once

namespace senko::ops {
namespace {

// ---- FP4 ----

// The first `groups` (1..16) groups of a block at p, zeros after them; transposed as LoadFp4Block has it.
template <bool kWhole>
inline void LoadBlock(const uint8_t* p, int64_t groups, __m512i* t) {
  __m512i v[4];
  for (int q = 0; q < 4; ++q) {
    if constexpr (kWhole) {
      v[q] = _mm512_loadu_si512(p + 64 * q);
    } else {
      const int64_t bytes = std::clamp<int64_t>(16 * groups - 64 * q, 0, 64);
      const __mmask64 mask = bytes == 64 ? ~__mmask64{0} : (__mmask64{1} << bytes) - 1;
      v[q] = _mm512_maskz_loadu_epi8(mask, p + 64 * q);
    }
  }
  const __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), c = _mm512_unpackhi_epi32(v[0], v[1]);
  const __m512i d = _mm512_unpacklo_epi32(v[2], v[3]), e = _mm512_unpackhi_epi32(v[2], v[3]);
  t[0] = _mm512_unpacklo_epi64(a, d);
  t[1] = _mm512_unpackhi_epi64(a, d);
  t[2] = _mm512_unpacklo_epi64(c, e);
  t[3] = _mm512_unpackhi_epi64(c, e);
}

// bf16 of an e2m1 code, twice: a lookup of words takes five bits, and the fifth is the next code's.
inline __m512i Fp4Table() {
  const __m256i once = _mm256_setr_epi16(0, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0,  //
                                         -0x8000, -0x4100, -0x4080, -0x4040, -0x4000, -0x3FC0, -0x3F80, -0x3F40);
  return _mm512_broadcast_i64x4(once);
}

// Sixteen scale codes c as the floats 2^(c - 127), in lane order. 0 and 255 come out as zero and infinity: the smallest
// code is kept, and infinity reaches the output.
template <bool kWhole>
inline __m512 BlockScales(const uint8_t* p, int64_t groups, __m128i& least) {
  __m128i codes;
  if constexpr (kWhole) {
    codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  } else {
    codes = _mm_mask_loadu_epi8(_mm_set1_epi8(127), static_cast<__mmask16>((1u << groups) - 1), p);
  }
  least = _mm_min_epu8(least, codes);
  // Code 4 (l mod 4) + l / 4 to the third byte of lane l.
  const __m512i order = _mm512_setr_epi32(0 << 16, 4 << 16, 8 << 16, 12 << 16, 1 << 16, 5 << 16, 9 << 16, 13 << 16,
                                          2 << 16, 6 << 16, 10 << 16, 14 << 16, 3 << 16, 7 << 16, 11 << 16, 15 << 16);
  const __m512i spread = _mm512_maskz_permutexvar_epi8(0x4444444444444444, order, _mm512_castsi128_si512(codes));
  return _mm512_castsi512_ps(_mm512_slli_epi32(spread, 7));
}

template <int j, int i, int kOuts, int kRows>
inline void Fp4Word(const __m512i (&t)[kOuts][4], __m512i table, const uint16_t* const* x, int64_t k,
                    __m512 (&part)[kOuts][kRows]) {
  __m512i w[kOuts];
  for (int o = 0; o < kOuts; ++o) {
    w[o] = _mm512_permutexvar_epi16(i == 0 ? t[o][j] : _mm512_srli_epi16(t[o][j], 4 * i), table);
  }
  for (int r = 0; r < kRows; ++r) {
    const __m512i pairs = LoadPairs(x[r] + k + 32 * (4 * j + i));
    for (int o = 0; o < kOuts; ++o) part[o][r] = Dot(part[o][r], pairs, w[o]);
  }
}

template <int j, int kOuts, int kRows>
inline void Fp4Dword(const __m512i (&t)[kOuts][4], __m512i table, const uint16_t* const* x, int64_t k,
                     __m512 (&part)[kOuts][kRows]) {
  Fp4Word<j, 0>(t, table, x, k, part);
  Fp4Word<j, 1>(t, table, x, k, part);
  Fp4Word<j, 2>(t, table, x, k, part);
  Fp4Word<j, 3>(t, table, x, k, part);
}

// The block at w[o], s[o], whose x starts at column k. least: per output, the smallest scale codes.
template <bool kWhole, int kOuts, int kRows>
inline void Fp4Block(const uint8_t* const* w, const uint8_t* const* s, int64_t groups, int64_t ahead,
                     const uint16_t* const* x, int64_t k, __m128i& least, Sums<kOuts, kRows>& sums) {
  __m512i t[kOuts][4];
  for (int o = 0; o < kOuts; ++o) {
    if constexpr (kWhole) {
      for (int line = 0; line < 256; line += 64) _mm_prefetch(w[o] + ahead + line, _MM_HINT_T0);
    }
    LoadBlock<kWhole>(w[o], groups, t[o]);
  }
  const __m512i table = Fp4Table();
  __m512 part[kOuts][kRows];
  for (auto& out : part) {
    for (__m512& sum : out) sum = _mm512_setzero_ps();
  }
  Fp4Dword<0>(t, table, x, k, part);
  Fp4Dword<1>(t, table, x, k, part);
  Fp4Dword<2>(t, table, x, k, part);
  Fp4Dword<3>(t, table, x, k, part);
  for (int o = 0; o < kOuts; ++o) {
    const __m512 scale = BlockScales<kWhole>(s[o], groups, least);
    for (int r = 0; r < kRows; ++r) sums.lane[o][r] = _mm512_fmadd_ps(part[o][r], scale, sums.lane[o][r]);
  }
}

template <int kOuts, int kRows>
inline bool Fp4Dot(const WeightView& weight, int64_t n, const DotRow* rows, Sums<kOuts, kRows>& sums) {
  const uint16_t* x[kRows];
  for (int r = 0; r < kRows; ++r) x[r] = rows[r].pairs;
  const uint8_t *w[kOuts], *s[kOuts];
  for (int o = 0; o < kOuts; ++o) {
    w[o] = weight.data + (n + o) * (weight.in / 2);
    s[o] = weight.scale + (n + o) * (weight.in / 32);
  }
  const int64_t ahead = kOuts * (weight.in / 2);
  __m128i least = _mm_set1_epi8(127);
  for (int64_t k0 = 0; k0 < weight.in; k0 += kChunk) {
    sums.Clear();
    const int64_t end = std::min(k0 + kChunk, weight.in);
    for (int64_t k = k0; k < end; k += kFp4BlockCols) {
      if (k + kFp4BlockCols <= end) {
        Fp4Block<true>(w, s, 16, ahead, x, k, least, sums);
      } else {
        Fp4Block<false>(w, s, (end - k) / 32, ahead, x, k, least, sums);
      }
      for (int o = 0; o < kOuts; ++o) {
        w[o] += kFp4BlockCols / 2;
        s[o] += kFp4BlockCols / 32;
      }
    }
    sums.EndChunk();
  }
  return _mm_testz_si128(_mm_cmpeq_epi8(least, _mm_setzero_si128()), _mm_set1_epi8(-1)) != 0;
}

// ---- FP8 ----

struct Fp8Pairs {
  __m512i first, second;  // columns 0..31 and 32..63
};
struct Fp8Lookup {
  __m512i low[2], high[2], order, sign;
  inline Fp8Lookup() {
    for (int i = 0; i < 2; ++i) {
      low[i] = _mm512_load_si512(kFp8Table.low + 64 * i);
      high[i] = _mm512_load_si512(kFp8Table.high + 64 * i);
    }
    order = _mm512_load_si512(kFp8Table.order);
    sign = _mm512_set1_epi8(-0x80);
  }
  inline Fp8Pairs operator()(__m512i stored) const {
    const __m512i codes = _mm512_permutexvar_epi8(order, stored);
    const __m512i l = _mm512_permutex2var_epi8(low[0], codes, low[1]);
    const __m512i magnitude = _mm512_permutex2var_epi8(high[0], codes, high[1]);
    const __m512i h = _mm512_ternarylogic_epi32(magnitude, codes, sign, 0xF8);  // magnitude | (codes & sign)
    return {_mm512_unpacklo_epi8(l, h), _mm512_unpackhi_epi8(l, h)};
  }
};

// x comes from ScalePairs.
template <int kOuts, int kRows>
inline void Fp8Dot(const WeightView& weight, int64_t n, const DotRow* rows, Sums<kOuts, kRows>& sums) {
  const uint16_t* x[kRows];
  for (int r = 0; r < kRows; ++r) x[r] = rows[r].pairs;
  const uint8_t* w[kOuts];
  for (int o = 0; o < kOuts; ++o) w[o] = weight.data + (n + o) * weight.in;
  const int64_t ahead = kOuts * weight.in;
  const Fp8Lookup lookup;
  for (int64_t k0 = 0; k0 < weight.in; k0 += kChunk) {
    const int64_t end = std::min(k0 + kChunk, weight.in);
    sums.Clear();
    int64_t k = k0;
    for (; k + 64 <= end; k += 64) {
      for (int o = 0; o < kOuts; ++o) {
        _mm_prefetch(w[o] + k + ahead, _MM_HINT_T0);
        const Fp8Pairs pairs = lookup(_mm512_loadu_si512(w[o] + k));
        for (int r = 0; r < kRows; ++r) {
          sums.lane[o][r] = Dot(sums.lane[o][r], LoadPairs(x[r] + k), pairs.first);
          sums.lane[o][r] = Dot(sums.lane[o][r], LoadPairs(x[r] + k + 32), pairs.second);
        }
      }
    }
    if (k < end) {
      for (int o = 0; o < kOuts; ++o) {
        const Fp8Pairs pairs = lookup(_mm512_maskz_loadu_epi8(0xFFFFFFFF, w[o] + k));
        for (int r = 0; r < kRows; ++r) {
          sums.lane[o][r] = Dot(sums.lane[o][r], LoadPairs(x[r] + k), pairs.first);
        }
      }
    }
    sums.EndChunk();
  }
}

// ---- bf16 ----

// Returns the exponent of the smallest weight but zero.
template <int kOuts, int kRows>
inline int Bf16Dot(const WeightView& weight, int64_t n, const DotRow* rows, Sums<kOuts, kRows>& sums) {
  const uint16_t* x[kRows];
  for (int r = 0; r < kRows; ++r) x[r] = rows[r].pairs;
  const uint8_t* w[kOuts];
  for (int o = 0; o < kOuts; ++o) w[o] = weight.data + (n + o) * weight.in * 2;
  const int64_t ahead = kOuts * weight.in * 2;
  // Words l and 16 + l to lane l.
  const __m512i order =
      _mm512_setr_epi32(0x100000, 0x110001, 0x120002, 0x130003, 0x140004, 0x150005, 0x160006, 0x170007, 0x180008,
                        0x190009, 0x1A000A, 0x1B000B, 0x1C000C, 0x1D000D, 0x1E000E, 0x1F000F);
  const __m512i one = _mm512_set1_epi16(1);
  __m512i least = _mm512_set1_epi16(-1);
  for (int64_t k0 = 0; k0 < weight.in; k0 += kChunk) {
    const int64_t end = std::min(k0 + kChunk, weight.in);
    sums.Clear();
    for (int64_t k = k0; k < end; k += 32) {
      for (int o = 0; o < kOuts; ++o) {
        _mm_prefetch(w[o] + 2 * k + ahead, _MM_HINT_T0);
        const __m512i pairs = _mm512_permutexvar_epi16(order, _mm512_loadu_si512(w[o] + 2 * k));
        least = _mm512_min_epu16(least, _mm512_sub_epi16(_mm512_add_epi16(pairs, pairs), one));
        for (int r = 0; r < kRows; ++r) sums.lane[o][r] = Dot(sums.lane[o][r], LoadPairs(x[r] + k), pairs);
      }
    }
    sums.EndChunk();
  }
  return LeastExponent(least);
}

}  // namespace
}  // namespace senko::ops
