// Vectors of 16 numbers. bfloat16 numbers come in *pairs*, neighbours along a summed dimension, one pair a 32-bit lane,
// because AVX512-BF16 multiplies pairs and adds the two products to a float32 sum in one instruction.

#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#ifndef __AVX512BF16__
#error "these kernels need a processor with AVX512-BF16"
#endif

typedef uint16_t bf16;
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Pairs __attribute__((vector_size(64)));

constexpr int LANES = 16;

// Whatever lies at that address, aligned or not.
template <class To>
inline To load(const void* from) {
    To to;
    std::memcpy(&to, from, sizeof(to));
    return to;
}

// 16 bfloat16 numbers as float32, and back, rounded to nearest.
inline Floats load16(const bf16* from) {
    return (Floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from)), 16);
}

inline void store16(bf16* to, const Floats& x) {
    _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh((__m512)x));
}

// The pair at that address, in every lane.
inline Pairs spread(const bf16* pair) { return Pairs{} + load<uint32_t>(pair); }

// sum + first(a) * first(b) + second(a) * second(b), lane by lane.
inline Floats add_products(const Floats& sum, const Pairs& a, const Pairs& b) {
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}

inline float sum_of(const Floats& x) { return _mm512_reduce_add_ps((__m512)x); }
inline float largest_of(const Floats& x) { return _mm512_reduce_max_ps((__m512)x); }

// e^x to about 2 units in the last place (Cephes' polynomial); 0 below -87.
inline Floats exp16(Floats x) {
    const Floats lowest = Floats{} - 87.0f, highest = Floats{} + 88.0f;
    const Ints tiny = x < lowest;
    x = tiny ? lowest : x;
    x = x > highest ? highest : x;
    const Floats magic = Floats{} + 12582912.0f;  // 1.5 * 2^23: adding and taking it away rounds to an integer
    const Floats n = (x * 1.44269504f + magic) - magic;
    const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const Ints power = (__builtin_convertvector(n, Ints) + 127) << 23;
    const Floats y = p * (Floats)power;
    return tiny ? Floats{} : y;
}
