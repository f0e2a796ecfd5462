/* Big-endian numbers, varints, and the crc32 of zlib. */

#pragma once

#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define BIG16(number) __builtin_bswap16(number)
#define BIG32(number) __builtin_bswap32(number)
#define BIG64(number) __builtin_bswap64(number)
#else
#define BIG16(number) (number)
#define BIG32(number) (number)
#define BIG64(number) (number)
#endif

static inline uint16_t get16(const uint8_t *at)
{
    uint16_t number;
    memcpy(&number, at, 2);
    return BIG16(number);
}

static inline uint32_t get32(const uint8_t *at)
{
    uint32_t number;
    memcpy(&number, at, 4);
    return BIG32(number);
}

static inline uint64_t get64(const uint8_t *at)
{
    uint64_t number;
    memcpy(&number, at, 8);
    return BIG64(number);
}

static inline uint8_t *put16(uint8_t *at, uint16_t number)
{
    number = BIG16(number);
    memcpy(at, &number, 2);
    return at + 2;
}

static inline uint8_t *put32(uint8_t *at, uint32_t number)
{
    number = BIG32(number);
    memcpy(at, &number, 4);
    return at + 4;
}

static inline uint8_t *put64(uint8_t *at, uint64_t number)
{
    number = BIG64(number);
    memcpy(at, &number, 8);
    return at + 8;
}

static inline uint8_t *put_varint(uint8_t *at, uint64_t number)
{
    for (; number > 0x7F; number >>= 7)
        *at++ = (uint8_t)(number | 0x80);
    *at++ = (uint8_t)number;
    return at;
}

/* Eight bytes a step by tables; where the processor multiplies without carries, 64 bytes a step
 * (V. Gopal and others, "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ"). */

static uint32_t crc_table[8][256];
static int crc_folds;

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define FOLD(x, by, next)                                                                       \
    _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, by, 0x00),                              \
                                _mm_clmulepi64_si128(x, by, 0x11)), next)

/* `size`: a multiple of 16, at least 64 */
__attribute__((target("pclmul,sse4.1")))
static uint32_t crc_fold(uint32_t crc, const uint8_t *at, size_t size)
{
    const __m128i by64 = _mm_set_epi64x(0x1C6E41596, 0x154442BD4); /* past 64 bytes */
    const __m128i by16 = _mm_set_epi64x(0x0CCAA009E, 0x1751997D0); /* past 16 bytes */
    const __m128i by4 = _mm_set_epi64x(0, 0x163CD6124);            /* 64 to 32 bits */
    const __m128i barrett = _mm_set_epi64x(0x1F7011641, 0x1DB710641);
    const __m128i low = _mm_setr_epi32(-1, 0, -1, 0);
    const __m128i *in = (const __m128i *)at;
    __m128i a = _mm_xor_si128(_mm_loadu_si128(in), _mm_cvtsi32_si128((int)crc));
    __m128i b = _mm_loadu_si128(in + 1), c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
    for (in += 4, size -= 64; size >= 64; in += 4, size -= 64) {
        a = FOLD(a, by64, _mm_loadu_si128(in));
        b = FOLD(b, by64, _mm_loadu_si128(in + 1));
        c = FOLD(c, by64, _mm_loadu_si128(in + 2));
        d = FOLD(d, by64, _mm_loadu_si128(in + 3));
    }
    a = FOLD(a, by16, b);
    a = FOLD(a, by16, c);
    a = FOLD(a, by16, d);
    for (; size; in++, size -= 16)
        a = FOLD(a, by16, _mm_loadu_si128(in));
    a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by16, 0x10));
    a = _mm_xor_si128(_mm_srli_si128(a, 4), _mm_clmulepi64_si128(_mm_and_si128(a, low), by4, 0));
    b = _mm_clmulepi64_si128(_mm_and_si128(a, low), barrett, 0x10);
    b = _mm_clmulepi64_si128(_mm_and_si128(b, low), barrett, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, b), 1);
}

static int crc_can_fold(void)
{
    return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}
#else
static uint32_t crc_fold(uint32_t crc, const uint8_t *at, size_t size)
{
    (void)at, (void)size;
    return crc;
}

static int crc_can_fold(void) { return 0; }
#endif

static void crc_prepare(int may_fold)
{
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t crc = n;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? 0xEDB88320u ^ crc >> 1 : crc >> 1;
        crc_table[0][n] = crc;
    }
    for (int row = 1; row < 8; row++)
        for (int n = 0; n < 256; n++)
            crc_table[row][n] =
                crc_table[0][crc_table[row - 1][n] & 255] ^ crc_table[row - 1][n] >> 8;
    crc_folds = may_fold && crc_can_fold();
}

static uint32_t crc_of(const uint8_t *at, size_t size)
{
    uint32_t crc = 0xFFFFFFFFu;
    if (crc_folds && size >= 64) {
        size_t folded = size & ~(size_t)15;
        crc = crc_fold(crc, at, folded);
        at += folded;
        size -= folded;
    }
    for (; size >= 8; at += 8, size -= 8) {
        uint32_t low = crc ^ ((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16
                              | (uint32_t)at[3] << 24);
        crc = crc_table[7][low & 255] ^ crc_table[6][low >> 8 & 255]
              ^ crc_table[5][low >> 16 & 255] ^ crc_table[4][low >> 24]
              ^ crc_table[3][at[4]] ^ crc_table[2][at[5]] ^ crc_table[1][at[6]]
              ^ crc_table[0][at[7]];
    }
    while (size--)
        crc = crc_table[0][(crc ^ *at++) & 255] ^ crc >> 8;
    return ~crc;
}
