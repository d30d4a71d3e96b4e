// Attention of a few queries over a paged KV cache, with a running softmax (Milakov and Gimelshein, 2018), in two
// products a span of keys: queries times keys, then softened weights times values.

#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "vectors.h"

constexpr int SPAN = 256;        // keys between two corrections of the running softmax
constexpr int MAX_QUERIES = 24;  // query heads (of neighbouring tokens) that share a pass over the keys
constexpr int GROUP = 6;         // of these, how many share registers

// A layer's KV cache: for each block and key head its keys, [head_dim / 2][block_size] pairs of dimensions, then its
// values, [block_size / 2][head_dim] pairs of keys.
struct Cache {
    bf16* memory;
    int64_t block_size, kv_heads, head_dim;
    int64_t head_size() const { return block_size * head_dim; }
    bf16* keys(int64_t block, int64_t head) const { return memory + (block * kv_heads + head) * 2 * head_size(); }
};

// scores[q][k] = query q times key k, for COUNT queries and T tiles of 16 keys.
template <int COUNT, int T>
void score(const bf16* const* queries, const bf16* const* tiles, int64_t pair_stride, int64_t head_dim, float* scores) {
    Floats acc[COUNT][T];
#pragma GCC unroll 8
    for (int q = 0; q < COUNT; q++)
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) acc[q][t] = Floats{};
    for (int64_t d = 0; d < head_dim; d += 2) {
        Pairs keys[T];
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) keys[t] = load<Pairs>(tiles[t] + (d / 2) * pair_stride);
#pragma GCC unroll 8
        for (int q = 0; q < COUNT; q++) {
            const Pairs a = spread(queries[q] + d);
#pragma GCC unroll 8
            for (int t = 0; t < T; t++) acc[q][t] = add_products(acc[q][t], keys[t], a);
        }
    }
#pragma GCC unroll 8
    for (int q = 0; q < COUNT; q++)
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) std::memcpy(scores + q * SPAN + t * LANES, &acc[q][t], sizeof(Floats));
}

// output[q] += weights[q] times values, for COUNT queries and 16 * WIDTH dimensions from d, a pair of keys at a time.
template <int COUNT, int WIDTH>
void gather(const bf16* weights, const bf16* const* tiles, int64_t keys, int64_t head_dim, int64_t d, float* output) {
    Floats acc[COUNT][WIDTH];
    output += d;
#pragma GCC unroll 8
    for (int q = 0; q < COUNT; q++)
#pragma GCC unroll 8
        for (int v = 0; v < WIDTH; v++) acc[q][v] = load<Floats>(output + q * head_dim + v * LANES);
    for (int64_t k = 0; k < keys; k += 2) {
        const bf16* pairs = tiles[k / LANES] + (k % LANES) * head_dim + 2 * d;
        // A slot that nothing was written to may hold anything, and 0 * NaN is NaN.
        const Pairs written = Pairs{} + (k + 1 < keys ? 0xffffffffu : 0x0000ffffu);
        Pairs values[WIDTH];
#pragma GCC unroll 8
        for (int v = 0; v < WIDTH; v++) values[v] = load<Pairs>(pairs + v * 2 * LANES) & written;
#pragma GCC unroll 8
        for (int q = 0; q < COUNT; q++) {
            const Pairs a = spread(weights + q * SPAN + k);
#pragma GCC unroll 8
            for (int v = 0; v < WIDTH; v++) acc[q][v] = add_products(acc[q][v], values[v], a);
        }
    }
#pragma GCC unroll 8
    for (int q = 0; q < COUNT; q++)
#pragma GCC unroll 8
        for (int v = 0; v < WIDTH; v++) std::memcpy(output + q * head_dim + v * LANES, &acc[q][v], sizeof(Floats));
}

typedef void (*Score)(const bf16* const*, const bf16* const*, int64_t, int64_t, float*);
typedef void (*Gather)(const bf16*, const bf16* const*, int64_t, int64_t, int64_t, float*);
template <int T>
constexpr Score SCORES[GROUP] = {score<1, T>, score<2, T>, score<3, T>, score<4, T>, score<5, T>, score<6, T>};
template <int W>
constexpr Gather GATHERS[GROUP] = {gather<1, W>, gather<2, W>, gather<3, W>, gather<4, W>, gather<5, W>, gather<6, W>};

// Turn scores of `count` keys, of which the query sees `seen`, into bfloat16 weights relative to a running maximum.
// Returns what the sums so far must be multiplied by.
inline float soften(float* scores, bf16* weights, int64_t count, int64_t seen, float scale, float& maximum,
                    float& total) {
    const int64_t padded = (count + LANES - 1) / LANES * LANES;
    for (int64_t k = std::max<int64_t>(seen, 0); k < padded; k++) scores[k] = -std::numeric_limits<float>::infinity();
    Floats highest = load<Floats>(scores);
    for (int64_t k = LANES; k < padded; k += LANES) {
        const Floats s = load<Floats>(scores + k);
        highest = s > highest ? s : highest;
    }
    const float before = maximum;
    maximum = std::max(before, largest_of(highest) * scale);
    const float correction = std::exp(before - maximum);
    Floats sum = {};
    for (int64_t k = 0; k < padded; k += LANES) {
        const Floats w = exp16(load<Floats>(scores + k) * scale - maximum);
        sum += w;
        store16(weights + k, w);
    }
    total = total * correction + sum_of(sum);
    return correction;
}

// Attention of `tokens` neighbouring tokens, the first of which sees `first_seen` keys, through one key head.
inline void attend_queries(const bf16* query, int64_t query_stride, bf16* output, int64_t output_stride, int64_t tokens,
                           int64_t share, int64_t first_seen, const int32_t* blocks, int64_t kv_head,
                           const Cache& cache, float scale) {
    const int64_t dim = cache.head_dim, count = tokens * share, last_seen = first_seen + tokens - 1;
    const bf16* queries[MAX_QUERIES];
    float maximum[MAX_QUERIES], total[MAX_QUERIES];
    alignas(64) float scores[GROUP * SPAN];
    alignas(64) bf16 weights[GROUP * SPAN];
    thread_local std::vector<float> sums;
    sums.assign(count * dim, 0.0f);
    for (int64_t q = 0; q < count; q++) {
        queries[q] = query + (q / share) * query_stride + (kv_head * share + q % share) * dim;
        maximum[q] = -std::numeric_limits<float>::max();
        total[q] = 0.0f;
    }
    for (int64_t begin = 0; begin < last_seen; begin += SPAN) {
        const int64_t keys = std::min<int64_t>(SPAN, last_seen - begin), num_tiles = (keys + LANES - 1) / LANES;
        const bf16 *key_tiles[SPAN / LANES], *value_tiles[SPAN / LANES];
        for (int64_t t = 0; t < num_tiles; t++) {
            const int64_t place = begin + t * LANES, inside = place % cache.block_size;
            const bf16* keys_here = cache.keys(blocks[place / cache.block_size], kv_head);
            key_tiles[t] = keys_here + 2 * inside;
            value_tiles[t] = keys_here + cache.head_size() + inside * dim;
        }
        for (int64_t q = 0; q < count; q += GROUP) {
            const int64_t group = std::min<int64_t>(GROUP, count - q);
            int64_t t = 0;
            for (; t + 4 <= num_tiles; t += 4)
                SCORES<4>[group - 1](queries + q, key_tiles + t, 2 * cache.block_size, dim, scores + t * LANES);
            for (; t < num_tiles; t++)
                SCORES<1>[group - 1](queries + q, key_tiles + t, 2 * cache.block_size, dim, scores + t * LANES);
            for (int64_t i = q; i < q + group; i++) {
                const int64_t seen = first_seen + i / share - begin;
                const float correction =
                    soften(scores + (i - q) * SPAN, weights + (i - q) * SPAN, keys, seen, scale, maximum[i], total[i]);
                if (begin > 0 && correction != 1.0f)
                    for (int64_t d = 0; d < dim; d++) sums[i * dim + d] *= correction;
            }
            int64_t d = 0;
            for (; d + 4 * LANES <= dim; d += 4 * LANES)
                GATHERS<4>[group - 1](weights, value_tiles, keys, dim, d, sums.data() + q * dim);
            for (; d < dim; d += LANES) GATHERS<1>[group - 1](weights, value_tiles, keys, dim, d, sums.data() + q * dim);
        }
    }
    for (int64_t q = 0; q < count; q++) {
        bf16* out = output + (q / share) * output_stride + (kv_head * share + q % share) * dim;
        for (int64_t d = 0; d < dim; d += LANES) store16(out + d, load<Floats>(sums.data() + q * dim + d) / total[q]);
    }
}
