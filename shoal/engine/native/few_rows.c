// Takes llama.cpp's place for products with a few rows: the functions of ggml-cpu/tiled/tiled.h.
//
// ggml calls them through the dynamic linker, which takes the first definition that was loaded. This library is
// loaded before llama.cpp's (engine/llama_library.py) and told where llama.cpp's own are, for all that it leaves to
// them. Until then, and where the CPU lacks what the tiles need, nothing is computed here.
#include "export.h"
#include "few_rows.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

// Of ggml.h and ggml-cpu/ggml-cpu-impl.h, as far as it is read here; row_kernels_check.py tries it.
enum { GGML_TYPE_F32 = 0, GGML_TYPE_Q4_K = 12, GGML_TYPE_Q6_K = 14 };

struct ggml_tensor {
    int type;
    void *buffer;
    int64_t ne[4];
    size_t nb[4];
    int op;
    int32_t op_params[16];
    int32_t flags;
    struct ggml_tensor *src[10];
    void *view_src;
    size_t view_offs;
    void *data;
};

struct ggml_compute_params {
    int ith, nth;
    size_t wsize;
    void *wdata;
    void *threadpool;
    bool use_ref;
};

typedef bool product(const struct ggml_compute_params *, struct ggml_tensor *);
typedef bool expert_product(const struct ggml_compute_params *, struct ggml_tensor *, int64_t, int64_t, const int32_t *,
                            char *);
typedef size_t product_room(int, struct ggml_tensor *);

static struct {
    product *tiled;
    expert_product *tiled_expert;
    product_room *tiled_room;
    void (*barrier)(void *);
    void (*quantise)(const float *, void *, int64_t);
} llama;

enum { MOST_ROWS = 64 };

static int most_rows;
static atomic_long num_products;

static tile *tile_for(int type) {
#ifdef __x86_64__
    if (type == GGML_TYPE_Q4_K) return shoal_tile_q4_K_avx512;
    if (type == GGML_TYPE_Q6_K) return shoal_tile_q6_K_avx512;
#endif
    (void)type;
    return NULL;
}

// Of a product, or of one with experts, which has the chosen ones of each row in src[2].
static bool is_for_here(const struct ggml_tensor *dst) {
    const struct ggml_tensor *matrix = dst->src[0], *rows = dst->src[1];
    bool is_small = dst->src[2] ? most_rows > 0 : matrix->ne[2] * rows->ne[2] == 1 && rows->ne[1] <= most_rows;
    return is_small && matrix->ne[3] * rows->ne[3] == 1 && matrix->ne[1] >= 2 && tile_for(matrix->type) &&
           rows->type == GGML_TYPE_F32 && rows->nb[0] == sizeof(float) && dst->nb[0] == sizeof(float);
}

// Of activations: all rows of a product for all threads, or for each the most that an expert may get here.
static size_t room_for(const struct ggml_tensor *dst, int num_threads) {
    int64_t num_rows = dst->src[2] ? (int64_t)num_threads * most_rows : dst->src[1]->ne[1];
    return _Alignof(activations) + (size_t)(num_rows * (dst->src[1]->ne[0] / BLOCK)) * sizeof(activations);
}

static activations *aligned(void *room) {
    return (activations *)(((uintptr_t)room + _Alignof(activations) - 1) & ~(uintptr_t)(_Alignof(activations) - 1));
}

// in_order: or as Q4_K's weights are unpacked (few_rows.h).
static void lay_out(const block_q8_K *from, activations *to, bool in_order) {
    to->d = from->d;
    memcpy(to->sums, from->sums, sizeof to->sums);
    for (int at = 0; at < BLOCK / 32; at++) {
        int16_t sum = (int16_t)(from->sums[2 * at] + from->sums[2 * at + 1]);
        to->sums_of_32[at] = to->sums_of_32[BLOCK / 32 + at] = sum;
    }
    for (int group = 0; group < BLOCK / 32; group++) {
        bool moves = !in_order && (group % 4 == 1 || group % 4 == 2);
        memcpy(to->q + 32 * (moves ? group ^ 3 : group), from->qs + 32 * group, 32);
    }
}

static void quantise_rows(const struct ggml_compute_params *params, const struct ggml_tensor *rows, bool in_order,
                          activations *to) {
    int64_t num_blocks = rows->ne[0] / BLOCK;
    block_q8_K block;
    for (int64_t row = 0; row < rows->ne[1]; row++) {
        const float *from = (const float *)((const char *)rows->data + (size_t)row * rows->nb[1]);
        for (int64_t at = params->ith; at < num_blocks; at += params->nth) {
            llama.quantise(from + at * BLOCK, &block, BLOCK);
            lay_out(&block, to + row * num_blocks + at, in_order);
        }
    }
}

// This thread's part of a matrix, whose rows begin at `weights`, times num_rows rows. outs: where each of these has its
// products. Two rows of the matrix at a time; an odd last one goes with the one before it again.
static void multiply(const struct ggml_compute_params *params, const struct ggml_tensor *matrix, const char *weights,
                     const activations *rows, int num_rows, float *const outs[]) {
    int64_t num_blocks = matrix->ne[0] / BLOCK, num_pairs = matrix->ne[1] / 2;
    int64_t from = num_pairs * params->ith / params->nth * 2;
    bool is_last = params->ith + 1 == params->nth;
    int64_t to = is_last ? matrix->ne[1] : num_pairs * (params->ith + 1) / params->nth * 2;
    tile *compute = tile_for(matrix->type);
    float products[TILE_ROWS][2];
    for (int64_t at = from; at < to; at += 2) {
        int64_t pair = at + 1 < to ? at : to - 2;
        const char *first = weights + (size_t)pair * matrix->nb[1];
        for (int row = 0; row < num_rows; row += TILE_ROWS) {
            int num_here = num_rows - row < TILE_ROWS ? num_rows - row : TILE_ROWS;
            compute(num_here, (int)num_blocks, first, first + matrix->nb[1], rows + row * num_blocks, products);
            for (int here = 0; here < num_here; here++) memcpy(outs[row + here] + pair, products[here], sizeof *products);
        }
    }
}

static void count_product(const struct ggml_compute_params *params) {
    if (params->ith == 0) atomic_fetch_add_explicit(&num_products, 1, memory_order_relaxed);
}

// ---------------------------------------------------------------- in llama.cpp's place

EXPORT size_t ggml_tiled_wdata_size(int num_threads, struct ggml_tensor *dst) {
    size_t room = llama.tiled_room ? llama.tiled_room(num_threads, dst) : 0;
    if (!is_for_here(dst)) return room;
    size_t needed = room_for(dst, num_threads);
    return needed > room ? needed : room;
}

EXPORT bool ggml_compute_forward_mul_mat_tiled(const struct ggml_compute_params *params, struct ggml_tensor *dst) {
    const struct ggml_tensor *matrix = dst->src[0], *rows = dst->src[1];
    if (params->use_ref || !is_for_here(dst) || params->wsize < room_for(dst, params->nth))
        return llama.tiled && llama.tiled(params, dst);
    activations *quantised = aligned(params->wdata);
    quantise_rows(params, rows, matrix->type != GGML_TYPE_Q4_K, quantised);
    llama.barrier(params->threadpool);
    float *outs[MOST_ROWS];
    for (int64_t row = 0; row < rows->ne[1]; row++) outs[row] = (float *)((char *)dst->data + (size_t)row * dst->nb[1]);
    multiply(params, matrix, matrix->data, quantised, (int)rows->ne[1], outs);
    count_product(params);
    return true;
}

// One expert, with the rows that were sent to it: pairs of the expert's number among those chosen for the row, and the
// row's. llama.cpp has quantised all rows; each thread lays these out for itself, in its part of `scratch`.
EXPORT bool ggml_compute_forward_mul_mat_id_tiled(const struct ggml_compute_params *params, struct ggml_tensor *dst,
                                                  int64_t expert, int64_t num_rows, const int32_t *pairs,
                                                  char *scratch) {
    const struct ggml_tensor *matrix = dst->src[0], *rows = dst->src[1];
    if (params->use_ref || num_rows > most_rows || !is_for_here(dst))
        return llama.tiled_expert && llama.tiled_expert(params, dst, expert, num_rows, pairs, scratch);
    int64_t num_blocks = matrix->ne[0] / BLOCK;
    activations *own = aligned(scratch) + (int64_t)params->ith * most_rows * num_blocks;
    const block_q8_K *quantised = params->wdata;
    float *outs[MOST_ROWS];
    for (int64_t at = 0; at < num_rows; at++) {
        int32_t choice = pairs[2 * at], row = pairs[2 * at + 1];
        const block_q8_K *from = quantised + (choice % rows->ne[1] + row * rows->ne[1]) * num_blocks;
        for (int64_t block = 0; block < num_blocks; block++)
            lay_out(from + block, own + at * num_blocks + block, matrix->type != GGML_TYPE_Q4_K);
        outs[at] = (float *)((char *)dst->data + (size_t)choice * dst->nb[1] + (size_t)row * dst->nb[2]);
    }
    multiply(params, matrix, (const char *)matrix->data + (size_t)expert * matrix->nb[2], own, (int)num_rows, outs);
    count_product(params);
    return true;
}

// ---------------------------------------------------------------- for engine/row_kernels.py

EXPORT int shoal_kernels_suit_cpu(void) {
#ifdef __x86_64__
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#else
    return 0;
#endif
}

EXPORT void shoal_kernels_connect(product *tiled, expert_product *tiled_expert, product_room *tiled_room,
                                  void (*barrier)(void *), void (*quantise)(const float *, void *, int64_t)) {
    llama.tiled = tiled;
    llama.tiled_expert = tiled_expert;
    llama.tiled_room = tiled_room;
    llama.barrier = barrier;
    llama.quantise = quantise;
}

// Products with more rows are llama.cpp's; 0: all.
EXPORT void shoal_kernels_set_most_rows(int rows) { most_rows = rows < MOST_ROWS ? rows : MOST_ROWS; }

EXPORT long shoal_kernels_num_products(void) { return atomic_load_explicit(&num_products, memory_order_relaxed); }
