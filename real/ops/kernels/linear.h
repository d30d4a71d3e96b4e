// Matrix products with weights in tiles: x [rows][in] times weight [out][in], bfloat16 in, float32 sums.

#pragma once

#include <algorithm>

#include "vectors.h"

constexpr int TILE = 2 * LANES;  // output features that are computed together
constexpr int BLOCK_ROWS = 240;  // rows that stay in a core's cache while tiles pass by
constexpr int MAX_ROWS = 12;     // with 24 sums, 2 weights and 1 input, 27 of 32 registers are in use

// ROWS rows of x times one tile of the weight, whose pairs lie [in/2][TILE].
template <int ROWS>
void linear_tile(const bf16* x, const bf16* weight, int64_t in, Floats (*sums)[2]) {
    Floats acc[ROWS][2];
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) acc[r][0] = acc[r][1] = Floats{};
    for (int64_t i = 0; i < in; i += 2, weight += 2 * TILE) {
        const Pairs w0 = load<Pairs>(weight), w1 = load<Pairs>(weight + TILE);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) {
            const Pairs a = spread(x + r * in + i);
            acc[r][0] = add_products(acc[r][0], w0, a);
            acc[r][1] = add_products(acc[r][1], w1, a);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) sums[r][0] = acc[r][0], sums[r][1] = acc[r][1];
}

typedef void (*LinearTile)(const bf16*, const bf16*, int64_t, Floats (*)[2]);
const LinearTile LINEAR_TILES[MAX_ROWS] = {
    linear_tile<1>, linear_tile<2>, linear_tile<3>, linear_tile<4>,  linear_tile<5>,  linear_tile<6>,
    linear_tile<7>, linear_tile<8>, linear_tile<9>, linear_tile<10>, linear_tile<11>, linear_tile<12>,
};

// Every tile of the weight times all rows; finish(tile, row, sums) takes what one row times one tile gives. How a row
// is summed depends on nothing but the row, so that a request's numbers are the same bits alone and in any batch.
template <class Finish>
void linear_tiles(const bf16* x, const bf16* weight, int64_t rows, int64_t in, int64_t tiles, int64_t threads,
                  const Finish& finish) {
    const int64_t blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    // Small shares and not one large one a thread: another process may hold up one of the cores.
    const int64_t share = std::max<int64_t>(1, tiles / (threads * 4));
#pragma omp parallel for num_threads(threads) schedule(dynamic, share)
    for (int64_t task = 0; task < blocks * tiles; task++) {
        const int64_t tile = task % tiles, end = std::min(rows, (task / tiles + 1) * BLOCK_ROWS);
        for (int64_t row = task / tiles * BLOCK_ROWS; row < end;) {
            const int64_t steps = (end - row + MAX_ROWS - 1) / MAX_ROWS, count = (end - row) / steps;
            Floats sums[MAX_ROWS][2];
            LINEAR_TILES[count - 1](x + row * in, weight + tile * in * TILE, in, sums);
            for (int64_t r = 0; r < count; r++) finish(tile, row + r, sums[r]);
            row += count;
        }
    }
}
