// The two halves of a decoder layer on a CPU, called from Python through ctypes (native.py names the same structs).

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "attention.h"
#include "linear.h"
#include "vectors.h"

namespace {

// Small work is done where it stands: waking the other threads takes a microsecond or two.
constexpr int64_t WORTH_THREADS = 1 << 13;

struct Weight {
    const bf16* tiles;
    const float* bias;
    int64_t in, out;
};

struct Layer {
    const bf16 *input_norm, *post_attention_norm, *query_norm, *key_norm;
    Weight qkv, output, gate_up, down;
    int64_t heads, kv_heads, head_dim;
    double rms_norm_eps;
};

struct Step {
    int64_t tokens, sequences, max_blocks, block_size, threads;
    const int32_t *query_start, *context_lens, *block_tables;
    const int64_t* slots;
    const float *cos, *sin;                   // [tokens][head_dim / 2]
    bf16 *residual, *update;                  // [tokens][hidden]; what is not yet added is in update
    bf16 *normed, *heads, *attended, *inner;  // what a half computes on its way
    int64_t has_update;
    double attend_s;  // seconds in `write` and `attend`, of all layers so far
};

void linear(const bf16* x, const Weight& weight, void* out, bool float_out, int64_t rows, int64_t threads) {
    const int64_t tiles = (weight.out + TILE - 1) / TILE;
    linear_tiles(x, weight.tiles, rows, weight.in, tiles, threads, [&](int64_t tile, int64_t row, Floats* sums) {
        const int64_t first = tile * TILE, at = row * weight.out + first;
        const int64_t width = std::min<int64_t>(TILE, weight.out - first);
        const float* bias = weight.bias + first;
        if (weight.bias) sums[0] += load<Floats>(bias), sums[1] += load<Floats>(bias + LANES);
        if (float_out) {
            std::memcpy((float*)out + at, sums, width * sizeof(float));
        } else if (width == TILE) {
            store16((bf16*)out + at, sums[0]), store16((bf16*)out + at + LANES, sums[1]);
        } else {
            bf16 rounded[TILE];
            store16(rounded, sums[0]), store16(rounded + LANES, sums[1]);
            std::memcpy((bf16*)out + at, rounded, width * sizeof(bf16));
        }
    });
}

// silu(gate) * up, from tiles that hold 16 gate features and their 16 up features.
void gated_linear(const bf16* x, const Weight& weight, bf16* out, int64_t rows, int64_t threads) {
    linear_tiles(x, weight.tiles, rows, weight.in, weight.out / LANES, threads,
                 [&](int64_t tile, int64_t row, Floats* sums) {
                     const float* bias = weight.bias + tile * TILE;
                     if (weight.bias) sums[0] += load<Floats>(bias), sums[1] += load<Floats>(bias + LANES);
                     store16(out + row * weight.out + tile * LANES, sums[0] / (1.0f + exp16(-sums[0])) * sums[1]);
                 });
}

// Rows [outer][inner][size], with strides between the outer ones; `update`, where given, is added to the row before.
void rms_norm(bf16* x, int64_t x_stride, const bf16* update, const bf16* weight, bf16* out, int64_t out_stride,
              int64_t outer, int64_t inner, int64_t size, float eps, int64_t threads) {
    if (outer * inner * size < WORTH_THREADS) threads = 1;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < outer * inner; i++) {
        bf16* row = x + (i / inner) * x_stride + (i % inner) * size;
        bf16* to = out + (i / inner) * out_stride + (i % inner) * size;
        Floats squares = {};
        for (int64_t d = 0; d < size; d += LANES) {
            if (update) store16(row + d, load16(row + d) + load16(update + i * size + d));
            const Floats v = load16(row + d);
            squares += v * v;
        }
        const float factor = 1.0f / std::sqrt(sum_of(squares) / size + eps);
        for (int64_t d = 0; d < size; d += LANES) store16(to + d, load16(row + d) * factor * load16(weight + d));
    }
}

// Add the update, if there is one, to the residual stream, and norm the sum.
void norm_residual(const Step& step, const bf16* weight, int64_t size, float eps, bf16* out) {
    rms_norm(step.residual, size, step.has_update ? step.update : nullptr, weight, out, size, step.tokens, 1, size, eps,
             step.threads);
}

// Turn heads [tokens][heads][head_dim] in place.
void rotate(bf16* x, int64_t x_stride, int64_t heads, int64_t head_dim, const Step& step) {
    const int64_t half = head_dim / 2, threads = step.tokens * heads * head_dim < WORTH_THREADS ? 1 : step.threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t token = 0; token < step.tokens; token++) {
        const float *c = step.cos + token * half, *s = step.sin + token * half;
        for (int64_t head = 0; head < heads; head++) {
            bf16 *a = x + token * x_stride + head * head_dim, *b = a + half;
            for (int64_t i = 0; i < half; i += LANES) {
                const Floats first = load16(a + i), second = load16(b + i);
                const Floats ci = load<Floats>(c + i), si = load<Floats>(s + i);
                store16(a + i, first * ci - second * si);
                store16(b + i, first * si + second * ci);
            }
        }
    }
}

// Store keys and values [tokens][kv_heads][head_dim] at their slots.
void write(const bf16* key, const bf16* value, int64_t stride, const Cache& cache, const Step& step) {
    const int64_t dim = cache.head_dim, threads = step.tokens * cache.kv_heads * dim < WORTH_THREADS ? 1 : step.threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t token = 0; token < step.tokens; token++) {
        const int64_t block = step.slots[token] / cache.block_size, place = step.slots[token] % cache.block_size;
        for (int64_t head = 0; head < cache.kv_heads; head++) {
            const bf16 *k = key + token * stride + head * dim, *v = value + token * stride + head * dim;
            bf16* to = cache.keys(block, head) + 2 * place;
            for (int64_t d = 0; d < dim; d += 2) std::memcpy(to + d * cache.block_size, k + d, 2 * sizeof(bf16));
            to = cache.keys(block, head) + cache.head_size() + (place / 2) * 2 * dim + place % 2;
            for (int64_t d = 0; d < dim; d++) to[2 * d] = v[d];
        }
    }
}

void attend(const bf16* query, int64_t query_stride, int64_t heads, bf16* out, const Cache& cache, const Step& step,
            float scale) {
    const int64_t dim = cache.head_dim, share = heads / cache.kv_heads;
    const int64_t at_once = std::max<int64_t>(1, MAX_QUERIES / share);
    const int32_t* start = step.query_start;
    std::vector<int64_t> first_piece(step.sequences + 1, 0);  // of each sequence; a piece is some tokens of one
    for (int64_t s = 0; s < step.sequences; s++)
        first_piece[s + 1] = first_piece[s] + (start[s + 1] - start[s] + at_once - 1) / at_once;
    const int64_t pieces = first_piece[step.sequences];
    // The heads of a block lie together, so one thread had better take them all, if there is enough to do.
    const int64_t together = pieces >= 4 * step.threads ? cache.kv_heads : 1;
#pragma omp parallel for num_threads(step.threads) schedule(dynamic, together)
    for (int64_t task = 0; task < pieces * cache.kv_heads; task++) {
        const int64_t piece = task / cache.kv_heads;
        const int64_t s = std::upper_bound(first_piece.begin(), first_piece.end(), piece) - first_piece.begin() - 1;
        const int64_t length = start[s + 1] - start[s], first = (piece - first_piece[s]) * at_once;
        const int64_t row = start[s] + first;
        attend_queries(query + row * query_stride, query_stride, out + row * heads * dim, heads * dim,
                       std::min(at_once, length - first), share, step.context_lens[s] - length + first + 1,
                       step.block_tables + s * step.max_blocks, task % cache.kv_heads, cache, scale);
    }
}

}  // namespace

extern "C" {

int64_t max_query_heads_per_kv_head() { return MAX_QUERIES; }

void attention_half(const Layer* layer, Step* step, bf16* kv_cache) {
    const int64_t dim = layer->head_dim, heads = layer->heads, kv_heads = layer->kv_heads;
    const int64_t stride = (heads + 2 * kv_heads) * dim;
    const float eps = layer->rms_norm_eps;
    const Cache cache = {kv_cache, step->block_size, kv_heads, dim};
    bf16 *query = step->heads, *key = query + heads * dim, *value = key + kv_heads * dim;
    norm_residual(*step, layer->input_norm, layer->qkv.in, eps, step->normed);
    linear(step->normed, layer->qkv, step->heads, false, step->tokens, step->threads);
    if (layer->query_norm)
        rms_norm(query, stride, nullptr, layer->query_norm, query, stride, step->tokens, heads, dim, eps,
                 step->threads);
    if (layer->key_norm)
        rms_norm(key, stride, nullptr, layer->key_norm, key, stride, step->tokens, kv_heads, dim, eps, step->threads);
    rotate(query, stride, heads + kv_heads, dim, *step);
    const auto start = std::chrono::steady_clock::now();
    write(key, value, stride, cache, *step);
    attend(query, stride, heads, step->attended, cache, *step, 1.0f / std::sqrt(float(dim)));
    step->attend_s += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    linear(step->attended, layer->output, step->update, false, step->tokens, step->threads);
}

void mlp_half(const Layer* layer, const Step* step) {
    norm_residual(*step, layer->post_attention_norm, layer->gate_up.in, layer->rms_norm_eps, step->normed);
    gated_linear(step->normed, layer->gate_up, step->inner, step->tokens, step->threads);
    linear(step->inner, layer->down, step->update, false, step->tokens, step->threads);
}

void finish(const Step* step, const bf16* norm, int64_t size, double eps, bf16* out) {
    norm_residual(*step, norm, size, eps, out);
}

void projection(const bf16* x, const Weight* weight, float* out, int64_t rows, int64_t threads) {
    linear(x, *weight, out, true, rows, threads);
}

void write_cache(const bf16* key, const bf16* value, int64_t stride, bf16* kv_cache, int64_t kv_heads, int64_t head_dim,
                 const Step* step) {
    write(key, value, stride, {kv_cache, step->block_size, kv_heads, head_dim}, *step);
}

void attend_cache(const bf16* query, int64_t stride, int64_t heads, bf16* out, bf16* kv_cache, int64_t kv_heads,
                  int64_t head_dim, const Step* step, double scale) {
    attend(query, stride, heads, out, {kv_cache, step->block_size, kv_heads, head_dim}, *step, scale);
}

}  // extern "C"
