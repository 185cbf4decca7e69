// The inner loops of contractions and attention, compiled once a library.
//
//   c[m][0..32) = (mode) sum over k < count of a[m * TW_KB + k] * w[k][0..32)
//
// The sum runs over k in order, from zero, in every variant: a row's result does not depend on how
// many rows are computed beside it.
#pragma once
#include "tw.h"

#define TW_KB 256     // products summed from zero before they join a total; row stride of a
#define TW_PANEL 32   // columns of w side by side

#if TW_LANES == 16 || defined(__aarch64__)
#define TW_ROWS 12  // 2 accumulators a row of 32 vector registers
#else
#define TW_ROWS 6  // ... of 16
#endif

// f<W, rows>, by number of rows
#if TW_ROWS == 12
#define TW_MICROS(f, W) \
    {nullptr, f<W, 1>, f<W, 2>, f<W, 3>, f<W, 4>,  f<W, 5>,  f<W, 6>, \
     f<W, 7>, f<W, 8>, f<W, 9>, f<W, 10>, f<W, 11>, f<W, 12>}
#else
#define TW_MICROS(f, W) {nullptr, f<W, 1>, f<W, 2>, f<W, 3>, f<W, 4>, f<W, 5>, f<W, 6>}
#endif

enum TwMode {
    TW_SET,      // c = sum
    TW_ADD,      // c += sum
    TW_CONTINUE  // the sum starts from c instead of zero
};

// While it lives, numbers below 2^-126 are 0, as operands and as results. x86 processors compute with
// them in microcode, a hundred times as slow; weights that training has let vanish are such numbers.
struct TwTinyIsZero {
#if defined(__SSE__)
    const uint32_t before = __builtin_ia32_stmxcsr();
    TwTinyIsZero() { __builtin_ia32_ldmxcsr(before | 0x8040); }  // FTZ and DAZ
    ~TwTinyIsZero() { __builtin_ia32_ldmxcsr(before); }
#endif
};

// ldw: elements from one row of w to the next
typedef void (*TwMicro)(const float* a, const void* w, int64_t ldw, int64_t count, float* c,
                        int64_t ldc, int mode);

// by number of rows, 1 to TW_ROWS. 16-bit rows of w are interleaved (codegen/pack.py, panel32i).
extern const TwMicro tw_micro_f32[TW_ROWS + 1];
extern const TwMicro tw_micro_bf16[TW_ROWS + 1];
extern const TwMicro tw_micro_f16[TW_ROWS + 1];
extern const TwMicro tw_micro_codes[TW_ROWS + 1];  // w is int8_t

// out[k][0..rows) = w[0..rows) at k < count: rows of w that lie along k, `ldw` apart, as a panel.
void tw_pack_rows(const float* w, int64_t ldw, int64_t rows, int64_t count, float* out);

// The same of panels of which only the first 16 columns are wanted.
extern const TwMicro tw_half_f32[TW_ROWS + 1];

// c[m][n] = sum over k < count of x[m][k] * w[n * ldw + k], for few columns: a vector's lanes are sums
// along k. a holds x by blocks of TW_KB, `apart` from one to the next; rows of w end in zeros, up to
// a multiple of a vector's length.
void tw_narrow(int64_t rows, int64_t columns, const float* a, int64_t apart, const float* w,
               int64_t ldw, int64_t count, float* c, int64_t ldc);

// The same of integers, whose sums wrap: a has pairs of neighbours along k, w panels of such pairs
// (ir/encoding.py, panel32p), `count` is of pairs.
typedef void (*TwMicroOfPairs)(const int16_t* a, const void* w, int64_t ldw, int64_t count,
                               int32_t* c, int64_t ldc, int mode);
extern const TwMicroOfPairs tw_micro_i8[TW_ROWS + 1];
extern const TwMicroOfPairs tw_micro_i16[TW_ROWS + 1];

// The same of bytes: a without signs, w panels of four neighbours along k (panel32q), `count` is of fours.
typedef void (*TwMicroOfBytes)(const uint8_t* a, const void* w, int64_t ldw, int64_t count,
                               int32_t* c, int64_t ldc, int mode);
extern const TwMicroOfBytes tw_micro_u8[TW_ROWS + 1];

// x[0..width) = e^(scale * x - top), top the largest of scale * x; width is a multiple of TW_PANEL, and
// scale is not below 0.
// A score of minus infinity weighs 0, also where all are. total is the sum of the weights.
void tw_weigh(float* x, int64_t width, float scale, float* top, float* total);

#if TW_MATRIX
// The same with the weights rounded to bf16, and written to `to` alone.
void tw_weigh_bf16(const float* x, int64_t width, float scale, float* top, float* total,
                   uint16_t* to);

// Whether the system lets this process use the matrix unit; if so, it is ready in this thread until
// tw_matrix_end.
bool tw_matrix_begin();
void tw_matrix_end();

// c[m][0..32) = sum over steps of 32 products, m < 32. Rows of a are lda bf16 apart. w has a tile of
// 16 columns a step (512 elements: 16 rows of pairs), and the other 16 columns `other` elements on.
void tw_matrix(const uint16_t* a, int64_t lda, const uint16_t* w, int64_t other, int64_t steps,
               float* c, int64_t ldc);

#define TW_LOAD_TILE(tile, p, stride) \
    asm volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(p), "r"(stride) : "memory")
#define TW_STORE_TILE(tile, p, stride) \
    asm volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(p), "r"(stride) : "memory")
#define TW_CLEAR_TILE(tile) asm volatile("tilezero %%tmm" #tile ::)
#define TW_MULTIPLY_TILES(op, a, w, c) \
    asm volatile(#op " %%tmm" #w ", %%tmm" #a ", %%tmm" #c ::)
#endif

#if TW_MATRIX_OF_BYTES
// Rows of TW_KB numbers of 16 bits as their low bytes, then their high bytes.
void tw_split_bytes(int16_t* row);

// tw_micro_i8 of any number of such rows on the matrix unit, which is ready: x = low + 256 * high. Up to
// 15 rows behind them are read, and whatever they hold goes nowhere.
void tw_matrix_i8(const int16_t* a, int64_t rows, const void* w, int64_t count, int32_t* c,
                  int64_t ldc, int mode);

// c = the sums over steps of 64 products, of any number of rows, on the matrix unit, which is ready: a
// has blocks of TW_KB along k, `apart` from one to the next; w is as for tw_micro_u8. Up to 15 rows
// behind them are read here too.
void tw_matrix_u8(const uint8_t* a, int64_t apart, int64_t rows, const void* w, int64_t steps,
                  int32_t* c, int64_t ldc);
#endif
