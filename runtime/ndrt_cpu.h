/* ndrt_cpu.h - PUBLIC: what of the processor a program was compiled for.
 *
 * A row is a feature: its name as -mNAME knows it, the macro that is 1 where
 * the compiler may use it, where CPUID tells it (leaf, sub-leaf, register,
 * bit), what the operating system must save for it (XCR0), and the x86-64-vN
 * that first has it, 9 if none has. NDRT_CPU, in a generated file, says of each
 * row whether this file was compiled for it.
 */
#ifndef NDRT_CPU_H
#define NDRT_CPU_H

#include <stdbool.h>

#define NDRT_CPU_FEATURES(ROW) \
    ROW("sse3", __SSE3__, 1, 0, ecx, 0, 0, 2) \
    ROW("ssse3", __SSSE3__, 1, 0, ecx, 9, 0, 2) \
    ROW("sse4.1", __SSE4_1__, 1, 0, ecx, 19, 0, 2) \
    ROW("sse4.2", __SSE4_2__, 1, 0, ecx, 20, 0, 2) \
    ROW("popcnt", __POPCNT__, 1, 0, ecx, 23, 0, 2) \
    ROW("movbe", __MOVBE__, 1, 0, ecx, 22, 0, 3) \
    ROW("lzcnt", __LZCNT__, 0x80000001, 0, ecx, 5, 0, 3) \
    ROW("bmi", __BMI__, 7, 0, ebx, 3, 0, 3) \
    ROW("bmi2", __BMI2__, 7, 0, ebx, 8, 0, 3) \
    ROW("avx", __AVX__, 1, 0, ecx, 28, 0x6, 3) \
    ROW("f16c", __F16C__, 1, 0, ecx, 29, 0x6, 3) \
    ROW("fma", __FMA__, 1, 0, ecx, 12, 0x6, 3) \
    ROW("avx2", __AVX2__, 7, 0, ebx, 5, 0x6, 3) \
    ROW("avx512f", __AVX512F__, 7, 0, ebx, 16, 0xe6, 4) \
    ROW("avx512cd", __AVX512CD__, 7, 0, ebx, 28, 0xe6, 4) \
    ROW("avx512dq", __AVX512DQ__, 7, 0, ebx, 17, 0xe6, 4) \
    ROW("avx512bw", __AVX512BW__, 7, 0, ebx, 30, 0xe6, 4) \
    ROW("avx512vl", __AVX512VL__, 7, 0, ebx, 31, 0xe6, 4) \
    ROW("avx512ifma", __AVX512IFMA__, 7, 0, ebx, 21, 0xe6, 9) \
    ROW("avx512vbmi", __AVX512VBMI__, 7, 0, ecx, 1, 0xe6, 9) \
    ROW("avx512vbmi2", __AVX512VBMI2__, 7, 0, ecx, 6, 0xe6, 9) \
    ROW("avx512vnni", __AVX512VNNI__, 7, 0, ecx, 11, 0xe6, 9) \
    ROW("avx512bitalg", __AVX512BITALG__, 7, 0, ecx, 12, 0xe6, 9) \
    ROW("avx512vpopcntdq", __AVX512VPOPCNTDQ__, 7, 0, ecx, 14, 0xe6, 9) \
    ROW("avx512fp16", __AVX512FP16__, 7, 0, edx, 23, 0xe6, 9) \
    ROW("avx512bf16", __AVX512BF16__, 7, 1, eax, 5, 0xe6, 9) \
    ROW("avxvnni", __AVXVNNI__, 7, 1, eax, 4, 0x6, 9) \
    ROW("gfni", __GFNI__, 7, 0, ecx, 8, 0, 9) \
    ROW("vaes", __VAES__, 7, 0, ecx, 9, 0x6, 9) \
    ROW("vpclmulqdq", __VPCLMULQDQ__, 7, 0, ecx, 10, 0x6, 9) \
    ROW("adx", __ADX__, 7, 0, ebx, 19, 0, 9) \
    ROW("sse4a", __SSE4A__, 0x80000001, 0, ecx, 6, 0, 9) \
    ROW("xop", __XOP__, 0x80000001, 0, ecx, 11, 0x6, 9) \
    ROW("fma4", __FMA4__, 0x80000001, 0, ecx, 16, 0x6, 9) \
    ROW("tbm", __TBM__, 0x80000001, 0, ecx, 21, 0, 9)

/* "1" where the macro is defined, else its name, which is longer. */
#define NDRT_CPU_TEXT(macro) #macro
#define NDRT_CPU_HAS(name, macro, ...) sizeof NDRT_CPU_TEXT(macro) == 2,

#define NDRT_CPU (const bool[]){NDRT_CPU_FEATURES(NDRT_CPU_HAS)}

#endif
