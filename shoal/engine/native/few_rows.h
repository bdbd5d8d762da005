// Products of a quantised matrix with a few rows of activations: what the parts share.
//
// A block is 256 weights of one row of the matrix, as they lie in the model file (llama.cpp's ggml-common.h,
// of the version that pyproject.toml pins). Activations are quantised to 8 bits by llama.cpp itself.
#pragma once

#include <stdint.h>

enum { BLOCK = 256, TILE_ROWS = 8 };

// Q4_K: a weight is d * scale * q - dmin * min, with a 6-bit scale and min for each 32 of them.
typedef struct {
    uint16_t d, dmin;
    uint8_t scales[12];
    uint8_t qs[BLOCK / 2];
} block_q4_K;

// Q6_K: a weight is d * scale * (q - 32), with a scale for each 16 of them.
typedef struct {
    uint8_t ql[BLOCK / 2], qh[BLOCK / 4];
    int8_t scales[BLOCK / 16];
    uint16_t d;
} block_q6_K;

// Q8_K: what llama.cpp quantises activations to.
typedef struct {
    float d;
    int8_t qs[BLOCK];
    int16_t sums[BLOCK / 16];
} block_q8_K;

// The same, laid out for whole vectors. `q` is in the order in which unpacked weights come. `sums` are of 16
// values each, `sums_of_32` of 32; the latter twice, for two rows of the matrix.
typedef struct {
    _Alignas(64) int8_t q[BLOCK];
    int16_t sums[BLOCK / 16];
    int16_t sums_of_32[2 * BLOCK / 32];
    float d;
} activations;

// Two rows of the matrix, `first` and `second`, of num_blocks blocks each, times num_rows (1 to TILE_ROWS) rows
// of activations, of as many blocks, one behind the other.
typedef void tile(int num_rows, int num_blocks, const void *first, const void *second, const activations *rows,
                  float products[TILE_ROWS][2]);

#ifdef __x86_64__
tile shoal_tile_q4_K_avx512, shoal_tile_q6_K_avx512;
#endif
