// Tiles for CPUs with AVX-512 VNNI.
//
// llama.cpp's own ggml_vec_dot_* unpack a block of weights again for every row of activations. Here it is unpacked
// once for up to eight. Whole numbers are exact in any order, and the few float operations are done in vec_dot's
// order, lane by lane: so the bits are those of vec_dot (ggml-cpu/arch/x86/quants.c).
#ifdef __x86_64__

#include "few_rows.h"

#include <immintrin.h>
#include <string.h>

#define AVX512 __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#define INLINE static inline __attribute__((always_inline)) AVX512

// Two rows at once confuse the CPU's own prefetching: 8 GB/s without this, 36 with it.
enum { AHEAD_BYTES = 8192, LINE_BYTES = 64 };

// One block of both rows, unpacked: the weights in four vectors of 64, and the scale of each pair of them.
typedef struct {
    __m512i weights[2][4], scales[2][4];
} unpacked;

INLINE void prefetch(const char *from, size_t num_bytes) {
    for (size_t at = 0; at < num_bytes; at += LINE_BYTES) _mm_prefetch(from + at, _MM_HINT_T0);
}

// The first row's value in the lower half, the second's in the upper.
INLINE __m512 halves(uint16_t first, uint16_t second) {
    return _mm512_insertf32x8(_mm512_set1_ps(_cvtsh_ss(first)), _mm256_set1_ps(_cvtsh_ss(second)), 1);
}

// Scale times weight times activation: eight sums of each row, lane k of the bytes 4k to 4k + 3 of each 32.
INLINE __m512i dot(const unpacked *block, const int8_t *q) {
    __m512i first = _mm512_setzero_si512(), second = first;
    for (int part = 0; part < 4; part++) {
        __m512i row = _mm512_load_si512(q + 64 * part);
        first = _mm512_dpwssd_epi32(first, _mm512_maddubs_epi16(block->weights[0][part], row), block->scales[0][part]);
        second = _mm512_dpwssd_epi32(second, _mm512_maddubs_epi16(block->weights[1][part], row), block->scales[1][part]);
    }
    return _mm512_add_epi32(_mm512_shuffle_i64x2(first, second, 0x44), _mm512_shuffle_i64x2(first, second, 0xEE));
}

INLINE float sum_of_4(__m128 lanes) {
    lanes = _mm_add_ps(lanes, _mm_movehl_ps(lanes, lanes));
    return _mm_cvtss_f32(_mm_add_ss(lanes, _mm_movehdup_ps(lanes)));
}

INLINE float sum_of_8(__m256 lanes) {
    return sum_of_4(_mm_add_ps(_mm256_extractf128_ps(lanes, 1), _mm256_castps256_ps128(lanes)));
}

// ---------------------------------------------------------------- Q4_K

// Scales into the lower half, mins into the upper: eight of 16 bits each.
INLINE __m256i scales_and_mins(const uint8_t *packed) {
    uint32_t in[3];
    memcpy(in, packed, sizeof in);
    uint32_t scales_high = (in[2] & 0x0f0f0f0f) | ((in[0] >> 6 & 0x03030303) << 4);
    uint32_t mins_high = (in[2] >> 4 & 0x0f0f0f0f) | ((in[1] >> 6 & 0x03030303) << 4);
    return _mm256_cvtepu8_epi16(
        _mm_set_epi32((int)mins_high, (int)(in[1] & 0x3f3f3f3f), (int)scales_high, (int)(in[0] & 0x3f3f3f3f)));
}

// 64 bytes hold four groups of 32 weights: the first and third in their low halves, second and fourth in the high.
INLINE void unpack_q4(const uint8_t *qs, __m512i weights[4]) {
    const __m512i low = _mm512_set1_epi8(15);
    for (int half = 0; half < 2; half++) {
        __m512i bytes = _mm512_loadu_si512(qs + 64 * half);
        weights[2 * half] = _mm512_and_si512(bytes, low);
        weights[2 * half + 1] = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), low);
    }
}

INLINE void q4_tile(const int num_rows, int num_blocks, const block_q4_K *first, const block_q4_K *second,
                    const activations *rows, float products[TILE_ROWS][2]) {
    __m512i scale_of[4];
    for (int part = 0; part < 4; part++) {
        int group = part / 2 * 4 + part % 2;
        scale_of[part] = _mm512_inserti64x4(_mm512_set1_epi16((short)group), _mm256_set1_epi16((short)(group + 2)), 1);
    }
    __m512 sums[TILE_ROWS];
    __m256 min_sums[TILE_ROWS];
    for (int row = 0; row < num_rows; row++) sums[row] = _mm512_setzero_ps(), min_sums[row] = _mm256_setzero_ps();

    const char *ahead = (const char *)first + AHEAD_BYTES;
    for (int at = 0; at < num_blocks; at++, first++, second++, ahead += 2 * sizeof *first) {
        prefetch(ahead, 2 * sizeof *first);
        unpacked block;
        unpack_q4(first->qs, block.weights[0]);
        unpack_q4(second->qs, block.weights[1]);
        __m256i first_scales = scales_and_mins(first->scales), second_scales = scales_and_mins(second->scales);
        for (int part = 0; part < 4; part++) {
            block.scales[0][part] = _mm512_permutexvar_epi16(scale_of[part], _mm512_castsi256_si512(first_scales));
            block.scales[1][part] = _mm512_permutexvar_epi16(scale_of[part], _mm512_castsi256_si512(second_scales));
        }
        __m256i mins = _mm256_permute2x128_si256(first_scales, second_scales, 0x31);
        __m512 d = halves(first->d, second->d), dmin = halves(first->dmin, second->dmin);
        __m256 dmins = _mm256_insertf128_ps(_mm512_castps512_ps256(dmin), _mm512_extractf32x4_ps(dmin, 2), 1);

        for (int row = 0; row < num_rows; row++) {
            const activations *x = rows + (int64_t)row * num_blocks + at;
            __m512 scaled = _mm512_mul_ps(_mm512_set1_ps(x->d), d);
            sums[row] = _mm512_fmadd_ps(scaled, _mm512_cvtepi32_ps(dot(&block, x->q)), sums[row]);
            __m256i min_dot = _mm256_madd_epi16(mins, _mm256_load_si256((const __m256i *)x->sums_of_32));
            __m256 min_scaled = _mm256_mul_ps(_mm256_set1_ps(-x->d), dmins);
            min_sums[row] = _mm256_fmadd_ps(min_scaled, _mm256_cvtepi32_ps(min_dot), min_sums[row]);
        }
    }
    for (int row = 0; row < num_rows; row++) {
        products[row][0] = sum_of_8(_mm512_castps512_ps256(sums[row])) + sum_of_4(_mm256_castps256_ps128(min_sums[row]));
        products[row][1] = sum_of_8(_mm512_extractf32x8_ps(sums[row], 1)) + sum_of_4(_mm256_extractf128_ps(min_sums[row], 1));
    }
}

// ---------------------------------------------------------------- Q6_K

// 64 bytes of `ql` hold the lower four bits of 128 weights, 32 bytes of `qh` the upper two.
INLINE void unpack_q6(const block_q6_K *block, __m512i weights[4]) {
    const __m512i low = _mm512_set1_epi8(15), two = _mm512_set1_epi8(3), two_high = _mm512_set1_epi8(0x30);
    for (int half = 0; half < 2; half++) {
        __m512i bytes = _mm512_loadu_si512(block->ql + 64 * half);
        __m256i upper = _mm256_loadu_si256((const __m256i *)(block->qh + 32 * half));
        __m512i bits = _mm512_inserti64x4(_mm512_castsi256_si512(upper), _mm256_srli_epi16(upper, 2), 1);
        weights[2 * half] = _mm512_or_si512(_mm512_and_si512(bytes, low),
                                            _mm512_slli_epi16(_mm512_and_si512(bits, two), 4));
        weights[2 * half + 1] = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(bytes, 4), low),
                                                _mm512_and_si512(bits, two_high));
    }
}

INLINE void q6_tile(const int num_rows, int num_blocks, const block_q6_K *first, const block_q6_K *second,
                    const activations *rows, float products[TILE_ROWS][2]) {
    __m512i scale_of[4];
    for (int part = 0; part < 4; part++) {
        __m256i eighths = _mm256_inserti128_si256(_mm256_set1_epi16((short)(4 * part)),
                                                  _mm_set1_epi16((short)(4 * part + 1)), 1);
        scale_of[part] = _mm512_inserti64x4(_mm512_castsi256_si512(eighths),
                                            _mm256_add_epi16(eighths, _mm256_set1_epi16(2)), 1);
    }
    __m512 sums[TILE_ROWS];
    for (int row = 0; row < num_rows; row++) sums[row] = _mm512_setzero_ps();

    const char *ahead = (const char *)first + AHEAD_BYTES;
    for (int at = 0; at < num_blocks; at++, first++, second++, ahead += 2 * sizeof *first) {
        prefetch(ahead, 2 * sizeof *first);
        unpacked block;
        unpack_q6(first, block.weights[0]);
        unpack_q6(second, block.weights[1]);
        __m256i first_scales = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)first->scales));
        __m256i second_scales = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)second->scales));
        for (int part = 0; part < 4; part++) {
            block.scales[0][part] = _mm512_permutexvar_epi16(scale_of[part], _mm512_castsi256_si512(first_scales));
            block.scales[1][part] = _mm512_permutexvar_epi16(scale_of[part], _mm512_castsi256_si512(second_scales));
        }
        __m512i scales = _mm512_inserti64x4(_mm512_castsi256_si512(first_scales), second_scales, 1);
        __m512 d = halves(first->d, second->d);

        for (int row = 0; row < num_rows; row++) {
            const activations *x = rows + (int64_t)row * num_blocks + at;
            __m512i x_sums = _mm512_broadcast_i64x4(_mm256_load_si256((const __m256i *)x->sums));
            __m512i offset = _mm512_slli_epi32(_mm512_madd_epi16(x_sums, scales), 5);  // 32 * scale * sum
            __m512i whole = _mm512_sub_epi32(dot(&block, x->q), offset);
            sums[row] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_set1_ps(x->d), d), _mm512_cvtepi32_ps(whole), sums[row]);
        }
    }
    for (int row = 0; row < num_rows; row++) {
        products[row][0] = sum_of_8(_mm512_castps512_ps256(sums[row]));
        products[row][1] = sum_of_8(_mm512_extractf32x8_ps(sums[row], 1));
    }
}

// ---------------------------------------------------------------- one function for each number of rows

// With the number of rows known to the compiler all sums stay in registers.
#define CASE(kind, n) \
    case n: return kind##_tile(n, num_blocks, first, second, rows, products);
#define TILE(name, kind) \
    AVX512 void name(int num_rows, int num_blocks, const void *first, const void *second, const activations *rows, \
                     float products[TILE_ROWS][2]) { \
        switch (num_rows) { \
            CASE(kind, 1) CASE(kind, 2) CASE(kind, 3) CASE(kind, 4) CASE(kind, 5) CASE(kind, 6) CASE(kind, 7) \
            CASE(kind, 8) \
        } \
    }

TILE(shoal_tile_q4_K_avx512, q4)
TILE(shoal_tile_q6_K_avx512, q6)

#endif
